"""Binary types of a schema: finds names that are free or have the same fields, and registers.

A cluster keeps a binary type forever, even after the removal of its last cache, and refuses to
change the type of a field. So a table that is created again with other columns needs a new type
name. So does a type whose name has the same hash as another's (`U8` and `SV`), because the hash is
its id.

A type must be registered (op 3003) before its first object is stored, so that SQL, pyignite and
Java clients can find the names of its fields. Registering again is harmless; the cluster merges
fields.

Source: Apache Ignite 2.17.0, `ClientBinaryTypePutRequest`, `PlatformUtils.readBinaryMetadata`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ignitetf.net.binary_types import stored_type
from ignitetf.net.client import Client
from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.encode import nested_type_name
from ignitetf.wire.requests import encode_string
from ignitetf.wire.schema import Field, Schema, schema_id

__all__ = ["binary_type_requests", "binary_types", "with_free_name"]


def with_free_name(client: Client, schema: Schema, stored: Sequence[Schema]) -> Schema:
    """Return the schema, renamed if one of its binary types already has conflicting fields.

    Args:
        client: The connection.
        schema: The records.
        stored: The schemas of everything stored for these records; their names begin with the
            schema's name.
    """
    if schema.type_name is None:
        return schema
    types = [item for one in stored for item in binary_types(one) if item[0] != one.key_type_name]
    if not any(_differs(client, name, fields) for name, fields, _ in types):
        return schema
    content = json.dumps([schema.type_name, *(field.to_json() for field in schema.fields)])
    return replace(schema, type_name=f"{schema.type_name}_{zlib.crc32(content.encode()):08X}")


def _differs(client: Client, name: str, fields: Sequence[Field]) -> bool:
    """True if the cluster knows another type by this id, or with another type for some field."""
    if (found := stored_type(client, java_hash_lower(name))) is None:
        return False
    return found.name != name or any(
        field.field_id in found.fields and found.fields[field.field_id][1] != field.type
        for field in fields
    )


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
    """Yield the object types in a field: its own, or those of list items, map keys and values."""
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
