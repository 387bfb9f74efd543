"""Without what an extra brings, a public name is there or says which extra to install."""

import subprocess
import sys
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from test_imports import MODULES
from test_wings import LISTED

# Packages by the names under which they are imported, where these differ.
_IMPORTED = {
    "orbax-checkpoint": "orbax",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "tensorflow-cpu": "tensorflow",
}
_NOT_OF_USERS = {"all", "dev", "docs", "test"}

_PROGRAM = """
import importlib, sys
from importlib.metadata import distribution

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked, names = (argument.split(",") for argument in sys.argv[1:])
sys.meta_path.insert(0, Blocker())
from ignitetf.errors import MissingExtra

extras = set(distribution("ignitetf").metadata.get_all("Provides-Extra"))
for name in names:
    module, _, inner = name.rpartition(":")
    try:
        found = importlib.import_module(module)
        if inner:
            getattr(found, inner)
    except MissingExtra as error:
        hint = error.hint or ""
        if hint.partition("ignitetf[")[2].partition("]")[0] not in extras:
            print(f"{name}: {error}, hint: {hint}")
    except ImportError as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def brought_by_extras():
    """The modules that extras bring and a plain installation does not."""
    requirements = [Requirement(line) for line in distribution("ignitetf").requires]
    plain = {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}
    extras = distribution("ignitetf").metadata.get_all("Provides-Extra")
    brought = {
        requirement.name
        for extra in set(extras) - _NOT_OF_USERS
        for requirement in requirements
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    }
    return {_IMPORTED.get(name, name) for name in brought - plain - {"ignitetf"}}


def place_of(listed):
    """MODULE:NAME, of what the reference calls MODULE or MODULE.NAME."""
    module, _, name = (listed, "", "") if listed in MODULES else listed.rpartition(".")
    return f"{module}:{name}"


def test_a_public_name_is_there_or_says_which_extra_to_install():
    import ignitetf
    from ignitetf import train

    blocked = brought_by_extras()
    assert {"tensorflow", "pyarrow", "torch"} <= blocked
    names = [
        *map(place_of, sorted(LISTED)),
        *(f"ignitetf:{name}" for name in ignitetf.__all__),
        *(f"ignitetf.train:{name}" for name in train.__all__),
        "ignitetf.sqlalchemy:",
    ]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, ",".join(blocked), ",".join(names)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stderr)
    assert not done.stdout
