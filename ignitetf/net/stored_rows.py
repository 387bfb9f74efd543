"""The rows of a whole table as they are stored, for the client to take apart.

projection, objects, binary types -> **stored rows** -> results

To take a row apart into five columns, a node needs twice as long as to send its key and its value
as they are. So a query for all rows of a large table asks for these, and the columns are found in
them. That is only done where it gives what the node would: columns of numbers, truth values and
texts, in values with no other field than the table's. A row that has something else in such a
column is `Unlike` the table, and the query has to run as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.net.binary_types import with_types
from ignitetf.net.pool import Pool
from ignitetf.sql.projection import projection, table_of_view
from ignitetf.wire.answers import read_long
from ignitetf.wire.codes import OpCode, TypeCode, java_hash_lower
from ignitetf.wire.datatypes import DATA_TYPES, Family
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import type_codes
from ignitetf.wire.objects import Bytes, Positions, field_positions, find_rows, headers, unwrap
from ignitetf.wire.requests import size_request
from ignitetf.wire.sql_arrays import Kind, Unreadable, Values, decode_values
from ignitetf.wire.types import TypeRegistry

__all__ = ["StoredRows", "Unlike", "same_values", "stored_rows"]

Ask = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

# Of fewer rows it does not pay to find out about the table, and to begin again.
_LEAST_ROWS: Final = 150_000
# Fewer columns take a node no longer than the key and the value.
_LEAST_COLUMNS: Final = 3
# Java classes of numbers, truth values and texts: those whose SQL values are the stored ones.
_CODES: Final = {
    row.java: code
    for code, row in DATA_TYPES.items()
    if row.java is not None and row.family in (Family.NUMBER, Family.TEXT)
}
# So many rows have to be as the query that was asked has them.
_COMPARED: Final = 1024
# Java classes whose values have a fixed length, and SQL's DATE.
_SMALL: Final = {"java.sql.Date"} | {
    row.java
    for row in DATA_TYPES.values()
    if row.java is not None and row.extent is not None and not row.extent.count_at
}
_TABLE: Final = (
    "SELECT CACHE_ID, KEY_ALIAS, VALUE_ALIAS FROM SYS.TABLES"
    " WHERE SCHEMA_NAME = ? AND TABLE_NAME = ?"
)
_VIEW: Final = "SELECT SQL FROM SYS.VIEWS WHERE SCHEMA = ? AND NAME = ?"
_COLUMNS: Final = (
    "SELECT COLUMN_NAME, TYPE FROM SYS.TABLE_COLUMNS WHERE SCHEMA_NAME = ? AND TABLE_NAME = ?"
)
_OBJECTS: Final = ("_KEY", "_VAL")


class Unlike(Exception):
    """A row is not what the table says."""


class _Column(NamedTuple):
    """Where a column of the result comes from.

    Attributes:
        name: Name of the table's column.
        code: Type of its values, if they are taken from the stored objects; else None.
        is_key: The key itself is the value.
    """

    name: str
    code: TypeCode | None
    is_key: bool


@dataclass(frozen=True)
class StoredRows:
    """A query for the stored objects of a table, and how the columns are found in its rows.

    Attributes:
        statement: The query.
        columns: The columns of the result.
        known: Names of all columns of the table, in small letters.
        has_keys: Whether it asks for the keys before the values.
    """

    statement: str
    columns: list[_Column]
    known: frozenset[str]
    has_keys: bool

    def values(self, pool: Pool, page: Page, registry: TypeRegistry) -> list[Values]:
        """Return the columns of a page of the query.

        Raises:
            Unlike: A row has something else than the table says.
        """
        try:
            return with_types(pool, registry, self._values, page, registry)
        except (SchemaError, Unreadable) as error:
            raise Unlike from error

    def _values(self, page: Page, registry: TypeRegistry) -> list[Values]:
        others = [column for column in self.columns if column.code is None]
        before = 1 if self.has_keys else 0
        parts = find_rows(page.data, page.count, before + 1 + len(others))
        keys = unwrap(page.data, parts[0]) if self.has_keys else None
        objects, *rest = parts[before:]
        places = self._places(page.data, keys, objects, registry)
        places.update(zip([column.name for column in others], rest, strict=True))
        found = [decode_values(page.data, places[c.name], registry) for c in self.columns]
        return [_as_sql(column, values) for column, values in zip(self.columns, found, strict=True)]

    def _places(
        self, data: Bytes, keys: Positions | None, objects: Positions, registry: TypeRegistry
    ) -> dict[str, Positions]:
        """Return where the values of the columns are that are taken from the objects."""
        names = [c.name for c in self.columns if c.code is not None and not c.is_key]
        places = self._fields(data, unwrap(data, objects), names, registry)
        if keys is None:
            return places
        if len(keys) and (type_codes(data, keys) == TypeCode.OBJECT).all():
            in_key = self._fields(data, keys, names, registry)
            for name, at in in_key.items():
                if (at >= 0).any():
                    if (places[name] >= 0).any():
                        raise Unlike
                    places[name] = at
        places.update({column.name: keys for column in self.columns if column.is_key})
        return places

    def _fields(
        self, data: Bytes, at: Positions, names: list[str], registry: TypeRegistry
    ) -> dict[str, Positions]:
        """Return the places of fields of objects, which have no field that the table lacks."""
        if (type_codes(data, at) != TypeCode.OBJECT).any():
            raise Unlike
        found = headers(data, at)
        ids = [java_hash_lower(name) for name in names]
        for type_id in np.unique(found.type_id).tolist():
            kind = registry.type(type_id)
            if not {name.lower() for name in kind.ids} <= self.known:
                raise Unlike
            if registry.field_ids(type_id, names) != ids:
                raise Unlike
        return field_positions(data, found, registry, names)


def _as_sql(column: _Column, values: Values) -> Values:
    """Return what SQL makes of the stored values: it has no negative zero."""
    if column.code is None or values.kind is None or values.column is None:
        return values
    if values.kind != Kind(column.code):
        raise Unlike
    if column.code in (TypeCode.FLOAT, TypeCode.DOUBLE):
        stored = values.column.values
        assert isinstance(stored, np.ndarray)
        return replace(values, column=replace(values.column, values=stored + stored.dtype.type(0)))
    return values


def same_values(one: list[Values], other: list[Values]) -> bool:
    """Whether two results begin with the same values."""
    count = min(one[0].count, other[0].count, _COMPARED)
    pairs = [(a.first(count), b.first(count)) for a, b in zip(one, other, strict=True)]
    # Written out, as a NaN is not equal to itself, and 0.0 is to -0.0.
    return all(repr(a.to_python()) == repr(b.to_python()) for a, b in pairs)


def stored_rows(
    pool: Pool, ask: Ask, statement: str, schema: str, names: Sequence[str]
) -> StoredRows | None:
    """Return how to take the rows of a statement as they are stored; None where it does not pay.

    Args:
        pool: The connections.
        ask: Runs a query of ours, with parameters.
        statement: The statement.
        schema: The schema for names without one.
        names: Names of the columns of its result.
    """
    asked = projection(statement)
    if asked is None or len(names) < _LEAST_COLUMNS:
        return None
    if (place := _table(ask, asked.schema or schema, asked.table)) is None:
        return None
    schema, table, cache, key_alias, value_alias = place
    if value_alias is not None or _size(pool, cache) < _LEAST_ROWS:
        return None
    types = {name: kind for name, kind in ask(_COLUMNS, (schema, table)) if name not in _OBJECTS}
    wanted = asked.columns or tuple(names)
    if len(wanted) != len(names) or not types.keys() >= set(wanted):
        return None
    columns = [_Column(name, _CODES.get(types[name]), name == key_alias) for name in wanted]
    taken = {column.name for column in columns if column.code is not None}
    left = types.keys() - set(wanted)
    if len(taken) < max(_LEAST_COLUMNS, len(left)) or any(types[n] not in _SMALL for n in left):
        return None
    # A key that has a name is no object with fields.
    has_keys = key_alias is None or any(column.is_key for column in columns)
    selected = [
        *(_OBJECTS if has_keys else _OBJECTS[1:]),
        *(_quoted(column.name) for column in columns if column.code is None),
    ]
    return StoredRows(
        f"SELECT {', '.join(selected)} FROM {_quoted(schema)}.{_quoted(table)}",  # nosec B608
        columns,
        frozenset(name.lower() for name in types),
        has_keys,
    )


def _table(ask: Ask, schema: str, name: str) -> tuple[str, str, int, str | None, str | None] | None:
    """Return schema, name, cache id and the names of key and value of a table, or a data set."""
    found = ask(_TABLE, (schema, name))
    if not found:
        tables = [table_of_view(text) for (text,) in ask(_VIEW, (schema, name))]
        if not tables or tables[0] is None:
            return None
        name = tables[0]
        found = ask(_TABLE, (schema, name))
    return (schema, name, *found[0]) if len(found) == 1 else None


def _size(pool: Pool, cache: int) -> int:
    return read_long(pool.call(OpCode.CACHE_GET_SIZE, size_request(cache)), "the size of a cache")


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
