"""Keras on each of its backends: `PyDataset` in `fit`, with threads and processes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node
if importlib.util.find_spec("keras") is None:
    pytest.skip("needs Keras: pip install 'ignitetf[keras]'", allow_module_level=True)

BACKENDS = ("jax", "torch", "tensorflow")
PROGRAM = Path(__file__).with_name("keras_programs.py")


def run(backend, *words):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_mnist(address, mnist_parts, backend):
    found = run(backend, "fit", *mnist_parts, address)
    assert found["tensorflow"] == (backend == "tensorflow")
    for trained in found["runs"]:
        assert trained["accuracy"][-1] > 0.85
        assert trained["loss"][0] > trained["loss"][-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_are_those_of_open_rows(address, typed_rows, backend):
    assert run(backend, "by_number", typed_rows, address) == "done"


def test_a_backend_that_is_not_installed_is_named():
    code = "import sys; sys.modules['tensorflow'] = sys.modules['jax'] = None; import ignitetf.train.pydataset"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert "MissingExtra" in done.stderr and "KERAS_BACKEND" in done.stderr
