"""The columns of records: `Dense`, `Runs` and `Struct`, and `Batch`, columns of the same records.

source -> **Batch** -> encoder -> cache -> page -> decoder -> **Batch** -> arrays, Arrow, tensors

A column is one field of many records. Columns are immutable; slices are views. Two functions in C
(bytes.c) turn runs of bytes of a page into Python's `bytes`, or copy them to other memory.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

import ignitetf._core._native as core
from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import FIXED_DTYPE

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "Batch",
    "Column",
    "Dense",
    "Runs",
    "Struct",
    "bytes_of",
    "concat",
    "concat_columns",
    "copy_runs",
    "in_milliseconds",
    "merged",
    "runs_of",
    "values_of",
]

_NS_PER_MS: Final = 1_000_000

Marks = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


class Column(ABC):
    """One field of n records.

    Attributes:
        valid: Bool [n], False for nulls; None if there are none.
    """

    __slots__ = ()

    valid: Marks | None

    @abstractmethod
    def __len__(self) -> int:
        """Number of records."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Self:
        """Return the records of a slice (as a view), an index array or a mask."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the records' values (runs count their own length, not their heap)."""

    def marked(self, valid: Marks | None) -> Self:
        """Return the same values with other marks of nulls."""
        return replace(self, valid=valid)  # type: ignore[type-var]

    def present(self) -> Self:
        """Return the records that are not null."""
        return self if self.valid is None else self[self.valid].marked(None)

    def _marks(self, index: Any) -> Marks | None:
        return None if self.valid is None else self.valid[index]


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Column):
    """Values of one dtype and shape, `[n, *shape]`; the value of a null is undefined, read as 0."""

    values: NDArray[Any]
    valid: Marks | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Dense:
        if isinstance(index, np.ndarray) and index.dtype.kind == "i":
            # A third faster than indexing for rows of a few hundred bytes.
            return Dense(self.values.take(index, axis=0), self._marks(index))
        return Dense(self.values[index], self._marks(index))

    @property
    def nbytes(self) -> int:
        """See `Column`."""
        return self.values.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Runs(Column):
    """Values of different lengths: record i is `items[starts[i] : starts[i] + lengths[i]]`.

    The items are dense bytes for texts and blobs, dense numbers for arrays, and any column for
    lists. Runs may have gaps (in a page, in a heap) and need not be in order. A null has no items.
    """

    items: Column
    starts: Positions
    lengths: Positions
    valid: Marks | None = None

    @classmethod
    def from_offsets(cls, items: Column, offsets: Positions, valid: Marks | None = None) -> Runs:
        """Make a column of adjacent runs: record i is `items[offsets[i] : offsets[i + 1]]`."""
        offsets = np.asarray(offsets, np.int64)
        return cls(items, offsets[:-1], np.diff(offsets), valid)

    @classmethod
    def from_bytes(cls, items: Sequence[bytes | None]) -> Runs:
        """Make a column of byte strings, with None for a null."""
        lengths = np.fromiter((len(b) if b is not None else 0 for b in items), np.int64, len(items))
        flat = np.frombuffer(b"".join(b for b in items if b is not None), np.uint8)
        valid = None
        if any(b is None for b in items):
            valid = np.fromiter((b is not None for b in items), np.bool_, len(items))
        return cls(Dense(flat), np.cumsum(lengths) - lengths, lengths, valid)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Runs:
        return Runs(self.items, self.starts[index], self.lengths[index], self._marks(index))

    @property
    def nbytes(self) -> int:
        """See `Column`."""
        count = len(self.items)
        return self.items.nbytes * int(self.lengths.sum()) // count if count else 0

    @property
    def values(self) -> NDArray[Any]:
        """The items of texts, blobs and arrays."""
        assert isinstance(self.items, Dense)
        return self.items.values

    def to_objects(self) -> NDArray[Any]:
        """Return a copy of each run of bytes as `bytes`, b"" for a null, as an object array [n]."""
        flat = np.ascontiguousarray(self.values).view(np.uint8)
        return bytes_of(flat, self.starts, self.lengths)

    def to_bytes(self) -> list[bytes]:
        """Return what `to_objects` does, as a list."""
        found: list[bytes] = self.to_objects().tolist()
        return found

    def compact(self) -> tuple[Column, Positions]:
        """Return the items in order without gaps, copied only if needed, and offsets [n + 1]."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        first, count = int(self.starts[0]) if len(self) else 0, int(offsets[-1])
        if np.array_equal(self.starts, offsets[:-1] + first):
            return self.items[first : first + count], offsets
        if isinstance(self.items, Dense) and self.items.valid is None:
            return Dense(self._copied(self.items.values, offsets)), offsets
        index = np.repeat(self.starts - offsets[:-1], self.lengths) + np.arange(count)
        return self.items[index], offsets

    def _copied(self, values: NDArray[Any], offsets: Positions) -> NDArray[Any]:
        out = np.empty((max(0, int(offsets[-1])), *values.shape[1:]), values.dtype)
        size = values.itemsize * math.prod(values.shape[1:])
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        at, starts, sizes = offsets[:-1] * size, self.starts * size, self.lengths * size
        copy_runs(out.reshape(-1).view(np.uint8), at, flat, starts, sizes)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Struct(Column):
    """Objects and maps: a column for each field.

    Objects without fields always have `valid`, because only it gives their number.
    """

    fields: dict[str, Column]
    valid: Marks | None = None

    def __len__(self) -> int:
        if self.fields:
            return len(next(iter(self.fields.values())))
        return 0 if self.valid is None else len(self.valid)

    def __getitem__(self, index: Any) -> Struct:
        return Struct({n: c[index] for n, c in self.fields.items()}, self._marks(index))

    @property
    def nbytes(self) -> int:
        """See `Column`."""
        return sum(column.nbytes for column in self.fields.values())


def values_of(column: Column | None) -> NDArray[Any]:
    """Return the values of a column that is known to be dense."""
    assert isinstance(column, Dense)
    return column.values


def runs_of(column: Column | None) -> Runs:
    """Return a column that is known to be runs."""
    assert isinstance(column, Runs)
    return column


@dataclass(frozen=True)
class Batch:
    """Columns of the same records; sources yield it, the encoder takes it, the decoder returns it.

    Attributes:
        key: The keys; None in a source that leaves them to the loader.
        columns: The value's fields by name; may be a subset of the schema's fields.
    """

    key: Column | None
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of records."""
        if self.key is not None:
            return len(self.key)
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, index: Any) -> Batch:
        """Return the records of a slice or an index array."""
        key = None if self.key is None else self.key[index]
        return Batch(key, {name: c[index] for name, c in self.columns.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all values, keys included."""
        own = 0 if self.key is None else self.key.nbytes
        return own + sum(c.nbytes for c in self.columns.values())

    def slices(self, rows: int) -> Iterator[Batch]:
        """Yield this batch in pieces of at most `rows` records, as views."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]


# Several as one


def concat(batches: Sequence[Batch]) -> Batch:
    """Join batches with the same columns into one; a single batch is returned as it is."""
    if len(batches) == 1:
        return batches[0]
    keys = [b.key for b in batches if b.key is not None]
    columns = {
        name: concat_columns([b.columns[name] for b in batches]) for name in batches[0].columns
    }
    return Batch(concat_columns(keys) if keys else None, columns)


def concat_columns(columns: Sequence[Column]) -> Column:
    """Join several columns of the same form into one."""
    valid = None
    if any(c.valid is not None for c in columns):
        marks = [np.ones(len(c), bool) if c.valid is None else c.valid for c in columns]
        valid = np.concatenate(marks)
    first = columns[0]
    if isinstance(first, Struct):
        parts = [c.fields for c in columns if isinstance(c, Struct)]
        return Struct({n: concat_columns([p[n] for p in parts]) for n in first.fields}, valid)
    if isinstance(first, Dense):
        return Dense(_joined([c.values for c in columns if isinstance(c, Dense)]), valid)
    packed = [c.compact() for c in columns if isinstance(c, Runs)]
    lengths = np.concatenate([np.diff(offsets) for _, offsets in packed])
    return Runs(
        concat_columns([c for c, _ in packed]), np.cumsum(lengths) - lengths, lengths, valid
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays; convert nanoseconds to (ms, ns) pairs if another array has such timestamps."""
    wide = next((a.dtype for a in arrays if a.dtype.names is not None), None)
    if wide is None or all(a.dtype == wide for a in arrays):
        return np.concatenate(arrays)
    return np.concatenate([a if a.dtype == wide else in_milliseconds(a) for a in arrays])


def in_milliseconds(nanoseconds: NDArray[np.int64]) -> NDArray[Any]:
    """Convert nanoseconds since 1970 to the format of TIMESTAMP: milliseconds and the rest."""
    out = np.empty(len(nanoseconds), FIXED_DTYPE[TypeCode.TIMESTAMP])
    out["ms"], out["ns"] = np.divmod(nanoseconds, _NS_PER_MS)
    return out


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Return the same rows in fewer batches: join batches that are adjacent in memory."""
    found: list[Batch] = []
    for batch in batches:
        both = _merge(found[-1], batch) if found else None
        if both is None:
            found.append(batch)
        else:
            found[-1] = both
    return found


def _merge(left: Batch, right: Batch) -> Batch | None:
    """Return two batches as one view of memory; None if the second does not follow the first."""
    if left.key is None or right.key is None or left.columns.keys() != right.columns.keys():
        return None
    pairs = [(left.key, right.key), *((c, right.columns[n]) for n, c in left.columns.items())]
    both = []
    for one, other in pairs:
        if (column := _merge_columns(one, other)) is None:
            return None
        both.append(column)
    return Batch(both[0], dict(zip(left.columns, both[1:], strict=True)))


def _merge_columns(left: Column, right: Column) -> Column | None:
    if left.valid is not None or right.valid is not None:
        return None
    if isinstance(left, Dense) and isinstance(right, Dense):
        values = _merge_arrays(left.values, right.values)
        return None if values is None else Dense(values)
    if not (isinstance(left, Runs) and isinstance(right, Runs)) or left.items is not right.items:
        return None
    starts = _merge_arrays(left.starts, right.starts)
    lengths = _merge_arrays(left.lengths, right.lengths)
    return None if starts is None or lengths is None else Runs(left.items, starts, lengths)


def _merge_arrays(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any] | None:
    """Return two arrays as one view, if the second follows the first in the same memory."""
    base = left.base
    if not isinstance(base, np.ndarray) or base is not right.base or not base.flags.c_contiguous:
        return None
    contiguous = left.flags.c_contiguous and right.flags.c_contiguous
    if not contiguous or left.ctypes.data + left.nbytes != right.ctypes.data:
        return None
    shape = (len(left) + len(right), *left.shape[1:])
    return np.ndarray(shape, left.dtype, base.data, left.ctypes.data - base.ctypes.data)


# Bytes of freed memory that glibc is made to keep.
_KEPT_BYTES: Final = 60 << 20


def bytes_of(data: Bytes, starts: Positions, lengths: Positions) -> NDArray[Any]:
    """Return runs of bytes as an object array `[n]` of `bytes`, copies.

    Args:
        data: The page, contiguous.
        starts: Start of each run.
        lengths: Number of bytes of each run.

    Raises:
        WireError: A run lies beyond the page.
    """
    out = np.empty(len(starts), object)
    if len(out):
        _keep_memory()
    try:
        core.bytes_of(data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), out)
    except ValueError as error:
        raise WireError(f"a value reaches beyond the end of the page: {error}") from error
    return out


def copy_runs(
    out: Bytes, at: Positions, data: Bytes, starts: Positions, lengths: Positions
) -> None:
    """Copy run i of the page to `out[at[i]]`.

    Raises:
        WireError: A run lies beyond the page, or its copy beyond `out`.
    """
    places = (np.ascontiguousarray(each, np.int64) for each in (at, starts, lengths))
    where, first, size = places
    try:
        core.copy_runs(out, where, np.ascontiguousarray(data), first, size)
    except ValueError as error:
        raise WireError(f"a value reaches beyond the end of the page: {error}") from error


@functools.cache
def _keep_memory() -> None:
    """Make malloc keep the memory of freed objects, so that the next batch reuses it.

    Otherwise the C library returns it to the system after each batch, and clearing new memory takes
    two thirds of the time of longer values. glibc keeps up to twice as many bytes as the largest
    block that was ever freed (`M_TRIM_THRESHOLD`), so this call frees a large block.
    """
    np.empty(_KEPT_BYTES // 2, np.uint8)
