"""`Form`: how columns become TensorFlow elements.

rows -> **tensors** -> dataset

Columns are packed into flat leaves in Python; ragged tensors and texts are assembled from them in
TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ignitetf.read.arguments import label_of
from ignitetf.read.leaves import (
    Dense,
    Node,
    Runs,
    Struct,
    Text,
    TextStore,
)
from ignitetf.read.rows import EpochRows
from ignitetf.read.tf.cluster import in_cluster
from ignitetf.read.tf.substr import LONG_TEXT, Sharing, strings_can_share, substr_op
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.schema import Batch

__all__ = ["Form", "counted", "page_options", "rebatched"]

_Substr = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Form:
    """The leaves and the structure of a dataset's elements.

    Args:
        rows: The rows that become elements.
        as_supervised: Elements are `(features, label)`.

    Attributes:
        has_runs: Whether a field is ragged.
        has_empty: Whether the arrays of a field have no values in any row.
        has_texts: Whether a field is a text: its bytes cross as those of a page.
        assembles: Whether leaves cross flat, and `assemble` runs in TensorFlow.
        cut_bytes: About as many bytes of a row are copied where TensorFlow cuts batches.
    """

    def __init__(self, rows: EpochRows, as_supervised: bool) -> None:
        reader = rows.reader
        self.key, self.values, self.plain = rows.key, rows.values, rows.plain
        self.label = label_of(list(self.values), reader.name) if as_supervised else None
        nodes = (self.key, *self.values.values())
        self.has_runs = any(_has(n, Runs) for n in nodes)
        self.has_texts = any(_has(n, Text) for n in nodes)
        self.has_empty = any(map(_is_empty, nodes))
        self.assembles = self.has_runs or self.has_empty or self.has_texts
        self.cut_bytes = self._cut_bytes(reader.entry_bytes, nodes)

    def _cut_bytes(self, entry_bytes: float, nodes: Sequence[Node]) -> float:
        """Return `cut_bytes`: of long texts that share their page, strings refer to it."""
        leaves = [leaf for node in nodes for leaf in _leaves(node)]
        dense = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Dense))
        texts = sum(isinstance(leaf, Text) for leaf in leaves)
        long = texts > 0 and entry_bytes - dense >= LONG_TEXT * texts
        if long and strings_can_share():
            return float(dense)
        return entry_bytes

    def pack(self, parts: list[Batch], pool: BufferPool) -> tuple[Any, ...]:
        """Return the leaves of some batches, key first."""
        leaves: list[Any] = []
        texts = TextStore() if self.has_texts else None
        if self.label is None:
            leaves += self.key.pack([b.key for b in parts if b.key is not None], pool, texts)
        for name, node in self.values.items():
            leaves += node.pack([b.columns[name] for b in parts], pool, texts)
        if texts is not None:
            leaves += texts.halves(pool)
        return tuple(leaves)

    def flat_spec(self, rows: int | None) -> tuple[tf.TensorSpec, ...]:
        """Return the specs of the leaves that `pack` returns."""
        out: list[tf.TensorSpec] = []
        nodes = (
            self.values.values() if self.label is not None else (self.key, *self.values.values())
        )
        for node in nodes:
            _leaf_specs(node, rows, out)
        if self.has_texts:
            out += [tf.TensorSpec([None], tf.uint8)] * 2
        return tuple(out)

    def assemble(self, *leaves: tf.Tensor, sharing: Sharing = Sharing.TEXT) -> Any:
        """Assemble the structure of a batch from its leaves."""
        left = iter(leaves)
        substr: _Substr | None = None
        if self.has_texts:
            substr = functools.partial(substr_op(), leaves[-2], leaves[-1], sharing=sharing)
        key = None if self.label is not None else _assemble(self.key, left, substr)
        values = {name: _assemble(node, left, substr) for name, node in self.values.items()}
        return self._structure(key, values)

    def rows_of(self, *leaves: tf.Tensor) -> tf.data.Dataset:
        """Return a dataset of the single elements of a page that `unbatch` does not take.

        It does not know ragged tensors, and ends the process on arrays without values.
        """
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


def _has(node: Node, kind: type) -> bool:
    if isinstance(node, Struct):
        return any(_has(n, kind) for _, n in node.fields)
    return isinstance(node, kind) or (isinstance(node, Runs) and _has(node.item, kind))


def _leaves(node: Node) -> Iterator[Node]:
    """Yield the leaves of a node that has no runs."""
    if isinstance(node, Struct):
        for _, inner in node.fields:
            yield from _leaves(inner)
    else:
        yield node


def _is_empty(node: Node) -> bool:
    if isinstance(node, Struct):
        return any(_is_empty(inner) for _, inner in node.fields)
    return isinstance(node, Dense) and 0 in node.shape


def _leaf_specs(node: Node, rows: int | None, out: list[tf.TensorSpec]) -> None:
    if isinstance(node, Dense):
        out.append(tf.TensorSpec([rows, *node.shape], tf.as_dtype(node.dtype)))
    elif isinstance(node, Text):
        out += [tf.TensorSpec([rows], tf.int64)] * 2
    elif isinstance(node, Runs):
        _leaf_specs(node.item, None, out)
        out.append(tf.TensorSpec([rows], tf.int64))
    else:
        for _, inner in node.fields:
            _leaf_specs(inner, rows, out)


def _assemble(node: Node, leaves: Iterator[tf.Tensor], substr: _Substr | None) -> Any:
    if isinstance(node, Text):
        assert substr is not None
        return substr(next(leaves), next(leaves))
    if isinstance(node, Dense):
        return next(leaves)
    if isinstance(node, Runs):
        items = _assemble(node.item, leaves, substr)
        lengths = next(leaves)
        return tf.nest.map_structure(
            lambda t: tf.RaggedTensor.from_row_lengths(t, lengths, validate=False), items
        )
    return {name: _assemble(inner, leaves, substr) for name, inner in node.fields}


def counted(dataset: tf.data.Dataset, count: int | None, *, sharded: bool) -> tf.data.Dataset:
    """Return the dataset with its cardinality set, if that is known.

    Not for one of several shards in a process of a TensorFlow cluster. There a strategy divides each
    batch, and Keras would take the number of steps from before: so many steps train a part of the
    rows.
    """
    if count is None or (sharded and in_cluster()):
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def rebatched(dataset: tf.data.Dataset, size: int, drop_remainder: bool) -> tf.data.Dataset:
    """Cut pages into batches, in a way that every `tf.distribute` strategy leaves alone.

    If a pipeline ends with `rebatch`, even before options, a prefetch or an asserted cardinality, a
    strategy takes that for its own and rewrites it to divide by the number of replicas. So another
    step follows, which passes everything on unchanged.
    """
    return dataset.rebatch(size, drop_remainder=drop_remainder).take(-1)


def page_options(*, sharded: bool) -> tf.data.Options:
    """Disable the prefetch that TensorFlow adds by itself, and a second sharding.

    That prefetch passes every element and batch from one thread to another, which costs more than
    cutting it. An explicit `prefetch` after a `map` still works as usual.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    if sharded:
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
    return options
