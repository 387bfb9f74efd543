"""The rows of an epoch in order, without TensorFlow.

arguments -> scan_order + reader -> **rows** -> tf/dataset, train, explore, users of NumPy and Arrow

`EpochRows` defines which rows are read in which order; reading never changes it. Each iteration is
a separate object (`Batches`) that keeps its position, so that a state can be taken from it.
`Epochs` returns one epoch after another.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ignitetf.errors import ConfigError, KeyNotFound
from ignitetf.net.client import Client
from ignitetf.read.access import Access, Missing, key_order_of
from ignitetf.read.arguments import (
    chosen_partitions,
    flag,
    open_reader,
    order_name,
    order_of,
    page_rows,
    retry_seconds,
    shard_of,
)
from ignitetf.read.batches import batch_count, batch_parts, closing_batches, read_rows
from ignitetf.read.blocks import RowOrder
from ignitetf.read.devices import DeviceBatches, Framework, check_dense, device_of
from ignitetf.read.export import (
    Node,
    arrow_form,
    arrow_stream,
    columns_of,
    element_tree,
    key_tree,
    record_of,
    to_arrow,
)
from ignitetf.read.key_order import KeyOrder, StepOrder
from ignitetf.read.options import NullPolicy, ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.scan_order import (
    MOST_ROWS,
    WINDOW_BYTES,
    Even,
    OrderName,
    Position,
    ScanOrder,
    Shard,
    whole_argument,
)
from ignitetf.read.shown import ordered_html, rows_html
from ignitetf.read.state import identity_of, placed
from ignitetf.read.usage import Epoch, counted
from ignitetf.read.window import piece_rows
from ignitetf.settings import Settings
from ignitetf.wire.columns import Batch, concat
from ignitetf.wire.requests import parameter_list
from ignitetf.wire.schema import Field

__all__ = ["Batches", "EpochRows", "Epochs", "OrderedRows", "open_rows", "pages"]


def open_rows(
    cache: str,
    address: str | Sequence[str] | None = None,
    *,
    fields: Sequence[str] | None = None,
    where: str | None = None,
    where_params: Sequence[Any] = (),
    table: str | None = None,
    split: str | None = None,
    schema: Any = None,
    nulls: NullPolicy = "error",
    order: OrderName | None = None,
    shuffle: int | None = None,
    epoch: int = 0,
    shard: Any = None,
    even: Even | None = None,
    global_batch: int | None = None,
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

    Arguments have the same names and meaning as those of `IgniteDataset`, and the order of the rows
    is the same.

    Args:
        cache: Name of the cache or data set.
        address: Node or nodes, `HOST:PORT` each; None for the running embedded node or a setting.
        fields: Value fields to read; None for all, none for the keys alone.
        where: SQL condition on the rows, as written after WHERE.
        where_params: Values for the `?` in it.
        table: SQL table to read if the cache has several.
        split: Name of a split (`ignitetf split`), such as `train`; `-fold0` for all other rows.
        schema: Declared fields, `{name: dtype | (dtype, shape)}`; `{"key": "stored", "val": None}`
            reads the stored bytes of keys of any type.
        nulls: `error`, `default`, `mask` or `drop`.
        order: `scan` by partitions, shuffled in windows; `keys` by ascending key, which for loaded
            data is the order of the source; `global` by key in random order (without `shuffle`, of
            seed 0), blocks in windows. None is `scan`, or `global` if `global_batch` is set.
        shuffle: Seed of the shuffle; None reads partitions in order.
        epoch: Number of the epoch.
        shard: (index, count) of this worker; None takes it from `TF_CONFIG` if that is set.
        even: `pad` or `drop` to give all shards the same number of rows.
        global_batch: Rows of a step over all workers, for `keys` or `global`: the steps have the
            same rows for any number of workers. None takes the workers' batch size times their
            number.
        part: Read only this partition; -1 for all.
        local: Read only the partitions that the connected node owns.
        readers: Connections at once, at least one to each node; "auto" is one to each.
        page_size: Entries in a page; None for about 2 MB, more where a round trip takes long.
        on_node_loss: `retry` or `error`.
        on_change: `error` or `warn`.
        version: Require this version of the data set's manifest.
        window_bytes: Limit for a shuffle window of partitions or, for `global`, of blocks.
        settings: Connection settings, instead of `address`.
        client: An open connection, instead of `address` and `settings`.

    Raises:
        CacheNotFound: The cache does not exist.
        ConfigError: An argument is unusable.
        SchemaError: The cache is empty and no schema is declared, or a field does not exist.
        ConnectError: No node answered.
    """
    worker = shard_of(shard)
    options = ReadOptions(
        fields=fields, where=where, where_params=parameter_list(where_params, "where_params"),
        table=table, split=split, schema=schema, nulls=nulls, page_size=page_rows(page_size),
        retry_s=retry_seconds(on_node_loss), on_change=on_change,
        version=None if version is None else whole_argument("version", version, 0),
    )  # fmt: skip
    local = flag("local", local)
    position = Position(whole_argument("epoch", epoch, 0))
    if client is None:
        client = Client(settings if settings is not None else _settings_of(address))
    reader = open_reader(client, cache, options, readers)
    name = order_name(order, global_batch)
    rows: RowOrder
    if name == "scan":
        partitions = chosen_partitions(reader, part, local)
        rows = order_of(reader, partitions, shuffle, even, worker, window_bytes)
    elif part != -1 or local:
        raise ConfigError(f"order={name!r} does not take part= or local=", hint="order='scan' does")
    else:
        rows = key_order_of(reader, name, shuffle, even, global_batch, worker, window_bytes)
    client.release_idle()
    return EpochRows(reader, rows, worker, position)


def _settings_of(address: str | Sequence[str] | None) -> Settings:
    if address is None or isinstance(address, str):
        return Settings.resolve(address=address)
    return Settings.resolve(addresses=address)


class OrderedRows(ABC):
    """One worker's rows of an epoch, in order, from a position on: `EpochRows`, or a mixture.

    `batches` reads them. They never change: `resume`, `advance` and `next_epoch` return new objects
    over the same connections.

    Attributes:
        order: The order of all rows.
        shard: The worker that reads these rows.
        position: Epoch and place of the first row.
    """

    order: ScanOrder | StepOrder
    shard: Shard
    position: Position

    def __repr__(self) -> str:
        shard = f", shard {self.shard.index} of {self.shard.count}" if self.shard.count > 1 else ""
        return f"<{type(self).__name__} of {self.name}, epoch {self.position.epoch}{shard}>"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the data set, or the names of the mixed data sets."""

    @functools.cached_property
    def length(self) -> int | None:
        """The number of rows; None if only reading shows it (`where=`, `nulls="drop"`)."""
        return self.order.rows_left(self.position, self.shard) if self.order.known else None

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the number of rows is not known with where= or nulls='drop'")
        return self.length

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled, because it has connections: open it in the other process with"
            " the same arguments, and resume there from `state()`"
        )

    def _repr_html_(self) -> str:
        return ordered_html(self)

    # Without this, Python would iterate by single rows, in another order than `batches`.
    __iter__ = None

    # Other places

    @abstractmethod
    def _with_order(self, order: Any, position: Position) -> Self: ...

    def at(self, position: Position) -> Self:
        """Return the rows from another position on."""
        return self._with_order(self.order, position)

    def next_epoch(self) -> Self:
        """Return the rows of the next epoch, from its beginning."""
        return self.at(Position(self.position.epoch + 1))

    def advance(self, rows: int) -> Self:
        """Return the rows that remain after each worker has consumed `rows` of these rows."""
        return self.at(self._position_after(rows))

    def in_batches(self, batch_size: int) -> Self:
        """Return the rows for workers that read batches of this size.

        For `keys` and `global`, the batches of all workers then make up a global step.

        Raises:
            ConfigError: `global_batch` rows cannot be cut into such batches.
        """
        if not isinstance(self.order, StepOrder):
            return self
        return self._with_order(self.order.with_batch(batch_size, self.shard), self.position)

    def state(self, rows_consumed: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Return the state of the training after `rows_consumed` rows.

        Args:
            rows_consumed: Rows that each worker has trained on, counted from the first of these
                rows.
            epoch: Number of the epoch; None for the epoch of these rows. In any other epoch, rows
                are counted from its beginning.

        Returns:
            A JSON object for `resume`, also with another number of workers. It has the place, and
            identifies the rows and their order. Less than 1 KB, except for a mixture.
        """
        start = self
        if epoch is not None and whole_argument("epoch", epoch, 0) != self.position.epoch:
            start = self.at(Position(whole_argument("epoch", epoch, 0)))
        place = start._position_after(rows_consumed)
        chain = [list(link) for link in place.chain]
        return {"epoch": place.epoch, "chain": chain, **self._identity()}

    @abstractmethod
    def _identity(self) -> dict[str, Any]: ...

    def _position_after(self, rows: int) -> Position:
        limit = self.length if self.order.known and self.length is not None else MOST_ROWS
        consumed = whole_argument("rows_consumed", rows, 0, limit)
        return self.order.after(self.position, consumed, self.shard)

    # Reading

    @abstractmethod
    def column_batches(self, batch_rows: int | None = None) -> Generator[Batch, None, None]:
        """Yield columns in their stored form, a page or a shuffled window at a time, in order.

        Close the generator to stop early.

        Args:
            batch_rows: Rows of the batches that will be cut; with it they are seldom copied.
        """

    @abstractmethod
    def columns_of(self, batch: Batch) -> dict[str, Any]:
        """Return a batch of the rows as NumPy columns."""

    def batch_parts(
        self, batch_size: int | None, drop_remainder: bool
    ) -> Generator[list[Batch], None, None]:
        """Yield the rows of each batch, as a list of its parts.

        Args:
            batch_size: Rows per batch; None for this worker's part of each global step.
            drop_remainder: Leave out an incomplete last batch.
        """
        batches = self.column_batches(batch_size)
        return batch_parts(
            batches, self.order, self.position, self.shard, batch_size, drop_remainder
        )

    def batch_count(self, batch_size: int | None, drop_remainder: bool) -> int | None:
        """Return the number of batches that `batches` yields; None if it is unknown."""
        order = self.order
        if isinstance(order, StepOrder) and (
            order.is_uneven(self.shard) or (batch_size is None and order.global_batch is not None)
        ):
            return len(order.slices(self.position, self.shard).sizes(drop_remainder))
        return None if batch_size is None else batch_count(self.length, batch_size, drop_remainder)

    def batches(self, batch_size: int | None = None, drop_remainder: bool = False) -> Batches:
        """Return an iterator of NumPy columns that keeps its position.

        Args:
            batch_size: Rows per batch. None for about a page, without a copy; with `global_batch`,
                None for this worker's part of each step.
            drop_remainder: Leave out an incomplete last batch.
        """
        if batch_size is not None:
            batch_size = whole_argument("batch_size", batch_size, 1)
        return Batches(self, batch_size, drop_remainder)

    def arrow(self) -> Iterator[Any]:
        """Yield the rows, a page at a time, as `pyarrow.RecordBatch`; see `export.arrow_form`."""
        form = arrow_form(self._nodes)
        for batch in self._pages():
            yield to_arrow(batch, form)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream (PyCapsule), for pandas, Polars, DuckDB and others.

        Texts and times have Arrow's own types in it; see `export.arrow_form`.
        """
        form = arrow_form(self._nodes, self._fields)
        return arrow_stream(form, self._pages(), requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow schema (PyCapsule)."""
        return arrow_form(self._nodes, self._fields).__arrow_c_schema__()

    @property
    @abstractmethod
    def _nodes(self) -> dict[str, Node]: ...

    @property
    @abstractmethod
    def _fields(self) -> tuple[Field, ...]: ...

    def _pages(self) -> Iterator[Batch]:
        return closing_batches(pages(self))


class EpochRows(OrderedRows):
    """One worker's rows of an epoch of a data set, in order, from a position on.

    `batches` reads them. An `EpochRows` never changes: `resume`, `advance` and `next_epoch` return
    new objects over the same connections.

    Attributes:
        reader: The opened cache.
        order: The order of all its rows.
        shard: The worker that reads these rows.
        position: Epoch and place of the first row.
    """

    order: RowOrder

    def __init__(
        self,
        reader: CacheReader,
        order: RowOrder,
        shard: Shard,
        position: Position,
        access: Access | None = None,
    ) -> None:
        self.reader = reader
        self.order = order
        self.shard = shard
        self.position = position
        keys = order.keys if isinstance(order, KeyOrder) else None
        self._access = access if access is not None else Access(reader, keys)

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.reader.name

    # The number of the records, and their structure

    @functools.cached_property
    def length(self) -> int | None:
        """The number of rows; None if only reading shows it (`where=`, `nulls="drop"`)."""
        if isinstance(self.order, StepOrder) or self.order.known:
            return self.order.rows_left(self.position, self.shard)
        rows = self.reader.row_count(self.order.partitions)
        return None if rows is None else rows - sum(n for _, n in self.position.chain)

    @functools.cached_property
    def key(self) -> Node:
        """The structure of the key."""
        return key_tree(self.reader.schema, self.reader.options.nulls)

    @functools.cached_property
    def values(self) -> dict[str, Node]:
        """The structure of each value field, sorted by name."""
        return element_tree(self.reader.schema, self.reader.options.nulls)

    @property
    def class_names(self) -> list[str]:
        """Names of the values 0, 1, 2 ... of LABEL; empty if they have none."""
        manifest = self.reader.manifest
        return [] if manifest is None else list(manifest.class_names)

    @property
    def plain(self) -> bool:
        """True if values are plain numbers, texts or arrays rather than objects with fields."""
        return self.reader.schema.type_name is None

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`, over all reading on these connections."""
        return self.reader.dropped

    def _repr_html_(self) -> str:
        return rows_html(self)

    # Random access

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return rows by number, in the order of the index.

        Rows are numbered in the order of their keys, which for loaded data is the order of the
        source. The numbers do not depend on order, epoch and shard of this object.

        Args:
            index: A number for one row; a slice, a list of numbers or an array of `bool` for
                several. Negative numbers count from the end.

        Returns:
            NumPy columns as in `batches`, for a single number one record in the same structure.

        Raises:
            OutOfRange: A number is beyond the last row (an IndexError).
            ConfigError: The rows cannot be read by key, or their keys have no order.
            DataChanged: A row was removed. If `on_change` allows that, the row is left out instead.
        """
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            rows = self._access.rows(self._access.numbers([int(index)]))
            if not len(rows):
                raise KeyNotFound(f"{self.reader.name}: row {index} is gone")
            return record_of(self.columns_of(rows), 0)  # type: ignore[no-any-return]
        return self.columns_of(self._access.rows(self._access.numbers(index)))

    def sample(self, n: int, seed: int) -> dict[str, Any]:
        """Return `n` different rows in random order; the same seed returns the same rows."""
        return self.columns_of(self._access.rows(self._access.sample(n, seed)))

    def by_key(self, keys: Any, missing: Missing = "error") -> dict[str, Any]:
        """Return the rows with these keys, in the order of `keys`.

        Args:
            keys: A list or an array of keys; for keys of several fields a dict with a list for
                each. A key may be repeated.
            missing: `error`, or `skip` to leave out keys without a row.

        Raises:
            KeyNotFound: A key does not have a row (a KeyError).
            ConfigError: The keys have another type than the keys of the cache.
        """
        return self.columns_of(self._access.by_key(keys, missing))

    def columns_of(self, batch: Batch) -> dict[str, Any]:
        """Return a batch of the rows as NumPy columns; see `export.columns_of`."""
        return columns_of(batch, self.key, self.values, self.plain)

    # Other places

    def _with_order(self, order: RowOrder, position: Position) -> EpochRows:
        return EpochRows(self.reader, order, self.shard, position, self._access)

    def shuffled(self, seed: int | None) -> EpochRows:
        """Return the rows shuffled by another seed; None keeps the order."""
        old = self.order
        if isinstance(old, StepOrder):
            order: RowOrder = replace(old, seed=old.seed if seed is None else seed)
        else:
            order = order_of(
                self.reader,
                list(old.partitions),
                old.seed if seed is None else seed,
                old.even,
                self.shard,
                old.window_bytes,
            )
            order = replace(order, row_bytes=old.row_bytes)
        return self._with_order(order, self.position)

    def of_shard(self, shard: Any) -> EpochRows:
        """Return the rows of another worker, `(index, count)`, from the same position on."""
        worker, order = Shard.of(shard), self.order
        if isinstance(order, ScanOrder):
            # True if the rows of each partition must be counted depends on the number of workers.
            counted = order_of(
                self.reader,
                list(order.partitions),
                order.seed,
                order.even,
                worker,
                order.window_bytes,
            )
            order = replace(counted, row_bytes=order.row_bytes)
        return EpochRows(self.reader, order, worker, self.position, self._access)

    def _identity(self) -> dict[str, Any]:
        return identity_of(self.reader, self.order)

    def resume(self, state: dict[str, Any]) -> EpochRows:
        """Return the rows that follow the place where `state` was taken.

        Raises:
            ConfigError: The state belongs to another cache or way of reading, or is not a state.
            DataChanged: The data were loaded again since.
        """
        position, order = placed(state, self.reader, self.order, self.shard)
        return self._with_order(order, position)

    # Reading

    def column_batches(self, batch_rows: int | None = None) -> Generator[Batch, None, None]:
        """See `OrderedRows`."""
        order = self.order
        batches = read_rows(self.reader, order, self.position, self.shard, batch_rows)
        # Batches of global steps are cut by row number; scans are read to their end.
        rows = order.rows_left(self.position, self.shard) if isinstance(order, StepOrder) else None
        return self.counted(batches, rows)

    def counted(
        self, batches: Generator[Batch, None, None], rows: int | None
    ) -> Generator[Batch, None, None]:
        """Yield batches of the rows, and count them as an iteration; see `usage.counted`."""
        options, shard, position = self.reader.options, self.shard, self.position
        chosen = {"split": options.split, "where": options.where}
        of = Epoch(
            self.reader.name,
            self.order.name,
            position.epoch,
            (shard.index, shard.count),
            position.chain,
            ", ".join(f"{name}={value}" for name, value in chosen.items() if value is not None),
        )
        return counted(batches, of, self.reader.schema, rows)

    def to_device(
        self,
        device: Any = None,
        *,
        framework: Framework | None = None,
        batch_size: int | None = None,
        drop_remainder: bool = False,
        keys: bool = True,
        ahead: int = 2,
    ) -> DeviceBatches:
        """Return an iterator of batches as arrays of JAX or PyTorch on a device.

            with rows.to_device("cuda:0", framework="torch", batch_size=128) as batches:
                for batch in batches:
                    batch["val"]["IMAGE"]                # torch.uint8 [128, 28, 28, 1]

        A thread reads the next batches and copies them while the consumer works. Rows and structure
        are the same as in `batches`. JAX stores numbers of 64 bits in 32 bits unless its
        `jax_enable_x64` is set; integers that do not fit raise ConfigError.

        Args:
            device: A device of the framework or its name, for JAX also a sharding. None for the
                default device; for PyTorch, the current CUDA device if there is one.
            framework: `jax` or `torch`; None uses the framework of the device object.
            batch_size: See `batches`.
            drop_remainder: Leave out an incomplete last batch.
            keys: True if batches have the entry `key`.
            ahead: Most batches that are copied to the device before the consumer requests them.

        Raises:
            ConfigError: A field, or the key, is text or has lists of different lengths; or the
                device does not exist.
            MissingExtra: The framework is not installed.
        """
        keys = flag("keys", keys)
        check_dense(self.reader.name, self.key if keys else None, self.values, self.plain)
        ahead = whole_argument("ahead", ahead, 1)
        place = device_of(framework, device)
        return DeviceBatches(self.batches(batch_size, drop_remainder), place, keys, ahead)

    def numpy(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, a page at a time, as NumPy columns; see `export.to_numpy`.

        Yields:
            `{"key": column, "val": {FIELD: column}}`; for plain values `val` is itself a column.
        """
        return self.batches()

    @property
    def _nodes(self) -> dict[str, Node]:
        return {"key": self.key, **self.values}

    @property
    def _fields(self) -> tuple[Field, ...]:
        return self.reader.schema.fields


class Batches(Iterator[dict[str, Any]]):
    """Iterator of batches of an epoch as NumPy columns, which keeps its position.

    Columns are views of the received page if possible; see `export.to_numpy`.

    Attributes:
        consumed: Number of rows returned so far.
    """

    def __init__(self, rows: OrderedRows, batch_size: int | None, drop_remainder: bool) -> None:
        self.consumed = 0
        by_step = isinstance(rows.order, StepOrder) and rows.order.global_batch is not None
        if batch_size is None and not by_step:
            self._rows, self._batches = rows, pages(rows)
            return
        self._rows = rows if batch_size is None else rows.in_batches(batch_size)
        self._batches = _joined(self._rows.batch_parts(batch_size, drop_remainder))

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        self.consumed += len(batch)
        return self._rows.columns_of(batch)

    def state(self, rows_consumed: int | None = None) -> dict[str, Any]:
        """Return the state for `resume` after `rows_consumed` rows; None for all rows returned."""
        return self._rows.state(self.consumed if rows_consumed is None else rows_consumed)

    def close(self) -> None:
        """Stop reading, and return the connections to the pool."""
        self._batches.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_R = TypeVar("_R", bound=OrderedRows)


class Epochs(Generic[_R]):
    """Counts epochs: each `take`, from any thread, returns the next one.

    A pipeline that is iterated repeatedly has to remember its epoch; the rows themselves never
    change.
    """

    def __init__(self, first: _R) -> None:
        self._lock = threading.Lock()
        self._next = first

    def take(self) -> _R:
        """Return the rows of the next epoch; after `seek`, possibly only the rest of one."""
        with self._lock:
            rows = self._next
            self._next = rows.next_epoch()
        return rows

    def seek(self, rows: _R) -> None:
        """Make the next `take` return these rows."""
        with self._lock:
            self._next = rows


def pages(rows: OrderedRows) -> Generator[Batch, None, None]:
    """Yield batches of about a page; a shuffled window is received as a whole and cut."""
    with contextlib.closing(rows.column_batches()) as batches:
        for batch in batches:
            yield from batch.slices(piece_rows(len(batch), batch.nbytes))


def _joined(parts: Generator[list[Batch], None, None]) -> Generator[Batch, None, None]:
    with contextlib.closing(parts):
        for batches in parts:
            yield concat(batches)
