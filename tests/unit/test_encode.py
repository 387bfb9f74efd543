"""The encoder writes what pyignite and plain Python write, one record at a time."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections import OrderedDict
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyignite import GenericObjectMeta
from pyignite.connection.protocol_context import ProtocolContext
from pyignite.datatypes import (
    BoolArrayObject,
    BoolObject,
    ByteArrayObject,
    ByteObject,
    CollectionObject,
    DateArrayObject,
    DecimalArrayObject,
    DecimalObject,
    DoubleArrayObject,
    DoubleObject,
    FloatArrayObject,
    FloatObject,
    IntArrayObject,
    IntObject,
    LongArrayObject,
    LongObject,
    MapObject,
    ObjectArrayObject,
    ShortArrayObject,
    ShortObject,
    String,
    StringArrayObject,
    TimestampArrayObject,
    UUIDArrayObject,
    UUIDObject,
)
from pyignite.stream import BinaryStream

from ignitetf._core import _native
from ignitetf.errors import SchemaError
from ignitetf.wire import checksum as hashing
from ignitetf.wire import encoders as parts
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.schema import BYTES, Field, Schema

pytestmark = pytest.mark.core

KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))


class Offline:
    """What pyignite's stream asks of a client, without a connection."""

    compact_footer = True
    protocol_context = ProtocolContext((1, 7, 0))

    def register_binary_type(self, *args: object) -> None:
        """Nothing to register with."""


def pyignite_bytes(kind, value) -> bytes:
    with BinaryStream(Offline()) as stream:
        kind.from_python(stream, value)
        return bytes(stream.getvalue())


def pyignite_object(name: str, kinds: dict, values: dict) -> bytes:
    cls = GenericObjectMeta(name, (), {}, type_name=name, schema=OrderedDict(kinds))
    with BinaryStream(Offline()) as stream:
        cls(**values)._from_python(stream)
        return bytes(stream.getvalue())


def text(values):
    return Runs.from_bytes([None if v is None else v.encode() for v in values])


def flagged(values, dtype):
    plain = np.array([0 if v is None else v for v in values], dtype)
    valid = np.array([v is not None for v in values])
    return Dense(plain, valid=None if valid.all() else valid)


def runs(values, dtype):
    lengths = np.array([0 if v is None else len(v) for v in values], np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    flat = np.array([x for v in values if v is not None for x in v], dtype)
    valid = np.array([v is not None for v in values])
    return Runs.from_offsets(Dense(flat), offsets, None if valid.all() else valid)


def decimals(values):
    return Runs.from_bytes([None if v is None else format(v, "f").encode() for v in values])


def strings(values):
    flat = [s.encode() for v in values if v is not None for s in v]
    lengths = np.array([0 if v is None else len(v) for v in values], np.int64)
    valid = np.array([v is not None for v in values])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return Runs.from_offsets(Runs.from_bytes(flat), offsets, None if valid.all() else valid)


def uuids(values):
    return Runs.from_bytes([None if v is None else str(v).encode() for v in values])


def ints(bits):
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def number(code, dtype, kind, values):
    return (code, dtype, (), kind, values, lambda v: flagged(v, dtype))


def array(code, dtype, kind, values):
    return (code, dtype, (None,), kind, st.lists(values, max_size=9), lambda v: runs(v, dtype))


def lists(values, item):
    """Runs of any column: `item` makes one of all elements."""
    inner = item([x for v in values if v is not None for x in v])
    offsets = np.concatenate(([0], np.cumsum([0 if v is None else len(v) for v in values])))
    valid = np.array([v is not None for v in values])
    return Runs.from_offsets(inner, offsets, None if valid.all() else valid)


def tagged(values, item):
    """As `lists`, of pairs of a number and the list, as pyignite has them."""
    return lists([None if v is None else v[1] for v in values], item)


def maps(values):
    plain = [{} if v is None else v[1] for v in values]
    keys = lists([list(v) for v in plain], text)
    items = lists([list(v.values()) for v in plain], lambda v: flagged(v, np.dtype("<i8")))
    valid = np.array([v is not None for v in values])
    return Struct({"keys": keys, "values": items}, valid=None if valid.all() else valid)


def millis(values):
    return flagged([v and round((v - EPOCH).total_seconds() * 1000) for v in values], np.int64)


def nanos(values):
    return flagged(
        [v and round((v[0] - EPOCH).total_seconds() * 1000) * 1_000_000 + v[1] for v in values],
        np.int64,
    )


EPOCH = datetime.datetime(1970, 1, 1)
moments = st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2037, 1, 1)).map(
    lambda d: d.replace(microsecond=0)
)
f32 = st.floats(width=32, allow_nan=False)
f64 = st.floats(allow_nan=False)
# pyignite loses what follows a NUL inside a string, so there is none in the texts compared.
plain_text = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20
)
# pyignite drops trailing zeros of a decimal, so there are none in the values compared.
numbers = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20)).filter(
    lambda d: d and d == d.normalize() and d.normalize().as_tuple() == d.as_tuple()
)
KINDS = [
    number(TypeCode.BYTE, np.dtype("i1"), ByteObject, ints(8)),
    number(TypeCode.SHORT, np.dtype("<i2"), ShortObject, ints(16)),
    number(TypeCode.INT, np.dtype("<i4"), IntObject, ints(32)),
    number(TypeCode.LONG, np.dtype("<i8"), LongObject, ints(64)),
    number(TypeCode.FLOAT, np.dtype("<f4"), FloatObject, f32),
    number(TypeCode.DOUBLE, np.dtype("<f8"), DoubleObject, f64),
    number(TypeCode.BOOL, np.dtype("?"), BoolObject, st.booleans()),
    array(TypeCode.SHORT_ARRAY, np.dtype("<i2"), ShortArrayObject, ints(16)),
    array(TypeCode.INT_ARRAY, np.dtype("<i4"), IntArrayObject, ints(32)),
    array(TypeCode.LONG_ARRAY, np.dtype("<i8"), LongArrayObject, ints(64)),
    array(TypeCode.FLOAT_ARRAY, np.dtype("<f4"), FloatArrayObject, f32),
    array(TypeCode.DOUBLE_ARRAY, np.dtype("<f8"), DoubleArrayObject, f64),
    array(TypeCode.BOOL_ARRAY, np.dtype("?"), BoolArrayObject, st.booleans()),
    (TypeCode.STRING, BYTES, (), String, plain_text, text),
    (TypeCode.BYTE_ARRAY, BYTES, (), ByteArrayObject, st.binary(max_size=300), Runs.from_bytes),
    (TypeCode.UUID, BYTES, (), UUIDObject, st.uuids(), uuids),
    (TypeCode.DECIMAL, BYTES, (), DecimalObject, numbers, decimals),
    (
        TypeCode.STRING_ARRAY,
        BYTES,
        (None,),
        StringArrayObject,
        st.lists(plain_text, max_size=4),
        strings,
    ),
    (
        TypeCode.UUID_ARRAY,
        BYTES,
        (None,),
        UUIDArrayObject,
        st.lists(st.uuids(), max_size=3),
        lambda v: lists(v, uuids),
    ),
    (
        TypeCode.DECIMAL_ARRAY,
        BYTES,
        (None,),
        DecimalArrayObject,
        st.lists(numbers, max_size=3),
        lambda v: lists(v, decimals),
    ),
    (
        TypeCode.DATE_ARRAY,
        np.dtype("<i8"),
        (None,),
        DateArrayObject,
        st.lists(moments, max_size=3),
        lambda v: lists(v, millis),
    ),
    (
        TypeCode.TIMESTAMP_ARRAY,
        np.dtype("<i8"),
        (None,),
        TimestampArrayObject,
        st.lists(st.tuples(moments, st.integers(0, 999_999)), max_size=3),
        lambda v: lists(v, nanos),
    ),
    (
        TypeCode.COLLECTION,
        BYTES,
        (None,),
        CollectionObject,
        st.tuples(st.just(1), st.lists(st.none() | plain_text, max_size=4)),
        lambda v: tagged(v, text),
        Field("item", TypeCode.STRING, BYTES, (), True),
    ),
    (
        TypeCode.OBJECT_ARRAY,
        BYTES,
        (None,),
        ObjectArrayObject,
        st.tuples(st.just(-1), st.lists(st.none() | plain_text, max_size=4)),
        lambda v: tagged(v, text),
        Field("item", TypeCode.STRING, BYTES, (), True),
    ),
    (
        TypeCode.MAP,
        BYTES,
        (),
        MapObject,
        st.tuples(st.just(2), st.dictionaries(plain_text, st.none() | ints(64), max_size=3)),
        maps,
        Field("keys", TypeCode.STRING, BYTES),
        Field("values", TypeCode.LONG, np.dtype("<i8"), (), True),
    ),
]


@st.composite
def tables(draw):
    """A few fields of random kinds, and some records of them, with nulls here and there."""
    chosen = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    count = draw(st.integers(1, 5))
    table = []
    for i, kind in enumerate(chosen):
        values = kind[4] if draw(st.booleans()) else st.one_of(st.none(), kind[4])
        table.append((f"F{i}", kind, draw(st.lists(values, min_size=count, max_size=count))))
    return table


ONE_BYTE_OFFSETS = 0x08  # of the flags, which follow the key (9 bytes) and two more


@settings(max_examples=300, deadline=None, print_blob=True)
@given(table=tables())
def test_bytes_are_those_of_pyignite(table):
    """Also where the bytes of each value are sent from where they lie."""
    fields = tuple(Field(n, k[0], k[1], k[2], True, (*k[6:],)) for n, k, _ in table)
    columns = {name: kind[5](values) for name, kind, values in table}
    count = len(table[0][2])
    keys = np.arange(count) * 7 - 3
    pages = []
    for large in (64 << 10, 0):
        with patch.object(parts, "LARGE_BYTES", large):
            pages.append(encode_entries(Schema("Row", KEY, fields), Batch(Dense(keys), columns)))
    for i in range(count):
        expected = pyignite_bytes(LongObject, int(keys[i])) + pyignite_object(
            "Row", {n: k[3] for n, k, _ in table}, {n: values[i] for n, _, values in table}
        )
        copied, apart = (b"".join(page.entries(i, i + 1)) for page in pages)
        assert copied == apart
        if copied[11] & ONE_BYTE_OFFSETS and copied[-1] == 255:
            continue  # pyignite needs two bytes for an offset of 255 and more, Java for 256 and more
        assert copied == expected


@pytest.mark.parametrize("form", ["dense", "matrix", "runs", "runs from behind", "with a null"])
def test_large_values_are_sent_from_where_they_lie(form):
    """The same bytes as of a copy; runs in another order and nulls are copied."""
    width, n = 70_000, 4
    images = np.random.default_rng(6).integers(0, 256, (n, width), dtype=np.uint8)
    starts, lengths = np.arange(n) * width, width - np.arange(n)
    column = {
        "dense": Dense(images),
        "matrix": Dense(images),
        "runs": Runs(Dense(images.reshape(-1)), starts, lengths),
        "runs from behind": Runs(Dense(images.reshape(-1)), starts, lengths)[::-1],
        "with a null": Dense(images, valid=np.arange(n) != 2),
    }[form]
    before = Field("BEFORE", TypeCode.STRING, BYTES), Runs.from_bytes([b"a", b"", b"bcd", b"e"])
    if form == "matrix":
        before = Field("BEFORE", TypeCode.SHORT, np.dtype("<i2")), Dense(np.arange(n, dtype="<i2"))
    fields = (
        before[0],
        Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), (None,), True),
        Field("AGAIN", TypeCode.BYTE_ARRAY, np.dtype("u1"), (None,), True),
        Field("AFTER", TypeCode.INT, np.dtype("<i4")),
    )
    columns = {
        "BEFORE": before[1],
        "IMAGE": column,
        "AGAIN": Dense(images[:, ::-1].copy()),
        "AFTER": Dense(np.arange(n, dtype=np.int32)),
    }

    def page(large):
        with patch.object(parts, "LARGE_BYTES", large):
            rows = Batch(Dense(np.arange(n)), columns)
            return encode_entries(Schema("T", KEY, fields), rows)

    apart, copied = page(width // 2), page(1 << 40)
    assert copied.gaps == () and len(copied.data) == copied.nbytes == apart.nbytes
    for i in range(n):
        for stop in range(i, n + 1):
            assert b"".join(apart.entries(i, stop)) == b"".join(copied.entries(i, stop))
    views = [np.frombuffer(view, np.uint8) for view in apart.entries(0, n)]
    of_column = [view for view in views if np.shares_memory(view, images)]
    assert len(of_column) == (n if form in ("dense", "matrix", "runs") else 0)
    assert len(apart.data) < copied.nbytes - n * width + n


def test_fixed_rows_equal_the_general_path():
    """One longer string in the last record takes the general path for all records."""
    rng = np.random.default_rng(5)
    n = 40
    fields = (
        Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), (6, 5)),
        Field("NAME", TypeCode.STRING, BYTES),
        Field("LABEL", TypeCode.INT, np.dtype("<i4")),
    )
    images = rng.integers(0, 256, (n + 1, 6, 5), dtype=np.uint8)
    names = [f"n{i:03d}".encode() for i in range(n)]
    labels = rng.integers(0, 9, n + 1).astype(np.int32)

    def page(count, texts):
        columns = {
            "IMAGE": Dense(images[:count]),
            "NAME": Runs.from_bytes(texts),
            "LABEL": Dense(labels[:count]),
        }
        return encode_entries(Schema("T", KEY, fields), Batch(Dense(np.arange(count)), columns))

    fixed, general = page(n, names), page(n + 1, [*names, b"longer"])
    assert b"".join(fixed.entries(0, n)) == b"".join(general.entries(0, n))
    assert len(set(np.diff(fixed.ends).tolist())) == 1


@pytest.mark.parametrize("length", [200, 226, 300, 65_500, 65_600])
def test_offsets_take_the_smallest_width_that_fits(length):
    """Java takes one byte up to offset 255 and two up to 65,535."""
    fields = (
        Field("DATA", TypeCode.BYTE_ARRAY, BYTES),
        Field("N", TypeCode.INT, np.dtype("<i4")),
    )
    columns = {
        "DATA": Runs.from_bytes([b"x" * length, b""]),
        "N": Dense(np.array([1, 2], np.int32)),
    }
    page = encode_entries(Schema("T", KEY, fields), Batch(Dense(np.arange(2)), columns))
    last_offset = 24 + 5 + length
    width = 1 if last_offset < 256 else 2 if last_offset < 65_536 else 4
    value = b"".join(page.entries(0, 1))[9:]
    assert len(value) == 24 + 5 + length + 5 + 2 * width
    assert value[-2 * width :] == (24).to_bytes(width, "little") + last_offset.to_bytes(
        width, "little"
    )


def test_nested_objects_and_object_keys_carry_their_own_hash():
    inner = (Field("A", TypeCode.INT, np.dtype("<i4")), Field("B", TypeCode.STRING, BYTES))
    schema = Schema(
        "Outer",
        Field("key", TypeCode.OBJECT, BYTES, (), False, inner),
        (Field("BOX", TypeCode.OBJECT, BYTES, (), True, inner),),
        key_type_name="Key",
    )
    numbers = np.array([1, 2, 3], np.int32)
    texts = [b"a", b"", b"ccc"]
    part = {"A": Dense(numbers), "B": Runs.from_bytes(texts)}
    valid = np.array([True, False, True])
    page = encode_entries(schema, Batch(Struct(part), {"BOX": Struct(part, valid=valid)}))
    kinds = {"A": IntObject, "B": String}
    for i in range(3):
        values = {"A": int(numbers[i]), "B": texts[i].decode()}
        key = pyignite_object("Key", kinds, values)
        box = pyignite_object("Outer_BOX", kinds, values)
        body = b"".join(page.entries(i, i + 1))
        assert body.startswith(key)
        value = body[len(key) :]
        assert value[24 : 24 + len(box)] == box if valid[i] else value[24] == TypeCode.NULL
        end = 24 + (len(box) if valid[i] else 1)
        assert int.from_bytes(value[8:12], "little") == plain_hash(value[24:end])


def plain_hash(data: bytes) -> int:
    value = 1
    for byte in data:
        value = (31 * value + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return value


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.integers(0, 2**32), st.sampled_from([3, 60, 3000, 40_000]), st.integers(1, 30))
def test_hash_codes_of_runs_and_rows_equal_plain_python(seed, longest, count):
    flat, starts, lengths = random_runs(seed, longest, count)
    rows = [flat[p : p + k] for p, k in zip(starts, lengths, strict=True)]
    expected = [plain_hash(bytes(r)) for r in rows]
    assert hashing.hash_runs(flat, starts, lengths).tolist() == expected
    assert [int(hashing.hash_rows(r[None])[0]) for r in rows] == expected


@pytest.mark.parametrize("width", [0, 1, 1023, 1024, 1025, 4096, 150_001])
def test_rows_of_every_width_and_stride_have_the_plain_hash(width):
    table = np.random.default_rng(2).integers(0, 256, (5, width + 9), dtype=np.uint8)
    expected = [plain_hash(bytes(r)) for r in table[::2, 3 : 3 + width]]
    assert hashing.hash_rows(table[::2, 3 : 3 + width]).tolist() == expected


@pytest.mark.parametrize("width", [1, 7, 1024, 4095, 4096, 4097, 5119, 8192, 150_001])
def test_both_hashes_at_once_are_those_of_one_after_the_other(width):
    rows = np.random.default_rng(5).integers(0, 256, (3, width), dtype=np.uint8)
    codes, hashes = hashing.both_hashes(rows)
    assert codes.tolist() == [plain_hash(bytes(r)) for r in rows]
    assert hashes.tolist() == [plain_row_hash(bytes(r)) for r in rows]


def test_hashes_that_come_with_a_page_give_the_same_checksum():
    width, n = 70_000, 3
    images = np.random.default_rng(8).integers(0, 256, (n, width), dtype=np.uint8)
    schema = Schema("T", KEY, (Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), (width,)),))

    def rows(values):
        return Batch(Dense(np.arange(n)), {"IMAGE": Dense(values)})

    page = encode_entries(schema, rows(images))
    ((place, hashes),) = page.row_hashes.items()
    expected = checksum(schema, rows(images))
    assert checksum(schema, rows(images), page.row_hashes) == expected
    assert checksum(schema, rows(images), {place: hashes + np.uint64(1)}) != expected  # it is used
    # Of other rows than those of the page they are not.
    others = images[::-1].copy()
    assert checksum(schema, rows(others), page.row_hashes) == checksum(schema, rows(others))
    part = rows(images)[:2]
    assert checksum(schema, part, page.row_hashes) == checksum(schema, part)


@pytest.mark.parametrize("longest", [2, 9, 700, 1025, 9000])
def test_every_kind_of_processor_hashes_alike(longest):
    flat, *runs = random_runs(longest, longest, 100)
    rows = flat[: len(flat) // 3 * 3].reshape(3, -1)
    numbers = np.arange(longest, dtype=np.uint64)

    def hashes(kind):
        _native.hash_as(kind)
        found = (
            *hashing.both_hashes(rows), hashing.hash_runs(flat, *runs),
            hashing.row_hash_runs(flat, *runs), hashing.mix(numbers, 5),
        )  # fmt: skip
        return [each.tolist() for each in found]

    this = _native.hash_as(0)
    try:
        kinds = [hashes(kind) for kind in range(this + 1)]
    finally:
        _native.hash_as(this)
    assert all(each == kinds[0] for each in kinds)
    assert kinds[0][0] == [plain_hash(bytes(row)) for row in rows]


@pytest.mark.parametrize("run", [(-1, 2), (3, -1), (8, 3), (2**62, 2**62), (11, 0)])
def test_runs_beyond_their_bytes_are_refused(run):
    starts, lengths = np.array([[0, run[0]], [4, run[1]]], np.int64)
    for function in (hashing.hash_runs, hashing.row_hash_runs):
        with pytest.raises(ValueError, match="reaches beyond"):
            function(np.zeros(10, np.uint8), starts, lengths)


def test_arrays_that_do_not_fit_are_refused():
    bytes_, runs, four = np.zeros(80, np.uint8), np.zeros(4, np.int64), np.zeros(4, np.uint32)
    rows = np.zeros((4, 20), np.uint8)
    for words in ((bytes_, runs, runs[:3], four), (bytes_, runs, runs, four[:3])):
        with pytest.raises(ValueError):
            _native.hash_runs(*words)
    with pytest.raises(ValueError):
        _native.hash_runs(bytes_, runs, bytes_[1:33], four)  # not where an int64 may be
    for wrong in (rows.T, rows.view(np.uint16), bytes_):
        with pytest.raises(ValueError):
            _native.hash_rows(wrong, np.zeros(len(wrong), np.uint32))
    with pytest.raises(ValueError):
        _native.both_hashes(rows, four, runs[:3].view(np.uint64))
    with pytest.raises(ValueError):
        _native.mix(runs, 0, four)


def random_runs(seed, longest, count):
    """Runs of a flat buffer in rising order, some empty, with gaps between them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, count)
    starts = np.cumsum(lengths + rng.integers(0, 9, count)) - lengths
    return rng.integers(0, 256, int(starts[-1] + lengths[-1]), dtype=np.uint8), starts, lengths


def plain_row_hash(data: bytes) -> int:
    mask = (1 << 64) - 1
    padded = data + bytes(-len(data) % 8)
    value, weight = len(data), 1
    for at in range(0, len(padded), 8):
        value += int.from_bytes(padded[at : at + 8], "little") * weight
        weight = weight * 0x9E3779B97F4A7C15 & mask
    return plain_mix(value & mask)


def plain_mix(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.integers(0, 2**32), st.sampled_from([3, 60, 3000, 40_000]), st.integers(1, 30))
def test_row_hashes_of_runs_and_rows_equal_plain_python(seed, longest, count):
    flat, starts, lengths = random_runs(seed, longest, count)
    rows = [flat[p : p + k] for p, k in zip(starts, lengths, strict=True)]
    expected = [plain_row_hash(bytes(r)) for r in rows]
    assert hashing.row_hash_runs(flat, starts, lengths).tolist() == expected
    assert [int(hashing.row_hash_rows(r[None])[0]) for r in rows] == expected


@pytest.mark.parametrize("width", [*range(9), 784, 4095, 4096, 4097, 4104, 40_963])
def test_rows_of_every_width_and_stride_have_the_plain_row_hash(width):
    table = np.random.default_rng(4).integers(0, 256, (5, width + 9), dtype=np.uint8)
    expected = [plain_row_hash(bytes(r)) for r in table[::2, 3 : 3 + width]]
    assert hashing.row_hash_rows(table[::2, 3 : 3 + width]).tolist() == expected


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 2**64 - 1))
def test_mixed_numbers_equal_plain_python(numbers, salt):
    values = np.array([[n, 0] for n in numbers], np.uint64).reshape(-1, 2)[:, 0]
    found = hashing.mix(values, salt)
    assert found.tolist() == [plain_mix(n ^ salt) for n in numbers]


def test_pieces_hold_every_entry_once_and_keep_to_the_limit():
    fields = (Field("DATA", TypeCode.BYTE_ARRAY, BYTES),)
    items = [b"x" * size for size in (10, 500, 3, 3, 3, 900, 1)]
    page = encode_entries(
        Schema("T", KEY, fields),
        Batch(Dense(np.arange(7)), {"DATA": Runs.from_bytes(items)}),
    )
    pieces = list(page.pieces(200))
    assert sum(count for count, _ in pieces) == 7
    assert b"".join(b"".join(views) for _, views in pieces) == bytes(page.data)
    assert all(count == 1 or sum(map(len, views)) <= 200 for count, views in pieces)


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (Field("F", TypeCode.INT, np.dtype("<i4")), Dense(np.array([2**40])), "int64"),
        (Field("F", TypeCode.UUID, BYTES), Runs.from_bytes([b"zz"]), "not a UUID"),
        (Field("F", TypeCode.DECIMAL, BYTES), Runs.from_bytes([b"1,5"]), "not a decimal"),
        (
            Field("F", TypeCode.INT_ARRAY, np.dtype("<i4"), (3,)),
            Dense(np.zeros((1, 2), np.int32)),
            "shape",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(field, column, message):
    with pytest.raises(SchemaError, match=message):
        encode_entries(Schema("T", KEY, (field,)), Batch(Dense(np.arange(1)), {"F": column}))


def test_dates_and_times_take_milliseconds_and_timestamps_nanoseconds():
    fields = (
        Field("D", TypeCode.DATE, np.dtype("<i8")),
        Field("T", TypeCode.TIMESTAMP, np.dtype("<i8")),
    )
    moment = np.array([-1_500_001], np.int64)  # nanoseconds before 1970
    columns = {"D": Dense(np.array([86_400_000])), "T": Dense(moment)}
    value = bytes(
        encode_entries(Schema("R", KEY, fields), Batch(Dense(np.arange(1)), columns)).data
    )[9:]
    assert value[24:33] == bytes([TypeCode.DATE]) + (86_400_000).to_bytes(8, "little")
    assert value[33] == TypeCode.TIMESTAMP
    assert int.from_bytes(value[34:42], "little", signed=True) == -2
    assert int.from_bytes(value[42:46], "little") == 499_999


def test_a_plain_value_is_no_binary_object():
    schema = Schema(None, KEY, (Field("val", TypeCode.STRING, BYTES),))
    page = encode_entries(schema, Batch(Dense(np.array([5])), {"val": Runs.from_bytes([b"hi"])}))
    assert bytes(page.data) == pyignite_bytes(LongObject, 5) + pyignite_bytes(String, "hi")


def test_uuid_and_decimal_are_written_as_java_does():
    number = uuid.UUID("12345678-1234-5678-9abc-def012345678")
    page = encode_entries(
        Schema(None, KEY, (Field("val", TypeCode.UUID, BYTES),)),
        Batch(Dense(np.array([1])), {"val": uuids([number])}),
    )
    assert bytes(page.data)[10:] == number.bytes[7::-1] + number.bytes[:7:-1]
    page = encode_entries(
        Schema(None, KEY, (Field("val", TypeCode.DECIMAL, BYTES),)),
        Batch(Dense(np.array([1])), {"val": decimals([decimal.Decimal("-12.80")])}),
    )
    # Scale 2 as written (Java keeps trailing zeros), 1280 = 0x0500 with the sign on top.
    assert bytes(page.data)[9:] == b"\x1e" + b"\x02\0\0\0" + b"\x02\0\0\0" + b"\x85\x00"


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 30_000), st.integers(1, 1 << 20), st.booleans())
def test_the_requests_of_a_page_are_its_entries(count, most_bytes, texts):
    """In order, and none has more bytes or entries than a node takes well at a time."""
    fields = (
        Field("A", TypeCode.STRING if texts else TypeCode.LONG, BYTES if texts else KEY.dtype),
    )
    values = Runs.from_bytes([b"x" * (i % 37) for i in range(count)]) if texts else None
    column = values or Dense(np.arange(count))
    page = encode_entries(Schema("T", KEY, fields), Batch(Dense(np.arange(count)), {"A": column}))
    found = [(n, b"".join(views)) for n, views in page.pieces(most_bytes)]
    assert b"".join(data for _, data in found) == b"".join(page.entries(0, count))
    assert sum(n for n, _ in found) == count
    assert all(n <= 8192 and (len(data) <= most_bytes or n == 1) for n, data in found)
