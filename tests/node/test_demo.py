"""`ignitetf demo`: on nodes of its own it loses one, on a cluster that is there it does not."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from helpers.needs import needs_native_io
from helpers.ports import lasting_port

from ignitetf.explore.preview import contact_sheet
from ignitetf.fs.filesystem import IgniteFileSystem
from ignitetf.node.embedded import stop_node
from ignitetf.tables.catalog import drop_manifest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(240)]


# A system for which there is no plugin.
OTHER_SYSTEM = """
import types, ignitetf.fs.handles
ignitetf.fs.handles.sys = types.SimpleNamespace(platform="darwin")
"""


def demo(folder, *arguments, first="", **environment):
    """Run the command; return its facts and what it said."""
    program = f"{first}\nfrom ignitetf.cli.main import main; main()"
    own = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", *map(str, arguments), "-o", "json"],
        env={**own, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # TensorFlow, absl and oneDNN say nothing about themselves; a reader says what it has lost.
    noise = r"^[IWE]\d{4} |absl|oneDNN|^WARNING(?!:ignitetf)|^warning"
    assert not re.search(noise, done.stderr, re.MULTILINE), done.stderr
    return json.loads(done.stdout), done.stderr


def check_saved(address, facts, begin):
    files = IgniteFileSystem(address=address, skip_instance_cache=True)
    saved = {name: files.info(f"/demo/digits.{name}") for name in ("index", "data-00000-of-00001")}
    # The weights of both layers, and the two moments of the optimizer for each.
    assert saved["data-00000-of-00001"]["size"] > 3 * 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert all(begin <= found["mtime"] <= time.time() for found in saved.values())
    assert facts["restored_accuracy"] == facts["test_accuracy"] > 0.9
    assert facts["checkpoint"] == "igfs:///demo/digits"
    return files


def check_sheet(text, columns):
    """Ten digits with their labels, bright enough to see, in no more columns than there are."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).split("\n")
    assert max(map(len, lines)) <= columns
    labels = " ".join(line for line in lines if "▀" not in line)
    assert labels.split() == list("0123456789")
    assert "[38;2;255;255;255m" in text


def test_it_loses_a_node_of_its_own_and_resumes_to_the_same_weights(node_home, tmp_path):
    needs_native_io()
    begin = time.time()
    none = {"IGNITETF_ADDRESS": "", "IGNITETF_PROFILE": ""}
    try:
        facts, said = demo(tmp_path, "--port", lasting_port(2), **none)
        assert facts["killed"] == 1 and facts["resumed_equal"] is True
        assert "the training continues" in said and "started the killed node again" in said
        # No terminal, so no images.
        assert "\x1b" not in said and "▀" not in said
        files = check_saved(facts["address"].split(",")[0], facts, begin)
        assert files.ls("/demo/logs")
    finally:
        stop_node("default")


def test_where_tensorflow_takes_no_igfs_it_copies_the_checkpoint(client, address, tmp_path):
    begin = time.time()
    try:
        facts, said = demo(tmp_path, "--address", address, first=OTHER_SYSTEM)
        assert "copying the checkpoint instead" in said and "hint: " in said
        assert facts["killed"] == 0 and facts["resumed_equal"] is None
        check_saved(address, facts, begin).rm("/demo", recursive=True)
        check_sheet(contact_sheet(client, "DIGITS_TEST", count=10).text(60), 60)
    finally:
        for name in ("DIGITS_TRAIN", "DIGITS_TEST"):
            drop_manifest(client, name)
            client.sql(f'DROP TABLE IF EXISTS "{name}"')
