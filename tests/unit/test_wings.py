"""Wings stand on the public interface alone, and nothing that they stand on knows them.

The public interface is what `docs/reference.md` names. A wing is a part of the package that a user
could have written: `bench`, `launch` (with its engines Ray and Kubernetes), `plan`, `sqlalchemy`
(with Superset), the adapter of Harlequin, `ui`.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from test_imports import BELOW, MODULES, TREES, imported_modules, is_private, within

from ignitetf.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[2]

# Each wing, and the other wings that it may import.
WINGS = {
    "ignitetf.bench": (),
    "ignitetf.cli.harlequin": (),
    "ignitetf.launch": (),
    "ignitetf.plan": ("ignitetf.bench",),
    "ignitetf.sqlalchemy": (),
    "ignitetf.ui": (),
}
# What starts the wings: the command line.
STARTERS = ("ignitetf.cli", "ignitetf.__main__")

LISTED = set(re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text("utf-8"), re.M))


def wing_of(module):
    return next((wing for wing in WINGS if within(module, wing)), None)


IN_WINGS = [name for name in BELOW if wing_of(name)]
OTHERS = [
    name
    for name in BELOW
    if not wing_of(name) and not any(within(name, starter) for starter in STARTERS)
]


def imported_names(name):
    """Module and name of each import of the project, also those for type checkers."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom) and within(node.module or "", "ignitetf"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if within(a.name, "ignitetf"))


def is_public(module, name):
    """Whether the reference names what `from module import name` gives, or its whole module."""
    if f"{module}.{name}" in LISTED:
        return True
    found = importlib.import_module(module)
    if name not in getattr(found, "__all__", ()):
        return False
    if module in LISTED:
        return True
    # A package that loads its names lazily: they are listed where they are defined.
    value = getattr(found, name)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}" in LISTED


@pytest.mark.parametrize("name", IN_WINGS)
def test_a_wing_imports_public_names_alone(name):
    wing = wing_of(name)
    allowed = (wing, *WINGS[wing])
    for module, imported in imported_names(name):
        whole = f"{module}.{imported}" if f"{module}.{imported}" in MODULES else module
        if not any(within(whole, other) for other in allowed):
            assert is_public(module, imported), f"{name} imports {module}.{imported}"


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_below_the_wings_imports_them(name):
    assert not {target for target in imported_modules(name) if wing_of(target)}


def object_of(listed):
    module, _, name = (listed, "", "") if listed in MODULES else listed.rpartition(".")
    try:
        found = importlib.import_module(module)
    except MissingExtra as error:
        pytest.skip(str(error))
    return getattr(found, name) if name else found


def has_to_be_documented(value):
    return inspect.isclass(value) or inspect.isroutine(value)


@pytest.mark.parametrize("listed", sorted(LISTED))
def test_what_the_reference_names_is_there_and_documented(listed):
    found = object_of(listed)
    assert not any(is_private(part) for part in listed.split("."))
    names = found.__all__ if listed in MODULES else ()
    for value in (found, *(getattr(found, name) for name in names)):
        assert value.__doc__ or not has_to_be_documented(value), value


def test_every_wing_is_there():
    assert {wing_of(name) for name in IN_WINGS} == set(WINGS)
