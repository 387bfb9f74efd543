"""What a failure means: the error of an answer, and whether trying again makes sense.

transport, client -> **failures** -> errors
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

from ignitetf.errors import (
    AuthenticationError,
    CacheExists,
    CacheNotFound,
    ConnectError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    SqlError,
    TlsError,
    WireError,
)
from ignitetf.wire.codes import Status

__all__ = ["damaged", "is_retryable", "server_error"]


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Raise WireError where the bytes of an answer cannot be taken apart."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise WireError(f"damaged answer: {what}") from error


def server_error(status: int, message: str, *, address: str | None = None) -> ServerError:
    """The error of an answer, told apart by status and by the Java class named in its text."""
    text = message.strip().splitlines()[0] if message.strip() else f"status {status}"
    facts: dict[str, Any] = {"status": status, "server_message": message, "address": address}
    if status == Status.CACHE_DOES_NOT_EXIST:
        return CacheNotFound(text, hint="'ignitetf cache ls' lists the caches", **facts)
    if status == Status.CACHE_EXISTS:
        return CacheExists(text, hint="choose another name, or drop it first", **facts)
    if "lostParts" in message or "partition data has been lost" in message:
        return PartitionLost(
            text, hint="start the nodes that hold it again, or reload the cache", **facts
        )
    if status == Status.TOO_MANY_CURSORS or any(
        sign in message
        for sign in ("Java heap space", "IgniteOutOfMemory", "Out of memory in data region")
    ):
        return ServerOverloaded(text, hint="give the node more memory, or ask for less", **facts)
    if any(sign in message for sign in ("IgniteSQLException", "Failed to parse query")):
        return SqlError(text, hint=None, **facts)
    return ServerError(text, **facts)


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed on another connection, or a moment later."""
    if isinstance(error, TlsError):
        # Cut short, as by a node that dies, or refused.
        return bool(error.fields.get("lost"))
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, (ConnectError, RequestTimeout)):
        return True
    if isinstance(error, ServerError) and not isinstance(error, (PartitionLost, ServerOverloaded)):
        signs = (
            "ClusterTopologyException",
            "ClusterTopologyCheckedException",
            "left topology",
            "No queryable nodes",
            "Failed to find resource with id",
            "Node is stopping",
            "NodeStoppingException",
            "ClusterGroupEmpty",
            # The partition's owner left while the scan was being sent to it.
            "ClusterNode.isLocal()",
        )
        return any(sign in str(error.fields.get("server_message")) for sign in signs)
    return False
