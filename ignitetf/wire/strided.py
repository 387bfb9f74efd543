"""The fixed-stride path, for pages whose entries differ only in their values.

objects -> **strided** -> tensors

Records of one schema whose values all have equal lengths (images of one size, numbers) form a
two-dimensional array of bytes. A `FixedStride` is learned from one entry: the position of each
value, and the bytes around it that must be equal in all entries (type codes, lengths, headers,
footers). In every further page all entries are compared with those bytes before the columns are
taken as slices. There is no Python loop over entries, and nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import IgniteTFError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.columns import as_dtype, calendar, is_widened
from ignitetf.wire.datatypes import ARRAY_ELEMENT, FIXED_DTYPE, Family, family_of, types_of
from ignitetf.wire.fields import compact_fields, headers
from ignitetf.wire.objects import Bytes, find_rows, unwrap
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema
from ignitetf.wire.types import TypeRegistry, UnknownType

__all__ = ["FixedStride"]

_HASH_AT: Final = 8
_HASH_BYTES: Final = 4
# Types whose values can be used in place (UUID, timestamp and enum have to be assembled).
_PLAIN: Final = types_of(Family.NUMBER, Family.MILLISECONDS, Family.TEXT, Family.ARRAY)


@dataclass(frozen=True)
class _Slot:
    """The position of one field's value in an entry, in bytes, and the dtype of its elements."""

    field: Field
    at: int
    size: int
    dtype: np.dtype[Any]


class FixedStride:
    """Positions that are valid for every entry of a page; made by `learn`."""

    def __init__(
        self,
        template: Bytes,
        key: _Slot,
        slots: list[_Slot],
        constant: list[tuple[int, int]],
        registry: TypeRegistry,
    ) -> None:
        self.stride = len(template)
        self._registry = registry
        self._key = key
        self._slots = slots
        self._constant = [(p, q, template[p:q].copy()) for p, q in constant]

    @classmethod
    def learn(
        cls, data: Bytes, count: int, schema: Schema, wanted: list[Field], registry: TypeRegistry
    ) -> FixedStride | None:
        """Learn the stride from the page's first entry; None if its records have no fixed one."""
        if count == 0 or len(data) % count or any(f.nullable for f in wanted if f.ragged):
            return None
        entry = data[: len(data) // count]
        try:
            return cls._of_entry(entry, schema, wanted, registry)
        except (IgniteTFError, UnknownType):
            # The entry has another length or schema; the general path reports which.
            return None

    @classmethod
    def _of_entry(
        cls, entry: Bytes, schema: Schema, wanted: list[Field], registry: TypeRegistry
    ) -> FixedStride | None:
        key_at, value_at = (int(p[0]) for p in find_rows(entry, 1))
        key = _slot(entry, key_at, schema.key)
        if key is None or schema.type_name is None:
            return None
        at = unwrap(entry, np.array([value_at], np.int64))
        if entry[at[0]] != TypeCode.OBJECT:
            return None
        head = headers(entry, at)
        if not int(head.flags[0]) & BinaryFlag.COMPACT_FOOTER:
            return None
        order, offsets = compact_fields(entry, head, registry)
        places = dict(zip(order, (at[0] + offsets).tolist(), strict=True))
        ids = registry.field_ids(int(head.type_id[0]), [f.name for f in wanted])
        by_id = dict(zip(ids, wanted, strict=True))
        if not places or not set(by_id) <= set(places):
            return None  # SQL leaves nulls out, in a row of nothing else all of them
        slots, free = [], [(key.at, key.size)]
        free.append((int(at[0]) + _HASH_AT, _HASH_BYTES))
        starts = sorted(places.values())
        ends = dict(zip(starts, [*starts[1:], int(head.schema_at[0])], strict=True))
        for field_id, start in places.items():
            if field_id not in by_id:
                free.append((start, ends[start] - start))
                continue
            slot = _slot(entry, start, by_id[field_id])
            if slot is None or slot.at + slot.size != ends[start]:
                return None
            slots.append(slot)
            free.append((slot.at, slot.size))
        return cls(entry, key, slots, _complement(sorted(free), len(entry)), registry)

    def read(self, data: Bytes, count: int) -> Batch | None:
        """Return a page's columns as views; None if an entry differs from the learned one."""
        if count == 0 or len(data) != count * self.stride:
            return None
        rows = data.reshape(count, self.stride)
        if any((rows[:, p:q] != same).any() for p, q, same in self._constant):
            return None
        columns = {s.field.name: self._column(data, count, s) for s in self._slots}
        return Batch(self._column(data, count, self._key), columns)

    def _column(self, data: Bytes, count: int, slot: _Slot) -> Column:
        field = slot.field
        if field.dtype == BYTES or field.ragged:
            size = slot.dtype.itemsize if field.dtype != BYTES else 1
            if size > 1:
                flat = self._view(data, count, slot, (slot.size // size,))
                per_row = slot.size // size
                starts = np.arange(count, dtype=np.int64) * per_row
                return Column(flat.reshape(-1), starts, np.full(count, per_row, np.int64))
            starts = np.arange(count, dtype=np.int64) * self.stride + slot.at
            values = data if field.dtype == BYTES else data.view(field.dtype)
            return Column(values, starts, np.full(count, slot.size, np.int64))
        shape = tuple(n for n in field.shape if n is not None)
        found = self._view(data, count, slot, shape)
        if family_of(field.type) is Family.MILLISECONDS:
            found = calendar(found, field, self._registry)
        return Column(found)

    def _view(self, data: Bytes, count: int, slot: _Slot, shape: tuple[int, ...]) -> NDArray[Any]:
        """The values as a view of the page, or as a copy if they are stored in a wider type."""
        inner = np.empty(shape, slot.dtype).strides if shape else ()
        view: NDArray[Any] = np.ndarray(
            (count, *shape), slot.dtype, data.data, slot.at, (self.stride, *inner)
        )
        return as_dtype(view, slot.field)


def _slot(entry: Bytes, at: int, field: Field) -> _Slot | None:
    """The slot of the field's object at `at`; None if its value cannot be used in place."""
    code = int(entry[at])
    if code != field.type or field.type not in _PLAIN:
        return None
    if field.type in FIXED_DTYPE:
        stored = FIXED_DTYPE[field.type]
        dtype = stored if is_widened(field.dtype, stored) else field.dtype
        size = stored.itemsize
        return _Slot(field, at + 1, size, dtype) if size == dtype.itemsize else None
    length = int(entry[at + 1 : at + 5].view("<i4")[0])
    dtype = field.dtype
    if field.type in ARRAY_ELEMENT:
        stored = ARRAY_ELEMENT[field.type]
        width = stored.itemsize
        if dtype != BYTES:
            dtype = stored if is_widened(dtype, stored) else dtype
            if dtype.itemsize != width:
                return None
            if length % max(field.size, 1) or (not field.ragged and length != field.size):
                return None
        length *= width
    return _Slot(field, at + 5, length, dtype)


def _complement(free: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The ranges (first, end) that are not covered by the sorted ranges (first, size)."""
    out, at = [], 0
    for start, length in free:
        if start > at:
            out.append((at, start))
        at = max(at, start + length)
    if at < size:
        out.append((at, size))
    return out
