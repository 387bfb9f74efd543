"""Build wheels and source distributions of the project as `pip` does."""

import os
import subprocess
import sys

from helpers.paths import ROOT

FILES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE",
    "_build", "ignitetf", "cli", "sql",
)  # fmt: skip
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
    """Build a wheel, an sdist or an editable installation; the path of the file."""
    done = call(f"backend.build_{what}({str(folder)!r})", project, **environment)
    return folder / done.splitlines()[-1]


def call(expression, project, **environment):
    """What is printed where a project's backend does something."""
    program = f"import sys; sys.path.insert(0, '_build'); import backend; print({expression})"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
