"""Binary types: maps a pair of type id and schema id to the fields of the object.

A compact binary object names neither its type nor its fields. Both are stored in the cluster's
registry (op 3002), which the client queries once per type. Names of Java classes are in another
registry (op 3000).

Source: Apache Ignite 2.17.0, `ClientBinaryTypeGetResponse`, `PlatformUtils`/`ClientUtils`
(`binaryMetadata`).
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.zones import UTC, Zone

__all__ = [
    "BinaryType",
    "TypeRegistry",
    "UnknownClass",
    "UnknownType",
    "read_binary_type",
    "read_class_name",
    "unregistered_name",
]


# Classes of Ignite itself. Their objects name fields by number, and they are not registered.
_OWN_TYPES: Final = {java_hash_lower("org.apache.ignite.cache.affinity.AffinityKey"): "AffinityKey"}
_OWN_TYPES.update({61: "IgniteBiTuple", 62: "T2"})
_OWN_FIELDS: Final = {java_hash_lower(name): name for name in ("key", "affKey", "val1", "val2")}
# The name of a field of such an object if only its number is known.
_NUMBERED: Final = re.compile(r"FIELD_([0-9A-F]{8})\Z")


class UnknownType(Exception):
    """A page has an object of a type or schema that is not yet in the registry."""

    def __init__(self, type_id: int, schema_id: int) -> None:
        super().__init__(f"type {type_id}, schema {schema_id}")
        self.type_id = type_id
        self.schema_id = schema_id


class UnknownClass(Exception):
    """The registry does not yet know whether the Java class of this id has a name."""

    def __init__(self, class_id: int) -> None:
        super().__init__(f"class {class_id}")
        self.class_id = class_id


@dataclass(frozen=True)
class BinaryType:
    """One binary type as the cluster knows it.

    Attributes:
        type_id: Signed 32-bit id.
        name: Name as registered.
        fields: Name and declared type code (or -1) by field id.
        schemas: Field ids in stored order, by schema id.
        affinity_key: Name of the affinity key field, if any.
        enum: Names of an enum's constants by ordinal; empty for other types.
    """

    type_id: int
    name: str
    fields: dict[int, tuple[str, int]]
    schemas: dict[int, tuple[int, ...]]
    affinity_key: str | None = None
    enum: dict[int, str] | None = None

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Ids of the fields by name."""
        return {name: number for number, (name, _) in self.fields.items()}


class TypeRegistry:
    """The types of a cluster: binary types and names of Java classes, by id.

    Args:
        zone: Returns the time zone of the nodes; None for UTC. Called only if there are times.
    """

    def __init__(self, zone: Callable[[], Zone] | None = None) -> None:
        self._zone = zone or (lambda: UTC)
        self._types: dict[int, BinaryType | None] = {}
        self._classes: dict[int, str] = {}

    @property
    def zone(self) -> Zone:
        """The time zone of the nodes."""
        return self._zone()

    def add(self, item: BinaryType) -> None:
        """Add a type, replacing an older one of the same id."""
        self._types[item.type_id] = item

    def add_missing(self, type_id: int) -> None:
        """Record that the cluster has no type of this id."""
        self._types[type_id] = None

    def knows(self, type_id: int) -> bool:
        """Return True if a type of this id was added."""
        return type_id in self._types

    def find(self, type_id: int, schema_id: int = 0) -> BinaryType | None:
        """Return the type of this id, None if the cluster lacks it; UnknownType until added."""
        if type_id not in self._types:
            raise UnknownType(type_id, schema_id)
        return self._types[type_id]

    def type(self, type_id: int, schema_id: int = 0) -> BinaryType:
        """Return the type of this id; raises UnknownType if it was not yet added."""
        if (found := self.find(type_id, schema_id)) is None:
            raise SchemaError(
                f"the cluster does not know binary type {type_id}",
                hint="was it written by a client that registers no types?",
            )
        return found

    def constant(self, type_id: int, ordinal: int) -> str | int:
        """Return the name of an enum's constant, or its ordinal; raises UnknownType as `find`."""
        found = self.find(type_id)
        names = None if found is None else found.enum
        return ordinal if names is None else names.get(ordinal, ordinal)

    def constants(self, type_ids: Iterable[int]) -> Mapping[int, str] | None:
        """Return the names of an enum's constants; None if it is not one, or they are unknown."""
        found = [self._types.get(type_id) for type_id in type_ids]
        return found[0].enum if len(found) == 1 and found[0] is not None else None

    def name(self, type_id: int) -> str:
        """Return the name of a type, also if the cluster does not have the type."""
        found = self.find(type_id)
        return _OWN_TYPES.get(type_id, f"type {type_id}") if found is None else found.name

    def schema(self, type_id: int, schema_id: int) -> tuple[int, ...]:
        """Return a schema's field ids in stored order; raises UnknownType if not yet added."""
        found = self.type(type_id, schema_id).schemas.get(schema_id)
        if found is None:
            raise UnknownType(type_id, schema_id)
        return found

    def field_ids(self, type_id: int, names: Iterable[str]) -> list[int]:
        """Return the registered ids of the fields, or the ids derived from their names."""
        if (found := self.find(type_id)) is None:
            return [_number_in(name) for name in names]
        return [found.ids[n] if n in found.ids else java_hash_lower(n) for n in names]

    def add_class(self, class_id: int, name: str | None) -> None:
        """Add the name of a Java class; None if the cluster has none."""
        self._classes[class_id] = name or f"an unnamed class ({class_id})"

    def class_name(self, class_id: int) -> str:
        """Return a Java class's name for a message; raises UnknownClass if it was not yet added."""
        if (found := self._classes.get(class_id)) is None:
            raise UnknownClass(class_id)
        return found


def unregistered_name(field_id: int) -> str:
    """Return the name of a field in objects of a type that the cluster does not have."""
    return _OWN_FIELDS.get(field_id, f"FIELD_{field_id & 0xFFFFFFFF:08X}")


def _number_in(name: str) -> int:
    if (found := _NUMBERED.match(name)) is None:
        return java_hash_lower(name)
    (number,) = struct.unpack(">i", bytes.fromhex(found[1]))
    return int(number)


def read_class_name(body: memoryview) -> str | None:
    """Parse the answer to BINARY_TYPE_NAME_GET."""
    try:
        return _Reader(body).string()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError("damaged name of a class") from error


def read_binary_type(body: memoryview) -> BinaryType | None:
    """Parse the answer to BINARY_TYPE_GET; None if the cluster has no such type."""
    try:
        return _Reader(body).binary_type()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError("damaged description of a binary type") from error


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0

    def int32(self) -> int:
        (value,) = struct.unpack_from("<i", self.body, self.at)
        self.at += 4
        return int(value)

    def count(self) -> int:
        value = self.int32()
        if not 0 <= value <= len(self.body):
            raise IndexError(f"count {value}")
        return value

    def flag(self) -> bool:
        self.at += 1
        return bool(self.body[self.at - 1])

    def string(self) -> str | None:
        code = self.body[self.at]
        self.at += 1
        if code != TypeCode.STRING:
            return None
        length = self.count()
        if self.at + length > len(self.body):
            raise IndexError("string beyond the end")
        self.at += length
        return bytes(self.body[self.at - length : self.at]).decode("utf-8")

    def binary_type(self) -> BinaryType | None:
        if not self.flag():
            return None
        type_id = self.int32()
        name = self.string() or ""
        affinity_key = self.string()
        fields = {}
        for _ in range(self.count()):
            field_name = self.string() or ""
            code = self.int32()
            fields[self.int32()] = (field_name, code)
        enum = None
        if self.flag():
            names = [(self.string() or "", self.int32()) for _ in range(self.count())]
            enum = {ordinal: constant for constant, ordinal in names}
        schemas = {}
        for _ in range(self.count()):
            schema_id = self.int32()
            schemas[schema_id] = tuple(self.int32() for _ in range(self.count()))
        return BinaryType(type_id, name, fields, schemas, affinity_key, enum)
