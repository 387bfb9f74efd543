"""Every option that a message of a load names is an option of its command."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer
from helpers.command_tree import leaves

import ignitetf
from ignitetf.cli.main import app
from ignitetf.load.kinds import KINDS

LOAD = Path(ignitetf.__file__).parent / "load"
MODULES = {path.relative_to(LOAD.parent.parent): path for path in sorted(LOAD.rglob("*.py"))}
# Options of another program.
OTHERS = re.compile(r"\btar(?: --?[\w=-]+)+")


@cache
def tree(path):
    return ast.parse(MODULES[path].read_text())


@cache
def commands():
    """The options of each command."""
    return {
        " ".join(path): {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        for path, command in leaves(typer.main.get_command(app))
    }


def named(text):
    """The options that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", OTHERS.sub("", text)))


def name_of(path):
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def reached(module):
    """A module and the modules of `load` that it imports, directly or not."""
    found, left = set(), [module]
    while left:
        one = left.pop()
        path = Path(*one.split("."))
        known = next(
            (p for p in (path.with_suffix(".py"), path / "__init__.py") if p in MODULES), 0
        )
        if not known or one in found:
            continue
        found.add(one)
        left += [
            node.module
            for node in ast.walk(tree(known))
            if isinstance(node, ast.ImportFrom) and node.module
        ]
    return found


def messages(path):
    """The texts in a module that are not docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_messages_name_options_of_the_commands_that_give_them(path):
    """A module that opens one kind names its options, a shared one those of a kind that uses it."""
    module = name_of(path)
    opened = {kind: f"ignitetf.load.sources.{found.module}" for kind, found in KINDS.items()}
    kinds = [kind for kind, opens in opened.items() if opens == module and KINDS[kind].help]
    kinds = kinds or [kind for kind, opens in opened.items() if module in reached(opens)]
    able = [f"load {kind}" for kind in kinds if KINDS[kind].help] or list(commands())
    known = set().union(*(commands()[command] for command in able))
    for line, text in messages(path):
        assert named(text) <= known, f"{path}:{line}: {text}"


def test_the_test_sees_options():
    assert named("tar -h --sort=name, or --bad-records skip") == {"--bad-records"}
    assert "--null" in commands()["load csv"] and "--null" not in commands()["load parquet"]
    assert "ignitetf.load.sources.tabular" in reached("ignitetf.load.sources.ipc")
