"""Batches of an epoch by number, in every process.

process rows -> **numbered** -> dali, huggingface, ray, train
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ignitetf.errors import ConfigError, DataChanged, OutOfRange
from ignitetf.read.arguments import flag
from ignitetf.read.export import count_of
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.process_rows import ProcessRows, opened
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import Shard, whole_argument

__all__ = ["NumberedBatches", "columns_between", "opened_by_number"]


def opened_by_number(
    source: str | EpochRows,
    address: str | Sequence[str] | None,
    arguments: dict[str, Any],
    parts: str,
) -> EpochRows:
    """Return rows whose order allows reading from any place.

    Args:
        source: Name of the data set, or opened rows with an order by key.
        address: Node or nodes, as for `open_rows`.
        arguments: Arguments of `open_rows`. The default `order` is `keys`, or `global` with
            `shuffle` or `global_batch`.
        parts: The parts that are read by number, for the error: batches, blocks or shards.

    Raises:
        ConfigError: The order is a scan.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """
    seeded = arguments.get("shuffle") is not None or arguments.get("global_batch") is not None
    if isinstance(source, str) and arguments.get("order") is None:
        arguments = {**arguments, "order": "global" if seeded else "keys"}
    rows = opened(source, address, arguments)
    if not isinstance(rows.order, KeyOrder):
        raise ConfigError(
            f"{rows.name}: order='scan' has no {parts} by number",
            hint="order='keys', or 'global' with shuffle=",
        )
    return rows


def columns_between(rows: EpochRows, start: int, stop: int) -> dict[str, Any]:
    """Return the NumPy columns of rows `start` to `stop` of what is left of this worker's epoch.

    They need not end where a global step ends.

    Raises:
        DataChanged: A row is gone, or the data were loaded again.
    """
    order = rows.order
    assert isinstance(order, KeyOrder)
    turns = order.turns(rows.position, rows.shard, 1, False, Shard())
    places = turns.places(start, min(stop, len(rows)))
    return rows[order.numbers(rows.position.epoch, places)]


class NumberedBatches:
    """The batches of `open_rows(...).batches(batch_size)` by their number in an epoch.

    Args:
        what: The class that reads them, for errors.
        source: Name of the data set, or opened rows with an order by key.
        batch_size: Rows of a batch; None for this worker's part of each step of `global_batch`.
        address: Node or nodes, as for `open_rows`.
        drop_last: Leave out a last batch with fewer rows.
        arguments: Arguments of `open_rows`. The default `order` is `keys`, or `global` with
            `shuffle` or `global_batch`.

    Attributes:
        rows: The rows, as this process opened them.
        process_rows: The same in every process.
        sizes: Number of rows of each batch.

    Raises:
        ConfigError: An argument is unusable; the order is a scan.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        what: str,
        source: str | EpochRows,
        batch_size: int | None,
        address: str | Sequence[str] | None,
        drop_last: bool,
        arguments: dict[str, Any],
    ) -> None:
        rows = opened_by_number(source, address, arguments, "batches")
        if batch_size is not None:
            rows = rows.in_batches(whole_argument("batch_size", batch_size, 1))
        order = rows.order
        assert isinstance(order, KeyOrder)
        if rows.position.chain:
            raise ConfigError(
                "the rows are only the rest of an epoch", hint="pass the rows of a whole one"
            )
        if order.global_batch is None:
            raise ConfigError("batch_size= or global_batch= is missing", hint=f"{what}(NAME, 128)")
        drop_last = flag("drop_last", drop_last)
        self._turns = order.turns(rows.position, rows.shard, batch_size, drop_last, Shard())
        self.sizes = self._turns.sizes()
        self.process_rows = ProcessRows(rows)

    @property
    def rows(self) -> EpochRows:
        """The rows of this process."""
        return self.process_rows.get()

    def columns(self, epoch: int, number: int) -> dict[str, Any]:
        """Return the NumPy columns of one batch of an epoch.

        Raises:
            OutOfRange: The batch does not exist (an IndexError).
            DataChanged: A row is gone, or the data were loaded again.
        """
        if not 0 <= number < len(self.sizes):
            raise OutOfRange(f"{self.process_rows.name}: batch {number} of {len(self.sizes)}")
        first = number * self._turns.batch
        places = self._turns.places(first, first + self.sizes[number])
        rows = self.rows
        assert isinstance(rows.order, KeyOrder)
        columns = rows[rows.order.numbers(epoch, places)]
        if count_of(columns) != len(places):
            raise DataChanged(f"{self.process_rows.name}: rows of batch {number} are gone")
        return columns
