"""Requests that make a schema's binary types known to the cluster (op 3003).

A type must be registered before its first object, so that SQL, pyignite and Java clients find
the names of its fields. Registering again is harmless; the cluster merges fields.

Source: Apache Ignite 2.17.0, `ClientBinaryTypePutRequest`, `PlatformUtils.readBinaryMetadata`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.encode import nested_type_name
from ignitetf.wire.schema import Field, Schema, schema_id

__all__ = ["binary_type_requests"]


def binary_type_requests(schema: Schema) -> list[bytes]:
    """Bodies of BINARY_TYPE_PUT, inner types first: the value's, the key's, nested ones."""
    requests: list[bytes] = []
    if schema.key_type_name is not None:
        requests += _requests(schema.key_type_name, schema.key.fields, schema.affinity_key)
    if schema.type_name is not None:
        requests += _requests(schema.type_name, schema.fields, None)
    return requests


def _requests(name: str, fields: Sequence[Field], affinity_key: str | None) -> Iterator[bytes]:
    for field in fields:
        if field.type is TypeCode.OBJECT:
            yield from _requests(nested_type_name(name, field), field.fields, None)
    yield _request(name, fields, affinity_key)


def _request(name: str, fields: Sequence[Field], affinity_key: str | None) -> bytes:
    body = struct.pack("<i", java_hash_lower(name)) + _string(name) + _string(affinity_key)
    body += struct.pack("<i", len(fields))
    for field in fields:
        body += _string(field.name) + struct.pack("<ii", field.type, field.field_id)
    ids = [field.field_id for field in fields]
    body += struct.pack("<bi", 0, 1)  # no enum, one schema
    return body + struct.pack(f"<ii{len(ids)}i", schema_id(tuple(fields)), len(ids), *ids)


def _string(text: str | None) -> bytes:
    if text is None:
        return bytes([TypeCode.NULL])
    data = text.encode("utf-8")
    return struct.pack("<bi", TypeCode.STRING, len(data)) + data
