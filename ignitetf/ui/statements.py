"""Statements that users type: which are allowed, and their first rows.

text -> **statement** -> table

Without `--write` a statement must be a query by its text, and the node is told to refuse any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.sql import split
from ignitetf.sql.tokens import tokens
from ignitetf.ui.cells import Cell, cell
from ignitetf.wire.sql_values import Values

__all__ = ["Answer", "only_statement", "reads_only", "run_statement"]

LIMIT_S: Final = 15.0
_MOST_ROWS: Final = 500
_PAGE_ROWS: Final = 50
_LONGEST: Final = 20_000
_HINT: Final = "one SELECT, or EXPLAIN SELECT; 'ignitetf ui --write' allows changes"


@dataclass
class Answer:
    """The answer to a statement.

    Attributes:
        columns: Names of the columns.
        rows: The first rows.
        more: Whether there are more.
        changed: Number of rows that were changed; None for a query.
        seconds: How long it took.
    """

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    more: bool = False
    changed: int | None = None
    seconds: float = 0.0


def only_statement(text: str) -> str:
    """Return the only statement of a text.

    Raises:
        ConfigError: There is none, or several.
    """
    if len(text) > _LONGEST or "\0" in text:
        raise ConfigError("the statement is too long", hint=f"{_LONGEST:,} characters at the most")
    found = list(split(text))
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} statements" if found else "no statement", hint="write exactly one"
        )
    return found[0]


def reads_only(text: str) -> bool:
    """Whether a text is one SELECT or EXPLAIN SELECT, which locks nothing."""
    found = [t for t in tokens(text) if t.kind not in ("space", "comment")]
    if any(t.kind in ("open", "param") or t.text == ";" for t in found):
        return False
    words = [t.text.upper() if t.kind == "word" else t.text for t in found]
    if words[:1] == ["EXPLAIN"]:
        words = words[3:] if words[1:3] == ["PLAN", "FOR"] else words[1:]
    locks = any(pair == ("FOR", "UPDATE") for pair in itertools.pairwise(words))
    return words[:1] == ["SELECT"] and not locks


def run_statement(client: Client, text: str, *, write: bool) -> Answer:
    """Run one statement and return its first rows.

    Raises:
        ConfigError: It is not one statement, or one that changes something without `write`.
        SqlError: The node refuses it, or it took too long.
    """
    statement = only_statement(text)
    query = reads_only(statement)
    if not query and not write:
        raise ConfigError("this page reads only, and that is no plain query", hint=_HINT)
    begin = time.monotonic()
    with client.sql(statement, page_size=_PAGE_ROWS, timeout_s=LIMIT_S, only_query=query) as result:
        answer = Answer(result.columns, changed=result.update_count)
        if answer.changed is None:
            rows = (row for page in result.pages() for row in _rows_of(page))
            for row in rows:
                if len(answer.rows) == _MOST_ROWS:
                    answer.more = True
                    break
                answer.rows.append([cell(value) for value in row])
    answer.seconds = time.monotonic() - begin
    return answer


def _rows_of(page: Sequence[Values]) -> Iterator[tuple[Any, ...]]:
    return zip(*(values.to_python() for values in page), strict=True)
