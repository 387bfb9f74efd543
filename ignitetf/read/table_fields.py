"""`TableFields`: the columns of a SQL table, which say which fields a cache without a manifest has.

system views -> **table fields** -> sample

A table's fields are its columns. Objects keep the values of a column that was dropped, and lack one
that was added or has been NULL so far.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ignitetf.errors import SqlUnavailable
from ignitetf.net.client import Client
from ignitetf.read.queries import Selection
from ignitetf.sql import statement
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.infer import Evidence, field_of
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["TableFields", "table_fields"]

# By the Java class of a column's values; a DATE is read as the same milliseconds as a java.util.Date.
_CODES: Final[Mapping[str, TypeCode]] = {
    **{row.java: row.code for row in DATA_TYPES.values() if row.java},
    "java.sql.Date": TypeCode.DATE,
}
# How the name of a type ends that CREATE TABLE has made up, whose objects only SQL writes.
_MADE_UP: Final = re.compile("(_[0-9a-f]{4,12}){5}$")


@dataclass(frozen=True)
class TableFields:
    """The columns of a table.

    Attributes:
        values: Types of the columns of the values by name; None for one of any other type.
        keys: The same for those of the key.
        is_exact: Whether CREATE TABLE made it, whose columns have the names of the fields. The
            columns of a table that a program made from its classes have these in capitals or under
            other names, and may be some of them only.
        has_class: Whether its objects may be of a class of a program (VALUE_TYPE), with fields that
            are no columns: these are read where they are named.
        key_is_plain: Whether the key is the value of its only column.
        value_is_plain: The same of the value.
    """

    values: Mapping[str, TypeCode | None]
    keys: Mapping[str, TypeCode | None]
    is_exact: bool
    has_class: bool
    key_is_plain: bool
    value_is_plain: bool

    @property
    def names(self) -> Collection[str] | None:
        """The names of all fields of the values; None if there may be others."""
        return self.values if self.is_exact and not self.has_class else None

    def complete(self, key: Evidence, seen: Evidence, named: Collection[str]) -> None:
        """Take the fields that the columns have into the evidence of objects, and no others.

        Args:
            key: Evidence of the keys. Before 2.17 a cluster does not tell which columns these have.
            seen: Evidence of the values.
            named: Fields that are asked for.
        """
        if seen.unreadable or seen.codes != {int(TypeCode.OBJECT)}:
            return
        if self.is_exact:
            kept = {*self.values, *(named if self.has_class else ())}
            for name in seen.inside.keys() - kept:
                del seen.inside[name]
        spelled = {name.upper(): name for name in seen.inside}
        for column, code in self.values.items():
            is_same = self.is_exact or column in seen.inside
            if (own := column if is_same else spelled.get(column)) is None or column in key.inside:
                continue
            found = seen.child(own)
            if not found.codes and not found.unreadable:
                found.null = True
                if code is not None:
                    found.codes.add(int(code))

    def schema(self) -> Schema | None:
        """Return the schema of the table while it has no rows; None if the columns do not tell."""
        columns = {**self.keys, **self.values}
        if not self.is_exact or not self.keys or None in columns.values():
            return None
        keys = _fields(self.keys, nullable=False)
        key = Field("key", TypeCode.OBJECT, BYTES, (), False, tuple(keys))
        if self.key_is_plain:
            key = _fields({"key": self.keys[keys[0].name]}, nullable=False)[0]
        if self.value_is_plain:
            (code,) = self.values.values()
            return Schema(None, key, tuple(_fields({"val": code}, nullable=False)))
        return Schema("", key, tuple(_fields(self.values, nullable=True)))


def _fields(columns: Mapping[str, TypeCode | None], *, nullable: bool) -> list[Field]:
    return [
        field_of(name, code, nullable=nullable)
        for name, code in sorted(columns.items())
        if code is not None
    ]


def table_fields(client: Client, cache: str, selection: Selection | None) -> TableFields | None:
    """Return the columns of the table of a cache.

    Args:
        client: The connection.
        cache: Name of the cache.
        selection: Names the table, if one is selected.

    Returns:
        None if it has no table, or several and none is selected.
    """
    try:
        rows = client.sql(statement("table_fields"), (cache,)).fetchall()
    except SqlUnavailable:
        return None
    if selection is not None:
        rows = [row for row in rows if row[:2] == (selection.table.schema, selection.table.name)]
    if len({row[:2] for row in rows}) != 1:
        return None
    _, _, key_alias, value_alias, value_type, is_exact = rows[0][:6]
    found: dict[bool, dict[str, TypeCode | None]] = {True: {}, False: {}}
    for name, java, is_key in (row[6:] for row in rows):
        found[bool(is_key)][name] = _CODES.get(java)
    return TableFields(
        found[False],
        found[True],
        bool(is_exact),
        _MADE_UP.search(value_type) is None,
        key_alias is not None,
        value_alias is not None,
    )
