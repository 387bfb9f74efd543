"""Batches of NumPy columns as a `tf.data.Dataset`.

mixture -> **columns** -> training
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import tensorflow as tf

from ignitetf.errors import IgniteTFError
from ignitetf.read.iteration import Batches
from ignitetf.read.leaves import Dense, Node, Runs, Text
from ignitetf.read.tf.causes import for_tensorflow
from ignitetf.read.tf.eager import as_tensor
from ignitetf.read.tf.iteration import Steps
from ignitetf.read.tf.tensors import counted, page_options

__all__ = ["dataset_of"]

# The nodes of columns, in their structure.
Structure = Node | Mapping[str, "Structure"]


def dataset_of(
    structure: Structure, begin: Callable[[], Batches], count: int | None, *, sharded: bool
) -> Steps:
    """Return a dataset of batches; an iteration in Python raises ignitetf's own errors.

    Args:
        structure: The nodes of the columns of a batch.
        begin: Called for each iteration.
        count: Batches of every iteration; None if that is unknown.
        sharded: Whether they are the batches of one of several workers.
    """

    def elements() -> Generator[Any, None, None]:
        with contextlib.closing(begin()) as batches:
            for batch in batches:
                yield _tensors(structure, batch)

    def generate() -> Iterator[Any]:
        try:
            yield from elements()
        except IgniteTFError as error:
            raise for_tensorflow(error) from None

    def eager() -> Generator[Any, None, None]:
        with contextlib.closing(elements()) as found:
            for element in found:
                yield tf.nest.map_structure(_eager, element)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=_spec(structure))
    dataset = dataset.with_options(page_options(sharded=True))
    return Steps(counted(dataset, count, sharded=sharded), eager)


def _eager(values: Any) -> Any:
    return values if isinstance(values, tf.RaggedTensor) else as_tensor(values)


def _spec(structure: Structure) -> Any:
    """Return the specs of the tensors that `_tensors` returns."""
    if isinstance(structure, Mapping):
        return {name: _spec(inner) for name, inner in structure.items()}
    if isinstance(structure, Dense):
        return tf.TensorSpec([None, *structure.shape], tf.as_dtype(structure.dtype))
    if isinstance(structure, Text):
        return tf.TensorSpec([None], tf.string)
    if isinstance(structure, Runs):
        return tf.nest.map_structure(_ragged, _spec(structure.item))
    return {name: _spec(inner) for name, inner in structure.fields}


def _ragged(spec: Any) -> tf.RaggedTensorSpec:
    """Return the spec of runs of what a spec describes."""
    shape = [None, None, *spec.shape[1:]]
    return tf.RaggedTensorSpec(shape, spec.dtype, getattr(spec, "ragged_rank", 0) + 1, tf.int64)


def _tensors(structure: Structure, columns: Any) -> Any:
    """Return columns as TensorFlow takes them: arrays, and runs as ragged tensors."""
    if isinstance(structure, Mapping):
        return {name: _tensors(inner, columns[name]) for name, inner in structure.items()}
    if isinstance(structure, (Dense, Text)):
        return columns
    if isinstance(structure, Runs):
        items = _tensors(structure.item, columns.values)
        return tf.nest.map_structure(
            lambda t: tf.RaggedTensor.from_row_splits(t, columns.offsets, validate=False), items
        )
    return {name: _tensors(inner, columns[name]) for name, inner in structure.fields}
