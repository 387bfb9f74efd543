"""Encodes SQL parameters: converts Python and NumPy values to objects sent with a statement.

values -> **parameters** -> frames

A value that SQL cannot represent, or would change, is refused here, because the node would silently
accept what is left of it.

Source: Apache Ignite 2.17.0, `ClientMessageParser`, `BinaryWriterExImpl` (decimal: scale, length,
big-endian magnitude whose first bit is the sign; timestamp: milliseconds, nanoseconds).
"""

from __future__ import annotations

import datetime as dt
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.codes import TypeCode, java_hash

if TYPE_CHECKING:
    import numpy as np

    from ignitetf.wire.zones import Zone

__all__ = [
    "encode_bytes",
    "encode_parameter",
    "encode_string",
    "encode_uuid",
    "parameter_list",
    "sized_head",
]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_DAY: Final = dt.timedelta(days=1)
_LONGEST: Final = 1 << 63
_NANOS: Final = 1_000_000
# Nodes write out all zeros of a number when they compare it.
_MOST_DIGITS: Final = 100_000
# The head of a java.sql.Date in Java's own serialization, as SQL sends and stores it: the last two
# bytes are of the class's serialVersionUID.
_SQL_DATE: Final = struct.pack(
    "<BiBiH", TypeCode.OPTIMIZED, 15, 102, java_hash("java.sql.Date"), 0x6697
)
# A datetime64 in days becomes a DATE, which has no time of day.
_DAYS: Final = "datetime64[D]"


def parameter_list(params: Any, name: str = "params") -> tuple[Any, ...]:
    """Return parameters as a tuple, which is empty for None.

    Args:
        params: A list, tuple, one-dimensional array, or another ordered iterable.
        name: What the caller calls them, for messages.

    Raises:
        ConfigError: It is a single value or unordered.
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
        value: None, bool, int, float, Decimal, str, bytes, UUID, date, datetime (with a zone: what
            UTC has then), time, timedelta (a time of day), or a NumPy scalar.
        zone: Returns the time zone of the nodes; None for UTC.

    Raises:
        ConfigError: The type is not supported, or the value does not fit SQL's type for it.
    """
    # Whoever has a value of NumPy has imported it; a handshake does not need it.
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        return _numpy_scalar(value, zone)
    if value is None:
        return struct.pack("<b", TypeCode.NULL)
    if isinstance(value, bool):
        return struct.pack("<b?", TypeCode.BOOL, value)
    if isinstance(value, int):
        # A range would be walked through for a number of a class of its own, as of an IntEnum.
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
        # Those of pandas have nanoseconds, too.
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
        hint="a number, text, bytes, bool, None, Decimal, UUID, date, datetime or time; of a list"
        " each value has a '?' of its own",
    )


def _stored(local: int, convert: str, value: Any, zone: Callable[[], Zone] | None) -> int:
    """Return the moment that stands for a time on the calendar; `convert` is a method of `Zone`."""
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
