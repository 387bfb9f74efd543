"""Prints docs/commands.md, the reference of all commands, from the program itself.

python tools/commands_page.py > docs/commands.md
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import typer
import typer.main

from ignitetf.cli.main import app

HEAD = """# Commands

For people who look a command up. This page is made from the program (`python tools/commands_page.py`);
`ignitetf COMMAND --help` prints the same.

The exit code is 0 on success, 1 for an error, 2 for a wrong command line, and 128 plus the number of
the signal that ended the program.
"""


def commands(group: Any, parent: typer.Context) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something, with its full name."""
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        with typer.Context(command, info_name=name, parent=parent) as context:
            if hasattr(command, "list_commands"):
                yield from commands(command, context)
            else:
                yield context.command_path, command


def options_of(path: str, command: Any) -> list[tuple[str, str]]:
    """Return the options and arguments of a command, each with its help."""
    context = typer.Context(command, info_name=path)
    return [
        record
        for each in command.get_params(context)
        if "--help" not in each.opts and (record := each.get_help_record(context)) is not None
    ]


def table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return options as the lines of a table; none without options."""
    lines = [f"| `{cell(names)}` | {cell(about)} |" for names, about in rows]
    return ["| option | |", "| --- | --- |", *lines, ""] if lines else []


def section(path: str, command: Any, common: Collection[tuple[str, str]]) -> str:
    """Return what the page has of a command: usage, help, and the options that are not common."""
    words = " ".join(command.collect_usage_pieces(typer.Context(command, info_name=path)))
    text = inspect.cleandoc(command.help or "").split("\f")[0].replace("\b\n", "")
    lines = [f"## {path.removeprefix('ignitetf ')}", "```", f"{path} {words}", "```", text, ""]
    return "\n".join(
        [*lines, *table(row for row in options_of(path, command) if row not in common)]
    )


def cell(text: str) -> str:
    """Return text that stands in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    """Return the whole page; options of more than half of the commands are at its beginning."""
    root = typer.main.get_command(app)
    with typer.Context(root, info_name="ignitetf") as context:
        found = list(commands(root, context))
    times = Counter(row for each in found for row in options_of(*each))
    common = [row for row, count in times.items() if 2 * count > len(found)]
    parts = [HEAD, "## Options of most commands", *table(common)]
    parts += [section(*each, common) for each in found]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
