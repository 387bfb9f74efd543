"""`igfs://` inside TensorFlow: gfile, checkpoints, SavedModels, Keras, summaries, data sets."""

import itertools
import os
import time
from pathlib import Path

import pytest
from helpers.needs import needs_native_io

from ignitetf.settings import Settings

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

_numbers = itertools.count()
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plugin(address):
    needs_native_io()
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address), "GFTEST")
    return gfile


@pytest.fixture
def base(plugin):
    """A directory of its own, removed afterwards; no handle stays open."""
    path = f"igfs:///t{os.getpid()}-{next(_numbers)}"
    open_before = len(plugin._handles)
    yield path
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)
    assert len(plugin._handles) == open_before


def write(path, data, mode="w"):
    with tf.io.gfile.GFile(path, mode) as file:
        file.write(data)


def read(path, mode="r"):
    with tf.io.gfile.GFile(path, mode) as file:
        return file.read()


# The cases of the file system test that came with the Ignite plugin of TensorFlow 1


@pytest.mark.core
def test_create_file(base):
    assert not tf.io.gfile.exists(f"{base}/1")
    write(f"{base}/1", "")
    assert tf.io.gfile.exists(f"{base}/1")


@pytest.mark.core
def test_write_and_read_lines(base):
    with tf.io.gfile.GFile(f"{base}/1", "w") as file:
        for _ in range(10_000):
            file.write("This is row\n")
    with tf.io.gfile.GFile(f"{base}/1", "r") as file:
        assert file.readlines() == ["This is row\n"] * 10_000


@pytest.mark.core
def test_delete_recursively(base):
    tf.io.gfile.mkdir(base)
    write(f"{base}/1", "")
    tf.io.gfile.rmtree(base)
    assert not tf.io.gfile.exists(base)
    assert not tf.io.gfile.exists(f"{base}/1")


@pytest.mark.core
def test_copy(base):
    write(f"{base}/1", "42")
    tf.io.gfile.copy(f"{base}/1", f"{base}/2")
    assert tf.io.gfile.exists(f"{base}/1")
    assert read(f"{base}/2") == "42"


def test_is_directory(base):
    write(f"{base}/2", "")
    tf.io.gfile.mkdir(f"{base}/1")
    assert tf.io.gfile.isdir(f"{base}/1")
    assert not tf.io.gfile.isdir(f"{base}/2")


@pytest.mark.core
def test_list_directory(base):
    write(f"{base}/1", "")
    write(f"{base}/2/3", "")
    tf.io.gfile.mkdir(f"{base}/4")
    assert sorted(tf.io.gfile.listdir(f"{base}/")) == ["1", "2", "4"]


def test_make_directory(base):
    assert not tf.io.gfile.exists(base)
    tf.io.gfile.mkdir(base)
    assert tf.io.gfile.isdir(base)


def test_remove(base):
    write(f"{base}/1", "")
    tf.io.gfile.remove(f"{base}/1")
    assert not tf.io.gfile.exists(f"{base}/1")


@pytest.mark.core
def test_rename_file(base):
    write(f"{base}/1", "42")
    tf.io.gfile.rename(f"{base}/1", f"{base}/2")
    assert not tf.io.gfile.exists(f"{base}/1")
    assert read(f"{base}/2") == "42"


def test_rename_directory(base):
    tf.io.gfile.makedirs(f"{base}/1")
    tf.io.gfile.rename(f"{base}/1", f"{base}/2")
    assert not tf.io.gfile.exists(f"{base}/1")
    assert tf.io.gfile.isdir(f"{base}/2")


# Known faults of that plugin


def test_a_renamed_directory_keeps_its_files(base):
    write(f"{base}/1/deep/file", "42")
    tf.io.gfile.rename(f"{base}/1", f"{base}/2")
    assert read(f"{base}/2/deep/file") == "42"


def test_writing_again_replaces(base):
    write(f"{base}/1", "long text")
    write(f"{base}/1", "short")
    assert read(f"{base}/1") == "short"


def test_appending_keeps_what_was_there(base):
    write(f"{base}/1", "one ")
    write(f"{base}/1", "two", "a")
    assert read(f"{base}/1") == "one two"


def test_reading_a_part_fetches_a_part(base, plugin):
    size = 20 << 20
    write(f"{base}/1", os.urandom(size), "wb")
    store, _ = plugin._handles._at(base)
    fetched = []
    acquire = store.client.acquire

    def counting(node=None):
        channel = acquire(node)
        if not hasattr(channel, "_counted"):
            channel._counted = receive = channel.receive

            def counted(request_id, **kw):
                body = receive(request_id, **kw)
                fetched.append(len(body))
                return body

            channel.receive = counted
        return channel

    store.client.acquire = counting
    try:
        with tf.io.gfile.GFile(f"{base}/1", "rb") as file:
            file.seek(10 << 20)
            assert len(file.read(1000)) == 1000
    finally:
        del store.client.acquire
    assert 0 < sum(fetched) < 4 << 20


# The rest of gfile


@pytest.mark.core
def test_errors_are_those_of_tensorflow(base, tmp_path):
    errors = tf.errors
    write(f"{base}/f", "x")
    with pytest.raises(errors.NotFoundError):
        read(f"{base}/none")
    with pytest.raises(errors.FailedPreconditionError):
        read(base)
    with pytest.raises(errors.FailedPreconditionError):
        write(base, "x")
    with pytest.raises(errors.NotFoundError):
        tf.io.gfile.remove(f"{base}/none")
    with pytest.raises(errors.FailedPreconditionError):
        tf.io.gfile.remove(base)
    with pytest.raises(errors.NotFoundError):
        tf.io.gfile.listdir(f"{base}/none")
    with pytest.raises(errors.AlreadyExistsError):
        tf.io.gfile.copy(f"{base}/f", f"{base}/f")
    with pytest.raises(errors.FailedPreconditionError):
        write(f"{base}/f/g", "x")
    with pytest.raises(errors.FailedPreconditionError):
        tf.io.gfile.rmtree("igfs:///")
    with pytest.raises(errors.InvalidArgumentError):
        write(f"{base}/" + "n" * 300, "x")
    with pytest.raises(errors.UnavailableError):
        tf.io.gfile.stat("igfs://127.0.0.1:1/x")
    with pytest.raises(errors.UnimplementedError):
        tf.io.gfile.rename(f"{base}/f", f"{tmp_path}/f")


def test_glob_walk_stat_seek(base, tmp_path):
    for name in ("a.txt", "b.txt", "d/c.txt", "d/e/żółć 1.txt"):
        write(f"{base}/{name}", name)
    glob = tf.io.gfile.glob
    assert glob(f"{base}/*.txt") == [f"{base}/a.txt", f"{base}/b.txt"]
    assert glob(f"{base}/*/*") == [f"{base}/d/c.txt", f"{base}/d/e"]
    assert glob(f"{base}/[^a].txt") == [f"{base}/b.txt"]
    assert glob([f"{base}/?.txt", f"{base}/d/e/*"])[-1].endswith("żółć 1.txt")
    assert glob("igfs:///nothing/*") == []
    walked = [(where, sorted(d), sorted(f)) for where, d, f in tf.io.gfile.walk(base)]
    assert walked == [
        (base, ["d"], ["a.txt", "b.txt"]),
        (f"{base}/d", ["e"], ["c.txt"]),
        (f"{base}/d/e", [], ["żółć 1.txt"]),
    ]
    facts = tf.io.gfile.stat(f"{base}/a.txt")
    assert (facts.length, facts.is_directory) == (5, False)
    assert abs(facts.mtime_nsec / 1e9 - time.time()) < 60
    data = os.urandom(3_000_000)
    write(f"{base}/big", data, "wb")
    with tf.io.gfile.GFile(f"{base}/big", "rb") as file:
        file.seek(1_500_000)
        assert file.read(10) == data[1_500_000:1_500_010]
        file.seek(-3, 2)
        assert file.read() == data[-3:]
    tf.io.gfile.copy(f"{base}/big", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == data
    assert read(f"{base}/d/../d/./c.txt") == "d/c.txt"


@pytest.mark.core
def test_checkpoints_and_manager(base):
    variable = tf.Variable(tf.random.normal([300, 1000]))
    checkpoint = tf.train.Checkpoint(v=variable)
    manager = tf.train.CheckpointManager(checkpoint, f"{base}/m", max_to_keep=2)
    for _ in range(4):
        variable.assign_add(tf.ones_like(variable))
        manager.save()
    assert len(manager.checkpoints) == 2
    assert tf.train.latest_checkpoint(f"{base}/m") == f"{base}/m/ckpt-4"
    restored = tf.Variable(tf.zeros_like(variable))
    tf.train.Checkpoint(v=restored).restore(f"{base}/m/ckpt-4").assert_consumed()
    assert (restored.numpy() == variable.numpy()).all()
    assert any(name.startswith("v/") for name, _ in tf.train.list_variables(f"{base}/m"))
    # The reader holds the interpreter's lock while it matches names.
    with pytest.raises(tf.errors.OpError):
        tf.compat.v1.train.NewCheckpointReader(f"{base}/m/none*")


def test_saved_model(base):
    module = tf.Module()
    module.v = tf.Variable(3.0)
    module.f = tf.function(lambda x: x * module.v, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, f"{base}/model")
    assert float(tf.saved_model.load(f"{base}/model").f(2.0)) == 6.0


def test_keras_files(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    model.compile("adam", "mse")
    x = tf.random.normal([5, 4])
    model.save(f"{base}/new/m.keras")
    again = tf.keras.models.load_model(f"{base}/new/m.keras")
    assert (again(x).numpy() == model(x).numpy()).all()
    model.save_weights(f"{base}/m.weights.h5")
    again.set_weights([w * 0 for w in again.get_weights()])
    again.load_weights(f"{base}/m.weights.h5")
    assert (again(x).numpy() == model(x).numpy()).all()
    with pytest.raises(ValueError, match=r"legacy \.h5"):
        model.save(f"{base}/m.h5")
    assert list(tmp_path.iterdir()) == []


def test_background_checkpoint(base, caplog):
    import gc

    import numpy as np

    from ignitetf.train.checkpoint import BackgroundCheckpoint

    def build():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
        model.compile("adam", "mse")
        return model

    x, y = np.random.rand(64, 4).astype("f4"), np.random.rand(64, 3).astype("f4")
    model = build()
    callback = BackgroundCheckpoint(f"{base}/run", every_steps=4, keep=2)
    model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[callback])
    assert tf.train.latest_checkpoint(f"{base}/run") == f"{base}/run/ckpt-24"
    again = build()
    assert BackgroundCheckpoint(f"{base}/run").restore(again) == f"{base}/run/ckpt-24"
    for old, new in zip(model.get_weights(), again.get_weights(), strict=True):
        assert (old == new).all()
    assert int(again.optimizer.iterations) == 24
    gc.collect()  # TensorFlow warns of what was not restored when its status goes
    assert not [r for r in caplog.records if r.name == "tensorflow"]
    failing = BackgroundCheckpoint("igfs://127.0.0.1:1/run", every_steps=4)
    with pytest.raises(tf.errors.OpError):
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[failing])


def test_a_background_checkpoint_has_the_values_of_its_moment(base):
    from ignitetf.train.checkpoint import BackgroundCheckpoint

    model = tf.keras.Sequential([tf.keras.Input((300,)), tf.keras.layers.Dense(400)])
    model.compile("sgd", "mse")
    model.set_weights([tf.fill(w.shape, 7.0).numpy() for w in model.weights])
    callback = BackgroundCheckpoint(f"{base}/run")
    callback.set_model(model)
    callback.on_train_begin()
    callback.save()
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    callback.barrier()
    callback.restore(model)
    assert all((weights == 7.0).all() for weights in model.get_weights())


def test_summaries_are_seen_while_the_writer_runs(base):
    writer = tf.summary.create_file_writer(f"{base}/logs")
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=0)
        writer.flush()
        (path,) = tf.io.gfile.glob(f"{base}/logs/*")
        assert len(list(tf.compat.v1.train.summary_iterator(path))) == 2
        tf.summary.scalar("loss", 0.5, step=1)
        writer.flush()
        assert len(list(tf.compat.v1.train.summary_iterator(path))) == 3
    writer.close()


def test_records_and_text(base):
    records = [os.urandom(100 + n % 7) for n in range(5000)]
    for number in range(3):
        with tf.io.TFRecordWriter(f"{base}/{number}.tfrecord") as writer:
            for record in records:
                writer.write(record)
    paths = tf.data.Dataset.list_files(f"{base}/*.tfrecord", shuffle=False)
    found = tf.data.TFRecordDataset(paths, num_parallel_reads=3)
    assert sorted(found.as_numpy_iterator()) == sorted(records * 3)
    write(f"{base}/text", "one\ntwo\n")
    lines = tf.data.TextLineDataset(f"{base}/text")
    assert list(lines.as_numpy_iterator()) == [b"one", b"two"]
    saved = tf.data.Dataset.range(10)
    saved.save(f"{base}/saved")
    assert list(tf.data.Dataset.load(f"{base}/saved").as_numpy_iterator()) == list(range(10))
    assert tf.io.read_file(f"{base}/text").numpy() == b"one\ntwo\n"


def test_at_exit_one_file_that_fails_keeps_no_other_from_being_shown(address):
    from ignitetf.fs.handles import Handles

    handles = Handles(Settings.resolve(address=address), "GFTEST")
    base = f"igfs:///exit{os.getpid()}"
    lost, kept, closed = (handles.open(f"{base}/{name}/f", "wb") for name in ("a", "b", "c"))
    for number in (lost, kept, closed):
        handles.write(number, memoryview(b"data"))
    handles.close(closed)
    handles.rmtree(f"{base}/a")
    with pytest.raises(FileNotFoundError):
        handles.flush_all()
    assert [handles.stat(f"{base}/{name}/f")[0] for name in ("b", "c")] == [4, 4]
    handles.close(kept)
    with pytest.raises(FileNotFoundError):
        handles.close(lost)
    handles.rmtree(base)
