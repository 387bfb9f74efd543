"""Encodes column batches into pages of entries for `put_all`.

source -> Batch -> **page of entries** -> cache

The counterpart of `decode`. If every record takes the same number of bytes, a page is one matrix
and each column is one assignment. Otherwise the objects are scattered over a flat buffer. Large
values are left out and sent from their own memory. The bytes equal those of Ignite's own Java
client: type id, schema id, hash code, smallest offsets that fit, compact footer.

Source: Apache Ignite 2.17.0, `BinaryWriterExImpl.postWrite`, `BinaryWriterSchemaHolder.write`,
`BinaryArrayIdentityResolver`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.checksum import RowHashes, both_hashes, hash_joined, hash_rows, hash_runs
from ignitetf.wire.codes import BinaryFlag, TypeCode, java_hash_lower
from ignitetf.wire.columns import Batch, Column, Struct
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.encoders import (
    Bytes,
    NullablePart,
    Part,
    Positions,
    RunsPart,
    as_bytes,
    container_part,
    each,
    enum_part,
    large_runs,
    put_rows,
    stored_times,
    value_part,
)
from ignitetf.wire.schema import Field, Schema, schema_id
from ignitetf.wire.zones import Zone

__all__ = ["EncodedPage", "encode_entries", "nested_type_name"]

_HEADER: Final = np.dtype(
    [
        ("code", "u1"),
        ("version", "u1"),
        ("flags", "<i2"),
        ("type_id", "<i4"),
        ("hash_code", "<u4"),
        ("length", "<i4"),
        ("schema_id", "<i4"),
        ("schema_offset", "<i4"),
    ]
)
# Types whose objects, or the objects inside them, contain the id of a binary type.
BY_TYPE_NAME: Final = frozenset({Family.ENUM, Family.LIST, Family.MAP, Family.OBJECT})
# Entries per request; a node makes many objects for each entry. 60,000 entries fit in 4 MB. With
# several such requests at once, a node spent a third of its time on garbage collection, or hung.
_MOST_ENTRIES: Final = 8192
_HASH_AT: Final = 8
_HEADER_BYTES: Final = _HEADER.itemsize
_FLAGS: Final = BinaryFlag.USER_TYPE | BinaryFlag.HAS_SCHEMA | BinaryFlag.COMPACT_FOOTER
_OFFSET_FLAG: Final = {1: BinaryFlag.OFFSET_ONE_BYTE, 2: BinaryFlag.OFFSET_TWO_BYTES, 4: 0}


@dataclass(frozen=True)
class Gap:
    """A large value of each entry that is not copied into the page.

    Attributes:
        at: Place of each value in the page's own bytes, int64 [n].
        runs: The values as runs; their heads are in the page.
        row_hashes: The runs' hashes for the checksum if all have the same length; uint64 [n].
    """

    at: Positions
    runs: RunsPart
    row_hashes: NDArray[np.uint64] | None = None


@dataclass(frozen=True)
class EncodedPage:
    """Entries one after another, each a key object and a value object.

    Attributes:
        data: Their bytes, except those of the gaps, uint8.
        ends: End of each entry, counting the gaps, int64 [n].
        gaps: Large values, ordered as within an entry; views of the column.
    """

    data: Bytes
    ends: Positions
    gaps: tuple[Gap, ...] = ()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.ends)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return int(self.ends[-1]) if len(self) else 0

    @property
    def row_hashes(self) -> RowHashes:
        """Hashes for the checksum, a by-product of the hash codes; valid while the page lives."""
        known: RowHashes = {}
        for gap in self.gaps:
            if gap.row_hashes is not None:
                place = gap.runs.flat.ctypes.data, len(self), int(gap.runs.lengths[0])
                known[place] = gap.row_hashes
        return known

    def entries(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes of entries `start` to `stop` as uint8 views in order, without copies."""
        own, at, end = self.data.data, self._begin(start), self._begin(stop)
        views = []
        for i in range(start, stop) if self.gaps else ():
            for gap in self.gaps:
                where, first = int(gap.at[i]), int(gap.runs.starts[i])
                views += [own[at:where], gap.runs.flat.data[first : first + gap.runs.lengths[i]]]
                at = where
        return [*views, own[at:end]]

    def _begin(self, entry: int) -> int:
        """Return the position in `data` where an entry begins."""
        before = sum(int(gap.runs.lengths[:entry].sum()) for gap in self.gaps)
        return int(self.ends[entry - 1]) - before if entry else 0

    def pieces(self, max_bytes: int) -> Iterator[tuple[int, list[memoryview]]]:
        """Yield groups of entries (count, views), one group for each request.

        Args:
            max_bytes: Maximum size of a group, unless a single entry is larger.
        """
        start, done = 0, 0
        while start < len(self):
            stop = int(np.searchsorted(self.ends, done + max_bytes, "right"))
            stop = max(min(stop, start + _MOST_ENTRIES), start + 1)
            yield stop - start, self.entries(start, stop)
            start, done = stop, int(self.ends[stop - 1])


def encode_entries(schema: Schema, batch: Batch, pool: BufferPool | None = None) -> EncodedPage:
    """Encode the records of a batch.

    Args:
        schema: The schema of the stored records; the batch must have a column for each field.
        batch: The records; `key` must be set.
        pool: Provides the page's memory; None allocates it.

    Raises:
        SchemaError: A column is missing, or its values do not fit its field.
    """
    if batch.key is None:
        raise SchemaError("records without keys cannot be stored")
    key = _part(schema.key, batch.key, schema.key_type_name, schema.zone)
    if schema.type_name is None:
        value = _part(schema.fields[0], _column(batch.columns, schema.fields[0]), None, schema.zone)
    else:
        value = _object(schema.type_name, schema.fields, batch.columns, len(batch), schema.zone)
    count = len(batch)
    pool = pool or BufferPool()
    large = value.large() if isinstance(value, ObjectPart) else {}
    if isinstance(key.sizes, int) and isinstance(value.sizes, int):
        return _matrix(key, value, large, count, pool)
    key_sizes = each(key.sizes, count)
    lengths = key_sizes + value.sizes
    own = lengths - sum(runs.lengths for runs in large.values())
    at = np.cumsum(own) - own
    data = pool.take(int(own.sum()))
    key.scatter(data, at)
    if not isinstance(value, ObjectPart):
        value.scatter(data, at + key_sizes)
        return EncodedPage(data, np.cumsum(lengths))
    gaps = value.scatter_around(data, at + key_sizes, large)
    return EncodedPage(data, np.cumsum(lengths), gaps)


def _matrix(
    key: Part, value: Part, large: dict[int, RunsPart], count: int, pool: BufferPool
) -> EncodedPage:
    """Return the page for entries of equal size: one matrix, plus the values not copied."""
    assert isinstance(key.sizes, int) and isinstance(value.sizes, int)
    stride = key.sizes + value.sizes
    own = stride - sum(int(runs.lengths[0]) for runs in large.values())
    rows = pool.take(count * own).reshape(count, own)
    key.fill(rows[:, : key.sizes])
    gaps: list[Gap] = []
    if isinstance(value, ObjectPart):
        numbers = np.arange(count, dtype=np.int64) * own + key.sizes
        found = value.fill_around(rows[:, key.sizes :], large)
        gaps = [Gap(numbers + at, runs, hashes) for at, runs, hashes in found]
    else:
        value.fill(rows[:, key.sizes :])
    ends = np.arange(1, count + 1, dtype=np.int64) * stride
    return EncodedPage(rows.reshape(-1), ends, tuple(gaps))


def nested_type_name(outer: str | None, field: Field) -> str:
    """Return the binary type name of a nested object, made from the outer type and the field."""
    return f"{outer}_{field.name}" if outer else field.name


def _part(field: Field, column: Column, type_name: str | None, zone: Zone) -> Part:
    """Return the part that encodes a column; `type_name` is the type of its objects, if any."""
    if column.valid is not None and not column.valid.all():
        return NullablePart(_part(field, column.present(), type_name, zone), column.valid)
    column = column.marked(None)
    if (family := family_of(field.type)) not in BY_TYPE_NAME:
        return value_part(field, stored_times(field, column, zone))
    name = type_name or field.name
    if family is Family.ENUM:
        return enum_part(field, column, java_hash_lower(name))
    if family is not Family.OBJECT:
        return _container(field, column, name, zone)
    if not isinstance(column, Struct):
        raise SchemaError(f"field {field.name!r}: values are not columns of a nested object")
    return _object(name, field.fields, column.fields, len(column), zone)


def _container(field: Field, column: Column, name: str, zone: Zone) -> Part:
    """Return the part for maps, or for lists, whose elements have the field's type name."""

    def part_of(element: Field, inner: Column) -> Part:
        of_map = field.type is TypeCode.MAP
        return _part(element, inner, nested_type_name(name, element) if of_map else name, zone)

    return container_part(field, column, java_hash_lower(name), part_of)


def _object(
    type_name: str, fields: Sequence[Field], columns: dict[str, Column], count: int, zone: Zone
) -> ObjectPart:
    if not fields:
        raise SchemaError(f"type {type_name!r} has no fields")
    parts = [
        _part(field, _column(columns, field), nested_type_name(type_name, field), zone)
        for field in fields
    ]
    for field in fields:
        if len(columns[field.name]) != count:
            raise SchemaError(f"field {field.name!r}: {len(columns[field.name])} of {count} values")
    return ObjectPart(java_hash_lower(type_name), schema_id(tuple(fields)), parts)


def _column(columns: dict[str, Column], field: Field) -> Column:
    if (found := columns.get(field.name)) is None:
        raise SchemaError(f"no column {field.name!r} in the records", field=field.name)
    return found


class ObjectPart:
    """Binary objects of one type: header, the fields' objects, footer with their offsets."""

    def __init__(self, type_id: int, schema: int, fields: list[Part]) -> None:
        self.type_id, self.schema, self.fields = type_id, schema, fields
        self.offsets: list[int | Positions] = []
        at: int | Positions = _HEADER_BYTES
        for part in fields:
            self.offsets.append(at)
            at = at + part.sizes
        self.footer_at = at
        last = self.offsets[-1]
        width = np.where(np.less(last, 1 << 8), 1, np.where(np.less(last, 1 << 16), 2, 4))
        self.offset_bytes: int | Positions = int(width) if isinstance(last, int) else width

    @property
    def sizes(self) -> int | Positions:
        """Bytes of every object, or an array if the objects differ."""
        return self.footer_at + len(self.fields) * self.offset_bytes

    def fill(self, out: Bytes) -> None:
        """See `Part`."""
        self.fill_around(out, {})

    def fill_around(
        self, out: Bytes, apart: dict[int, RunsPart]
    ) -> list[tuple[int, RunsPart, NDArray[np.uint64]]]:
        """Like `fill`, but leave out the runs of the fields `apart`.

        Args:
            out: The rows, without room for these runs.
            apart: The runs to leave out, by the position of their field.

        Returns:
            For each of the fields its position in a row, its runs, and their hashes for the
            checksum.
        """
        gaps: list[tuple[int, RunsPart, NDArray[np.uint64]]] = []
        hashed: list[tuple[NDArray[np.uint32], int]] = []
        at = begin = _HEADER_BYTES
        for place, part in enumerate(self.fields):
            if (runs := apart.get(place)) is None:
                assert isinstance(part.sizes, int)
                part.fill(out[:, at : at + part.sizes])
                at += part.sizes
                continue
            out[:, at : at + runs.heads.shape[1]] = runs.heads
            at += runs.heads.shape[1]
            width = int(runs.lengths[0])
            codes, row_hashes = both_hashes(runs.flat.reshape(len(out), width))
            gaps.append((at, runs, row_hashes))
            hashed += [(hash_rows(out[:, begin:at]), at - begin), (codes, width)]
            begin = at
        hashed.append((hash_rows(out[:, begin:at]), at - begin))
        out[:, :_HEADER_BYTES] = as_bytes(self._headers(1))
        out[:, _HASH_AT : _HASH_AT + 4] = as_bytes(hash_joined(hashed).astype("<u4"))
        out[:, at:] = np.array(self.offsets, f"<u{self.offset_bytes}").view(np.uint8)
        return gaps

    def large(self) -> dict[int, RunsPart]:
        """Return the fields whose values should not be copied, by position."""
        found = ((place, large_runs(part)) for place, part in enumerate(self.fields))
        return {place: runs for place, runs in found if runs is not None}

    def scatter(self, out: Bytes, at: Positions) -> None:
        """See `Part`."""
        self.scatter_around(out, at, {})

    def scatter_around(
        self, out: Bytes, at: Positions, apart: dict[int, RunsPart]
    ) -> tuple[Gap, ...]:
        """Like `scatter`, but leave out the runs of the fields `apart`; return them as gaps."""
        gaps: list[Gap] = []
        hashed = []
        where = begin = at + _HEADER_BYTES
        for place, part in enumerate(self.fields):
            if (runs := apart.get(place)) is None:
                part.scatter(out, where)
                where = where + part.sizes
                continue
            put_rows(out, where, runs.heads)
            where = where + runs.heads.shape[1]
            gaps.append(Gap(where, runs))
            hashed.append((hash_runs(out, begin, where - begin), where - begin))
            hashed.append((hash_runs(runs.flat, runs.starts, runs.lengths), runs.lengths))
            begin = where
        hashed.append((hash_runs(out, begin, where - begin), where - begin))
        header = self._headers(len(at))
        header["hash_code"] = hash_joined(hashed)
        put_rows(out, at, as_bytes(header))
        self._scatter_footers(out, where)
        return tuple(gaps)

    def _scatter_footers(self, out: Bytes, at: Positions) -> None:
        count = len(at)
        offsets = np.stack([each(offset, count) for offset in self.offsets], axis=1)
        width = each(self.offset_bytes, count)
        for size in np.unique(width).tolist():
            rows = np.flatnonzero(width == size)
            put_rows(out, at[rows], as_bytes(offsets[rows].astype(f"<u{size}")))

    def _headers(self, count: int) -> NDArray[np.void]:
        header = np.zeros(count, _HEADER)
        header["code"] = TypeCode.OBJECT
        header["version"] = 1
        width = each(self.offset_bytes, count)
        flags = np.zeros(5, np.int16)
        for size, flag in _OFFSET_FLAG.items():
            flags[size] = int(_FLAGS) | int(flag)
        header["flags"] = flags[width]
        header["type_id"] = self.type_id
        header["length"] = self.sizes
        header["schema_id"] = self.schema
        header["schema_offset"] = self.footer_at
        return header
