"""`UnitReader`: receives the answers to many requests, and takes their rows apart, in C.

sockets, builder -> **units** -> small units

Of a partition with a few dozen rows, everything that Python does costs more than the rows do. So
the loop over requests and answers is in C: it sends more requests as answers come, receives as many
of these as have arrived, finds the unit that each belongs to, and adds the rows of those that are
in order to the columns of a `BatchBuilder`, while the bytes are in the processor's cache, and
without the GIL. The units may be those of several connections.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.buffers import BufferPool, address_of
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.frames import MIN_HEAD_BYTES
from ignitetf.wire.receiving import Source, failure, native
from ignitetf.wire.rowends import RowsEnd

__all__ = ["Depth", "UnitAnswers", "UnitReader"]

# As much as is asked for and not yet taken: it may all come before the answer that is next.
_BLOCK_BYTES: Final = 8 << 20
_LEAST_BLOCK_BYTES: Final = 128 << 10  # of many connections; grows if that is not enough


class Depth(NamedTuple):
    """How many units to ask for.

    Attributes:
        few: More are asked for once no more than so many requests are unanswered.
        pipelined: Then so many requests are unanswered.
        held: No more units than this are asked for and yet to be taken, since their answers may all
            wait in memory for the first one.
    """

    few: int
    pipelined: int
    held: int


class _Units(ctypes.Structure):
    _fields_ = (
        ("units", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("here", ctypes.c_int64),
        ("frames", ctypes.c_void_p),
        ("frame", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("asked", ctypes.c_int64),
        ("ask", ctypes.c_int64),
        ("few", ctypes.c_int64),
        ("pipelined", ctypes.c_int64),
        ("held", ctypes.c_int64),
        ("block", ctypes.c_void_p),
        ("spare", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("waiting", ctypes.c_int64),
        ("most", ctypes.c_int64),
        ("source", Source),
    )


class _Turns(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("builder", ctypes.c_void_p),
        ("links", ctypes.c_void_p),
        ("link_of", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
        ("next", ctypes.c_int64),
        ("stop", ctypes.c_int64),
        ("at", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("held_ns", ctypes.c_int64),
        ("before", ctypes.c_void_p),
        ("placed", ctypes.c_int64),
    )


_UNIT: Final = np.dtype([(name, "<i8") for name in ("request", "at", "size", "flags", "turn")])
_TAKEN: Final = np.dtype([(name, "<i8") for name in ("rows", "mark", "size")])
# Instead of an address: the rows are in their place.
_PLACED: Final = 1
# The turn of a unit that has none yet.
_LATER: Final = np.iinfo(np.int64).max


class UnitAnswers:
    """Requests for units over one connection, and what has come of their answers.

    Args:
        pool: Memory.
        most_bytes: A larger answer is not small.
        depth: How many units to ask for.
        links: How many connections there are together, which share some memory.
        socket: File descriptor to send to and receive from; -1 if the caller does it, by `due` and
            `received`.
        limit_s: Seconds in which some bytes must arrive.

    Attributes:
        socket: As given.
    """

    def __init__(
        self,
        pool: BufferPool,
        most_bytes: int,
        depth: Depth,
        *,
        links: int,
        socket: int,
        limit_s: float,
    ) -> None:
        self._pool = pool
        self.socket = socket
        self._state = _Units(most=most_bytes, **depth._asdict())
        self._state.source.socket, self._state.source.limit_ns = socket, int(limit_s * 1e9)
        self._table = np.zeros(0, _UNIT)
        self._frames = memoryview(b"")
        size = min(_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, 2 * _BLOCK_BYTES // links))
        self._blocks = [pool.take(size), pool.take(size)]
        self._kept: dict[int, memoryview] = {}  # answers outside of the blocks, by address
        self._set_blocks()

    @property
    def address(self) -> int:
        """Where the structure is in memory that _receive.c works with."""
        return ctypes.addressof(self._state)

    @property
    def next(self) -> int:
        """Units of `expect` that were taken."""
        return int(self._state.next)

    @property
    def asked(self) -> int:
        """Units of `expect` that were asked for."""
        return int(self._state.asked)

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for bytes so far."""
        return float(self._state.source.waited_ns) / 1e9

    def failure(self, end: RowsEnd) -> OSError | None:
        """Return what has ended the connection, if that is how `UnitReader.read` ended."""
        return failure(end, self._state.source)

    def expect(self, asked: Sequence[int], unasked: range = range(0), frames: bytes = b"") -> None:
        """Begin with other units.

        Args:
            asked: The ids of requests that were sent, in the order of their units.
            unasked: The ids of the requests that follow.
            frames: These, which have one size each.
        """
        state, count = self._state, len(asked) + len(unasked)
        self._table = np.zeros(count, _UNIT)
        self._table["request"][: len(asked)] = asked
        self._table["request"][len(asked) :] = unasked
        self._frames = memoryview(frames)
        state.units, state.count, state.next, state.here = address_of(self._table), count, 0, 0
        state.frames, state.frame = address_of(self._frames), len(frames) // max(1, len(unasked))
        state.first = state.asked = len(asked)
        self._kept.clear()

    def set_turns(self, turns: NDArray[np.int64]) -> None:
        """Know the numbers of the first units among those of all connections; others come later."""
        self._table["turn"][: len(turns)], self._table["turn"][len(turns) :] = turns, _LATER

    @property
    def placed(self) -> NDArray[np.int64]:
        """Numbers of the units whose rows are in their place, ahead of those that were taken."""
        at = self._table["at"][self.next : self.asked]
        return self.next + np.flatnonzero(at == _PLACED)

    def due(self) -> memoryview:
        """Return the requests to send where `UnitReader.read` ended with ASK; counts them as sent."""
        state = self._state
        begin, end = state.asked - state.first, state.ask - state.first
        state.asked = state.ask
        return self._frames[begin * state.frame : end * state.frame]

    def give(self, number: int, frame: memoryview) -> None:
        """Have the answer, with its head, for a unit, the first of which is number 0."""
        body = frame[MIN_HEAD_BYTES:]
        flags = int.from_bytes(frame[MIN_HEAD_BYTES - 2 : MIN_HEAD_BYTES], "little")
        at = address_of(frame) + MIN_HEAD_BYTES
        unit = self._table[number]
        unit["at"], unit["size"], unit["flags"] = at, len(body), flags
        self._kept[at] = frame
        # An answer with further pages has left a cursor open, of which a connection has few.
        self._state.here += flags == 0 and len(body) > 0 and body[-1] == 0

    def received(self, receive: Callable[[memoryview], int]) -> None:
        """Receive bytes, by a function that puts some into memory and returns how many."""
        state = self._state
        block = self._block
        state.end += receive(block[state.end :].data)

    def rest(self) -> tuple[list[tuple[int, memoryview]], memoryview]:
        """Give up all units, and what has come: answers with their request ids, and what follows them.

        Of units that are `placed`, there is no answer any more.

        Returns:
            Views of memory that is used again by the next `UnitReader.read`.
        """
        state = self._state
        units = self._table[state.next : state.asked]
        answers = [(int(u["request"]), self._frame(u)) for u in units[units["at"] > _PLACED]]
        rest = self._block[state.begin : state.end].data
        state.begin = state.end = state.waiting = state.here = 0
        state.count = state.asked = state.next
        self._kept.clear()
        return answers, rest

    def put_back(self, data: memoryview) -> None:
        """Have bytes that were received before taken first; there are no others."""
        state = self._state
        while len(data) > state.room:
            self.enlarge()
        self._block[: len(data)] = data
        state.begin, state.end = 0, len(data)

    @property
    def _block(self) -> NDArray[np.uint8]:
        """The block that bytes are received into."""
        return next(b for b in self._blocks if address_of(b) == self._state.block)

    def _frame(self, unit: np.void) -> memoryview:
        """The answer of a unit, without its length."""
        if (kept := self._kept.get(int(unit["at"]))) is not None:
            return kept
        begin = int(unit["at"]) - self._state.block - MIN_HEAD_BYTES
        return self._block[begin : begin + MIN_HEAD_BYTES + int(unit["size"])].data

    def enlarge(self) -> None:
        """Double the blocks, where `UnitReader.read` found no room."""
        state, old = self._state, self._block
        size = 2 * len(old)
        self._blocks = [self._pool.take(size), self._pool.take(size)]
        block = self._blocks[0]
        block[: state.end] = old[: state.end]
        moved = address_of(block) - state.block
        here = (self._table["at"] >= state.block) & (self._table["at"] < state.block + len(old))
        self._table["at"][here] += moved
        self._set_blocks()

    def _set_blocks(self) -> None:
        block, spare = self._blocks
        self._state.block, self._state.spare = address_of(block), address_of(spare)
        self._state.room = len(block)


class UnitReader:
    """Takes the rows of units in order, over all their connections.

    Args:
        builder: Takes the rows; its keys are dense.
        answers: Those of each connection.

    Attributes:
        answers: Those of each connection.
        link_of: Whose each unit is, as in `expect`.
    """

    def __init__(self, builder: BatchBuilder, answers: Sequence[UnitAnswers]) -> None:
        self._builder = builder
        self.answers = answers
        functions = native()
        assert functions is not None
        self._read_units = functions.read_units
        self._addresses = np.array([one.address for one in answers], np.int64)
        self._state = _Turns(builder=builder.address, links=address_of(self._addresses))
        self._state.rows = ctypes.addressof(functions.rows)
        self.link_of = np.zeros(0, np.int32)
        self._before = np.zeros(0, np.int64)
        self._taken = np.zeros(0, _TAKEN)

    def expect(self, link_of: NDArray[Any], rows: NDArray[np.int64] | None = None) -> None:
        """Begin with other units.

        Args:
            link_of: Whose each unit is, integers `[n]`: the numbers of connections. Of each connection
                they are the first ones that its `UnitAnswers` expect.
            rows: How many rows each unit has, `[n]`, as far as anybody knows. Then the rows of those
                that come before their turn are placed at once, while they are in the processor's
                cache, and the builder's rows stay where they are until the last unit was taken.
        """
        state = self._state
        self.link_of = np.ascontiguousarray(link_of, np.int32)
        self._taken = np.empty(len(link_of), _TAKEN)
        state.link_of, state.taken = address_of(self.link_of), address_of(self._taken)
        state.next = state.placed = 0
        for number, one in enumerate(self.answers):
            one.set_turns(np.flatnonzero(self.link_of == number))
        state.before = None
        if rows is not None and self._builder.has_fixed_rows:
            self._before = np.concatenate([[0], np.cumsum(rows)])
            state.before = address_of(self._before)
        self._builder.stays = bool(state.before)

    @property
    def next(self) -> int:
        """Units of `expect` that were taken."""
        return int(self._state.next)

    @property
    def has_placed(self) -> bool:
        """Whether rows of units are in their place that were not taken yet."""
        return bool(self._state.placed)

    @property
    def link(self) -> int:
        """The number of the connection that the last `read` ended at."""
        return int(self._state.at)

    def begin(self, stop: int, held_s: float) -> None:
        """Say how far `read` goes.

        Args:
            stop: Number of the unit to end at.
            held_s: So many seconds from its beginning on, it ends rather than waiting for more.
        """
        state = self._state
        state.stop, state.first = stop, state.next
        state.since, state.held_ns = 0, int(held_s * 1e9)

    def taken(self, first: int, end: int) -> NDArray[np.void]:
        """Return what is known of units that were taken.

        Args:
            first: Number of the first one among those of `expect`.
            end: Number of the one behind the last.

        Returns:
            An array `[end - first]` of int64 fields: `rows`, the `mark` of their keys (a CRC-32), and
            the `size` of the answer in bytes. A view; the next `expect` leaves it alone.
        """
        return self._taken[first:end]

    def read(self) -> RowsEnd:
        """Take units until there is something to do; returns what.

        With ASK, `due` of the connection is to be sent; with BYTES, it is to have some by
        `received`. With FULL, units were taken, and the builder goes on in other memory.
        """
        while True:
            end = RowsEnd(self._read_units(ctypes.addressof(self._state)))
            if end is RowsEnd.ROOM:
                self.answers[self.link].enlarge()
            elif end is not RowsEnd.FULL:
                return end
            else:
                self._builder.go_on(more_rows=True)
                if self.next > self._state.first:
                    return end
