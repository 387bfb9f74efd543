"""Finds the tables that a statement names, without knowing all of SQL.

text -> tokens -> **references** -> suggestions, completion

This also works for an incomplete statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ignitetf.sql.tokens import Token, tokens

__all__ = ["BEFORE_TABLES", "Reference", "references", "significant"]

# Words that a table's name follows.
BEFORE_TABLES: Final = frozenset(("FROM", "JOIN", "INTO", "UPDATE", "TABLE"))
# Words that follow a table and are not an alias.
_NO_ALIAS: Final = frozenset((
    "ADD", "ALTER", "CROSS", "DROP", "EXCEPT", "FETCH", "FULL", "GROUP", "HAVING", "INNER",
    "INTERSECT", "KEY", "LEFT", "LIMIT", "MINUS", "NATURAL", "OFFSET", "ON", "ORDER", "RENAME",
    "RIGHT", "SELECT", "SET", "UNION", "USE", "USING", "VALUES", "WHERE", "WITH",
)) | BEFORE_TABLES  # fmt: skip


class Reference(NamedTuple):
    """A table as a statement names it.

    Attributes:
        schema: Its schema; None if the statement does not say.
        table: Its name.
        alias: Its alias in the statement; None if it has none.
    """

    schema: str | None
    table: str
    alias: str | None


def significant(text: str) -> list[Token]:
    """Return the tokens of a text without space and comments."""
    return [token for token in tokens(text) if token.kind not in ("space", "comment")]


def references(text: str) -> list[Reference]:
    """Return the tables after FROM, JOIN, INTO, UPDATE and TABLE, in their order."""
    found: list[Reference] = []
    parts = significant(text)
    at = 0
    while at < len(parts):
        word = parts[at]
        at += 1
        if word.kind != "word" or word.text.upper() not in BEFORE_TABLES:
            continue
        while (reference := _reference(parts, at)) is not None:
            one, at = reference
            found.append(one)
            if at >= len(parts) or parts[at].text != ",":
                break
            at += 1
    return found


def _reference(parts: Sequence[Token], at: int) -> tuple[Reference, int] | None:
    """Return the table named at a position and the position after it; None without a table."""
    names: list[str] = []
    while at < len(parts) and (name := parts[at].identifier) is not None:
        if not names and parts[at].kind == "word" and name in _NO_ALIAS:
            return None
        names.append(name)
        at += 1
        if at >= len(parts) or parts[at].text != ".":
            break
        at += 1
    if not names:
        return None
    alias: str | None = None
    if at < len(parts) and parts[at].text.upper() == "AS":
        at += 1
    if at < len(parts) and (name := parts[at].identifier) is not None:
        alias, at = (name, at + 1) if _may_be_alias(parts[at]) else (None, at)
    return Reference(names[-2] if len(names) > 1 else None, names[-1], alias), at


def _may_be_alias(token: Token) -> bool:
    return token.kind == "name" or token.text.upper() not in _NO_ALIAS
