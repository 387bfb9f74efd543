"""The block layout, which stores many records in one entry as a binary object of columns.

Batch -> **blocks** -> entry -> **blocks** -> Batch

A block is an object of type `<TYPE>_BLOCK` that any Ignite client can read:

    KEYS                  long[], or byte[] with KEYS_OFFSETS for string keys
    F                     numbers, fixed shapes: one array with the values of all records
    F, F_OFFSETS          values of different lengths: one array, and int[] of n + 1 bounds
    F, F_OFFSETS, F_ROWS  arrays of strings: bytes, bounds of the strings, of the records
    F_VALID               byte[] of 0 and 1 if the block has nulls in F, otherwise null
    F_A, F_B              a nested object F of A and B (KEYS_A for keys of several fields)

Strings, decimals and UUIDs are stored as text, dates and times as milliseconds, timestamps as
nanoseconds. The rows of a block all belong to one partition, in which the block is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import INTEGERS, TIME_UNIT, Family, types_of
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import Page
from ignitetf.wire.schema import BYTES, Field, Schema, field_for
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "BLOCK_KEY",
    "BlockDecoder",
    "BlockKeys",
    "block_schema",
    "encode_longs",
    "pack_blocks",
    "unpack_blocks",
]

# Number of longs whose partitions are computed first; more are added when these run out.
_FIRST_KEYS: Final = 1 << 12


class BlockKeys:
    """Hands out the keys of each partition: the longs that map to it, ascending.

    Args:
        count: Number of partitions.
        used: Number of keys that each partition has used already.
    """

    def __init__(self, count: int, used: Sequence[int] = ()) -> None:
        self.count = count
        self.used = np.array(used if len(used) else [0] * count, np.int64)
        self._sorted = np.empty(0, np.int64)
        self._bounds = np.zeros(count + 1, np.int64)
        self._grow(max(_FIRST_KEYS, 64 * count))

    def reserve(self, partition: int, number: int) -> NDArray[np.int64]:
        """Return the next `number` keys of a partition and mark them as used."""
        keys = self.peek(partition, number)
        self.used[partition] += number
        return keys

    def peek(self, partition: int, number: int) -> NDArray[np.int64]:
        """Return the next `number` keys of a partition without marking them as used."""
        while True:
            first = int(self._bounds[partition] + self.used[partition])
            if first + number <= self._bounds[partition + 1]:
                return self._sorted[first : first + number]
            self._grow(2 * len(self._sorted))

    def handed_out(self) -> NDArray[np.int64]:
        """Return the used keys, one partition after another, ascending in each."""
        while (np.diff(self._bounds) < self.used).any():
            self._grow(2 * len(self._sorted))
        begins = self._bounds[:-1]
        spans = zip(begins.tolist(), (begins + self.used).tolist(), strict=True)
        return np.concatenate([self._sorted[begin:end] for begin, end in spans])

    def _grow(self, limit: int) -> None:
        keys = np.arange(limit, dtype=np.int64)
        found = partitions_of(Schema(None, BLOCK_KEY, ()), Dense(keys), self.count)
        assert found is not None
        self._sorted = np.argsort(found, kind="stable")
        self._bounds = np.concatenate(([0], np.cumsum(np.bincount(found, minlength=self.count))))


def encode_longs(keys: NDArray[np.int64]) -> bytes:
    """Encode keys of blocks as objects for a request."""
    objects = np.empty((len(keys), 9), np.uint8)
    objects[:, 0] = TypeCode.LONG
    objects[:, 1:] = keys.astype("<i8").view(np.uint8).reshape(-1, 8)
    return objects.tobytes()


Positions = NDArray[np.int64]

BLOCK_KEY: Final = Field("key", TypeCode.LONG, np.dtype("<i8"))
_INT32: Final = np.dtype("<i4")
_TEXT: Final = types_of(Family.TEXT, Family.DECIMAL)
# Values that keep their dtype in a block.
_PLAIN: Final = types_of(Family.NUMBER, Family.ARRAY)
# Keys whose partition `affinity` can compute.
_KEYS: Final = INTEGERS | {TypeCode.STRING, TypeCode.OBJECT}


def block_schema(schema: Schema) -> Schema:
    """Return the schema of blocks that hold records of this schema.

    Raises:
        ConfigError: A field or the key is not supported in blocks.
    """
    if schema.key.type not in _KEYS:
        raise ConfigError(
            f"keys of type {schema.key.type.name} cannot be stored in blocks, as their partition is"
            " not known here",
            hint="use the layout rows, or a key that is an integer, a string or an object",
        )
    fields = list(_stored_fields(replace(schema.key, name="KEYS")))
    for field in schema.fields:
        fields += _stored_fields(field)
    names = [field.name.upper() for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"two fields would be called {twice[0]!r} in blocks",
            hint="rename one, or use the layout rows",
        )
    return Schema(f"{schema.type_name or 'VALUE'}_BLOCK", BLOCK_KEY, tuple(fields))


def _stored_fields(field: Field) -> Iterator[Field]:
    name = field.name
    if field.type is TypeCode.OBJECT:
        for inner in field.fields:
            yield from _stored_fields(_field_in_block(field, inner))
    else:
        kind = _element(field)
        yield field_for(name, kind, (None,)) if kind != np.uint8 else _bytes(name)
    if _is_runs(field):
        yield Field(f"{name}_OFFSETS", TypeCode.INT_ARRAY, _INT32, (None,))
    if field.type is TypeCode.STRING_ARRAY:
        yield Field(f"{name}_ROWS", TypeCode.INT_ARRAY, _INT32, (None,))
    if field.nullable:
        yield Field(f"{name}_VALID", TypeCode.BYTE_ARRAY, np.dtype("u1"), (None,), nullable=True)


def _field_in_block(outer: Field, inner: Field) -> Field:
    """Return a field of a nested object, with its name in a block."""
    return replace(inner, name=f"{outer.name}_{inner.name}")


def _bytes(name: str) -> Field:
    return Field(name, TypeCode.BYTE_ARRAY, np.dtype("u1"), (None,))


def _element(field: Field) -> np.dtype[Any]:
    """Return the dtype of the elements of a field's array in a block."""
    if _is_text(field) or field.type is TypeCode.STRING_ARRAY:
        return np.dtype("u1")
    if field.type is TypeCode.UUID:
        return np.dtype("<u8")
    if field.type in TIME_UNIT:
        return np.dtype("<i8")
    if field.type in _PLAIN:
        return field.dtype
    raise ConfigError(
        f"field {field.name!r} of type {field.type.name} cannot be stored in blocks",
        hint="leave it out, or use the layout rows",
    )


def _is_text(field: Field) -> bool:
    return field.type in _TEXT or (
        field.dtype == BYTES and field.type in (TypeCode.UUID, TypeCode.BYTE_ARRAY)
    )


def _is_runs(field: Field) -> bool:
    return _is_text(field) or field.ragged or field.type is TypeCode.STRING_ARRAY


def pack_blocks(schema: Schema, rows: Batch, bounds: Positions, keys: NDArray[np.int64]) -> Batch:
    """Pack records into blocks, which are records of `block_schema`.

    Args:
        schema: The records.
        rows: The records of all blocks, one block after another.
        bounds: Block i has rows `bounds[i]` to `bounds[i + 1]`.
        keys: Key of each block.
    """
    assert rows.key is not None
    columns: dict[str, Column] = {}
    _pack(replace(schema.key, name="KEYS"), rows.key, bounds, columns)
    for field in schema.fields:
        _pack(field, rows.columns[field.name], bounds, columns)
    return Batch(Dense(keys), columns)


def _pack(field: Field, column: Column, bounds: Positions, out: dict[str, Column]) -> None:
    name = field.name
    if field.nullable:
        out[f"{name}_VALID"] = _pack_valid(column.valid, bounds)
    if field.type is TypeCode.OBJECT:
        assert isinstance(column, Struct)
        for inner in field.fields:
            _pack(_field_in_block(field, inner), column.fields[inner.name], bounds, out)
        return
    if not _is_runs(field):
        assert isinstance(column, Dense)
        values = column.values
        if field.type is TypeCode.TIMESTAMP and values.dtype.names is not None:
            raise SchemaError(
                f"field {name!r}: a timestamp before 1677 or after 2262 cannot be stored in blocks",
                hint="load with --layout rows",
            )
        if values.dtype.kind in "mM":
            unit = TIME_UNIT.get(field.type, "ms")
            values = values.astype(f"{values.dtype.kind}8[{unit}]").view(np.int64)
        size = int(np.prod(values.shape[1:], dtype=np.int64))
        out[name] = Runs.from_offsets(Dense(values.reshape(-1)), bounds * size)
        return
    assert isinstance(column, Runs)
    items, offsets = column.compact()
    if isinstance(items, Runs):
        out[f"{name}_ROWS"] = _pack_offsets(offsets, bounds)
        bounds = offsets[bounds]
        items, offsets = items.compact()
    out[name] = Runs.from_offsets(items, offsets[bounds])
    out[f"{name}_OFFSETS"] = _pack_offsets(offsets, bounds)


def _pack_valid(valid: NDArray[np.bool_] | None, bounds: Positions) -> Column:
    """Return the validity bytes of blocks that have nulls; null for other blocks."""
    blocks = len(bounds) - 1
    if valid is None:
        nothing = np.zeros(0, np.uint8)
        return Runs.from_offsets(
            Dense(nothing), np.zeros(blocks + 1, np.int64), np.zeros(blocks, bool)
        )
    nulls = np.concatenate(([0], np.cumsum(~valid)))
    some = np.diff(nulls[bounds]) > 0
    return Runs.from_offsets(Dense(valid.astype(np.uint8)), bounds, some)


def _pack_offsets(offsets: Positions, bounds: Positions) -> Column:
    """Return the bounds of runs, relative to the beginning of each block."""
    sizes = np.diff(bounds) + 1
    ends = np.cumsum(sizes)
    begin = ends - sizes
    index = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(begin - bounds[:-1], sizes)
    values = offsets[index] - np.repeat(offsets[bounds[:-1]], sizes)
    if len(values) and int(values.max()) > np.iinfo(np.int32).max:
        raise SchemaError("a block is larger than 2 GiB", hint="load with --layout rows")
    return Runs(Dense(values.astype(np.int32)), begin, sizes)


def unpack_blocks(
    schema: Schema, blocks: Batch, names: Sequence[str] | None = None
) -> Iterator[Batch]:
    """Yield the records of each block, as views where possible.

    Args:
        schema: The records.
        blocks: Decoded blocks, records of `block_schema`.
        names: Fields to unpack; None for all.

    Raises:
        SchemaError: A block contradicts itself; `record` is its index.
    """
    key = _unpacker(replace(schema.key, name="KEYS"), blocks.columns)
    names = schema.names if names is None else names
    fields = {name: _unpacker(schema[name], blocks.columns) for name in names}
    for i in range(len(blocks)):
        try:
            keys = key(i, None)
            columns = {name: unpack(i, len(keys)) for name, unpack in fields.items()}
        except (ValueError, IndexError) as error:
            raise SchemaError(f"block {i} is damaged: {error}", record=i) from error
        yield Batch(keys, columns)


class BlockDecoder:
    """Decodes the pages of a cache of blocks.

    Args:
        schema: The records, with the fields to decode.
        registry: Known binary types; `decode` raises UnknownType for others.
    """

    def __init__(self, schema: Schema, registry: TypeRegistry) -> None:
        self.schema = schema
        self._blocks = Decoder(block_schema(schema), registry)

    def decode(self, page: Page) -> list[Batch]:
        """Return the records of each block of a page, in its order, as views where possible.

        Raises:
            SchemaError: A block does not match the schema, or contradicts itself.
            WireError: The page is damaged.
            UnknownType: The registry lacks a type of the page.
        """
        return self.keyed(page)[1]

    def keyed(self, page: Page) -> tuple[Positions, list[Batch]]:
        """Like `decode`, but return the keys of the page's blocks as well."""
        blocks = self._blocks.decode(page)
        assert blocks.key is not None
        assert isinstance(blocks.key, Dense)
        return blocks.key.values, list(unpack_blocks(self.schema, blocks))


# Returns the column of block i, given its number of records (None: the column determines it).
_Unpack = Callable[[int, int | None], Column]


def _unpacker(field: Field, blocks: dict[str, Column]) -> _Unpack:
    """Do the work common to all blocks of a page, and return a function for each single block."""
    if field.type is TypeCode.OBJECT:
        unpack = _object_unpacker(field, blocks)
    elif _is_runs(field):
        unpack = _runs_unpacker(field, blocks)
    else:
        unpack = _dense_unpacker(field, blocks)
    return _with_nulls(field, blocks, unpack) if field.nullable else unpack


def _with_nulls(field: Field, blocks: dict[str, Column], unpack: _Unpack) -> _Unpack:
    marks = blocks[f"{field.name}_VALID"]
    present, run = marks.valid, _run_of(marks)

    def with_nulls(i: int, count: int | None) -> Column:
        column = unpack(i, count)
        if present is not None and not present[i]:
            return column
        valid = run(i).astype(bool)
        _expect(field, len(valid), len(column) if count is None else count)
        return column.marked(valid)

    return with_nulls


def _object_unpacker(field: Field, blocks: dict[str, Column]) -> _Unpack:
    inners = {
        inner.name: _unpacker(_field_in_block(field, inner), blocks) for inner in field.fields
    }

    def unpack(i: int, count: int | None) -> Column:
        columns: dict[str, Column] = {}
        for name, inner in inners.items():
            columns[name] = inner(i, count)
            count = len(columns[name])
        return Struct(columns)

    return unpack


def _dense_unpacker(field: Field, blocks: dict[str, Column]) -> _Unpack:
    run = _run_of(blocks[field.name])
    shape = (2,) if field.type is TypeCode.UUID else field.shape
    size = max(1, math.prod(n or 0 for n in shape))

    def unpack(i: int, count: int | None) -> Column:
        flat = run(i)
        return Dense(flat.reshape(len(flat) // size if count is None else count, *shape))

    return unpack


def _runs_unpacker(field: Field, blocks: dict[str, Column]) -> _Unpack:
    name = field.name
    run, offsets = _run_of(blocks[name]), _run_of(blocks[f"{name}_OFFSETS"])
    rows = _run_of(blocks[f"{name}_ROWS"]) if field.type is TypeCode.STRING_ARRAY else None

    def unpack(i: int, count: int | None) -> Column:
        flat = run(i)
        column = Runs.from_offsets(Dense(flat), _bounds(field, offsets(i), len(flat)))
        if rows is not None:
            column = Runs.from_offsets(column, _bounds(field, rows(i), len(column)))
        _expect(field, len(column), count)
        return column

    return unpack


def _run_of(column: Column) -> Callable[[int], NDArray[Any]]:
    """Return a function that maps i to the values of block i, a view."""
    assert isinstance(column, Runs)
    values = column.values
    starts, ends = column.starts.tolist(), (column.starts + column.lengths).tolist()
    return lambda i: values[starts[i] : ends[i]]


def _bounds(field: Field, offsets: NDArray[Any], end: int) -> Positions:
    wide = offsets.astype(np.int64)
    if len(wide) == 0 or wide[0] != 0 or wide[-1] != end or (np.diff(wide) < 0).any():
        raise ValueError(f"the offsets of {field.name} do not fit to its values")
    return wide


def _expect(field: Field, found: int, count: int | None) -> None:
    if count is not None and found != count:
        raise ValueError(f"{field.name} has {found} values for {count} keys")
