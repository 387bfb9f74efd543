"""Describes to the core how rows of a schema land in columns, and makes batches of landed rows.

schema -> **landing** -> reading

The core lands values that it can copy without parsing: numbers, times, texts, blobs and arrays of
numbers. Rows with other values, or in a form that the core does not know, are left to the general
decoder, and their values are written to the same places.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import Kind, Layout
from ignitetf.errors import WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, concat
from ignitetf.wire.datatypes import (
    ALIKE,
    ARRAY_ELEMENT,
    BYTES,
    DATA_TYPES,
    FIXED_DTYPE,
    TIMESTAMP_UNITS,
    Family,
)
from ignitetf.wire.decode import is_widened
from ignitetf.wire.objects import extents
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Left", "RowLayout"]

_NUMERIC: Final = "iufb"
_TIMES: Final = (Family.MILLISECONDS, Family.TIMESTAMP)
# No value has this type code.
_NO_CODE: Final = -1
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class _Stored:
    """The stored type of a field, and the form of its values in memory.

    Attributes:
        kind: The layout of its values.
        size: Bytes of a value; 0 for runs.
        dtype: Dtype of the values, or of the items of runs.
        shape: Shape of a value.
        skip: Bytes between the type code and the value.
        unit: Bytes of an item of an array.
        step: The length of a run is a multiple of this number of bytes.
        scale: Items in memory per item in the answer: above 1 if an array is read as a blob.
        least: Smallest number that lands; rows with smaller ones are left to the general decoder.
        most: Largest number that lands; rows with larger ones are left to the general decoder.
    """

    kind: Kind
    size: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    skip: int = 0
    unit: int = 1
    step: int = 1
    scale: int = 1
    least: int = _LEAST
    most: int = _MOST


def _stored(field: Field, registry: TypeRegistry) -> _Stored | None:
    """Return how the values of a field land; None if copying them is not enough."""
    family = DATA_TYPES[field.type].family
    if family in _TIMES:
        return _time(field, family, registry)
    if family is Family.ARRAY:
        return _array(field)
    if field.shape:
        return None
    kind = field.dtype.kind
    if family is Family.NUMBER:
        return _number(field)
    if family is Family.TEXT and field.dtype == BYTES:
        return _Stored(Kind.RUN, 0, np.dtype(np.uint8))
    if family is Family.ENUM and kind in "iu" and field.dtype.itemsize == 4:
        return _Stored(Kind.DENSE, 4, field.dtype, skip=4)
    if family is Family.UUID:
        if field.dtype == BYTES:
            return _Stored(Kind.UUID_TEXT, 0, np.dtype(np.uint8))
        return _Stored(Kind.DENSE, 16, np.dtype(np.uint64), (2,))
    return None


def _time(field: Field, family: Family, registry: TypeRegistry) -> _Stored | None:
    plain = registry.zone.plain_times(of_day=field.type == TypeCode.TIME)
    if plain is None or field.shape:
        return None  # the stored number differs from the calendar time
    least, most = plain
    if family is Family.TIMESTAMP:
        is_one = field.dtype.kind == "M" or field.dtype == np.int64
        found = _Stored(Kind.MOMENT, 8, np.dtype(np.int64)) if is_one else None
    else:
        found = _number(field)
    return None if found is None else replace(found, least=least, most=most)


def _number(field: Field) -> _Stored | None:
    stored = FIXED_DTYPE[field.type]
    if field.dtype.kind not in _NUMERIC:
        return None
    if is_widened(field.dtype, stored):
        return _Stored(Kind.NARROW, field.dtype.itemsize, field.dtype)
    same = field.dtype.itemsize == stored.itemsize
    return _Stored(Kind.DENSE, stored.itemsize, field.dtype) if same else None


def _array(field: Field) -> _Stored | None:
    width = ARRAY_ELEMENT[field.type].itemsize
    if field.dtype == BYTES:
        if field.shape:
            return None
        return _Stored(Kind.RUN, 0, np.dtype(np.uint8), unit=width, step=width, scale=width)
    if field.dtype.itemsize != width or field.dtype.kind not in _NUMERIC or field.size == 0:
        return None
    if field.ragged:
        return _Stored(Kind.RUN, 0, field.dtype, unit=width, step=width * field.size)
    shape = tuple(n for n in field.shape if n is not None)
    return _Stored(Kind.ARRAY, width * field.size, field.dtype, shape, unit=width)


def _spec(field: Field, stored: _Stored | None) -> tuple[int, ...]:
    """Return the numbers that describe a column to the core; see `Column` in core.h."""
    if stored is None:
        return Kind.DENSE, 1, 0, 1, 1, _NO_CODE, _NO_CODE, 0, 1, 1, _LEAST, _MOST
    codes = ALIKE[field.type]
    per_ms = ns_per_unit = 1
    if stored.kind is Kind.MOMENT:
        unit = np.datetime_data(field.dtype)[0] if field.dtype.kind == "M" else "ns"
        per_ms, ns_per_unit = TIMESTAMP_UNITS.get(unit, (1, 1))
    return (
        stored.kind, stored.size, stored.skip, stored.unit, stored.step, codes[0], codes[-1],
        field.nullable, per_ms, ns_per_unit, stored.least, stored.most,
    )  # fmt: skip


class Left:
    """Rows that the general decoder has read, by group, and rows to leave out.

    Args:
        rows: Number of rows of a group.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._parts: dict[int, list[tuple[NDArray[np.int64], Batch]]] = {}
        self._gone: dict[int, list[int]] = {}

    def drop(self, places: NDArray[np.int64]) -> None:
        """Leave out the rows at these places, because the cache does not have them."""
        with self._lock:
            for place in places.tolist():
                self._gone.setdefault(place // self._rows, []).append(place % self._rows)

    def gone(self, number: int) -> list[int]:
        """Remove and return the numbers of the rows to leave out of a group."""
        if not self._gone:
            return []
        with self._lock:
            return self._gone.pop(number, [])

    def add(self, places: NDArray[np.int64], batch: Batch) -> None:
        """Add rows by their places, int64 `[n]`."""
        groups = places // self._rows
        with self._lock:
            for number in np.unique(groups).tolist():
                own = np.flatnonzero(groups == number)
                part = batch if len(own) == len(places) else batch[own]
                rows = places[own] - number * self._rows
                self._parts.setdefault(number, []).append((rows, part))

    def take(self, number: int) -> list[tuple[NDArray[np.int64], Batch]]:
        """Remove and return the decoded rows of a group: their numbers in it, and the rows."""
        if not self._parts:
            return []
        with self._lock:
            return self._parts.pop(number, [])


class RowLayout:
    """The layout of the rows of a schema.

    Args:
        schema: The rows.
        registry: Known binary types.
        rows: Rows of a group.
        row_bytes: Bytes of an average row.

    Attributes:
        native: The core's `Layout`.
        rows: Rows of a group.
        lands: True if the core lands rows; otherwise all rows are left to the general decoder.
    """

    def __init__(self, schema: Schema, registry: TypeRegistry, rows: int, row_bytes: float) -> None:
        fields = (schema.key, *schema.fields)
        stored = [_stored(field, registry) for field in fields]
        self.lands = all(item is not None for item in stored) and not schema.key.nullable
        if not self.lands:
            stored = [None]
        specs = [_spec(field, item) for field, item in zip(fields, stored, strict=False)]
        plain = schema.type_name is None and self.lands
        self.rows = rows
        # The bytes that are not dense are in the heaps, about evenly. This is only a first estimate
        # of the heaps' size: they adapt to what they need.
        runs = sum(1 for item in stored if item is not None and not item.size)
        dense = sum(item.size for item in stored if item is not None)
        heap_bytes = int(rows * max(16.0, row_bytes - dense) / max(1, runs))
        self.native = Layout(np.array(specs, np.int64), extents(), rows, plain, heap_bytes)
        self._schema = schema
        self._registry = registry
        self._columns = list(zip(fields, stored, self.native.offsets(), strict=False))

    def learn(self, type_id: int, schema_id: int, flags: int) -> None:
        """Add the stored form of a schema to the core, or have the core leave its rows.

        Raises:
            UnknownType: The registry lacks the type or the schema.
        """
        columns = lacking = None
        if (
            self.lands
            and flags & BinaryFlag.COMPACT_FOOTER
            and not flags & BinaryFlag.HAS_RAW
            and schema_id
        ):
            columns, lacking = self._form(type_id, schema_id)
        self.native.add_form(type_id, schema_id, flags, columns, lacking)

    def _form(
        self, type_id: int, schema_id: int
    ) -> tuple[NDArray[np.int16] | None, NDArray[np.int16] | None]:
        order = self._registry.schema(type_id, schema_id)
        ids = self._registry.field_ids(type_id, self._schema.names)
        column_of = {field_id: number + 1 for number, field_id in enumerate(ids)}
        lacking = [number for field_id, number in column_of.items() if field_id not in order]
        if not all(self._schema.fields[number - 1].nullable for number in lacking):
            return None, None
        columns = [column_of.get(field_id, -1) for field_id in order]
        return np.array(columns, np.int16), np.array(lacking, np.int16)

    def batch(
        self,
        taken: tuple[Any, ...],
        left: Sequence[tuple[NDArray[np.int64], Batch]],
        gone: Sequence[int] = (),
    ) -> Batch:
        """Return the rows of a group; they are views of its memory if the core landed all of them.

        Args:
            taken: The result of `Landing.take`.
            left: The rows of the group that the general decoder has read.
            gone: Numbers of rows to leave out.
        """
        if not gone:
            return self._batch(taken, left)
        rows = np.delete(np.arange(taken[1]), gone)
        if sum(len(part) for _, part in left) < len(rows):
            return self._batch(taken, left)[rows]
        # Renumber the rows without those that are left out.
        parts = [(np.searchsorted(rows, own), part) for own, part in left]
        return self._batch((taken[0], len(rows), *taken[2:]), parts)

    def _batch(
        self, taken: tuple[Any, ...], left: Sequence[tuple[NDArray[np.int64], Batch]]
    ) -> Batch:
        _, rows, dense, heaps, nulls = taken
        if not left:
            return self._batch_from_memory(rows, dense, heaps, nulls)
        if sum(len(part) for _, part in left) == rows:
            parts, numbers = [part for _, part in left], [own for own, _ in left]
            index = np.concatenate(numbers)
            if len(parts) == 1 and np.array_equal(index, np.arange(rows)):
                return parts[0]
            return concat(parts)[np.argsort(index)]
        base = self._batch_from_memory(rows, dense, heaps, nulls)
        index, begin = np.arange(rows), rows
        for own, part in left:
            index[own] = np.arange(begin, begin + len(part))
            begin += len(part)
        return concat([base, *(part for _, part in left)])[index]

    def _batch_from_memory(
        self, rows: int, dense: Any, heaps: Sequence[Any], nulls: bytes
    ) -> Batch:
        found: list[Column] = []
        for number, (_, stored, offsets) in enumerate(self._columns):
            if stored is None:
                raise WireError("rows that the core cannot land were not left to the decoder")
            values, starts, lengths, valid, heap = offsets
            marks = np.frombuffer(dense, np.bool_, rows, valid) if nulls[number] else None
            if heap < 0:
                items = stored.size // stored.dtype.itemsize
                array = np.frombuffer(dense, stored.dtype, rows * items, values)
                if stored.shape or items != 1:
                    array = array.reshape(rows, *(stored.shape or (items,)))
                found.append(Dense(array, valid=marks))
                continue
            first = np.frombuffer(dense, np.int64, rows, starts)
            length = np.frombuffer(dense, np.int64, rows, lengths)
            if stored.scale != 1:
                first, length = first * stored.scale, length * stored.scale
            memory = heaps[heap]
            run = np.empty(0, stored.dtype)
            if memory is not None:
                count = memoryview(memory).nbytes // stored.dtype.itemsize
                run = np.frombuffer(memory, stored.dtype, count)
            found.append(Runs(Dense(run), first, length, marks))
        names = self._schema.names
        return Batch(found[0], dict(zip(names, found[1:], strict=True)))
