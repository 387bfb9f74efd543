"""Builds the requests that register a schema's binary types with the cluster (op 3003).

A type must be registered before its first object is stored, so that SQL, pyignite and Java clients
can find the names of its fields. Registering again is harmless; the cluster merges fields.

Source: Apache Ignite 2.17.0, `ClientBinaryTypePutRequest`, `PlatformUtils.readBinaryMetadata`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.encode import nested_type_name
from ignitetf.wire.parameters import encode_string
from ignitetf.wire.schema import Field, Schema, schema_id

__all__ = ["binary_type_requests", "binary_types"]


def binary_type_requests(schema: Schema) -> list[bytes]:
    """Return bodies of BINARY_TYPE_PUT for the key's types, then the value's, inner types first."""
    return [_request(*item) for item in binary_types(schema)]


def binary_types(schema: Schema) -> list[tuple[str, Sequence[Field], str | None]]:
    """Return name, fields and affinity key of a schema's binary types, inner types first."""
    found: list[tuple[str, Sequence[Field], str | None]] = []
    if schema.key_type_name is not None:
        found += _types(schema.key_type_name, schema.key.fields, schema.affinity_key)
    if schema.type_name is not None:
        found += _types(schema.type_name, schema.fields, None)
    return found


def _types(
    name: str, fields: Sequence[Field], affinity_key: str | None
) -> Iterator[tuple[str, Sequence[Field], str | None]]:
    for field in fields:
        yield from _inner_types(nested_type_name(name, field), field)
    yield name, fields, affinity_key


def _inner_types(name: str, field: Field) -> Iterator[tuple[str, Sequence[Field], str | None]]:
    """The types of objects in a field: its own, or those of list items, map keys and values."""
    if field.type is TypeCode.OBJECT:
        yield from _types(name, field.fields, None)
    elif field.type is TypeCode.MAP:
        for inner in field.fields:
            yield from _inner_types(nested_type_name(name, inner), inner)
    elif field.fields:
        yield from _inner_types(name, field.fields[0])


def _request(name: str, fields: Sequence[Field], affinity_key: str | None) -> bytes:
    affinity = bytes([TypeCode.NULL]) if affinity_key is None else encode_string(affinity_key)
    body = struct.pack("<i", java_hash_lower(name)) + encode_string(name) + affinity
    body += struct.pack("<i", len(fields))
    for field in fields:
        body += encode_string(field.name) + struct.pack("<ii", field.type, field.field_id)
    ids = [field.field_id for field in fields]
    body += struct.pack("<bi", 0, 1)  # not an enum; one schema
    return body + struct.pack(f"<ii{len(ids)}i", schema_id(tuple(fields)), len(ids), *ids)
