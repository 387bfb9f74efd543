"""The native core: every wheel has it, any C compiler makes it, and pip brings one if need be."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.needs import compiling, needs_compiler
from helpers.paths import ROOT
from helpers.wheels import GENERATED, build, built, call, copied

from ignitetf._core import _native

CORE = ROOT / "ignitetf" / "_core"
HEADER = CORE / "abi3.h"
BUILT = "ignitetf/_core/_native.abi3.so"
# What the sizes and places of the structures, and the constants, are to be the same of.
STRUCTS = {
    "Py_buffer": "buf obj len itemsize readonly ndim format shape strides suboffsets internal",
    "PyMethodDef": "ml_name ml_meth ml_flags ml_doc",
    "PyType_Slot": "slot pfunc",
    "PyType_Spec": "name basicsize itemsize flags slots",
    "PyModuleDef_Slot": "slot value",
    "PyModuleDef_Base": "ob_base m_init m_index m_copy",
    "PyModuleDef": "m_base m_name m_doc m_size m_methods m_slots m_traverse m_clear m_free",
    "PyObject": "ob_refcnt ob_type",
}
CONSTANT = re.compile(r"^#define ((?:METH|PyBUF|Py)_\w+) \d", re.MULTILINE)


def files_of_the_packages():
    found = set()
    places = {"ignitetf": "ignitetf", "cli": "ignitetf/cli", "sql": "ignitetf/sql/files"}
    for folder, place in places.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in GENERATED | {".c", ".h"}:
                found.add(f"{place}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.slow
def test_a_wheel_has_every_file_and_the_core_for_every_python(tmp_path):
    needs_compiler()
    wheel = built("wheel", tmp_path)
    name, version, *tag = wheel.stem.split("-")
    assert tag[:2] == ["cp311", "abi3"]
    assert names_in(wheel) == files_of_the_packages() | {BUILT}
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        facts = archive.read(f"{name}-{version}.dist-info/WHEEL").decode()
    # pip wants compiled files where `platlib` goes, and auditwheel refuses them elsewhere.
    assert "Root-Is-Purelib: false" in facts
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "helpers" / "installed_parts.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(tmp_path / "site" / BUILT), done.stderr


@pytest.mark.slow
def test_a_source_distribution_makes_the_same_wheel(tmp_path):
    needs_compiler()
    sdist = built("sdist", tmp_path, CC="no-such-compiler")  # it takes no compiler
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    wheel = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)
    assert names_in(wheel) == files_of_the_packages() | {BUILT}


@pytest.fixture
def search_path(tmp_path, monkeypatch):
    """An empty folder in which programs are looked for, and no word of a compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


def put(folder, name, says):
    (folder / name).write_text(f"#!/bin/sh\n{says}\n")
    (folder / name).chmod(0o755)


def test_the_first_compiler_that_works_is_taken(search_path, monkeypatch):
    module = compiling()
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert module.compiler() is None
    with pytest.raises(module.CannotCompile, match=r"hint: install one .*pip install 'ziglang"):
        module.command()
    monkeypatch.delitem(sys.modules, "ziglang")
    (search_path / "ziglang").mkdir()
    (search_path / "ziglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(search_path))
    assert module.compiler()[:4] == [sys.executable, "-m", "ziglang", "cc"]
    for name in ("clang", "gcc", "cc"):
        put(search_path, name, "echo there are no headers >&2; exit 1")
        assert module.compiler()[0] == sys.executable
    for name in ("clang", "gcc", "cc"):
        put(search_path, name, "exit 0")
        assert module.compiler() == [name]
    monkeypatch.setenv("CC", "ccache 'my gcc'")
    assert module.compiler() == ["ccache", "my gcc"]


@pytest.mark.parametrize("what", ["wheel", "editable"])
def test_pip_is_asked_for_a_compiler_only_where_there_is_none(search_path, what):
    # Also where a test environment has one.
    ask = f"(sys.modules.update(ziglang=None), backend.get_requires_for_build_{what}())[1]"
    assert "ziglang" in call(ask, ROOT, PATH=str(search_path)).splitlines()[-1]
    assert "ziglang" not in call(ask, ROOT, CC="anything").splitlines()[-1]
    assert "ziglang" not in call("backend.get_requires_for_build_sdist()", ROOT, PATH="")


def test_a_compiler_that_fails_fails_the_build(tmp_path, capfd):
    project = copied(tmp_path / "project")
    with pytest.raises(subprocess.CalledProcessError):
        build("wheel", project, tmp_path, CC="no-such-compiler")
    said = capfd.readouterr().err
    assert "the C compiler does not run" in said and "no-such-compiler" in said
    assert not list(tmp_path.glob("*.whl"))


def test_a_compiler_that_is_a_wheel_makes_the_core(search_path, tmp_path):
    pytest.importorskip("ziglang", reason="pip brings it only where it is needed")
    compiling().build(tmp_path / "_native.abi3.so")
    load = (
        "import importlib.util as u; s = u.spec_from_file_location('ignitetf._core._native', "
        f"{str(tmp_path / '_native.abi3.so')!r}); s.loader.exec_module(u.module_from_spec(s))"
    )
    subprocess.run([sys.executable, "-c", load], check=True)


def test_the_core_has_what_its_stub_says():
    stub = ast.parse((CORE / "_native.pyi").read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    promised = {node.name for node in stub.body if isinstance(node, kinds)}
    assert promised == {name for name in dir(_native) if not name.startswith("_")}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            methods = {each.name for each in node.body} - {"__init__"}
            found = vars(getattr(_native, node.name))
            assert methods == {name for name in found if not name.startswith("_")}


@pytest.fixture
def with_python_h():
    """The words that make a compiler find Python.h."""
    needs_compiler()
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        pytest.skip("Python's headers are not here")
    return ["-DPY_SSIZE_T_CLEAN", "-DPy_LIMITED_API=0x030b0000", f"-I{folder}"]


def test_the_declared_functions_are_those_of_pythons_header(with_python_h, tmp_path):
    """A compiler that reads two declarations of a name finds where they differ."""
    words = [*compiling().compiler(), *with_python_h, f"-I{CORE}", "-c", "-o", tmp_path / "o"]

    def complaint(more):
        source = tmp_path / "both.c"
        source.write_text(f'#include <Python.h>\n#include "abi3.h"\n{more}\n')
        return subprocess.run([*words, source], capture_output=True, text=True, check=False).stderr

    assert not complaint("")
    assert "PyList_New" in complaint("PyObject *PyList_New(int);")  # what this test would see


def test_the_declared_structures_are_those_of_pythons_header(with_python_h, tmp_path):
    said = []
    names = sorted(CONSTANT.findall(HEADER.read_text()))
    assert len(names) > 10
    lines = [f'printf("{name} %lld\\n", (long long)({name}));' for name in names]
    for kind, members in STRUCTS.items():
        lines.append(f'printf("{kind} %zu\\n", sizeof({kind}));')
        lines += [
            f'printf("{kind}.{member} %zu\\n", offsetof({kind}, {member}));'
            for member in members.split()
        ]
    for words in (with_python_h, []):
        include = "Python.h" if words else "abi3.h"
        source = tmp_path / "sizes.c"
        body = "\n".join(lines)
        source.write_text(
            f"#include <stdio.h>\n#include <stddef.h>\n#include <{include}>\n"
            f"int main(void) {{ {body} return 0; }}\n"
        )
        program = tmp_path / "sizes"
        compile_it = [*compiling().compiler(), *words, f"-I{CORE}", "-o", program, source]
        subprocess.run(compile_it, check=True)
        said.append(subprocess.run([program], stdout=subprocess.PIPE, text=True).stdout)
    assert said[0] == said[1] != ""
