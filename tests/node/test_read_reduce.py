"""`reduce` sees the elements of a loop, and reads no more than it needs."""

import threading

import numpy as np
import pytest

from ignitetf.load.loader import load_dataset
from ignitetf.read.usage import snapshot

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 900


@pytest.fixture(scope="module")
def caches(client):
    rows = {"TEXT": [f"{n:03}" for n in range(ROWS)], "X": np.arange(ROWS)}
    load_dataset(rows, "HEAD", client=client, if_exists="replace", partitions=4)
    lists = [{"A": np.arange(n % 5)} for n in range(90)]
    load_dataset(lists, "HEAD_LISTS", client=client, if_exists="replace", partitions=2)
    large = {"X": np.zeros((48, 1 << 20), np.uint8)}
    load_dataset(large, "HEAD_LARGE", client=client, if_exists="replace", partitions=8)


@pytest.fixture
def build(open_dataset, caches):
    return lambda name="HEAD", **options: open_dataset(name, **options)


def joined(text, element):
    return tf.strings.join([text, tf.strings.reduce_join(element["val"]["TEXT"])])


def texts(dataset):
    """All texts in the order of a loop."""
    return b"".join(b"".join(np.ravel(item["val"]["TEXT"].numpy())) for item in dataset)


STEPS = {
    "elements": lambda d: d,
    "batches": lambda d: d.batch(32),
    "prefetch": lambda d: d.batch(32).prefetch(2),
    "take": lambda d: d.batch(32).take(5),
    "exact": lambda d: d.batch(500_000),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("options", [{}, {"shuffle": 7}, {"shuffle": 7, "order": "global"}])
def test_every_epoch_is_that_of_a_loop(build, steps, options):
    reduced, looped = (STEPS[steps](build(**options)) for _ in range(2))
    for _ in range(3):
        assert reduced.reduce(b"", joined) == texts(looped)
    # The epochs go on, whoever reads them.
    assert texts(reduced) == reduced.reduce(b"", joined) or options
    assert looped.reduce(b"", joined) and texts(reduced) != b""


def test_lists_and_functions_of_many_operations(build):
    total = sum(n % 5 for n in range(90))
    lists = build("HEAD_LISTS").batch(8)
    found = lists.reduce(np.int64(0), lambda n, e: n + tf.size(e["val"]["A"].flat_values, tf.int64))
    assert found == total
    found = (
        build()
        .batch(8)
        .reduce(np.int64(0), lambda n, e: sum((e["val"]["X"][:1] * 0 for _ in range(40)), n)[0] + 1)
    )
    assert found == -(-ROWS // 8)


def of_nothing(dataset):
    assert dataset.take(0).reduce(0, lambda n, _: n + 1) == 0


def of_a_function_that_fails(dataset):
    @tf.autograph.experimental.do_not_convert
    def fail(n, _):
        raise ValueError

    with pytest.raises(ValueError):
        dataset.reduce(0, fail)


@pytest.mark.parametrize("unread", [of_nothing, of_a_function_that_fails])
def test_what_reads_nothing_takes_no_epoch(build, unread):
    dataset, other = build(shuffle=3), build(shuffle=3)
    for _ in range(3):
        unread(dataset)
        assert texts(dataset) == texts(other)


def test_threads_have_an_epoch_each(build):
    dataset, other = build(shuffle=3).batch(32), build(shuffle=3).batch(32)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(bytes(dataset.reduce(b"", joined).numpy())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(texts(other) for _ in threads)


def test_a_look_at_some_elements_reads_no_more(build):
    start = snapshot().nbytes
    assert build("HEAD_LARGE").batch(1).take(2).reduce(0, lambda n, _: n + 1) == 2
    # 32 MB may land ahead, and 8 MB are under way.
    assert 2 << 20 <= snapshot().nbytes - start < 44 << 20


def test_an_error_of_the_read_is_told(build, client):
    rows = {"X": np.arange(50)}
    load_dataset(rows, "HEAD_GONE", client=client, if_exists="replace", partitions=2)
    dataset = build("HEAD_GONE").batch(8)
    client.destroy_cache("HEAD_GONE")
    with pytest.raises(Exception, match="HEAD_GONE"):
        dataset.reduce(0, lambda n, _: n + 1)
