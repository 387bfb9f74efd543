"""`BatchBuilder`: columns that are filled, in C, from the bytes of rows as these arrive.

frames -> forms -> **builder** -> batches

Bytes that were just received are still in the processor's cache. So a row is taken apart there and
then, piece by piece of a page, and each value goes straight to its place in a column, in memory
that TensorFlow can take over without a copy. The pages themselves are never stored. Columns go on
across pages and partitions: they end where their memory does, or where the caller wants it.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import LIBRARY
from ignitetf.errors import SchemaError
from ignitetf.wire.buffers import ALIGNED_ROWS, ALIGNMENT, BufferPool, address_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import calendar, decode_column
from ignitetf.wire.datatypes import BYTES, DATA_TYPES, Family, family_of
from ignitetf.wire.forms import Form, Place, What, learn, place_of, plain_value
from ignitetf.wire.objects import Bytes
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.schema import Batch, Column, Field, Schema
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.walk import extents

__all__ = ["BatchBuilder", "Position", "RowMemory", "rows_library"]

# Rows in more forms than this are not worth looking for theirs.
_MOST_FORMS: Final = 16
# Heaps get so much more than the average row needs.
_SLACK: Final = 1.25
_LEAST_HEAP_BYTES: Final = 64 << 10
# Copies of values of fewer bytes do not matter where others have so many.
_LARGE_BYTES: Final = 16 << 10
# Arrays of so many bytes are taken from the pool by themselves.
_OWN_BYTES: Final = 512 << 10


class Added(NamedTuple):
    """What `BatchBuilder.add` did: rows that it added, their bytes, and why it ended."""

    rows: int
    nbytes: int
    end: RowsEnd


class _Field(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("what", ctypes.c_int32),
        ("head", ctypes.c_int32),
        ("unit", ctypes.c_int32),
        ("count_at", ctypes.c_int32),
        ("column", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _Form(ctypes.Structure):
    _fields_ = (
        ("type_id", ctypes.c_int32),
        ("schema_id", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("fields", ctypes.c_int32),
        ("lacks", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("field", ctypes.POINTER(_Field)),
        ("lacking", ctypes.POINTER(ctypes.c_int32)),
    )


class _Store(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("unit", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("room", ctypes.c_int64),
    )


class _Builder(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.POINTER(_Field)),
        ("plain", ctypes.POINTER(_Field)),
        ("form", ctypes.POINTER(_Form)),
        ("store", ctypes.POINTER(_Store)),
        ("extents", ctypes.c_void_p),
        ("forms", ctypes.c_int32),
        ("stores", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("asked", ctypes.c_void_p),
        ("keys", ctypes.c_int64),
        ("first", ctypes.c_int64),
    )


@dataclass(frozen=True)
class _Column:
    """A field, where its values go, and the index of its column; the key is number 0."""

    field: Field
    place: Place
    number: int

    def stored(self, code: int | None = None) -> _Field:
        """Return how its objects are stored, if they have this type code."""
        code = int(self.field.type) if code is None else code
        extent = DATA_TYPES[TypeCode(code)].extent
        assert extent is not None
        return _Field(
            code, self.place.what, extent.head, extent.unit, extent.count_at, self.number,
            self.place.step,
        )  # fmt: skip


class RowMemory:
    """The memory of all columns, for a number of rows; once full it is replaced by another."""

    def __init__(
        self, columns: Sequence[_Column], pool: BufferPool, room: int, heap_bytes: int
    ) -> None:
        self.stores = (_Store * len(columns))()
        sizes = [c.place.size * room if c.place.size else heap_bytes for c in columns]
        runs = [0 if column.place.size else 16 * room for column in columns]
        marks = [room if column.field.nullable else 0 for column in columns]
        parts = iter(_take_all(pool, [*sizes, *runs, *marks]))
        self.values = [self._typed(next(parts), column, room) for column in columns]
        self._runs = [next(parts).view(np.int64).reshape(2, -1) for _ in columns]
        self._valid = [next(parts).view(np.bool_) for _ in columns]
        for column, store, size in zip(columns, self.stores, sizes, strict=True):
            number, place = column.number, column.place
            store.values, store.size = address_of(self.values[number]), place.size
            store.unit, store.room = place.unit, size
            if not place.size:
                store.starts = address_of(self._runs[number])
                store.lengths = store.starts + 8 * room
            if column.field.nullable:
                store.valid = address_of(self._valid[number])

    @staticmethod
    def _typed(memory: NDArray[np.uint8], column: _Column, room: int) -> NDArray[Any]:
        """Return the memory of a column's values as an array of them, or of the items in a heap."""
        field, place = column.field, column.place
        if place.size:
            shape = (room, *(n for n in field.shape if n is not None))
            return memory.view(field.dtype).reshape(shape)
        if place.what is What.WHOLE or field.dtype == BYTES:
            return memory
        return memory[: len(memory) // place.unit * place.unit].view(field.dtype)

    def empty(self, number: int, rows: int) -> None:
        """Free the heap of a column behind so many rows."""
        runs, store = self._runs[number], self.stores[number]
        store.used = int(runs[:, rows - 1].sum()) * store.unit if rows else 0

    def leave_out(self, number: int, first: int, end: int) -> None:
        """Make the runs of rows that are left out empty."""
        runs, store = self._runs[number], self.stores[number]
        runs[0, first:end], runs[1, first:end] = store.used // store.unit, 0

    def column(self, column: _Column, rows: slice, registry: TypeRegistry) -> Column:
        """Return the rows of a column; views, but for values that have to be understood."""
        number, place = column.number, column.place
        values, marks = self.values[number], None
        if column.field.nullable:
            marks = self._valid[number][rows]
            marks = None if marks.all() else marks
        if place.size:
            found = values[rows]
            if family_of(column.field.type) is Family.MILLISECONDS:
                # Where there is a null, the memory has anything.
                found = found if marks is None else np.where(marks, found, 0)
                found = calendar(found, column.field, registry)
            return Column(found, valid=marks)
        starts, lengths = self._runs[number][:, rows]
        if place.what is What.WHOLE:
            at = starts if marks is None else np.where(marks, starts, -1)
            return decode_column(values, at, column.field, registry)
        return Column(values, starts, lengths, marks)


def _take_all(pool: BufferPool, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Take memory for several arrays; the small ones are parts of the same."""
    shared = pool.take(sum(map(_aligned, (size for size in sizes if size < _OWN_BYTES))))
    found, at = [], 0
    for size in sizes:
        if size >= _OWN_BYTES:
            found.append(pool.take(size))
            continue
        found.append(shared[at : at + size])
        at += _aligned(size)
    return found


def _aligned_rows(sizes: Sequence[int]) -> int:
    """Return of how many rows a multiple is aligned in all columns of these sizes.

    If some values are large, only in the columns of these, as rows left out would waste more memory
    than a copy of the others takes.
    """
    large = [size for size in sizes if size >= _LARGE_BYTES]
    return max((ALIGNMENT // math.gcd(ALIGNMENT, size) for size in large), default=ALIGNED_ROWS)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Segment(NamedTuple):
    """Rows that follow one another in the same memory."""

    memory: RowMemory
    first: int
    end: int


@dataclass(frozen=True)
class Position:
    """A place between two rows, for `BatchBuilder.return_to`."""

    closed: int
    memory: RowMemory
    rows: int
    taken: int


class BatchBuilder:
    """Columns that are filled from the bytes of rows.

    Attributes:
        has_dense_keys: Whether keys are numbers.
        has_fixed_rows: Whether all rows are equally long, so that each can have a place of its own.
        stays: Whether the next row goes just behind the last one, even where it is not aligned.
        dense_bytes: Bytes of a row, apart from those in runs.

    Args:
        schema: The rows.
        registry: Known binary types.
        pool: Memory.
        room: Rows of a batch, at most; 0 for rows that go where the builder is aimed.
        row_bytes: Bytes that an average row has.
        known: Forms that other builders for this schema have learned; new ones are added.
        doublings: How many times a batch has room for twice as many rows as the one before it.
    """

    def __init__(
        self,
        schema: Schema,
        registry: TypeRegistry,
        pool: BufferPool,
        room: int,
        row_bytes: float,
        known: list[Form] | None = None,
        doublings: int = 0,
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._room = room
        self._doublings = doublings  # to come
        self._heap_bytes = max(_LEAST_HEAP_BYTES, int(_SLACK * room * row_bytes))
        self._fields = schema.fields
        fields = [schema.key, *schema.fields]
        self._columns = [
            _Column(field, place, number)
            for number, field in enumerate(fields)
            if (place := place_of(field)) is not None
        ]
        self._known = [] if known is None else known
        self._forms = self._known[:_MOST_FORMS]
        self._kept: list[Any] = []  # what the structures point to
        key = self._columns[0].stored()
        self._builder = _Builder(ctypes.pointer(key))
        if plain_value(schema) is not None:
            self._builder.plain = ctypes.pointer(self._columns[1].stored())
        self._builder.extents = address_of(extents())
        self._builder.stores = len(fields)
        self._done, self._used = ctypes.c_int64(), ctypes.c_int64()
        self._done_at, self._used_at = ctypes.addressof(self._done), ctypes.addressof(self._used)
        self._pointer = ctypes.addressof(self._builder)
        self._native = rows_library()
        self._aligned_rows = _aligned_rows([column.place.size for column in self._columns])
        self._heaps = [c.number for c in self._columns if not c.place.size]
        self.has_dense_keys = self._columns[0].place.size > 0
        self.has_fixed_rows = not self._heaps
        self.stays = False
        self.dense_bytes = sum(column.place.size for column in self._columns)
        self._closed: list[Segment] = []
        self._memory = self._new_memory()
        self._taken = 0  # rows of this memory that were handed over
        self._keys = np.empty(0, np.int64)  # what the structure points to
        if self._forms:
            self._set_forms()

    @staticmethod
    def can_build(schema: Schema) -> bool:
        """Whether there is a builder for these rows."""
        fields = (schema.key, *schema.fields)
        if schema.key.nullable or any(place_of(field) is None for field in fields):
            return False
        return rows_library() is not None

    @staticmethod
    def can_aim(schema: Schema) -> bool:
        """Whether each row has a place of its own in columns: if all are equally long."""
        if not BatchBuilder.can_build(schema):
            return False
        places = (place_of(field) for field in (schema.key, *schema.fields))
        return all(place is not None and place.size for place in places)

    @property
    def is_full(self) -> bool:
        """Whether a batch has as many rows as its memory has room for."""
        return bool(self._closed)

    @property
    def _rows(self) -> int:
        """Rows in the present memory."""
        return int(self._builder.rows)

    def add(self, data: Bytes, count: int) -> Added:
        """Add the rows at the front of these bytes.

        Args:
            data: Bytes; they need not end with a row.
            count: Rows to add, at most.

        Returns:
            What was done. Where it ends with OTHER, `learn` may help.
        """
        rows = nbytes = 0
        address, size = address_of(data), len(data)
        while True:
            end = self._native.build(
                self._pointer, address + nbytes, size - nbytes, count - rows,
                self._done_at, self._used_at,
            )  # fmt: skip
            rows, nbytes = rows + self._done.value, nbytes + self._used.value
            if end != RowsEnd.FULL or not self.go_on():
                return Added(rows, nbytes, RowsEnd(end))

    def _undo(self, rows: int) -> None:
        """Take back the rows of this memory behind so many."""
        self._builder.rows = rows
        for number in self._heaps:
            self._memory.empty(number, rows)

    def learn(self, entry: Bytes) -> bool:
        """Learn the form of an entry; returns whether it is new, and rows of it can be added.

        Raises:
            UnknownType: The registry lacks its type or schema.
            WireError: The entry is damaged.
        """
        if len(self._forms) >= _MOST_FORMS or self._builder.plain:
            return False
        form = learn(entry, self._fields, self._registry)
        if form is None or form in self._forms:
            return False
        self._forms.append(form)
        if form not in self._known:
            self._known.append(form)
        self._set_forms()
        return True

    def _set_forms(self) -> None:
        table = (_Form * len(self._forms))()
        self._kept = [table]
        for form, out in zip(self._forms, table, strict=True):
            fields = (_Field * max(1, len(form.fields)))()
            for number, stored in enumerate(form.fields):
                if stored.column >= 0:
                    fields[number] = self._columns[stored.column + 1].stored(stored.code)
            lacking = (ctypes.c_int32 * max(1, len(form.lacking)))(*(c + 1 for c in form.lacking))
            out.type_id, out.schema_id, out.flags = form.type_id, form.schema_id, form.flags
            out.fields, out.lacks = len(form.fields), len(form.lacking)
            out.field, out.lacking = fields, lacking
            self._kept += [fields, lacking]
        self._builder.form = table
        self._builder.forms = len(table)

    # For `units.UnitReader`

    @property
    def address(self) -> int:
        """Where the structure is in memory that _rows.c works with."""
        return self._pointer

    def go_on(self, more_rows: bool = False) -> bool:
        """Go on in other memory, which is larger if the next row had no room in an empty one.

        Args:
            more_rows: Whether it was several rows that had no room together.

        Returns:
            Whether there is other memory: not if this builder only goes where it is aimed.
        """
        if not self._room:
            return False
        if not self._rows:
            self._heap_bytes *= 2
            self._room *= 1 + more_rows
        elif self._doublings:
            self._doublings -= 1
            self._heap_bytes *= 2
            self._room *= 2
        self._close()
        return True

    # Rows whose places are known

    def memory_for(self, pool: BufferPool, rows: int) -> RowMemory:
        """Take memory for so many rows, which any builder for them can fill, if `can_aim`."""
        return RowMemory(self._columns, pool, rows, 0)

    def aim(self, memory: RowMemory, row: int, keys: NDArray[np.int64]) -> None:
        """Have the rows that are added next go to some memory, each where its key says.

        Args:
            memory: The memory.
            row: The row of the first key.
            keys: The keys of this row and those behind it, integers; a row with another key goes
                behind the one that was added before it.
        """
        self._memory, self._taken, self._keys = memory, row, keys
        builder = self._builder
        builder.store = memory.stores
        builder.rows, builder.room = row, row + len(keys)
        builder.asked, builder.keys, builder.first = address_of(keys), len(keys), row
        # Used before, the memory may have these very keys: a row that does not come has another.
        memory.values[0][row : row + len(keys)] = ~keys

    def batch_of(self, memory: RowMemory, rows: int) -> Batch:
        """Return the first rows of some memory, as views."""
        return self._batch(Segment(memory, 0, rows))

    # Handing over

    @property
    def position(self) -> Position:
        """The place behind the last row."""
        return Position(len(self._closed), self._memory, self._rows, self._taken)

    def return_to(self, position: Position) -> None:
        """Take back the rows behind a place; those before it must not have been taken since."""
        del self._closed[position.closed :]
        self._memory, self._taken = position.memory, position.taken
        self._builder.store = position.memory.stores
        self._undo(position.rows)

    def keys_since(self, position: Position) -> Iterator[Column]:
        """Yield the keys of the rows behind a place, of which none has been taken since."""
        now = Segment(self._memory, self._taken, self._rows)
        for memory, _, end in (*self._closed[position.closed :], now):
            first = position.rows if memory is position.memory else 0
            if first < end:
                yield self._column(0, slice(first, end), memory)

    def take(self, multiple: int = 1) -> Iterator[Batch]:
        """Yield the rows that were added, as views of memory that is not used again before they go.

        Args:
            multiple: Of the rows in memory that is not yet full, only a multiple is taken.

        Raises:
            SchemaError: A value is not what the schema expects; `record` counts in this batch.
        """
        end = self._rows - (self._rows - self._taken) % multiple
        closed, self._closed = self._closed, []
        if end > self._taken:
            closed.append(Segment(self._memory, self._taken, end))
            self._taken = end
            if end == self._rows and not self.stays:
                self._align()
        for segment in closed:
            yield self._batch(segment)

    def _batch(self, segment: Segment) -> Batch:
        rows = slice(segment.first, segment.end)
        key = self._column(0, rows, segment.memory)
        columns = {}
        for column in self._columns[1:]:
            try:
                columns[column.field.name] = self._column(column.number, rows, segment.memory)
            except SchemaError as error:
                error.fields |= {"keys": key, "field": column.field.name}
                raise
        return Batch(key, columns)

    def _column(self, number: int, rows: slice, memory: RowMemory) -> Column:
        return memory.column(self._columns[number], rows, self._registry)

    def _align(self) -> None:
        """Leave out rows up to the next place where values are aligned."""
        rows = min(self._room, -(-self._rows // self._aligned_rows) * self._aligned_rows)
        if rows > self._rows:
            for number in self._heaps:
                self._memory.leave_out(number, self._rows, rows)
            self._builder.rows = self._taken = rows

    def _close(self) -> None:
        """Go on in other memory."""
        if self._rows > self._taken:
            self._closed.append(Segment(self._memory, self._taken, self._rows))
        self._memory = self._new_memory()

    def _new_memory(self) -> RowMemory:
        memory = RowMemory(self._columns, self._pool, self._room, self._heap_bytes)
        self._builder.store = memory.stores
        self._builder.rows, self._builder.room = 0, self._room
        self._taken = 0
        return memory


@functools.cache
def rows_library() -> Any:
    """Return the functions of _rows.c."""
    library = ctypes.CDLL(str(LIBRARY))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.build.argtypes = [pointer, pointer, number, number, pointer, pointer]
    return library
