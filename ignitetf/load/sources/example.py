"""Parses `tf.train.Example` messages by hand, without protobuf and TensorFlow.

bytes of one record -> **features: kind and position of their values** -> columns

An Example maps names to one of three lists: bytes, float32 or int64. The parser only locates the
values; records of equal length that agree outside their values can then be read as one matrix.

Source: tensorflow/core/example/feature.proto; protobuf's encoding of wire types 0, 1, 2 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BYTES_LIST",
    "FLOAT_LIST",
    "INT64_LIST",
    "ExampleError",
    "Feature",
    "has_steps",
    "parse_example",
]

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
# A varint has 7 bits per byte, so 64 bits take at most ten.
_MAX_VARINT = 10
_FEW_BYTES = 20  # up to here a loop is faster


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
        raise ExampleError("a number is cut")
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
    """Whether a message is a SequenceExample: an Example with lists of features for each step.

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
            raise ExampleError("a float is cut")
        if b > a or feature.kind == BYTES_LIST:
            feature.spans.append((a, b))


def _fields(data: bytes, pos: int, end: int) -> list[tuple[int, int, int]]:
    """Return number and span of each field of a message; for a plain number, its own bytes."""
    out = []
    while pos < end:
        tag = data[pos]  # nearly all numbers here have one byte
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
    raise ExampleError("a number is cut")
