"""The rule that converts a heading, or the name of a nested value, to a name of SQL.

headings -> **names** -> tabular, arrow, jsonfile

Accents are removed, and an underscore replaces each run of other characters: `Größe (cm)` is
`GROSSE_CM`. An underscore precedes a leading digit: `1990` is `_1990`. A name without Latin letters
and digits is named after its position: `COLUMN_3`. Columns are in capitals; nested names keep their
capitals and small letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ignitetf.wire.schema import is_identifier

__all__ = ["alike", "column_of_heading", "nested_names"]


def column_of_heading(heading: str, number: int) -> str:
    """Return the column that a heading names, at a position from 0."""
    return _name(heading.strip().upper(), number)


def nested_names(names: Sequence[str]) -> list[str]:
    """Return the names of the parts of a nested value; names of SQL stay as they are.

    Raises:
        ValueError: Two names would be equal, or the name would be empty.
    """
    found = [_name(name, number) for number, name in enumerate(names)]
    if not found:
        raise ValueError("it has no fields")
    if (doubled := alike(names, found)) is not None:
        raise ValueError(f"two nested names are equal: {doubled}")
    return found


def alike(headings: Sequence[str], names: Sequence[str]) -> str | None:
    """Return a text on the headings that have the same name; None if all names differ.

    Capitals and small letters count as equal, as in SQL.
    """
    by_name: dict[str, list[str]] = {}
    for heading, name in zip(headings, names, strict=True):
        by_name.setdefault(name.upper(), []).append(heading)
    doubled = [
        f"{' and '.join(map(repr, old))} are both {name!r}"
        for name, old in by_name.items()
        if len(old) > 1
    ]
    return "; ".join(doubled) or None


def _name(text: str, number: int) -> str:
    if is_identifier(text):
        return text
    plain = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")
    if not plain:
        return f"COLUMN_{number + 1}"
    return f"_{plain}" if plain[0].isdigit() else plain
