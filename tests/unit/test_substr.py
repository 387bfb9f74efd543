"""The op that makes texts of a page: it equals Python's slices, and refuses what is no slice."""

import functools
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ignitetf.read.tf import tensors
from ignitetf.read.tf.tensors import Sharing, substr_op


@pytest.fixture(scope="module", autouse=True)
def op():
    return substr_op()


every_sharing = pytest.mark.parametrize("sharing", Sharing)
NUMBERS = tf.TensorSpec([None], tf.int64)
BYTES = tf.TensorSpec([None], tf.uint8)


@functools.cache
def function_of(sharing):
    @tf.function(input_signature=[BYTES, BYTES, NUMBERS, NUMBERS])
    def texts_of(*inputs):
        return substr_op()(*inputs, sharing=sharing)

    return texts_of


def inputs(first, second, places):
    starts = np.array([p for p, _ in places], np.int64)
    lengths = np.array([n for _, n in places], np.int64)
    return np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8), starts, lengths


def texts(first, second, places, sharing):
    return function_of(sharing)(*inputs(first, second, places)).numpy().tolist()


@st.composite
def pages(draw):
    """Two halves, and places that lie within one of them."""
    halves = [draw(st.binary(max_size=200)) * draw(st.sampled_from([1, 1, 20])) for _ in range(2)]
    places = []
    for half in draw(st.lists(st.integers(0, 1), max_size=20)):
        start = draw(st.integers(0, len(halves[half])))
        length = draw(st.integers(0, len(halves[half]) - start))
        places.append((start + half * len(halves[0]), length))
    return *halves, places


@every_sharing
@settings(max_examples=200, deadline=None)
@given(pages())
@example((b"", b"", []))
@example((b"x" * 30, b"", [(0, 21), (0, 22), (0, 23), (0, 0), (30, 0)]))
@example((b"x" * 1025, b"y" * 1024, [(0, 1023), (0, 1024), (0, 1025), (1025, 1024)]))
def test_texts_are_slices(sharing, page):
    first, second, places = page
    whole = first + second
    assert texts(first, second, places, sharing) == [whole[p : p + n] for p, n in places]


@every_sharing
def test_graphs_are_not_needed(sharing):
    parts = inputs(b"abc" * 1000, b"xyz" * 600, [(0, 2), (3, 2000), (3000, 1800), (3001, 1)])
    found = substr_op()(*parts, sharing=sharing).numpy().tolist()
    assert found == [b"ab", (b"abc" * 1000)[3:2003], b"xyz" * 600, b"y"]


@every_sharing
def test_texts_outlive_their_page(sharing):
    """Strings are sliced, batched anew and kept in a buffer, long after their page was given up."""
    places = [(i * 3000 + i, 2000 + i) for i in range(300)]

    def page(seed):
        return np.frombuffer(np.random.default_rng(seed).bytes(1 << 20), np.uint8)

    def generate():
        for seed in range(6):
            yield page(seed), *inputs(b"", b"", places)[1:]

    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=(BYTES, BYTES, NUMBERS, NUMBERS)
    )
    op = functools.partial(substr_op(), sharing=sharing)
    dataset = dataset.map(op, num_parallel_calls=2).unbatch().shuffle(1000, seed=3).batch(7)
    kept = [batch[1:] for batch in dataset.cache().prefetch(3)]
    gc.collect()
    found = sorted(text for batch in kept for text in batch.numpy().tolist())
    dropped = len(kept)
    pages = [page(seed) for seed in range(6)]
    wanted = [bytes(each[p : p + n]) for each in pages for p, n in places]
    assert len(found) == len(wanted) - dropped
    assert set(found) <= set(wanted) and len(set(found)) == len(found)


def give_up_arrays():
    """TensorFlow gives arrays up when it next runs a function of Python's."""
    gc.collect()
    list(tf.data.Dataset.range(1).map(lambda i: tf.numpy_function(np.copy, [i], tf.int64)))


def test_a_page_is_given_up_with_its_last_batch():
    released = []

    def generate():
        for _ in range(3):
            # TensorFlow takes an array over as it is where it begins at a multiple of 64 bytes.
            block = np.zeros((1 << 20) + 64, np.uint8)
            weakref.finalize(block, released.append, True)
            page = block[-block.ctypes.data % 64 :][: 1 << 20]
            yield page, *inputs(b"", b"", [(0, 5000), (70_000, 6000)])[1:]

    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=(BYTES, BYTES, NUMBERS, NUMBERS)
    ).map(functools.partial(substr_op(), sharing=Sharing.PAGE))
    batches = list(dataset)
    del dataset
    give_up_arrays()
    assert [list(map(len, batch.numpy())) for batch in batches] == [[5000, 6000]] * 3
    shares = tensors.strings_can_share()
    assert len(released) == (0 if shares else 3)
    del batches[0]
    give_up_arrays()
    assert len(released) == (1 if shares else 3)
    batches.clear()
    give_up_arrays()
    assert len(released) == 3


def test_strings_of_the_newest_tensorflow_can_share():
    newest = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 21)
    assert tensors.strings_can_share() or not newest


@pytest.mark.parametrize(
    "place", [(-1, 1), (0, -1), (11, 0), (10, 1), (0, 11), (2**62, 2**62), (1, 2**63 - 1)]
)
def test_what_is_no_slice_is_refused(place):
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond its page"):
        texts(b"0123456789", b"", [(0, 10), place], Sharing.PAGE)


@pytest.mark.parametrize("place", [(9, 2), (0, 11), (10, 6), (15, 1), (16, 0)])
def test_no_text_reaches_across(place):
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond its page"):
        texts(b"0123456789", b"abcde", [place], Sharing.PAGE)


def test_starts_and_lengths_come_in_pairs():
    data, numbers = np.zeros(4, np.uint8), np.zeros(3, np.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ in number"):
        function_of(Sharing.TEXT)(data, data, numbers[:2], numbers)


def test_shapes_are_known_before_it_runs():
    parts = inputs(bytes(9), b"", [(0, 1)] * 3)
    op = functools.partial(substr_op(), sharing=Sharing.TEXT)
    dataset = tf.data.Dataset.from_tensors(parts).map(op)
    assert dataset.element_spec == tf.TensorSpec([3], tf.string)


@every_sharing
def test_many_threads_at_once(sharing):
    data = bytes(range(256)) * 64
    places = [(i, 100 + i) for i in range(2000)]
    parts = inputs(data, b"", places)
    op = functools.partial(substr_op(), sharing=sharing)
    dataset = tf.data.Dataset.from_tensors(parts).repeat(50).map(op, num_parallel_calls=8)
    expected = [data[p : p + n] for p, n in places]
    for found in dataset:
        assert found.numpy().tolist() == expected


def test_it_is_registered_once_also_by_threads_and_reloaded_modules():
    """TensorFlow would abort the process at a second time."""
    code = """
import importlib, threading
from ignitetf.read.tf import tensors
threads = [threading.Thread(target=tensors.substr_op) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert importlib.reload(tensors).substr_op() is not None
print("alive")
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout == "alive\n", out.stderr


def test_a_library_without_tensorflows_functions_is_refused():
    code = """
from ignitetf._core._native import register_strings
for path in ("libc.so.6", "/no/such/library"):
    try:
        register_strings(path)
    except ValueError as error:
        print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "lacks the function TF_NewStatus" in out.stdout, out.stderr
    assert "/no/such/library cannot be loaded" in out.stdout
