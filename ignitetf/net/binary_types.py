"""The binary types and class names of a cluster, asked for when bytes turn up that need them.

wire -> **registry** -> read, load
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ignitetf.errors import SchemaError, ServerError
from ignitetf.net.client import Client
from ignitetf.wire.codes import OpCode
from ignitetf.wire.types import (
    TypeRegistry,
    UnknownClass,
    UnknownType,
    read_binary_type,
    read_class_name,
)

__all__ = ["with_types"]

T = TypeVar("T")

_JAVA: Final = 0


def with_types(client: Client, registry: TypeRegistry, work: Callable[..., T], *args: Any) -> T:
    """Run `work(*args)`, and look up what it asks for until it has all of it.

    Raises:
        SchemaError: The cluster does not know a schema of a type.
    """
    asked: set[tuple[int, int]] = set()
    while True:
        try:
            return work(*args)
        except UnknownClass as missing:
            registry.add_class(missing.class_id, _class_name(client, missing.class_id))
        except UnknownType as missing:
            place = (missing.type_id, missing.schema_id)
            if place in asked:
                raise SchemaError(
                    f"the cluster does not know binary type {missing.type_id} with schema"
                    f" {missing.schema_id}",
                    hint="was it written by a client that registers no types?",
                ) from missing
            asked.add(place)
            body = client.call(OpCode.BINARY_TYPE_GET, struct.pack("<i", missing.type_id))
            if (found := read_binary_type(body)) is None:
                registry.add_missing(missing.type_id)
            else:
                registry.add(found)


def _class_name(client: Client, class_id: int) -> str | None:
    try:
        body = client.call(OpCode.BINARY_TYPE_NAME_GET, struct.pack("<bi", _JAVA, class_id))
    except ServerError:
        return None
    return read_class_name(body)
