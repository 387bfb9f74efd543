"""What a cache holds, seen from its first pages: `Evidence` per field, and the schema it proves.

objects -> **infer** -> schema

Used where no manifest says it. All records of the pages are looked at, never one alone: a field
has a fixed shape only if every record had that length, and is nullable if any was null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import ARRAY_ELEMENT, FIXED_DTYPE, BinaryFlag, TypeCode
from ignitetf.wire.columns import type_code, type_codes
from ignitetf.wire.frames import Page
from ignitetf.wire.objects import (
    Bytes,
    Positions,
    field_positions,
    find_elements,
    find_rows,
    gather,
    headers,
    unwrap,
)
from ignitetf.wire.schema import BYTES, Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Evidence", "infer_schema", "observe_page"]

_LISTS: Final = {
    TypeCode.STRING_ARRAY: TypeCode.STRING,
    TypeCode.UUID_ARRAY: TypeCode.UUID,
    TypeCode.DATE_ARRAY: TypeCode.DATE,
    TypeCode.TIMESTAMP_ARRAY: TypeCode.TIMESTAMP,
    TypeCode.TIME_ARRAY: TypeCode.TIME,
    TypeCode.DECIMAL_ARRAY: TypeCode.DECIMAL,
    TypeCode.ENUM_ARRAY: TypeCode.ENUM,
}
_CONTAINERS: Final = (TypeCode.OBJECT_ARRAY, TypeCode.COLLECTION)
_TEXTS: Final = (TypeCode.STRING, TypeCode.UUID, TypeCode.DECIMAL)
_INT64: Final = (TypeCode.DATE, TypeCode.TIME, TypeCode.TIMESTAMP)
_ENUMS: Final = (TypeCode.ENUM, TypeCode.BINARY_ENUM)


@dataclass
class Evidence:
    """What was seen of one field: type codes, nulls, lengths, and the same of what is inside."""

    codes: set[int] = field(default_factory=set)
    null: bool = False
    lengths: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    inside: dict[str, Evidence] = field(default_factory=dict)

    def child(self, name: str) -> Evidence:
        """Evidence of a field, of the items of a list, or of a map's keys or values."""
        return self.inside.setdefault(name, Evidence())

    def observe(self, data: Bytes, at: Positions, registry: TypeRegistry) -> None:
        """Take in the objects at these positions; -1 counts as a null."""
        if len(at):
            at = np.where(at >= 0, unwrap(data, np.maximum(at, 0)), -1)
        codes = type_codes(data, at)
        valid = codes != TypeCode.NULL
        self.null |= not bool(valid.all())
        kinds = {int(c) for c in np.unique(codes[valid])}
        self.codes |= kinds
        for code in kinds:
            self._look_inside(code, data, at[codes == code], registry)

    def _look_inside(self, code: int, data: Bytes, at: Positions, registry: TypeRegistry) -> None:
        if code in ARRAY_ELEMENT:
            if len(self.lengths) < 2:
                self.lengths |= {int(n) for n in np.unique(gather(data, at + 1, "<i4"))[:2]}
        elif code == TypeCode.OBJECT:
            self._observe_fields(data, at, registry)
        elif code in _CONTAINERS or code in _LISTS:
            found, _ = find_elements(data, at)
            self.child("item").observe(data, found, registry)
        elif code == TypeCode.MAP:
            found, _ = find_elements(data, at)
            self.child("keys").observe(data, found[0::2], registry)
            self.child("values").observe(data, found[1::2], registry)

    def _observe_fields(self, data: Bytes, at: Positions, registry: TypeRegistry) -> None:
        found = headers(data, at)
        names: dict[str, int] = {}
        kinds = {
            (int(t), int(s), bool(f & BinaryFlag.COMPACT_FOOTER), bool(f & BinaryFlag.HAS_SCHEMA))
            for t, s, f in zip(found.type_id, found.schema_id, found.flags, strict=True)
        }
        for type_id, schema_id, compact, has_schema in kinds:
            self.types.add(type_id)
            known = registry.type(type_id, schema_id)
            # A full footer names its fields itself; any field of the type may be in it.
            order = registry.schema(type_id, schema_id) if compact and has_schema else known.fields
            for field_id in order:
                if field_id in known.fields:
                    names.setdefault(known.fields[field_id][0], field_id)
        places = field_positions(data, found, registry, names.values())
        for name, field_id in names.items():
            self.child(name).observe(data, places[field_id], registry)

    def to_field(self, name: str) -> Field:
        """The field that all of this fits.

        Raises:
            SchemaError: Values of several types stand in it, or none but nulls.
        """
        codes = {TypeCode.ENUM if c in _ENUMS else c for c in self.codes}
        if not codes:
            raise SchemaError(
                f"field {name!r} has nothing but nulls, its type cannot be told",
                hint=f"pass schema={{{name!r}: ...}}, or leave it out with fields=[...]",
                field=name,
            )
        if len(codes) > 1:
            found = ", ".join(type_code(c) for c in sorted(codes))
            raise SchemaError(
                f"field {name!r} has values of several types: {found}",
                hint="leave it out with fields=[...]",
                field=name,
            )
        return self._field_of(name, codes.pop())

    def _field_of(self, name: str, number: int) -> Field:
        try:
            code = TypeCode(number)
        except ValueError as error:
            raise SchemaError(f"field {name!r} is {type_code(number)}") from error
        if code in ARRAY_ELEMENT:
            one = next(iter(self.lengths)) if len(self.lengths) == 1 else None
            if code == TypeCode.BYTE_ARRAY and one is None:
                return Field(name, code, BYTES, (), self.null)
            return Field(name, code, ARRAY_ELEMENT[code], (one,), self.null)
        if code == TypeCode.OBJECT:
            inner = tuple(self.inside[n].to_field(n) for n in sorted(self.inside))
            return Field(name, code, BYTES, (), self.null, inner)
        if code in _LISTS or code in _CONTAINERS:
            item = self._item(code)
            return Field(name, code, item.dtype, (None,), self.null, (item,))
        if code == TypeCode.MAP:
            pair = tuple(self._inner(n) for n in ("keys", "values"))
            return Field(name, code, BYTES, (), self.null, pair)
        return Field(name, code, scalar_dtype(code, name), (), self.null)

    def _item(self, code: TypeCode) -> Field:
        if not self.child("item").codes and code in _LISTS:
            return Field("item", _LISTS[code], scalar_dtype(_LISTS[code], "item"), (), True)
        return self._inner("item")

    def _inner(self, name: str) -> Field:
        """The field inside a list or map; of empty ones nothing is known, and text is assumed."""
        if self.child(name).codes:
            return self.child(name).to_field(name)
        return Field(name, TypeCode.STRING, BYTES, (), True)


def scalar_dtype(code: TypeCode, name: str) -> np.dtype[np.generic]:
    """The dtype that values of this type have unless another is declared."""
    if code in _TEXTS:
        return BYTES
    if code in _INT64:
        return np.dtype("<i8")
    if code in _ENUMS:
        return np.dtype("<i4")
    if code in FIXED_DTYPE:
        return FIXED_DTYPE[code]
    raise SchemaError(
        f"field {name!r} of type {type_code(code)} cannot be read",
        hint="leave it out with fields=[...]",
        field=name,
    )


def observe_page(page: Page, key: Evidence, value: Evidence, registry: TypeRegistry) -> None:
    """Take in all entries of a page; raises UnknownType where the registry lacks a type."""
    key_at, value_at = find_rows(page.data, page.count)
    key.observe(page.data, key_at, registry)
    value.observe(page.data, value_at, registry)


def infer_schema(
    key: Evidence, value: Evidence, registry: TypeRegistry, only: Iterable[str] | None = None
) -> Schema:
    """The schema of a cache whose entries were observed.

    Args:
        key: Evidence of the keys.
        value: Evidence of the values.
        registry: Binary types, for their names.
        only: Names of value fields to describe; the others may have values of any type.

    Raises:
        SchemaError: Keys or values of several types, or a field that is unclear.
    """
    key_field = key.to_field("key")
    if value.codes <= {int(TypeCode.OBJECT)}:
        names = sorted(value.inside) if only is None else [n for n in only if n in value.inside]
        fields = tuple(value.inside[n].to_field(n) for n in names)
        # Several types in one cache: the fields are their union, under the first one's name.
        types = sorted(registry.type(t).name for t in value.types)
        return Schema(types[0] if types else "", key_field, fields)
    return Schema(None, key_field, (value.to_field("val"),))
