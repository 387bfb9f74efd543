"""Rewrite statements that Ignite would treat differently: random keys, and comparisons of keys.

tokens -> **rewriting** -> statements

`with_own_keys`: this module, not the node, generates random keys of rows to insert. Ignite stores
the rows of `INSERT ... VALUES` unchanged if they have only values and parameters. If one has an
expression, such as RANDOM_UUID() for a key, Ignite first makes a table of all rows, whose TIME has
no fraction of a second.

`by_value`: a DELETE compares its parameters with keys by their value. Ignite uses the parameter of
`DELETE ... WHERE KEY = ?` as the key itself, a Java object. Whole numbers are sent as BIGINT, which
never equals an INT key, so nothing is deleted. Any expression other than a bare parameter is
compared as in SQL.

Source: Apache Ignite 2.17.0, `DmlAstUtils.selectForInsertOrMerge`, `getFastUpdateArgs`.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Final

from ignitetf.sql.tokens import Token, first_word, tokens

__all__ = ["by_value", "with_own_keys"]

_MADE_BY: Final = frozenset({"RANDOM_UUID", "UUID"})
_NOT_ROWS: Final = frozenset({"SELECT", "WITH"})


def with_own_keys(statement: str, params: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return a statement and its parameters; each RANDOM_UUID() of a row becomes a UUID.

    Args:
        statement: Any statement.
        params: Values for its parameters.
    """
    if first_word(statement) not in ("INSERT", "MERGE") or "UUID" not in statement.upper():
        return statement, params
    found, places = _rewritten(statement)
    if places.count(False) != len(params) or not any(places):
        return statement, params
    values = iter(params)
    return found, [uuid.uuid4() if own else next(values) for own in places]


@functools.lru_cache(maxsize=256)
def _rewritten(statement: str) -> tuple[str, tuple[bool, ...]]:
    """Return the statement with a `?` for each call, and the indexes of the new ones among all its `?`."""
    every = list(tokens(statement))
    kept = [token for token in every if token.kind not in ("space", "comment")]
    numbered = any(token.kind == "param" and len(token.text) > 1 for token in kept)
    if numbered or any(t.kind == "word" and t.identifier in _NOT_ROWS for t in kept):
        return statement, ()
    calls = _calls(kept)
    if not calls:
        return statement, ()
    parts: list[str] = []
    places: list[bool] = []
    end = 0
    for token in every:
        if token.start < end:
            continue
        if token.start in calls:
            parts.append("?")
            places.append(True)
            end = calls[token.start]
            continue
        parts.append(token.text)
        if token.kind == "param":
            places.append(False)
    return "".join(parts), tuple(places)


def _calls(kept: Sequence[Token]) -> dict[int, int]:
    """Return the start and end of each call that is a whole value of a row."""
    found = {}
    for i in range(1, len(kept) - 3):
        name, opened, closed = kept[i : i + 3]
        is_call = name.kind == "word" and name.identifier in _MADE_BY
        is_call = is_call and (opened.text, closed.text) == ("(", ")")
        if is_call and kept[i - 1].text in "(," and kept[i + 3].text in ",)":
            found[name.start] = closed.start + len(closed.text)
    return found


def by_value(statement: str, params: Sequence[Any]) -> str:
    """Return a statement that compares keys by value, for integer keys of any size.

    Args:
        statement: Any statement.
        params: Values for its parameters.
    """
    if not params or first_word(statement) != "DELETE":
        return statement
    return _with_casts(statement, tuple(map(_sql_type, params)))


@functools.lru_cache(maxsize=256)
def _with_casts(statement: str, kinds: tuple[str | None, ...]) -> str:
    parts, place = [], 0
    for token in tokens(statement):
        text = token.text
        if token.kind == "param":
            number = int(text[1:]) - 1 if len(text) > 1 else place
            place += 1
            kind = kinds[number] if 0 <= number < len(kinds) else None
            text = text if kind is None else f"CAST({text} AS {kind})"
        parts.append(text)
    return "".join(parts)


def _sql_type(value: Any) -> str | None:
    """Return the SQL type of a value if keys of other types can equal it; otherwise None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return "BIGINT"
    if isinstance(value, Decimal):
        return "DECIMAL"
    if isinstance(value, Real):
        return "DOUBLE"
    return "VARCHAR" if isinstance(value, str) else None
