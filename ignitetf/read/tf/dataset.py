"""`IgniteDataset`: a cache as a `tf.data.Dataset`.

rows -> tensors -> **dataset** -> training

Whole pages of columns are passed to TensorFlow through `from_generator`. TensorFlow cuts single
elements and batches from them in C++. No Python code runs per row.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.read.arguments import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    flag,
    settings_of,
    with_environment,
)
from ignitetf.read.batches import join_batches
from ignitetf.read.key_order import StepOrder
from ignitetf.read.options import NullPolicy
from ignitetf.read.rows import EpochRows, Epochs, open_rows
from ignitetf.read.scan_order import WINDOW_BYTES, Even, OrderName, whole_argument
from ignitetf.read.shown import rows_html
from ignitetf.read.tf.cluster import in_cluster
from ignitetf.read.tf.iteration import OwnDataset, Steps, for_tensorflow
from ignitetf.read.tf.library import tf
from ignitetf.read.tf.tensors import (
    EagerElements,
    Form,
    Packed,
    Sharing,
    counted,
    page_options,
    rebatched,
)
from ignitetf.settings import Settings
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.columns import Batch

__all__ = ["IgniteDataset"]

# If a batch is about half a page or larger, every other batch crosses from one page into the next.
# From this size on, batches are packed here and not cut out of pages.
_LARGE_BATCH_BYTES: Final = 8 << 20
# The same limit for a loop in Python. There, the memory of a page is not reused while slices of it
# are in use, and slices that are not aligned are copied. Slices of few rows are seldom aligned.
_LARGE_IN_LOOP: Final = 1 << 20


class IgniteDataset(OwnDataset):
    """The entries of an Apache Ignite cache as a `tf.data.Dataset`.

    Elements are `{"key": ..., "val": {FIELD: ...}}` with the fields sorted by name; for plain
    values `val` is itself a tensor. Shapes and dtypes are read from the manifest that the load
    wrote. Without one they are taken from `schema`, and without that from the first pages. Strings
    and byte blobs are `tf.string`; arrays of varying length are `[None]` tensors, ragged in
    batches. The order is by partition, and by key hash within each partition.

    If `batch` is called first, it cuts batches from whole pages, without a step for each row.

    Environment variables `IGNITE_DATASET_CACHE_NAME`, `_HOST`, `_PORT`, `_LOCAL`, `_PART`,
    `_PAGE_SIZE`, `_USERNAME`, `_PASSWORD`, `_CERTFILE`, `_KEYFILE` and `_CERT_PASSWORD` override
    the arguments.

    Args:
        cache_name: Name of the cache or data set.
        host: Node to connect to.
        port: Its thin client port.
        schema_host: Accepted for compatibility; the schema is requested from the node itself.
        schema_port: See `schema_host`.
        local: Read only the partitions that the connected node owns.
        part: Read only this partition; -1 for all.
        page_size: Entries in a page; None for about 2 MB, more where a round trip takes long.
        username: User name, with `password`.
        password: Password.
        certfile: Client certificate (PEM).
        keyfile: Its private key (PEM).
        cert_password: Password of the private key.
        addresses: Nodes, `HOST:PORT` each, instead of `host` and `port`.
        ca_certfile: Trusted certificates (PEM) to verify the node's certificate.
        tls: Use TLS; implied by the certificate arguments.
        fields: Value fields to read; None for all.
        where: SQL condition on the rows, as written after WHERE; only matching rows are read.
        where_params: Values for the `?` in it.
        table: SQL table to read if the cache has several.
        split: Name of a split, such as `train`; `-fold0` for all other rows. See `open_rows`.
        schema: Declared fields, `{name: dtype | (dtype, shape) | tf.TensorSpec}`;
            `{"key": "stored", "val": None}` reads the stored bytes of keys of any type.
        nulls: `error`, `default`, `mask` (adds `FIELD_valid`) or `drop`.
        as_supervised: Elements are `(features, label)`, where the label is the field LABEL.
        order: `scan` (the default), `keys` or `global`; see `open_rows`.
        shuffle: Seed; partitions and the rows of byte-bounded windows are permuted, differently in
            each epoch, the same way for any number of readers and nodes. None keeps the order. This
            describes `scan`; with `global`, any row can be at any place.
        epoch: Number of the first epoch; each further iteration increments it.
        shard: (index, count) of this worker's share of the partitions, or a
            `tf.distribute.InputContext`. None takes it from `TF_CONFIG` if that names several
            workers; (0, 1) always reads everything.
        even: `pad` or `drop` to give all shards the same number of rows; None lets them differ.
        global_batch: Rows of a step over all workers, for `keys` or `global`; see `open_rows`.
        readers: Connections at once, at least one to each node; "auto" is one to each.
        on_node_loss: `retry` continues with another node, `error` raises at once.
        on_change: `error` or `warn` if a partition does not have the number of entries that the
            load stored.
        version: Require this version of the data set's manifest.
        window_bytes: Limit for a window of the shuffle; the first windows of an epoch are smaller.
        settings: Connection settings, instead of all connection arguments.

    Raises:
        CacheNotFound: The cache does not exist.
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
        split: str | None = None,
        schema: Any = None,
        nulls: NullPolicy = "error",
        as_supervised: bool = False,
        order: OrderName | None = None,
        shuffle: int | None = None,
        epoch: int = 0,
        shard: Any = None,
        even: Even | None = None,
        global_batch: int | None = None,
        readers: int | str = "auto",
        on_node_loss: str = "retry",
        on_change: str = "error",
        version: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        settings: Settings | None = None,
    ) -> None:
        """Connect, determine the schema of the cache, and build the dataset."""
        given = with_environment(
            cache_name=cache_name, host=host, port=port, local=local, part=part,
            page_size=page_size, username=username, password=password, certfile=certfile,
            keyfile=keyfile, cert_password=cert_password,
        )  # fmt: skip
        if settings is None:
            settings = settings_of(given, addresses, ca_certfile, tls)
        rows = open_rows(
            given["cache_name"], fields=fields, where=where, where_params=where_params,
            table=table, split=split, schema=schema, nulls=nulls, order=order, shuffle=shuffle, epoch=epoch,
            shard=shard, even=even, global_batch=global_batch, part=given["part"], local=given["local"], readers=readers,
            page_size=given["page_size"], on_node_loss=on_node_loss, on_change=on_change,
            version=version, window_bytes=window_bytes, settings=settings,
        )  # fmt: skip
        self._begin(rows, Form(rows, flag("as_supervised", as_supervised)))

    @classmethod
    def from_rows(cls, rows: EpochRows, as_supervised: bool = False) -> IgniteDataset:
        """Build a dataset of the rows, over the same connections."""
        return cls._of(rows, Form(rows, flag("as_supervised", as_supervised)))

    @classmethod
    def _of(cls, rows: EpochRows, form: Form) -> IgniteDataset:
        dataset = object.__new__(cls)
        dataset._begin(rows, form)
        return dataset

    def _begin(self, rows: EpochRows, form: Form) -> None:
        """Build the pipeline of the rows and of all epochs that follow."""
        self._rows, self._form, self._epochs = rows, form, Epochs(rows)
        iterations = self._iterations()
        self._elements = self._build_elements(iterations)
        eager = self._eager(iterations, self._elements.element_spec, Sharing.TEXT)
        super().__init__(self._elements._variant_tensor, eager)

    @property
    def rows(self) -> EpochRows:
        """The rows of the first epoch, without TensorFlow; iterating does not change them."""
        return self._rows

    @property
    def form(self) -> Form:
        """The conversion of columns to the tensors of an element."""
        return self._form

    @property
    def class_names(self) -> list[str]:
        """Names of the values 0, 1, 2 ... of LABEL; empty if they have none."""
        return self._rows.class_names

    @property
    def _length(self) -> int | None:
        """Elements of every epoch; None if unknown.

        It is None after `resume`, because the rest of an epoch is shorter than the following
        epochs. It is also None if rows may be added or removed without an error.
        """
        may_change = self._rows.reader.options.on_change != "error"
        return None if may_change or self._rows.position.chain else self._rows.length

    def _inputs(self) -> list[Any]:
        return [self._elements]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one element."""
        return self._elements.element_spec

    def _repr_html_(self) -> str:
        return rows_html(self._rows) + super()._repr_html_()

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """Return batches of consecutive elements, cut from whole pages.

        Under a strategy over several workers, `batch_size` is the number of rows of a global step,
        of which each worker trains its share; see docs/distributed.md.

        Arrays of varying length become `tf.RaggedTensor`. `num_parallel_calls` and `deterministic`
        are accepted and ignored.
        """
        size = whole_argument("batch_size", batch_size, 1)
        slice_rows = self._slice_rows(size)
        form, rows = self._form, self._rows.in_batches(slice_rows)
        uneven = isinstance(rows.order, StepOrder) and rows.order.is_uneven(rows.shard)

        def cut_if(is_large: bool) -> _Cut:
            # Ragged batches cannot be cut out of pages. Large batches are cheaper to pack directly
            # than to cut out of pages, which copies them again.
            exact = form.has_runs or uneven or is_large
            return _Cut(size, slice_rows, drop_remainder, exact=exact)

        cut = cut_if(size * form.cut_bytes >= _LARGE_BATCH_BYTES)
        eager_cut = cut_if(size * rows.reader.entry_bytes >= _LARGE_IN_LOOP)
        static = size if cut.exact and drop_remainder and not uneven else None
        iterations = self._iterations(cut)
        dataset = self._pages(iterations, Sharing.PAGE, static)
        if not cut.exact:
            dataset = rebatched(dataset, size, drop_remainder)
        sharded = rows.shard.count > 1
        dataset = dataset.with_options(page_options(sharded=sharded))
        count = None if self._length is None else rows.batch_count(size, drop_remainder)
        dataset = counted(dataset, count, sharded=sharded)
        own = iterations if eager_cut == cut else self._iterations(eager_cut)
        eager = self._eager(own, dataset.element_spec, Sharing.PAGE, eager_cut)
        return Steps(dataset, eager)

    def _slice_rows(self, batch_size: int) -> int:
        """Return the rows of this worker in a global step, for orders by key.

        A strategy divides each batch by the number of workers n, and trains the parts in n steps.
        So a batch is made of this worker's slices of n global steps. Each global step then has the
        same rows as with one worker.
        """
        count = self._rows.shard.count
        if count == 1 or batch_size % count or not in_cluster():
            return batch_size
        return batch_size // count

    def numpy(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the first epoch as NumPy columns; see `EpochRows.numpy`."""
        return self._rows.numpy()

    def arrow(self) -> Iterator[Any]:
        """Yield the rows of the first epoch as `pyarrow.RecordBatch`; see `EpochRows.arrow`."""
        return self._rows.arrow()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows of the first epoch as an Arrow stream (PyCapsule)."""
        return self._rows.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow schema (PyCapsule)."""
        return self._rows.__arrow_c_schema__()

    @property
    def dropped(self) -> int:
        """Records left out so far by `nulls="drop"`."""
        return self._rows.dropped

    def state(self, rows_consumed: int, epoch: int | None = None) -> dict[str, Any]:
        """Return the state of the training after `rows_consumed` rows of an epoch.

        Args:
            rows_consumed: Rows that each worker has trained on since the beginning of the epoch, or
                since `resume`; rows waiting in a prefetch do not count.
            epoch: Number of that epoch; None for the one this dataset began with.

        Returns:
            A JSON object of less than 1 KB for `resume`, also with another number of workers.
        """
        return self._rows.state(rows_consumed, epoch)

    def resume(self, state: dict[str, Any]) -> IgniteDataset:
        """Return this dataset from the place where `state` was taken, with the epochs that follow.

        The first iteration is the rest of that epoch, and each further one is a whole epoch. So the
        cardinality is unknown.

        Raises:
            ConfigError: The state belongs to another cache or way of reading, or is not a state.
            DataChanged: The data were loaded again since.
        """
        return self._of(self._rows.resume(state), self._form)

    def seek(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin where `state` was taken, also in pipelines built on this.

        Only for a dataset returned by `resume`, because all others declare the length of an epoch.

        Raises:
            ConfigError: See `resume`; or this dataset declares a length.
            DataChanged: See `resume`.
        """
        if self._length is not None:
            raise ConfigError(
                "a dataset that declares its length cannot seek",
                hint="call seek on the result of resume()",
            )
        self._epochs.seek(self._rows.resume(state))

    def __copy__(self) -> IgniteDataset:
        """Return a dataset that counts its own epochs, starting with the same one."""
        return self._of(self._rows, self._form)

    def __deepcopy__(self, memo: Any) -> IgniteDataset:
        """Return the same as `__copy__`: connections and the schema of the cache are shared."""
        return self.__copy__()

    # Building

    def _build_elements(self, iterations: Callable[[], Packed]) -> tf.data.Dataset:
        if self._form.has_runs or self._form.has_empty:
            dataset = self._leaves(iterations).flat_map(self._form.rows_of)
        else:
            dataset = self._pages(iterations, Sharing.TEXT).unbatch()
        sharded = self._rows.shard.count > 1
        dataset = dataset.with_options(page_options(sharded=sharded))
        return counted(dataset, self._length, sharded=sharded)

    def _pages(
        self, iterations: Callable[[], Packed], sharing: Sharing, rows: int | None = None
    ) -> tf.data.Dataset:
        """Return pages in the structure of the elements.

        Args:
            iterations: Begins an iteration.
            sharing: The way strings share memory with their page.
            rows: Rows of every page, if the number is certain.
        """
        dataset = self._leaves(iterations, rows)
        if not self._form.assembles:
            return dataset
        return dataset.map(functools.partial(self._form.assemble, sharing=sharing))

    def _leaves(self, iterations: Callable[[], Packed], rows: int | None = None) -> tf.data.Dataset:
        """Return pages as `_pages`, but as flat leaves if TensorFlow assembles the structure."""
        form = self._form

        def generate() -> Iterator[tuple[Any, ...]]:
            try:
                with contextlib.closing(iterations()) as packed:
                    for _, leaves in packed:
                        yield leaves if form.assembles else form.assemble(*leaves)
            except IgniteTFError as error:
                raise for_tensorflow(error) from None

        spec: Any = form.flat_spec(rows)
        if not form.assembles:
            spec = form.assemble(*spec)
        return tf.data.Dataset.from_generator(generate, output_signature=spec)

    def _iterations(self, cut: _Cut | None = None) -> Callable[[], Packed]:
        """Return a function that begins the next epoch and yields its pages: row count and leaves.

        Args:
            cut: The sizes of batches; None for single elements.
        """
        form, client = self._form, self._rows.reader.client
        # Each epoch takes the pages' memory from the one before; parallel iterators have own pools.
        pools: list[BufferPool] = []

        def packed(rows: EpochRows) -> Packed:
            pool = pools.pop() if pools else BufferPool()
            chunks = _chunks(rows, cut)
            try:
                for parts in chunks:
                    yield sum(map(len, parts)), form.pack(parts, pool)
            finally:
                chunks.close()
                client.release_idle()
                pools.append(pool)

        return lambda: packed(self._epochs.take())

    def _eager(
        self, iterations: Callable[[], Packed], spec: Any, sharing: Sharing, cut: _Cut | None = None
    ) -> EagerElements | None:
        """Return the maker of elements for a loop in Python; None if only TensorFlow can do it."""
        if cut is None:
            if self._form.has_runs:
                return None
            return EagerElements(self._form, iterations, spec, None, sharing)
        return EagerElements(
            self._form, iterations, spec, cut.batch_size, sharing,
            whole=cut.exact, drop_remainder=cut.drop_remainder,
        )  # fmt: skip


@dataclass(frozen=True)
class _Cut:
    """The place where batches are cut: here if `exact`, otherwise by TensorFlow."""

    batch_size: int
    slice_rows: int
    drop_remainder: bool
    exact: bool = False


def _chunks(rows: EpochRows, cut: _Cut | None) -> Generator[list[Batch], None, None]:
    """Yield the rows that are packed together: a batch if `cut.exact`, otherwise about a page."""
    if cut is not None:
        rows = rows.in_batches(cut.slice_rows)
        if cut.exact:
            return rows.batch_parts(cut.batch_size, cut.drop_remainder)
    return join_batches(rows.column_batches(), None, drop_remainder=False)
