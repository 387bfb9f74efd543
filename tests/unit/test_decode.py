"""Pages to columns: the mirror of the encoder, both paths alike, and no page that breaks it."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import IgniteTFError, SchemaError, WireError
from ignitetf.wire.buffers import ALIGNMENT, BufferPool
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs
from ignitetf.wire.decode import Decoder
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.frames import Page, read_page
from ignitetf.wire.infer import Evidence, infer_schema, observe_page
from ignitetf.wire.schema import BYTES, Field, Schema, field_for
from ignitetf.wire.types import BinaryType, TypeRegistry, UnknownClass, UnknownType

pytestmark = pytest.mark.core

KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))
IMAGES = Schema(
    "Image",
    KEY,
    (
        field_for("IMAGE", np.dtype("u1"), (3, 5)),
        field_for("LABEL", np.dtype("<i4")),
        field_for("WEIGHT", np.dtype("<f8")),
        field_for("BOXES", np.dtype("<f4"), (2,)),
    ),
)
BLOBS = Schema(
    "Blob",
    KEY,
    (
        Field("JPEG", TypeCode.BYTE_ARRAY, BYTES),
        Field("NAME", TypeCode.STRING, BYTES, (), True),
        Field("LABEL", TypeCode.INT, np.dtype("<i4")),
        field_for("ITEMS", np.dtype("<i8"), (None,)),
    ),
)


def registry_of(schema):
    registry = TypeRegistry()
    ids = tuple(f.field_id for f in schema.fields)
    fields = {f.field_id: (f.name, int(f.type)) for f in schema.fields}
    registry.add(BinaryType(schema.type_id, schema.type_name, fields, {schema.schema_id: ids}))
    return registry


def page_of(schema, batch):
    """The page a node would answer: values wrapped as it wraps them."""
    encoded = encode_entries(schema, batch)
    data, out, start = bytes(encoded.data), [], 0
    for end in encoded.ends.tolist():
        key, value = data[start : start + 9], data[start + 9 : end]
        out.append(key + struct.pack("<bi", TypeCode.WRAPPED, len(value)) + value + bytes(4))
        start = end
    return Page(len(out), False, np.frombuffer(b"".join(out), np.uint8))


def images(n, seed=0):
    rng = np.random.default_rng(seed)
    columns = {
        "IMAGE": Dense(rng.integers(0, 256, (n, 3, 5), dtype=np.uint8)),
        "LABEL": Dense(rng.integers(-9, 9, n, dtype=np.int32)),
        "WEIGHT": Dense(rng.standard_normal(n)),
        "BOXES": Dense(rng.standard_normal((n, 2)).astype("<f4")),
    }
    return Batch(Dense(np.arange(n, dtype=np.int64) * 7 - 3), columns)


def blobs(n, seed=0):
    rng = np.random.default_rng(seed)
    names = [None if rng.random() < 0.2 else f"n{i}".encode() * (i % 4) for i in range(n)]
    counts = rng.integers(0, 5, n)
    columns = {
        "JPEG": Runs.from_bytes([rng.bytes(int(rng.integers(0, 40))) for _ in range(n)]),
        "NAME": Runs.from_bytes(names),
        "LABEL": Dense(rng.integers(-9, 9, n, dtype=np.int32)),
        "ITEMS": Runs.from_offsets(
            Dense(rng.integers(-99, 99, int(counts.sum()), dtype=np.int64)),
            np.concatenate(([0], np.cumsum(counts))),
        ),
    }
    return Batch(Dense(np.arange(n, dtype=np.int64)), columns)


def listed(column):
    if isinstance(column, Dense):
        found = column.values.tolist()
    else:
        items, offsets = column.compact()
        found = [items.values[p:q].tolist() for p, q in itertools.pairwise(offsets)]
    valid = [True] * len(found) if column.valid is None else column.valid.tolist()
    return [v if ok else None for v, ok in zip(found, valid, strict=True)]


def same(left, right):
    assert listed(left.key) == listed(right.key)
    assert set(left.columns) == set(right.columns)
    for name, column in left.columns.items():
        assert listed(column) == listed(right.columns[name]), name


@pytest.mark.parametrize("rows", [1, 2, 33, 300])
def test_the_decoder_is_the_mirror_of_the_encoder(rows):
    for schema, batch in ((IMAGES, images(rows)), (BLOBS, blobs(rows))):
        same(Decoder(schema, registry_of(schema)).decode(page_of(schema, batch)), batch)


def test_fields_are_a_choice():
    page = page_of(IMAGES, images(9))
    for names in (["LABEL"], ["WEIGHT", "IMAGE"]):
        decoder = Decoder(IMAGES, registry_of(IMAGES), names)
        found = decoder.decode(page)
        assert list(found.columns) == [f.name for f in IMAGES.fields if f.name in names] or (
            set(found.columns) == set(names)
        )


@pytest.mark.parametrize(("schema", "batch"), [(IMAGES, images(3)), (BLOBS, blobs(3))])
def test_a_page_cut_at_any_byte_is_a_wire_error(schema, batch):
    page = page_of(schema, batch)
    for size in range(len(page.data)):
        decoder = Decoder(schema, registry_of(schema))
        with pytest.raises(WireError):
            decoder.decode(Page(page.count, False, page.data[:size]))
        head = struct.pack("<i", page.count) + page.data[:size].tobytes() + b"\0"
        with pytest.raises(WireError):
            decoder.decode(read_page(memoryview(head)))


@settings(max_examples=400, deadline=None, print_blob=True)
@given(st.data())
def test_a_damaged_page_gives_our_own_errors_only(data):
    schema, batch = data.draw(st.sampled_from([(IMAGES, images(4)), (BLOBS, blobs(4))]))
    page = page_of(schema, batch)
    raw = bytearray(page.data.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = Page(page.count, False, np.frombuffer(bytes(raw), np.uint8))
    registry = registry_of(schema)
    key, value = Evidence(), Evidence()
    for work in (
        lambda: Decoder(schema, registry).decode(damaged),
        lambda: (observe_page(damaged, key, value, registry), infer_schema(key, value, registry)),
    ):
        try:
            work()
        except (IgniteTFError, UnknownClass, UnknownType):
            continue


def test_inference_gives_what_was_encoded():
    for schema, batch in ((IMAGES, images(20)), (BLOBS, blobs(20))):
        key, value = Evidence(), Evidence()
        registry = registry_of(schema)
        observe_page(page_of(schema, batch), key, value, registry)
        found = infer_schema(key, value, registry)
        assert found.key.type == TypeCode.LONG
        for item in schema.fields:
            got = found[item.name]
            assert (got.type, got.dtype, got.nullable) == (item.type, item.dtype, item.nullable)
            if not item.ragged and item.dtype != BYTES:
                assert got.size == item.size


def test_another_length_names_the_field_and_the_record():
    page = page_of(BLOBS, blobs(12))
    fixed = BLOBS.replace_fields(field_for("ITEMS", np.dtype("<i8"), (2,)))
    with pytest.raises(SchemaError, match="ITEMS") as error:
        Decoder(fixed, registry_of(BLOBS)).decode(page)
    counts = [len(v) for v in listed(blobs(12).columns["ITEMS"])]
    assert counts[error.value.record] != 2


def test_a_type_that_is_not_known_is_asked_for():
    with pytest.raises(UnknownType) as asked:
        Decoder(BLOBS, TypeRegistry()).decode(page_of(BLOBS, blobs(5)))
    assert (asked.value.type_id, asked.value.schema_id) == (BLOBS.type_id, BLOBS.schema_id)


def test_a_buffer_is_used_again_only_when_no_view_is_left():
    pool = BufferPool()
    first = pool.take(1 << 20)
    assert first.ctypes.data % ALIGNMENT == 0
    view = first[100:200].view("<i2")
    where = first.ctypes.data
    del first
    second = pool.take(1 << 20)
    assert second.ctypes.data != where
    del view
    third = pool.take(1 << 20)
    assert third.ctypes.data == where
    assert pool.nbytes < 3 << 20


def test_a_pool_at_rest_keeps_what_is_in_use_and_a_few_large_blocks():
    pool = BufferPool()
    held = pool.take(200_000)
    held[:] = 7
    small, large = ([pool.take(size) for _ in range(12)] for size in (300_000, 4 << 20))
    del small, large
    pool.shrink(1 << 20, 32 << 20)
    assert (24 << 20) < pool.nbytes < (33 << 20)
    pool.shrink(1 << 20, 0)
    assert 200_000 <= pool.nbytes < 300_000 and (held == 7).all()
