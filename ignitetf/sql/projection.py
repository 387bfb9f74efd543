"""Recognizes queries for columns of all rows of one table.

tokens -> **projection** -> stored rows, redirect
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ignitetf.sql.tokens import Token, tokens

__all__ = ["Projection", "projection", "table_of_view"]

# The form that `create_view.sql` gives to a view over a data set's table.
_VIEW: Final = re.compile(r'SELECT \* FROM "([^"]+__ROWS)"')
# Words that may come before the columns, and look like one.
_MODES: Final = frozenset(("ALL", "DISTINCT", "TOP", "UNIQUE"))


class Projection(NamedTuple):
    """`SELECT columns FROM table`, and nothing else.

    Attributes:
        schema: The schema as given; None for that of the connection.
        table: Name of the table, or view.
        columns: Names of the columns; None for `*`.
    """

    schema: str | None
    table: str
    columns: tuple[str, ...] | None


def table_of_view(definition: str) -> str | None:
    """Return the table of a data set whose SQL name is this view; None for any other view."""
    found = _VIEW.fullmatch(definition)
    return None if found is None else found[1]


def projection(statement: str) -> Projection | None:
    """Return what a statement asks for; None if it is more than columns of a whole table."""
    found = [token for token in tokens(statement) if token.kind != "space"]
    if len(found) < 4 or found[0].kind != "word" or found[0].identifier != "SELECT":
        return None
    if any(token.kind not in ("word", "name") and token.text not in ".,*" for token in found):
        return None
    begin = next((i for i, t in enumerate(found) if t.kind == "word" and t.identifier == "FROM"), 0)
    source = _source(found[begin + 1 :])
    if not begin or source is None:
        return None
    schema, table, alias = source
    if found[1].kind == "word" and found[1].identifier in _MODES:
        return None
    columns = _columns(found[1:begin], alias or table)
    return None if columns == () else Projection(schema, table, columns)


def _source(found: list[Token]) -> tuple[str | None, str, str | None] | None:
    """Return schema, name and alias of the only table; None for anything else."""
    names = [token.identifier for token in found]
    texts = [token.text for token in found]
    schema = None
    if len(found) > 2 and texts[1] == ".":
        schema, names, texts = names[0], names[2:], texts[2:]
    if len(names) > 2 and names[1] == "AS":
        del names[1]
    if not names or len(names) > 2 or None in names:
        return None
    return schema, str(names[0]), names[1] if len(names) == 2 else None


def _columns(found: list[Token], table: str) -> tuple[str, ...] | None:
    """Return the names of the columns; None for `*`, and nothing for what is not only columns."""
    items: list[list[Token]] = [[]]
    for token in found:
        if token.text == ",":
            items.append([])
        else:
            items[-1].append(token)
    names = []
    for item in items:
        if len(item) > 2 and item[1].text == "." and item[0].identifier == table:
            item = item[2:]
        if len(items) == 1 and [token.text for token in item] == ["*"]:
            return None
        words = [token.identifier for token in item]
        if len(words) > 2 and words[1] == "AS":
            del words[1]
        if not 1 <= len(words) <= 2 or None in words:
            return ()
        names.append(str(words[0]))
    return tuple(names)
