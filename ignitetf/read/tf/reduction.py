"""`inline_reduce`: `Dataset.reduce` whose function runs where the elements are made.

**reduction** -> iteration

TensorFlow passes each call of the function to a pool of threads. If the function is a few cheap
operations, that takes about ten times as long as the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

__all__ = ["NOT_INLINE", "inline_reduce"]

# Returned where TensorFlow's own `reduce` is to be used.
NOT_INLINE: Final = object()
# A larger function may gain more from running its operations at the same time.
_MOST_OPERATIONS: Final = 32
# Their bodies can be of any size.
_WITH_FUNCTIONS: Final = ("func", "list(func)")


def inline_reduce(dataset: tf.data.Dataset, state: Any, function: Callable[..., Any]) -> Any:
    """Reduce a dataset, if the function is small, has no side effects and keeps the state's form.

    Args:
        dataset: The elements.
        state: The initial state.
        function: As that of `tf.data.Dataset.reduce`.

    Returns:
        The final state, or `NOT_INLINE`; nothing was read then.
    """
    if not tf.executing_eagerly() or not _all_tensors(dataset.element_spec) or _has_lists(state):
        return NOT_INLINE
    try:
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
    except (TypeError, ValueError):
        return NOT_INLINE
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, state)
    if (found := _traced(function, specs, dataset.element_spec)) is None:
        return NOT_INLINE
    flat = tf.raw_ops.ReduceDataset(
        input_dataset=_untuned(dataset)._variant_tensor,
        initial_state=tf.nest.flatten(state),
        other_arguments=found.captured_inputs,
        f=found,
        output_types=[spec.dtype for spec in tf.nest.flatten(specs)],
        output_shapes=[spec.shape for spec in tf.nest.flatten(specs)],
        use_inter_op_parallelism=False,
    )
    return tf.nest.pack_sequence_as(state, flat)


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset without TensorFlow's optimizations and tuning.

    Its steps are our own, which have nothing to tune. The thread that does it can sleep past the
    end of the elements, which ends only when it wakes up; and rewriting the pipeline takes 10 ms.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def _all_tensors(structure: Any) -> bool:
    return all(type(spec) is tf.TensorSpec for spec in tf.nest.flatten(structure))


def _has_lists(structure: Any) -> bool:
    """Whether there are lists, which tf.data takes for tensors."""
    if isinstance(structure, dict):
        return any(map(_has_lists, structure.values()))
    if isinstance(structure, tuple):
        return any(map(_has_lists, structure))
    return isinstance(structure, list)


def _traced(function: Callable[..., Any], state: Any, element: Any) -> Any:
    """Return the function of flat tensors; None if it is not one to run inline."""
    wanted = tf.nest.flatten(state)
    kept: list[bool] = []

    def flat(*leaves: tf.Tensor) -> list[tf.Tensor]:
        now = tf.nest.pack_sequence_as(state, leaves[: len(wanted)])
        out = function(now, tf.nest.pack_sequence_as(element, leaves[len(wanted) :]))
        kept.append(_is_like(out, state))
        return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(out)] if kept[-1] else []

    specs = [*wanted, *tf.nest.flatten(element)]
    traced = tf.function(flat).get_concrete_function(*specs)
    return traced if kept[-1] and _is_small(traced.graph) else None


def _is_like(value: Any, state: Any) -> bool:
    """Whether a new state has the structure, dtypes and shapes of the one before."""
    try:
        tf.nest.assert_same_structure(state, value)
        pairs = zip(tf.nest.flatten(value), tf.nest.flatten(state), strict=True)
        return all(_kind(tf.convert_to_tensor(leaf)) == _kind(spec) for leaf, spec in pairs)
    except (TypeError, ValueError):
        return False


def _kind(of: Any) -> tuple[Any, Any]:
    return of.dtype, None if of.shape.rank is None else of.shape.as_list()


def _is_small(graph: tf.Graph) -> bool:
    operations = graph.get_operations()
    return len(operations) <= _MOST_OPERATIONS + len(graph.inputs) and not any(
        op.op_def is None
        or op.op_def.is_stateful
        or any(attr.type in _WITH_FUNCTIONS for attr in op.op_def.attr)
        for op in operations
    )
