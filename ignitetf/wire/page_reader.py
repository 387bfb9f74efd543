"""`PageReader`: takes the entries of pages apart, in memory or while they arrive, in C.

frames, builder -> **page reader** -> collector

Bytes are received a few hundred KB at a time, into the same memory, from which their rows go to the
columns of a `BatchBuilder` at once. Large values are received into their place in a column.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, Protocol

from ignitetf.wire.buffers import BufferPool, address_of
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.forms import entry_end
from ignitetf.wire.objects import Bytes
from ignitetf.wire.receiving import Source, failure, native
from ignitetf.wire.rowends import RowsEnd

__all__ = ["Arrival", "PageReader"]

_PIECE_BYTES: Final = 256 << 10


class Arrival(Protocol):
    """Where the bytes of an answer arrive."""

    @property
    def socket_number(self) -> int:
        """The socket that they can be received from as they are; -1 for none."""

    @property
    def limit_s(self) -> float:
        """Seconds in which some bytes must arrive."""

    @property
    def bytes_here(self) -> int:
        """Bytes that were received from the socket already, and come before all others."""

    def receive_into(self, view: memoryview) -> None:
        """Wait for the next bytes, and put them into memory."""


class _Gap(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("to", ctypes.c_void_p),
        ("field", ctypes.c_void_p),
    )


class _Arriving(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("builder", ctypes.c_void_p),
        ("piece", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("missing", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("placed", ctypes.c_int64),
        ("gap", _Gap),
        ("source", Source),
    )


class PageReader:
    """Takes pages apart.

    Args:
        builder: Takes the rows.
        pool: Memory.
        learn: Has the builder learn the form of an entry; returns whether that helps.
    """

    def __init__(
        self, builder: BatchBuilder, pool: BufferPool, learn: Callable[[Bytes], bool]
    ) -> None:
        self._builder = builder
        self._pool = pool
        self._learn = learn
        self._native = native()
        self._piece = pool.take(0)
        self._state = _Arriving(builder=builder.address)
        if self._native is not None:
            self._state.rows = ctypes.addressof(self._native.rows)

    def add(self, data: Bytes, count: int) -> tuple[int, Bytes | None]:
        """Take the rows of a page.

        Args:
            data: Its entries.
            count: How many they are.

        Returns:
            How many rows were taken, from the front, and the bytes of all others; None if there are
            none.
        """
        rows = at = 0
        while True:
            found = self._builder.add(data[at:] if at else data, count - rows)
            at, rows = at + found.nbytes, rows + found.rows
            if found.end is RowsEnd.DONE and at == len(data):
                return rows, None
            if found.end is RowsEnd.OTHER and self._learn_first(data[at:]):
                continue
            return rows, data[at:]

    def read(self, arrival: Arrival, nbytes: int, count: int) -> tuple[int, Bytes | None]:
        """Take the rows of a page as it arrives.

        Args:
            arrival: Where it arrives.
            nbytes: Bytes of its entries.
            count: How many they are.

        Returns:
            As `add`.

        Raises:
            OSError: The connection broke, or a time limit passed.
        """
        state = self._begin(arrival, nbytes, count)
        while (end := self._run(arrival)) is not RowsEnd.DONE:
            if (error := failure(end, state.source)) is not None:
                raise error
            if end is RowsEnd.FULL and self._builder.go_on():
                continue
            if end is RowsEnd.OTHER and self._learn_arriving(arrival):
                continue
            return count - int(state.entries), self._rest(arrival)
        return count, None

    def _begin(self, arrival: Arrival, nbytes: int, count: int) -> _Arriving:
        state = self._state
        if len(self._piece) != _PIECE_BYTES:
            self._state.end = 0
            self._set_piece(_PIECE_BYTES)
        state.placed = -1
        state.source.limit_ns = int(arrival.limit_s * 1e9)
        state.begin = state.end = 0
        state.missing, state.entries = nbytes, count
        return state

    def _run(self, arrival: Arrival) -> RowsEnd:
        """Take rows, until there is something to do for Python."""
        state = self._state
        assert self._native is not None
        while True:
            state.source.socket = -1 if arrival.bytes_here else arrival.socket_number
            end = RowsEnd(self._native.read_page(ctypes.addressof(state)))
            if end is RowsEnd.ROOM:
                self._set_piece(2 * len(self._piece))
            elif end is RowsEnd.BYTES:
                self._receive(arrival)
            else:
                return end

    def _receive(self, arrival: Arrival) -> None:
        """Receive what there is room for, or what is here."""
        state, gap = self._state, self._state.gap
        is_large = 0 <= state.placed < gap.nbytes
        count = gap.nbytes - state.placed if is_large else len(self._piece) - state.end
        if state.placed >= 0 and not is_large:
            count = min(count, gap.row_bytes - gap.nbytes + gap.at - state.end)
        count = min(count, state.missing, arrival.bytes_here or count)
        if is_large:
            arrival.receive_into(_memory(gap.to + state.placed, count))
            state.placed += count
        else:
            arrival.receive_into(self._piece[state.end : state.end + count].data)
            state.end += count
        state.missing -= count

    def _learn_first(self, data: Bytes) -> bool:
        end = entry_end(data)
        return end is not None and self._learn(data[:end])

    def _learn_arriving(self, arrival: Arrival) -> bool:
        """Learn the form of the next entry, of which more may have to be received."""
        state = self._state
        if state.placed >= 0:
            return False  # its form is known, so it is damaged
        while entry_end(self._piece[state.begin : state.end]) is None:
            if not state.missing:
                return False
            if state.end == len(self._piece):
                self._set_piece(2 * len(self._piece))
            self._receive(arrival)
        return self._learn_first(self._piece[state.begin : state.end])

    def _rest(self, arrival: Arrival) -> Bytes:
        """Return the bytes that were not taken, in memory of their own."""
        state, gap = self._state, self._state.gap
        parts = [self._piece[state.begin : state.end].data]
        if state.placed >= 0:
            row = parts[0]
            parts = [row[: gap.at], _memory(gap.to, state.placed), row[gap.at :]]
        size = sum(map(len, parts))
        rest = self._pool.take(size + int(state.missing))
        at = 0
        for part in parts:
            rest[at : at + len(part)] = part
            at += len(part)
        arrival.receive_into(rest[at:].data)
        return rest

    def _set_piece(self, nbytes: int) -> None:
        piece = self._pool.take(nbytes)
        piece[: self._state.end] = self._piece[: self._state.end]
        self._piece = piece
        self._state.piece, self._state.room = address_of(piece), nbytes


def _memory(address: int, nbytes: int) -> memoryview:
    """Return memory of the builder, which must not be used after it."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
