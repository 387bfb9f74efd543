"""Every option that a message or a help text names exists, for the command that it is about."""

import ast
import re

import pytest
import typer
from helpers.command_tree import leaves
from helpers.paths import ROOT

from ignitetf.cli.main import app
from ignitetf.load.kinds import KINDS

pytestmark = pytest.mark.core

SOURCES = ROOT / "ignitetf" / "load" / "sources"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Options of other programs: pip, tar, java, kubectl, TensorBoard, Ignite's control.sh.
OF_OTHERS = {
    "--logdir", "--set-state", "--sort", "--hard-dereference", "--add-opens", "--enable-native-access",
    "--sun-misc-unsafe-memory-access", "--from-file", "--from-literal",
    "--upgrade",
}  # fmt: skip


def options():
    """The options of each command, by its words."""
    root = typer.main.get_command(app)
    found = {(): {name for each in root.params for name in each.opts}}
    for words, command in leaves(root):
        found[words] = {"--help"}.union(
            *(set(each.opts) | set(each.secondary_opts) for each in command.params)
        )
    return found


def texts(path):
    """Texts in a module with their lines, without docstrings."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield node.lineno, node.value


def named(paths, known):
    """Places that name an option that is not among the known ones."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {option}"
        for path in paths
        for line, text in texts(path)
        for option in OPTION.findall(text)
        if option not in known and option not in OF_OTHERS
    ]


def test_every_option_that_a_text_names_exists():
    known = set().union(*options().values())
    paths = [*(ROOT / "ignitetf").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    assert named(sorted(paths), known) == []


def imported(module):
    """The modules of sources that a module needs, itself too."""
    found, todo = set(), [module]
    while todo:
        if (name := todo.pop()) in found or not (SOURCES / f"{name}.py").exists():
            continue
        found.add(name)
        text = (SOURCES / f"{name}.py").read_text()
        todo += re.findall(r"^\s*from ignitetf\.load\.sources\.(\w+) import", text, re.M)
    return found


def test_a_source_names_options_of_its_own_command_alone():
    """A hint of `load voc` does not name an option that only `load images` has."""
    of_command = options()
    users = {}
    for name, kind in KINDS.items():
        for module in imported(kind.module):
            users.setdefault(module, set()).update(of_command.get(("load", name), ()))
    wrong = [
        place
        for path in sorted(SOURCES.glob("*.py"))
        for place in named([path], users.get(path.stem, set()))
    ]
    assert wrong == []


def test_a_wrong_option_would_be_found():
    module = SOURCES / "labels.py"
    assert any(place.endswith(": --types") for place in named([module], {"--rename"}))
