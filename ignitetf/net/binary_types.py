"""Fetches binary types and class names from the cluster when decoding meets an unknown one.

wire -> **binary_types** -> read, load
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from ignitetf.errors import IgniteTFError, SchemaError, ServerError
from ignitetf.net.pool import Pool
from ignitetf.threads import BackgroundCall
from ignitetf.wire.codes import OpCode
from ignitetf.wire.requests import class_name_request, type_request
from ignitetf.wire.types import (
    BinaryType,
    TypeRegistry,
    UnknownClass,
    UnknownType,
    read_binary_type,
    read_class_name,
)

__all__ = ["fetch_ahead", "stored_type", "with_types"]

T = TypeVar("T")


def with_types(pool: Pool, registry: TypeRegistry, work: Callable[..., T], *args: Any) -> T:
    """Run `work(*args)`; when a type or class name is missing, fetch it and run again.

    Raises:
        SchemaError: The cluster does not know a schema of a type.
    """
    asked: set[tuple[int, int]] = set()
    while True:
        try:
            return work(*args)
        except UnknownClass as missing:
            registry.add_class(missing.class_id, _class_name(pool, missing.class_id))
        except UnknownType as missing:
            place = (missing.type_id, missing.schema_id)
            if place in asked:
                raise SchemaError(
                    f"the cluster does not know binary type {missing.type_id} with schema"
                    f" {missing.schema_id}",
                    hint="was it written by a client that registers no types?",
                ) from missing
            asked.add(place)
            if (found := stored_type(pool, missing.type_id)) is None:
                registry.add_missing(missing.type_id)
            else:
                registry.add(found)


def fetch_ahead(pool: Pool, registry: TypeRegistry, type_id: int) -> BackgroundCall | None:
    """Start to fetch a type that will be needed, while the first rows are under way.

    Args:
        pool: The connections.
        registry: The type is added here, unless it is known already.
        type_id: Its id; 0 means that there is no type.

    Returns:
        The call that fetches it, in a single try; None if there is nothing to fetch. It reports no
        error: code that needs the type requests it again.
    """

    def fetch() -> None:
        with contextlib.suppress(IgniteTFError), pool.channel() as channel:
            answer = channel.call(OpCode.BINARY_TYPE_GET, type_request(type_id))
            if (found := read_binary_type(answer)) is not None:
                registry.add(found)

    if not type_id or registry.knows(type_id):
        return None
    return BackgroundCall(fetch)


def stored_type(pool: Pool, type_id: int) -> BinaryType | None:
    """Return the cluster's current definition of a binary type, or None if it has none."""
    return read_binary_type(pool.call(OpCode.BINARY_TYPE_GET, type_request(type_id)))


def _class_name(pool: Pool, class_id: int) -> str | None:
    try:
        body = pool.call(OpCode.BINARY_TYPE_NAME_GET, class_name_request(class_id))
    except ServerError:
        return None
    return read_class_name(body)
