"""`IgniteDataset`: a cache as a `tf.data.Dataset`.

reader -> elements -> **dataset** -> training

Pages of columns cross into TensorFlow whole, through `from_generator`; single elements and
batches are cut from them there, in C++. Nothing of Python runs for a row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ignitetf.client import Client
from ignitetf.errors import ConfigError
from ignitetf.read.elements import Dense, Node, Runs, Struct, Text, element_tree, node_for
from ignitetf.read.export import to_arrow, to_numpy
from ignitetf.read.reader import PAGE_BYTES, CacheReader, ReadOptions
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
        readers: Connections at once, or "auto".
        version: Insist on this version of the data set's manifest.
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
        readers: int | str = "auto",
        version: int | None = None,
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
            version=version,
        )
        self._reader = CacheReader(client, given["cache_name"], options)
        if readers == "auto" and self._reader.entry_bytes >= _LARGE_ROW_BYTES:
            # Two connections keep the node busy while large values are copied on this side.
            self._reader.options = replace(options, readers=max(2, options.readers))
        self._partitions = _partitions(self._reader, given["part"], given["local"])
        self._as_supervised = as_supervised
        self._form = _Form(self._reader, as_supervised)
        self._rows = self._reader.row_count(self._partitions)
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
        dataset = dataset.with_options(_page_options())
        return _counted(dataset, _batch_count(self._rows, size, drop_remainder))

    def numpy(self) -> Iterator[dict[str, Any]]:
        """The same records, a page at a time, as NumPy columns; see `export.to_numpy`.

        Yields:
            `{"key": column, "val": {FIELD: column}}`, or `val` itself a column for plain values.
        """
        for batch in self._batches():
            values = {n: to_numpy(batch.columns[n], node) for n, node in self._form.values.items()}
            assert batch.key is not None
            key = to_numpy(batch.key, self._form.key)
            yield {"key": key, "val": values["val"] if self._form.plain else values}

    def arrow(self) -> Iterator[Any]:
        """The same records, a page at a time, as `pyarrow.RecordBatch`; see `export.to_arrow`."""
        for batch in self._batches():
            yield to_arrow(batch, self._form.key, self._form.values)

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`."""
        return self._reader.dropped

    def _batches(self) -> Iterator[Batch]:
        with contextlib.closing(self._reader.batches(self._partitions)) as batches:
            for item in batches:
                if item.batch is not None and len(item.batch):
                    yield item.batch

    # Building

    def _build_elements(self) -> tf.data.Dataset:
        form = self._form
        if form.has_runs:
            pages = self._pages(assembled=False)
            dataset = pages.flat_map(form.rows_of)
        else:
            dataset = self._pages().unbatch()
        return _counted(dataset, self._rows)

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
            chunks = _chunks(self._reader, self._partitions, exact_rows, drop_remainder)
            try:
                for parts in chunks:
                    leaves = form.pack(parts, pool)
                    yield leaves if flat else form.assemble(*leaves)
            finally:
                chunks.close()

        spec: Any = form.flat_spec(rows)
        if not flat:
            spec = form.assemble(*spec)
        dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
        return dataset.map(form.assemble) if flat and assembled else dataset


def _chunks(
    reader: CacheReader, partitions: Sequence[int], exact_rows: int | None, drop_remainder: bool
) -> Generator[list[Batch], None, None]:
    """Batches joined to about a page, or cut to exactly `exact_rows`."""
    waiting: list[Batch] = []
    rows = nbytes = 0
    pages = reader.batches(partitions)
    try:
        for item in pages:
            batch = item.batch
            if batch is None or not len(batch):
                continue
            if exact_rows is None:
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
    finally:
        pages.close()


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


def _page_options() -> tf.data.Options:
    """Without the prefetch that TensorFlow adds by itself.

    It hands every single batch from one thread to another, which costs more than cutting it.
    """
    options = tf.data.Options()
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
