"""`Field` and `Schema`: the description of records, shared by loading and reading.

datatypes -> **schema** -> decode, encode

A `Schema` defines how the records of a cache are stored (type codes, field order), and their shape
and dtype in training.

Source of the ids: Apache Ignite 2.17.0, `BinaryBasicIdMapper` and `BinaryUtils.updateSchemaId`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.datatypes import ARRAY_ELEMENT, BYTES, DATA_TYPES, LIST_ELEMENT, Family
from ignitetf.wire.zones import UTC, Zone

__all__ = ["BYTES", "Field", "Schema", "Shape", "field_for", "is_identifier"]

Shape = tuple[int | None, ...]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*\Z")
# Columns that every table of Ignite has in addition to its own.
_TAKEN_BY_IGNITE = frozenset({"_KEY", "_VAL", "_ROWID_"})


def is_identifier(name: str) -> bool:
    """Return whether a name needs no quotes in SQL and other languages."""
    return _IDENTIFIER.match(name) is not None


@dataclass(frozen=True)
class Field:
    """One field of a record: how it is stored, and its shape and dtype in training.

    Attributes:
        name: The stored name; SQL tables have it in capitals.
        type: Type code of the stored object; WRAPPED for objects of any type, which are returned
            as their stored bytes.
        dtype: NumPy dtype of one element; `BYTES` for strings and blobs (one `bytes` a record).
        shape: Shape of one record's value: `()` for a scalar, None in dimensions that differ.
        nullable: True if values may be null.
        fields: The fields of a nested binary object (type OBJECT); otherwise empty.
        labels: Names of an enum's constants by ordinal, if the cluster reported them.
    """

    name: str
    type: TypeCode
    dtype: np.dtype[Any]
    shape: Shape = ()
    nullable: bool = False
    fields: tuple[Field, ...] = ()
    labels: Mapping[int, str] | None = field(default=None, compare=False, repr=False)

    @property
    def field_id(self) -> int:
        """Id of the field within its binary type, a signed 32-bit number."""
        return java_hash_lower(self.name)

    @property
    def has_times(self) -> bool:
        """True if values are or contain dates, times of day or timestamps."""
        code = LIST_ELEMENT.get(self.type, self.type)
        return bool(DATA_TYPES[code].units) or any(f.has_times for f in self.fields)

    @property
    def is_blob(self) -> bool:
        """True if a value is one run of bytes that are not text."""
        return self.dtype == BYTES and self.type in (TypeCode.BYTE_ARRAY, TypeCode.WRAPPED)

    @property
    def ragged(self) -> bool:
        """True if records differ in length."""
        return None in self.shape

    @property
    def size(self) -> int:
        """Number of elements in one record's value, ignoring dimensions that are None."""
        return int(np.prod([n for n in self.shape if n is not None], dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal field."""
        out: dict[str, Any] = {
            "name": self.name,
            "type": self.type.name.lower(),
            "dtype": "bytes" if self.dtype == BYTES else self.dtype.name,
            "shape": list(self.shape),
        }
        if self.nullable:
            out["nullable"] = True
        if self.fields:
            out["fields"] = [f.to_json() for f in self.fields]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Field:
        """Restore a field written by `to_json`; raises SchemaError if it is not one."""
        try:
            return cls(
                name=str(data["name"]),
                type=TypeCode[str(data["type"]).upper()],
                dtype=BYTES if data["dtype"] == "bytes" else np.dtype(data["dtype"]),
                shape=tuple(None if n is None else int(n) for n in data["shape"]),
                nullable=bool(data.get("nullable", False)),
                fields=tuple(cls.from_json(f) for f in data.get("fields", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"not a field description: {error!r}") from error


def field_for(
    name: str, dtype: np.dtype[Any], shape: Shape = (), *, nullable: bool = False
) -> Field:
    """Return the field that stores values of this dtype and shape in a type of equal width.

    Scalars become BYTE ... DOUBLE, BOOL, STRING; values with a shape become arrays.
    Unsigned integers keep their bits and their dtype, in the signed type of the same width.

    Raises:
        SchemaError: No Ignite type has this dtype.
    """
    dtype = np.dtype(dtype)
    if dtype == BYTES or dtype.kind in "SU":
        code = TypeCode.STRING_ARRAY if shape else TypeCode.STRING
        return Field(name, code, BYTES, shape, nullable)
    little = dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype
    table = _ARRAY_CODE if shape else _SCALAR_CODE
    if (code_ := table.get((dtype.kind, dtype.itemsize))) is None:
        raise SchemaError(
            f"field {name!r}: no Ignite type stores {dtype}",
            hint="convert it to an integer, float32, float64, bool or string first",
        )
    return Field(name, code_, little, shape, nullable)


def _numbers() -> dict[tuple[str, int], TypeCode]:
    """Return the types that store numbers, by kind and size in bytes of the dtype."""
    found: dict[tuple[str, int], TypeCode] = {}
    for code, row in DATA_TYPES.items():
        if row.family is Family.NUMBER and row.dtype is not None and row.dtype.kind in "ifb":
            found[row.dtype.kind, row.dtype.itemsize] = code
    return found | {("u", size): code for (kind, size), code in found.items() if kind == "i"}


_SCALAR_CODE = _numbers()
_ARRAY_OF = {DATA_TYPES[code].element: code for code in ARRAY_ELEMENT}
# A number without an array type is possible in scalar fields only.
_ARRAY_CODE = {kind: _ARRAY_OF[code] for kind, code in _SCALAR_CODE.items() if code in _ARRAY_OF}


@dataclass(frozen=True)
class Schema:
    """The records of one cache: key, value type, and fields in stored order.

    Attributes:
        type_name: Name of the binary type of the values; None for plain values, which then
            have exactly one field (named `val`).
        key: Field of the keys (named `key`); type OBJECT with `fields` for a composite key.
        fields: Fields of the value in the order of the binary object's schema.
        affinity_key: Name of the key field that determines the partition; None for the whole key.
        key_type_name: Name of the binary type of composite keys; otherwise None.
        zone: Time zone of the nodes that store the records.
    """

    type_name: str | None
    key: Field
    fields: tuple[Field, ...]
    affinity_key: str | None = None
    key_type_name: str | None = None
    zone: Zone = field(default=UTC, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that no two fields have the same id, a hash of the name that ignores case."""
        ids = [f.field_id for f in self.fields]
        if len(set(ids)) != len(ids):
            twice = sorted({f.name for f in self.fields if ids.count(f.field_id) > 1})
            raise SchemaError(
                f"Ignite cannot distinguish these field names: {', '.join(twice)}",
                hint="it identifies fields by a hash of the name that ignores case: rename one",
            )

    def __getitem__(self, name: str) -> Field:
        """Return the field of this name; raises KeyError if there is none."""
        for item in self.fields:
            if item.name == name:
                return item
        raise KeyError(name)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the value's fields, in stored order."""
        return tuple(f.name for f in self.fields)

    @property
    def type_id(self) -> int:
        """Id of the value's binary type, a signed 32-bit number."""
        return 0 if self.type_name is None else java_hash_lower(self.type_name)

    @property
    def schema_id(self) -> int:
        """Id of the order of fields, a signed 32-bit number."""
        return schema_id(self.fields)

    def in_zone(self, zone: Callable[[], Zone]) -> Schema:
        """Return the schema with the time zone from `zone`, called only if there are times."""
        has_times = any(f.has_times for f in (self.key, *self.fields))
        return replace(self, zone=zone()) if has_times else self

    def replace_fields(self, *changed: Field) -> Schema:
        """Return a copy in which these fields replace those of the same names."""
        by_name = {f.name: f for f in changed}
        return replace(self, fields=tuple(by_name.get(f.name, f) for f in self.fields))

    def check_identifiers(self) -> None:
        """Raise ConfigError unless all names can be SQL columns without quotes."""
        if taken := [name for name in self.names if name.upper() in _TAKEN_BY_IGNITE]:
            raise ConfigError(
                f"column name {' and '.join(map(repr, taken))}: every table of Ignite already has"
                " that column",
                hint="rename it",
            )
        if odd := [name for name in self.names if not is_identifier(name)]:
            raise ConfigError(
                f"column name {' and '.join(map(repr, odd))} is not a SQL identifier",
                hint="rename it: letters, digits and underscores, not starting with a digit",
            )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal schema."""
        out: dict[str, Any] = {
            "type_name": self.type_name,
            "key": self.key.to_json(),
            "fields": [f.to_json() for f in self.fields],
        }
        if self.affinity_key is not None:
            out["affinity_key"] = self.affinity_key
        if self.key_type_name is not None:
            out["key_type_name"] = self.key_type_name
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Restore a schema written by `to_json`; raises SchemaError if it is not one."""
        try:
            return cls(
                type_name=data["type_name"],
                key=Field.from_json(data["key"]),
                fields=tuple(Field.from_json(f) for f in data["fields"]),
                affinity_key=data.get("affinity_key"),
                key_type_name=data.get("key_type_name"),
            )
        except (KeyError, TypeError) as error:
            raise SchemaError(f"not a schema description: {error!r}") from error


def schema_id(fields: tuple[Field, ...]) -> int:
    """Return the id of a sequence of fields: FNV-1 over the bytes of their ids, signed 32-bit."""
    value = 0x811C9DC5
    for item in fields:
        for byte in (item.field_id & 0xFFFFFFFF).to_bytes(4, "little"):
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
