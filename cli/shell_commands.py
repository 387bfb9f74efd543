r"""The commands of the prompt, which begin with a backslash.

shell -> **shell_commands** -> shell
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ignitetf.cli.output import note, terminal_width
from ignitetf.cli.pager import Expanded
from ignitetf.cli.tables import record_lines
from ignitetf.errors import ConfigError
from ignitetf.spelling import did_you_mean

if TYPE_CHECKING:
    from ignitetf.cli.shell import Shell

__all__ = ["COMMANDS", "SETTINGS", "run_command"]

SETTINGS: Final = ("timeout", "timing", "expanded", "pager")
_TABLES: Final = ("schema", "table", "cache", "rows")
_FIELDS: Final = ("name", "type", "key", "nullable", "affinity")
_INDEXES: Final = ("schema", "table", "index", "columns", "unique")
_DEPTH: Final = 16  # files included by files
_reading: list[Path] = []


def run_command(shell: Shell, text: str) -> bool:
    """Run a command; returns False if it leaves the prompt.

    Raises:
        ConfigError: The command does not exist, or does not take this argument.
    """
    name, _, argument = text.partition(" ")
    found = COMMANDS.get(name.lower().rstrip(";"))
    if found is None:
        near = did_you_mean(name, COMMANDS, count=3)
        hint = f"{near} " if near else ""
        hint += "\\d lists the tables, \\d NAME the columns, \\? the commands"
        raise ConfigError(f"no command {name}", hint=hint)
    run, _ = found
    return run(shell, argument.strip().rstrip(";").strip()) is not False


def _tables(shell: Shell, pattern: str) -> None:
    from ignitetf.tables.describe import list_tables

    rows = list_tables(shell.client)
    if pattern:
        rows = [row for row in rows if fnmatch.fnmatchcase(row["table"].upper(), pattern.upper())]
    shell.show(rows, _TABLES)


def _describe(shell: Shell, name: str) -> None:
    from ignitetf.tables.describe import describe_table

    if not name:
        _tables(shell, "")
        return
    shell.show(describe_table(shell.client, name)["fields"], _FIELDS)


def _indexes(shell: Shell, name: str) -> None:
    from ignitetf.sql import statement
    from ignitetf.tables.describe import find_table

    rows = [
        dict(zip(_INDEXES, row, strict=True)) for row in shell.client.sql(statement("all_indexes"))
    ]
    if name:
        table = find_table(shell.client, name)
        wanted = (table["schema"], table["base_table"])
        rows = [row for row in rows if (row["schema"], row["table"]) == wanted]
    shell.show(rows, _INDEXES)


def _output(shell: Shell, file: str) -> None:
    shell.write_to(Path(file).expanduser() if file else None)
    note(f"rows go to {file}" if file else "rows go to the screen")


def _input(shell: Shell, file: str) -> bool:
    if not file:
        raise ConfigError("\\i needs a file", hint="\\i FILE runs its statements and commands")
    path = Path(file).expanduser()
    if len(_reading) >= _DEPTH:
        raise ConfigError(
            f"{path}: {_DEPTH} files include each other", hint="does it include itself?"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text") from error
    _reading.append(path)
    try:
        return shell.run(text, str(path))
    finally:
        _reading.pop()


def _edit(shell: Shell, file: str) -> None:
    """Edit a file or the last statement; the edited text is the next text of the prompt."""
    if file:
        _run_editor(Path(file).expanduser())
        shell.proposed = Path(file).expanduser().read_text(encoding="utf-8-sig").strip()
        return
    with tempfile.TemporaryDirectory(prefix="ignitetf-") as folder:
        path = Path(folder) / "statement.sql"
        path.write_text(f"{shell.last};\n" if shell.last else "", encoding="utf-8")
        _run_editor(path)
        shell.proposed = path.read_text(encoding="utf-8-sig").strip()


def _run_editor(path: Path) -> None:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(chosen), str(path)], check=False)
    except OSError as error:
        raise ConfigError(
            f"cannot start the editor {chosen!r}: {error.strerror}", hint="set EDITOR to another"
        ) from error
    if done.returncode:
        raise ConfigError(f"the editor {chosen!r} ended with exit code {done.returncode}")


def _timing(shell: Shell, value: str) -> None:
    _set(shell, f"timing {value or _other(shell.options.timing)}")


def _expanded(shell: Shell, value: str) -> None:
    _set(shell, f"expanded {value or _other(shell.options.expanded == 'on')}")


def _other(now: bool) -> str:
    return "off" if now else "on"


def _set(shell: Shell, text: str) -> None:
    name, _, value = text.partition(" ")
    value = value.strip().lower()
    if name:
        _check_setting(name)
    if value:
        if name == "timeout":
            shell.options.timeout = _seconds(value)
        elif name == "expanded":
            shell.options.expanded = cast(Expanded, _one_of(name, value, ("auto", "on", "off")))
        else:
            setattr(shell.options, name, _one_of(name, value, ("on", "off")) == "on")
    for each in (name,) if name else SETTINGS:
        note(f"{each} {_setting_text(getattr(shell.options, each))}")


def _check_setting(name: str) -> None:
    if name not in SETTINGS:
        hint = did_you_mean(name, SETTINGS, ", ".join(SETTINGS), count=3, form=str.lower)
        raise ConfigError(f"no setting {name!r}", hint=hint)


def _seconds(value: str) -> float | None:
    if value in ("off", "none", "0"):
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        raise ConfigError(
            f"timeout {value}: not a number of seconds", hint="\\set timeout 60, or off"
        )
    return seconds


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name} {value}: expected {' or '.join(allowed)}")
    return value


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g} s"
    return "off" if value is None else str(value)


def _help(shell: Shell, _: str) -> None:
    lines = [("statement ;", "run it; it may have many lines")]
    lines += [(usage, line) for _, (_, (usage, line)) in COMMANDS.items() if usage]
    lines += [
        ("TAB", "complete the word"),
        ("Ctrl-C", "drop the line, or end the statement that runs"),
        ("Ctrl-X Ctrl-E", "edit what is typed"),
    ]
    note("\n".join(record_lines(dict(lines), terminal_width(sys.stderr))))


def _leave(shell: Shell, _: str) -> bool:
    return False


_Command = tuple[Callable[["Shell", str], "bool | None"], tuple[str, str]]
COMMANDS: Final[dict[str, _Command]] = {
    "\\d": (_describe, ("\\d [NAME]", "list the tables, or the columns of one")),
    "\\dt": (_tables, ("\\dt [PATTERN]", "list the tables")),
    "\\di": (_indexes, ("\\di [NAME]", "list the indexes, or those of a table")),
    "\\x": (_expanded, ("\\x [on|off|auto]", "a row as a block of lines")),
    "\\timing": (_timing, ("\\timing [on|off]", "the time of each statement")),
    "\\o": (
        _output,
        (
            "\\o [FILE]",
            "rows to .csv, .json, .jsonl, .parquet, .arrow, otherwise a table; or the screen",
        ),
    ),
    "\\i": (_input, ("\\i FILE", "run the statements and commands of a file")),
    "\\e": (_edit, ("\\e [FILE]", "edit the last statement, or a file")),
    "\\set": (_set, ("\\set [NAME VALUE]", "timeout SECONDS|off, timing, expanded, pager")),
    "\\?": (_help, ("\\?, help", "this list")),
    "\\q": (_leave, ("\\q, quit, exit", "leave; Ctrl-D does too")),
}
