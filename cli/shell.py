r"""Execute the lines of `ignitetf query`'s prompt: statements and commands, one after another.

text -> units -> **shell** -> client; rows -> screen, pager or file

A command begins with a backslash and ends with its line, a statement ends with `;`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ignitetf.cli.files import form_of, write_file
from ignitetf.cli.options import Connect
from ignitetf.cli.output import note, unique
from ignitetf.cli.paged import Counted, Paged, ResultPages
from ignitetf.cli.pager import Expanded, display
from ignitetf.errors import ConfigError, ConnectError, IgniteTFError, RequestTimeout
from ignitetf.sql import split
from ignitetf.sql.tokens import first_word, is_query
from ignitetf.tables.names import SqlNames, sql_names, sql_with_suggestions

if TYPE_CHECKING:
    from ignitetf.net.client import Client
    from ignitetf.wire.sql_arrays import Values

__all__ = ["Options", "Shell", "is_complete", "units"]

EXIT_COMMANDS: Final = frozenset(("quit", "exit", "\\q"))
HELP: Final = frozenset(("help", "?", "\\?"))
_CHANGES_NAMES: Final = frozenset(("CREATE", "DROP", "ALTER"))
_NAMES_S: Final = 3.0  # seconds that names are cached
_FIRST_ROWS: Final = 1000


@dataclass
class Options:
    r"""Values that `\set` and the short commands change.

    Attributes:
        timeout: Limit for a statement in seconds; None for none.
        timing: True if the time of a statement is shown.
        expanded: True if a row is a block of lines.
        pager: True if long results go to a pager.
    """

    timeout: float | None = None
    timing: bool = True
    expanded: Expanded = "auto"
    pager: bool = True


def is_complete(text: str) -> bool:
    """True if Enter runs the text: it is empty, a command, or ends with `;` outside quotes."""
    bare = text.strip()
    if not bare or bare.startswith("\\") or bare.rstrip("; ").lower() in EXIT_COMMANDS | HELP:
        return True
    # If the last statement is still open, the marker becomes part of it and adds no statement.
    return len(list(split(f"{text}\nx"))) > len(list(split(text)))


def units(text: str) -> Iterator[tuple[int, str]]:
    """Split a text into commands, which are lines, and statements, without their semicolons.

    Yields:
        The number of the line on which it begins, and its text.
    """
    pending, begin = "", 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not pending.strip() and (line.lstrip().startswith("\\") or _is_word(line)):
            yield number, line.strip()
            continue
        if not pending.strip() or (
            pending.lstrip().startswith("--") and "\n" not in pending.strip()
        ):
            begin = number
        pending += line
        if ";" in line and is_complete(pending):
            yield from ((begin, one) for one in split(pending))
            pending = ""
    yield from ((begin, one) for one in split(pending))


def _is_word(line: str) -> bool:
    return line.strip().rstrip("; ").lower() in EXIT_COMMANDS | HELP


class Shell:
    """Runs the input of the user, over a connection that is opened again if it is lost.

    Attributes:
        options: Settings changed by the user.
        last: The last statement, for the editor.
        proposed: Text for the next prompt, from an editor.
        target: File that the rows of the next query go to; None for the screen.
    """

    def __init__(self, connect: Connect, timeout_s: float | None = None) -> None:
        """Connect."""
        self.options = Options(timeout=timeout_s)
        self.last = ""
        self.proposed = ""
        self.target: Path | None = None
        self._written = False  # whether the target already has rows
        self._connect = connect
        self._client: Client | None = connect()
        self._names = SqlNames()
        self._names_at = -_NAMES_S

    @property
    def client(self) -> Client:
        """The connection, opened again after it was lost."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def names(self) -> SqlNames:
        """Return the cached names of tables and columns."""
        if time.monotonic() - self._names_at >= _NAMES_S:
            try:
                self._names = sql_names(self.client)
            except IgniteTFError:  # a server without these views still answers queries
                return self._names
            self._names_at = time.monotonic()
        return self._names

    def handle(self, text: str) -> bool:
        """Run commands and statements, and print errors; return False if the user quits."""
        try:
            return self.run(text)
        except KeyboardInterrupt:
            note("interrupted")
            # The node ends a statement whose connection was closed.
            self.close()
        except IgniteTFError as error:
            note(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
            if isinstance(error, (ConnectError, RequestTimeout)):
                self.close()
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            note(f"error: {where}{error.strerror or error}")
        return True

    def run(self, text: str, file: str = "") -> bool:
        """Run commands and statements up to the first error, which is raised.

        Args:
            text: The text.
            file: The file that has the text; its errors name file and line.
        """
        for number, one in units(text):
            try:
                if not self._run_one(one):
                    return False
            except IgniteTFError as error:
                if not file:
                    raise
                raise error.at(f"{file}, line {number}") from error
        return True

    def _run_one(self, one: str) -> bool:
        from ignitetf.cli.shell_commands import run_command

        word = one.rstrip("; ").lower()
        if word in EXIT_COMMANDS:
            return False
        if one.startswith("\\") or word in HELP:
            return run_command(self, one if one.startswith("\\") else "\\?")
        self._statement(one)
        return True

    def write_to(self, target: Path | None) -> None:
        """Send the rows of the next queries to a file, which is replaced, or to the screen."""
        self.target, self._written = target, False

    def show(self, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
        """Show what a command found."""
        found = [[row.get(name) for name in columns] for row in rows]
        display(columns, found, expanded=self.options.expanded, paged=self.options.pager)
        note(_counted(len(found)))

    def _statement(self, text: str) -> None:
        self.last = text
        target = self.target if is_query(text) else None
        if target is not None and form_of(target) != "table" and self._written:
            raise ConfigError(
                f"{target} holds the rows of one query",
                hint="\\o FILE names another file, \\o alone means the screen",
            )
        begin = time.perf_counter()
        with waiting("running"):
            result = sql_with_suggestions(
                self.client, text, timeout_s=self.options.timeout, whole=target is not None
            )
        seconds = time.perf_counter() - begin
        with result:
            if result.update_count is None:
                pages = ResultPages(result, whole=target is not None)
                summary, more = self._rows(pages, target)
                seconds += more
            elif first_word(text) in _CHANGES_NAMES:
                summary, self._names_at = "done", -_NAMES_S
            else:
                summary = f"{_counted(result.update_count)} changed"
        note(f"{summary}, {seconds:.3f} s" if self.options.timing else summary)

    def _rows(self, result: Paged, target: Path | None) -> tuple[str, float]:
        """Show or write the rows; return their number and the seconds they took."""
        timed = _Timed(result)
        rows = Counted(timed)
        if target is not None and form_of(target) != "table":
            write_file(rows, target, form_of(target))
            self._written = True
            return f"{_counted(rows.count)} in {target}", timed.seconds
        names, source = unique(rows.columns), iter(rows)
        if target is not None:
            self._append(names, source, target)
            return f"{_counted(rows.count)} in {target}", timed.seconds
        with waiting("reading"):
            first = list(islice(source, _FIRST_ROWS))
        everything = chain(first, source)
        display(names, everything, expanded=self.options.expanded, paged=self.options.pager)
        count = rows.count
        left = next(everything, None) is not None
        return f"the first {_counted(count)}" if left else _counted(count), timed.seconds

    def _append(self, names: list[str], rows: Iterator[Any], target: Path) -> None:
        from ignitetf.cli.tables import block_lines, table_lines

        lines = block_lines if self.options.expanded == "on" else table_lines
        with target.open("a" if self._written else "w", encoding="utf-8") as file:
            self._written = True
            file.writelines(f"{line}\n" for line in lines(names, rows, None))


class _Timed(Paged):
    """Pages of rows, with the seconds it took to receive them."""

    def __init__(self, pages: Paged) -> None:
        self.columns = pages.columns
        self.seconds = 0.0
        self._pages = pages

    def pages(self) -> Iterator[list[Values]]:
        source = self._pages.pages()
        while True:
            begin = time.perf_counter()
            page = next(source, None)
            self.seconds += time.perf_counter() - begin
            if page is None:
                return
            yield page


def _counted(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


# Show the elapsed time on the terminal during long work

_AFTER_S: Final = 1.0
_REFRESH_S: Final = 0.5


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show the elapsed seconds on stderr, and remove them at the end of the block.

    Nothing is shown unless stderr is a terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(label, ended), daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _show(label: str, ended: threading.Event) -> None:
    begin = time.monotonic()
    if ended.wait(_AFTER_S):
        return
    while True:
        sys.stderr.write(f"\r{label}, {time.monotonic() - begin:.0f} s (Ctrl-C ends it)")
        sys.stderr.flush()
        if ended.wait(_REFRESH_S):
            break
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
