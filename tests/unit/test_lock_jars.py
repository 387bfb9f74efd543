"""`tools/lock_jars.py` writes the lock file that is committed, and notices an exchanged jar."""

import dataclasses
import hashlib
import importlib.util

import pytest
from helpers.paths import ROOT

from ignitetf.node.jars import read_lock


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("lock_jars", ROOT / "tools" / "lock_jars.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_file_is_what_the_script_writes(script):
    locked = read_lock()
    assert [jar.coord for jar in locked] == list(script.COORDINATES)
    assert script.LOCK.read_text(encoding="utf-8") == script.text_of(locked)


def test_an_entry_has_path_size_and_hash(script):
    paths = {jar.coord: jar.path for jar in read_lock()}
    for coordinates in script.COORDINATES:
        jar = script.artifact(coordinates, str.encode)
        path = paths[coordinates]
        assert (jar.path, jar.size) == (path, len(path))
        assert jar.sha256 == hashlib.sha256(path.encode()).hexdigest()


def test_an_exchanged_jar_is_refused(script):
    locked = read_lock()
    script.check_same(locked, locked)
    script.check_same(locked, [])  # another version of Ignite has other coordinates
    exchanged = [dataclasses.replace(locked[0], sha256="0" * 64), *locked[1:]]
    with pytest.raises(ValueError, match=locked[0].coord):
        script.check_same(exchanged, locked)
