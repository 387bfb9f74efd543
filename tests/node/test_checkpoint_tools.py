"""Orbax, torch DCP, tf.train.Checkpoint and Keras save to `igfs://` and restore from it."""

import itertools
import os
import random
import subprocess
import sys
import warnings

import fsspec
import numpy as np
import pytest
from helpers.needs import needs_native_io
from helpers.pages import Page
from helpers.paths import ROOT
from helpers.saver_programs import SHAPES

from ignitetf.settings import Settings

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

_numbers = itertools.count()


@pytest.fixture
def base(address, monkeypatch):
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    path = f"/tools{os.getpid()}-{next(_numbers)}"
    yield f"igfs://{address}{path}"
    fs = fsspec.filesystem("igfs", address=address)
    if fs.exists(path):
        fs.rm(path, recursive=True)


@pytest.fixture
def ocp(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytest.importorskip("jax", reason="needs jax")
    return pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint")


@pytest.fixture
def dcp():
    found = pytest.importorskip("torch.distributed.checkpoint", reason="needs torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield found


def tree(jnp):
    return {
        "float": jnp.arange(60, dtype=jnp.float32).reshape(4, 15),
        "half": jnp.full((3, 2), 1.5, jnp.bfloat16),
        "deep": {"ints": jnp.arange(7), "more": [jnp.zeros((2, 3, 4)), jnp.float32(3)]},
        "numpy": np.arange(5.0),
        "bools": np.array([True, False]),
        "number": 3,
        "real": 2.5,
        "text": "żółć",
        "empty": {},
    }


def same(left, right):
    import jax

    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.array_equal(a, b)


def test_orbax_restores_what_it_saved(ocp, base):
    import jax.numpy as jnp

    from ignitetf.fs.orbax import tree_handler

    saved = tree(jnp)
    with ocp.AsyncCheckpointer(tree_handler()) as checkpointer:
        checkpointer.save(f"{base}/1", args=ocp.args.PyTreeSave(saved))
        saved["numpy"][:] = 0  # the trainer goes on
        checkpointer.wait_until_finished()
        found = checkpointer.restore(f"{base}/1", args=ocp.args.PyTreeRestore())
    same(found, tree(jnp))


def test_orbax_keeps_the_newest_steps(ocp, base):
    import jax.numpy as jnp

    from ignitetf.fs.orbax import tree_handler

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(base, options=options, item_handlers=tree_handler()) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.PyTreeSave({"a": jnp.full(9, step)}))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
        metadata = manager.item_metadata(3)
    assert metadata["a"].shape == (9,)
    with ocp.CheckpointManager(base, item_handlers=tree_handler()) as again:
        assert again.latest_step() == 3
        found = again.restore(3, args=ocp.args.PyTreeRestore({"a": jnp.zeros(9, int)}))
    assert found["a"].tolist() == [3] * 9


SHARDED = """
import sys
import jax, numpy as np, orbax.checkpoint as ocp
from ignitetf.fs.orbax import tree_handler

devices, url = np.array(jax.devices()), sys.argv[1]
P, shard = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
whole = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
ways = [
    shard(jax.sharding.Mesh(devices.reshape(2, 2), ("x", "y")), spec)
    for spec in (P("x", "y"), P("y"), P(None, ("x", "y")), P())
]
for number, before in enumerate(ways):
    checkpointer = ocp.Checkpointer(tree_handler())
    saved = {"a": jax.device_put(whole, before)}
    checkpointer.save(f"{url}/{number}", args=ocp.args.PyTreeSave(saved))
    for after in ways:
        args = {"a": ocp.ArrayRestoreArgs(sharding=after)}
        found = checkpointer.restore(
            f"{url}/{number}", args=ocp.args.PyTreeRestore(saved, restore_args=args)
        )["a"]
        assert found.sharding == after and (np.asarray(found) == whole).all()
print(len(devices))
"""


def test_orbax_restores_shards_on_other_shardings(ocp, base):
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", SHARDED, base]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "4\n", done.stderr


def test_a_pulled_checkpoint_is_one_of_plain_orbax(ocp, base, address, tmp_path):
    import jax.numpy as jnp

    from ignitetf.fs.orbax import tree_handler

    ocp.Checkpointer(tree_handler()).save(f"{base}/1", args=ocp.args.PyTreeSave(tree(jnp)))
    fs, path = fsspec.url_to_fs(f"{base}/1")
    fs.get(path, str(tmp_path / "1"), recursive=True)
    plain = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    arguments = ocp.checkpoint_utils.construct_restore_args(tree(jnp))
    found = plain.restore(tmp_path / "1", args=ocp.args.PyTreeRestore(restore_args=arguments))
    same(found, tree(jnp))


def test_orbax_without_the_handler_is_refused_and_writes_no_folder(
    ocp, base, tmp_path, monkeypatch
):
    import ignitetf.fs.orbax  # noqa: F401

    monkeypatch.chdir(tmp_path)
    for way in (True, False):
        plain = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=way))
        with pytest.raises(ValueError, match=r"ignitetf\.fs\.orbax\.tree_handler"):
            plain.save(f"{base}/1", args=ocp.args.PyTreeSave({"a": np.ones(3)}))
    assert list(tmp_path.iterdir()) == []


def test_each_array_has_a_folder_of_its_own(ocp, base, tmp_path):
    """Keys may have slashes, as those of Haiku; nothing is written out of the checkpoint."""
    import jax.numpy as jnp

    from ignitetf.fs.orbax import tree_handler

    saved = {"mlp/~/linear_0": {"w": jnp.ones(3)}, "a.b": np.ones(2), "a": {"c": 1}}
    checkpointer = ocp.Checkpointer(tree_handler())
    checkpointer.save(f"{base}/1", args=ocp.args.PyTreeSave(saved))
    same(checkpointer.restore(f"{base}/1", args=ocp.args.PyTreeRestore()), saved)
    fs, path = fsspec.url_to_fs(base)
    fs.get(f"{path}/1", str(tmp_path / "1"), recursive=True)
    plain = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    arguments = ocp.checkpoint_utils.construct_restore_args(saved)
    same(plain.restore(tmp_path / "1", args=ocp.args.PyTreeRestore(restore_args=arguments)), saved)
    for wrong, message in (
        ({"a.b": np.ones(3), "a": {"b": jnp.ones(2)}}, "two values have the name 'a.b'"),
        ({"..": jnp.ones(2)}, "rename this key"),
        ({"/up": np.ones(2)}, "rename this key"),
        ({"a": {"/../../b": np.ones(2)}}, "rename this key"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpointer.save(f"{base}/2", args=ocp.args.PyTreeSave(wrong))
    assert not [
        name for name in fs.find(path) if not name.startswith((f"{path}/1/", f"{path}/2.orbax"))
    ]


def test_a_path_of_epath_is_in_the_cluster_or_refused(ocp, base):
    from etils import epath

    import ignitetf.fs.etils  # noqa: F401

    folder = epath.Path(base) / "a[1]*"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    assert (
        list(epath.Path(base).glob("*/b.txt")) == list(folder.glob("*.txt")) == [folder / "b.txt"]
    )
    for outside in (folder / "/b.txt", folder.relative_to(folder.parent)):
        with pytest.raises(ValueError, match="is not a path in igfs://"):
            outside.rmtree()


def test_a_step_that_is_removed_meanwhile_is_not_found(ocp, base):
    from ignitetf.fs import orbax

    saved = {f"p{i}": np.ones(3) for i in range(9)}
    checkpointer = ocp.Checkpointer(orbax.tree_handler())
    checkpointer.save(f"{base}/1", args=ocp.args.PyTreeSave(saved))
    fs, path = fsspec.url_to_fs(f"{base}/1")

    class Removing(ocp.RestoreArgs):
        """Removes the step between the reading of its metadata and that of its arrays."""

        def __getattribute__(self, name):
            if name == "restore_type" and fs.exists(path):
                fs.rm(path, recursive=True)
            return super().__getattribute__(name)

    arguments = {name: Removing() for name in saved}
    with pytest.raises(FileNotFoundError):
        checkpointer.restore(
            f"{base}/1", args=ocp.args.PyTreeRestore(saved, restore_args=arguments)
        )


def test_what_orbax_cannot_restore_says_why(ocp, base):
    import jax

    from ignitetf.fs.orbax import tree_handler

    checkpointer = ocp.Checkpointer(tree_handler())
    with pytest.raises(ValueError, match=r"jax\.random\.key_data"):
        checkpointer.save(f"{base}/1", args=ocp.args.PyTreeSave({"k": jax.random.key(1)}))
    with pytest.raises(ValueError, match="cannot be saved"):
        checkpointer.save(f"{base}/2", args=ocp.args.PyTreeSave({"k": np.array([{}])}))
    checkpointer.save(f"{base}/3", args=ocp.args.PyTreeSave({"k": np.ones((2, 3))}))
    fs, path = fsspec.url_to_fs(f"{base}/3")
    fs.pipe(f"{path}/k/0.0", b"short")
    with pytest.raises(ValueError, match="has 5 bytes, the array needs 48"):
        checkpointer.restore(f"{base}/3", args=ocp.args.PyTreeRestore())


def test_dcp_saves_with_its_defaults_and_restores(dcp, base):
    import torch

    state = {"m": {"w": torch.rand(300, 200), "b": torch.rand(7).bfloat16()}, "step": 5}
    for overwritten in (False, True):
        state["step"] = 6 + overwritten
        dcp.save(state, storage_writer=dcp.FsspecWriter(f"{base}/1"))
        found = {"m": {"w": torch.zeros(300, 200), "b": torch.zeros(7).bfloat16()}, "step": 0}
        dcp.load(found, storage_reader=dcp.FsspecReader(f"{base}/1"))
        assert torch.equal(found["m"]["w"], state["m"]["w"])
        assert torch.equal(found["m"]["b"], state["m"]["b"])
        assert found["step"] == state["step"]
    part = {"m": {"w": torch.zeros(300, 200)}}
    dcp.load(part, storage_reader=dcp.FsspecReader(f"{base}/1"))
    assert torch.equal(part["m"]["w"], state["m"]["w"])


def test_dcp_saves_in_the_background_what_was_there_at_the_call(dcp, base):
    import torch

    state = {"w": torch.ones(500, 500)}
    waiting = dcp.async_save(state, storage_writer=dcp.FsspecWriter(f"{base}/1"))
    state["w"].zero_()
    waiting.result()
    found = {"w": torch.zeros(500, 500)}
    dcp.load(found, storage_reader=dcp.FsspecReader(f"{base}/1"))
    assert torch.equal(found["w"], torch.ones(500, 500))


# A saver that is killed at any moment


def restored_by_orbax(base):
    import orbax.checkpoint as ocp

    from ignitetf.fs.orbax import tree_handler

    with ocp.CheckpointManager(base, item_handlers=tree_handler()) as manager:
        step = manager.latest_step()
        return step, manager.restore(step, args=ocp.args.PyTreeRestore())


def restored_by_dcp(base):
    import torch
    import torch.distributed.checkpoint as dcp

    fs, path = fsspec.url_to_fs(base)
    steps = [int(one.rpartition("/")[2]) for one in fs.ls(path, detail=False)]
    complete = [step for step in steps if fs.exists(f"{path}/{step}/.metadata")]
    found = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    dcp.load(found, storage_reader=dcp.FsspecReader(f"{base}/{max(complete)}"))
    for cut in set(steps) - set(complete):
        with pytest.raises(dcp.api.CheckpointException):
            dcp.load(found, storage_reader=dcp.FsspecReader(f"{base}/{cut}"))
    return max(complete), {name: t.numpy() for name, t in found.items()}


def restored_by_tensorflow(base):
    import keras
    import tensorflow as tf

    latest = tf.train.latest_checkpoint(base)
    step = int(latest.rpartition("-")[2])
    found = {name: tf.Variable(tf.zeros(shape)) for name, shape in SHAPES.items()}
    tf.train.Checkpoint(**found).read(latest).expect_partial()
    kernel, bias = keras.models.load_model(f"{base}/model.keras").get_weights()
    assert step - kernel.flat[0] in (0, 1)  # it is written after the checkpoint
    assert (kernel == kernel.flat[0]).all()
    assert (bias == kernel.flat[0]).all()
    return step, {name: v.numpy() for name, v in found.items()}


KILLED = {
    "orbax": (restored_by_orbax, "orbax.checkpoint"),
    "dcp": (restored_by_dcp, "torch"),
    "tensorflow": (restored_by_tensorflow, "tensorflow"),
}


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("tool", KILLED)
def test_a_killed_saver_leaves_the_last_complete_checkpoint(tool, base, address, monkeypatch):
    restored, needed = KILLED[tool]
    pytest.importorskip(needed, reason=f"needs {needed}")
    if tool == "tensorflow":
        needs_native_io()
        from ignitetf.fs import gfile

        gfile.configure(Settings.resolve(address=address))
    program = ROOT / "tests" / "helpers" / "saver_programs.py"
    rng = random.Random(tool)
    process = subprocess.Popen(
        [sys.executable, str(program), tool, base], stdout=subprocess.PIPE, text=True
    )
    try:
        for _ in range(3 + rng.randrange(4)):
            done = int(process.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.2)
    finally:
        process.kill()
        process.wait()
    done = max([done, *map(int, process.stdout.read().split())])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, found = restored(base)
    assert step in (done, done + 1)
    assert all((np.asarray(a) == step).all() for a in found.values())


@pytest.mark.slow
def test_the_page_about_checkpoints_runs(ocp, dcp, base, address, tmp_path):
    needs_native_io()
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address))
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    Page(text.replace("igfs:///runs", base), address, tmp_path).run()
