"""Builds the request body of every operation that ignitetf sends, and encodes SQL parameters.

ids, numbers, encoded objects, values of parameters -> **requests** -> frames

There is one function for each form of body; its docstring names the operations. Only the body of
BINARY_TYPE_PUT is built elsewhere, in `tables/typenames`, because it is derived from a schema.
Callers pass objects (keys, values, parameters) encoded. The objects of large batches follow the
head as separate buffers, so that they are not copied.

A parameter that SQL cannot represent, or would change, is refused here, because the node would
silently accept a truncated value.

Source: Apache Ignite 2.17.0, `ClientMessageParser` and the request classes that it names:
`ClientCacheRequest` (flags, transaction id), `ClientCacheScanQueryRequest`,
`ClientCacheSqlFieldsQueryRequest`, `ClientCachePartitionsRequest`, `ClientTxStartRequest`,
`ClientClusterGroupGetNodesEndpointsRequest`. The published table of the scan request calls the
partition field a count, but the server reads one partition id (-1 for all). `BinaryWriterExImpl`
(decimal: scale, length, big-endian magnitude whose first bit is the sign; timestamp: milliseconds,
nanoseconds).
"""

from __future__ import annotations

import datetime as dt
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.codes import TypeCode, java_hash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ignitetf.wire.zones import Zone

__all__ = [
    "batch_head",
    "batch_request",
    "cache_request",
    "class_name_request",
    "cluster_state_request",
    "cursor_request",
    "destroy_request",
    "encode_bytes",
    "encode_parameter",
    "encode_string",
    "encode_uuid",
    "nodes_request",
    "parameter_list",
    "partitions_request",
    "scan_request",
    "scan_requests",
    "size_request",
    "sized_head",
    "sql_request",
    "transaction_end_request",
    "transaction_start_request",
    "type_request",
]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_DAY: Final = dt.timedelta(days=1)
_LONGEST: Final = 1 << 63
_NANOS: Final = 1_000_000
# Nodes expand all zeros of a number when they compare it.
_MOST_DIGITS: Final = 100_000
# The head of a java.sql.Date in Java's own serialization, in which SQL sends and stores it. The
# last two bytes are part of the class's serialVersionUID.
_SQL_DATE: Final = struct.pack(
    "<BiBiH", TypeCode.OPTIMIZED, 15, 102, java_hash("java.sql.Date"), 0x6697
)
# A datetime64 in days becomes a DATE, which has not a time of day.
_DAYS: Final = "datetime64[D]"


def parameter_list(params: Any, name: str = "params") -> tuple[Any, ...]:
    """Return parameters as a tuple, which is empty for None.

    Args:
        params: A list, tuple, one-dimensional array, or another ordered iterable.
        name: The caller's name for them, for messages.

    Raises:
        ConfigError: `params` is a single value or unordered.
    """
    if params is None:
        return ()
    unordered = isinstance(params, (Mapping, AbstractSet))
    if isinstance(params, (str, bytes, bytearray)) or unordered or not _is_sequence(params):
        raise ConfigError(
            f"{name} is {'a' if unordered else 'one'} {type(params).__name__}, not a list of"
            " values",
            hint=f"write {name}=[VALUE, ...], one for each '?', in their order",
        )
    return tuple(params)


def _is_sequence(params: Any) -> bool:
    return params.ndim == 1 if hasattr(params, "ndim") else isinstance(params, Iterable)


def encode_string(text: str) -> bytes:
    """Encode a string object; raises ConfigError if UTF-8 cannot hold it."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text {text[:40]!r} cannot be sent: it has half of a surrogate pair",
            hint="are its bytes in another encoding than UTF-8?",
        ) from error
    return sized_head(TypeCode.STRING, len(data)) + data


def encode_bytes(data: bytes) -> bytes:
    """Encode a byte array object."""
    return sized_head(TypeCode.BYTE_ARRAY, len(data)) + data


def encode_uuid(high: int, low: int) -> bytes:
    """Encode a UUID object from its two unsigned longs."""
    return struct.pack("<bQQ", TypeCode.UUID, high, low)


def sized_head(code: TypeCode, size: int) -> bytes:
    """Encode the head of a string or byte array: type code, number of bytes."""
    return struct.pack("<bi", code, size)


def encode_parameter(value: Any, zone: Callable[[], Zone] | None = None) -> bytes:
    """Encode a SQL parameter as an object.

    Args:
        value: None, bool, int, float, Decimal, str, bytes, UUID, date, datetime (one with a zone
            is converted to UTC), time, timedelta (a time of day), or a NumPy scalar.
        zone: Returns the time zone of the nodes; None for UTC.

    Raises:
        ConfigError: The type is not supported, or the value does not fit SQL's type for it.
    """
    # A caller with a NumPy value has imported NumPy; a handshake does not need it.
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        return _numpy_scalar(value, zone)
    if value is None:
        return struct.pack("<b", TypeCode.NULL)
    if isinstance(value, bool):
        return struct.pack("<b?", TypeCode.BOOL, value)
    if isinstance(value, int):
        # Not `in range(...)`, which searches linearly for an int of a subclass such as an IntEnum.
        if not -_LONGEST <= value < _LONGEST:
            raise _refused(value, "SQL's BIGINT has 64 bits", "pass decimal.Decimal(value)")
        return struct.pack("<bq", TypeCode.LONG, value)
    if isinstance(value, float):
        return struct.pack("<bd", TypeCode.DOUBLE, value)
    if isinstance(value, str):
        try:
            return encode_string(value)
        except ConfigError as error:
            raise _refused(value, "it has half of a surrogate pair, no character") from error
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encode_bytes(bytes(value))
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, uuid.UUID):
        return encode_uuid(value.int >> 64, value.int & (1 << 64) - 1)
    return _moment(value, zone)


def _moment(value: Any, zone: Callable[[], Zone] | None) -> bytes:
    """Encode a date, a datetime or a time of day."""
    if isinstance(value, dt.datetime):
        if value != value:
            raise _refused(value, "it is not a moment", "pass None for NULL")
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        # Timestamps of pandas have nanoseconds, too.
        nanos = getattr(value, "nanosecond", 0)
        return _timestamp((moment - _EPOCH) // _MICROSECOND * 1000 + nanos, value, zone)
    if isinstance(value, dt.date):
        ms = (value.toordinal() - _EPOCH.toordinal()) * (_DAY // _MICROSECOND) // 1000
        return _SQL_DATE + struct.pack("<q", _stored(ms, "of_dates", value, zone))
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            raise _refused(value, "SQL's TIME has no zone")
        value = dt.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second,
            microseconds=value.microsecond,
        )  # fmt: skip
    if isinstance(value, dt.timedelta):
        if not dt.timedelta() <= value < _DAY:
            raise _refused(value, "SQL's TIME is a time of day")
        ms = value // _MICROSECOND // 1000
        return struct.pack("<bq", TypeCode.TIME, _stored(ms, "of_times", value, zone))
    raise ConfigError(
        f"SQL has no parameter of the type {type(value).__name__}",
        hint="a number, text, bytes, bool, None, Decimal, UUID, date, datetime or time; for a list,"
        " write one '?' for each value",
    )


def _stored(local: int, convert: str, value: Any, zone: Callable[[], Zone] | None) -> int:
    """Return the moment of a time on the calendar; `convert` names a method of `Zone`."""
    if zone is None:
        return local
    try:
        return zone().of_one(local, convert)
    except SchemaError as error:
        raise _refused(value, error.message, error.hint) from error


def _numpy_scalar(value: np.generic, zone: Callable[[], Zone] | None) -> bytes:
    import numpy as np

    if isinstance(value, np.datetime64):
        if np.isnat(value):
            raise _refused(value, "it is not a moment", "pass None for NULL")
        if value.dtype == np.dtype(_DAYS):
            if not isinstance(day := value.item(), dt.date):
                raise _refused(value, "it is outside the years 1 to 9999")
            return _moment(day, zone)
        nanos = value.astype("datetime64[ns]")
        if nanos.astype(value.dtype) != value:
            raise _refused(value, "it is outside 1677 to 2262")
        return _timestamp(int(nanos.astype(np.int64)), value, zone)
    plain = value.item()
    if isinstance(plain, (bool, int, float, str, bytes)):
        return encode_parameter(plain)
    raise _refused(value, f"SQL has no {type(value).__name__}")


def _timestamp(nanos: int, value: Any, zone: Callable[[], Zone] | None) -> bytes:
    millis, rest = divmod(nanos, _NANOS)
    millis = _stored(millis, "of_timestamps", value, zone)
    return struct.pack("<bqi", TypeCode.TIMESTAMP, millis, rest)


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MOST_DIGITS:
        raise _refused(value, "SQL's DECIMAL has no such number")
    number = 0
    for digit in digits:
        number = number * 10 + digit
    # One extra bit for the sign.
    data = bytearray(number.to_bytes(number.bit_length() // 8 + 1, "big"))
    if sign and number:
        data[0] |= 0x80
    return struct.pack("<bii", TypeCode.DECIMAL, -exponent, len(data)) + bytes(data)


def _refused(value: Any, reason: str, hint: str | None = None) -> ConfigError:
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return ConfigError(f"the SQL parameter {shown} cannot be sent: {reason}", hint=hint)


_CACHE: Final = struct.Struct("<ib")  # cache id, flags
_CACHE_IN_TRANSACTION: Final = struct.Struct("<ibi")  # cache id, flags, transaction id
_CACHE_WITH_EXPIRY: Final = struct.Struct("<ibqqq")  # ..., after creation, update, access (ms)
_COUNT: Final = struct.Struct("<i")
_BATCH: Final = struct.Struct("<ibi")  # cache id, flags, number of keys or entries
_SCAN: Final = struct.Struct("<ibbii?")  # cache id, flags, no filter, page size, partition, local
_SCAN_PARTITION_AT: Final = 10

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
    cache: int, *objects: bytes, transaction: int | None = None, lifetime_ms: int | None = None
) -> bytes:
    """Return the body of an operation on a cache (CACHE_CLEAR) or on one of its keys.

    Args:
        cache: Id of the cache, the Java hash of its name.
        *objects: The key (CACHE_GET, CACHE_REMOVE_KEY), followed by the value (CACHE_PUT,
            CACHE_PUT_IF_ABSENT, CACHE_REMOVE_IF_EQUALS) or by the old and the new value
            (CACHE_REPLACE_IF_EQUALS).
        transaction: Id of the transaction that it belongs to.
        lifetime_ms: Time to live of the value in ms, starting now; None keeps it for ever. Not allowed
            in a transaction.
    """
    if lifetime_ms is not None:
        head = _CACHE_WITH_EXPIRY.pack(cache, _WITH_EXPIRY, lifetime_ms, lifetime_ms, _UNCHANGED)
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
    """Return the bodies of QUERY_SCAN for several partitions; ten times faster than one by one.

    Returns:
        An array of void, one body each, `[n]`.
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
        timeout_ms: Milliseconds after which the node cancels the statement; 0 means never.
        any_statement: Accept any statement; otherwise the node accepts only a SELECT.
        names: Include the names of the columns in the answer.
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


def nodes_request() -> bytes:
    """Return the body of CLUSTER_GROUP_NODE_ENDPOINTS for all nodes of the newest topology."""
    return struct.pack("<qq", -1, -1)


def cluster_state_request(*, active: bool) -> bytes:
    """Return the body of CLUSTER_CHANGE_STATE."""
    return struct.pack("<?", active)
