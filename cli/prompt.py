r"""The interactive prompt of `ignitetf query`: history, completion, multi-line statements.

A statement ends with `;`. `\d` lists the tables, `\d NAME` shows one, `\q` quits. Ctrl-C drops the
line, or the running statement; after an error the prompt continues.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignitetf.cli.options import Connect
from ignitetf.cli.output import note, show
from ignitetf.errors import ConnectError, IgniteTFError, MissingExtra, RequestTimeout, SqlError
from ignitetf.home import ignitetf_home
from ignitetf.sql import split, statement

if TYPE_CHECKING:
    from ignitetf.net.client import Client

__all__ = ["completer", "history_file", "is_complete", "run"]

_SECRET = re.compile(r"\bPASSWORD\b", re.IGNORECASE)
_CHANGES_NAMES = re.compile(r"\s*(CREATE|DROP|ALTER)\b", re.IGNORECASE)
_HELP = """\
  statement ;   run it; it may have many lines
  \\d            list the tables
  \\d NAME       columns of a table
  \\q            leave (Ctrl-D does too)"""
_KEYWORDS = [
    "ALTER", "AND", "AS", "ASC", "AVG", "BETWEEN", "BY", "CASE", "CAST", "COUNT", "CREATE", "CROSS",
    "DELETE", "DESC", "DISTINCT", "DROP", "ELSE", "END", "EXISTS", "EXPLAIN", "FROM", "GROUP",
    "HAVING", "IN", "INDEX", "INNER", "INSERT", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT",
    "MAX", "MERGE", "MIN", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER", "PRIMARY", "KEY", "SELECT",
    "SET", "SUM", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "WITH",
]  # fmt: skip


def is_complete(text: str) -> bool:
    """Whether Enter runs the text: it is empty, a command, or ends with `;` outside quotes."""
    bare = text.strip()
    if not bare or bare.startswith("\\"):
        return True
    # If the last statement is still open, the marker becomes part of it and adds no statement.
    return len(list(split(f"{text}\nx"))) > len(list(split(text)))


def history_file() -> Path:
    """Return the path of the history, creating the file so that only its owner can read it."""
    home = ignitetf_home()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / "query_history"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)
    return path


def run(connect: Connect, statement_timeout: float | None = None, **terminal: Any) -> None:
    """Read statements and run them until the user quits.

    Args:
        connect: Opens the client, and opens it again after a lost connection.
        statement_timeout: Limit for a statement in seconds; None for no limit.
        **terminal: `input` and `output` of prompt_toolkit, to use another terminal.
    """
    shell = _Shell(connect, statement_timeout)
    try:
        session = _session(shell, terminal)
        note("End a statement with ';'. \\d lists the tables, \\? shows help, \\q leaves.")
        while True:
            try:
                text = session.prompt()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text.strip() == "\\q":
                return
            shell.handle(text)
    finally:
        shell.close()


class _Shell:
    """Runs what was typed, over a connection that is reopened if it is lost."""

    def __init__(self, connect: Connect, statement_timeout: float | None = None) -> None:
        self._connect = connect
        self._statement_timeout = statement_timeout
        self._client: Client | None = connect()
        self.words: list[str] = []
        self._load_words()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def handle(self, text: str) -> None:
        """Run a command or statements, and print errors."""
        try:
            if text.strip().startswith("\\"):
                self._command(text.strip())
                return
            for one in split(text):
                self._statement(one)
        except KeyboardInterrupt:
            note("interrupted")
            self.close()
        except IgniteTFError as error:
            note(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
            if isinstance(error, (ConnectError, RequestTimeout)):
                self.close()

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _statement(self, text: str) -> None:
        with self.client.sql(text, timeout_s=self._statement_timeout) as result:
            if result.update_count is None:
                show(result)
            else:
                changes = _CHANGES_NAMES.match(text)
                note("done" if changes else f"{result.update_count} rows changed")
        if _CHANGES_NAMES.match(text):
            self._load_words()

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name == "\\d":
            from ignitetf.tables.describe import describe, find_table, list_tables

            if argument.strip():
                table = find_table(self.client, argument.strip().rstrip(";"))
                show(describe(self.client, table["cache"])["fields"])
            else:
                show(list_tables(self.client), columns=["schema", "table", "cache", "rows"])
        else:
            note(_HELP)

    def _load_words(self) -> None:
        try:
            rows = self.client.sql(statement("completion")).fetchall()
        except SqlError:  # a server without these views still answers queries
            rows = []
        names = {name for row in rows for name in row}
        self.words = [*sorted(names), *_KEYWORDS]


def _session(shell: _Shell, terminal: dict[str, Any]) -> Any:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.lexers import PygmentsLexer
        from pygments.lexers.sql import SqlLexer
    except ImportError as error:
        raise MissingExtra(
            "the interactive prompt needs prompt_toolkit and pygments",
            hint="pip install 'ignitetf[query]', or give the statement as an argument",
        ) from error

    class History(FileHistory):
        """The history of statements, without those that contain a password."""

        def store_string(self, string: str) -> None:
            """Append a statement to the file."""
            if not _SECRET.search(string):
                super().store_string(string)

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return PromptSession(
        "ignite> ",
        multiline=True,
        prompt_continuation="   ...> ",
        key_bindings=keys,
        lexer=PygmentsLexer(SqlLexer),
        history=History(str(history_file())),
        completer=completer(shell),
        complete_while_typing=False,
        **terminal,
    )


def completer(shell: _Shell) -> Any:
    """Return a completer for keywords, tables and columns that ignores case."""
    from prompt_toolkit.completion import WordCompleter

    return WordCompleter(lambda: shell.words, ignore_case=True)
