"""Lists of commands show each description in full on a terminal of 80 columns."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ignitetf.cli.main import app


def groups(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each group of commands; the program itself has an empty one."""
    if hasattr(command, "list_commands"):
        yield path
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from groups(command.get_command(context, name), (*path, name))


@pytest.mark.parametrize("path", list(groups(typer.main.get_command(app))), ids=" ".join)
def test_no_list_of_commands_cuts_a_description(path):
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=80).output
    listed = shown.partition("Commands:")[2]
    rows = re.findall(r"^  (\S+) {2,}(\S.*)$", listed, re.MULTILINE)
    assert rows
    assert [row for row in rows if not row[1].endswith(".") or row[1].endswith("...")] == []
