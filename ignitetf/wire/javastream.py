"""Converts objects in Java's own serialization (type code 254) to objects of the binary protocol.

page -> meaning -> **javastream** (jdk) -> columns

The binary marshaller leaves objects of most JDK classes to Ignite's "optimized" marshaller, whose
stream does not describe the fields of a class. Objects of classes that `jdk` knows are rewritten;
of others only the class name can be determined.

Source: Apache Ignite 2.17.0, `OptimizedObjectOutputStream`, `OptimizedClassDescriptor`,
`OptimizedMarshallerUtils`, `GridUnsafeDataOutput`. Numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode, java_hash
from ignitetf.wire.datatypes import ARRAY_ELEMENT, FIXED_DTYPE

__all__ = ["NotReadable", "Stream", "collection", "mapping"]

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
    """The object, or one inside it, is of a class that cannot be read.

    Attributes:
        class_id: Id of that class; None if `name` is given.
        name: Name of that class, or a description of the value.
    """

    def __init__(self, class_id: int | None, name: str = "") -> None:
        super().__init__(name or f"class {class_id}")
        self.class_id = class_id
        self.name = name


class Stream:
    """Reads objects one after the other.

    Args:
        body: What follows the type code and the length.
        readers: Functions that read the fields of an object, by class id.
        marked: Whether dates and timestamps have the marks of `zones`.
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
            raise WireError(f"{value} elements cannot stand in an object of {len(self.body)} bytes")
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
            return self._grown(self._referred())
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
        found = self._grown(self._body(tag))
        self._depth -= 1
        self._seen[mine] = found
        return found

    def _grown(self, found: bytes) -> bytes:
        self._made += len(found)
        if self._made > _MAX_BYTES:
            raise WireError("an object in Java's own serialization refers to too much")
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
        """Read what follows the tag of an object that others can refer to."""
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
            self.object()  # the defaults, whose names are repeated among the others
        return mapping([_string(self.text()) for _ in range(2 * self.count())])


# Objects of the binary protocol


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return struct.pack("<Bi", TypeCode.STRING, len(raw)) + raw


def collection(elements: list[bytes]) -> bytes:
    """Encode a collection of these objects."""
    return struct.pack("<BiB", TypeCode.COLLECTION, len(elements), _ARRAY_LIST) + b"".join(elements)


def mapping(pairs: list[bytes]) -> bytes:
    """Encode a map from alternating keys and values."""
    return struct.pack("<BiB", TypeCode.MAP, len(pairs) // 2, _LINKED_MAP) + b"".join(pairs)


def _class_of_jdk_stream(body: bytes) -> str:
    """Name of the class of the first object in a `java.io` stream."""
    # Magic and version, an object or an enum, a description of its class, its name.
    if len(body) < 8 or body[5:6] != b"r":
        return "an object of java.io"
    (length,) = struct.unpack_from(">H", body, 6)
    return body[8 : 8 + length].decode("utf-8", "replace")
