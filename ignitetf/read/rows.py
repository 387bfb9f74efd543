"""The rows of an epoch in order, without TensorFlow.

arguments -> plan + reader -> **rows** -> tf/dataset, train, explore, users of NumPy and Arrow

`EpochRows` defines which rows come in which order; reading never changes it. Each iteration is a
separate object that knows how far it has come, so that a state can be taken from it. `Epochs` does
the counting for those who read one epoch after another.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ignitetf.net.client import Client
from ignitetf.read.arguments import (
    chosen_partitions,
    flag,
    open_reader,
    order_of,
    page_rows,
    retry_seconds,
    shard_of,
)
from ignitetf.read.batches import closing_batches, join_batches, read_pieces
from ignitetf.read.export import to_arrow, to_numpy
from ignitetf.read.leaves import Node, element_tree, key_tree
from ignitetf.read.nulls import NullPolicy
from ignitetf.read.options import ReadOptions
from ignitetf.read.plan import MOST_ROWS, WINDOW_BYTES, Even, Order, Position, Shard, whole_argument
from ignitetf.read.reader import CacheReader
from ignitetf.read.state import identity_of, placed
from ignitetf.read.window import piece_rows
from ignitetf.settings import Settings
from ignitetf.wire.concat import concat
from ignitetf.wire.parameters import parameter_list
from ignitetf.wire.schema import Batch

__all__ = ["Batches", "EpochRows", "Epochs", "open_rows"]


def open_rows(
    cache: str,
    address: str | Sequence[str] | None = None,
    *,
    fields: Sequence[str] | None = None,
    where: str | None = None,
    where_params: Sequence[Any] = (),
    table: str | None = None,
    schema: Any = None,
    nulls: NullPolicy = "error",
    shuffle: int | None = None,
    epoch: int = 0,
    shard: Any = None,
    even: Even | None = None,
    part: int = -1,
    local: bool = False,
    readers: int | str = "auto",
    page_size: int | None = None,
    on_node_loss: str = "retry",
    on_change: str = "error",
    version: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    settings: Settings | None = None,
    client: Client | None = None,
) -> EpochRows:
    """Open the rows of a data set, for NumPy and Arrow; nothing here needs TensorFlow.

        rows = open_rows("MNIST_TRAIN", shuffle=7)
        for batch in rows.batches(128):
            batch["val"]["IMAGE"]                    # uint8 [128, 28, 28, 1]

    Arguments have the same names and meaning as those of `IgniteDataset`, and the rows come in the
    same order.

    Args:
        cache: Name of the cache or data set.
        address: Node or nodes, `HOST:PORT` each; None for the running embedded node or a setting.
        fields: Value fields to read; None for all.
        where: SQL condition on the rows, as written after WHERE.
        where_params: Values for the `?` in it.
        table: SQL table to read if the cache has several.
        schema: Declared fields, `{name: dtype | (dtype, shape)}`.
        nulls: `error`, `default`, `mask` or `drop`.
        shuffle: Seed of the shuffle; None reads partitions in order.
        epoch: Number of the epoch.
        shard: (index, count) of this worker; None takes it from `TF_CONFIG` if that is set.
        even: `pad` or `drop` to give all shards the same number of rows.
        part: Read only this partition; -1 for all.
        local: Read only the partitions that the connected node owns.
        readers: Connections at once, or "auto".
        page_size: Entries in a page; None for about 4 MB.
        on_node_loss: `retry` or `error`.
        on_change: `error` or `warn`.
        version: Require this version of the data set's manifest.
        window_bytes: Limit for a window of the shuffle.
        settings: Connection settings, instead of `address`.
        client: An open connection, instead of `address` and `settings`.

    Raises:
        CacheNotFound: There is no such cache.
        ConfigError: An argument is unusable.
        SchemaError: The cache is empty and no schema is declared, or a field does not exist.
        ConnectError: No node answered.
    """
    options = ReadOptions(
        fields=fields, where=where, where_params=parameter_list(where_params, "where_params"),
        table=table, schema=schema, nulls=nulls, page_size=page_rows(page_size),
        retry_s=retry_seconds(on_node_loss), on_change=on_change,
        version=None if version is None else whole_argument("version", version, 0),
    )  # fmt: skip
    local = flag("local", local)
    position = Position(whole_argument("epoch", epoch, 0))
    worker = shard_of(shard)
    if client is None:
        client = Client(settings if settings is not None else _settings_of(address))
    reader = open_reader(client, cache, options, readers)
    partitions = chosen_partitions(reader, part, local)
    order = order_of(reader, partitions, shuffle, even, worker, window_bytes)
    client.release_idle()
    return EpochRows(reader, order, worker, position)


def _settings_of(address: str | Sequence[str] | None) -> Settings:
    if address is None or isinstance(address, str):
        return Settings.resolve(address=address)
    return Settings.resolve(addresses=address)


class EpochRows:
    """One worker's rows of an epoch, in order, from a position on.

    `batches` reads them. An `EpochRows` never changes: `resume`, `advance` and `next_epoch` return
    new ones over the same connections.

    Attributes:
        reader: The opened cache.
        order: The order of all its rows.
        shard: The worker whose rows these are.
        position: Epoch and place in it where these rows begin.
    """

    def __init__(self, reader: CacheReader, order: Order, shard: Shard, position: Position) -> None:
        self.reader = reader
        self.order = order
        self.shard = shard
        self.position = position

    def __repr__(self) -> str:
        shard = f", shard {self.shard.index} of {self.shard.count}" if self.shard.count > 1 else ""
        return f"<EpochRows of {self.reader.name}, epoch {self.position.epoch}{shard}>"

    # How many, and of what structure

    @functools.cached_property
    def length(self) -> int | None:
        """The number of rows; None if only reading can tell (`where=`, `nulls="drop"`)."""
        if self.order.known:
            return sum(map(len, self.order.pieces(self.position.chain, self.shard)))
        rows = self.reader.row_count(self.order.partitions)
        return None if rows is None else rows - sum(n for _, n in self.position.chain)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the number of rows is not known with where= or nulls='drop'")
        return self.length

    @functools.cached_property
    def key(self) -> Node:
        """The structure of the key."""
        return key_tree(self.reader.schema, self.reader.options.nulls)

    @functools.cached_property
    def values(self) -> dict[str, Node]:
        """The structure of each value field, sorted by name."""
        return element_tree(self.reader.schema, self.reader.options.nulls)

    @property
    def plain(self) -> bool:
        """Whether values are plain numbers, texts or arrays rather than objects with fields."""
        return self.reader.schema.type_name is None

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`, over all reading on these connections."""
        return self.reader.dropped

    # Other places

    def at(self, position: Position) -> EpochRows:
        """Return the rows from another position on."""
        return EpochRows(self.reader, self.order, self.shard, position)

    def next_epoch(self) -> EpochRows:
        """Return the rows of the next epoch, from its beginning."""
        return self.at(Position(self.position.epoch + 1))

    def advance(self, rows: int) -> EpochRows:
        """Return what is left after each worker has consumed `rows` of these rows."""
        return self.at(self._after(rows))

    def shuffled(self, seed: int | None) -> EpochRows:
        """Return the rows shuffled by another seed; None keeps the order."""
        old = self.order
        if seed is None:
            seed = old.seed
        order = order_of(
            self.reader, list(old.partitions), seed, old.even, self.shard, old.window_bytes
        )
        order = replace(order, row_bytes=old.row_bytes)
        return EpochRows(self.reader, order, self.shard, self.position)

    def state(self, rows_consumed: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Return the state of the training after `rows_consumed` rows.

        Args:
            rows_consumed: Rows that each worker has trained on, counted from the first of these
                rows.
            epoch: Number of the epoch; None for that of these rows. Any other epoch is counted from
                its beginning.

        Returns:
            A JSON object of less than 1 KB that `resume` takes, also with another number of
            workers.
        """
        start = self
        if epoch is not None and whole_argument("epoch", epoch, 0) != self.position.epoch:
            start = self.at(Position(whole_argument("epoch", epoch, 0)))
        place = start._after(rows_consumed)
        identity = identity_of(self.reader, self.order)
        return {"epoch": place.epoch, "chain": [list(link) for link in place.chain], **identity}

    def _after(self, rows: int) -> Position:
        limit = self.length if self.order.known and self.length is not None else MOST_ROWS
        consumed = whole_argument("rows_consumed", rows, 0, limit)
        return self.position.after(consumed, self.shard.count)

    def resume(self, state: dict[str, Any]) -> EpochRows:
        """Return the rows that follow the place where `state` was taken.

        Raises:
            ConfigError: The state belongs to another cache or way of reading, or is not a state.
            DataChanged: The data were loaded again since.
        """
        position, order = placed(state, self.reader, self.order, self.shard)
        return EpochRows(self.reader, order, self.shard, position)

    # Reading

    def column_batches(self) -> Generator[Batch, None, None]:
        """Yield columns in their stored form, a page or a shuffled window at a time, in order.

        Close the generator to stop early.
        """
        pieces = self.order.pieces(self.position.chain, self.shard)
        return read_pieces(self.reader, self.order, pieces, self.position.epoch)

    def batches(self, batch_size: int | None = None, drop_remainder: bool = False) -> Batches:
        """Return an iterator of NumPy columns that knows its position.

        Args:
            batch_size: Rows per batch; None for about a page, without a copy.
            drop_remainder: Leave out an incomplete last batch.
        """
        if batch_size is not None:
            batch_size = whole_argument("batch_size", batch_size, 1)
        return Batches(self, batch_size, drop_remainder)

    def numpy(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, a page at a time, as NumPy columns; see `export.to_numpy`.

        Yields:
            `{"key": column, "val": {FIELD: column}}`; for plain values `val` is itself a column.
        """
        return self.batches()

    def arrow(self) -> Iterator[Any]:
        """Yield the rows, a page at a time, as `pyarrow.RecordBatch`; see `export.to_arrow`."""
        for batch in closing_batches(_pages(self)):
            yield to_arrow(batch, self.key, self.values)


class Batches(Iterator[dict[str, Any]]):
    """Batches of an epoch as NumPy columns, and how far they have come.

    Columns are views of the page they came in if possible; see `export.to_numpy`.

    Attributes:
        consumed: Rows handed out so far.
    """

    def __init__(self, rows: EpochRows, batch_size: int | None, drop_remainder: bool) -> None:
        self.consumed = 0
        self._rows = rows
        if batch_size is None:
            self._batches = _pages(rows)
        else:
            self._batches = _joined(join_batches(rows.column_batches(), batch_size, drop_remainder))

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        self.consumed += len(batch)
        rows = self._rows
        values = {n: to_numpy(batch.columns[n], node) for n, node in rows.values.items()}
        assert batch.key is not None
        return {
            "key": to_numpy(batch.key, rows.key),
            "val": values["val"] if rows.plain else values,
        }

    def state(self) -> dict[str, Any]:
        """Return the state after the last batch handed out, for `EpochRows.resume`."""
        return self._rows.state(self.consumed)

    def close(self) -> None:
        """Stop reading; connections go back to the pool."""
        self._batches.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Epochs:
    """One epoch after another: each `take` returns the next one, whichever thread asks.

    A pipeline that is iterated repeatedly needs this memory; the rows themselves have none.
    """

    def __init__(self, first: EpochRows) -> None:
        self._lock = threading.Lock()
        self._next = first

    def take(self) -> EpochRows:
        """Return the rows of the next epoch; after `seek`, possibly only the rest of one."""
        with self._lock:
            rows = self._next
            self._next = rows.next_epoch()
        return rows

    def seek(self, rows: EpochRows) -> None:
        """Make the next `take` return these rows."""
        with self._lock:
            self._next = rows


def _pages(rows: EpochRows) -> Generator[Batch, None, None]:
    """Yield batches of about a page; a shuffled window arrives whole and is cut up."""
    with contextlib.closing(rows.column_batches()) as batches:
        for batch in batches:
            yield from batch.slices(piece_rows(len(batch), batch.nbytes))


def _joined(parts: Generator[list[Batch], None, None]) -> Generator[Batch, None, None]:
    with contextlib.closing(parts):
        for batches in parts:
            yield concat(batches)
