"""TFRecord files of `tf.train.Example`, written without TensorFlow.

columns -> values -> **features, messages, frames with CRCs** -> TFRecord

Numbers become int64 or float lists, texts and blobs become bytes, and pixels and doubles are stored
as their bytes. A null is a missing feature. `load.sources.tfrecord` reads the files again; it needs
the types from `options`, because the files do not have them.

Source: tensorflow/core/example/feature.proto; protobuf's encoding of wire types 0 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO, Any, Final

import numpy as np

from ignitetf.crc import masked_crc32c
from ignitetf.export.base import Format, Sink, cannot_hold, python_values
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, values_of
from ignitetf.wire.datatypes import Family
from ignitetf.wire.schema import BYTES, Field

__all__ = ["TfRecordFormat"]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_HELD: Final = frozenset({Family.NUMBER, Family.TEXT, Family.ARRAY, Family.STORED})
_HEAD: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")

Feature = Callable[[Any], bytes]


class TfRecordFormat(Format):
    """TFRecord, with one Example per row."""

    kind = "tfrecord"
    suffix = ".tfrecord"

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self.require("tfrecord", _HELD, (TypeCode.CHAR, TypeCode.CHAR_ARRAY))
        self.features = [(field, _feature(field)) for field in self.fields]

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer that writes frames."""
        return _TfRecordSink(self, target.open(name))

    def options(self) -> list[str]:
        """Return the options for the types of all features, and for the key."""
        types = ",".join(f"{field.name}:{_type(field)}" for field in self.fields)
        return ["--features", types, *super().options()]


class _TfRecordSink(Sink):
    def __init__(self, form: TfRecordFormat, file: IO[bytes]) -> None:
        self._form, self._file = form, file

    def write(self, batch: Batch) -> None:
        """Write an Example for each row."""
        columns = []
        for field, feature in self._form.features:
            column = batch.columns[field.name]
            _check(field, column)
            name = _part(1, field.name.encode())
            values = python_values(field, column)
            columns.append([b"" if v is None else _entry(name, feature(v)) for v in values])
        frames = []
        for parts in zip(*columns, strict=True):
            record = _part(1, b"".join(parts))
            head = _HEAD.pack(len(record))
            frames += [head, _CRC.pack(masked_crc32c(head)), record]
            frames.append(_CRC.pack(masked_crc32c(record)))
        self._file.write(b"".join(frames))

    def close(self) -> None:
        """Close the file; TFRecord has no footer."""
        self._file.close()


def _check(field: Field, column: Column) -> None:
    """Raise SchemaError for values that would be read back as different values."""
    lists = field.ragged or field.type is TypeCode.STRING_ARRAY
    if lists and column.valid is not None and not column.valid.all():
        raise cannot_hold("tfrecord", field, "nulls in lists, which are read back as empty")
    if field.type is TypeCode.DOUBLE:
        values = values_of(column)
        with np.errstate(over="ignore"):  # too large values become infinite, so not equal
            held = values.astype(np.float32).astype(np.float64)
        if not np.array_equal(held, values, equal_nan=True):
            raise cannot_hold("tfrecord", field, "numbers of 64 bits that 32 do not hold exactly")


def _feature(field: Field) -> Feature:
    """Return a function that encodes a value of a field as a Feature."""
    if field.type is TypeCode.STRING_ARRAY:
        return lambda texts: _part(_BYTES_LIST, b"".join(_part(1, text) for text in texts))
    if field.dtype == BYTES:
        return lambda value: _part(_BYTES_LIST, _part(1, value))
    if _is_packed(field):
        kind = field.dtype.newbyteorder("<")
        return lambda array: _part(_BYTES_LIST, _part(1, array.astype(kind).tobytes()))
    if field.dtype.kind == "f":
        return lambda value: _part(_FLOAT_LIST, _part(1, np.asarray(value, "<f4").tobytes()))
    if field.shape:
        return lambda array: _part(_INT64_LIST, _part(1, _varints(array.reshape(-1).tolist())))
    return lambda value: _part(_INT64_LIST, _part(1, _varint(int(value))))


def _is_packed(field: Field) -> bool:
    """Return True if arrays are stored as bytes: pixels, and doubles, which do not fit floats."""
    return bool(field.shape) and (
        (field.dtype.kind == "u" and not field.ragged) or field.dtype == np.float64
    )


def _type(field: Field) -> str:
    """Return the type of a feature as `--features` takes it."""
    text = "bytes" if field.is_blob else "string"
    word = text if field.dtype == BYTES else field.dtype.name
    shape = (None,) if field.type is TypeCode.STRING_ARRAY else field.shape
    inner = ",".join("?" if n is None else str(n) for n in shape)
    null = "?" if field.nullable and None not in shape else ""
    return f"{word}[{inner}]{null}" if shape else f"{word}{null}"


def _entry(name: bytes, feature: bytes) -> bytes:
    """Return an encoded map entry of the message Features."""
    return _part(1, name + _part(2, feature))


def _part(number: int, payload: bytes) -> bytes:
    """Return an encoded, length-delimited field of a message."""
    return bytes((number << 3 | 2,)) + _varint(len(payload)) + payload


def _varints(values: list[int]) -> bytes:
    return b"".join(map(_varint, values))


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
