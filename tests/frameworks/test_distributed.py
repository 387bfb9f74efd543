"""Two workers of TensorFlow or JAX: every row trained once, in equal steps, to equal weights."""

import collections
import importlib.util
import json
import re
from pathlib import Path

import pytest
from helpers.workers import run_workers

from ignitetf import open_rows
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.tables.removal import drop_cache

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("distributed_programs.py")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "distributed"
BATCH = 128


def needs(module, extra):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: pip install 'ignitetf[{extra}]'")


def run(program, address, cache, **environment):
    found = run_workers([PROGRAM, program, address, cache, BATCH], **environment)
    for _, errors in found:
        # TensorFlow would shard what is a shard; Keras would have counted too many steps.
        assert "auto-shard" not in errors.lower() and "ran out of data" not in errors
    return [json.loads(out.splitlines()[-1]) for out, _ in found], found[0][1]


def check_rows(one, other, keys, epochs=1, batch=BATCH):
    """Each key once an epoch, by one worker; as many steps, of as many rows as were meant."""
    counts = collections.Counter(key for step in one["steps"] + other["steps"] for key in step)
    assert counts == dict.fromkeys(keys, epochs)
    assert not {k for s in one["steps"] for k in s} & {k for s in other["steps"] for k in s}
    assert len(one["steps"]) == len(other["steps"])
    # Each worker's last batch is divided, too.
    assert 0 <= len(one["steps"]) - epochs * -(-len(keys) // batch) <= 2 * epochs
    for found in (one, other):
        sizes = [len(step) for step in found["steps"]]
        assert max(sizes) == batch // 2
        assert sum(size != batch // 2 for size in sizes) <= 4 * epochs
    assert one.get("weights") == other.get("weights")


def keys_of(rows):
    return [key for batch in rows.batches() for key in batch["key"].tolist()]


def test_keras_3_repaired(address, mnist_parts):
    (one, other), errors = run("keras_3", address, mnist_parts[0])
    assert errors.count("ignitetf: Keras") == 1 and "is repaired for" in errors
    keys = keys_of(open_rows(mnist_parts[0], address))
    some = keys_of(open_rows(mnist_parts[0], address, where="LABEL < 7"))
    names = [name for name in one if "whole" not in name and name != "predicted"]
    for name in names:
        uneven = name == "fit, uneven"
        wanted, batch = (some, 32) if uneven else (keys, BATCH)
        check_rows(one[name], other[name], wanted, batch=batch)
        assert one[name].get("iterations") in (None, len(one[name]["steps"])), name
    # Here steps are those of one worker with the whole batch, but for the last batch of each.
    rows = open_rows(mnist_parts[0], address, order="global", shuffle=5)
    whole = len(keys) // 2 // BATCH * 2
    steps = zip(one["fit, by key"]["steps"], other["fit, by key"]["steps"], strict=True)
    wanted = [batch["key"].tolist() for batch in rows.batches(BATCH)]
    assert [here + there for here, there in steps][:whole] == wanted[:whole]
    assert one["predicted"] == len(keys)
    # To the last bit.
    fit, loop = one["fit, whole batches"], one["loop, whole batches"]
    assert fit["steps"] == loop["steps"] and fit["weights"] == loop["weights"]
    assert fit["weights"] == other["fit, whole batches"]["weights"]


def test_tf_keras(address, mnist_parts):
    needs("tf_keras", "legacy")
    (one, other), _ = run("legacy", address, mnist_parts[0], TF_USE_LEGACY_KERAS="1")
    check_rows(
        one["fit, unrepaired"],
        other["fit, unrepaired"],
        keys_of(open_rows(mnist_parts[0], address)),
    )
    rows = open_rows(mnist_parts[0], address, where="LABEL < 7")
    check_rows(one["fit, uneven"], other["fit, uneven"], keys_of(rows), batch=32)


def test_keras_3_without_the_repair_says_what_to_do(address, mnist_parts):
    for found in run("unrepaired", address, mnist_parts[0])[0]:
        assert "several workers" in found["error"]
        assert "repair_keras" in found["hint"] and "--keras repair" in found["hint"]


@pytest.fixture(scope="module")
def mnist_by_name(client, mnist_dir):
    """The names that examples read, of fewer rows."""
    names = {"MNIST_TRAIN": ("train", 1_500), "MNIST_TEST": ("test", 200)}
    for name, (split, limit) in names.items():
        source = open_source("mnist", str(mnist_dir), split=split)
        load_dataset(source, name, client=client, partitions=8, limit=limit, if_exists="replace")
    yield
    for name in names:
        drop_cache(client, name)


@pytest.mark.parametrize(
    ("script", "module", "extra", "environment"),
    [
        ("fit.py", "keras", "keras", {}),
        ("fit.py", "jax", "jax", {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}),
        ("loop.py", "tensorflow", "tensorflow-cpu", {}),
        ("legacy.py", "tf_keras", "legacy", {"TF_USE_LEGACY_KERAS": "1"}),
    ],
    ids=["fit", "jax", "loop", "legacy"],
)
def test_examples_run_alone_and_as_two(address, mnist_by_name, script, module, extra, environment):
    needs(module, extra)
    environment = {**environment, "IGNITETF_ADDRESS": address, "EPOCHS": "1"}
    alone = weights_of(run_workers([EXAMPLES / script], 1, **environment))
    two = weights_of(run_workers([EXAMPLES / script], 2, **environment))
    assert len(two) == 2 and len(set(two)) == 1
    assert two[0] == pytest.approx(alone[0], rel=1e-2)


def weights_of(found):
    return [float(re.search(r"weights ([\d.]+)$", out, re.MULTILINE)[1]) for out, _ in found]
