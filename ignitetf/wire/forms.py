"""`Form`: how the rows of one schema are stored, learned from one of them; for the builder in C.

objects, fields -> **forms** -> builder

A row of a known form needs no look-up: its fields stand one after the other, in the order of the
schema. Only types whose values can be copied without being understood are supported; all others,
and rows in other forms, are left to `decoder`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.errors import WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.columns import is_widened
from ignitetf.wire.datatypes import ALIKE, ARRAY_ELEMENT, BYTES, DATA_TYPES, FIXED_DTYPE, Family
from ignitetf.wire.fields import compact_fields, headers
from ignitetf.wire.objects import Bytes, object_end, unwrap
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Form", "Place", "StoredField", "What", "entry_end", "learn", "place_of", "plain_value"]

# `MAX_FIELDS` of _rows.c.
_MAX_FIELDS: Final = 256
_NUMERIC: Final = "iufb"
_WHOLE: Final = frozenset({Family.UUID, Family.TIMESTAMP, Family.ENUM, Family.DECIMAL})


class What(enum.IntEnum):
    """What becomes of a value; see _rows.c."""

    SKIP = 0
    DENSE = 1
    NARROW = 2
    RUN = 3
    WHOLE = 4


@dataclass(frozen=True)
class Place:
    """Where the values of a field go.

    Attributes:
        what: What becomes of each.
        size: Bytes of a dense value; 0 for values in a heap.
        unit: Bytes of an item in the heap.
        step: Items in a heap come in multiples of so many bytes.
    """

    what: What
    size: int = 0
    unit: int = 1
    step: int = 1


@dataclass(frozen=True)
class StoredField:
    """A field of a form.

    Attributes:
        code: Type code of its objects.
        column: Index of its column; -1 if it is skipped.
    """

    code: int
    column: int = -1


@dataclass(frozen=True)
class Form:
    """The fields of one schema of a binary type.

    Attributes:
        type_id: Id of the type.
        schema_id: Id of the schema.
        flags: Flags of its objects.
        fields: In stored order.
        lacking: Columns that have no field here: they are null.
    """

    type_id: int
    schema_id: int
    flags: int
    fields: tuple[StoredField, ...]
    lacking: tuple[int, ...]


def place_of(field: Field) -> Place | None:
    """Return where a field's values go; None if that takes more than copying them."""
    family = DATA_TYPES[field.type].family
    if family in (Family.NUMBER, Family.MILLISECONDS):
        return _number(field)
    if family is Family.TEXT:
        return Place(What.RUN) if field.dtype == BYTES and not field.shape else None
    if family is Family.ARRAY:
        return _array(field)
    return Place(What.WHOLE) if family in _WHOLE and not field.shape else None


def _number(field: Field) -> Place | None:
    stored = FIXED_DTYPE[field.type]
    if field.shape or field.dtype.kind not in _NUMERIC:
        return None
    if is_widened(field.dtype, stored):
        return Place(What.NARROW, field.dtype.itemsize)
    same = field.dtype.itemsize == stored.itemsize
    return Place(What.DENSE, stored.itemsize) if same else None


def _array(field: Field) -> Place | None:
    width = ARRAY_ELEMENT[field.type].itemsize
    if field.dtype == BYTES:
        return Place(What.RUN) if not field.shape else None
    if field.dtype.itemsize != width or field.dtype.kind not in _NUMERIC or field.size == 0:
        return None
    if field.ragged:
        return Place(What.RUN, unit=width, step=width * field.size)
    return Place(What.DENSE, width * field.size)


def plain_value(schema: Schema) -> Field | None:
    """Return the field of values that are no binary objects; None if they are."""
    return schema.fields[0] if schema.type_name is None else None


def entry_end(data: Bytes) -> int | None:
    """Return where the first entry of these bytes ends; None if they have no whole one."""
    view = memoryview(data)  # type: ignore[arg-type]
    try:
        return object_end(view, object_end(view, 0))
    except (IndexError, struct.error, WireError, RecursionError):
        return None


def learn(entry: Bytes, wanted: Sequence[Field], registry: TypeRegistry) -> Form | None:
    """Learn the form of an entry whose value is a binary object; None if it has no known one.

    Args:
        entry: The entry's bytes, and no others.
        wanted: The fields that have columns, in the order of these.
        registry: Known binary types.

    Raises:
        UnknownType: The registry lacks the type or the schema.
        WireError: The entry is damaged.
    """
    start = object_end(memoryview(entry), 0)  # type: ignore[arg-type]
    at = unwrap(entry, np.array([start], np.int64))
    if entry[at[0]] != TypeCode.OBJECT:
        return None
    head = headers(entry, at)
    flags = int(head.flags[0])
    if not flags & BinaryFlag.COMPACT_FOOTER or flags & BinaryFlag.HAS_RAW:
        return None
    order, offsets = compact_fields(entry, head, registry)
    if len(order) > _MAX_FIELDS:
        return None
    type_id = int(head.type_id[0])
    ids = registry.field_ids(type_id, [f.name for f in wanted])
    column_of = {field_id: column for column, field_id in enumerate(ids)}
    lacking = tuple(column for field_id, column in column_of.items() if field_id not in order)
    if not all(wanted[column].nullable for column in lacking):
        return None
    fields = []
    for field_id, start in zip(order, (at[0] + offsets).tolist(), strict=True):
        found = _stored(column_of.get(field_id), int(entry[start]), wanted)
        if found is None:
            return None
        fields.append(found)
    return Form(type_id, int(head.schema_id[0]), flags, tuple(fields), lacking)


def _stored(column: int | None, code: int, wanted: Sequence[Field]) -> StoredField | None:
    if column is None:
        return StoredField(0)
    field = wanted[column]
    if code == TypeCode.NULL:
        return StoredField(field.type, column)
    return StoredField(code, column) if code in ALIKE[field.type] else None


def extent_of(code: int) -> tuple[int, int, int]:
    """Return head, unit and position of the count of a type's objects, in bytes."""
    extent: Any = DATA_TYPES[TypeCode(code)].extent
    return extent.head, extent.unit, extent.count_at
