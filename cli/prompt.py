r"""The interactive prompt of `ignitetf query`: history, completion, multi-line statements.

keys -> **prompt** -> shell

A statement ends with `;`, a command begins with a backslash. Ctrl-C drops the line, or the running
statement; after an error the prompt continues.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ignitetf.cli.completion import completer
from ignitetf.cli.options import Connect
from ignitetf.cli.output import note
from ignitetf.cli.shell import Shell, is_complete
from ignitetf.errors import MissingExtra
from ignitetf.home import ignitetf_home

__all__ = ["history_file", "run"]

_SECRET = re.compile(r"\bPASSWORD\b", re.IGNORECASE)


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
    shell = Shell(connect, statement_timeout)
    try:
        session = _session(shell, terminal)
        note("End a statement with ';'. \\d lists the tables, \\? shows help, \\q leaves.")
        going = True
        while going:
            proposed, shell.proposed = shell.proposed, ""
            try:
                text = session.prompt(default=proposed)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            going = shell.handle(text)
    finally:
        shell.close()


def _session(shell: Shell, terminal: dict[str, Any]) -> Any:
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
        complete_in_thread=True,  # fetches the names again, which may take a moment
        enable_open_in_editor=True,
        tempfile_suffix=".sql",
        **terminal,
    )
