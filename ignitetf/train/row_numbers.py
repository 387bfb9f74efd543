"""`RowNumbers`: the rows of each batch of an epoch, as numbers of rows in memory.

reader -> all rows, once;  plan, key order -> **row numbers** -> resident batches of any framework

The order is that of reading with the same arguments: the same windows and permutations number the
rows of an epoch, but here rows are looked up instead of read again.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import psutil
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.batches import read_rows
from ignitetf.read.key_order import StepOrder
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import Position, Shard, Window
from ignitetf.wire.columns import Batch

__all__ = ["RowNumbers", "check_size"]


class RowNumbers:
    """The rows of each epoch in order, as numbers of the rows that `read` returned.

    Args:
        rows: The rows to read, with the order and the shard of the epochs.
        batch_size: Rows in a batch; None for this worker's part of each global step.

    Raises:
        ConfigError: `global_batch` rows cannot be cut into such batches.
    """

    def __init__(self, rows: EpochRows, batch_size: int | None) -> None:
        if batch_size is not None:
            rows = rows.in_batches(batch_size)
        order = rows.order
        if batch_size is None and not (isinstance(order, StepOrder) and order.global_batch):
            raise ConfigError("batch_size=None needs global_batch=", hint="pass a number of rows")
        self.rows = rows
        self._order = order
        self._batch_size = batch_size
        self._counts: dict[int, int] = {}

    def read(self) -> list[Batch]:
        """Read all rows that any of the epochs has.

        With an order by key these are all rows, in the order of their keys or blocks, for any
        shard: the shard has different rows in each epoch.
        """
        reader, order = self.rows.reader, self._order
        if isinstance(order, StepOrder):
            every = replace(order, seed=None, even=None, global_batch=None)
            batches = list(read_rows(reader, every, Position(0), Shard()))
        else:
            share = order.share(self.rows.shard)
            # Rows of each partition that remain under the policy for nulls.
            self._counts = dict.fromkeys(share, 0)
            batches = []
            for item in reader.batches(share):
                if item.batch is not None:
                    self._counts[share[item.unit]] += len(item.batch)
                    batches.append(item.batch)
        reader.client.release_idle()
        return batches

    def numbers(self, position: Position) -> NDArray[np.int64]:
        """Return the row numbers from a position on, in order; call `read` first.

        Args:
            position: Any position with an order by key, otherwise the beginning of an epoch.
        """
        order, shard = self._order, self.rows.shard
        if isinstance(order, StepOrder):
            slices = order.slices(position, shard)
            return order.numbers(position.epoch, slices.places(0, len(slices)))
        ends = np.cumsum(list(self._counts.values()))
        first = {p: int(end) - n for (p, n), end in zip(self._counts.items(), ends, strict=True)}
        parts = [np.empty(0, np.int64)]
        for window in order.windows(shard, position.epoch):
            spans = [np.arange(first[p], first[p] + self._counts[p]) for p in window.partitions]
            numbers = np.concatenate(spans)
            if order.seed is not None:
                actual = Window(window.partitions, window.first, len(numbers))
                numbers = numbers[order.permutation(actual, position.epoch)]
            parts.append(numbers)
        numbers = np.concatenate(parts)
        if not order.known or not len(numbers):
            return numbers
        # A padded shard repeats its own first rows; a shortened one ends early.
        return np.resize(numbers, order.rows(shard))

    @property
    def cut_by_step(self) -> bool:
        """True if batches end with global steps, and so may differ in size."""
        order = self._order
        uneven = isinstance(order, StepOrder) and order.is_uneven(self.rows.shard)
        return uneven or self._batch_size is None

    def cuts(self, position: Position, rows: int, drop_remainder: bool) -> list[tuple[int, int]]:
        """Return the start and end of each batch among the rows from a position on.

        Args:
            position: Position of the first row.
            rows: Number of rows, as returned by `numbers`.
            drop_remainder: Skip an incomplete last batch.
        """
        order, size = self._order, self._batch_size
        if size is not None and not self.cut_by_step:
            end = rows - rows % size if drop_remainder else rows
            return [(start, min(start + size, end)) for start in range(0, end, size)]
        assert isinstance(order, StepOrder)
        sizes = order.slices(position, self.rows.shard).sizes(drop_remainder)
        ends = itertools.accumulate(sizes)
        return [(end - size, end) for end, size in zip(ends, sizes, strict=True) if size]


def check_size(rows: EpochRows, limit_bytes: int | None, device_bytes: int | None = None) -> None:
    """Raise ConfigError for rows that do not fit into memory.

    Args:
        rows: The rows to read.
        limit_bytes: The limit; None for the free memory.
        device_bytes: Free memory of a device with its own memory.

    Raises:
        ConfigError: There are too many rows.
    """
    order = rows.order
    count = order.total if isinstance(order, StepOrder) else order.own_rows(rows.shard)
    needed = int(count * rows.reader.entry_bytes)
    limit = limit_bytes
    if limit is None:
        # While the columns are being concatenated, they exist twice.
        limit = psutil.virtual_memory().available // 2
        if device_bytes is not None:
            limit = min(limit, device_bytes)
    if needed > limit:
        raise ConfigError(
            f"{rows.reader.name}: {count} rows are about {needed >> 20} MB, the limit is"
            f" {limit >> 20} MB",
            hint="read fewer fields, take a shard, or iterate the dataset itself",
        )
