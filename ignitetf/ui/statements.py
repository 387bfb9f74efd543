"""Statements of users: check that they are allowed, and return their first rows.

text -> **statement** -> table

Without `--write` the text of a statement must be a query, and the request makes the node refuse
any other statement.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass, field
from typing import Final

from ignitetf import Client
from ignitetf.errors import ConfigError, SqlError
from ignitetf.sql import split
from ignitetf.sql.tokens import first_word, reads_only, tokens
from ignitetf.tables.names import with_suggestion
from ignitetf.ui.cells import Cell, cell

__all__ = ["Answer", "only_statement", "run_statement"]

LIMIT_S: Final = 15.0
_MOST_ROWS: Final = 500
_PAGE_ROWS: Final = 50
_LONGEST: Final = 20_000
# Words that begin a statement which is not a plain query.
_BEGINNINGS: Final = frozenset(
    ("ALTER", "COPY", "CREATE", "DELETE", "DROP", "FROM", "GRANT", "INSERT", "KILL", "MERGE", "REVOKE",
     "SELECT", "SET", "TABLE", "UPDATE", "VALUES", "WITH")
)  # fmt: skip
# Statements of other databases that list tables or columns.
_LISTINGS: Final = frozenset(("DESC", "DESCRIBE", "SHOW"))
_HINT: Final = "one SELECT, or EXPLAIN SELECT; 'ignitetf ui --write' allows changes"


@dataclass
class Answer:
    """The answer to a statement.

    Attributes:
        columns: Names of the columns.
        rows: The first rows.
        more: True if more rows exist.
        changed: Number of rows that were changed; None for a query.
        seconds: Duration in seconds.
    """

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    more: bool = False
    changed: int | None = None
    seconds: float = 0.0


def only_statement(text: str) -> str:
    """Return the only statement of a text.

    Raises:
        ConfigError: The text has none, or several.
    """
    if len(text) > _LONGEST or "\0" in text:
        raise ConfigError("the statement is too long", hint=f"{_LONGEST:,} characters at most")
    found = list(split(text))
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} statements" if found else "no statement", hint="write exactly one"
        )
    return found[0]


def _refused(statement: str) -> ConfigError:
    """Return the error for a statement that is not a plain query."""
    found = [token for token in tokens(statement) if token.kind not in ("space", "comment")]
    if any(token.kind == "open" for token in found):
        return ConfigError("a quote or a comment is not closed", hint=_HINT)
    if any(token.kind == "param" for token in found):
        return ConfigError("the statement has a '?'", hint="write the value in its place")
    word = first_word(statement)
    if word in _LISTINGS:
        return ConfigError(
            f"Apache Ignite does not support {word}",
            hint="the page Data lists the tables and their columns",
        )
    if word in _BEGINNINGS:
        return ConfigError(
            "this page only reads, and this statement is not a plain query", hint=_HINT
        )
    near = difflib.get_close_matches(word, ("SELECT", "EXPLAIN", *sorted(_BEGINNINGS)), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    shown = word or statement.split()[0]
    return ConfigError(f"no statement begins with {shown!r}", hint=meant + _HINT)


def run_statement(client: Client, text: str, *, write: bool) -> Answer:
    """Run one statement and return its first rows.

    Raises:
        ConfigError: It is not one statement, or one that changes something without `write`.
        SqlError: The node refuses it, or it took too long.
    """
    statement = only_statement(text)
    query = reads_only(statement)
    if not query and not write:
        raise _refused(statement)
    begin = time.monotonic()
    try:
        result = client.sql(statement, page_size=_PAGE_ROWS, timeout_s=LIMIT_S, only_query=query)
    except SqlError as error:
        raise with_suggestion(client, error, statement) from error
    with result:
        answer = Answer(result.columns, changed=result.update_count)
        if answer.changed is None:
            for row in result:
                if len(answer.rows) == _MOST_ROWS:
                    answer.more = True
                    break
                answer.rows.append([cell(value) for value in row])
    answer.seconds = time.monotonic() - begin
    return answer
