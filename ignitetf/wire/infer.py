"""Infers the schema of a cache without a manifest from its first pages.

objects, meaning -> **infer** -> schema

A field has a fixed shape only if all observed records have the same length. It is nullable if any
value was null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.columns import Column
from ignitetf.wire.datatypes import ARRAY_ELEMENT, DATA_TYPES, LIST_ELEMENT, Family, types_of
from ignitetf.wire.decode import decode_column
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import described, is_raw, meant, type_code
from ignitetf.wire.objects import (
    Bytes,
    Positions,
    field_positions,
    find_elements,
    find_rows,
    full_fields,
    gather,
    headers,
)
from ignitetf.wire.schema import BYTES, Field, Schema
from ignitetf.wire.types import BinaryType, TypeRegistry, unregistered_name

__all__ = [
    "STORED_KEY",
    "Evidence",
    "Where",
    "field_of",
    "infer_schema",
    "key_column",
    "observe_objects",
    "observe_page",
]

_HOLD_OBJECTS: Final = types_of(Family.LIST, Family.MAP)
_FOREIGN: Final = types_of(Family.STAND_IN)
_ENUMS: Final = types_of(Family.ENUM)
_MAX_DEPTH: Final = 64
# More nested fields than this only arise from objects that refer to each other repeatedly.
_MOST_FIELDS: Final = 2048
_MOST_CLASSES: Final = 8
# Position of the tag and the class id of an object in Java's own serialization.
_CLASS_AT: Final = range(5, 10)

# Maps a row number of the current page to the location of that record.
Where = Callable[[int], dict[str, Any]]


@dataclass
class Evidence:
    """Observations of one field: type codes, nulls, lengths, and the same for nested fields.

    Attributes:
        codes: Type codes of the readable values.
        null: True if any value was null or missing.
        lengths: Lengths of arrays; more than one means that they differ.
        types: Ids of binary types, including enums.
        inside: Evidence of fields, of the `item` of a list, of `keys` and `values` of a map.
        unreadable: Descriptions of unreadable values, each with the location of the first one.
    """

    codes: set[int] = field(default_factory=set)
    null: bool = False
    lengths: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    inside: dict[str, Evidence] = field(default_factory=dict)
    unreadable: dict[str, dict[str, Any]] = field(default_factory=dict)

    def child(self, name: str) -> Evidence:
        """Return the evidence of a field, of a list's items, or of a map's keys or values."""
        return self.inside.setdefault(name, Evidence())


def observe_page(
    page: Page, key: Evidence, value: Evidence, registry: TypeRegistry, where: Where | None = None
) -> None:
    """Record all entries of a page.

    Raises:
        UnknownType: The registry lacks a type.
        UnknownClass: The registry lacks the name of an unreadable class.
    """
    rows = np.arange(page.count, dtype=np.int64)
    look = _FieldScan(registry, where or (lambda row: {"record": row}))
    for seen, at in zip((key, value), find_rows(page.data, page.count), strict=True):
        look.observe(seen, page.data, at, rows)


def observe_objects(seen: Evidence, data: Bytes, at: Positions, registry: TypeRegistry) -> None:
    """Record single objects of a page; raises the same errors as `observe_page`."""
    rows = np.arange(len(at), dtype=np.int64)
    _FieldScan(registry, lambda row: {"record": row}).observe(seen, data, at, rows)


class _TooMuch(Exception):
    """A field has too many nested fields or levels."""


@dataclass(frozen=True)
class _FieldScan:
    """The examination of one page."""

    registry: TypeRegistry
    where: Where
    depth: int = 0
    left: list[int] = field(default_factory=lambda: [_MOST_FIELDS])

    def observe(self, seen: Evidence, data: Bytes, at: Positions, rows: Positions) -> None:
        """Record the objects at these positions, which belong to `rows`; -1 counts as a null."""
        self.left[0] -= 1
        if self.depth > _MAX_DEPTH:
            raise _TooMuch(f"objects nested more than {_MAX_DEPTH} deep")
        if self.left[0] < 0:
            raise _TooMuch(f"objects of more than {_MOST_FIELDS} fields within it")
        data, at, codes = meant(data, at)
        valid = codes != TypeCode.NULL
        seen.null |= not bool(valid.all())
        for code in np.unique(codes[valid]).tolist():
            which = np.flatnonzero(codes == code)
            if code in _FOREIGN:
                for i in which[_one_of_each_class(data, at[which])].tolist():
                    self._note(seen, described(data, int(at[i]), code, self.registry), rows[i])
            else:
                seen.codes.add(code)
                inner = replace(self, depth=self.depth + 1)
                inner._observe_elements(seen, code, data, at[which], rows[which])

    def _note(self, seen: Evidence, what: str, row: int) -> None:
        if what not in seen.unreadable:
            seen.unreadable[what] = self.where(int(row))

    def _observe_elements(
        self, seen: Evidence, code: int, data: Bytes, at: Positions, rows: Positions
    ) -> None:
        if code in ARRAY_ELEMENT:
            if len(seen.lengths) < 2:
                seen.lengths |= {int(n) for n in np.unique(gather(data, at + 1, "<i4"))[:2]}
        elif code in _ENUMS:
            for type_id in np.unique(gather(data, at + 1, "<i4")).tolist():
                self.registry.find(type_id)
                seen.types.add(type_id)
        elif code == TypeCode.OBJECT:
            self._observe_fields(seen, data, at, rows)
        elif code in _HOLD_OBJECTS:
            found, counts = find_elements(data, at)
            rows = np.repeat(rows, counts)
            if code == TypeCode.MAP:
                self.observe(seen.child("keys"), data, found[0::2], rows[0::2])
                self.observe(seen.child("values"), data, found[1::2], rows[1::2])
            else:
                self.observe(seen.child("item"), data, found, rows)

    def _observe_fields(self, seen: Evidence, data: Bytes, at: Positions, rows: Positions) -> None:
        found = headers(data, at)
        names: set[str] = set()
        table = np.stack([found.type_id, found.schema_id, found.flags.astype(np.int32)], axis=1)
        kinds, firsts = np.unique(table, axis=0, return_index=True)
        raw = is_raw(found.flags)
        for (type_id, schema_id, flags), first in zip(kinds.tolist(), firsts.tolist(), strict=True):
            known = self.registry.find(type_id, schema_id)
            if raw[first]:
                what = described(data, int(at[first]), TypeCode.OBJECT, self.registry)
                self._note(seen, what, rows[first])
            elif known is not None:
                seen.types.add(type_id)
                names |= _field_names(known, schema_id, flags, self.registry)
            elif not flags & BinaryFlag.COMPACT_FOOTER:
                seen.types.add(type_id)
                if flags & BinaryFlag.HAS_SCHEMA:
                    names |= set(map(unregistered_name, full_fields(data, found, first)))
            elif flags & BinaryFlag.HAS_SCHEMA:
                self._note(seen, f"an object of an unknown type ({type_id})", rows[first])
        if seen.unreadable:
            return
        places = field_positions(data, found, self.registry, names)
        for name in sorted(names):
            inner = seen.child(name)
            if self.depth > 1:
                self.observe(inner, data, places[name], rows)
            elif not inner.unreadable:
                try:
                    part = replace(self, left=[_MOST_FIELDS])
                    part.observe(inner, data, places[name], rows)
                except _TooMuch as found_out:
                    self._note(inner, str(found_out), rows[0])


def _field_names(known: BinaryType, schema_id: int, flags: int, registry: TypeRegistry) -> set[str]:
    """Return the names of the fields in objects of a type with one schema."""
    if not flags & BinaryFlag.HAS_SCHEMA:
        return set()
    # A full footer lists its own fields, which may be any fields of the type.
    compact = flags & BinaryFlag.COMPACT_FOOTER
    order = registry.schema(known.type_id, schema_id) if compact else known.fields
    return {known.fields[number][0] for number in order if number in known.fields}


def _one_of_each_class(data: Bytes, at: Positions) -> Positions:
    """Return the indices of one object of each class."""
    heads = np.stack([data[np.minimum(at + i, len(data) - 1)] for i in _CLASS_AT], axis=1)
    first: Positions = np.unique(heads, axis=0, return_index=True)[1]
    return first[:_MOST_CLASSES]


_LISTS: Final = types_of(Family.LIST)
_LISTS_OF_ANY: Final = _LISTS - set(LIST_ELEMENT)
# Types that fully describe a field, so they are enough if it has no values.
_CERTAIN_CODES: Final = {int(row.code) for row in DATA_TYPES.values() if row.value or row.element}
# A key of any type, read as its stored bytes.
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
    """Return the field of the keys: their stored bytes, if no single form can read all of them.

    Only the key column depends on this choice, so unreadable keys do not hide any field.
    """
    try:
        found = _Describer(None, registry).field(seen, "key", "key")
    except SchemaError:
        return STORED_KEY
    return STORED_KEY if found.type is TypeCode.OBJECT and not found.fields else found


def _plain(
    key: Field, value: Evidence, left_out: dict[str, SchemaError] | None, registry: TypeRegistry
) -> Schema:
    """Return the schema of values that are not objects; if unreadable, that of the keys alone."""
    try:
        return Schema(None, key, (_Describer(None, registry).field(value, "val", "val"),))
    except SchemaError as error:
        hint = "fields=[] reads the keys alone"
        if left_out is None:
            raise error.hinted(hint) from error
        left_out["val"] = error
        return Schema("", key, ())


def _with_key_type(schema: Schema, key: Evidence, registry: TypeRegistry) -> Schema:
    """Add the type and the stored order of fields of a composite key, which writing needs."""
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
        UnknownType: The registry lacks the type of the key.
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
                out.append(self.field(self._without_uncertain(seen, name), name, inner))
            except SchemaError as error:
                if self._left_out is None:
                    raise
                self._left_out[inner] = error
        return tuple(out)

    def _without_uncertain(self, seen: Evidence, name: str) -> Evidence:
        """Return the evidence of an object's field; without values, use its registered type."""
        found = seen.inside[name]
        if found.codes or found.unreadable:
            return found
        kinds = [kind for t in sorted(seen.types) if (kind := self._registry.find(t)) is not None]
        codes = {kind.fields[kind.ids[name]][1] for kind in kinds if name in kind.ids}
        return replace(found, codes=codes & _CERTAIN_CODES)

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
                f"field {path!r} has only nulls, so its type is unknown",
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
        return self._field_of_code(seen, name, path, codes.pop())

    def _field_of_code(self, seen: Evidence, name: str, path: str, number: int) -> Field:
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
        """Return the field inside a list or map; if all were empty, use the assumed type."""
        inner = seen.child(name)
        if inner.codes or inner.unreadable:
            return self.field(inner, name, f"{path}.{name}")
        return Field(name, assumed, scalar_dtype(assumed, name), (), True)


def field_of(name: str, code: TypeCode, *, nullable: bool) -> Field:
    """Return the field of a type of which no value was seen; its values may differ in length."""
    dtype = DATA_TYPES[code].value
    if dtype is None:
        raise SchemaError(
            f"field {name!r} of type {type_code(code)} needs values to show its form", field=name
        )
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
    """Return the top-level field of a path; only such a field can be left out."""
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
