"""`IgniteDataset`: a cache as a `tf.data.Dataset`.

reader -> elements -> **dataset** -> training

Pages of columns cross into TensorFlow whole, through `from_generator`; single elements and
batches are cut from them there, in C++. Nothing of Python runs for a row.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import tensorflow as tf

from ignitetf.client import Client
from ignitetf.errors import ConfigError, DataChanged
from ignitetf.read.elements import Dense, Node, Runs, Struct, Text, element_tree, node_for
from ignitetf.read.export import to_arrow, to_numpy
from ignitetf.read.plan import WINDOW_BYTES, Order, Position, check_shard
from ignitetf.read.reader import PAGE_BYTES, CacheReader, ReadOptions
from ignitetf.read.windows import read_pieces
from ignitetf.settings import Settings
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.schema import Batch

__all__ = ["IgniteDataset"]

_LABELS = ("label", "class", "target", "y")
_LARGE_BATCH_BYTES = 1 << 20
_LARGE_ROW_BYTES = 64 << 10
_DEFAULT_HOST, _DEFAULT_PORT = "localhost", 10800


class IgniteDataset(tf.data.Dataset):  # type: ignore[misc]
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
        where: SQL condition that the node evaluates; only matching entries are sent.
        where_params: Values for the `?` in it.
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
        host: str = _DEFAULT_HOST,
        port: int = _DEFAULT_PORT,
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
        given = _with_environment(
            cache_name=cache_name, host=host, port=port, local=local, part=part,
            page_size=page_size, username=username, password=password, certfile=certfile,
            keyfile=keyfile, cert_password=cert_password,
        )  # fmt: skip
        if settings is None:
            settings = _settings(given, addresses, ca_certfile, tls)
        client = Client(settings)
        options = ReadOptions(
            fields=fields if fields is None or isinstance(fields, str) else tuple(fields),  # type: ignore[arg-type]
            where=where,
            where_params=tuple(where_params),
            schema=schema,
            nulls=nulls,
            page_size=given["page_size"] or None,
            readers=_reader_count(readers, client),
            retry_s=_retry_seconds(on_node_loss),
            version=version,
            on_change=on_change,
        )
        self._reader = CacheReader(client, given["cache_name"], options)
        if readers == "auto" and self._reader.entry_bytes >= _LARGE_ROW_BYTES:
            # Two connections keep the node busy while large values are copied on this side.
            self._reader.options = replace(options, readers=max(2, options.readers))
        partitions = _partitions(self._reader, given["part"], given["local"])
        self._shard = _shard_of(shard)
        self._order = _order(self._reader, partitions, shuffle, even, self._shard, window_bytes)
        self._form = _Form(self._reader, as_supervised)
        self._start_at(Position(int(epoch), ()))
        # A dataset that is not being iterated holds no connection.
        client.close_idle()

    def _start_at(self, position: Position) -> None:
        """Build the pipeline of all that follows a position."""
        self._position = position
        self._epoch = position.epoch
        pieces = self._order.pieces(position.chain, *self._shard)
        self._rows: int | None = None
        if self._order.known:
            self._rows = sum(p.stop - p.start for p in pieces)
        elif not position.chain:
            self._rows = self._reader.row_count(self._order.partitions)
        # The rest of an epoch has another length than the epochs that follow it.
        self._length = None if position.chain else self._rows
        self._elements = self._build_elements()
        super().__init__(self._elements._variant_tensor)

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
        size = int(batch_size)
        if size <= 0:
            raise ValueError(f"batch_size must be above zero, not {size}")
        form = self._form
        if form.has_runs or size * self._reader.entry_bytes >= _LARGE_BATCH_BYTES:
            # Ragged batches cannot be cut in TensorFlow, and large ones are cheaper to pack at
            # once than to copy again.
            dataset = self._pages(exact_rows=size, drop_remainder=drop_remainder)
        else:
            dataset = self._pages().rebatch(size, drop_remainder=drop_remainder)
        dataset = dataset.with_options(_page_options(sharded=self._shard[1] > 1))
        return _counted(dataset, _batch_count(self._length, size, drop_remainder))

    def numpy(self) -> Iterator[dict[str, Any]]:
        """The same records, a page at a time, as NumPy columns; see `export.to_numpy`.

        Yields:
            `{"key": column, "val": {FIELD: column}}`, or `val` itself a column for plain values.
        """
        for batch in _closing(self._batches()):
            values = {n: to_numpy(batch.columns[n], node) for n, node in self._form.values.items()}
            assert batch.key is not None
            key = to_numpy(batch.key, self._form.key)
            yield {"key": key, "val": values["val"] if self._form.plain else values}

    def arrow(self) -> Iterator[Any]:
        """The same records, a page at a time, as `pyarrow.RecordBatch`; see `export.to_arrow`."""
        for batch in _closing(self._batches()):
            yield to_arrow(batch, self._form.key, self._form.values)

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`."""
        return self._reader.dropped

    def _batches(self) -> Generator[Batch, None, None]:
        """The rows of one epoch, as `numpy` and `arrow` give them: the first, from its position."""
        pieces = self._order.pieces(self._position.chain, *self._shard)
        return read_pieces(self._reader, self._order, pieces, self._position.epoch)

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
        number = self._position.epoch if epoch is None else int(epoch)
        chain = list(self._position.chain) if number == self._position.epoch else []
        count = self._shard[1]
        pieces = self._order.pieces(chain, *self._shard)
        limit = sum(p.stop - p.start for p in pieces) if self._order.known else rows_consumed
        if not 0 <= rows_consumed <= limit:
            raise ConfigError(
                f"rows_consumed={rows_consumed}", hint=f"the epoch has {limit} rows for each worker"
            )
        if chain and chain[-1][0] == count:
            chain[-1] = (count, chain[-1][1] + int(rows_consumed))
        else:
            chain.append((count, int(rows_consumed)))
        return {"epoch": number, "chain": [list(link) for link in chain], **self._identity()}

    def resume(self, state: dict[str, Any]) -> IgniteDataset:
        """This dataset from the place where `state` was taken, then the epochs that follow.

        The first iteration is the rest of that epoch, each further one a whole epoch; so the
        cardinality is unknown.

        Raises:
            ConfigError: The state is of another cache, seed or way of reading.
            DataChanged: The data were loaded again since.
        """
        try:
            chain = tuple((int(n), int(rows)) for n, rows in state["chain"])
            position = Position(int(state["epoch"]), chain)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("not a state of a dataset", hint="pass what state() gave") from error
        self._check_identity(state)
        if not self._order.known and any(n != self._shard[1] for n, _ in chain):
            raise ConfigError(
                "the rows of each partition are not known (where=, nulls='drop', no manifest):"
                " a state fits the same number of workers only"
            )
        resumed = copy.copy(self)
        resumed._start_at(position)
        return resumed

    def _identity(self) -> dict[str, Any]:
        manifest = self._reader.manifest
        return {
            "cache": self._reader.name,
            "seed": self._order.seed,
            "rows": sum(self._order.counts) if self._order.known else None,
            "version": None if manifest is None else manifest.version,
            "even": self._order.even,
            "where": self._reader.options.where,
        }

    def _check_identity(self, state: dict[str, Any]) -> None:
        for name, mine in self._identity().items():
            theirs = state.get(name)
            if theirs == mine:
                continue
            kind = DataChanged if name in ("rows", "version") else ConfigError
            raise kind(
                f"the state is of {name} {theirs!r}, this dataset has {mine!r}",
                hint="resume with the arguments, and the data, that the state was taken with",
            )

    # Building

    def _build_elements(self) -> tf.data.Dataset:
        form = self._form
        if form.has_runs:
            pages = self._pages(assembled=False)
            dataset = pages.flat_map(form.rows_of)
        else:
            dataset = self._pages().unbatch()
        if self._shard[1] > 1:
            dataset = dataset.with_options(_sharding_options())
        return _counted(dataset, self._length)

    def _pages(
        self, exact_rows: int | None = None, drop_remainder: bool = False, assembled: bool = True
    ) -> tf.data.Dataset:
        """Whole pages; with `exact_rows`, pieces of just so many rows."""
        form = self._form
        # Ragged tensors are put together in TensorFlow; everything else has its structure here.
        flat = form.has_runs
        rows = exact_rows if exact_rows is not None and drop_remainder else None

        def generate() -> Iterator[tuple[Any, ...]]:
            pool = BufferPool()
            chunks = _chunks(self._next_epoch(), exact_rows, drop_remainder)
            try:
                for parts in chunks:
                    leaves = form.pack(parts, pool)
                    yield leaves if flat else form.assemble(*leaves)
            finally:
                chunks.close()
                self._reader.client.close_idle()

        spec: Any = form.flat_spec(rows)
        if not flat:
            spec = form.assemble(*spec)
        dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
        return dataset.map(form.assemble) if flat and assembled else dataset


def _chunks(
    batches: Generator[Batch, None, None], exact_rows: int | None, drop_remainder: bool
) -> Generator[list[Batch], None, None]:
    """Batches joined to about a page, or cut to exactly `exact_rows`."""
    waiting: list[Batch] = []
    rows = nbytes = 0
    with contextlib.closing(batches):
        for batch in batches:
            if exact_rows is None:
                if waiting and nbytes + batch.nbytes > PAGE_BYTES:
                    yield waiting
                    waiting, nbytes = [], 0
                waiting.append(batch)
                nbytes += batch.nbytes
                if nbytes >= PAGE_BYTES // 2:
                    yield waiting
                    waiting, nbytes = [], 0
                continue
            while rows + len(batch) >= exact_rows:
                need = exact_rows - rows
                yield [*waiting, batch[:need]]
                waiting, rows, batch = [], 0, batch[need:]
            if len(batch):
                waiting.append(batch)
                rows += len(batch)
        if waiting and not (exact_rows is not None and drop_remainder):
            yield waiting


def _closing(batches: Generator[Batch, None, None]) -> Iterator[Batch]:
    with contextlib.closing(batches):
        yield from batches


class _Form:
    """How columns become elements: packing on this side, assembling in TensorFlow."""

    def __init__(self, reader: CacheReader, as_supervised: bool) -> None:
        self.key = node_for(reader.schema.key)
        self.values = element_tree(reader.schema, reader.options.nulls)
        self.plain = reader.schema.type_name is None
        self.label = _label_of(list(self.values), reader.name) if as_supervised else None
        self.has_runs = any(_has_runs(n) for n in (self.key, *self.values.values()))

    def pack(self, parts: list[Batch], pool: BufferPool) -> tuple[Any, ...]:
        """The leaves of some batches, key first."""
        leaves: list[Any] = []
        if self.label is None:
            leaves += self.key.pack([b.key for b in parts if b.key is not None], pool)
        for name, node in self.values.items():
            leaves += node.pack([b.columns[name] for b in parts], pool)
        return tuple(leaves)

    def flat_spec(self, rows: int | None) -> tuple[tf.TensorSpec, ...]:
        """Specs of the leaves that `pack` gives."""
        out: list[tf.TensorSpec] = []
        if self.label is None:
            _leaf_specs(self.key, rows, out)
        for node in self.values.values():
            _leaf_specs(node, rows, out)
        return tuple(out)

    def assemble(self, *leaves: tf.Tensor) -> Any:
        """The structure of a batch, from its leaves."""
        left = iter(leaves)
        key = None if self.label is not None else _assemble(self.key, left)
        values = {name: _assemble(node, left) for name, node in self.values.items()}
        return self._structure(key, values)

    def rows_of(self, *leaves: tf.Tensor) -> tf.data.Dataset:
        """A dataset of the single elements of a page whose fields differ in length."""
        whole = self.assemble(*leaves)
        count = tf.shape(tf.nest.flatten(whole, expand_composites=True)[0], tf.int64)[0]
        first = tf.nest.flatten(whole)[0]
        if isinstance(first, tf.RaggedTensor):
            count = first.nrows()
        return tf.data.Dataset.range(count).map(
            lambda i: tf.nest.map_structure(lambda t: t[i], whole)
        )

    def _structure(self, key: Any, values: dict[str, Any]) -> Any:
        if self.label is not None:
            label = values.pop(self.label)
            return (next(iter(values.values())) if len(values) == 1 else values), label
        if self.plain and set(values) == {"val"}:
            return {"key": key, "val": values["val"]}
        return {"key": key, "val": values}


def _has_runs(node: Node) -> bool:
    if isinstance(node, Struct):
        return any(_has_runs(n) for _, n in node.fields)
    return isinstance(node, Runs)


def _leaf_specs(node: Node, rows: int | None, out: list[tf.TensorSpec]) -> None:
    if isinstance(node, Dense):
        out.append(tf.TensorSpec([rows, *node.shape], tf.as_dtype(node.dtype)))
    elif isinstance(node, Text):
        out.append(tf.TensorSpec([rows], tf.string))
    elif isinstance(node, Runs):
        _leaf_specs(node.item, None, out)
        out.append(tf.TensorSpec([rows], tf.int64))
    else:
        for _, inner in node.fields:
            _leaf_specs(inner, rows, out)


def _assemble(node: Node, leaves: Iterator[tf.Tensor]) -> Any:
    if isinstance(node, (Dense, Text)):
        return next(leaves)
    if isinstance(node, Runs):
        items = _assemble(node.item, leaves)
        lengths = next(leaves)
        return tf.nest.map_structure(
            lambda t: tf.RaggedTensor.from_row_lengths(t, lengths, validate=False), items
        )
    return {name: _assemble(inner, leaves) for name, inner in node.fields}


def _label_of(names: list[str], cache: str) -> str:
    found = [n for n in names if n.lower() in _LABELS]
    if len(found) != 1 or len(names) < 2:
        raise ConfigError(
            f"{cache}: as_supervised needs one field named LABEL beside others, found"
            f" {', '.join(names)}",
            hint="use Dataset.map to pick features and label",
        )
    return found[0]


def _counted(dataset: tf.data.Dataset, count: int | None) -> tf.data.Dataset:
    if count is None:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def _batch_count(rows: int | None, size: int, drop_remainder: bool) -> int | None:
    if rows is None:
        return None
    return rows // size if drop_remainder else -(-rows // size)


def _sharding_options() -> tf.data.Options:
    """No second sharding by TensorFlow of what is a shard already."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _page_options(*, sharded: bool) -> tf.data.Options:
    """Without the prefetch that TensorFlow adds by itself.

    It hands every single batch from one thread to another, which costs more than cutting it.
    """
    options = _sharding_options() if sharded else tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return options


def _partitions(reader: CacheReader, part: int, local: bool) -> list[int]:
    count = reader.partition_count
    if part >= count:
        raise ConfigError(f"{reader.name}: partition {part} of {count}", hint="they count from 0")
    chosen = list(range(count)) if part < 0 else [part]
    if local:
        with reader.client.channel() as channel:
            here = channel.node_id
        owners = reader.client.partition_map(reader.cache)
        chosen = [p for p in chosen if owners.owner(p) == here]
    return chosen


def _order(
    reader: CacheReader,
    partitions: list[int],
    seed: int | None,
    even: Any,
    shard: tuple[int, int],
    window_bytes: int,
) -> Order:
    if even not in (None, "pad", "drop"):
        raise ConfigError(f"even={even!r}", hint="one of pad, drop, None")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ConfigError(f"shuffle={seed!r}", hint="a seed, 0 or above, or None")
    if window_bytes <= 0 or window_bytes > psutil.virtual_memory().total:
        raise ConfigError(
            f"window_bytes={window_bytes}", hint="above zero, and below the machine's memory"
        )
    if even is not None and not reader.counts_are_exact:
        raise ConfigError(
            f"even={even!r} needs the number of rows, which where= and nulls='drop' leave open"
        )
    has_counts = reader.manifest is not None and bool(reader.manifest.partition_rows)
    known = reader.counts_are_exact and (has_counts or seed is not None or shard[1] > 1)
    counts = reader.partition_counts if known or has_counts else reader.estimated_counts
    return Order(
        tuple(partitions),
        tuple(counts(partitions)),
        reader.entry_bytes,
        seed,
        even,
        int(window_bytes),
        known,
    )


def _shard_of(shard: Any) -> tuple[int, int]:
    if shard is None:
        return _shard_of_config(os.environ.get("TF_CONFIG"))
    if hasattr(shard, "num_input_pipelines"):
        return check_shard((shard.input_pipeline_id, shard.num_input_pipelines))
    return check_shard(shard)


def _shard_of_config(text: str | None) -> tuple[int, int]:
    """The worker's share by TF_CONFIG; the chief comes first."""
    if not text:
        return 0, 1
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        chiefs = len(cluster.get("chief", ())) + len(cluster.get("master", ()))
        count = chiefs + len(cluster.get("worker", ()))
        if count < 2 or task.get("type") not in ("chief", "master", "worker"):
            return 0, 1
        before = chiefs if task["type"] == "worker" else 0
        return check_shard((before + int(task["index"]), count))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError("TF_CONFIG is not what TensorFlow expects") from error


def _retry_seconds(on_node_loss: str) -> float:
    if on_node_loss not in ("retry", "error"):
        raise ConfigError(f"on_node_loss={on_node_loss!r}", hint="one of retry, error")
    return 60.0 if on_node_loss == "retry" else 0.0


def _reader_count(readers: int | str, client: Client) -> int:
    if readers == "auto":
        cores = os.cpu_count() or 1
        return max(1, min(8, cores // 2, cores - 1), min(len(client.nodes()), cores))
    if isinstance(readers, bool) or not isinstance(readers, int):
        raise ConfigError(f"readers={readers!r}", hint='a number, or "auto"')
    return readers


def _with_environment(**given: Any) -> dict[str, Any]:
    for name, value in given.items():
        text = os.environ.get(f"IGNITE_DATASET_{name.upper()}")
        if text is None:
            continue
        try:
            if name in ("port", "part", "page_size"):
                given[name] = int(text)
            elif name == "local":
                given[name] = text.strip().lower() in ("1", "true", "yes", "on")
            else:
                given[name] = text
        except ValueError as error:
            raise ConfigError(f"IGNITE_DATASET_{name.upper()}={text!r} is no number") from error
        del value
    return given


def _settings(
    given: dict[str, Any], addresses: Sequence[str] | None, ca: str | None, tls: bool | None
) -> Settings:
    host, port = given["host"], given["port"]
    address = None
    if addresses is None and (host, port) != (_DEFAULT_HOST, _DEFAULT_PORT):
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Settings.resolve(
        address=address,
        addresses=addresses,
        username=given["username"] or None,
        password=given["password"],
        cert=given["certfile"] or None,
        key=given["keyfile"] or None,
        key_password=given["cert_password"],
        ca=ca,
        tls=tls,
    )
