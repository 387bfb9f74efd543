"""`IgniteDataset`: a cache as a `tf.data.Dataset`.

reader -> elements -> **dataset** -> training

Pages of columns cross into TensorFlow whole, through `from_generator`; single elements and
batches are cut from them there, in C++. Nothing of Python runs for a row.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.net.client import Client
from ignitetf.read.arguments import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    chosen_partitions,
    flag,
    open_reader,
    order_of,
    page_rows,
    retry_seconds,
    settings_of,
    shard_of,
    with_environment,
)
from ignitetf.read.batches import batch_count, closing_batches, join_batches, read_pieces
from ignitetf.read.cursor import Times
from ignitetf.read.export import to_arrow, to_numpy
from ignitetf.read.options import ReadOptions
from ignitetf.read.plan import MOST_ROWS, WINDOW_BYTES, Order, Position, whole_argument
from ignitetf.read.state import identity_of, placed
from ignitetf.read.tf.causes import for_tensorflow
from ignitetf.read.tf.iteration import OwnDataset, Steps
from ignitetf.read.tf.substr import Sharing
from ignitetf.read.tf.tensors import Form, counted, page_options, rebatched
from ignitetf.read.window import piece_rows
from ignitetf.settings import Settings
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.parameters import parameter_list
from ignitetf.wire.schema import Batch

__all__ = ["IgniteDataset"]

_LARGE_BATCH_BYTES = 1 << 20


class IgniteDataset(OwnDataset):
    """The entries of an Apache Ignite cache as a `tf.data.Dataset`.

    Elements are `{"key": ..., "val": {FIELD: ...}}` with the fields sorted by name, or `val`
    itself a tensor for plain values. Shapes and dtypes come from the manifest that the load
    wrote, else from `schema`, else from the first pages. Strings and byte blobs are
    `tf.string`; arrays whose length differs are `[None]` tensors, ragged in batches. The order
    is that of the partitions, and of the key hashes within each.

    `batch` called first cuts batches from whole pages, without a step for each row.

    Environment variables `IGNITE_DATASET_CACHE_NAME`, `_HOST`, `_PORT`, `_LOCAL`, `_PART`,
    `_PAGE_SIZE`, `_USERNAME`, `_PASSWORD`, `_CERTFILE`, `_KEYFILE` and `_CERT_PASSWORD` win
    over the arguments.

    Args:
        cache_name: Name of the cache or data set.
        host: Node to connect to.
        port: Its thin client port.
        schema_host: Accepted for compatibility; the schema comes from the node itself.
        schema_port: As `schema_host`.
        local: Read only the partitions that the connected node owns.
        part: Read only this partition; -1 for all.
        page_size: Entries in a page; None for about 4 MB.
        username: User name, with `password`.
        password: Password.
        certfile: Client certificate (PEM).
        keyfile: Its private key (PEM).
        cert_password: Password of the private key.
        addresses: Nodes, `HOST:PORT` each, instead of `host` and `port`.
        ca_certfile: Trusted certificates (PEM) to check the node's by.
        tls: Use TLS; implied by the certificate arguments.
        fields: Value fields to read; None for all.
        where: SQL condition on the rows, as it stands after WHERE; those that match are read.
        where_params: Values for the `?` in it.
        table: SQL table whose rows are read, where the cache has several.
        schema: Declared fields, `{name: dtype | (dtype, shape) | tf.TensorSpec}`.
        nulls: `error`, `default`, `mask` (adds `FIELD_valid`) or `drop`.
        as_supervised: Elements are `(features, label)`, the label being the field LABEL.
        shuffle: Seed; partitions and the rows of byte-bounded windows are permuted, anew in each
            epoch, the same way for any number of readers and nodes. None keeps the order.
        epoch: Number of the first epoch; each further iteration counts one up.
        shard: (index, count) of this worker's share of the partitions, or a
            `tf.distribute.InputContext`. None takes it from `TF_CONFIG`, where that names several
            workers; (0, 1) reads everything regardless.
        even: `pad` or `drop`, so that all shards have the same number of rows; None lets
            them differ.
        readers: Connections at once, or "auto".
        on_node_loss: `retry` reads on from another node, `error` raises at once.
        on_change: `error` or `warn` when a partition has not the number of entries that the
            load stored.
        version: Insist on this version of the data set's manifest.
        window_bytes: Limit for a window of the shuffle; a data set below it is permuted whole.
        settings: Connection settings, instead of all the arguments for them.

    Raises:
        CacheNotFound: There is no such cache.
        SchemaError: The cache is empty and no schema is declared, or a field does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        cache_name: str,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        schema_host: str | None = None,
        schema_port: int | None = None,
        local: bool = False,
        part: int = -1,
        page_size: int | None = None,
        username: str | None = None,
        password: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        cert_password: str | None = None,
        *,
        addresses: Sequence[str] | None = None,
        ca_certfile: str | None = None,
        tls: bool | None = None,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        where_params: Sequence[Any] = (),
        table: str | None = None,
        schema: Any = None,
        nulls: Any = "error",
        as_supervised: bool = False,
        shuffle: int | None = None,
        epoch: int = 0,
        shard: Any = None,
        even: Any = None,
        readers: int | str = "auto",
        on_node_loss: str = "retry",
        on_change: str = "error",
        version: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        settings: Settings | None = None,
    ) -> None:
        """Connect, find out what the cache holds, and build the dataset."""
        given = with_environment(
            cache_name=cache_name, host=host, port=port, local=local, part=part,
            page_size=page_size, username=username, password=password, certfile=certfile,
            keyfile=keyfile, cert_password=cert_password,
        )  # fmt: skip
        if settings is None:
            settings = settings_of(given, addresses, ca_certfile, tls)
        options = ReadOptions(
            fields=fields, where=where, where_params=parameter_list(where_params, "where_params"),
            table=table, schema=schema, nulls=nulls, page_size=page_rows(given["page_size"]),
            retry_s=retry_seconds(on_node_loss), on_change=on_change,
            version=None if version is None else whole_argument("version", version, 0),
        )  # fmt: skip
        local, as_supervised = flag("local", given["local"]), flag("as_supervised", as_supervised)
        begin = Position(whole_argument("epoch", epoch, 0), ())
        self._shard = shard_of(shard)
        self._reader = open_reader(Client(settings), given["cache_name"], options, readers)
        partitions = chosen_partitions(self._reader, given["part"], local)
        self._order = order_of(self._reader, partitions, shuffle, even, self._shard, window_bytes)
        self._form = Form(self._reader, as_supervised)
        self._rows_after: dict[tuple[tuple[int, int], ...], int] = {}
        self._start_at(begin)
        self._reader.client.rest()

    def _start_at(self, position: Position) -> None:
        """Build the pipeline of all that follows a position."""
        self._move_to(position)
        rows: int | None = self._epoch_rows(()) if self._order.known else None
        if not self._order.known and not position.chain:
            rows = self._reader.row_count(self._order.partitions)
        # The rest of an epoch has another length than the epochs that follow it.
        self._length = None if position.chain else rows
        self._elements = self._build_elements()
        super().__init__(self._elements._variant_tensor)

    def _move_to(self, position: Position) -> None:
        self._position = position
        self._epoch = position.epoch

    def _epoch_rows(self, chain: Sequence[tuple[int, int]]) -> int:
        """Rows of this shard that follow a chain."""
        key = tuple(chain)
        if key not in self._rows_after:
            pieces = self._order.pieces(chain, *self._shard)
            self._rows_after[key] = sum(p.stop - p.start for p in pieces)
        return self._rows_after[key]

    def _inputs(self) -> list[Any]:
        return [self._elements]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one element."""
        return self._elements.element_spec

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """Batches of consecutive elements, cut from whole pages.

        Arrays of different length come as `tf.RaggedTensor`. `num_parallel_calls` and
        `deterministic` are accepted and have no effect.
        """
        size = whole_argument("batch_size", batch_size, 1)
        form = self._form
        if form.has_runs or size * self._reader.entry_bytes >= _LARGE_BATCH_BYTES:
            # Ragged batches cannot be cut in TensorFlow, and large ones are cheaper to pack at
            # once than to copy again.
            dataset = self._pages(Sharing.PAGE, size, drop_remainder)
        else:
            dataset = rebatched(self._pages(Sharing.PAGE), size, drop_remainder)
        dataset = dataset.with_options(page_options(sharded=self._shard[1] > 1))
        return Steps(counted(dataset, batch_count(self._length, size, drop_remainder)))

    def numpy(self) -> Iterator[dict[str, Any]]:
        """The same records, a page at a time, as NumPy columns; see `export.to_numpy`.

        Yields:
            `{"key": column, "val": {FIELD: column}}`, or `val` itself a column for plain values.
        """
        for batch in closing_batches(self._batches()):
            values = {n: to_numpy(batch.columns[n], node) for n, node in self._form.values.items()}
            assert batch.key is not None
            key = to_numpy(batch.key, self._form.key)
            yield {"key": key, "val": values["val"] if self._form.plain else values}

    def arrow(self) -> Iterator[Any]:
        """The same records, a page at a time, as `pyarrow.RecordBatch`; see `export.to_arrow`."""
        for batch in closing_batches(self._batches()):
            yield to_arrow(batch, self._form.key, self._form.values)

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`."""
        return self._reader.dropped

    @property
    def times(self) -> Times:
        """Where the time of all scans went so far; the object goes on changing with each scan."""
        return self._reader.times

    def _batches(self) -> Generator[Batch, None, None]:
        """The rows of one epoch, as `numpy` and `arrow` give them: the first, from its position."""
        pieces = self._order.pieces(self._position.chain, *self._shard)
        read = read_pieces(self._reader, self._order, pieces, self._position.epoch)
        with contextlib.closing(read) as batches:
            for batch in batches:
                # A shuffled window comes whole.
                yield from batch.slices(piece_rows(len(batch), batch.nbytes))

    def _next_epoch(self) -> Generator[Batch, None, None]:
        """The rows of the next epoch; a resumed epoch is its rest only the first time."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        chain = self._position.chain if epoch == self._position.epoch else ()
        pieces = self._order.pieces(chain, *self._shard)
        return read_pieces(self._reader, self._order, pieces, epoch)

    def state(self, rows_consumed: int, epoch: int | None = None) -> dict[str, Any]:
        """Where training stands after `rows_consumed` rows of an epoch.

        Args:
            rows_consumed: Rows that each worker has trained on since the beginning of the
                epoch, or since `resume`; rows that wait in a prefetch do not count.
            epoch: Number of that epoch; None for the one this dataset began with.

        Returns:
            A JSON object of less than 1 KB that `resume` takes, also on another number of
            workers.
        """
        number = self._position.epoch if epoch is None else whole_argument("epoch", epoch, 0)
        chain = list(self._position.chain) if number == self._position.epoch else []
        count = self._shard[1]
        limit = self._epoch_rows(chain) if self._order.known else MOST_ROWS
        rows = whole_argument("rows_consumed", rows_consumed, 0, limit)
        if chain and chain[-1][0] == count:
            chain[-1] = (count, chain[-1][1] + rows)
        else:
            chain.append((count, rows))
        identity = identity_of(self._reader, self._order)
        return {"epoch": number, "chain": [list(link) for link in chain], **identity}

    def resume(self, state: dict[str, Any]) -> IgniteDataset:
        """This dataset from the place where `state` was taken, then the epochs that follow.

        The first iteration is the rest of that epoch, each further one a whole epoch; so the
        cardinality is unknown.

        Raises:
            ConfigError: The state is of another cache or way of reading, or is none.
            DataChanged: The data were loaded again since.
        """
        return self._moved(*placed(state, self._reader, self._order, self._shard))

    def seek(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where `state` was taken, also of pipelines built on this.

        Only for a dataset that `resume` gave, since others promise the length of an epoch.

        Raises:
            ConfigError: As `resume`; or this dataset promises a length.
            DataChanged: As `resume`.
        """
        if self._length is not None:
            raise ConfigError("its length is promised", hint="seek in what resume() gives")
        position, self._order = placed(state, self._reader, self._order, self._shard)
        self._move_to(position)

    def _moved(self, position: Position, order: Order) -> IgniteDataset:
        """Another dataset over the same connections."""
        moved = object.__new__(type(self))
        moved.__dict__.update(self.__dict__)
        moved._order = order
        moved._start_at(position)
        return moved

    def __copy__(self) -> IgniteDataset:
        """A dataset that counts its own epochs, from the same one on."""
        return self._moved(self._position, self._order)

    def __deepcopy__(self, memo: Any) -> IgniteDataset:
        """As `__copy__`: connections and what is known of the cache are shared."""
        return self.__copy__()

    # Building

    def _build_elements(self) -> tf.data.Dataset:
        if self._form.has_runs:
            dataset = self._leaves().flat_map(self._form.rows_of)
        else:
            dataset = self._pages(Sharing.TEXT).unbatch()
        dataset = dataset.with_options(page_options(sharded=self._shard[1] > 1))
        return counted(dataset, self._length)

    def _pages(
        self, sharing: Sharing, exact_rows: int | None = None, drop_remainder: bool = False
    ) -> tf.data.Dataset:
        """Whole pages, or pieces of `exact_rows`, in the structure of the elements."""
        dataset = self._leaves(exact_rows, drop_remainder)
        if not self._form.assembles:
            return dataset
        return dataset.map(functools.partial(self._form.assemble, sharing=sharing))

    def _leaves(
        self, exact_rows: int | None = None, drop_remainder: bool = False
    ) -> tf.data.Dataset:
        """As `_pages`, but flat where TensorFlow has to put the structure together."""
        form = self._form
        rows = exact_rows if exact_rows is not None and drop_remainder else None

        # The memory of an epoch serves the next one; iterators at the same time have their own.
        pools: list[BufferPool] = []

        def generate() -> Iterator[tuple[Any, ...]]:
            pool = pools.pop() if pools else BufferPool()
            chunks = join_batches(self._next_epoch(), exact_rows or form.piece_rows, drop_remainder)
            try:
                for parts in chunks:
                    leaves = form.pack(parts, pool)
                    yield leaves if form.assembles else form.assemble(*leaves)
            except IgniteTFError as error:
                raise for_tensorflow(error) from None
            finally:
                chunks.close()
                self._reader.client.rest()
                pools.append(pool)

        spec: Any = form.flat_spec(rows)
        if not form.assembles:
            spec = form.assemble(*spec)
        return tf.data.Dataset.from_generator(generate, output_signature=spec)
