"""Build wheels and source distributions of the project as `pip` does."""

import os
import subprocess
import sys

from helpers.paths import ROOT

FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "ignitetf", "cli", "sql")
GENERATED = {".pyc", ".so"}


def copied(folder):
    """Copy the package's sources to `folder`, without anything that was built there."""
    for name in FILES:
        for path in [ROOT / name, *(ROOT / name).rglob("*")]:
            if path.is_file() and path.suffix not in GENERATED:
                target = folder / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    return folder


def built(what, folder, **environment):
    """Build a wheel or sdist from a fresh copy of the project."""
    return build(what, copied(folder / "project"), folder, **environment)


def build(what, project, folder, **environment):
    program = f"from setuptools import build_meta; print(build_meta.build_{what}({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return folder / done.stdout.splitlines()[-1]
