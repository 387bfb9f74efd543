"""The code is clean for ruff, for mypy in strict mode, and for bandit."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words, cwd=ROOT):
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_bandit_finds_nothing_of_medium_severity():
    run("bandit", "--quiet", "--recursive", "-ll", "ignitetf", "cli", "docker")


def test_bandit_would_find_something(tmp_path):
    (tmp_path / "bad.py").write_text("import pickle\npickle.loads(open(0, 'rb').read())\n")
    with pytest.raises(AssertionError):
        run("bandit", "--quiet", "-ll", str(tmp_path / "bad.py"))


def test_no_two_test_modules_have_one_name():
    # pytest imports them by their base name, and stops at the second.
    names = [path.stem for path in (ROOT / "tests").rglob("*.py")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_mypy_with_the_packages_laid_out_as_installed(tmp_path):
    package = tmp_path / "ignitetf"
    package.mkdir()
    for item in (ROOT / "ignitetf").iterdir():
        (package / item.name).symlink_to(item)
    (package / "cli").symlink_to(ROOT / "cli")
    config = str(ROOT / "pyproject.toml")
    run(
        "mypy",
        "--config-file",
        config,
        "--cache-dir",
        str(tmp_path / "memo"),
        "-p",
        "ignitetf",
        cwd=tmp_path,
    )
