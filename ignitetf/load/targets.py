"""Turns whatever a load was given into sources of tables: their names, types and columns.

anything -> **source of each table** -> loader
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ignitetf.errors import ConfigError
from ignitetf.load.sources.base import Source, open_source
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.schema import Schema

__all__ = [
    "as_source",
    "has_same_fields",
    "index_of",
    "part_name",
    "tables_of",
    "type_name_of",
]


def as_source(source: Any, key: str | None, bad_records: OnBadRecord) -> Source:
    """Return the source itself, or wrap Python records or an Arrow stream in one."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        raise ConfigError(
            f"{source!r} is a text, not a source",
            hint="open_source('csv', path) of ignitetf.load.sources opens files",
        )
    kind = "stream" if hasattr(source, "__arrow_c_stream__") else "records"
    return open_source(kind, source, key=key, bad_records=bad_records)


def tables_of(source: Source, name: str) -> Iterator[tuple[str, Source]]:
    """Yield the name and source of each table: first the source itself, under the given name."""
    yield name, source
    for part, other in source.parts.items():
        if other is not source:
            yield f"{name}_{part.upper()}", other


def index_of(source: Source, part: Source, index: Sequence[str]) -> tuple[str, ...]:
    """Return those columns of `index` that a table has."""
    known = {name for table in source.parts.values() for name in table.schema.names}
    return tuple(n for n in index if n in part.schema.names or n not in known)


def part_name(source: Source, part: Source) -> str:
    """Return the name of a table within its source."""
    return next(name for name, other in source.parts.items() if other is part)


def type_name_of(schema: Schema, name: str) -> str | None:
    """Return the value type's name, that of the table; bare values have none."""
    if schema.type_name is None:
        return None
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if not word[:1].isdigit() else f"_{word}"


def has_same_fields(mine: Schema, theirs: Schema) -> bool:
    """Whether rows fit an existing schema: same fields, and nulls only where it allows them.

    Their order does not matter, as values go by name.
    """
    known = {field.name: field for field in theirs.fields}
    return len(mine.fields) == len(known) and all(
        (there := known.get(field.name)) is not None
        and replace(field, nullable=field.nullable or there.nullable) == there
        for field in mine.fields
    )
