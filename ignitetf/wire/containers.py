"""Encodes arrays of objects, collections, maps and enums, as the mirror of `decode`.

Batch -> **parts of parts** -> encode -> page of entries

Lists are one column of all their elements, whose objects follow each other; a map is a list of
pairs. Elements can be any objects, including null.

Source: Apache Ignite 2.17.0, `BinaryWriterExImpl`, `BinaryUtils.doReadCollection`,
`GridBinaryMarshaller` (kinds of collections and maps).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.columns import Column, Runs, Struct
from ignitetf.wire.datatypes import DATA_TYPES, LIST_ELEMENT, Family, family_of
from ignitetf.wire.encoders import (
    Bytes,
    FixedPart,
    Part,
    Positions,
    RunsPart,
    as_bytes,
    dense_values,
    each,
)
from ignitetf.wire.schema import Field

__all__ = ["container_part", "element_field", "enum_part"]

_ANY_OBJECT: Final = -1  # the type id of java.lang.Object
_ARRAY_LIST: Final = 1
_LINKED_MAP: Final = 2

PartOf = Callable[[Field, Column], Part]


def element_field(field: Field) -> Field:
    """Return the field that describes the elements of a list."""
    if field.fields:
        return field.fields[0]
    if (code := LIST_ELEMENT.get(field.type)) is None:
        raise SchemaError(f"field {field.name!r}: the type of its elements is not declared")
    return Field(field.name, code, field.dtype, field.shape[1:], True)


def container_part(field: Field, column: Column, type_id: int, part_of: PartOf) -> Part:
    """Return the part that encodes a column of lists or maps without nulls.

    Args:
        field: A field of the family LIST or MAP.
        column: Runs of elements; for maps, two such columns `keys` and `values`.
        type_id: Type id of the enum, for arrays of enums.
        part_of: Makes the part for a column of elements.

    Raises:
        SchemaError: The column does not have this form.
    """
    if family_of(field.type) is Family.MAP:
        return _maps(field, column, part_of)
    inner, offsets = _elements(field, column)
    part = part_of(element_field(field), inner)
    sizes = each(part.sizes, len(inner))
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    flat = np.empty(int(ends[-1]), np.uint8)
    part.scatter(flat, ends[:-1])
    heads = _heads(field, np.diff(offsets), type_id)
    return RunsPart(heads, flat, ends[offsets[:-1]], ends[offsets[1:]] - ends[offsets[:-1]])


def enum_part(field: Field, column: Column, type_id: int) -> Part:
    """Return the part that encodes enums, given by their ordinals."""
    ordinals = dense_values(column)
    if ordinals.dtype.kind not in "iu" or ordinals.ndim != 1:
        raise SchemaError(f"field {field.name!r}: values are {ordinals.dtype}, expected ordinals")
    return FixedPart(struct.pack("<bi", field.type, type_id), as_bytes(ordinals.astype("<i4")))


def _maps(field: Field, column: Column, part_of: PartOf) -> Part:
    if not isinstance(column, Struct) or set(column.fields) != {f.name for f in field.fields}:
        raise SchemaError(f"field {field.name!r}: values are not columns of keys and values")
    found = [_elements(inner, column.fields[inner.name]) for inner in field.fields]
    offsets = found[0][1]
    if not np.array_equal(offsets, found[1][1]):
        raise SchemaError(f"field {field.name!r}: a map has not as many values as keys")
    parts = [part_of(f, inner) for f, (inner, _) in zip(field.fields, found, strict=True)]
    count = int(offsets[-1])
    keys, values = (each(part.sizes, count) for part in parts)
    ends = np.concatenate(([0], np.cumsum(keys + values, dtype=np.int64)))
    flat = np.empty(int(ends[-1]), np.uint8)
    parts[0].scatter(flat, ends[:-1])
    parts[1].scatter(flat, ends[:-1] + keys)
    heads = _heads(field, np.diff(offsets), 0)
    return RunsPart(heads, flat, ends[offsets[:-1]], ends[offsets[1:]] - ends[offsets[:-1]])


def _elements(field: Field, column: Column) -> tuple[Column, Positions]:
    """Return all elements as one column, and the bounds of the lists in it."""
    if not isinstance(column, Runs):
        raise SchemaError(f"field {field.name!r}: values are not lists")
    return column.compact()


def _heads(field: Field, counts: Positions, type_id: int) -> Bytes:
    """The bytes before the elements of each list: type code, count, and kind of list."""
    row = DATA_TYPES[field.type]
    assert row.extent is not None
    lengths = as_bytes(counts.astype("<i4"))
    before, after = bytes([field.type]), b""
    if row.extent.class_id:
        before += struct.pack("<i", _ANY_OBJECT if row.element is None else type_id)
    if row.extent.head > len(before) + 4:
        after = bytes([_LINKED_MAP if row.family is Family.MAP else _ARRAY_LIST])
    heads = np.empty((len(counts), len(before) + 4 + len(after)), np.uint8)
    heads[:, : len(before)] = np.frombuffer(before, np.uint8)
    heads[:, len(before) : len(before) + 4] = lengths
    heads[:, len(before) + 4 :] = np.frombuffer(after, np.uint8)
    return heads
