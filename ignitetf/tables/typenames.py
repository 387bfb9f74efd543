"""Finds names for binary types that are free or already stand for the same fields.

A cluster remembers a binary type forever, even after its last cache is gone, and refuses to change
the type of a field. So a table that is created again with other columns needs a new type name. So
does one whose name has the hash of another's (`U8` and `SV`), since a type is known by that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace

from ignitetf.net.binary_types import stored_type
from ignitetf.net.client import Client
from ignitetf.wire.codes import java_hash_lower
from ignitetf.wire.register import binary_types
from ignitetf.wire.schema import Field, Schema

__all__ = ["with_free_name"]


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
    """Whether the cluster knows another type by this id, or with another type for some field."""
    if (found := stored_type(client, java_hash_lower(name))) is None:
        return False
    return found.name != name or any(
        field.field_id in found.fields and found.fields[field.field_id][1] != field.type
        for field in fields
    )
