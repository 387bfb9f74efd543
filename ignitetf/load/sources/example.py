"""Parses `tf.train.Example` messages without a library, and finds the types of their features.

bytes of one record -> **features: kind and position of their values** -> columns

An Example maps names to one of three lists: bytes, float32 or int64. The parser only locates the
values; records of equal length that agree outside their values can then be read as one matrix.
Neither protobuf nor TensorFlow is needed.

The types of features (`FeatureSpec`) are declared, or inferred from the first records. A declared
type is a dtype with an optional shape: `int64`, `float32[4]`, `float32[?,4]` (varying length),
`string` (text), `bytes` (blob), `string[?]`, and `uint8[28,28,1]` for pixels packed into one bytes
value. A `?` at the end allows it to be missing: `float32?`. `tf.io.FixedLenFeature` and
`VarLenFeature` objects are accepted too.

Source: tensorflow/core/example/feature.proto; protobuf's encoding of wire types 0, 1, 2 and 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.base import column_name
from ignitetf.load.sources.values import cast_array, column_of, stored_field
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense
from ignitetf.wire.schema import BYTES, Field, Shape, field_for

__all__ = [
    "BYTES_LIST",
    "FLOAT_LIST",
    "INT64_LIST",
    "ExampleError",
    "Feature",
    "FeatureSpec",
    "declared_specs",
    "has_steps",
    "inferred_specs",
    "parse_example",
]

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
# A varint has 7 bits per byte, so 64 bits take at most ten.
_MAX_VARINT = 10
_FEW_BYTES = 20  # up to this number a loop is faster


class ExampleError(ValueError):
    """Bytes that are not an Example; the text is the reason."""


@dataclass
class Feature:
    """One feature of one record: its kind, and the spans of the buffer that hold its values.

    A span of a bytes list is one value; a span of a float or int64 list is a run of packed values.
    """

    kind: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    def values(self, data: bytes) -> Any:
        """Return the values: a list of bytes, or an array of float32 or int64."""
        if self.kind == BYTES_LIST:
            return [data[a:b] for a, b in self.spans]
        packed = b"".join(data[a:b] for a, b in self.spans)
        if self.kind == FLOAT_LIST:
            return np.frombuffer(packed, "<f4")
        if len(packed) <= _FEW_BYTES:
            return _few_varints(packed)
        return varints(np.frombuffer(packed, np.uint8))


def _few_varints(raw: bytes) -> NDArray[np.int64]:
    out = []
    pos, end = 0, len(raw)
    while pos < end:
        value, pos = _varint(raw, pos, end)
        out.append(value & 0xFFFFFFFFFFFFFFFF)
    return np.array(out, np.uint64).view(np.int64)


def varints(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Decode packed varints to int64.

    Raises:
        ExampleError: The last one is cut off, or one has more than ten bytes.
    """
    last = raw < 0x80
    if len(raw) and not last[-1]:
        raise ExampleError("a number is truncated")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - starts + 1
    if len(ends) and lengths.max() > _MAX_VARINT:
        raise ExampleError("a number has more than ten bytes")
    out = np.zeros(len(ends), np.uint64)
    for i in range(int(lengths.max()) if len(ends) else 0):
        has = lengths > i
        out[has] |= (raw[starts[has] + i].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * i)
    return out.view(np.int64)


def parse_example(data: bytes, start: int = 0, end: int | None = None) -> dict[str, Feature]:
    """Return the features of an Example in `data[start:end]`.

    Raises:
        ExampleError: It is not a valid message.
    """
    out: dict[str, Feature] = {}
    for number, a, b in _fields(data, start, len(data) if end is None else end):
        if number == 1:
            for entry, c, d in _fields(data, a, b):
                if entry == 1:
                    _map_entry(data, c, d, out)
    return out


def has_steps(data: bytes) -> bool:
    """True if a message is a SequenceExample: an Example with lists of features for each step.

    Raises:
        ExampleError: It is not a valid message.
    """
    return any(number == 2 for number, _, _ in _fields(data, 0, len(data)))


def _map_entry(data: bytes, start: int, end: int, out: dict[str, Feature]) -> None:
    name, found = "", Feature()
    for number, a, b in _fields(data, start, end):
        if number == 1:
            try:
                name = data[a:b].decode()
            except UnicodeDecodeError as error:
                raise ExampleError("the name of a feature is not UTF-8") from error
        elif number == 2:
            found = Feature()
            for kind, c, d in _fields(data, a, b):
                if kind in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
                    if kind != found.kind:
                        found = Feature(kind)
                    _list(data, c, d, found)
    out[name] = found


def _list(data: bytes, start: int, end: int, feature: Feature) -> None:
    for number, a, b in _fields(data, start, end):
        if number != 1:
            continue
        if feature.kind == FLOAT_LIST and (b - a) % 4:
            raise ExampleError("a float is truncated")
        if b > a or feature.kind == BYTES_LIST:
            feature.spans.append((a, b))


def _fields(data: bytes, pos: int, end: int) -> list[tuple[int, int, int]]:
    """Return number and span of each field of a message; for a plain number, its own bytes."""
    out = []
    while pos < end:
        tag = data[pos]  # nearly all of these numbers have one byte
        if tag < 0x80:
            pos += 1
        else:
            tag, pos = _varint(data, pos, end)
        kind = tag & 7
        if kind == 2:
            if pos < end and data[pos] < 0x80:
                size = data[pos]
                pos += 1
            else:
                size, pos = _varint(data, pos, end)
        elif kind == 0:
            _, after = _varint(data, pos, end)
            size = after - pos
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ExampleError(f"wire type {kind} is not used by Example")
        if size > end - pos:
            raise ExampleError("a field is longer than its message")
        out.append((tag >> 3, pos, pos + size))
        pos += size
    return out


def _varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for i in range(pos, min(end, pos + _MAX_VARINT)):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, i + 1
        shift += 7
    raise ExampleError("a number is truncated")


_WORD = re.compile(r"\s*([^:,\[\]]+?)\s*:\s*([A-Za-z_0-9]+)\s*(\[[^\]]*\])?(\??)\s*(?:,|$)")
_TYPE = re.compile(r"([A-Za-z_0-9]+)\s*(?:\[([^\]]*)\])?(\??)\Z")
_HINT = "examples: label:int64, image:bytes, box:float32[4], tags:string[?], pixels:uint8[28,28,1]"


@dataclass(frozen=True)
class FeatureSpec:
    """A feature and the field that stores it."""

    feature: str
    field: Field

    def value(self, found: Feature | None, data: bytes) -> Any:
        """Return the value of one record in the form of `column_of`; None if it is missing.

        Raises:
            SchemaError: The feature has another kind or number of values.
        """
        if found is None or not found.spans:
            return self._missing()
        values = found.values(data)
        if self.field.dtype == BYTES:
            return self._texts(found.kind, values)
        if found.kind == BYTES_LIST:
            values = self._unpacked(values)
        if not self.field.shape:
            if len(values) != 1:
                raise SchemaError(f"{len(values)} values, expected one")
            return self._scalar(values[0])
        return self._shaped(values)

    def _missing(self) -> Any:
        if self.field.type == TypeCode.STRING_ARRAY:
            return []
        if self.field.ragged:
            return np.empty((0, *(n or 0 for n in self.field.shape[1:])), self.field.dtype)
        return None

    def _texts(self, kind: int, values: Any) -> Any:
        if kind != BYTES_LIST:
            raise SchemaError("numbers instead of bytes")
        if self.field.type == TypeCode.STRING_ARRAY:
            return values
        if len(values) != 1:
            raise SchemaError(f"{len(values)} values, expected one")
        return values[0]

    def _unpacked(self, values: list[bytes]) -> NDArray[Any]:
        """Return numbers packed into one bytes value, little-endian."""
        if not self.field.shape:
            raise SchemaError("bytes instead of a number")
        if len(values) != 1 or len(values[0]) % self.field.dtype.itemsize:
            raise SchemaError(
                f"{len(values)} values of bytes instead of an array of {self.field.dtype}"
            )
        return np.frombuffer(values[0], self.field.dtype)

    def _scalar(self, value: Any) -> Any:
        if self.field.type == TypeCode.BOOL and isinstance(value, np.int64):
            if value not in (0, 1):
                raise SchemaError(f"{value} instead of a bool")
            return bool(value)
        return value

    def _shaped(self, values: NDArray[Any]) -> NDArray[Any]:
        shape = tuple(-1 if n is None else n for n in self.field.shape)
        if self.field.type == TypeCode.BOOL_ARRAY and values.dtype == np.int64:
            values = values.astype(np.bool_)
        trailing = math.prod(n for n in shape if n >= 0)
        fits = (
            len(values) % trailing == 0
            if self.field.ragged and trailing
            else (len(values) == trailing)
        )
        if not fits:
            raise SchemaError(f"{len(values)} values, expected shape {list(self.field.shape)}")
        return values.reshape(shape)

    def column(self, values: NDArray[Any]) -> Column:
        """Return the column of numbers `[n, k]`, k in each record.

        Raises:
            SchemaError: Their number or type does not fit.
        """
        n, k = values.shape
        shape = tuple(m or 0 for m in self.field.shape)
        if self.field.dtype == BYTES or self.field.ragged or k != math.prod(shape):
            return column_of(self.field, [self._row(row) for row in values])
        if self.field.dtype == np.bool_ and values.dtype == np.int64:
            return column_of(self.field, [self._row(row) for row in values])
        return Dense(cast_array(self.field.dtype, values).reshape(n, *shape))

    def _row(self, row: NDArray[Any]) -> Any:
        if self.field.dtype == BYTES:
            raise SchemaError("numbers instead of bytes")
        if not self.field.shape:
            if len(row) != 1:
                raise SchemaError(f"{len(row)} values, expected one")
            return self._scalar(row[0])
        return self._shaped(row)


def declared_specs(declared: str | Mapping[str, Any]) -> list[FeatureSpec]:
    """Parse specs: `name:type,name:type`, or a mapping of names to types, Fields or TF features.

    Raises:
        ConfigError: The text cannot be parsed, or a type is unknown.
    """
    if isinstance(declared, str):
        declared = _split(declared)
    specs = []
    for feature, what in declared.items():
        name = column_name(feature)
        if isinstance(what, Field):
            field = what
        elif isinstance(what, str):
            field = _field(name, what)
        elif hasattr(what, "dtype"):
            field = _field(name, _tensorflow_type(what))
        else:
            raise ConfigError(f"feature {feature!r}: unknown type {what!r}", hint=_HINT)
        specs.append(FeatureSpec(feature, field))
    if not specs:
        raise ConfigError("no features are declared", hint=_HINT)
    return specs


def _split(text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    pos = 0
    while pos < len(text):
        match = _WORD.match(text, pos)
        if match is None:
            raise ConfigError(f"features {text!r}: cannot parse {text[pos:]!r}", hint=_HINT)
        out[match[1]] = match[2] + (match[3] or "") + match[4]
        pos = match.end()
    return out


def _tensorflow_type(feature: Any) -> str:
    """Return the type of a FixedLenFeature or VarLenFeature."""
    dtype = getattr(feature.dtype, "name", str(feature.dtype))
    shape = getattr(feature, "shape", [None])
    inner = ",".join("?" if n is None else str(n) for n in shape)
    word = "bytes" if dtype == "string" and not len(shape) else dtype
    return f"{word}[{inner}]" if len(shape) else word


def _field(name: str, text: str) -> Field:
    match = _TYPE.match(text.strip())
    word, inner = (match[1].lower(), match[2]) if match else ("", None)
    nullable = bool(match and match[3])
    try:
        shape: Shape = ()
        if inner is not None:
            shape = tuple(None if n.strip() in ("?", "") else int(n) for n in inner.split(","))
        if any(n is not None and n < 1 for n in shape) or None in shape[1:]:
            raise ValueError(text)
        if word in ("bytes", "string", "str"):
            if len(shape) > 1 or (shape and word == "bytes"):
                raise ValueError(text)
            code = TypeCode.BYTE_ARRAY if word == "bytes" else TypeCode.STRING
            code = TypeCode.STRING_ARRAY if shape else code
            return Field(name, code, BYTES, shape, nullable)
        aliases = {"int": "int64", "float": "float32", "double": "float64"}
        return stored_field(name, np.dtype(aliases.get(word, word)), shape, nullable=nullable)
    except (ValueError, TypeError, SchemaError) as error:
        raise ConfigError(f"feature {name}: no type {text!r}", hint=_HINT) from error


def inferred_specs(sample: Sequence[tuple[dict[str, Feature], bytes]]) -> list[FeatureSpec]:
    """Infer specs from the first records, in alphabetical order.

    A single bytes value is text if all values are printable UTF-8, otherwise a blob. If the number
    of values differs, or a list is missing, the field is ragged. A missing single value makes it
    nullable.
    """
    names = sorted({name for features, _ in sample for name in features})
    specs = []
    for name in names:
        found = [(features.get(name), data) for features, data in sample]
        present = [(f, d) for f, d in found if f is not None and f.spans]
        kinds = {f.kind for f, _ in present}
        if len(kinds) > 1:
            raise SourceError(
                f"feature {name!r} has values of several kinds",
                hint="declare the features to load: --features name:type,...",
            )
        if kinds:
            specs.append(FeatureSpec(name, _inferred(name, kinds.pop(), found, present)))
    if not specs:
        raise SourceError("the first records have no features", hint="are they tf.train.Example?")
    return specs


def _inferred(
    name: str,
    kind: int,
    found: Sequence[tuple[Feature | None, bytes]],
    present: Sequence[tuple[Feature, bytes]],
) -> Field:
    values = [feature.values(data) for feature, data in present]
    counts = {len(v) for v in values}
    missing = len(present) < len(found)
    column = column_name(name)
    if counts == {1}:
        shape: Shape = ()
    elif len(counts) == 1 and not missing:
        shape = (counts.pop(),)
    else:
        shape, missing = (None,), False
    if kind == BYTES_LIST:
        if shape:
            return Field(column, TypeCode.STRING_ARRAY, BYTES, (None,))
        text = all(_printable(items[0]) for items in values)
        code = TypeCode.STRING if text else TypeCode.BYTE_ARRAY
        return Field(column, code, BYTES, (), missing)
    dtype = np.dtype(np.float32) if kind == FLOAT_LIST else np.dtype(np.int64)
    assert kind in (FLOAT_LIST, INT64_LIST)
    return field_for(column, dtype, shape, nullable=missing)


def _printable(raw: bytes) -> bool:
    try:
        return raw.decode().isprintable()
    except UnicodeDecodeError:
        return False
