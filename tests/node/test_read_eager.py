"""Loops in Python, whose elements do not come from TensorFlow's iterators, beside those that do."""

import gc
import logging
import threading
import weakref

import numpy as np
import pytest

from ignitetf.errors import ConfigError, DataChanged
from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 700


def row(n):
    return {
        "BLOB": bytes([200, 0]) * (n % 37),
        "EVEN": np.full(64, n % 251, np.uint8),
        "LABEL": np.int32(n % 10),
        "ODD": (np.arange(15) + n).astype(np.int16).reshape(3, 5),
        "TEXT": "é" * (n % 11),
        "TRUE": n % 3 == 0,
    }


@pytest.fixture(scope="module")
def caches(client):
    load_dataset(
        list(map(row, range(ROWS))), "EAGER", client=client, if_exists="replace", partitions=4
    )
    lists = [{"A": np.arange(n % 5, dtype=np.int16), "TEXT": "t" * n} for n in range(90)]
    load_dataset(lists, "EAGER_LISTS", client=client, if_exists="replace", partitions=2)
    large = [{"X": np.full(300_000, n, np.uint8), "Y": np.int64(n)} for n in range(25)]
    load_dataset(large, "EAGER_LARGE", client=client, if_exists="replace", partitions=2)
    empty = [{"NONE": np.zeros((3, 0), np.float32), "Y": np.int64(n)} for n in range(9)]
    load_dataset(empty, "EAGER_EMPTY", client=client, if_exists="replace", partitions=2)


@pytest.fixture
def build(open_dataset, caches):
    return lambda name="EAGER", **options: open_dataset(name, **options)


def by_tensorflow(dataset):
    """The elements of an iterator of TensorFlow."""
    return list(dataset.map(lambda *item: item[0] if len(item) == 1 else item))


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        tf.nest.assert_same_structure(one, other, expand_composites=True)
        leaves = (tf.nest.flatten(item, expand_composites=True) for item in (one, other))
        for a, b in zip(*leaves, strict=True):
            assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
            assert np.array_equal(a.numpy(), b.numpy())


SIZES = [None, 1, 7, 64, 128, ROWS, 5 * ROWS]
WAYS = [
    {},
    {"as_supervised": True, "fields": ["EVEN", "LABEL"]},
    {"shuffle": 3, "nulls": "mask"},
    {"order": "global", "shuffle": 5},
    {"order": "keys", "fields": ["TEXT", "ODD"]},
    {"where": "LABEL < 3"},
    {"where": "LABEL > 90"},
    {"page_size": 7},
    {"shard": (1, 2), "even": "pad"},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_loops_have_the_elements_of_tensorflow(build, options, size):
    for drop in (False, True) if size else (False,):
        made, twin = (
            dataset if size is None else dataset.batch(size, drop_remainder=drop)
            for dataset in (build(**options), build(**options))
        )
        same(list(made), by_tensorflow(twin))
        # The second epoch, and those that TensorFlow has, follow in the same order.
        same(list(made.prefetch(2)), by_tensorflow(twin))
        same(by_tensorflow(made), list(twin))


@pytest.mark.parametrize("size", [None, 100])
def test_the_first_elements(build, size):
    made, twin = (
        d if size is None else d.batch(size) for d in (build(shuffle=1), build(shuffle=1))
    )
    for count in (0, 1, 3, 10_000, -1, np.int64(2), tf.constant(2, tf.int64)):
        # None of them, and so no epoch, if the number is 0.
        same(list(made.take(count)), by_tensorflow(twin.take(count)))
        same(list(made.prefetch(1).take(count).prefetch(1)), by_tensorflow(twin.take(count)))


@pytest.mark.parametrize("size", [None, 4, 16, 128])
def test_lists_large_rows_and_arrays_without_values(build, size):
    for name in ("EAGER_LISTS", "EAGER_LARGE", "EAGER_EMPTY"):
        made, twin = (d if size is None else d.batch(size) for d in (build(name), build(name)))
        same(list(made), by_tensorflow(twin))


@pytest.mark.parametrize("name", ["EAGER", "EAGER_LISTS"])
def test_tensorflow_gets_what_a_loop_has_left_at_any_place(build, name):
    dataset = build(name, page_size=50).batch(16)
    wanted = list(dataset)

    @tf.function
    def step(iterator):
        return next(iterator)

    for place in range(len(wanted)):
        iterator = iter(dataset)
        assert isinstance(iterator, tf.data.Iterator)
        seen = [next(iterator) for _ in range(place)]
        seen.append(step(iterator))
        if place % 2:
            seen += [iterator.get_next() for _ in range(len(wanted) - len(seen))]
            with pytest.raises(tf.errors.OutOfRangeError):
                iterator.get_next()
        same(seen + list(iterator), wanted)
        assert not iterator.get_next_as_optional().has_value()


def test_one_epoch_for_each_iterator_however_it_goes_on(build):
    first, second = (build(shuffle=1).batch(50) for _ in range(2))
    wanted = [list(first), list(first), list(first)]
    begun = iter(second)
    seen = [next(begun)]
    same(list(second), wanted[1])
    begun.get_next_as_optional()
    same(list(second), wanted[2])
    assert len(seen) + 1 + sum(1 for _ in begun) == len(wanted[0])


def test_an_iterator_of_several_threads_yields_each_element_once(build):
    iterator, seen = iter(build().batch(3)), []

    def work():
        seen.extend(int(key) for batch in iterator for key in batch["key"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(ROWS))


def test_functions_that_run_eagerly(build):
    wanted = by_tensorflow(build().batch(20))
    tf.config.run_functions_eagerly(True)
    try:
        same(list(build().batch(20)), wanted)
    finally:
        tf.config.run_functions_eagerly(False)


def test_tensorflow_does_not_warn_of_many_datasets(build):
    records, handler = [], logging.Handler()
    handler.emit = records.append
    tf.get_logger().addHandler(handler)
    try:
        for _ in range(10):
            list(build(fields=["TEXT"]).batch(ROWS))
    finally:
        tf.get_logger().removeHandler(handler)
    assert not records


def test_an_iterator_tells_its_form_and_nothing_that_it_lacks(build):
    dataset = build().batch(20)
    iterator = iter(dataset)
    assert iterator.element_spec == dataset.element_spec
    assert not hasattr(iterator, "_repr_html_")
    assert "_iterator_resource" not in vars(iterator)
    assert type(iterator).__mro__[1] is type(iter(tf.data.Dataset.range(1)))


def test_an_element_that_is_kept_does_not_keep_its_page(build, monkeypatch):
    from ignitetf.read.tf.tensors import Form
    from ignitetf.wire.buffers import BufferPool

    pages, pack = [], Form.pack

    def watched(form, parts, pool):
        leaves = []
        for leaf in pack(form, parts, pool):
            memory = BufferPool().take(leaf.nbytes + 1024)  # aligned, and in no other pool
            pages.append(weakref.ref(memory.base))
            leaves.append(memory[: leaf.nbytes].view(leaf.dtype).reshape(leaf.shape))
            leaves[-1][:] = leaf
        return tuple(leaves)

    def left(kept):
        assert kept
        list(build("EAGER_LISTS").batch(90))  # TensorFlow lets go of arrays when it takes others
        gc.collect()
        return sum(page() is not None for page in pages)

    with monkeypatch.context() as patch:
        patch.setattr(Form, "pack", watched)
        elements = [item["val"]["EVEN"] for item in build(fields=["EVEN"])]
        assert pages
    assert left(elements) == 0
    # Batches share the page: else this test would see nothing.
    with monkeypatch.context() as patch:
        patch.setattr(Form, "pack", watched)
        batches = [item["val"]["EVEN"] for item in build(fields=["EVEN"]).batch(16)]
    assert left(batches) > 0


def test_a_loop_that_is_left_gives_its_connections_back_at_once(build, monkeypatch):
    dataset = build("EAGER_LARGE", page_size=1).batch(1)
    given = []
    monkeypatch.setattr(
        type(build("EAGER_LARGE").rows.reader.client), "release_idle", lambda _: given.append(1)
    )
    for _ in dataset:
        assert not given
        break
    assert given
    given.clear()
    iterator = iter(dataset.take(2))
    assert next(iterator) and not given
    assert len(list(iterator)) == 1 and given
    iterator = iter(dataset)
    next(iterator)
    given.clear()
    iterator.get_next_as_optional()
    del iterator
    gc.collect()
    assert given


def test_no_element_waits_for_another_page(build, monkeypatch):
    from ignitetf.read.tf.tensors import Form

    packed, pack = [], Form.pack

    def counted(form, parts, pool):
        packed.append(sum(map(len, parts)))
        return pack(form, parts, pool)

    monkeypatch.setattr(Form, "pack", counted)
    for number, _ in enumerate(build("EAGER_LARGE", page_size=4)):
        assert sum(packed[:-1]) <= number < sum(packed)
    assert len(packed) > 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), DataChanged("other keys")])
def test_an_iteration_that_failed_is_not_at_its_end(build, monkeypatch, error):
    from ignitetf.read.tf.tensors import Form

    dataset = build("EAGER_LARGE", page_size=1)
    iterators = iter(dataset.batch(4)), iter(dataset)
    for iterator in iterators:
        next(iterator)

    def fails(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Form, "pack", fails)
        for iterator in iterators:
            with pytest.raises(type(error)):
                list(iterator)
    again = DataChanged if isinstance(error, DataChanged) else ConfigError
    for iterator in iterators:
        for _ in range(2):
            with pytest.raises(again):
                next(iterator)
        with pytest.raises(again):
            iterator.get_next_as_optional()


def test_a_graph_does_not_take_an_iterator_of_eager_mode(build):
    dataset = build().batch(50)
    iterator = iter(dataset)
    seen = [next(iterator)]
    with tf.Graph().as_default(), pytest.raises(ConfigError, match="graph"):
        next(iterator)
    same(seen + list(iterator), list(dataset))
