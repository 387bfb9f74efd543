"""Suggest the next word of an SQL statement: tables, columns, keywords.

text, names of the cluster -> **completion** -> the prompt
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ignitetf.cli.shell_commands import COMMANDS, SETTINGS
from ignitetf.sql.references import BEFORE_TABLES, references, significant
from ignitetf.sql.tokens import Token, tokens
from ignitetf.tables.names import SqlNames, SqlTable, spelled

if TYPE_CHECKING:
    from ignitetf.cli.shell import Shell

__all__ = ["KEYWORDS", "candidates", "completer"]

KEYWORDS: Final = [
    "ALTER", "AND", "AS", "ASC", "AVG", "BETWEEN", "BY", "CASE", "CAST", "COUNT", "CREATE", "CROSS",
    "DELETE", "DESC", "DISTINCT", "DROP", "ELSE", "END", "EXISTS", "EXPLAIN", "FROM", "GROUP",
    "HAVING", "IN", "INDEX", "INNER", "INSERT", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT",
    "MAX", "MERGE", "MIN", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER", "PRIMARY", "KEY", "SELECT",
    "SET", "SUM", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "WITH",
]  # fmt: skip
_FIRST: Final = [
    "ALTER", "CREATE", "DELETE", "DROP", "EXPLAIN", "INSERT", "MERGE", "SELECT", "SET", "UPDATE",
    "WITH",
]  # fmt: skip
# Words that may be between the names in a list of tables.
_ABOUT_TABLES: Final = BEFORE_TABLES | {"AS", "EXISTS", "IF", "NOT"}
_NAMED: Final = ("\\d", "\\di", "\\dt")
_FILED: Final = ("\\i", "\\o", "\\e")


def candidates(before: str, after: str, names: SqlNames) -> tuple[str, list[str]]:
    """Return the word before the cursor, and its completions, the likeliest first.

    Args:
        before: The statement up to the cursor.
        after: The rest of it.
        names: The tables and columns of the cluster.
    """
    found = list(tokens(before))
    if found and found[-1].kind in ("text", "comment", "dollar", "number"):
        return "", []
    word = ""
    if found and (found[-1].kind == "word" or _is_open_name(found[-1])):
        word = found.pop().text
    elif found and found[-1].kind == "open":
        return "", []
    context = [token for token in found if token.kind not in ("space", "comment")]
    if context and context[-1].text == ".":
        choices = _after_dot(context, before + after, names)
    elif not context:
        choices = _FIRST
    elif _takes_table(context):
        choices = _tables(names)
    else:
        choices = [*_columns(before + after, names), *KEYWORDS]
    return word, list(_matching(word, choices))


def _is_open_name(token: Token) -> bool:
    return token.kind == "open" and token.text.startswith('"')


def _takes_table(context: list[Token]) -> bool:
    """True if a table follows: after FROM, or after a comma in the list after it."""
    last = context[-1]
    if last.kind == "word" and last.text.upper() in BEFORE_TABLES:
        return True
    if last.text != ",":
        return False
    for token in reversed(context[:-1]):
        if token.text in "()":
            return False
        if token.kind == "word" and token.text.upper() in KEYWORDS:
            return token.text.upper() in _ABOUT_TABLES
    return False


def _after_dot(context: list[Token], text: str, names: SqlNames) -> list[str]:
    """Return the columns of a table or alias, or the tables of a schema."""
    qualifier = context[-2].identifier if len(context) > 1 else None
    if qualifier is None:
        return []
    columns = [
        column
        for one in references(text)
        if qualifier == (one.alias or one.table)
        for column in names.of(one)
    ]
    tables = [table.name for table in names.tables if table.schema == qualifier]
    return [spelled(each) for each in (columns or tables)]


def _tables(names: SqlNames) -> list[str]:
    return [_qualified(table) for table in names.tables]


def _qualified(table: SqlTable) -> str:
    own = spelled(table.name)
    return own if table.schema == "PUBLIC" else f"{spelled(table.schema)}.{own}"


def _columns(text: str, names: SqlNames) -> list[str]:
    """Return the columns of the tables in a statement, and its names for the tables."""
    named = references(text)
    columns = [spelled(column) for one in named for column in names.of(one)]
    called = [spelled(one.alias or one.table) for one in named]
    return list(dict.fromkeys((*columns, *called)))


def _matching(word: str, choices: Iterable[str]) -> Iterator[str]:
    """Yield the choices that begin with a word; keywords in lower case if the word is."""
    bare = word.lstrip('"').upper()
    for choice in choices:
        parts = {choice.lstrip('"').upper(), choice.rpartition(".")[2].lstrip('"').upper()}
        if any(part.startswith(bare) for part in parts):
            yield choice.lower() if choice in KEYWORDS and word.islower() else choice


def completer(shell: Shell) -> Any:
    """Return a prompt_toolkit completer for the lines of a shell."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Live(Completer):
        """Completes commands, statements, and the files of commands."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            """Yield the completions of the word before the cursor."""
            before: str = document.text_before_cursor
            if before.lstrip().startswith("\\"):
                command, space, argument = before.lstrip().partition(" ")
                if space and command in _FILED:
                    part = Document(argument, len(argument))
                    yield from paths.get_completions(part, complete_event)
                    return
                word, found = _of_command(command, space, argument, shell)
            else:
                begin = _start_of_statement(before)
                word, found = candidates(before[begin:], document.text_after_cursor, shell.names())
            for text in found:
                yield Completion(text, start_position=-len(word))

    return Live()


def _of_command(command: str, space: str, argument: str, shell: Shell) -> tuple[str, list[str]]:
    if not space:
        return command, [name for name in COMMANDS if name.startswith(command)]
    if command in _NAMED:
        return argument, list(_matching(argument, _tables(shell.names())))
    if command == "\\set":
        return argument, [name for name in SETTINGS if name.startswith(argument)]
    return argument, []


def _start_of_statement(text: str) -> int:
    ends = [token.start + 1 for token in significant(text) if token.text == ";"]
    return ends[-1] if ends else 0
