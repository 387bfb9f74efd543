"""Nothing changes between a source and its columns: a value is kept, or refused with its place."""

import csv
import datetime as dt
import decimal
import io
import itertools
import math
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from source_helpers import everything

from ignitetf.errors import ConfigError, MissingExtra, SchemaError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.load.sources.filelist import readable_name
from ignitetf.load.sources.pictures import check_picture
from ignitetf.load.sources.png import sound_png
from ignitetf.load.sources.values import cast_array
from ignitetf.pictures import PictureError
from ignitetf.wire.codes import TypeCode

slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
REFUSED = (SchemaError, SourceError)

# Values


integers = st.sampled_from([0, -1, 2**53 + 1, 2**60 + 1, 2**63 - 1, 2**63, -(2**63), 2**70])
numbers = integers | st.integers(-(2**64), 2**64) | st.floats() | st.sampled_from([1e300, -0.0])
numpy_numbers = st.sampled_from(
    [np.uint8(200), np.uint64(2**63), np.int8(-1), np.float32(0.1), np.float16(1.5), np.bool_(True)]
)
scalars = (
    st.none()
    | st.booleans()
    | numbers
    | numpy_numbers
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1))
    | st.dates()
    | st.times()
)
lists = st.lists(numbers | st.booleans() | st.text(max_size=2) | st.none(), max_size=3)
arrays = st.sampled_from(
    [np.array([]), np.array([2**60 + 1]), np.array([0.5], np.float32), np.array([2**40], np.uint64)]
)
# One kind in a column, and now and then another among it.
columns = st.sampled_from([numbers, integers, st.booleans(), st.text(max_size=3), lists, arrays])
EPOCH = dt.datetime(1970, 1, 1)


def nanoseconds(found):
    """A time since 1970, which a column has as milliseconds and the rest if some are far."""
    if isinstance(found, np.void):
        return int(found["ms"]) * 10**6 + int(found["ns"])
    return int(found)


def kept(value, found):
    """Whether a value of a column is the one that was given."""
    if value is None:
        return found is None
    if isinstance(value, (list, np.ndarray)):
        return len(found) == len(value) and all(map(kept, value, found))
    if isinstance(value, str):
        return found == value.encode()
    if isinstance(value, (bytes, bytearray)):
        return found == value
    if isinstance(value, decimal.Decimal):
        return decimal.Decimal(found.decode()) == value
    if isinstance(value, dt.datetime):
        microseconds, rest = divmod(nanoseconds(found), 1000)
        return EPOCH + dt.timedelta(microseconds=microseconds) == value and rest == 0
    if isinstance(value, dt.date):
        return dt.date.fromordinal(719_163 + int(found) // 86_400_000) == value
    if isinstance(value, dt.time):
        return (dt.datetime.min + dt.timedelta(milliseconds=int(found))).time() == value
    if isinstance(value, (bool, np.bool_)) or isinstance(found, (bool, np.bool_)):
        return bool(found) is bool(value) and np.result_type(found) == np.bool_
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return math.isnan(found)
    if isinstance(value, (int, np.integer)):
        return int(found) == int(value)
    return found == value and math.copysign(1, found) == math.copysign(1, value)


@settings(slow, max_examples=250)
@given(columns, st.data())
def test_records_are_kept_or_refused(column, data):
    """The sample of 100 records decides; what comes after it is under the same law."""
    sample = data.draw(st.lists(column | st.none(), min_size=1, max_size=4))
    later = data.draw(st.lists(column | scalars | lists, max_size=2))
    rows = [{"a": value} for value in [*sample, *[sample[-1]] * 100, *later]]
    try:
        got = everything(open_source("records", rows))
    except REFUSED:
        return
    found = got["A"]
    for row, value in zip(rows, found, strict=True):
        assert kept(row["a"], value), (row["a"], value)


@settings(slow, max_examples=250)
@given(st.lists(columns, min_size=1, max_size=1).flatmap(lambda c: st.lists(c[0] | scalars)))
@example([b"zeros at the end\0", b""])
@example(["a\0", "b"])
@example([1, "a"])
@example([True, 2])
@example([2**63, -1])
@example([2**53 + 1, 0.5])
@example([[1, 2], [3]])
@example([np.datetime64("2024-02-29")])
def test_lists_by_name_are_kept_or_refused(values):
    """What NumPy makes of a list of mixed values is not what was given."""
    if not values:
        return
    try:
        got = everything(open_source("records", {"a": values}))
    except REFUSED:
        return
    for value, found in zip(values, got["A"], strict=True):
        given = value.item() if isinstance(value, np.datetime64) else value
        assert kept(given, found // 10**6 if given is not value else found), (value, found)


def test_missing_values_of_pandas_are_nulls():
    pandas = pytest.importorskip("pandas")
    for values, wanted in (
        (pandas.array([2**53 + 1, None], "Int64"), [2**53 + 1, None]),
        (pandas.Series(["a", None]), [b"a", None]),
        (pandas.array([True, None], "boolean"), [True, None]),
    ):
        assert everything(open_source("records", {"a": values}))["A"] == wanted


@given(scalars)
@settings(slow, max_examples=200)
def test_a_value_alone_is_kept_or_refused(value):
    try:
        [found] = everything(open_source("records", [{"a": value}]))["A"]
    except REFUSED:
        return
    assert kept(value, found)


def test_an_empty_list_tells_nothing_of_a_type():
    rows = [{"a": []}, {"a": [2**60 + 1]}, {"a": []}]
    got = everything(open_source("records", rows))
    assert [list(v) for v in got["A"]] == [[], [2**60 + 1], []]
    boxes = [{"b": []}, {"b": [[1, 2, 3, 4]]}, {"b": np.zeros((2, 4), int)}]
    assert open_source("records", boxes).schema["B"].shape == (None, 4)
    texts = everything(open_source("records", [{"t": []}, {"t": ["x"]}]))
    assert texts["T"] == [[], [b"x"]]


def test_of_unsigned_numbers_the_stored_type_holds_all():
    wide = {
        "uint8": TypeCode.SHORT,
        "uint16": TypeCode.INT,
        "uint32": TypeCode.LONG,
        "uint64": TypeCode.LONG,
    }
    for name, code in wide.items():
        top = min(int(np.iinfo(name).max), 2**63 - 1)
        array = np.array([0, top], name)
        source = open_source("records", {"one": array, "many": np.stack([array, array])})
        assert source.schema["ONE"].type == code
        assert {f.dtype for f in source.schema.fields} == {np.dtype(name)}
        assert everything(source)["ONE"] == [0, top]
    assert open_source("records", {"x": np.zeros((2, 3), "u1")}).schema["X"].type == (
        TypeCode.BYTE_ARRAY
    )
    with pytest.raises(SourceError, match="does not fit into a long") as caught:
        everything(open_source("records", {"x": np.array([2**63], np.uint64)}))
    assert "view" in caught.value.hint


@given(st.sampled_from("bhilBHILfd"), st.sampled_from("bhilBHILfd"), st.data())
@settings(slow, max_examples=200)
def test_an_array_is_cast_without_loss_or_not_at_all(have, want, data):
    have, want = np.dtype(have), np.dtype(want)
    if have.kind == "f":
        element = st.floats(width=8 * have.itemsize)
    else:
        element = st.integers(int(np.iinfo(have).min), int(np.iinfo(have).max))
    array = np.array(data.draw(st.lists(element, min_size=1, max_size=4)), have)
    try:
        out = cast_array(want, array)
    except SchemaError:
        return
    assert out.dtype == want
    if have.kind == "f" and want.itemsize < have.itemsize:  # the nearest, which was asked for
        assert np.array_equal(np.isfinite(out), np.isfinite(array))
    else:
        for a, b in zip(array.tolist(), out.tolist(), strict=True):
            assert a == b or (a != a and b != b)


# Names


PAIRS = [
    ([{"a": 1, "A": 2}], "'a' and 'A' are the same name"),
    ([{"x": 1}] * 150 + [{"x": 1, "X": 2}], "record 150: 'x' and 'X' are the same name"),
    ([{"o": {"x": 1, "X": 2}}], "'x' and 'X' are the same name"),
    ([{1: 1, "1": 2}], "are the same name"),
    ({"a": [1], "A": [2]}, "'a' and 'A' are the same name"),
]


@pytest.mark.parametrize(("source", "words"), PAIRS)
def test_names_that_differ_in_case_only_are_refused(source, words):
    with pytest.raises(REFUSED, match=words) as caught:
        everything(open_source("records", source))
    assert "rename" in caught.value.hint


def test_names_that_differ_in_case_between_records_are_one_field():
    got = everything(open_source("records", [{"a": 1}, {"A": 2}]))
    assert got["A"] == [1, 2]


def test_a_name_after_the_sample_is_not_lost():
    rows = [{"a": 1, "o": {"x": 1}}] * 150
    for late, words in (({"b": 2}, "'b'"), ({"o": {"x": 1, "y": 2}}, "'y'")):
        items = [*rows, {**rows[0], **late}]
        with pytest.raises(SourceError, match=f"record 150: .*{words}") as caught:
            everything(open_source("records", items))
        assert caught.value.hint
        source = open_source("records", items, bad_records="skip")
        assert len(everything(source)["A"]) == 150
        assert [bad.name for bad in source.skipped] == ["record 150"]
    schema = open_source("records", rows).schema  # what is declared is what is wanted
    assert everything(open_source("records", [{**rows[0], "b": 1}], schema=schema))["A"] == [1]


def test_arrays_that_hide_values_are_refused():
    with pytest.raises(SourceError, match="1 values are masked"):
        open_source("records", {"a": np.ma.array([1, 2], mask=[0, 1])})
    for array in (np.zeros((1, 2), "M8[D]"), np.array([[["x"]]])):
        with pytest.raises(SchemaError, match="of shape"):
            open_source("records", {"a": array})


# CSV


csv_module = pytest.importorskip("pyarrow.csv")
CELLS = {
    "integers": st.integers(-(2**65), 2**65).map(str) | st.sampled_from(["0", "-1", "9" * 30]),
    "codes": st.text("0123456789", min_size=1, max_size=6),
    "floats": st.floats(allow_nan=False).map(repr) | st.sampled_from(["1e400", "0.1", "-0.0"]),
    "days": st.dates().map(str),
    "moments": st.datetimes(dt.datetime(1600, 1, 1)).map(lambda d: d.isoformat(" ", "seconds")),
    "times": st.times().map(lambda t: t.isoformat("seconds" if t.second % 2 else "minutes")),
    "words": st.text(max_size=5).filter(lambda t: "\ufdd0" not in t),
    "odd": st.sampled_from(["007", "1.0", "x", "", "NA", "true", "1_000", "12:30", " 5", "0x10"]),
}
NULLS = {"", "NA", "nan", "NaN", "null", "NULL", "None"}


def means(text, field, found):
    """Whether a value is what the text of a cell says, to a reader of the text."""
    word = text.strip()
    if field.type == TypeCode.STRING:
        return found == text.encode()
    if found is None:
        return word in NULLS
    if field.type == TypeCode.BOOL:
        return found == {"true": True, "false": False, "1": True, "0": False}[word.lower()]
    if field.type == TypeCode.LONG:
        return int(found) == int(word, 16 if "x" in word else 10) and word[:2] != "00"
    if field.type == TypeCode.DOUBLE:
        whole = word.lstrip("+-").isdigit()
        return int(found) == int(word) if whole else float(word) == found
    if field.type == TypeCode.DATE:
        return str(dt.date.fromordinal(719_163 + int(found) // 86_400_000)) == word
    if field.type == TypeCode.TIME:
        return str((dt.datetime.min + dt.timedelta(milliseconds=int(found))).time())[:5] == word[:5]
    moment = EPOCH + dt.timedelta(microseconds=nanoseconds(found) // 1000)
    return str(moment) == word.replace("T", " ")


@slow
@given(st.sampled_from(sorted(CELLS)), st.data())
def test_a_cell_means_what_it_says_or_is_refused(tmp_path, kind, data):
    cells = data.draw(st.lists(CELLS[kind], min_size=1, max_size=14))
    if data.draw(st.booleans()):
        cells.insert(data.draw(st.integers(0, len(cells))), data.draw(CELLS["odd"]))
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "n"], *([cell, i] for i, cell in enumerate(cells))])
    path = tmp_path / "x.csv"
    try:
        path.write_bytes(out.getvalue().encode())
    except UnicodeEncodeError:
        return
    source = open_source("csv", path, bad_records="skip")
    got = everything(source)
    bad = {int(r.name.rpartition(" ")[2]) - 2 for r in source.skipped}
    good = [i for i in range(len(cells)) if i not in bad]
    assert got["key"] == good
    for i, found in zip(good, got["A"], strict=True):
        assert means(cells[i], source.schema["A"], found), (cells[i], found)


def table(tmp_path, cells):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(f"{cell},1\n" for cell in cells))
    return path


@pytest.mark.parametrize("odd_at", [0, 50, 99])
def test_one_odd_value_is_a_bad_record_of_its_row(tmp_path, odd_at):
    cells = [str(i) for i in range(100)]
    cells[odd_at] = "oops"
    path = table(tmp_path, cells)
    with pytest.raises(SourceError, match=rf"row {odd_at + 2}: column A: 'oops'") as caught:
        everything(open_source("csv", path))
    assert "--types A:varchar" in caught.value.hint
    source = open_source("csv", path, bad_records="skip")
    assert everything(source)["A"] == [i for i in range(100) if i != odd_at]
    kept_whole = open_source("csv", path, types="a:varchar")
    assert everything(kept_whole)["A"] == [cell.encode() for cell in cells]
    assert kept_whole.notes == []


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["12", "13", "14A"], "row 4 is '14A'"),
        (["01234", "98765"], "row 2 is '01234': a number would lose its leading zero"),
        (["12345678901234567890", "1"], "row 2 is '12345678901234567890'"),
        (["9007199254740993", "0.5"], "row 2 is '9007199254740993'"),
    ],
)
def test_a_column_that_became_text_is_told_of(tmp_path, cells, words):
    source = open_source("csv", table(tmp_path, cells))
    assert everything(source)["A"] == [cell.encode() for cell in cells]
    [note] = source.notes
    assert words in note and "--types A:" in note


def test_a_column_that_begins_empty_is_told_of_when_it_has_values(tmp_path, monkeypatch):
    from ignitetf.load.sources import csvfile

    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 64)
    source = open_source("csv", table(tmp_path, [""] * 60))
    everything(source)
    assert source.notes == []
    source = open_source("csv", table(tmp_path, [*[""] * 60, "5"]))
    assert everything(source)["A"][-1] == b"5"
    assert "first rows have no value" in source.notes[0]


def test_of_mixed_columns_and_ragged_rows_the_right_row_is_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,1\n1,2,3\n1,1\nx,1\n")
    source = open_source("csv", path, bad_records="skip")
    assert "row 5 is 'x'" in source.notes[0]
    with pytest.raises(ConfigError, match="types"):
        open_source("csv", path, types="a:int,a:varchar")
    with pytest.raises(ConfigError, match="unknown type") as caught:
        open_source("csv", path, types="a:decimal(5000,0)")
    assert "varchar" in caught.value.hint


# Names of files


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=2, max_size=6, unique=True))
@settings(slow, max_examples=100)
def test_names_of_files_stay_distinct_texts(raws):
    names = [os.fsdecode(raw.replace(b"\0", b"x")) for raw in raws] + ["\\x61", "\\\\x61", "é"]
    names = list(dict.fromkeys(names))
    shown = [readable_name(name) for name in names]
    assert len({text.encode() for text in shown}) == len(names)
    for name, text in zip(names, shown, strict=True):
        assert "\\x" in text or text == name


def png(rows, head, palette=b"", parts=1):
    """A PNG with right CRCs around any packed rows."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    step = -(-len(rows) // parts) or 1
    pieces = [chunk(b"IDAT", rows[i : i + step]) for i in range(0, len(rows) or 1, step)]
    colours = chunk(b"PLTE", palette) if palette else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + colours
        + b"".join(pieces)
        + chunk(b"IEND", b"")
    )


def raw_rows(width, height, bits, interlace):
    """Rows of zeros as the specification has them, by its table of passes."""
    steps = [(0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)]  # fmt: skip
    out = b""
    for x, dx, y, dy in steps if interlace else [(0, 1, 0, 1)]:
        columns, rows = len(range(x, width, dx)), len(range(y, height, dy))
        if columns:
            out += (b"\0" + bytes((columns * bits + 7) // 8)) * rows
    return out


KINDS = [(0, 1, 1), (0, 16, 16), (2, 8, 24), (2, 16, 48), (3, 2, 2), (3, 8, 8), (4, 8, 16), (6, 16, 64)]  # fmt: skip


@pytest.mark.parametrize(("colour", "depth", "bits"), KINDS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (13, 9)])
def test_pngs_are_whole_or_refused(colour, depth, bits, width, height):
    for interlace, parts in itertools.product((0, 1), (1, 3)):
        head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
        rows = raw_rows(width, height, bits, interlace)
        colours = bytes(3 * 2 ** min(depth, 8)) if colour == 3 else b""

        def made(body, head=head, colours=colours, parts=parts):
            return png(body, head, colours, parts)

        good = made(zlib.compress(rows))
        assert sound_png(good) == check_picture(good) == (height, width)
        with Image.open(io.BytesIO(good)) as image:
            image.load()  # the files of this test are what Pillow takes for PNG
        damaged = {
            "rows are missing": zlib.compress(rows[:-1]),
            "cannot be decompressed": b"\x78\x9c" + b"\xff" * 9,
            "the filter 9": zlib.compress(b"\x09" + rows[1:]),
        }
        for words, body in damaged.items():
            assert check_picture(made(body), pixels=False) == (height, width)
            with pytest.raises(PictureError, match=words):
                check_picture(made(body))
        if colour == 3:
            with pytest.raises(PictureError, match="palette"):
                check_picture(png(zlib.compress(rows), head))


@slow
@given(st.integers(1, 400), st.integers(1, 400), st.data())
def test_the_last_row_of_a_png_of_any_size_is_looked_at(width, height, data):
    rows = bytearray(raw_rows(width, height, 48, 0))
    rows[data.draw(st.integers(0, height - 1)) * (1 + 6 * width)] = data.draw(st.integers(0, 255))
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    whole = png(zlib.compress(bytes(rows), data.draw(st.integers(0, 9))), head, parts=2)
    if max(rows) <= 4:
        assert sound_png(whole) == (height, width)
    else:
        with pytest.raises(PictureError, match="the filter"):
            check_picture(whole)


def test_a_png_that_would_unpack_without_end_takes_no_memory():
    import tracemalloc

    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    bomb = png(zlib.compress(bytes(64 << 20), 1), head)
    tracemalloc.start()
    assert sound_png(bomb) == (8, 8)  # more rows than the head says are no fault
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_labels_that_are_one_number_are_refused(tmp_path):
    (tmp_path / "x.png").write_bytes(
        png(zlib.compress(bytes(2)), struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    )

    def labelled(*labels, **options):
        (tmp_path / "l.csv").write_text("".join(f"x.png,{label}\n" for label in labels))
        return open_source("images", tmp_path / "l.csv", **options)

    assert everything(labelled("1", "10", "-3"))["LABEL"] == [1, 10, -3]
    with pytest.raises(SourceError, match="row 1 is '1_000', while 1 of 2 labels are numbers"):
        labelled("1_000", "2")
    assert labelled("1_000", "2", types="label:varchar").class_names == ["1_000", "2"]
    with pytest.raises(SourceError, match="are the same number"):
        labelled("+7", "7")
    classes = labelled("007", "7")
    assert classes.class_names == ["007", "7"] and "row 1 is '007'" in classes.notes[0]
    assert everything(labelled("007", "8", types="label:int"))["LABEL"] == [7, 8]
    assert labelled("+491701234567", "1").class_names == ["+491701234567", "1"]


def test_http_without_aiohttp_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    with pytest.raises(MissingExtra, match="aiohttp") as caught:
        open_source("csv", "https://127.0.0.1:9/x.csv")
    assert "ignitetf[http]" in caught.value.hint
