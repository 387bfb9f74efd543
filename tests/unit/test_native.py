"""Where the parts in C come from, and that what is built has them and all else."""

import ctypes
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.needs import without_native
from helpers.paths import ROOT
from helpers.wheels import GENERATED, build, built

from ignitetf import native

SOURCES = [ROOT / "ignitetf" / part for part in native.PARTS]


def needs_compiler():
    try:
        native.compiler()
    except native.NotBuilt as error:
        without_native(str(error))


def files_of_the_packages():
    found = set()
    places = {"ignitetf": "ignitetf", "cli": "ignitetf/cli", "sql": "ignitetf/sql/files"}
    for folder, place in places.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in GENERATED:
                found.add(f"{place}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def test_every_c_file_is_a_part():
    core = (ROOT / "ignitetf" / "_core").glob("*.c")
    assert sorted((ROOT / "ignitetf").rglob("*.c")) == sorted([*SOURCES, *core])


def test_a_wheel_has_every_file_and_the_parts_of_its_machine(tmp_path):
    needs_compiler()
    wheel = built("wheel", tmp_path)
    name, version, *tag = wheel.stem.split("-")
    assert tag[:2] == ["py3", "none"]
    assert platform.machine().lower() in tag[2]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        facts = archive.read(f"{name}-{version}.dist-info/WHEEL").decode()
    # pip wants compiled files where `platlib` goes, and auditwheel refuses them elsewhere.
    assert "Root-Is-Purelib: false" in facts
    parts = {Path("ignitetf", part).with_suffix(".so").as_posix() for part in native.PARTS}
    core = {n for n in names if n.startswith("ignitetf/_core/_native.") and n.endswith(".so")}
    assert len(core) == 1 and names == files_of_the_packages() | parts | core
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "helpers" / "installed_parts.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    found = done.stdout.split()
    assert {Path(p).relative_to(tmp_path / "site").as_posix() for p in found} == parts, done.stderr


def test_without_a_compiler_wheel_and_sdist_are_of_every_machine(tmp_path):
    sdist = built("sdist", tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    wheel = build("wheel", source, tmp_path, CC="no-such-compiler")
    assert wheel.stem.endswith("-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert names == files_of_the_packages()


@pytest.fixture
def search_path(tmp_path, monkeypatch):
    """An empty folder in which programs are looked for, and no word of a compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="no parts in C are for Windows")
def test_the_order_of_compilers(search_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(native.NotBuilt) as caught:
        native.compiler()
    assert "ignitetf[native]" in caught.value.hint
    monkeypatch.delitem(sys.modules, "ziglang")
    package = search_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(search_path))
    assert native.compiler()[:4] == [sys.executable, "-m", "ziglang", "cc"]
    for name in ("clang", "gcc", "cc"):
        (search_path / name).touch(mode=0o755)
        assert native.compiler() == [name]
    monkeypatch.setenv("CC", "ccache 'my gcc'")
    assert native.compiler() == ["ccache", "my gcc"]


def test_a_compiler_that_is_a_wheel_builds_every_part(search_path, monkeypatch, tmp_path):
    pytest.importorskip("ziglang", reason="the extra `native` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for source in SOURCES:
        native.build(source, tmp_path / source.with_suffix(".so").name)
        ctypes.CDLL(str(tmp_path / source.with_suffix(".so").name))
