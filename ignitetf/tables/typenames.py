"""Finds names for binary types that are free or already stand for the same fields.

A cluster remembers a binary type forever, even after its last cache is gone, and refuses to change
the type of a field. So a table that is created again with other columns needs a new type name.
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
    fields = json.dumps([field.to_json() for field in schema.fields])
    return replace(schema, type_name=f"{schema.type_name}_{zlib.crc32(fields.encode()):08X}")


def _differs(client: Client, name: str, fields: Sequence[Field]) -> bool:
    """Whether the cluster knows this type with a different type for some field."""
    found = stored_type(client, java_hash_lower(name))
    known = {} if found is None else found.fields
    return any(
        field.field_id in known and known[field.field_id][1] != field.type for field in fields
    )
