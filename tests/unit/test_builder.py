"""Rows taken apart in C, in pieces of any size, are those that the decoder finds in whole pages."""

import itertools
import struct
import uuid
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import IgniteTFError
from ignitetf.wire.buffers import ALIGNMENT, BufferPool
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.concat import concat, merged
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.forms import entry_end
from ignitetf.wire.frames import Page
from ignitetf.wire.objects import object_end
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema, field_for
from ignitetf.wire.types import BinaryType, TypeRegistry, UnknownType

LONG_KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))
TEXT_KEY = Field("key", TypeCode.STRING, BYTES)
FIELDS = (
    field_for("IMAGE", np.dtype("u1"), (3, 5)),
    field_for("LABEL", np.dtype("<i4"), nullable=True),
    field_for("WEIGHT", np.dtype("<f8")),
    field_for("IS", np.dtype("?")),
    Field("JPEG", TypeCode.BYTE_ARRAY, BYTES, (), True),
    Field("NAME", TypeCode.STRING, BYTES, (), True),
    field_for("ITEMS", np.dtype("<i8"), (None,)),
    field_for("BOXES", np.dtype("<f4"), (None, 2)),
    Field("TIME", TypeCode.TIMESTAMP, np.dtype("<i8"), (), True),
    Field("ID", TypeCode.UUID, BYTES, (), True),
    Field("PRICE", TypeCode.DECIMAL, BYTES, (), True),
    Field("SMALL", TypeCode.SHORT, np.dtype("u1")),
)


def columns_of(rows, rng):
    """Columns for FIELDS; those that are nullable have nulls."""

    def valid():
        return rng.random(rows) < 0.8

    def runs(dtype, step):
        counts = rng.integers(0, 4, rows) * step
        values = rng.integers(0, 99, int(counts.sum())).astype(dtype)
        return Column.from_offsets(values, np.concatenate(([0], np.cumsum(counts))))

    def texts(make):
        return Column.from_bytes([make(i) if rng.random() < 0.8 else None for i in range(rows)])

    found = {
        "IMAGE": Column(rng.integers(0, 256, (rows, 3, 5), dtype=np.uint8)),
        "LABEL": Column(rng.integers(-9, 9, rows, dtype=np.int32), valid=valid()),
        "WEIGHT": Column(rng.standard_normal(rows)),
        "IS": Column(rng.random(rows) < 0.5),
        "JPEG": texts(lambda i: rng.bytes(int(rng.integers(0, 90)))),
        "NAME": texts(lambda i: f"n{i}".encode() * (i % 9)),
        "ITEMS": runs("<i8", 1),
        "BOXES": runs("<f4", 2),
        "TIME": Column(rng.integers(-(10**18), 10**18, rows), valid=valid()),
        "ID": texts(lambda i: str(uuid.UUID(bytes=rng.bytes(16))).encode()),
        "PRICE": texts(lambda i: b"%d.%02d" % (int(rng.integers(-9999, 9999)), i % 100)),
        "SMALL": Column(rng.integers(0, 256, rows).astype(np.uint8)),
    }
    return {n: _without_spurious_marks(c) for n, c in found.items()}


def _without_spurious_marks(column):
    if column.valid is None or not column.valid.all():
        return column
    return replace(column, valid=None)


def keys_of(field, rows, rng):
    if field is LONG_KEY:
        return Column(rng.integers(-(2**60), 2**60, rows))
    return Column.from_bytes([b"key %d" % i * (1 + i % 3) for i in range(rows)])


def schema_of(key, names):
    return Schema("Row", key, tuple(f for f in FIELDS if f.name in names))


def registry_of(*schemas):
    registry = TypeRegistry()
    ids = {s.schema_id: tuple(f.field_id for f in s.fields) for s in schemas}
    fields = {f.field_id: (f.name, int(f.type)) for s in schemas for f in s.fields}
    registry.add(BinaryType(schemas[0].type_id, "Row", fields, ids))
    return registry


def entries_of(schema, batch):
    """The entries that a node would answer, each for itself."""
    encoded = encode_entries(schema, batch)
    data, out, start = b"".join(encoded.entries(0, len(encoded))), [], 0
    for end in encoded.ends.tolist():
        split = object_end(memoryview(data), start)
        value = data[split:end]
        wrapped = struct.pack("<bi", TypeCode.WRAPPED, len(value)) + value + bytes(4)
        out.append(data[start:split] + wrapped)
        start = end
    return out


def page_of(entries):
    return Page(len(entries), False, np.frombuffer(b"".join(entries), np.uint8))


def builder_of(schema, registry, room, page):
    pool = BufferPool()
    return BatchBuilder(schema, registry, pool, room, len(page.data) / max(1, page.count))


def listed(column):
    """The values of a column, None for nulls."""
    if column.starts is None:
        found = np.asarray(column.values).tolist()
    else:
        values, offsets = column.compact()
        found = [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    valid = [True] * len(found) if column.valid is None else column.valid.tolist()
    return [value if ok else None for value, ok in zip(found, valid, strict=True)]


def same(left, right):
    assert listed(left.key) == listed(right.key)
    assert set(left.columns) == set(right.columns)
    for name, column in left.columns.items():
        assert listed(column) == listed(right.columns[name]), name


def add_all(builder, page, sizes):
    """Add the rows of a page, of which so many bytes come at a time; returns how many were added.

    Ends before the first row that cannot be learned.
    """
    rows = at = 0
    end = 0
    while True:
        found = builder.add(page.data[at:end], page.count - rows)
        rows, at = rows + found.rows, at + found.nbytes
        if found.end is RowsEnd.DONE:
            return rows
        if found.end is RowsEnd.OTHER:
            entry = entry_end(page.data[at:end])
            if entry is not None:
                if builder.learn(page.data[at : at + entry]):
                    continue
                return rows
        if end == len(page.data):
            return rows
        end = min(len(page.data), end + next(sizes))


@st.composite
def sizes(draw):
    """Sizes of pieces, without end."""
    step = draw(st.integers(1, 700))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    return iter(lambda: int(rng.integers(1, step + 1)), None)


@settings(deadline=None, print_blob=True)
@given(
    st.integers(0, 1 << 20),
    st.integers(1, 120),
    st.integers(1, 150),
    st.sets(st.sampled_from([f.name for f in FIELDS]), min_size=1),
    st.sampled_from([LONG_KEY, TEXT_KEY]),
    sizes(),
)
def test_rows_in_pieces_are_those_of_the_whole_page(seed, rows, room, names, key, pieces):
    rng = np.random.default_rng(seed)
    schema = schema_of(key, names)
    columns = columns_of(rows, rng)
    batch = Batch(keys_of(key, rows, rng), {f.name: columns[f.name] for f in schema.fields})
    registry, page = registry_of(schema), page_of(entries_of(schema, batch))
    builder = builder_of(schema, registry, room, page)
    assert BatchBuilder.can_build(schema)
    assert add_all(builder, page, pieces) == rows
    found = list(builder.take())
    assert max(map(len, found)) <= room
    same(concat(found), Decoder(schema, registry).decode(page))


@settings(deadline=None, print_blob=True)
@given(st.integers(0, 1 << 20), st.integers(1, 60), sizes())
def test_rows_of_several_schemas_and_fields_that_are_missing(seed, rows, pieces):
    """SQL leaves nulls out: such rows have another schema."""
    rng = np.random.default_rng(seed)
    names = [f.name for f in FIELDS]
    whole = schema_of(LONG_KEY, names)
    schemas, entries = [whole], []
    for _ in range(rows):
        left_out = {n for n in names if whole[n].nullable and rng.random() < 0.3}
        part = schema_of(LONG_KEY, set(names) - left_out)
        schemas.append(part)
        columns = columns_of(1, rng)
        own = {f.name: columns[f.name] for f in part.fields}
        entries += entries_of(part, Batch(keys_of(LONG_KEY, 1, rng), own))
    registry, page = registry_of(*schemas), page_of(entries)
    builder = builder_of(whole, registry, 1000, page)
    expected = Decoder(whole, registry).decode(page)
    added = add_all(builder, page, pieces)
    # Of more schemas than it keeps, the builder leaves the rest to the decoder.
    assert added == rows or len({s.schema_id for s in schemas[1 : added + 2]}) > 16
    if added:
        same(concat(list(builder.take())), expected[:added])


@settings(deadline=None, max_examples=400, print_blob=True)
@given(st.data())
def test_of_damaged_bytes_nothing_is_taken_that_the_decoder_does_not_find(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    schema = schema_of(LONG_KEY, [f.name for f in FIELDS])
    page = page_of(entries_of(schema, Batch(keys_of(LONG_KEY, 5, rng), columns_of(5, rng))))
    raw = bytearray(page.data.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(raw)))
    damaged = Page(page.count, False, np.frombuffer(bytes(raw[:size]), np.uint8))
    registry = registry_of(schema)
    builder = builder_of(schema, registry, 100, page)
    try:
        added = add_all(builder, damaged, data.draw(sizes()))
    except (IgniteTFError, UnknownType):
        return  # of `learn`
    if not added:
        return
    nbytes = 0
    for _ in range(added):
        nbytes += entry_end(damaged.data[nbytes:])
    try:
        found = list(builder.take())
    except IgniteTFError:
        with pytest.raises(IgniteTFError):
            Decoder(schema, registry).decode(Page(added, False, damaged.data[:nbytes]))
        return
    same(concat(found), Decoder(schema, registry).decode(Page(added, False, damaged.data[:nbytes])))


@pytest.mark.parametrize("room", [7, 64, 1000])
def test_rows_that_are_taken_back_leave_no_trace(room):
    rng = np.random.default_rng(room)
    schema = schema_of(LONG_KEY, [f.name for f in FIELDS])
    entries = entries_of(schema, Batch(keys_of(LONG_KEY, 150, rng), columns_of(150, rng)))
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, room, page)
    expected = Decoder(schema, registry).decode(page)
    first, batches = 0, []
    while first < len(entries):
        position = builder.position
        for count in (rng.integers(0, 90), rng.integers(0, 30)):
            builder.return_to(position)
            part = page_of(entries[first : first + int(count)])
            assert add_all(builder, part, itertools.repeat(1 << 20)) == part.count
            keys = [key for part in builder.keys_since(position) for key in listed(part)]
            assert keys == listed(expected.key[first : first + part.count])
        first += part.count
        if rng.random() < 0.4:
            batches += builder.take(int(rng.integers(1, 3)))
    same(concat([*batches, *builder.take()]), expected)


def test_batches_begin_aligned():
    rng = np.random.default_rng(1)
    schema = schema_of(LONG_KEY, ["IMAGE", "LABEL", "NAME", "IS"])
    page = page_of(entries_of(schema, Batch(keys_of(LONG_KEY, 900, rng), columns_of(900, rng))))
    registry = registry_of(schema)
    builder = builder_of(schema, registry, 640, page)
    builder.learn(page.data[: entry_end(page.data)])
    at = rows = 0
    for multiple in (64, 1, 64, 64, 1):
        found = builder.add(page.data[at : at + len(page.data) // 5], page.count - rows)
        rows, at = rows + found.rows, at + found.nbytes
        for batch in builder.take(multiple):
            for column in (batch.key, batch.columns["IMAGE"], batch.columns["IS"]):
                assert column.values.ctypes.data % ALIGNMENT == 0
                assert column.values.flags.c_contiguous


def test_what_cannot_be_copied_is_left_to_the_decoder():
    nested = Field("PART", TypeCode.OBJECT, BYTES, fields=(field_for("A", np.dtype("<i4")),))
    for field in (nested, Field("LIST", TypeCode.COLLECTION, np.dtype("<i8"), (None,))):
        assert not BatchBuilder.can_build(Schema("Row", LONG_KEY, (field,)))
    composite = Field("key", TypeCode.OBJECT, BYTES, fields=(field_for("A", np.dtype("<i4")),))
    assert not BatchBuilder.can_build(Schema("Row", composite, FIELDS[:1]))


def test_batches_that_follow_each_other_in_memory_are_one():
    rng = np.random.default_rng(2)
    schema = schema_of(LONG_KEY, ["IMAGE", "WEIGHT", "NAME"])
    columns = columns_of(900, rng)
    columns["NAME"] = Column.from_bytes([b"n%d" % i for i in range(900)])
    batch = Batch(keys_of(LONG_KEY, 900, rng), {n: columns[n] for n in ("IMAGE", "WEIGHT", "NAME")})
    page = page_of(entries_of(schema, batch))
    builder = builder_of(schema, registry_of(schema), 512, page)
    at = rows = 0
    batches = []
    while rows < 900:
        end = min(len(page.data), at + int(rng.integers(1, 9000)))
        found = builder.add(page.data[at:end], 900 - rows)
        if found.end is RowsEnd.OTHER:
            builder.learn(page.data[at : at + entry_end(page.data[at:])])
        at, rows = at + found.nbytes, rows + found.rows
        batches += builder.take(64)
    batches += builder.take()
    joined = merged(batches)
    assert len(joined) == 2 < len(batches)
    same(concat(joined), batch)
    assert np.shares_memory(joined[0].columns["IMAGE"].values, batches[0].columns["IMAGE"].values)
    assert joined[0].key.values.ctypes.data % ALIGNMENT == 0
    apart = [batches[0], batches[2], batches[1]]
    same(concat(merged(apart)), concat(apart))


def test_what_one_builder_learned_another_knows():
    rng = np.random.default_rng(5)
    schema = Schema("Row", LONG_KEY, tuple(FIELDS))
    batch = Batch(keys_of(LONG_KEY, 30, rng), {f.name: columns_of(30, rng)[f.name] for f in FIELDS})
    registry, page = registry_of(schema), page_of(entries_of(schema, batch))
    known = []
    for learns in (True, False):
        builder = BatchBuilder(schema, registry, BufferPool(), 64, 4096, known)
        if learns:
            assert builder.add(page.data, 30).end is RowsEnd.OTHER
            assert builder.learn(page.data[: entry_end(page.data)])
            assert not builder.learn(page.data[: entry_end(page.data)])
        assert builder.add(page.data, 30).rows == 30
        same(concat(list(builder.take())), Decoder(schema, registry).decode(page))
    assert len(known) == 1
