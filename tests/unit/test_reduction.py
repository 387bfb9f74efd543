"""`reduce` in the thread of the elements gives what TensorFlow's own gives, or is left to it."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from ignitetf.read.tf.reduction import NOT_INLINE, inline_reduce  # noqa: E402

COUNTED = tf.Variable(0)


def dataset():
    rows = {"x": np.arange(20.0), "s": np.array([b"a", b"bc"] * 10, object)}
    return tf.data.Dataset.from_tensor_slices((rows, np.arange(20))).batch(3)


def assign(state, element):
    COUNTED.assign_add(1)
    return state + 1


def loop(state, element):
    for value in element[1]:
        state += value
    return state


SMALL = {
    "count": (np.int64(0), lambda n, e: n + tf.size(e[1], tf.int64)),
    "dict": ({"n": 0, "s": 0.0}, lambda z, e: {"n": z["n"] + 1, "s": z["s"] + tf.reduce_sum(tf.cast(e[0]["x"], tf.float32))}),
    "tuple": ((0, b""), lambda z, e: (z[0] + 1, z[1] + tf.strings.reduce_join(e[0]["s"]))),
    "captured": (tf.constant(1.0), lambda z, e: z * SCALE + tf.reduce_max(tf.cast(e[1], tf.float32))),
}  # fmt: skip
SCALE = tf.constant(0.5)
OTHERS = {
    "side effects": (0, assign),
    "a loop": (np.int64(0), loop),
    "a state that grows": (np.zeros(0), lambda z, e: tf.concat([z, e[0]["x"]], 0)),
    "a list": ([1, 2], lambda z, e: z + 1),
    "random": (0.0, lambda z, e: z + tf.random.uniform([], 0, 0.0)),
    "many operations": (np.int64(0), lambda z, e: sum((e[1][0] * k for k in range(40)), z)),
}


def equal(left, right):
    tf.nest.assert_same_structure(left, right)
    for one, other in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("name", SMALL)
def test_small_functions_run_inline_with_the_same_result(name):
    state, function = SMALL[name]
    equal(inline_reduce(dataset(), state, function), dataset().reduce(state, function))


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_tensorflow(name):
    before = COUNTED.numpy()
    assert inline_reduce(dataset(), *OTHERS[name]) is NOT_INLINE
    assert COUNTED.numpy() == before  # nothing was read
    dataset().reduce(*OTHERS[name])


def test_ragged_elements_and_graphs_are_left_to_tensorflow():
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
    assert inline_reduce(ragged, 0, lambda n, e: n + 1) is NOT_INLINE
    inside = tf.function(lambda: inline_reduce(dataset(), 0, lambda n, e: n + 1) is NOT_INLINE)
    assert inside()


def test_what_a_function_raises_is_raised():
    kinds = []
    for reduce in (inline_reduce, lambda rows, *rest: rows.reduce(*rest)):
        with pytest.raises(Exception, match="by zero") as error:
            reduce(dataset(), 1, lambda n, e: n + 1 // 0)
        kinds.append(error.type)
    assert kinds[0] is kinds[1]
    wrong = tf.data.Dataset.range(3).map(
        lambda x: tf.debugging.check_numerics(1 / tf.cast(x, tf.float32), "0")
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        inline_reduce(wrong, 0.0, lambda n, e: n + e)
