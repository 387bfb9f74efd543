import datetime as dt
import decimal
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from source_helpers import batch_sizes, check_resume, everything, same

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources import KINDS, open_source, records
from ignitetf.load.sources.base import MAX_SKIPPED, RUNNING_KEY
from ignitetf.load.sources.values import column_of, field_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import Schema, field_for

ROWS = [
    {
        "id": 100 - i,
        "image": np.full((2, 3), i, np.uint8),
        "score": i / 2,
        "name": f"é{i}",
        "blob": bytes([i]) * i,
        "flag": i % 2 == 0,
        "words": [f"w{k}" for k in range(i % 3)],
        "boxes": np.zeros((i % 3, 4), np.float32) + i,
        "maybe": None if i % 2 else i,
        "when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i),
        "day": dt.date(1970, 1, 1 + i),
        "price": decimal.Decimal("1.50") * i,
    }
    for i in range(8)
]


def test_dicts_become_columns():
    source = open_source("records", ROWS)
    kinds = {f.name: (f.type, f.shape, f.nullable) for f in source.schema.fields}
    assert kinds == {
        "ID": (TypeCode.LONG, (), False),
        "IMAGE": (TypeCode.BYTE_ARRAY, (2, 3), False),
        "SCORE": (TypeCode.DOUBLE, (), False),
        "NAME": (TypeCode.STRING, (), False),
        "BLOB": (TypeCode.BYTE_ARRAY, (), False),
        "FLAG": (TypeCode.BOOL, (), False),
        "WORDS": (TypeCode.STRING_ARRAY, (None,), False),
        "BOXES": (TypeCode.FLOAT_ARRAY, (None, 4), False),
        "MAYBE": (TypeCode.LONG, (), True),
        "WHEN": (TypeCode.TIMESTAMP, (), False),
        "DAY": (TypeCode.DATE, (), False),
        "PRICE": (TypeCode.DECIMAL, (), False),
    }
    got = everything(source)
    assert got["key"] == list(range(8))
    for i, row in enumerate(ROWS):
        assert got["ID"][i] == row["id"]
        assert np.array_equal(got["IMAGE"][i], row["image"])
        assert got["NAME"][i].decode() == row["name"]
        assert got["BLOB"][i] == row["blob"]
        assert got["WORDS"][i] == [w.encode() for w in row["words"]]
        assert np.array_equal(got["BOXES"][i].reshape(-1, 4), row["boxes"])
        assert got["MAYBE"][i] == row["maybe"]
        assert got["WHEN"][i] == int(row["when"].timestamp()) * 10**9
        assert got["DAY"][i] == i * 86_400_000
        assert decimal.Decimal(got["PRICE"][i].decode()) == row["price"]
    assert source.rows == 8
    check_resume(source, max_bytes=1)


def test_a_function_may_give_the_records():
    source = open_source("records", lambda: (dict(row) for row in ROWS), rows=8)
    assert same(everything(source), everything(open_source("records", ROWS)))
    check_resume(source, max_bytes=200)


def test_of_large_records_few_are_held_to_infer_types(monkeypatch):
    monkeypatch.setattr(records, "SAMPLE_BYTES", 1000)
    taken = []

    def numbered():
        for i in range(50):
            taken.append(i)
            yield {"X": np.full(100, i)}

    source = open_source("records", numbered())
    assert len(taken) == len(source.sample) == 2
    assert everything(source)["X"][-1].tolist() == [49] * 100


def test_an_iterator_is_read_once():
    source = open_source("records", iter(ROWS))
    assert everything(source)["key"] == list(range(8))
    with pytest.raises(SourceError, match="was already read") as caught:
        everything(source)
    assert "function" in caught.value.hint


def test_a_field_may_be_the_key():
    source = open_source("records", ROWS, key="id")
    assert everything(source)["key"] == [100 - i for i in range(8)]
    assert open_source("records", ROWS, key="name").schema.key.type == TypeCode.STRING
    with pytest.raises(ConfigError, match="cannot be the key"):
        open_source("records", ROWS, key="score")


BAD = [
    ({"a": "x"}, "field A"),
    ({"a": 1.5}, "field A: float instead of int64"),
    ({"a": 2**63}, "field A"),
    ({"a": [1]}, "field A: shape"),
    ({}, "field A: null"),
    ("text", "expected a dict"),
    ({"a": "7"}, "field A"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD)
def test_a_record_that_does_not_fit_is_bad(wrong, words):
    items = [{"a": i} for i in range(150)] + [wrong] + [{"a": i} for i in range(3)]
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("records", items))
    assert "record 150" in str(caught.value)
    source = open_source("records", items, bad_records="skip")
    got = everything(source)
    assert got["key"] == [*range(150), 151, 152, 153]
    assert [r.name for r in source.skipped] == ["record 150"]
    check_resume(source, max_bytes=400)


def test_endless_bad_records_end_the_load():
    items = [{"a": 1}] * 100 + [{"a": "x"}] * (MAX_SKIPPED + 1)
    with pytest.raises(SourceError, match="records were skipped"):
        everything(open_source("records", items, bad_records="skip"))


def test_an_iterable_that_fails():
    def items():
        yield {"a": 1}
        raise OSError("disk\nfull")

    with pytest.raises(SourceError, match="disk full"):
        everything(open_source("records", items))


def test_column_batches():
    schema = Schema("T", RUNNING_KEY, (field_for("X", np.dtype(np.float32), (2,)),))
    arrays = [np.full((n, 2), n, np.float32) for n in (3, 1, 4)]
    batches = [Batch(None, {"X": Dense(a)}) for a in arrays]
    source = open_source("records", batches, schema=schema)
    got = everything(source)
    assert got["key"] == list(range(8))
    assert np.array_equal(np.stack(got["X"]), np.concatenate(arrays))
    check_resume(source, max_bytes=16)
    keyed = [Batch(Dense(np.array([5, 7])), {"X": Dense(np.ones((2, 2), np.float32))})]
    assert everything(open_source("records", keyed, schema=schema))["key"] == [5, 7]
    with pytest.raises(ConfigError, match="need a schema"):
        open_source("records", batches)
    with pytest.raises(SourceError, match="lacks the column"):
        everything(open_source("records", [Batch(Dense(np.arange(2)), {})], schema=schema))
    uneven = Batch(Dense(np.arange(2)), {"X": Dense(np.ones((3, 2), np.float32))})
    with pytest.raises(SourceError, match="differs in length"):
        everything(open_source("records", [uneven], schema=schema))


def test_arrays_by_name():
    arrays = {
        "image": np.arange(60, dtype=np.uint8).reshape(5, 3, 4),
        "label": [1, 2, 3, 4, 5],
        "name": np.array(["a", "b", "é", "", "e"]),
        "mixed": np.array([b"x", None, b"yy", b"", b"z"], object),
    }
    source = open_source("records", arrays, class_names=["a", "b"])
    got = everything(source)
    assert np.array_equal(np.stack(got["IMAGE"]), arrays["image"])
    assert got["LABEL"] == [1, 2, 3, 4, 5]
    assert got["NAME"][2] == "é".encode()
    assert got["MIXED"] == [b"x", None, b"yy", b"", b"z"]
    assert source.class_names == ["a", "b"]
    check_resume(source, max_bytes=40)
    assert max(batch_sizes(source, 100)) <= 120
    with pytest.raises(SourceError, match="differ in length: A 2, B 3"):
        open_source("records", {"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(ConfigError, match="not a SQL identifier"):
        open_source("records", {"a b": [1, 2]})


def test_times_and_texts_of_numpy_and_python_are_what_they_are():
    import datetime as dt

    far = [
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(1, 1, 1),
        dt.datetime(2020, 1, 1),
    ]
    wanted = [(253_402_300_799_999, 999_000), (-62_135_596_800_000, 0), (1_577_836_800_000, 0)]
    sources = [open_source("records", [{"t": t} for t in far])]
    sources += [
        open_source("records", {"t": far}),
        open_source("records", {"t": np.array(far, "M8[us]")}),
    ]
    for source in sources:
        assert [(int(v["ms"]), int(v["ns"])) for v in everything(source)["T"]] == wanted
    days = open_source("records", {"t": np.array(["9999-12-31", "0001-01-01"], "M8[D]")})
    assert [int(v["ms"]) for v in everything(days)["T"]] == [253_402_214_400_000, wanted[1][0]]
    with pytest.raises(SourceError, match="out of range"):
        everything(open_source("records", {"t": np.array(["10000-01-01"], "M8[s]")}))
    kind = np.dtypes.StringDType(na_object=np.nan)
    texts = np.array(["a", "a long text " * 9, np.nan], kind)
    assert everything(open_source("records", {"t": texts}))["T"] == [b"a", texts[1].encode(), None]
    pairs = np.array([["a", "b"], ["c", ""]], np.dtypes.StringDType())
    assert everything(open_source("records", {"t": pairs}))["T"] == [[b"a", b"b"], [b"c", b""]]


def test_refused_records():
    for wrong in (5, "path", None):
        with pytest.raises(ConfigError, match="not an iterable"):
            open_source("records", wrong)
    with pytest.raises(SourceError, match="no records"):
        open_source("records", [])
    for sample in ([{"a": {}}], [{"a": 1}, {"a": "x"}], [{"a": [[1], 2]}]):
        with pytest.raises((SchemaError, SourceError)):
            open_source("records", sample)


def test_an_empty_source_with_a_schema():
    schema = Schema("T", RUNNING_KEY, (field_for("X", np.dtype(np.int32)),))
    assert everything(open_source("records", [], schema=schema))["key"] == []


def test_fingerprints_follow_the_data():
    def of(rows):
        return open_source("records", rows).fingerprint()

    assert of(ROWS) == of([dict(row) for row in ROWS])
    assert of(ROWS) != of(ROWS[:-1])
    assert of({"a": [1, 2]}) != of({"a": [1, 3]})
    assert open_source("records", ROWS, fingerprint="v1").fingerprint() != of(ROWS)


@given(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3), elements=st.integers(0, 255)),
    st.data(),
)
def test_a_changed_byte_of_an_array_changes_its_fingerprint(array, data):
    def of(values):
        return open_source("records", {"X": values}).fingerprint()

    place = tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)
    other = array.copy()
    other[place] ^= data.draw(st.integers(1, 255))
    assert of(array) == of(np.asfortranarray(array)) != of(other)
    assert of(array) != of(array[None])


def test_of_a_large_array_pieces_of_every_part_count():
    array = np.zeros((200, 1 << 20), np.uint8)
    prints = set()
    for row in range(0, 200, -(-200 // 64)):
        array[row, row] ^= 1
        prints.add(open_source("records", {"X": array}).fingerprint())
    assert len(prints) == 50


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from(["i1", "u1", "i4"]))
@settings(max_examples=200, deadline=None)
def test_integers_are_kept_or_refused(numbers, dtype):
    field = field_for("X", np.dtype(dtype))
    limits = np.iinfo(dtype)
    if all(limits.min <= n <= limits.max for n in numbers):
        assert column_of(field, numbers).values.tolist() == numbers
    else:
        with pytest.raises(SchemaError):
            column_of(field, numbers)


value = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.floats(), st.booleans()
)


@given(st.lists(value, min_size=1))
@settings(max_examples=300, deadline=None)
def test_a_sample_fits_its_own_field_or_is_refused(sample):
    try:
        field = field_of("X", sample)
    except SchemaError:
        return
    try:
        assert len(column_of(field, sample)) == len(sample)
    except (SchemaError, UnicodeEncodeError):
        assert len({type(v) for v in sample}) > 1 or any(str(v)[:1] >= "\ud800" for v in sample)


def test_every_kind_opens_something_that_is_there():
    import importlib
    import inspect

    for kind in KINDS.values():
        module = importlib.import_module(f"ignitetf.load.sources.{kind.module}")
        taken = inspect.signature(getattr(module, kind.function)).parameters
        assert {option.name for option in kind.options} <= set(taken)
        assert "split" in taken or not kind.splits


def test_sources_load_neither_tensorflow_nor_pyarrow():
    import subprocess
    import sys

    code = (
        "import sys, ignitetf.load.sources.records, ignitetf.load.sources.tfrecord, "
        "ignitetf.load.sources.csvfile, ignitetf.load.sources.voc; "
        "print({'tensorflow', 'pyarrow', 'pyignite', 'google.protobuf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_lists_of_lists_of_any_length_are_kept():
    rows = [
        {"n": [[1], [2, 3]], "t": [["a"], []], "d": [[[1.5], []]], "s": [[1, 2], [3, 4]]},
        {"n": [], "t": [["b", "c"]], "d": [], "s": [[5, 6], [7, 8]]},
        {"n": [[4, 5, 6]], "t": [], "d": [[[2.5, 3]], []], "s": [[9, 1], [2, 3]]},
    ]
    source = open_source("records", rows)
    got = everything(source)
    for name in "ntd":
        shown = json.loads(json.dumps(got[name.upper()], default=plain))
        assert shown == [row[name] for row in rows]
    assert source.schema["S"].shape == (2, 2)
    with pytest.raises(SchemaError, match="a list of int, list"):
        open_source("records", [{"n": [[1], 2]}])


def plain(value):
    return value.decode() if isinstance(value, bytes) else value.tolist()
