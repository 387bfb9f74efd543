"""What goes wrong while a dataset is read: told by its class, and nothing is left behind."""

import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

from ignitetf import IgniteDataset, load_dataset, open_rows, own_errors
from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.net.channel import Channel
from ignitetf.net.pool import Pool
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS, PARTS = 120, 4


@pytest.fixture
def build(client, cache_name):
    """Datasets of caches that are made as they are asked for."""

    def build(name="", change=None, **options):
        name = f"{cache_name}_{name}"
        if not client.cache_exists(name):
            columns = {"X": np.zeros((ROWS, 3), np.uint8), "LABEL": np.arange(ROWS) % 2}
            load_dataset(columns, name, client=client, partitions=PARTS)
        dataset = IgniteDataset(name, settings=client.settings, **options)
        if change is not None:
            client.sql(change.format(name))
        return dataset

    return build


REMOVED = "DELETE FROM {} WHERE _KEY = 7"
SHORTENED = "UPDATE {} SET X = X'01' WHERE _KEY = 7"


def exhaust(dataset):
    for _ in dataset:
        pass


def test_iteration_raises_errors_by_their_class(build):
    dataset = build(change=REMOVED)
    for pipeline in (dataset, dataset.batch(16), dataset.resume(dataset.state(0)).batch(16)):
        with pytest.raises(DataChanged) as caught:
            exhaust(pipeline)
        assert caught.value.cache.startswith(dataset.rows.reader.name) and caught.value.hint
        with pytest.raises(DataChanged):
            exhaust(pipeline.as_numpy_iterator())
        with pytest.raises(DataChanged):
            iterator = iter(pipeline)
            while True:
                iterator.get_next()
    iterator = iter(build("SOUND").batch(16))
    assert isinstance(iterator, tf.data.Iterator)
    assert iterator.get_next_as_optional().has_value()
    # Given to a function it is one of TensorFlow's.
    assert tf.function(lambda one: next(one)["key"])(iterator).shape == (16,)
    assert sum(1 for _ in iterator) == -(-ROWS // 16) - 2


def test_what_comes_out_of_tensorflow_is_raised_by_its_class(build):
    changed = build("CHANGED", REMOVED)
    damaged = build("DAMAGED", as_supervised=True)
    client = damaged.rows.reader.client
    client.sql(f"UPDATE {damaged.rows.reader.name} SET LABEL = NULL WHERE _KEY = 7")

    def fit():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        floats = damaged.map(lambda x, label: (tf.cast(x, tf.float32), label))
        model.fit(floats.batch(16).prefetch(2), verbose=0)

    @tf.function
    def count(dataset):
        return dataset.reduce(np.int64(0), lambda n, _: n + 1)

    def both():
        return tf.data.Dataset.zip((build("SOUND").batch(16), changed.batch(16)))

    works = {
        lambda: exhaust(changed.map(lambda row: row).prefetch(2)): DataChanged,
        lambda: exhaust(changed.batch(16).map(lambda row: row, num_parallel_calls=2)): DataChanged,
        lambda: changed.reduce(np.int64(0), lambda n, _: n + 1): DataChanged,
        lambda: count(changed.batch(16)): DataChanged,
        lambda: exhaust(both()): DataChanged,
        lambda: exhaust(damaged.skip(0)): SchemaError,
        fit: SchemaError,
    }
    for work, kind in works.items():
        with pytest.raises(kind) as caught, own_errors():
            work()
        assert type(caught.value) is kind
        with pytest.raises(tf.errors.OpError) as bare:
            work()
        # What TensorFlow says is the error's line, and not the way to it.
        assert f"{kind.__name__}: {caught.value}" in str(bare.value)
        assert "scan.py" not in str(bare.value) and "reader.py" not in str(bare.value)
    # One after the other, each has its own error.
    for dataset, kind in ((changed, DataChanged), (damaged, SchemaError), (changed, DataChanged)):
        with pytest.raises(kind), own_errors():
            exhaust(dataset.prefetch(1))


def test_other_errors_pass_as_they_are(build):
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"), own_errors():
        exhaust(build().map(lambda _: tf.debugging.check_numerics(np.nan, "no number")))
    with pytest.raises(ZeroDivisionError), own_errors():
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="mine"), own_errors():
        raise ConfigError("mine")
    with own_errors():
        assert build().batch(16).reduce(0, lambda n, _: n + 1) == -(-ROWS // 16)


def test_the_memory_of_a_failed_read_is_let_go(build):
    dataset = build(change=REMOVED)
    with pytest.raises(DataChanged) as caught:
        exhaust(dataset)
    frames, trace = [], caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    names = [frame.f_code.co_name for frame in frames]
    assert "batches" in names and "generate" not in names
    reading = frames[names.index("batches") - 1 :]
    assert not any(frame.f_locals for frame in reading), names


def test_datasets_are_copied_and_not_pickled(build):
    dataset = build(shuffle=3)
    first, second = (
        [int(key) for page in build(shuffle=3, epoch=epoch).numpy() for key in page["key"]]
        for epoch in (0, 1)
    )
    for made in (copy.copy(dataset), copy.deepcopy(dataset)):
        assert [int(row["key"]) for row in made] == first
        assert [int(row["key"]) for row in made] == second
    # A copy counts epochs of its own.
    assert [int(row["key"]) for row in dataset] == first
    batches = dataset.batch(16)
    for steps in (batches, copy.copy(batches), copy.deepcopy([batches])[0]):
        assert int(steps.cardinality()) == sum(1 for _ in steps) == -(-ROWS // 16)
    for made in (dataset, batches, [dataset]):
        with pytest.raises(ConfigError, match="cannot be pickled") as caught:
            pickle.dumps(made)
        assert "make the dataset there" in caught.value.hint


def open_queries(client, name):
    """Cursors on the node, of scans and of SQL (without the query that asks)."""
    scans = client.sql("SELECT COUNT(*) FROM SYS.SCAN_QUERIES WHERE CACHE_NAME = ?", (name,))
    texts = client.sql("SELECT SQL FROM SYS.SQL_QUERIES").fetchall()
    return scans.fetchall()[0][0] + sum(name in text and "_KEY" in text for (text,) in texts)


@pytest.mark.parametrize("where", [None, "LABEL >= 0"])
def test_reads_that_are_given_up_leave_no_cursor(build, client, where):
    """At every moment of a scan: a node (2.17) keeps what is asked as the connection closes."""
    name = build().rows.reader.name
    options = ReadOptions(page_size=8, where=where, readers=2)  # four pages of each partition
    reader = CacheReader(client, name, options)
    for number in range(90):
        with contextlib.closing(reader.batches(range(PARTS))) as batches:
            for _ in range(number % 5):
                next(batches)
            if number % 3 == 0:
                time.sleep(0.0003 * (number % 7))
        client.release_idle()
    gc.collect()
    until = time.monotonic() + 30
    while time.monotonic() < until and (
        open_queries(client, name)
        or any(t.name == f"ignitetf-read-{name}" for t in threading.enumerate())
    ):
        time.sleep(0.1)
    assert open_queries(client, name) == 0


def test_a_read_that_fails_leaves_no_cursor(build, client):
    dataset = build(change=SHORTENED, page_size=3)
    name = dataset.rows.reader.name
    for _ in range(40):
        with pytest.raises(SchemaError):
            list(dataset.numpy())
    until = time.monotonic() + 30
    while open_queries(client, name) and time.monotonic() < until:
        time.sleep(0.1)
    assert open_queries(client, name) == 0


def test_giving_up_does_not_wait_for_a_node_that_says_nothing(build, monkeypatch):
    batches = build(page_size=3).rows.reader.batches([0])
    began, answers = threading.Event(), threading.Event()
    receive = Channel.receive_some

    def silent(self, view):
        began.set()
        answers.wait(60)
        return receive(self, view)

    def give_up(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Channel, "socket_number", property(lambda self: -1))
    monkeypatch.setattr(Channel, "receive_some", silent)
    before, begin = signal.signal(signal.SIGALRM, give_up), time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(ZeroDivisionError):
            next(batches)
    finally:
        signal.signal(signal.SIGALRM, before)
    # Closed though no answer is here; the thread goes on alone, and ends with the answer.
    assert time.monotonic() - begin < 30
    threads = [t for t in threading.enumerate() if t.name.startswith("ignitetf-read-")]
    assert threads and began.is_set() and not answers.is_set()
    answers.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_an_interrupt_while_a_thread_starts_is_told_as_one(build, monkeypatch):
    rows = build().rows
    filtered = open_rows(rows.reader.name, client=rows.reader.client, where="LABEL >= 0")
    start = threading.Thread.start

    def interrupted(self):
        if self.name.startswith("ignitetf-read-"):
            raise KeyboardInterrupt
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(filtered.batches(16))
    assert sum(len(batch["key"]) for batch in filtered.batches(16)) == ROWS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_and_its_parent_goes_on(build, monkeypatch):
    monkeypatch.setattr(Pool, "release_idle", lambda self: None)  # the parent keeps its connection
    dataset = build(page_size=3)
    name = dataset.rows.reader.name
    keys = [key for page in dataset.numpy() for key in page["key"].tolist()]
    context = multiprocessing.get_context("fork")

    def in_child(work):
        ours, theirs = context.Pipe()

        def run():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends what waits for ever
            try:
                theirs.send(work())
            except Exception as error:
                theirs.send((type(error), str(error)))
            theirs.close()
            os._exit(0)

        child = context.Process(target=run)
        child.start()
        theirs.close()
        try:
            return ours.recv()
        except EOFError:
            return "no answer"
        finally:
            child.join()

    told = (ConfigError, f"{name}: the process was forked while it read, and the threads that"
            " receive are its parent's")  # fmt: skip
    pages, batches, rows = dataset.numpy(), dataset.arrow(), iter(dataset.batch(4))
    seen = next(pages)["key"].tolist()
    arrows = next(batches).column(0).to_pylist()
    tensors = next(rows)["key"].numpy().tolist()
    with dataset.rows.reader.client.channel() as idle:
        pass  # one connection that waits for its next use, which must stay the parent's
    assert in_child(lambda: next(pages)) == told
    assert in_child(lambda: next(batches)) == told
    assert in_child(lambda: pages.close()) is None
    kind, text = in_child(lambda: next(rows))
    assert kind is ConfigError and "forked" in text
    # A read that begins in the child is its own.
    assert in_child(lambda: [k for p in dataset.numpy() for k in p["key"].tolist()]) == keys
    assert in_child(lambda: dataset.rows.reader.client.sql("SELECT 1").fetchall()) == [(1,)]
    # And the parent's reads go on, over the connections that they had.
    assert not idle.ended
    assert seen + [k for p in pages for k in p["key"].tolist()] == keys
    assert arrows + [k for b in batches for k in b.column(0).to_pylist()] == keys
    assert tensors + [k for row in rows for k in row["key"].numpy().tolist()] == keys


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("order", ["scan", "global"])
def test_a_child_forked_at_any_moment_of_an_epoch_does_not_wait(client, cache_name, order):
    count, batch = 20_000, 100
    texts = ["x" * (number % 800) for number in range(count)]
    load_dataset({"X": texts}, cache_name, client=client, partitions=16, if_exists="replace")
    rows = open_rows(cache_name, client=client, order=order)
    batches, seen, kept = rows.batches(batch), [], []
    for turn, columns in enumerate(batches):
        seen += columns["key"].tolist()
        kept.append(columns)  # the child frees memory of the parent's groups
        if turn % 20 == 0 and (child := os.fork()) == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends what waits for ever
            try:
                kept.clear()
                with pytest.raises(ConfigError, match="forked"):
                    list(batches)
                own = [key for columns in rows.batches(batch) for key in columns["key"].tolist()]
                os._exit(0 if len(set(own)) == len(own) == count else 1)
            finally:
                os._exit(2)
        elif turn % 20 == 0:
            _, status = os.waitpid(child, 0)
            assert status == 0, f"{'killed by' if status < 256 else 'ended with'} {status}"
    assert sorted(seen) == list(range(count))
