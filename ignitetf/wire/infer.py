"""Infers the schema of a cache without a manifest from its first pages.

evidence -> **infer** -> schema

A field has a fixed shape only if all records observed have that length, and is nullable if any was
null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.datatypes import ARRAY_ELEMENT, DATA_TYPES, LIST_ELEMENT, Family, types_of
from ignitetf.wire.evidence import Evidence, observe_objects
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import type_code
from ignitetf.wire.objects import find_rows
from ignitetf.wire.schema import BYTES, Column, Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["STORED_KEY", "field_of", "infer_schema", "key_column"]

_LISTS: Final = types_of(Family.LIST)
_LISTS_OF_ANY: Final = _LISTS - set(LIST_ELEMENT)
_ENUMS: Final = types_of(Family.ENUM)
# Types that are all there is to know of a field without values.
_TOLD: Final = {int(row.code) for row in DATA_TYPES.values() if row.value or row.element}
# A key of any type, as the bytes that are stored.
STORED_KEY: Final = Field("key", TypeCode.WRAPPED, BYTES)


def infer_schema(
    key: Evidence,
    value: Evidence,
    registry: TypeRegistry,
    only: Iterable[str] | None = None,
    left_out: dict[str, SchemaError] | None = None,
) -> Schema:
    """Infer the schema of a cache from the evidence of its entries.

    Args:
        key: Evidence of the keys.
        value: Evidence of the values.
        registry: Binary types, for their names.
        only: Names of value fields to describe; the others may have values of any type.
        left_out: Receives the fields that cannot be read, with the reason; if None, the first
            reason is raised. Nested fields are named by their path, `OUTER.INNER`.

    Raises:
        SchemaError: Keys or values have several types, or a field is ambiguous.
    """
    key_field = _key(key, registry)
    describer = _Describer(left_out, registry)
    if value.codes <= {int(TypeCode.OBJECT)} and not value.unreadable:
        names = sorted(value.inside) if only is None else [n for n in only if n in value.inside]
        fields = describer.fields(value, names, "")
        # Several types in one cache: use the union of their fields under the first type's name.
        types = sorted(map(registry.name, value.types))
        found = Schema(types[0] if types else "", key_field, fields)
    elif only is not None and not list(only):
        found = Schema("", key_field, ())
    else:
        found = _plain(key_field, value, left_out, registry)
    return _with_key_type(found, key, registry)


def _key(seen: Evidence, registry: TypeRegistry) -> Field:
    """Return the field of the keys: as stored, if they have no other form that all can be read in.

    Nothing but the key itself depends on what it means, so that it hides no field.
    """
    try:
        found = _Describer(None, registry).field(seen, "key", "key")
    except SchemaError:
        return STORED_KEY
    return STORED_KEY if found.type is TypeCode.OBJECT and not found.fields else found


def _plain(
    key: Field, value: Evidence, left_out: dict[str, SchemaError] | None, registry: TypeRegistry
) -> Schema:
    """Return the schema of values that are no objects with fields; of the keys alone without it."""
    try:
        return Schema(None, key, (_Describer(None, registry).field(value, "val", "val"),))
    except SchemaError as error:
        hint = "fields=[] reads the keys alone"
        if left_out is None:
            raise error.hinted(hint) from error
        left_out["val"] = error
        return Schema("", key, ())


def _with_key_type(schema: Schema, key: Evidence, registry: TypeRegistry) -> Schema:
    """Add what is needed to write a composite key: its type, and the stored order of its fields."""
    if schema.key.type != TypeCode.OBJECT or len(key.types) != 1:
        return schema
    (kind,) = map(registry.find, key.types)
    if kind is None or len(kind.schemas) != 1:
        return schema
    (stored,) = kind.schemas.values()
    by_id = {field.field_id: field for field in schema.key.fields}
    if set(stored) != set(by_id):
        return schema
    ordered = replace(schema.key, fields=tuple(by_id[number] for number in stored))
    return replace(schema, key=ordered, key_type_name=kind.name, affinity_key=kind.affinity_key)


def key_column(page: Page, row: int, registry: TypeRegistry) -> Column | None:
    """Return the key of one entry as a column of one record; None if it cannot be read.

    Raises:
        UnknownType: The registry lacks its type.
    """
    at = find_rows(page.data, page.count)[0][row : row + 1]
    seen = Evidence()
    try:
        observe_objects(seen, page.data, at, registry)
        field = _Describer(None, registry).field(seen, "key", "key")
        return decode_column(page.data, at, field, registry)
    except SchemaError:
        return None


class _Describer:
    """Turns evidence into fields."""

    def __init__(self, left_out: dict[str, SchemaError] | None, registry: TypeRegistry) -> None:
        self._left_out = left_out
        self._registry = registry

    def fields(self, seen: Evidence, names: Iterable[str], path: str) -> tuple[Field, ...]:
        """Return the fields of an object."""
        out = []
        for name in names:
            inner = f"{path}.{name}" if path else name
            try:
                out.append(self.field(self._told(seen, name), name, inner))
            except SchemaError as error:
                if self._left_out is None:
                    raise
                self._left_out[inner] = error
        return tuple(out)

    def _told(self, seen: Evidence, name: str) -> Evidence:
        """Return the evidence of an object's field, with its registered type if it has no other."""
        found = seen.inside[name]
        if found.codes or found.unreadable:
            return found
        kinds = [kind for t in sorted(seen.types) if (kind := self._registry.find(t)) is not None]
        codes = {kind.fields[kind.ids[name]][1] for kind in kinds if name in kind.ids}
        return replace(found, codes=codes & _TOLD)

    def field(self, seen: Evidence, name: str, path: str) -> Field:
        """Return the field that fits all the evidence.

        Raises:
            SchemaError: Its values cannot be read, have several types, or are all null.
        """
        for what, where in seen.unreadable.items():
            raise _unreadable(path, what, where)
        codes = {int(TypeCode.ENUM) if c in _ENUMS else c for c in seen.codes}
        if codes == set(map(int, _LISTS_OF_ANY)):
            codes = {int(TypeCode.COLLECTION)}
        if not codes:
            hint = f"pass schema={{{name!r}: ...}}, or leave it out with fields=[...]"
            raise SchemaError(
                f"field {path!r} has nothing but nulls, its type cannot be told",
                hint=hint if path == name else "leave it out with fields=[...]",
                field=_top(path),
            )
        if len(codes) > 1:
            found = ", ".join(type_code(c) for c in sorted(codes))
            raise SchemaError(
                f"field {path!r} has values of several types: {found}",
                hint="leave it out with fields=[...]",
                field=_top(path),
            )
        return self._of_code(seen, name, path, codes.pop())

    def _of_code(self, seen: Evidence, name: str, path: str, number: int) -> Field:
        try:
            code = TypeCode(number)
        except ValueError as error:
            raise SchemaError(f"field {path!r} is {type_code(number)}", field=_top(path)) from error
        if code in ARRAY_ELEMENT:
            one = next(iter(seen.lengths)) if len(seen.lengths) == 1 else None
            if code == TypeCode.BYTE_ARRAY and one is None:
                return Field(name, code, BYTES, (), seen.null)
            return Field(name, code, ARRAY_ELEMENT[code], (one,), seen.null)
        if code == TypeCode.OBJECT:
            inner = self.fields(seen, sorted(seen.inside), path)
            return Field(name, code, BYTES, (), seen.null, inner)
        if code in _LISTS:
            item = self._inner(seen, "item", path, LIST_ELEMENT.get(code, TypeCode.STRING))
            return Field(name, code, item.dtype, (None,), seen.null, (item,), item.labels)
        if code == TypeCode.MAP:
            pair = tuple(self._inner(seen, n, path, TypeCode.STRING) for n in ("keys", "values"))
            return Field(name, code, BYTES, (), seen.null, pair)
        labels = self._registry.constants(seen.types) if code in _ENUMS else None
        return Field(name, code, scalar_dtype(code, path), (), seen.null, labels=labels)

    def _inner(self, seen: Evidence, name: str, path: str, assumed: TypeCode) -> Field:
        """The field inside a list or map; if all were empty, its type is assumed."""
        inner = seen.child(name)
        if inner.codes or inner.unreadable:
            return self.field(inner, name, f"{path}.{name}")
        return Field(name, assumed, scalar_dtype(assumed, name), (), True)


def field_of(name: str, code: TypeCode, *, nullable: bool) -> Field:
    """Return the field of values of a type of which none was seen; its values differ in length."""
    dtype = DATA_TYPES[code].value
    if dtype is None:
        raise SchemaError(f"field {name!r} of type {type_code(code)} has no one form", field=name)
    return Field(name, code, dtype, (), nullable)


def _unreadable(path: str, what: str, where: dict[str, Any]) -> SchemaError:
    places = [f"{name} {value}" for name, value in where.items() if name != "cache"]
    place = f" ({', '.join(places)})" if places else ""
    return SchemaError(
        f"field {path!r} has {what}{place}, which cannot be read",
        hint="leave it out with fields=[...]: the other fields can be read",
        **{**where, "field": _top(path)},
    )


def _top(path: str) -> str:
    """The top-level field, which is what can be left out."""
    return path.partition(".")[0]


def scalar_dtype(code: TypeCode, name: str) -> np.dtype[np.generic]:
    """Return the default dtype for values of this type."""
    if (value := DATA_TYPES[code].value) is not None:
        return value
    raise SchemaError(
        f"field {name!r} of type {type_code(code)} cannot be read",
        hint="leave it out with fields=[...]",
        field=_top(name),
    )
