"""Arrays of Arrow have the values of their columns, in every type that these can have."""

import datetime as dt
import itertools

import numpy as np
import pytest

from ignitetf.errors import WireError
from ignitetf.wire.arrow import array_of, arrow_field, meant_type
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Dense, Runs, Struct
from ignitetf.wire.schema import BYTES, Field

pa = pytest.importorskip("pyarrow")

ROWS = 7
MARKS = np.arange(ROWS) % 3 != 1
DAY = 86_400_000
TEXTS = [b"a", b"", "Zürich".encode(), b"x" * 70, b"b", b"", b"c"]
NUMBERS = np.arange(ROWS * 6, dtype=np.int16)
OFFSETS = np.array([0, 6, 6, 12, 30, 36, 36, 42])
PLANES = NUMBERS.reshape(ROWS, 2, 3)


def lists(flat):
    return [flat[p:q] for p, q in itertools.pairwise(OFFSETS)]


CASES = {
    "numbers": (Dense(NUMBERS[::6]), pa.int16(), NUMBERS[::6].tolist()),
    "bool": (Dense(MARKS), pa.bool_(), MARKS.tolist()),
    "days": (
        Dense(np.arange(ROWS) * DAY),
        pa.date32(),
        [dt.date(1970, 1, 1 + i) for i in range(ROWS)],
    ),
    "days before 1970": (Dense(np.arange(ROWS) - DAY), pa.date32(), [dt.date(1969, 12, 31)] * ROWS),
    "times of day": (
        Dense(np.arange(ROWS) * 1000),
        pa.time32("ms"),
        [dt.time(0, 0, i) for i in range(ROWS)],
    ),
    "moments": (
        Dense(np.arange(ROWS) * 1000),
        pa.timestamp("ms"),
        [dt.datetime(1970, 1, 1, 0, 0, i) for i in range(ROWS)],
    ),
    "moments of a zone": (
        Dense(np.arange(ROWS)),
        pa.timestamp("s", "UTC"),
        [dt.datetime(1970, 1, 1, 0, 0, i, tzinfo=dt.UTC) for i in range(ROWS)],
    ),
    "planes": (Dense(PLANES), pa.list_(pa.list_(pa.int16(), 3), 2), PLANES.tolist()),
    "flat planes": (Dense(PLANES), pa.list_(pa.int16(), 6), PLANES.reshape(ROWS, 6).tolist()),
    "nothing": (
        Dense(np.zeros((ROWS, 2, 0), "i2")),
        pa.list_(pa.list_(pa.int16(), 0), 2),
        [[[], []]] * ROWS,
    ),
    "pixels": (
        Dense(PLANES.astype(np.uint8)),
        pa.binary(6),
        [p.astype("u1").tobytes() for p in PLANES],
    ),
    "texts": (Runs.from_bytes(TEXTS), pa.large_string(), [t.decode() for t in TEXTS]),
    "blobs": (Runs.from_bytes(TEXTS), pa.large_binary(), TEXTS),
    "lists": (
        Runs.from_offsets(Dense(NUMBERS), OFFSETS),
        pa.large_list(pa.int16()),
        lists(NUMBERS.tolist()),
    ),
    "lists of rows": (
        Runs.from_offsets(Dense(NUMBERS), OFFSETS),
        pa.large_list(pa.list_(pa.int16(), 3)),
        [np.reshape(v, (-1, 3)).tolist() for v in lists(NUMBERS)],
    ),
    "lists of pairs": (
        Runs.from_offsets(Dense(NUMBERS.reshape(-1, 2)), OFFSETS // 2),
        pa.large_list(pa.list_(pa.int16(), 2)),
        [np.reshape(v, (-1, 2)).tolist() for v in lists(NUMBERS)],
    ),
    "lists of texts": (
        Runs.from_offsets(Runs.from_bytes(TEXTS * 6), OFFSETS),
        pa.large_list(pa.large_string()),
        lists([t.decode() for t in TEXTS * 6]),
    ),
    "lists with nulls": (
        Runs.from_offsets(Dense(NUMBERS, NUMBERS % 2 == 0), OFFSETS),
        pa.large_list(pa.int16()),
        lists([n if n % 2 == 0 else None for n in NUMBERS.tolist()]),
    ),
    "objects": (
        Struct({"a": Dense(NUMBERS[:ROWS]), "b": Struct({"t": Runs.from_bytes(TEXTS)})}),
        pa.struct({"a": pa.int16(), "b": pa.struct({"t": pa.large_binary()})}),
        [{"a": i, "b": {"t": t}} for i, t in enumerate(TEXTS)],
    ),
    "objects without fields": (Struct({}, np.ones(ROWS, bool)), pa.struct([]), [{}] * ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_an_array_has_the_values_of_its_column(name):
    column, kind, expected = CASES[name]
    order = np.array([3, 0, 6, 3], np.int64)
    for marks in (None, MARKS, np.ones(ROWS, bool)):
        marked = column.marked(marks) if marks is not None or column.valid is None else column
        there = [True] * ROWS if marks is None else marks.tolist()
        values = [v if ok else None for v, ok in zip(expected, there, strict=True)]
        for cut, wanted in (
            (marked, values),
            (marked[2:], values[2:]),
            (marked[:0], []),
            (marked[::-1], values[::-1]),
            (marked[order], [values[i] for i in order]),
        ):
            array = array_of(pa, cut, kind)
            array.validate(full=True)
            assert array.type == kind and array.to_pylist() == wanted


def test_memory_is_shared_where_the_type_has_its_layout():
    for column, kind in (
        (Dense(NUMBERS), pa.int16()),
        (Dense(NUMBERS.astype(np.int64)), pa.timestamp("ns")),
        (Dense(PLANES), pa.list_(pa.list_(pa.int16(), 3), 2)),
    ):
        array = array_of(pa, column[2:], kind)
        while pa.types.is_fixed_size_list(array.type):
            array = array.flatten()
        assert array.buffers()[1].address == column[2:].values.ctypes.data
    blobs = Runs.from_bytes(TEXTS)
    assert array_of(pa, blobs[2:], pa.large_binary()).buffers()[2].address == (
        blobs.values.ctypes.data + 1
    )


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80"])
def test_a_text_that_is_not_utf8_is_refused_as_a_text_alone(raw):
    column = Runs.from_bytes([b"a", raw])
    assert array_of(pa, column, pa.large_binary()).to_pylist() == [b"a", raw]
    with pytest.raises(WireError, match="not UTF-8"):
        array_of(pa, column, pa.large_string())
    listed = Runs.from_offsets(column, np.array([0, 2]))
    with pytest.raises(WireError, match="not UTF-8"):
        array_of(pa, listed, pa.large_list(pa.large_string()))


@pytest.mark.parametrize(
    ("code", "dtype", "kind", "meant"),
    [
        (TypeCode.STRING, BYTES, pa.large_binary(), pa.large_string()),
        (TypeCode.UUID, BYTES, pa.large_binary(), pa.large_string()),
        (TypeCode.DECIMAL, BYTES, pa.large_binary(), pa.large_string()),
        (TypeCode.BYTE_ARRAY, BYTES, pa.large_binary(), pa.large_binary()),
        (
            TypeCode.STRING_ARRAY,
            BYTES,
            pa.large_list(pa.large_binary()),
            pa.large_list(pa.large_string()),
        ),
        (TypeCode.TIMESTAMP, "datetime64[us]", pa.int64(), pa.timestamp("us", "UTC")),
        (TypeCode.TIMESTAMP, "i8", pa.int64(), pa.timestamp("ns", "UTC")),
        (TypeCode.DATE, "i8", pa.int64(), pa.timestamp("ms", "UTC")),
        (TypeCode.TIME, "i8", pa.int64(), pa.time32("ms")),
        (TypeCode.LONG, "i8", pa.int64(), pa.int64()),
        (TypeCode.UUID, "u8", pa.list_(pa.uint64(), 2), pa.list_(pa.uint64(), 2)),
    ],
)
def test_texts_and_times_have_types_of_their_own(code, dtype, kind, meant):
    field = Field("F", code, np.dtype(dtype))
    assert meant_type(pa, field, kind, "UTC") == meant
    noted = arrow_field(pa, field, meant, nullable=False)
    assert b'"name": "F"' in noted.metadata[b"ignitetf"] and not noted.nullable
