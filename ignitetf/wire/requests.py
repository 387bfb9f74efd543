"""Builds the request body of every operation that ignitetf sends.

ids, numbers, encoded objects -> **requests** -> frames

There is one function for each form of body; its docstring names the operations. Only the body of
BINARY_TYPE_PUT is built elsewhere, in `register`, because it is derived from a schema. Objects
(keys, values, parameters) are passed in encoded, and those of large batches follow the head as
separate buffers, so that they are not copied.

Source: Apache Ignite 2.17.0, `ClientMessageParser` and the request classes that it names:
`ClientCacheRequest` (flags, transaction id), `ClientCacheScanQueryRequest`,
`ClientCacheSqlFieldsQueryRequest`, `ClientCachePartitionsRequest`, `ClientTxStartRequest`,
`ClientDataStreamerStartRequest`, `ClientDataStreamerAddDataRequest`,
`ClientClusterGroupGetNodesEndpointsRequest`. The published table of the scan request calls the
partition field a count, but the server reads one partition id (-1 for all).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ignitetf.wire.codes import StreamerFlag, TypeCode
from ignitetf.wire.parameters import encode_string

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "batch_head",
    "batch_request",
    "cache_request",
    "class_name_request",
    "cluster_state_request",
    "cursor_request",
    "destroy_request",
    "nodes_request",
    "partitions_request",
    "scan_request",
    "scan_requests",
    "size_request",
    "sql_request",
    "streamer_head",
    "streamer_start_request",
    "transaction_end_request",
    "transaction_start_request",
    "type_request",
]

_CACHE: Final = struct.Struct("<ib")  # cache id, flags
_CACHE_IN_TRANSACTION: Final = struct.Struct("<ibi")  # cache id, flags, transaction id
_CACHE_WITH_EXPIRY: Final = struct.Struct("<ibqqq")  # ..., after creation, update, access (ms)
_COUNT: Final = struct.Struct("<i")
_BATCH: Final = struct.Struct("<ibi")  # cache id, flags, number of keys or entries
_SCAN: Final = struct.Struct("<ibbii?")  # cache id, flags, no filter, page size, partition, local
_SCAN_PARTITION_AT: Final = 10
_STREAMER_START: Final = struct.Struct("<ibiibi")
_STREAMER_DATA: Final = struct.Struct("<qbi")  # streamer id, flags, number of entries

_IN_TRANSACTION: Final = 2
_WITH_EXPIRY: Final = 4
_UNCHANGED: Final = -2
_ALL_PARTITIONS: Final = -1
_STATEMENT_ANY: Final = 0
_STATEMENT_SELECT: Final = 1
_PESSIMISTIC: Final = 1
_REPEATABLE_READ: Final = 1
_JAVA: Final = 0


# Caches


def cache_request(
    cache: int, *objects: bytes, transaction: int | None = None, lives_ms: int | None = None
) -> bytes:
    """Return the body of an operation on a cache (CACHE_CLEAR) or on one of its keys.

    Args:
        cache: Id of the cache, the Java hash of its name.
        *objects: The key (CACHE_GET, CACHE_REMOVE_KEY), followed by the value (CACHE_PUT,
            CACHE_PUT_IF_ABSENT, CACHE_REMOVE_IF_EQUALS) or by the old and the new value
            (CACHE_REPLACE_IF_EQUALS).
        transaction: Id of the transaction that it belongs to.
        lives_ms: Time to live of the value from now on; None for ever. Not in a transaction.
    """
    if lives_ms is not None:
        head = _CACHE_WITH_EXPIRY.pack(cache, _WITH_EXPIRY, lives_ms, lives_ms, _UNCHANGED)
        return b"".join((head, *objects))
    return b"".join((_cache_head(cache, transaction), *objects))


def batch_head(cache: int, count: int, transaction: int | None = None) -> bytes:
    """Return the body of CACHE_PUT_ALL, CACHE_GET_ALL or CACHE_REMOVE_KEYS up to the first object.

    Args:
        cache: Id of the cache.
        count: Number of keys or key-value pairs that follow.
        transaction: Id of the transaction that it belongs to.
    """
    if transaction is None:
        return _BATCH.pack(cache, 0, count)
    return _cache_head(cache, transaction) + _COUNT.pack(count)


def batch_request(cache: int, items: Iterable[bytes], transaction: int | None = None) -> bytes:
    """Return the body of CACHE_PUT_ALL, CACHE_GET_ALL or CACHE_REMOVE_KEYS for keys or pairs."""
    found = list(items)
    return b"".join((batch_head(cache, len(found), transaction), *found))


def size_request(cache: int) -> bytes:
    """Return the body of CACHE_GET_SIZE, which counts primary copies only."""
    return _cache_head(cache, None) + _COUNT.pack(0)  # no peek modes


def destroy_request(cache: int) -> bytes:
    """Return the body of CACHE_DESTROY."""
    return struct.pack("<i", cache)


def partitions_request(cache: int) -> bytes:
    """Return the body of CACHE_PARTITIONS for one cache."""
    return struct.pack("<ii", 1, cache)


def _cache_head(cache: int, transaction: int | None) -> bytes:
    if transaction is None:
        return _CACHE.pack(cache, 0)
    return _CACHE_IN_TRANSACTION.pack(cache, _IN_TRANSACTION, transaction)


# Queries


def scan_request(
    cache: int, page_size: int, partition: int | None = None, *, local: bool = False
) -> bytes:
    """Return the body of QUERY_SCAN.

    Args:
        cache: Id of the cache.
        page_size: Entries per page, above zero.
        partition: The partition; None for the whole cache, in no stable order.
        local: Read the connected node's own copy, even a backup, and fail if it has none.
    """
    if partition is not None and partition < 0:
        # The server would scan the whole cache for any negative number.
        raise ValueError(f"partition {partition} is negative")
    which = _ALL_PARTITIONS if partition is None else partition
    return _SCAN.pack(cache, 0, TypeCode.NULL, page_size, which, local)


def scan_requests(cache: int, page_size: int, partitions: Sequence[int]) -> NDArray[np.void]:
    """Return the bodies of QUERY_SCAN for several partitions, in a tenth of the time for each.

    Returns:
        Void of the size of a body, `[n]`.
    """
    import numpy as np  # not for a handshake

    if len(partitions) == 0:
        return np.empty(0, f"V{_SCAN.size}")
    body = scan_request(cache, page_size, int(min(partitions)))  # refuses a negative one
    kind = np.dtype([("begin", f"V{_SCAN_PARTITION_AT}"), ("partition", "<i4"), ("local", "?")])
    out = np.frombuffer(bytearray(body * len(partitions)), kind)
    out["partition"] = partitions
    return out.view(f"V{_SCAN.size}")


def cursor_request(cursor: int) -> bytes:
    """Return the body of QUERY_SCAN_PAGE, QUERY_SQL_FIELDS_PAGE or RESOURCE_CLOSE."""
    return struct.pack("<q", cursor)


def sql_request(
    schema: str,
    statement: str,
    params: Sequence[bytes],
    page_size: int,
    *,
    cache: int = 0,
    partitions: Sequence[int] | None = None,
    timeout_ms: int = 0,
    any_statement: bool = False,
    names: bool = False,
) -> bytes:
    """Return the body of QUERY_SQL_FIELDS for a lazy SELECT, or for any statement.

    Args:
        schema: SQL schema for unqualified names.
        statement: The SELECT, with `?` for each parameter.
        params: The parameters as encoded objects.
        page_size: Rows per page.
        cache: Id of a cache that must exist; 0 for none.
        partitions: Partitions to read. Pass them only if both sides announced the feature
            QUERY_PARTITIONS_BATCH_SIZE; without it the server ignores them and returns all rows.
        timeout_ms: Milliseconds after which the node cancels the statement; 0 for never.
        any_statement: Take any statement.
        names: Have the names of the columns in the answer.
    """
    parts = [
        _cache_head(cache, None),
        encode_string(schema),
        struct.pack("<ii", page_size, -1),  # page size, maximum number of rows
        encode_string(statement),
        struct.pack("<i", len(params)),
        *params,
        struct.pack("<b", _STATEMENT_ANY if any_statement else _STATEMENT_SELECT),
        # distributed joins, local, replicated only, enforce join order, collocated, lazy
        struct.pack("<6?", False, False, False, False, False, True),
        struct.pack("<q?", timeout_ms, names),  # timeout, include field names
        struct.pack("<i", -1 if partitions is None else len(partitions)),
        struct.pack(f"<{len(partitions or ())}i", *(partitions or ())),
        struct.pack("<i", 1),  # update batch size
    ]
    return b"".join(parts)


# Transactions


def transaction_start_request(timeout_ms: int) -> bytes:
    """Return the body of TX_START for a pessimistic, repeatable-read transaction.

    Args:
        timeout_ms: Milliseconds after which the node rolls the transaction back.
    """
    # Concurrency, isolation, timeout, no label.
    return struct.pack("<bbqb", _PESSIMISTIC, _REPEATABLE_READ, timeout_ms, TypeCode.NULL)


def transaction_end_request(transaction: int, *, commit: bool) -> bytes:
    """Return the body of TX_END."""
    return struct.pack("<i?", transaction, commit)


# Binary types


def type_request(type_id: int) -> bytes:
    """Return the body of BINARY_TYPE_GET."""
    return struct.pack("<i", type_id)


def class_name_request(class_id: int) -> bytes:
    """Return the body of BINARY_TYPE_NAME_GET for a Java class."""
    return struct.pack("<bi", _JAVA, class_id)


# The data streamer


def streamer_start_request(
    cache: int, flags: StreamerFlag, buffer_entries: int, thread_entries: int | None = None
) -> bytes:
    """Return the body of DATA_STREAMER_START, without a receiver.

    Args:
        cache: Id of the cache.
        flags: The same as in `streamer_head`.
        buffer_entries: Entries that the node collects per other node before passing them on.
        thread_entries: The same per own thread; None for as many.
    """
    per_thread = buffer_entries if thread_entries is None else thread_entries
    receiver, entries = TypeCode.NULL, 0
    return _STREAMER_START.pack(cache, flags, buffer_entries, per_thread, receiver, entries)


def streamer_head(streamer: int, flags: StreamerFlag, count: int) -> bytes:
    """Return the body of DATA_STREAMER_ADD_DATA up to the first of `count` key-value pairs."""
    return _STREAMER_DATA.pack(streamer, flags, count)


# The cluster


def nodes_request() -> bytes:
    """Return the body of CLUSTER_GROUP_NODE_ENDPOINTS for all nodes of the newest topology."""
    return struct.pack("<qq", -1, -1)


def cluster_state_request(*, active: bool) -> bytes:
    """Return the body of CLUSTER_CHANGE_STATE."""
    return struct.pack("<?", active)
