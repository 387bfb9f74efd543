"""The package works from a checkout, an editable installation and a wheel, wherever Python starts.

Each is a copy of the project with a Python of its own that sees the dependencies, and no other
`ignitetf`.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from helpers.needs import needs_compiler
from helpers.paths import ROOT
from helpers.wheels import build, copied

import ignitetf

pytestmark = pytest.mark.slow

PROGRAM = """
import json
from pathlib import Path
from ignitetf import load_dataset
import ignitetf.cli.main, ignitetf.sql
files = [ignitetf.__file__, ignitetf.cli.main.__file__, ignitetf.sql.__file__]
page = Path(ignitetf.__file__).parent / "ui"
kept = sorted(path.name for path in page.glob("*/*") if path.suffix != ".pyc")
print(json.dumps([files, ignitetf.sql.names(), ignitetf.sql.text_of("mnist"), kept]))
"""
PAGE = ROOT / "ignitetf" / "ui"
PAGE_FILES = sorted(path.name for path in PAGE.glob("*/*") if path.suffix != ".pyc")
STATEMENTS = sorted(path.stem for path in (ROOT / "sql").glob("*.sql"))


class Python:
    """An interpreter with the dependencies of the one that runs the tests."""

    def __init__(self, folder):
        venv.create(folder, symlinks=os.name != "nt", with_pip=False)
        paths = {"base": str(folder), "platbase": str(folder)}
        self.site = Path(sysconfig.get_path("purelib", "venv", paths))
        self._program = Path(sysconfig.get_path("scripts", "venv", paths)) / "python"
        # A folder named in a .pth file comes after this one, and its own .pth files do not count.
        dependencies = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        (self.site / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")

    def install(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)

    def run(self, *words, cwd, path="", fails=False):
        """What a program prints, or the last line of its complaint."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [self._program, *words],
            cwd=cwd,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr.splitlines()[-1] if fails else done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which the core was compiled."""
    project = copied(tmp_path_factory.mktemp("checkout") / "project")
    needs_compiler()
    compile_core = [sys.executable, project / "_build" / "compiling.py"]
    subprocess.run(compile_core, check=True)
    return project


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python in which the project is not installed."""
    return Python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module", params=["editable", "wheel"])
def installation(request, checkout, tmp_path_factory):
    """A Python in which the project is installed, and the folder where `ignitetf` is then."""
    folder = tmp_path_factory.mktemp(request.param)
    python = Python(folder / "venv")
    python.install(build(request.param, checkout, folder))
    return python, python.site if request.param == "wheel" else checkout


def check_whole(python, home, **where):
    """Package, commands and statements come from `home`, and the command line runs."""
    files, names, text, page = json.loads(python.run("-c", PROGRAM, **where))
    assert all(Path(file).is_relative_to(home) for file in files), files
    assert names == STATEMENTS
    assert page == PAGE_FILES
    assert text == (ROOT / "sql" / "mnist.sql").read_text(encoding="utf-8")
    said = python.run("-m", "ignitetf", "--version", **where)
    assert said.splitlines()[0] == f"ignitetf {ignitetf.__version__}"


def test_a_checkout_works_from_its_root(bare_python, checkout):
    check_whole(bare_python, checkout, cwd=checkout)


def test_a_checkout_works_from_elsewhere(bare_python, checkout, tmp_path):
    check_whole(bare_python, checkout, cwd=tmp_path, path=checkout)


def test_a_checkout_without_the_core_says_how_to_compile_it(bare_python, tmp_path):
    project = copied(tmp_path / "project")
    complaint = bare_python.run("-c", "import ignitetf.wire.columns", cwd=project, fails=True)
    assert "not compiled; hint: " in complaint and "python _build/compiling.py" in complaint


def test_an_installation_works_from_the_root_of_the_checkout(installation, checkout):
    python, _ = installation
    check_whole(python, checkout, cwd=checkout)


def test_an_installation_works_from_elsewhere(installation, tmp_path):
    python, home = installation
    check_whole(python, home, cwd=tmp_path)


def test_an_installation_has_the_version_of_the_package(installation):
    python, _ = installation
    (facts,) = python.site.glob("ignitetf-*.dist-info")
    assert facts.name == f"ignitetf-{ignitetf.__version__}.dist-info"


def test_a_folder_cli_beside_the_package_is_not_taken_for_its_commands(bare_python, tmp_path):
    # A package folder copied without its commands, among the packages of others.
    shutil.copytree(ROOT / "ignitetf", tmp_path / "ignitetf", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text("raise SystemExit('commands of somebody else')\n")
    complaint = bare_python.run("-c", "import ignitetf.cli.main", cwd=tmp_path, fails=True)
    assert complaint == "ModuleNotFoundError: No module named 'ignitetf.cli'"
