"""Checkpoints as TensorFlow, Keras and h5py write them: found whole, and every cut is seen."""

import contextlib
import io
import os
import random

import pytest
from helpers.checkpoint_files import index_of

from ignitetf.fs.folders import LocalFolder
from ignitetf.fs.units import Damaged, check_hdf5, data_sizes, find_fault, units

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def faults(folder):
    found = LocalFolder(folder)
    return {u.kind: find_fault(found, u, read=True) for u in units(found)}


@pytest.mark.parametrize("sizes", [(0,), (1,), (300, 70_000, 2**40)])
def test_an_index_tells_the_sizes_of_its_data(sizes):
    index = index_of(*sizes)
    assert data_sizes(index) == list(sizes)
    for end in range(len(index)):
        with pytest.raises(Damaged):
            data_sizes(index[:end])
    # Of every changed byte in a block that is read, something is seen.
    for at in range(len(index) - 48):
        changed = bytearray(index)
        changed[at] ^= 0x10
        with contextlib.suppress(Damaged):
            assert data_sizes(bytes(changed)) == list(sizes)  # the block that is not read


def test_arbitrary_bytes_are_damaged_and_nothing_else():
    rng = random.Random(1)
    for _ in range(300):
        body = rng.randbytes(rng.randrange(200))
        with pytest.raises(Damaged):
            data_sizes(body + index_of(5)[-8:])


def test_what_tensorflow_and_keras_write_is_whole(tmp_path):
    tf = pytest.importorskip("tensorflow")
    inputs = tf.keras.Input((64,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(64)(tf.keras.layers.Dense(256)(inputs)))
    path = tf.train.Checkpoint(m=model, text=tf.Variable(["a", "żó" * 100])).save(tmp_path / "c")
    tf.train.Checkpoint(m=model).write(tmp_path / "d" / "none")
    many = {f"v{n}": tf.Variable(tf.zeros([n % 3])) for n in range(2000)}
    tf.train.Checkpoint(**many).write(tmp_path / "many")
    tf.saved_model.save(tf.Module(), tmp_path / "empty")
    model.export(tmp_path / "sm", verbose=False)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "w.weights.h5")
    model.save_weights(tmp_path / "s.weights.json", max_shard_size=0.00007)
    assert len(list(tmp_path.glob("s_*.weights.h5"))) > 1
    folder = LocalFolder(tmp_path)
    found = units(folder)
    assert {u.kind for u in found} == {"checkpoint", "saved model", "weights", "file"}
    assert [find_fault(folder, u, read=True) for u in found] == [None] * len(found)
    # The length that the index asks for is that of the file, to the byte.
    for index in tmp_path.rglob("*.index"):
        data = index.with_name(f"{index.stem}.data-00000-of-00001")
        assert data_sizes(index.read_bytes()) == [data.stat().st_size]
    assert tf.train.load_checkpoint(path).get_tensor("text/.ATTRIBUTES/VARIABLE_VALUE")[0] == b"a"


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("user_block", [0, 1024])
def test_every_cut_of_an_hdf5_file_is_seen(libver, user_block):
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w", libver=libver, userblock_size=user_block) as file:
        file["a"] = list(range(5000))
        file.create_group("g")["x"] = [1.0] * 5
    data = out.getvalue()
    check_hdf5(io.BytesIO(data))
    for end in [*range(0, len(data), 211), len(data) - 1]:
        with pytest.raises(Damaged):
            check_hdf5(io.BytesIO(data[:end]))


def test_orbax_directories_are_one_unit_and_unfinished_ones_stay_out(tmp_path):
    for name in ("5/_CHECKPOINT_METADATA", "5/default/manifest.ocdbt", "5/default/d/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    unfinished = tmp_path / "6.orbax-checkpoint-tmp-17" / "default" / "d"
    unfinished.mkdir(parents=True)
    (unfinished / "1").write_text("x")
    folder = LocalFolder(tmp_path)
    (unit,) = units(folder)
    assert (unit.kind, unit.name, unit.files[-1]) == ("orbax", "5", "5/_CHECKPOINT_METADATA")
    assert len(unit.files) == 3
    assert find_fault(folder, unit) is None
    assert list(folder.left_out) == ["6.orbax-checkpoint-tmp-17/default/d/1"]
    (tmp_path / "5/_CHECKPOINT_METADATA").write_text("{")
    assert "cut short" in find_fault(folder, unit)
