"""Which columns of a table are loaded, and under which names.

headings, options -> **columns and their names** -> csvfile, labels
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from ignitetf.errors import ConfigError

__all__ = ["chosen_columns"]


def chosen_columns(
    table: str,
    headings: Sequence[str],
    columns: str | Iterable[str] | None = None,
    rename: str | Mapping[str, str] | None = None,
) -> list[tuple[int, str]]:
    """Return place and new name of each column to load, in the order of the table.

    Args:
        table: Name of the table, for messages.
        headings: The headings of the table.
        columns: Headings of the columns to load, as `A,B` or one by one; None for all.
        rename: New names by heading, as a mapping or `OLD=NEW,OLD=NEW`.

    Raises:
        ConfigError: There is no such column, or the text is none of this form.
    """
    places = {heading.strip().upper(): number for number, heading in enumerate(headings)}
    names = {
        _place(table, old, headings, places, "rename"): new for old, new in _renames(rename).items()
    }
    chosen = set(range(len(headings)))
    if columns is not None:
        words = columns.split(",") if isinstance(columns, str) else columns
        wanted = [word.strip() for word in words if word.strip()]
        chosen = {_place(table, word, headings, places, "load") for word in wanted}
    return [(i, names.get(i, heading)) for i, heading in enumerate(headings) if i in chosen]


def _place(
    table: str, heading: str, headings: Sequence[str], places: Mapping[str, int], what: str
) -> int:
    if (found := places.get(heading.upper())) is None:
        shown = {name.upper(): name for name in headings}
        near = difflib.get_close_matches(heading.upper(), shown, n=1)
        hint = f"did you mean {shown[near[0]]!r}?" if near else f"columns: {', '.join(headings)}"
        raise ConfigError(f"{table}: no column {heading!r} to {what}", hint=hint)
    return found


def _renames(rename: str | Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(rename, str):
        return dict(rename or {})
    found: dict[str, str] = {}
    for part in rename.split(","):
        old, equals, new = (word.strip() for word in part.partition("="))
        if not (equals and new) or old in found:
            raise ConfigError(f"rename {rename!r}", hint="OLD=NEW,OLD=NEW, each column once")
        found[old] = new
    return found
