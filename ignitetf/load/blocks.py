"""Groups rows into blocks. The rows of a block, and its own key, belong to one partition.

source -> rows -> **blocks** -> writer

Rows are buffered until they fill blocks of a good size, or until a memory limit is reached, and
then sorted by partition. The number of rows in each block is recorded, for readers in a global
order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.load.writer import Work, Writer
from ignitetf.net.client import Client, cache_id
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import BlockKeys, encode_longs, pack_blocks
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch, Column, Dense, concat
from ignitetf.wire.requests import batch_head

__all__ = ["BLOCK_BYTES", "Blocks", "trim"]

BLOCK_BYTES: Final = 512 << 10
# Limit for buffered rows. With very many partitions it is reached early, and blocks are smaller.
_MAX_WINDOW_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 8 << 20
_TRIM_STEP: Final = 64
_TRIM_LIMIT: Final = 1 << 16


class Blocks:
    """Buffers rows and passes them to a writer as blocks.

    Args:
        writer: Its `schema` describes the rows, its `entry_schema` the blocks.
        keys: Source of the blocks' keys.
        stored: Rows of each earlier block of these `keys`, as `block_rows` returns them; empty if
            unknown.
    """

    def __init__(self, writer: Writer, keys: BlockKeys, stored: Sequence[int] = ()) -> None:
        self.writer, self.keys = writer, keys
        self._rows: list[list[int]] | None = None
        if len(stored) == int(keys.used.sum()):
            parts = np.split(np.asarray(stored, np.int64), np.cumsum(keys.used)[:-1])
            self._rows = [part.tolist() for part in parts]
        self.window_bytes = min(_MAX_WINDOW_BYTES, max(_CHUNK_BYTES, BLOCK_BYTES * keys.count))
        self._pending: list[Batch] = []
        self._pending_bytes = 0
        self._buffers = BufferPool()

    @property
    def empty(self) -> bool:
        """True if no rows are buffered."""
        return not self._pending

    @property
    def block_rows(self) -> tuple[int, ...]:
        """Rows of each block, partition after partition, in the order of their keys.

        Empty if the rows of earlier blocks are unknown.
        """
        return () if self._rows is None else tuple(itertools.chain.from_iterable(self._rows))

    def add(self, rows: Batch) -> None:
        """Buffer rows, and write blocks once there are enough."""
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self.window_bytes:
            self.write()

    def write(self) -> None:
        """Write all buffered rows as blocks."""
        if not self._pending:
            return
        rows = concat(self._pending)
        self._pending, self._pending_bytes = [], 0
        order, bounds, keys = self._arrange(rows)
        chunks = max(1, round(rows.nbytes / _CHUNK_BYTES))
        cuts = np.unique(np.searchsorted(bounds, np.linspace(0, len(rows), chunks + 1)))
        for at, stop in itertools.pairwise(cuts.tolist()):
            first, last = int(bounds[at]), int(bounds[stop])
            entries = functools.partial(
                pack_blocks,
                self.writer.schema,
                bounds=bounds[at : stop + 1] - first,
                keys=keys[at:stop],
            )
            self.writer.write(Work(_taken(rows, order[first:last], self._buffers), entries))

    def _arrange(
        self, rows: Batch
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the order of the rows, the bounds of the blocks in that order, and their keys."""
        assert rows.key is not None
        partitions = partitions_of(self.writer.schema, rows.key, self.keys.count)
        if partitions is None:
            raise ConfigError(
                f"the partition of keys of type {self.writer.schema.key.type.name} is not known",
                hint="load with --layout rows",
            )
        # NumPy sorts uint16 three times as fast, and no cache has more partitions than that.
        order = np.argsort(partitions.astype(np.uint16), kind="stable")
        counts = np.bincount(partitions, minlength=self.keys.count)
        row_bytes = max(1, rows.nbytes // len(rows))
        bounds: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        keys: list[NDArray[np.int64]] = []
        at = 0
        for partition in np.flatnonzero(counts).tolist():
            number = int(counts[partition])
            # Round to the nearest number, so that slightly more than one block stays one block.
            pieces = max(1, min(number, round(number * row_bytes / BLOCK_BYTES)))
            cuts = number * np.arange(pieces + 1) // pieces
            bounds.append(at + cuts[1:])
            keys.append(self.keys.reserve(partition, pieces))
            if self._rows is not None:
                self._rows[partition] += np.diff(cuts).tolist()
            at += number
        return order, np.concatenate(bounds), np.concatenate(keys)


def _taken(rows: Batch, index: NDArray[np.int64], buffers: BufferPool) -> Batch:
    """Return `rows[index]`, dense values in pooled memory: fresh memory costs twice the copy."""
    assert rows.key is not None
    columns = {name: _taken_column(c, index, buffers) for name, c in rows.columns.items()}
    return Batch(rows.key[index], columns)


def _taken_column(column: Column, index: NDArray[np.int64], buffers: BufferPool) -> Column:
    if not isinstance(column, Dense) or column.values.dtype.hasobject:
        return column[index]
    values = column.values
    shape = (len(index), *values.shape[1:])
    out = buffers.take(math.prod(shape) * values.itemsize).view(values.dtype).reshape(shape)
    # All positions are in range. Without `mode`, NumPy checks them and writes `out` through a copy.
    values.take(index, axis=0, out=out, mode="clip")
    return Dense(out, valid=None if column.valid is None else column.valid[index])


def trim(client: Client, cache: str, keys: BlockKeys) -> None:
    """Remove blocks with keys after the last one in use.

    A load that was killed may have stored blocks after its last journal entry. Their rows are
    written again, possibly in different blocks.
    """
    expected = int(keys.used.sum())
    skip = np.zeros(keys.count, np.int64)
    while client.cache_size(cache) > expected and int(skip[0]) < _TRIM_LIMIT:
        found = [keys.peek(p, int(skip[p]) + _TRIM_STEP)[int(skip[p]) :] for p in range(keys.count)]
        _remove(client, cache, np.concatenate(found))
        skip += _TRIM_STEP


def _remove(client: Client, cache: str, keys: NDArray[np.int64]) -> None:
    head = batch_head(cache_id(cache), len(keys))
    client.call(OpCode.CACHE_REMOVE_KEYS, head + encode_longs(keys))
