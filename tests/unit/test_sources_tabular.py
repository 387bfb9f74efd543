import datetime as dt
import decimal
import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_helpers import batch_sizes, check_resume, everything, same

from ignitetf.errors import ConfigError, MissingExtra, SourceError
from ignitetf.load.sources import open_source
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PEOPLE = """id,Name,age,height,active,born,seen
7,Ann,31,1.75,true,1990-02-28,2024-02-29 12:00:00
3,"Bob, ""B"" é",,nan,false,,1969-12-31 23:59:59.5
9,,45, 1.6 ,,1969-12-31,
"""


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE, encoding="utf-8")
    return path


def test_csv_types_and_nulls(people):
    source = open_source("csv", people)
    assert source.schema.type_name == "People"
    kinds = {f.name: (f.type, f.dtype, f.nullable) for f in source.schema.fields}
    assert kinds == {
        "ID": (TypeCode.LONG, np.int64, True),
        "NAME": (TypeCode.STRING, BYTES, True),
        "AGE": (TypeCode.LONG, np.int64, True),
        "HEIGHT": (TypeCode.DOUBLE, np.float64, True),
        "ACTIVE": (TypeCode.BOOL, np.bool_, True),
        "BORN": (TypeCode.DATE, np.int64, True),
        "SEEN": (TypeCode.TIMESTAMP, np.int64, True),
    }
    got = everything(source)
    day = 86_400_000
    assert got == {
        "key": [0, 1, 2],
        "ID": [7, 3, 9],
        "NAME": [b"Ann", 'Bob, "B" é'.encode(), b""],
        "AGE": [31, None, 45],
        "HEIGHT": [1.75, None, 1.6],
        "ACTIVE": [True, False, None],
        "BORN": [dt.date(1990, 2, 28).toordinal() * day - 719163 * day, None, -day],
        "SEEN": [1_709_208_000_000_000_000, -500_000_000, None],
    }
    assert source.rows == 3
    check_resume(source, max_bytes=1)


def test_csv_key_column(people):
    source = open_source("csv", people, key="ID")
    assert source.key_name == "ID"
    assert "ID" not in source.schema.names
    assert everything(source)["key"] == [7, 3, 9]
    source = open_source("csv", people, key="name")
    assert source.schema.key.type == TypeCode.STRING
    assert everything(source)["key"][0] == b"Ann"
    for wrong, words in (("none", "no column"), ("height", "cannot be the key")):
        with pytest.raises(ConfigError, match=words):
            open_source("csv", people, key=wrong)
    with pytest.raises(SourceError, match="row 3: the key AGE is null"):
        everything(open_source("csv", people, key="age"))
    source = open_source("csv", people, key="age", bad_records="skip")
    assert everything(source)["key"] == [31, 45]
    assert source.skipped[0].reason == "the key AGE is null"


def test_csv_declared_types(people):
    source = open_source(
        "csv", people, types="ID:int, age:double, height:decimal(6,2),born:varchar"
    )
    assert source.schema["ID"].dtype == np.int32
    assert source.schema["HEIGHT"].type == TypeCode.DECIMAL
    got = everything(source)
    assert got["AGE"] == [31.0, None, 45.0]
    assert [None if v is None else decimal.Decimal(v.decode()) for v in got["HEIGHT"]] == [
        decimal.Decimal("1.75"),
        None,
        decimal.Decimal("1.60"),
    ]
    assert got["BORN"][0] == b"1990-02-28"
    with pytest.raises(ConfigError, match="unknown type 'strnig'"):
        open_source("csv", people, types={"name": "strnig"})
    with pytest.raises(ConfigError, match="unknown columns in types: NMAE"):
        open_source("csv", people, types={"nmae": "varchar"})


@pytest.mark.parametrize("n", [0, 1, 5_000, 60_000])
def test_csv_of_any_length(tmp_path, n):
    path = tmp_path / "n.csv.gz"
    lines = "".join(f"{i},text {i}\n" for i in range(n))
    path.write_bytes(gzip.compress(f"A,B\n{lines}".encode(), 1))
    source = open_source("csv", path, types={"a": "bigint"})
    got = everything(source, max_bytes=100_000)
    assert got["key"] == list(range(n)) == got["A"]
    assert got["B"] == [f"text {i}".encode() for i in range(n)]
    assert max(batch_sizes(source, 100_000), default=0) <= 110_000
    assert same(
        everything(source, start=n - n // 3),
        {name: column[n - n // 3 :] for name, column in got.items()},
    )


def broken(tmp_path, bad_rows, n=200_000):
    """A CSV whose rows of these numbers are replaced by other texts."""
    lines = [f"{i},{i / 4}" for i in range(n)]
    for number, text in bad_rows.items():
        lines[number] = text
    path = tmp_path / "broken.csv"
    path.write_text("a,b\n" + "\n".join(lines) + "\n")
    return path


BAD_ROWS = {
    3: ("3", "1 columns, expected 2"),
    4: ("4,1,2", "3 columns, expected 2"),
    150_000: ("x,1", "column A: 'x' is not of type int64"),
    150_001: ("1.5,1", "column A: '1.5' is not of type int64"),
    199_998: ("1,2,3", "3 columns"),
    199_999: ("1,seven", "column B: 'seven' is not of type double"),
}


@pytest.mark.parametrize("number", BAD_ROWS)
def test_a_bad_row_is_named(tmp_path, number):
    text, words = BAD_ROWS[number]
    path = broken(tmp_path, {number: text})
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("csv", path, types={"a": "bigint", "b": "double"}))
    assert f"{path}, row {number + 2}:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_rows_are_skipped_and_leave_holes(tmp_path):
    path = broken(tmp_path, {n: text for n, (text, _) in BAD_ROWS.items()})
    source = open_source("csv", path, bad_records="skip", types={"a": "bigint", "b": "double"})
    keys = np.concatenate([b.key.values for b in source.batches()])
    expected = np.setdiff1d(np.arange(200_000), list(BAD_ROWS))
    assert np.array_equal(keys, expected)
    got = sorted((int(r.name.rpartition(" ")[2]) - 2, r.reason) for r in source.skipped)
    assert [n for n, _ in got] == list(BAD_ROWS)
    assert all(BAD_ROWS[n][1] in reason for n, reason in got)
    assert source.rows == source.position == 200_000
    for start in (4, 5, 150_000, 199_999, 200_000):
        rest = [k for b in source.batches(start) for k in b.key.values.tolist()]
        assert rest == expected[expected >= start].tolist()
        assert len(source.skipped) == sum(n >= start for n in BAD_ROWS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Empty CSV"),
        (b"a b,a-b\n1,2\n", "two columns have the same name: 'a b' and 'a-b' are both 'A_B'"),
        (b"1,2\n3,4\n", "the heading '1' is a number"),
        (b"a,A\n1,2\n", "two columns have the same name: 'a' and 'A' are both 'A'"),
        (b"a,b\n\xff\xfe,1\n", "row 2: column A"),
        (b'a,b\n"1,2\n' + b"3,4\n" * 3_000_000, "a row of more than|too large"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "row 3: a quote is not closed"),
        (b'a,b\n1,2\n3,"4', "row 3: a quote is not closed"),
        (b"a,_val\n1,2\n", "'_VAL': every table of Ignite already has"),
        ("a,b\n1,2\n".encode("utf-16-le"), "UTF-16 without a byte order mark"),
        ("имя,ж\nя,2\n".encode("utf-16-be"), "UTF-16 without a byte order mark"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not UTF-8"),
        (gzip.compress(b"a,b\n1,2\n")[:-9], "end-of-stream"),
    ],
    ids=[
        "empty",
        "space",
        "no heading",
        "twice",
        "not utf-8",
        "open quote",
        "open quote at the end",
        "cut within a quote",
        "a column of Ignite",
        "utf-16",
        "utf-16 of another script",
        "png",
        "gzip cut",
    ],
)
def test_refused_csv(tmp_path, content, words):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("csv", path, types=None))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "way_out"),
    [
        (b"a;b\n1;2\n", "--delimiter ';'"),
        (b"a\tb\n1\t2\n", r"--delimiter $'\t'"),
        (b"a,1.5\n0,1\n", "--header none"),
    ],
    ids=["semicolons", "tabs", "a record"],
)
def test_a_refused_heading_has_a_way_out(tmp_path, content, way_out):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        open_source("csv", path)
    assert way_out in caught.value.hint


def test_hexadecimal_numbers_stay_what_they_are(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a\n0x10\n0xffffffffffffffff\n")
    source = open_source("csv", path)
    assert everything(source)["A"] == [b"0x10", b"0xffffffffffffffff"]
    assert "row 2 is '0x10'" in source.notes[0]
    # Declared an integer, it is the number; one that no integer holds is not its bits.
    source = open_source("csv", path, types={"a": "bigint"}, bad_records="skip")
    assert (everything(source)["A"], len(source.skipped)) == ([16], 1)


def test_telephone_numbers_are_texts_and_numbers_with_a_sign_are_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("p,n,d\n+4917012345678,+1,+1.5\n,-2,2\n+15551234567,3,\n")
    source = open_source("csv", path)
    assert [f.type.name for f in source.schema.fields] == ["STRING", "LONG", "DOUBLE"]
    assert everything(source) == {
        "key": [0, 1, 2],
        "P": [b"+4917012345678", b"", b"+15551234567"],
        "N": [1, -2, 3],
        "D": [1.5, 2, None],
    }
    assert any("telephone" in note for note in source.notes)
    declared = open_source("csv", path, types="p:bigint")
    assert everything(declared)["P"] == [4917012345678, None, 15551234567]
    rows = ["+4917012345678\n"] * 30 + ["unknown\n", "see below\n"]
    path.write_text("p\n" + "".join(rows))
    assert everything(open_source("csv", path))["P"] == [row.strip().encode() for row in rows]
    # Behind the 4 MB from which the types are inferred.
    path.write_text("n,t\n" + f"1,{'t' * 100}\n" * 60_000 + "+4917012345678,t\n")
    with pytest.raises(SourceError, match=r"row 60002: column N: .*4917012345678"):
        everything(open_source("csv", path), max_bytes=64 << 20)


FAR_TIMES = ["9999-12-31 23:59:59.999999", "0001-01-01T00:00:00", "2020-01-01 00:00:00.123456789"]


@pytest.mark.parametrize("types", [None, "t:timestamp"])
def test_timestamps_of_the_years_1_to_9999_are_exact(tmp_path, types):
    path = tmp_path / "t.csv"
    path.write_text(
        "t,n\n" + "".join(f"{t},1\n" for t in ["2020-01-01 00:00:00.5", *FAR_TIMES, ""])
    )
    found = everything(open_source("csv", path, types=types))["T"]
    pairs = [v and (int(v["ms"]), int(v["ns"])) for v in found]
    wanted = [np.datetime64(t, "ns" if t.startswith("2") else "us") for t in FAR_TIMES]
    assert pairs[-1] is None and pairs[0] == (1_577_836_800_500, 0)
    for (ms, ns), moment in zip(pairs[1:-1], wanted, strict=True):
        assert np.datetime64(ms, "ms") + np.timedelta64(ns // 1000, "us") == moment.astype("M8[us]")
    assert pairs[3][1] == 456_789
    path.write_text("t,d\n0000-01-01 00:00:00,2020-01-01\n2020-01-01 00:00:00,0000-01-01\n")
    source = open_source("csv", path, bad_records="skip", types="t:timestamp,d:date")
    assert everything(source)["key"] == [] and len(source.skipped) == 2


def test_declared_timestamps_may_have_a_zone(tmp_path):
    path = tmp_path / "x.csv"
    moment = 1_709_208_000_000_000_000
    same = ["2024-02-29T12:00:00Z", "2024-02-29 12:00:00", "2024-02-29T17:30:00+05:30"]
    days = ["2024-02-29", "NA", "2024-02-29T07:00:00.000000001-0500"]
    path.write_text("\n".join(["a", *same, *days, "2024-02-29 25:00:00Z"]))
    source = open_source("csv", path, types="a:timestamp", bad_records="skip")
    assert everything(source)["A"] == [
        *[moment] * 3, moment - 12 * 3_600_000_000_000, None, moment + 1,
    ]  # fmt: skip
    assert [r.name.rpartition(" ")[2] for r in source.skipped] == ["8"]


def test_a_file_may_end_in_its_last_line(tmp_path):
    path = tmp_path / "x.csv"
    for content, rows in ((b"a,b", []), (b"a,b\n1,x", [b"x"]), (b'a,b\n1,"x\ny"', [b"x\ny"])):
        path.write_bytes(content)
        assert everything(open_source("csv", path))["B"] == rows


def test_a_quote_that_never_ends_takes_rows_along(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n1,x\n2,3,4\n3,"y\nz"\n4,"open\n5,6\n')
    source = open_source("csv", path, bad_records="skip")
    got = everything(source)
    assert (got["key"], got["B"]) == ([0, 2], [b"x", b"y\nz"])
    assert [r.name.rpartition(" ")[2] for r in source.skipped] == ["3", "5"]
    path.write_bytes(b'a,b\n1,x\n3,"y\nz"\n\n')
    assert everything(open_source("csv", path))["B"] == [b"x", b"y\nz"]


def test_text_that_is_not_utf8_is_a_bad_record(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\nx,1\n\xff\xfe,2\nz,3\n")
    source = open_source("csv", path, bad_records="skip", types={"a": "varchar", "b": "int"})
    assert everything(source)["key"] == [0, 2]
    assert source.skipped[0].name.endswith("row 3")
    assert "not UTF-8" in source.skipped[0].reason
    path.write_bytes(b"a,b\nx,1\n\xff\xfe,2,3\nz,\xe4\n")
    source = open_source("csv", path, bad_records="skip", types={"a": "varchar", "b": "int"})
    assert everything(source)["key"] == [0]
    assert [r.name.rpartition(" ")[2] for r in source.skipped] == ["3", "4"]


def test_without_pyarrow_the_extra_is_named(people, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for kind in ("csv", "parquet"):
        with pytest.raises(MissingExtra) as caught:
            open_source(kind, people)
        assert "ignitetf[arrow]" in caught.value.hint


def test_a_pyarrow_for_another_numpy_is_told(people, tmp_path, monkeypatch):
    import sys

    (tmp_path / "pyarrow.py").write_text("raise ImportError('pyarrow requires NumPy 2.0')\n")
    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.syspath_prepend(tmp_path)
    for kind in ("csv", "parquet"):
        with pytest.raises(MissingExtra, match=r"requires NumPy 2\.0") as caught:
            open_source(kind, people)
        assert "ignitetf[arrow,numpy1]" in caught.value.hint


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_csv_raises_source_errors_only(tmp_path, data):
    raw = bytearray(PEOPLE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.csv").write_bytes(raw)
    try:
        source = open_source("csv", tmp_path / "x.csv", bad_records="skip")
        got = everything(source)
    except SourceError as error:
        assert "\n" not in str(error)
    else:
        assert len(got["key"]) + len(source.skipped) == source.rows


TABLE = {
    "i8": pa.array([1, None, -3, 4], pa.int8()),
    "u8": pa.array([1, 255, 3, 4], pa.uint8()),
    "u32": pa.array([1, 2**32 - 1, 3, 4], pa.uint32()),
    "f4": pa.array([1.5, 2.5, None, 4.5], pa.float32()),
    "f2": pa.array(np.array([1, 2, 3, 4], np.float16)),
    "b": pa.array([True, None, False, True]),
    "s": pa.array(["a", None, "", "é"]),
    "bin": pa.array([b"\0\xff", b"", None, b"x"]),
    "d": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "dec": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-7"), decimal.Decimal(0)]),
    "ts": pa.array([dt.datetime(2024, 2, 29, 12), None, dt.datetime(1969, 12, 31), dt.datetime(1970, 1, 1)]),
    "tz": pa.array([0, 1, 2, None], pa.timestamp("ms", "Europe/Berlin")),
    "day": pa.array([dt.date(1970, 1, 2), None, dt.date(1969, 12, 31), dt.date(2024, 1, 1)]),
    "tm": pa.array([dt.time(0, 0, 1), None, dt.time(1), dt.time(0)]),
    "li": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
    "fx": pa.array([[1.0, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
    "ls": pa.array([["a", "é"], [], None, ["c"]]),
}  # fmt: skip
EXPECTED = {
    "I8": [1, None, -3, 4],
    "U8": [1, 255, 3, 4],
    "U32": [1, 2**32 - 1, 3, 4],
    "F4": [1.5, 2.5, None, 4.5],
    "F2": [1, 2, 3, 4],
    "B": [True, None, False, True],
    "S": [b"a", None, b"", "é".encode()],
    "BIN": [b"\0\xff", b"", None, b"x"],
    "D": [b"x", None, b"y", b"x"],
    "DEC": [b"1.50", None, b"-7.00", b"0.00"],
    "TS": [1_709_208_000_000_000_000, None, -86_400_000_000_000, 0],
    "TZ": [0, 1_000_000, 2_000_000, None],
    "DAY": [86_400_000, None, -86_400_000, 19_723 * 86_400_000],
    "TM": [1000, None, 3_600_000, 0],
    "LI": [[1, 2], None, [], [3]],
    "FX": [[1, 2], [3, 4], [5, 6], [7, 8]],
    "LS": [[b"a", "é".encode()], [], None, [b"c"]],
}


def write_parquet(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
@pytest.mark.parametrize("max_bytes", [1, 4 << 20])
def test_parquet_types(tmp_path, row_group_size, max_bytes):
    path = write_parquet(tmp_path / "t.parquet", TABLE, row_group_size=row_group_size)
    source = open_source("parquet", path)
    assert source.rows == 4
    assert source.schema["U8"].type == TypeCode.SHORT
    assert source.schema["LI"].shape == (None,)
    assert source.schema["FX"].shape == (2,)
    assert source.schema["LS"].type == TypeCode.STRING_ARRAY
    got = everything(source, max_bytes=max_bytes)
    assert got.pop("key") == [0, 1, 2, 3]
    plain = {
        name: [v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for v in column]
        for name, column in got.items()
    }
    assert plain == EXPECTED
    check_resume(source, max_bytes)


def test_a_column_without_nulls_is_declared_so(tmp_path):
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())])
    table = pa.table({"a": [1, 2], "b": [3, 4]}, schema)
    pq.write_table(table, tmp_path / "t.parquet")
    fields = open_source("parquet", tmp_path / "t.parquet").schema.fields
    assert [f.nullable for f in fields] == [False, True]


LISTS = {
    "texts of one number": (pa.list_(pa.string(), 2), [["a", "bc"], None, ["", "d"]]),
    "views": (pa.list_view(pa.int32()), [[1, 2], None, [], [3]]),
    "texts of Polars": (pa.large_list(pa.string_view()), [["a text of some length"], None, []]),
    "categories": (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["b", "a", "b"], None]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_any_form_are_read(name):
    kind, rows = LISTS[name]
    table = pa.table({"x": pa.array(rows * 2, kind).slice(1)})
    wanted = [row and [v.encode() if isinstance(v, str) else v for v in row] for row in rows * 2]
    found = everything(open_source("stream", table))["X"]
    assert [v.tolist() if isinstance(v, np.ndarray) else v for v in found] == wanted[1:]


def test_what_a_null_list_hides_is_not_looked_at():
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4]), pa.array([1, 2, None, 4]), mask=pa.array([False, True])
    )
    first, second = everything(open_source("stream", pa.table({"x": hidden})))["X"]
    assert (first.tolist(), second) == ([1, 2], None)


def test_parquet_resume_and_batches(tmp_path):
    n = 30_000
    path = write_parquet(
        tmp_path / "t.parquet",
        {"ID": np.arange(n)[::-1].copy(), "X": np.arange(n) / 2},
        row_group_size=7_000,
    )
    source = open_source("parquet", path, key="id")
    assert max(batch_sizes(source, 10_000)) <= 20_000
    for start in (0, 1, 7_000, 20_999, n - 1, n, n + 5):
        got = [k for b in source.batches(start, max_bytes=50_000) for k in b.key.values.tolist()]
        assert got == list(range(n))[::-1][start:]


def test_refused_parquet(tmp_path):
    def refused(words, columns):
        path = write_parquet(tmp_path / "t.parquet", columns)
        with pytest.raises(SourceError, match=words) as caught:
            everything(open_source("parquet", path))
        assert "\n" not in str(caught.value)

    refused("no Ignite type stores struct", {"a": pa.array([{"b c": 1, "b-c": 2}])})
    refused("a null inside a list", {"a": pa.array([[1, None]])})
    refused("'_VAL': every table of Ignite", {"_val": pa.array([1])})
    refused("not in range", {"a": pa.array([2**63], pa.uint64())})
    refused("out of range", {"a": pa.array([2**60], pa.timestamp("us"))})
    for name, content in (("cut", b"PAR1"), ("empty", b""), ("text", b"hello" * 99)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError):
            open_source("parquet", tmp_path / name)


@pytest.mark.parametrize("rows", [3, 4001])
def test_values_without_a_place_are_bad_records(tmp_path, rows):
    """Far times, numbers above a long and nulls in lists; the rows around them are kept."""
    wrong = {0: "null inside a list", rows // 2: "not in range", rows - 1: "out of range"}
    table = {
        "a": pa.array([[1, None if n == 0 else 2] for n in range(rows)]),
        "b": pa.array([2**64 - 1 if n == rows // 2 else n for n in range(rows)], pa.uint64()),
        "c": pa.array([10**17 if n == rows - 1 else n for n in range(rows)], pa.timestamp("ms")),
    }
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(SourceError, match=r"row 1: column A: a null inside a list"):
        everything(open_source("parquet", path))
    source = open_source("parquet", path, bad_records="skip")
    good = [n for n in range(rows) if n not in wrong]
    assert everything(source)["key"] == everything(source)["B"] == good
    found = {int(r.name.rpartition(" ")[2]) - 1: r.reason for r in source.skipped}
    assert found.keys() == wrong.keys()
    assert all(words in found[n] for n, words in wrong.items())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_parquet_raises_source_errors_only(tmp_path, data):
    out = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array([1, 2, None]), "s": pa.array(["x", "y", "z"])}), out)
    raw = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.parquet").write_bytes(raw)
    try:
        everything(open_source("parquet", tmp_path / "x.parquet"))
    except (SourceError, ConfigError) as error:
        assert "\n" not in str(error)


def test_several_files_are_one_table(tmp_path):
    for i, n in enumerate((3, 0, 4)):
        (tmp_path / f"p{i}.csv").write_text("a,b\n" + "".join(f"{i},{k}\n" for k in range(n)))
    types = {"a": "int", "b": "int"}
    source = open_source("csv", tmp_path / "*.csv", types=types)
    got = everything(source)
    assert got["key"] == list(range(7))
    assert list(zip(got["A"], got["B"], strict=True)) == [
        (0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (2, 3),
    ]  # fmt: skip
    check_resume(source, max_bytes=30)
    assert same(everything(open_source("csv", tmp_path, types=types)), got)
    fresh = open_source("csv", [tmp_path / f"p{i}.csv" for i in range(3)], types=types)
    assert everything(fresh, start=5)["key"] == [5, 6]
    (tmp_path / "p1.csv").write_text("a,b\n1\n1,2\n")
    source = open_source("csv", tmp_path, types=types, bad_records="skip")
    assert everything(source)["key"] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [r.name for r in source.skipped] == [f"{tmp_path / 'p1.csv'}, row 2"]
    check_resume(source, max_bytes=30)
    (tmp_path / "p1.csv").write_text("a,c\n1,2\n")
    with pytest.raises(SourceError, match="file 2 of 3 differs in columns") as caught:
        open_source("csv", tmp_path, types={"a": "int"})
    assert f"B is missing, C is new ({tmp_path / 'p1.csv'})" in caught.value.message
    (tmp_path / "p1.csv").write_text("b,a\n1.5,2\n")
    with pytest.raises(SourceError, match="B is double instead of long"):
        open_source("csv", tmp_path, types={"a": "int"})
    # Values go by the name of their column.
    (tmp_path / "p1.csv").write_text("b,a\n7,1\n")
    source = open_source("csv", tmp_path, types=types)
    assert everything(source) == {
        "key": list(range(8)), "A": [0, 0, 0, 1, 2, 2, 2, 2], "B": [0, 1, 2, 7, 0, 1, 2, 3],
    }  # fmt: skip
    check_resume(source, max_bytes=30)
    with pytest.raises(SourceError, match="no file matches"):
        open_source("csv", tmp_path / "q*.csv")


def test_fingerprints(people, tmp_path):
    first = open_source("csv", people).fingerprint()
    assert first == open_source("csv", people).fingerprint()
    assert first != open_source("csv", people, key="id").fingerprint()
    assert first != open_source("csv", people, types="age:double").fingerprint()
    people.write_text(PEOPLE + "1,x,1,1,true,2000-01-01,2000-01-01 00:00:00\n")
    assert first != open_source("csv", people).fingerprint()


def test_columns_are_chosen_and_renamed(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a b,C,d\n1,x,2.5\n2,y,0.5\n")
    source = open_source("csv", file, columns="a b,d", rename="a b=first,D=second", key="FIRST")
    got = everything(source)
    assert (got["key"], got["SECOND"]) == ([1, 2], [2.5, 0.5])
    assert source.schema.names == ("SECOND",)
    assert source.fingerprint() != open_source("csv", file, columns="C").fingerprint()
    for wrong in ({"rename": "C"}, {"rename": "C=x,C=y"}, {"columns": "Q"}):
        with pytest.raises(ConfigError) as caught:
            open_source("csv", file, **wrong)
        assert caught.value.hint
