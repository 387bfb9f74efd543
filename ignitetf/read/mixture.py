"""Mixtures: several data sets in one epoch, by weights, without TensorFlow.

rows of each component -> mix order -> lookup -> **mixture** -> training

A mixture is read like the rows of one data set: in global steps, by any number of workers, from any
step on. Its components are not copied: they stay in the caches of one cluster or of several.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.read.arguments import (
    even_of,
    flag,
    require_every_row,
    seed_of,
    shard_of,
    step_rows,
)
from ignitetf.read.batches import check_total, cut_batches
from ignitetf.read.export import DenseNode, Node, TextNode, to_numpy
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.keys import Numbers
from ignitetf.read.lookup import KeyReading
from ignitetf.read.mix_order import MOST_STEP, MixOrder, Share, rows_of
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import EpochRows, Epochs, OrderedRows
from ignitetf.read.scan_order import Even, Position, Shard, whole_argument
from ignitetf.read.state import mix_identity_of, mix_placed
from ignitetf.read.usage import Epoch, counted
from ignitetf.read.window import Filling, inverse
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.columns import Batch, Dense, concat, values_of
from ignitetf.wire.datatypes import family_of
from ignitetf.wire.schema import BYTES, Field

__all__ = [
    "SOURCE",
    "MixedRows",
    "check_fields",
    "mix_rows",
    "read_mix",
    "source_of",
    "warn_of_class_names",
]

_LABEL: Final = "LABEL"


def check_fields(components: Mapping[str, EpochRows], with_keys: bool) -> None:
    """Raise SchemaError unless all components have the same fields.

    Args:
        components: Rows by name.
        with_keys: True to require keys of the same type, too.
    """
    (first, rows), *others = components.items()
    for name, other in others:
        if rows.plain != other.plain:
            objects, plain = (first, name) if other.plain else (name, first)
            raise SchemaError(
                f"component {objects!r} has objects with fields, {plain!r} plain values",
                hint="mix data sets of one kind",
            )
        if with_keys and _form(rows.key, rows.reader.schema.key) != _form(
            other.key, other.reader.schema.key
        ):
            raise SchemaError(
                f"keys are {_text(rows.reader.schema.key)} in component {first!r},"
                f" {_text(other.reader.schema.key)} in {name!r}",
                hint="keys=False leaves the keys out",
            )
        _check_values(components, first, name)


def warn_of_class_names(components: Mapping[str, EpochRows]) -> None:
    """Warn if a class number means different classes in two components."""
    named = {
        name: rows.class_names
        for name, rows in components.items()
        if rows.class_names and _LABEL in rows.values
    }
    for (one, names), (other, others) in itertools.combinations(named.items(), 2):
        for number, (mine, theirs) in enumerate(zip(names, others, strict=False)):
            if mine != theirs:
                warnings.warn(
                    f"{_LABEL} {number} is {mine!r} in component {one!r}, {theirs!r} in {other!r};"
                    " loading them into one data set with if_exists='append' numbers classes alike",
                    stacklevel=3,
                )
                return


def _check_values(components: Mapping[str, EpochRows], first: str, second: str) -> None:
    one, two = _fields(components[first]), _fields(components[second])
    for name in sorted(one.keys() ^ two.keys()):
        has, lacks = (first, second) if name in one else (second, first)
        raise SchemaError(
            f"component {has!r} has the field {name!r}, {lacks!r} does not",
            hint=_shared(components),
            field=name,
        )
    for name, (form, text) in one.items():
        if form != two[name][0]:
            raise SchemaError(
                f"field {name!r} is {text} in component {first!r}, {two[name][1]} in {second!r}",
                hint=_shared(components),
                field=name,
            )


def _shared(components: Mapping[str, EpochRows]) -> str:
    """Return a hint that lists the fields that all components share."""
    first, *others = map(_fields, components.values())
    names = [
        name
        for name, (form, _) in first.items()
        if all(name in other and other[name][0] == form for other in others)
    ]
    if not names:
        return "they share no field"
    return f"open the components with fields={names!r}, which they share"


def _fields(rows: EpochRows) -> dict[str, tuple[Any, str]]:
    """Return the form of each value field, and its description for an error."""
    stored = {field.name: field for field in rows.reader.schema.fields}
    return {
        name: (_form(node, stored[name]), _text(stored[name]))
        if name in stored
        else (node, "a mask of nulls")
        for name, node in rows.values.items()
    }


def _form(node: Node, field: Field) -> Any:
    """Return a value that is equal for two fields if their columns can be joined."""
    if isinstance(node, TextNode):
        return node
    inner = tuple((part.name, part.dtype) for part in field.fields)
    return node, field.dtype, family_of(field.type), inner


def _text(field: Field) -> str:
    """Return type and shape of a field for an error."""
    if field.fields:
        return f"an object with {', '.join(part.name for part in field.fields)}"
    kind = "bytes" if field.dtype == BYTES else str(field.dtype)
    shape = ", ".join("?" if size is None else str(size) for size in field.shape)
    found = f"{field.type.name.lower()} of {kind}"
    return f"{found} [{shape}]" if field.shape else found


# The column with the number of the component; a field cannot have this name.
SOURCE: Final = "/source"
_SOURCE_NODE: Final = DenseNode(np.dtype(np.int64), ())
# Limit on the rows of a group (for small rows): their places and numbers are kept for a while.
_MOST_ROWS: Final = 1 << 14
# Rows that are planned at a time. Their groups are cached, because each component needs them.
_MOST_PLANNED: Final = 1 << 18


def source_of(batch: Batch) -> Numbers:
    """Return the component of each row of a batch, int64."""
    return values_of(batch.columns[SOURCE])


def read_mix(
    components: Sequence[tuple[CacheReader, KeyOrder]],
    order: MixOrder,
    position: Position,
    shard: Shard,
    with_keys: bool,
) -> Generator[Batch, None, None]:
    """Yield the remaining rows of a worker in a mixture, with the column `SOURCE`.

    Raises:
        DataChanged: A row was removed, or the number of entries of a cache is not that of its keys.
    """
    slices = order.slices(position, shard)
    rows = len(slices)
    step = _group_rows(order, components)
    groups = max(1, _MOST_PLANNED // step)

    @functools.lru_cache(maxsize=2 * groups + 2)
    def group(start: int) -> tuple[Numbers, Numbers]:
        places = slices.places(start, min(start + step, rows))
        return order.rows_at(position.epoch, places)

    def component_parts(number: int) -> Generator[list[Batch], None, None]:
        """Yield the rows of a component for each group, once each, by ascending number."""
        reader, keys = components[number]
        for first in range(0, rows, step * groups):
            wanted = [
                np.unique(numbers[source == number])
                for source, numbers in map(
                    group, range(first, min(first + step * groups, rows), step)
                )
            ]
            sizes = list(map(len, wanted))
            cuts = np.cumsum([0, *sizes]).tolist()
            every = np.concatenate(wanted)
            reading = KeyReading(reader, keys.keys, every, cuts=cuts).batches()
            with contextlib.closing(
                cut_batches(reading, (size for size in sizes if size))
            ) as parts:
                for size in sizes:
                    yield next(parts) if size else []

    pool = BufferPool()
    with contextlib.ExitStack() as stack:
        streams = {}
        for number, (reader, keys) in enumerate(components):
            if order.shares[number].rows:
                check_total(reader, keys.keys)
                streams[number] = stack.enter_context(contextlib.closing(component_parts(number)))
        for start in range(0, rows, step):
            arrived = {}
            for number, stream in streams.items():
                with components[number][0].explained():
                    arrived[number] = next(stream)
            yield from _group(*group(start), arrived, pool, with_keys)


def _group_rows(order: MixOrder, components: Sequence[tuple[CacheReader, KeyOrder]]) -> int:
    """Return the number of rows of a group: about a page, with the components' shares."""
    row_bytes = sum(
        share.rows / order.total * max(1.0, reader.entry_bytes)
        for share, (reader, _) in zip(order.shares, components, strict=True)
    )
    return int(max(1, min(_MOST_ROWS, PAGE_BYTES // row_bytes)))


def _group(
    source: Numbers,
    numbers: Numbers,
    arrived: Mapping[int, list[Batch]],
    pool: BufferPool,
    with_keys: bool,
) -> Iterator[Batch]:
    """Yield the rows of a group in their order."""
    places, parts = list[Numbers](), list[Batch]()
    for component in np.unique(source).tolist():
        own = np.flatnonzero(source == component)
        once, which = np.unique(numbers[own], return_inverse=True)
        if len(once) < len(own):
            # A row that occurs several times in the group is fetched once.
            parts.append(concat(arrived[component])[which])
            places.append(own)
        else:
            parts += arrived[component]
            places.append(own[inverse(which)])
    filling = Filling(np.concatenate(places), pool)
    for part in parts:
        filling.add(part if with_keys else Batch(None, part.columns))
    at = 0
    for batch in filling.batches(last=True):
        mark = Dense(source[at : at + len(batch)])
        at += len(batch)
        yield Batch(batch.key, {**batch.columns, SOURCE: mark})


def mix_rows(
    components: Mapping[str, EpochRows],
    weights: Mapping[str, float] | None = None,
    *,
    epoch_size: int | None = None,
    repeat: Mapping[str, float] | None = None,
    choose: Mapping[str, int] | None = None,
    keys: bool = True,
    shuffle: int | None = None,
    epoch: int = 0,
    shard: Any = None,
    even: Even | None = None,
    global_batch: int | None = None,
) -> MixedRows:
    """Mix the rows of several data sets.

        web = open_rows("WEB", order="global", shuffle=7)
        books = open_rows("BOOKS", order="global", shuffle=7)
        rows = mix_rows({"web": web, "books": books}, {"web": 3, "books": 1}, global_batch=256)
        for batch in rows.batches():
            batch["source"]                          # int64 [256]: 0 for web, 1 for books

    The number of rows of a component in an epoch is set by `weights` for all components, or by
    `repeat` or `choose` for each one; without these an epoch has all its rows once. If an epoch has
    fewer rows than the component, it reads a part of them. Each epoch continues with the next part,
    along the component's order (of epoch 0), until all rows have been used. If an epoch has more
    rows than the component, the counts of its rows differ by at most one.

    Without `shuffle` components are interleaved: every global step has its share of each component,
    rounded down or up. Step by step, the rows of a component follow its own order of the epoch.
    With components of `order="global"` this is stratified sampling, which is best for most
    trainings: rows are random, and the weights hold in every step. With `shuffle` all rows of an
    epoch are permuted, and the weights hold in a step only as in a random sample.

    Args:
        components: Rows by key (`order="keys"` or `"global"`) by a name of your choice. All must
            have the same fields; `open_rows(..., fields=[...])` selects the fields that they share.
            The same rows may be passed twice.
        weights: Share of each component in an epoch, in any unit; zero leaves it out.
        epoch_size: Rows of an epoch, with `weights`; None for the sum of the rows of all components
            with a weight above zero.
        repeat: Number of times that an epoch has the rows of a component, such as 2 or 0.5.
        choose: Number of rows of a component in an epoch.
        keys: True if batches contain the keys, which must then be of one type.
        shuffle: Seed; None interleaves.
        epoch: Number of the epoch.
        shard: (index, count) of this worker; None takes it from `TF_CONFIG` if that is set.
        even: `pad` or `drop` to give all workers the same number of rows.
        global_batch: Rows of a step over all workers; required without `shuffle`. None takes the
            workers' batch size times their number.

    Raises:
        ConfigError: An argument is unusable, or components cannot be mixed.
        SchemaError: The fields of two components differ; names the field and both.
    """
    _check_components(components)
    worker = shard_of(shard)
    for name, rows in components.items():
        _check_component(name, rows, worker)
    keys = flag("keys", keys)
    check_fields(components, keys)
    warn_of_class_names(components)
    step, seed = step_rows(global_batch, worker), seed_of(shuffle)
    if seed is None:
        if step is None:
            raise ConfigError(
                "a mixture needs shuffle= or global_batch=",
                hint="global_batch=, the rows of a step over all workers, in each of which the"
                " weights hold; or shuffle=, a seed",
            )
        whole_argument("global_batch", step, 1, MOST_STEP)
    orders = {name: key_order for name, (_, key_order) in _parts(components).items()}
    has = {name: key_order.total for name, key_order in orders.items()}
    counts = rows_of(has, weights, epoch_size, repeat, choose)
    shares = tuple(Share(has[name], counts[name], own.seed) for name, own in orders.items())
    order = MixOrder(shares, seed, even=even_of(even), global_batch=step)
    position = Position(whole_argument("epoch", epoch, 0))
    return MixedRows(dict(components), order, worker, position, keys)


class MixedRows(OrderedRows):
    """One worker's rows of an epoch of a mixture, in order, from a position on.

    `batches` reads them. Like `EpochRows`, it never changes: `resume`, `advance` and `next_epoch`
    return new objects over the same connections.

    Attributes:
        components: The rows of each component; source i of a batch is the i-th of the names.
        order: The order of all rows.
        shard: The worker that reads these rows.
        position: Epoch and place of the first row.
    """

    order: MixOrder

    def __init__(
        self,
        components: dict[str, EpochRows],
        order: MixOrder,
        shard: Shard,
        position: Position,
        with_keys: bool,
    ) -> None:
        self.components = components
        self.order = order
        self.shard = shard
        self.position = position
        self._with_keys = with_keys

    @property
    def name(self) -> str:
        """The names of the components."""
        return ", ".join(self.components)

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each component in a whole epoch, over all workers."""
        shares = zip(self.components, self.order.shares, strict=True)
        return {name: share.rows for name, share in shares}

    @property
    def key(self) -> Node | None:
        """The structure of the key; None without keys."""
        return self._first.key if self._with_keys else None

    @property
    def values(self) -> dict[str, Node]:
        """The structure of each value field, sorted by name."""
        return self._first.values

    @property
    def _first(self) -> EpochRows:
        return next(iter(self.components.values()))

    # Other places

    def _with_order(self, order: MixOrder, position: Position) -> MixedRows:
        return MixedRows(self.components, order, self.shard, position, self._with_keys)

    def _identity(self) -> dict[str, Any]:
        return mix_identity_of(self.order, _parts(self.components))

    def resume(self, state: dict[str, Any]) -> MixedRows:
        """Return the rows that follow the place where `state` was taken.

        Raises:
            ConfigError: The state belongs to other components, weights or arguments, or is not a
                state.
            DataChanged: The data of a component were loaded again since.
        """
        position = mix_placed(state, self.order, _parts(self.components))
        self.order.slices(position, self.shard)  # refuses a place beyond the end
        return self.at(position)

    # Reading

    def column_batches(self, batch_rows: int | None = None) -> Generator[Batch, None, None]:
        """See `OrderedRows`; `batch_rows` has no effect, as rows are copied together anyway."""
        components = list(_parts(self.components).values())
        batches = read_mix(components, self.order, self.position, self.shard, self._with_keys)
        shard, position = (self.shard.index, self.shard.count), self.position
        of = Epoch("+".join(self.components), "mix", position.epoch, shard, position.chain)
        return counted(batches, of, None, len(self))

    def columns_of(self, batch: Batch) -> dict[str, Any]:
        """Return a batch of the rows as NumPy columns.

        Returns:
            `{"key": column, "val": {FIELD: column}, "source": int64 [n]}`, in the form of
            `EpochRows.batches`; without `key` if the mixture was opened with `keys=False`.
            `source` is the number of the component.
        """
        found = {name: to_numpy(batch.columns[name], node) for name, node in self.values.items()}
        value = found["val"] if self._first.plain else found
        key = {} if batch.key is None else {"key": to_numpy(batch.key, self._first.key)}
        return {**key, "val": value, "source": source_of(batch)}

    @property
    def _nodes(self) -> dict[str, Node]:
        keys = {"key": self._first.key} if self._with_keys else {}
        return {**keys, **self.values, "source": _SOURCE_NODE}

    @property
    def _fields(self) -> tuple[Field, ...]:
        return self._first.reader.schema.fields

    def _pages(self) -> Iterator[Batch]:
        for batch in super()._pages():
            yield Batch(batch.key, {**batch.columns, "source": batch.columns[SOURCE]})

    def tf(self, batch_size: int | None = None, drop_remainder: bool = False) -> Any:
        """Return these batches as a `tf.data.Dataset`; each further iteration is the next epoch.

        Elements are the batches of `batches`; lists of different lengths are `tf.RaggedTensor`.

        Args:
            batch_size: See `batches`.
            drop_remainder: See `batches`.
        """
        from ignitetf.read.tf.tensors import dataset_of

        rows = self if batch_size is None else self.in_batches(batch_size)
        epochs = Epochs(rows)
        key = {} if self.key is None else {"key": self.key}
        value = self.values["val"] if self._first.plain else self.values
        # After `resume` the first epoch is shorter than the others.
        whole = not self.position.chain
        return dataset_of(
            {**key, "val": value, "source": DenseNode(np.dtype(np.int64), ())},
            lambda: epochs.take().batches(batch_size, drop_remainder),
            rows.batch_count(batch_size, drop_remainder) if whole else None,
            sharded=self.shard.count > 1,
        )


def _parts(components: Mapping[str, EpochRows]) -> dict[str, tuple[CacheReader, KeyOrder]]:
    """Return the reader and the order of each component; `mix_rows` has checked the components."""
    return {
        name: (rows.reader, rows.order)
        for name, rows in components.items()
        if isinstance(rows.order, KeyOrder)
    }


def _check_components(components: Any) -> None:
    """Raise ConfigError unless `components` maps names to rows."""
    named = isinstance(components, Mapping) and components
    if not named or not all(
        isinstance(name, str) and name and isinstance(rows, EpochRows)
        for name, rows in components.items()
    ):
        raise ConfigError(
            "components are not rows by name",
            hint="mix_rows({'a': open_rows('A', order='global'), 'b': ...})",
        )


def _check_component(name: str, rows: EpochRows, worker: Shard) -> None:
    """Raise ConfigError unless rows can be a component for this worker."""
    order = rows.order
    if not isinstance(order, KeyOrder):
        raise ConfigError(
            f"component {name!r} is not read by key",
            hint="load it in rows, not blocks, and open it with order='global' or 'keys'",
        )
    if rows.position != Position(0):
        raise ConfigError(
            f"component {name!r} begins at {rows.position}",
            hint="open it without epoch=; epochs and states are the mixture's",
        )
    if order.global_batch is not None or order.even is not None:
        raise ConfigError(
            f"component {name!r} has global_batch= or even=", hint="the mixture takes them"
        )
    if rows.shard.count > 1 and rows.shard != worker:
        raise ConfigError(
            f"component {name!r} is shard {rows.shard.index} of {rows.shard.count}, the mixture"
            f" {worker.index} of {worker.count}",
            hint="shard= belongs to the mixture, which needs all rows of its components",
        )
    require_every_row(rows.reader, f"component {name!r} of a mixture")
