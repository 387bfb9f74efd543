"""`by_value`: a DELETE whose parameters are compared with keys by their value.

tokens -> **deletions** -> statements

Ignite takes the parameter of `DELETE ... WHERE KEY = ?` for the key itself, as an object of Java: an
INT key never equals a BIGINT, as which whole numbers are sent, and nothing is deleted. What is more
than a bare parameter is compared as SQL does it.

Source: Apache Ignite 2.17.0, `DmlAstUtils.getFastUpdateArgs`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from ignitetf.sql.tokens import first_word, tokens

__all__ = ["by_value"]


def by_value(statement: str, params: Sequence[Any]) -> str:
    """Return a statement that does what it says, whatever the width of the keys.

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
    """Return the type that a value is sent as, if keys of other types can be equal to it."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return "BIGINT"
    if isinstance(value, Decimal):
        return "DECIMAL"
    if isinstance(value, Real):
        return "DOUBLE"
    return "VARCHAR" if isinstance(value, str) else None
