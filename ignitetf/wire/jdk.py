"""Converts objects of common JDK classes to equivalent objects of the binary protocol.

    java.sql.Date, LocalDate                                    DATE (days, see zones)
    LocalDateTime, Instant, OffsetDateTime, ZonedDateTime       TIMESTAMP (of the calendar of UTC)
    LocalTime, Duration                                         LONG, nanoseconds
    BigInteger, BigDecimal                                      DECIMAL
    Year, AtomicInteger, AtomicLong, AtomicBoolean              INT, INT, LONG, BOOL
    List.of, Arrays.asList, Vector, Collections.empty..., ...   COLLECTION, MAP

Source: OpenJDK, `java.time.Ser`, `java.util.CollSer` and the fields and `writeObject` methods of
the classes. Fields are stored in the order of their names, fields of a parent class first.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode, java_hash
from ignitetf.wire.datatypes import ARRAY_ELEMENT, FIXED_DTYPE
from ignitetf.wire.objects import object_end
from ignitetf.wire.zones import as_calendar, as_sql_days

__all__ = ["NotReadable", "Stream", "collection", "mapping", "plain_object"]

_NULL_OBJECT: Final = bytes([TypeCode.NULL])
_ARRAY_LIST, _LINKED_MAP = 1, 2
# Deeper nesting, or growth to more bytes through references, is treated as an attack.
_MAX_DEPTH: Final = 64
_MAX_BYTES: Final = 64 << 20

# The tag in front of each object of the stream.
_JDK, _HANDLE, _NULL = 0xFE, 0xFF, 0
_OBJECT_ARRAY, _TEXT, _UUID, _PROPERTIES, _DATE = 17, 18, 19, 20, 27
_CLASS, _PROXY, _ENUM, _EXTERNALIZABLE, _SERIALIZABLE = 28, 29, 100, 101, 102
_NUMBERS: Final = {
    1: TypeCode.BYTE, 2: TypeCode.SHORT, 3: TypeCode.INT, 4: TypeCode.LONG,
    5: TypeCode.FLOAT, 6: TypeCode.DOUBLE, 7: TypeCode.CHAR, 8: TypeCode.BOOL,
}  # fmt: skip
_ARRAYS: Final = {
    9: TypeCode.BYTE_ARRAY, 10: TypeCode.SHORT_ARRAY, 11: TypeCode.INT_ARRAY,
    12: TypeCode.LONG_ARRAY, 13: TypeCode.FLOAT_ARRAY, 14: TypeCode.DOUBLE_ARRAY,
    15: TypeCode.CHAR_ARRAY, 16: TypeCode.BOOL_ARRAY,
}  # fmt: skip
# Collections with their own format: number of bytes between their size and their elements.
_LISTS: Final = {21: 0, 24: 0, 23: 4, 26: 5}
_MAPS: Final = {22: 4, 25: 5}


class NotReadable(Exception):
    """The class of the object, or of an object inside it, cannot be read.

    Attributes:
        class_id: Id of that class; None if `name` is given.
        name: Name of that class, or a description of the value.
    """

    def __init__(self, class_id: int | None, name: str = "") -> None:
        super().__init__(name or f"class {class_id}")
        self.class_id = class_id
        self.name = name


class Stream:
    """Reads objects one after another.

    Args:
        body: The bytes after the type code and the length.
        readers: Functions that read the fields of an object, by class id.
        marked: True if dates and timestamps have the marks of `zones`.
    """

    def __init__(
        self, body: bytes, readers: Mapping[int, Callable[[Stream], bytes]], marked: bool = True
    ) -> None:
        self.body = body
        self.marked = marked
        self._readers = readers
        self.at = 0
        self._depth = 0
        self._made = 0
        # Objects that later ones can refer to by their number; None while being read.
        self._seen: list[bytes | None] = []

    # Numbers

    def number(self, form: str) -> Any:
        """Read a number, given its format character of `struct`."""
        (value,) = struct.unpack_from("<" + form, self.body, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def count(self) -> int:
        """Read the number of items that follow, each at least one byte long."""
        value: int = self.number("i")
        if not 0 <= value <= len(self.body) - self.at:
            raise WireError(f"{value} elements do not fit in an object of {len(self.body)} bytes")
        return value

    def take(self, size: int) -> bytes:
        """Read raw bytes."""
        if size < 0 or size > len(self.body) - self.at:
            raise IndexError(f"{size} bytes")
        self.at += size
        return self.body[self.at - size : self.at]

    def text(self) -> str:
        """Read a text in Java's variant of UTF-8, which encodes surrogates and NUL differently."""
        raw = self.take(self.count()).replace(b"\xc0\x80", b"\0")
        units = raw.decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "replace")

    def class_id(self) -> int:
        """Read a class id; for an unregistered class, compute it from its name."""
        number: int = self.number("i")
        return number or java_hash(self.text())

    # Objects

    def object(self) -> bytes:
        """Read an object and return it in the binary protocol."""
        if self._depth > _MAX_DEPTH:
            raise WireError(f"objects nested more than {_MAX_DEPTH} deep")
        tag = self.number("B")
        if tag in _NUMBERS:
            code = _NUMBERS[tag]
            return bytes([code]) + self.take(FIXED_DTYPE[code].itemsize)
        if tag == _NULL:
            return _NULL_OBJECT
        if tag == _HANDLE:
            return self._checked_growth(self._referred())
        if tag == _JDK:
            raise NotReadable(None, _class_of_jdk_stream(self.body[self.at :]))
        if tag == _CLASS:
            return struct.pack("<Bi", TypeCode.CLASS, self.class_id())
        if tag == _PROXY:
            raise NotReadable(None, "a Java proxy")
        if tag == _ENUM:
            return struct.pack("<Bii", TypeCode.ENUM, self.class_id(), self.number("i"))
        mine = len(self._seen)
        self._seen.append(None)
        self._depth += 1
        found = self._checked_growth(self._body(tag))
        self._depth -= 1
        self._seen[mine] = found
        return found

    def _checked_growth(self, found: bytes) -> bytes:
        self._made += len(found)
        if self._made > _MAX_BYTES:
            raise WireError("an object in Java's own serialization expands to too many bytes")
        return found

    def _referred(self) -> bytes:
        number = self.number("i")
        if not 0 <= number < len(self._seen):
            raise WireError(f"an object in Java's own serialization has no part {number}")
        found: bytes | None = self._seen[number]
        if found is None:
            raise NotReadable(None, "a collection that contains itself")
        return found

    def _body(self, tag: int) -> bytes:
        """Read the bytes after the tag of an object that later objects can refer to."""
        if tag == _TEXT:
            return _string(self.text())
        if tag in _ARRAYS:
            code, count = _ARRAYS[tag], self.count()
            body = self.take(count * ARRAY_ELEMENT[code].itemsize)
            return struct.pack("<Bi", code, count) + body
        if tag in _LISTS:
            count = self.count()
            self.take(_LISTS[tag])
            return collection(self.objects(count))
        if tag in _MAPS:
            count = self.count()
            self.take(_MAPS[tag])
            return mapping(self.objects(2 * count))
        if tag == _OBJECT_ARRAY:
            self.class_id()
            elements = self.objects(self.count())
            return struct.pack("<Bii", TypeCode.OBJECT_ARRAY, -1, len(elements)) + b"".join(
                elements
            )
        if tag == _UUID:
            return bytes([TypeCode.UUID]) + self.take(16)
        if tag == _DATE:
            return bytes([TypeCode.DATE]) + self.take(8)
        if tag == _PROPERTIES:
            return self._properties()
        if tag in (_SERIALIZABLE, _EXTERNALIZABLE):
            number = self.class_id()
            self.take(2)  # a checksum of the class
            if (reader := self._readers.get(number)) is None:
                raise NotReadable(number)
            found: bytes = reader(self)
            return found
        raise WireError(f"an object in Java's own serialization begins with {tag}")

    def objects(self, count: int) -> list[bytes]:
        """Read `count` objects and return them in the binary protocol."""
        return [self.object() for _ in range(count)]

    def _properties(self) -> bytes:
        if not self.number("?"):
            self.object()  # the defaults; their names are repeated below
        return mapping([_string(self.text()) for _ in range(2 * self.count())])


# Objects of the binary protocol


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return struct.pack("<Bi", TypeCode.STRING, len(raw)) + raw


def collection(elements: list[bytes]) -> bytes:
    """Encode a collection of the objects."""
    return struct.pack("<BiB", TypeCode.COLLECTION, len(elements), _ARRAY_LIST) + b"".join(elements)


def mapping(pairs: list[bytes]) -> bytes:
    """Encode a map from alternating keys and values."""
    return struct.pack("<BiB", TypeCode.MAP, len(pairs) // 2, _LINKED_MAP) + b"".join(pairs)


def _class_of_jdk_stream(body: bytes) -> str:
    """Return the name of the class of the first object in a `java.io` stream."""
    # Magic and version, an object or an enum, a description of its class, its name.
    if len(body) < 8 or body[5:6] != b"r":
        return "an object of java.io"
    (length,) = struct.unpack_from(">H", body, 6)
    return body[8 : 8 + length].decode("utf-8", "replace")


_DAY_MS: Final = 86_400_000
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS: Final = 146_097
_SECOND_NS: Final = 1_000_000_000
# More bytes than this from copies of one element cannot be real data.
_MOST_COPIED: Final = 64 << 20


def plain_object(body: bytes, marked: bool = True) -> bytes:
    """Return the equivalent object of the binary protocol.

    Args:
        body: The bytes after the type code and the length.
        marked: True to add the marks of `zones` to dates and timestamps that are not moments.
            Decoders of this project understand them; other readers need plain moments.

    Raises:
        NotReadable: Its class, or the class of an object inside it, has no equivalent.
        WireError: The bytes are damaged.
    """
    stream = Stream(body, _READERS, marked)
    try:
        found = stream.object()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError("an object in Java's own serialization is cut") from error
    if stream.at != len(body):
        raise WireError("bytes follow an object in Java's own serialization")
    return found


def _long(code: TypeCode, value: int, what: str) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise NotReadable(None, f"{what} that no int64 holds")
    return struct.pack("<Bq", code, value)


def _calendar_time(stream: Stream, seconds: int, nanoseconds: int) -> bytes:
    ms = seconds * 1000 + nanoseconds // 1_000_000
    ms = as_calendar(ms) if stream.marked else ms
    return _long(TypeCode.TIMESTAMP, ms, "a time in ms") + struct.pack(
        "<i", nanoseconds % 1_000_000
    )


def _decimal(scale: int, value: bytes) -> bytes:
    return struct.pack("<Bii", TypeCode.DECIMAL, scale, len(value)) + value


# Classes


def _sql_date(stream: Stream) -> bytes:
    moment = np.array([stream.number("q")], "<i8")
    return bytes([TypeCode.DATE]) + (as_sql_days(moment) if stream.marked else moment).tobytes()


def _sql_time(stream: Stream) -> bytes:
    return bytes([TypeCode.TIME]) + stream.take(8)


def _sql_timestamp(stream: Stream) -> bytes:
    seconds, nanoseconds = stream.number("q") // 1000, stream.number("i")
    ms = _long(TypeCode.TIMESTAMP, seconds * 1000 + nanoseconds // 1_000_000, "a time in ms")
    return ms + struct.pack("<i", nanoseconds % 1_000_000)


def _magnitude(stream: Stream) -> bytes:
    """Read a big integer as the magnitude of a decimal, with its sign in the top bit."""
    stream.take(16)  # bit counts and positions, which Java ignores too
    raw = stream.object()
    sign = stream.number("i")
    if raw[0] != TypeCode.BYTE_ARRAY:
        raise WireError("a big integer has no digits")
    digits = raw[5:].lstrip(b"\0") or b"\0"
    if digits[0] & 0x80:
        digits = b"\0" + digits
    return bytes([digits[0] | (0x80 if sign < 0 else 0)]) + digits[1:]


def _big_integer(stream: Stream) -> bytes:
    return _decimal(0, _magnitude(stream))


def _big_decimal(stream: Stream) -> bytes:
    value = stream.object()
    if value[0] != TypeCode.DECIMAL:
        raise WireError("a decimal has no digits")
    return _decimal(stream.number("i"), value[9:])


def _time_class(stream: Stream) -> bytes:
    """Read `java.time.Ser`, which represents all classes of java.time."""
    kind = stream.number("B")
    if (reader := _TIMES.get(kind)) is None:
        raise NotReadable(None, f"java.time.{_OTHER_TIMES.get(kind, 'Ser')}")
    return reader(stream)


def _local_date(stream: Stream) -> bytes:
    ms = _days(stream) * _DAY_MS
    return _long(TypeCode.DATE, as_calendar(ms) if stream.marked else ms, "a date in ms")


def _local_time(stream: Stream) -> bytes:
    return struct.pack("<Bq", TypeCode.LONG, _nanoseconds_of_day(stream))


def _local_date_time(stream: Stream) -> bytes:
    return _date_time(stream, zoned=False)


def _offset_date_time(stream: Stream) -> bytes:
    return _date_time(stream, zoned=True)


def _zoned_date_time(stream: Stream) -> bytes:
    found = _date_time(stream, zoned=True)
    kind = stream.number("B")
    if kind == 7:
        stream.text()
    elif kind == 8:
        _offset(stream)
    else:
        raise WireError(f"a time zone of kind {kind}")
    return found


def _date_time(stream: Stream, zoned: bool) -> bytes:
    days, of_day = _days(stream), _nanoseconds_of_day(stream)
    offset = _offset(stream) if zoned else 0
    return _calendar_time(
        stream, days * 86_400 + of_day // _SECOND_NS - offset, of_day % _SECOND_NS
    )


def _days(stream: Stream) -> int:
    """Read a year, month and day as days since 1970-01-01."""
    year, month, day = stream.number("i"), stream.number("B"), stream.number("B")
    # Python only supports the years 1 to 9999; the calendar repeats every 400 years.
    rounds, within = divmod(year - 2000, 400)
    try:
        found = datetime.date(2000 + within, month, day)
    except ValueError as error:
        raise WireError(f"no day {year}-{month}-{day}") from error
    return int(found.toordinal() - _EPOCH_DAY + rounds * _DAYS_OF_400_YEARS)


def _nanoseconds_of_day(stream: Stream) -> int:
    """Read a time of day in nanoseconds; a complemented part means that the rest is zero."""
    parts = [0, 0, 0]
    for i in range(3):
        parts[i] = stream.number("b")
        if parts[i] < 0:
            parts[i] = ~parts[i]
            nanoseconds = 0
            break
    else:
        nanoseconds = stream.number("i")
    hour, minute, second = parts
    if hour > 23 or minute > 59 or second > 59 or not 0 <= nanoseconds < _SECOND_NS:
        raise WireError("no time of a day")
    return (hour * 3600 + minute * 60 + second) * _SECOND_NS + nanoseconds


def _offset(stream: Stream) -> int:
    """Read a zone's offset from UTC in seconds, positive to the east."""
    quarters = stream.number("b")
    return int(stream.number("i") if quarters == 127 else quarters * 900)


def _instant(stream: Stream) -> bytes:
    return _calendar_time(stream, *_seconds(stream))


def _duration(stream: Stream) -> bytes:
    seconds, nanoseconds = _seconds(stream)
    return _long(TypeCode.LONG, seconds * _SECOND_NS + nanoseconds, "a duration in ns")


def _seconds(stream: Stream) -> tuple[int, int]:
    seconds, nanoseconds = stream.number("q"), stream.number("i")
    if not 0 <= nanoseconds < _SECOND_NS:
        raise WireError(f"{nanoseconds} nanoseconds of a second")
    return seconds, nanoseconds


def _int(stream: Stream) -> bytes:
    return bytes([TypeCode.INT]) + stream.take(4)


def _long_value(stream: Stream) -> bytes:
    return bytes([TypeCode.LONG]) + stream.take(8)


def _bool_of_int(stream: Stream) -> bytes:
    return bytes([TypeCode.BOOL, stream.number("i") != 0])


def _immutable(stream: Stream) -> bytes:
    """Read `java.util.CollSer`: List.of, Set.of, Map.of, Stream.toList and copyOf."""
    kind = stream.number("i") & 0xFF
    found = stream.objects(stream.count())
    if kind not in (1, 2, 3, 4) or (kind == 3 and len(found) % 2):
        raise WireError(f"an immutable collection of kind {kind}")
    return mapping(found) if kind == 3 else collection(found)


def _array_list(stream: Stream) -> bytes:
    """Read `Arrays.asList`, a view of an array."""
    count, elements = _array(stream)
    return struct.pack("<BiB", TypeCode.COLLECTION, count, _ARRAY_LIST) + elements


def _vector(stream: Stream) -> bytes:
    stream.take(4)
    used = stream.number("i")
    count, elements = _array(stream)
    if not 0 <= used <= count:
        raise WireError(f"a vector of {used} elements in an array of {count}")
    end = 0
    for _ in range(used):
        end = object_end(memoryview(elements), end)
    return struct.pack("<BiB", TypeCode.COLLECTION, used, _ARRAY_LIST) + elements[:end]


def _array(stream: Stream) -> tuple[int, bytes]:
    """Read an array of objects; returns the number and the bytes of its elements."""
    found = stream.object()
    if found[0] != TypeCode.OBJECT_ARRAY:
        raise WireError("a list has no array")
    return struct.unpack_from("<i", found, 5)[0], found[9:]


def _counted_collection(stream: Stream) -> bytes:
    return collection(stream.objects(stream.count()))


def _tree_set(stream: Stream) -> bytes:
    _natural_order(stream)
    return _counted_collection(stream)


def _tree_map(stream: Stream) -> bytes:
    _natural_order(stream)
    return mapping(stream.objects(2 * stream.count()))


def _natural_order(stream: Stream) -> None:
    if stream.object() != _NULL_OBJECT:
        raise NotReadable(None, "a comparator")


def _queue(stream: Stream) -> bytes:
    _natural_order(stream)
    count = stream.count()
    stream.take(4)
    return collection(stream.objects(count))


def _hashtable(stream: Stream) -> bytes:
    stream.take(12)
    return mapping(stream.objects(2 * stream.count()))


def _copies(stream: Stream) -> bytes:
    element, count = stream.object(), stream.number("i")
    if not 0 <= count <= _MOST_COPIED // len(element):
        raise WireError(f"{count} copies of an object")
    return collection([element] * count)


def _view(stream: Stream) -> bytes:
    """Read the first field of an unmodifiable collection: the collection that it wraps."""
    return stream.object()


def _list_view(stream: Stream) -> bytes:
    found = stream.object()
    stream.object()  # the same list, in a field of another class
    return found


def _empty(stream: Stream) -> bytes:
    return collection([])


def _empty_map(stream: Stream) -> bytes:
    return mapping([])


def _single(stream: Stream) -> bytes:
    return collection([stream.object()])


def _single_map(stream: Stream) -> bytes:
    return mapping([stream.object(), stream.object()])


_Reader = Callable[[Stream], bytes]


def _by_type_id(readers: Iterable[tuple[str, _Reader]]) -> dict[int, _Reader]:
    return {java_hash(name): reader for name, reader in readers}


# The kinds of `java.time.Ser`.
_TIMES: Final[dict[int, _Reader]] = {
    1: _duration, 2: _instant, 3: _local_date, 4: _local_time, 5: _local_date_time,
    6: _zoned_date_time, 10: _offset_date_time, 11: _int,
}  # fmt: skip
_OTHER_TIMES: Final = {
    7: "ZoneRegion", 8: "ZoneOffset", 9: "OffsetTime", 12: "YearMonth", 13: "MonthDay", 14: "Period",
}  # fmt: skip
_READERS: Final = _by_type_id([
    ("java.sql.Date", _sql_date),
    ("java.sql.Time", _sql_time),
    ("java.sql.Timestamp", _sql_timestamp),
    ("java.time.Ser", _time_class),
    ("java.math.BigInteger", _big_integer),
    ("java.math.BigDecimal", _big_decimal),
    ("java.util.concurrent.atomic.AtomicInteger", _int),
    ("java.util.concurrent.atomic.AtomicLong", _long_value),
    ("java.util.concurrent.atomic.AtomicBoolean", _bool_of_int),
    ("java.util.CollSer", _immutable),
    ("java.util.Arrays$ArrayList", _array_list),
    ("java.util.Vector", _vector),
    ("java.util.Stack", _vector),
    ("java.util.ArrayDeque", _counted_collection),
    ("java.util.concurrent.CopyOnWriteArrayList", _counted_collection),
    ("java.util.concurrent.CopyOnWriteArraySet", _view),
    ("java.util.PriorityQueue", _queue),
    ("java.util.TreeSet", _tree_set),
    ("java.util.TreeMap", _tree_map),
    ("java.util.Hashtable", _hashtable),
    ("java.util.Collections$CopiesList", _copies),
    ("java.util.Collections$UnmodifiableCollection", _view),
    ("java.util.Collections$UnmodifiableSet", _view),
    ("java.util.Collections$UnmodifiableList", _list_view),
    ("java.util.Collections$UnmodifiableMap", _view),
    ("java.util.Collections$EmptyList", _empty),
    ("java.util.Collections$EmptySet", _empty),
    ("java.util.Collections$EmptyMap", _empty_map),
    ("java.util.Collections$SingletonSet", _single),
    ("java.util.Collections$SingletonList", _single),
    ("java.util.Collections$SingletonMap", _single_map),
])  # fmt: skip
