"""`ignitetf demo` keeps its checkpoint in `igfs://`, with the native part and without."""

import json
import os
import subprocess
import sys
import time

import pytest
from helpers.needs import needs_native_io

from ignitetf.fs.filesystem import IgniteFileSystem
from ignitetf.tables.catalog import drop_manifest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def files(address, client):
    """The file system of the demo; what the demo made is removed."""
    fs = IgniteFileSystem(address=address, skip_instance_cache=True)
    yield fs
    if fs.exists("/demo"):
        fs.rm("/demo", recursive=True)
    for name in ("DIGITS_TRAIN", "DIGITS_TEST"):
        drop_manifest(client, name)
        client.sql(f'DROP TABLE IF EXISTS "{name}"')


@pytest.mark.parametrize("native", [True, False], ids=["native", "without a compiler"])
def test_it_restores_what_it_saved(files, address, tmp_path, native):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    if native:
        needs_native_io()
    else:
        environment |= {"CC": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    program = "from ignitetf.cli.main import main; main()"
    command = [sys.executable, "-c", program, "demo", "--address", address]
    begin = time.time()
    done = subprocess.run(
        [*command, "-o", "json"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ("copying the checkpoint instead" in done.stderr) is not native
    assert ("hint: " in done.stderr) is not native
    # Our own lines, and none of TensorFlow, absl, oneDNN or Keras.
    own = ("loaded ", "trained ", "restored ", "hint: ")
    told = [line for line in done.stderr.splitlines() if not line.startswith(own)]
    assert all("copying the checkpoint instead" in line for line in told)
    facts = json.loads(done.stdout)
    facts = facts[0] if isinstance(facts, list) else facts
    assert facts["restored_accuracy"] == facts["test_accuracy"] > 0.9
    assert facts["checkpoint"] == "igfs:///demo/digits"
    saved = {name: files.info(f"/demo/digits.{name}") for name in ("index", "data-00000-of-00001")}
    # The weights of both layers, and the two moments of the optimizer for each.
    assert saved["data-00000-of-00001"]["size"] > 3 * 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert all(begin <= facts["mtime"] <= time.time() for facts in saved.values())
