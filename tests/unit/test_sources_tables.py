"""Tables that other libraries write: equal to what another library reads, or a way out that works."""

import csv
import io
import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather
from source_helpers import everything
from test_hints import OPTION, options

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources import open_source

pd = pytest.importorskip("pandas")
COMMANDS = options()
NAMES = {"a": "a", "x-y": "x_y", "Größe (cm)": "Grosse_cm", "1st": "_1st", "日": "COLUMN_5"}
NESTED = {"a": 1, "x-y": "b", "Größe (cm)": [{"1st": 1.5}, {"1st": 2.5}], "1st": None, "日": True}


def renamed(value):
    if isinstance(value, dict):
        return {NAMES[name]: renamed(one) for name, one in value.items()}
    return [renamed(one) for one in value] if isinstance(value, list) else value


def plain(value):
    """A value of a column as Python has it."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def written(folder, form):
    """A file with nested values whose names are not those of SQL, and another beside them."""
    rows = [{"n": 1, "v w": NESTED}, {"n": 2, "v w": None}]
    path = folder / "t"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "polars":
        pytest.importorskip("polars").DataFrame(rows).write_ipc(path, compression="zstd")
    elif form == "duckdb":
        duckdb, table = pytest.importorskip("duckdb"), pa.Table.from_pylist(rows)
        duckdb.from_arrow(table).write_parquet(str(path))
    else:
        pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("form", ["jsonl", "polars", "duckdb", "pandas"])
def test_nested_names_follow_one_rule_that_is_told(tmp_path, form):
    path = written(tmp_path, form)
    kind = {"jsonl": "jsonl", "polars": "arrow"}.get(form, "parquet")
    source = open_source(kind, path)
    found = everything(source)
    assert plain(found["N"]) == [1, 2] and found["V_W"][1] is None
    assert plain(found["V_W"][0]) == renamed(NESTED)
    (note,) = [note for note in source.notes if "headings" in note]
    told = ["'v w' is V_W", "'v w.x-y' is V_W.x_y", "'v w.Größe (cm).1st' is V_W.Grosse_cm._1st"]
    assert all(text in note for text in told)


def test_nested_names_of_frames_follow_the_same_rule():
    source = open_source("stream", pa.Table.from_pylist([{"v": NESTED}]))
    assert plain(everything(source)["V"]) == [renamed(NESTED)]


SPELLED = {
    "comma": "1,5|2|-3,25",
    "comma and points": "1.234,5|2|1.222.333,25",
    "commas": "1,234.5|2,000,000.25|-7",
    "blanks": "1 234,5|22 000 000,25|7",
    "apostrophes": "1'234.5|2'000'000.25|7",
    "narrow blanks": "1\u202f234,5|2\u202f000|7",
    "blanks that do not break": "1\u00a0234,5|2\u00a0000,5|7",
}


@pytest.mark.parametrize("case", SPELLED)
def test_the_options_that_a_note_names_make_numbers_of_texts(tmp_path, case):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["n|k", *(f"{n}|x" for n in SPELLED[case].split("|"))]))
    source = open_source("csv", path, delimiter="|")
    (note,) = [note for note in source.notes if "is a number with" in note]
    assert plain(everything(source)["N"]) == SPELLED[case].split("|")
    words = shlex.split(note.partition(" with ")[2].partition(" or ")[0].replace("$'", "'"))
    options = {
        flag[2:]: value.encode().decode("unicode_escape") if "\\" in value else value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert {f"--{name}" for name in options} <= COMMANDS["load", "csv"]
    found = everything(open_source("csv", path, delimiter="|", **options))
    text = path.read_text()
    if mark := options.pop("thousands", None):  # one of ASCII, as pandas wants it
        text, options = text.replace(mark, "_"), {"thousands": "_", **options}
    wanted = pd.read_csv(io.StringIO(text), sep="|", **options)
    assert plain(found["N"]) == wanted["n"].tolist()


def test_a_number_that_may_be_spelled_in_two_ways_names_both(tmp_path):
    (tmp_path / "t.csv").write_text('n\n"1,234"\n"5,678"\n')
    (note,) = open_source("csv", tmp_path / "t.csv").notes
    assert note.endswith("'1,234' is a number with --decimal , or --thousands ,")


@pytest.mark.parametrize("mark", ["?", "-", "missing", "n.a."])
def test_a_mark_of_missing_values_is_named(tmp_path, mark):
    path = tmp_path / "t.csv"
    path.write_text("n\n" + "\n".join(map(str, range(40))) + f"\n{mark}\n")
    with pytest.raises(SourceError, match="row 42: column N") as caught:
        everything(open_source("csv", path))
    words = shlex.split(caught.value.hint.replace(",", " "))
    null = words[words.index("--null") + 1]
    found = plain(everything(open_source("csv", path, null=null))["N"])
    wanted = pd.read_csv(path, na_values=[mark])["n"]
    assert found == [
        None if gone else int(n) for n, gone in zip(wanted, wanted.isna(), strict=True)
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("word", ["a", "имя", "日本"])
def test_utf16_without_a_mark_names_its_encoding(tmp_path, kind, order, word):
    text = f"{word},n\n{word},1\n" if kind == "csv" else f'{{"{word}": "{word}"}}\n'
    path = tmp_path / "t"
    path.write_bytes(text.encode(f"utf-16-{order}"))
    with pytest.raises(SourceError, match="without a byte order mark") as caught:
        open_source(kind, path)
    flag, encoding = caught.value.hint.split()
    assert flag in COMMANDS["load", kind]
    found = everything(open_source(kind, path, encoding=encoding))
    assert word.encode() in found["A" if word == "a" else "COLUMN_1"]


def test_empty_texts_may_be_missing_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n,s\n1,\n,x\n")
    assert everything(open_source("csv", path))["S"] == [b"", b"x"]
    found = everything(open_source("csv", path, null=""))
    wanted = pd.read_csv(path)
    assert [value is None for value in found["S"]] == wanted["s"].isna().tolist()
    assert found["N"] == [1, None]


def test_equal_headings_of_a_table_of_images_are_told_apart(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("path,label,label\na.png,cat,5\n")
    with pytest.raises(SourceError, match="'label' and 'label' are both 'LABEL'") as caught:
        open_source("images", tmp_path, labels=tmp_path / "t.csv")
    assert set(OPTION.findall(caught.value.hint)) <= COMMANDS["load", "images"]
    source = open_source("images", tmp_path, labels=tmp_path / "t.csv", rename="COLUMN_3=n")
    found = everything(source)
    assert (source.class_names, found["N"]) == (["cat"], [5])


def test_equal_headings_are_told_apart_by_their_positions(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(SourceError, match="two columns have the same name: 'a' and 'a'"):
        open_source("csv", path)
    found = everything(open_source("csv", path, rename="COLUMN_3=c"))
    row = next(csv.reader(io.StringIO(path.read_text().splitlines()[1])))
    assert [found[name][0] for name in "ABC"] == list(map(int, row))


BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa")]
)
REFUSED = {
    "not UTF-8": {"a": BAD_TEXT},
    "not UTF-8 in a list": {
        "a": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD_TEXT)
    },
    "a duration": {"a": pa.array([1], pa.duration("s"))},
    "alike inside": {"a": pa.array([{"a b": 1, "A_B": 2}])},
    "far": {"a": pa.array([2**60], pa.timestamp("us"))},
    "a null in a list": {"a": pa.array([[1, None]])},
    "reserved": {"_key": pa.array([1]), "_val": pa.array([1])},
    "alike": {"a b": pa.array([1]), "A-B": pa.array([1])},
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_what_is_refused_names_the_file_and_a_way_out(tmp_path, kind, case):
    path, table = tmp_path / "t.x", pa.table(REFUSED[case])
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, str(path))
    with pytest.raises(SourceError, match=re.escape(str(path))) as caught:
        everything(open_source(kind, path))
    found = set(OPTION.findall(caught.value.hint))
    assert found <= COMMANDS["load", kind]
    assert found or (kind, "UTF-8" in case) == ("arrow", True)  # the whole file is damaged


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_files_of_other_types_name_a_way_out(tmp_path, kind):
    for number, value in enumerate([1, 1.5]):
        frame, path = pd.DataFrame({"a": [value]}), tmp_path / f"{number}.{kind}"
        if kind == "csv":
            frame.to_csv(path, index=False)
        elif kind == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path)
    with pytest.raises(SourceError, match=r"file 2 of 2 .*A is double instead of long") as caught:
        open_source(kind, tmp_path)
    assert set(OPTION.findall(caught.value.hint)) <= COMMANDS["load", kind]
    if kind == "csv":
        assert everything(open_source(kind, tmp_path, types="A:double"))["A"] == [1, 1.5]


def test_a_folder_whose_name_a_column_has_is_told(tmp_path):
    (tmp_path / "a=5").mkdir()
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "a=5" / "t.parquet")
    source = open_source("parquet", tmp_path)
    assert plain(everything(source)["A"]) == [1]
    assert "folders: A" in source.notes[0]
    everything(open_source("parquet", tmp_path, columns="b"))


def test_texts_of_numpy_are_texts_in_records_too():
    kind = np.dtypes.StringDType()
    rows = [{"t": np.array(["a", "b" * 50], kind)}, {"t": np.array(["ä"], kind)}]
    assert plain(everything(open_source("records", rows))["T"]) == [["a", "b" * 50], ["ä"]]


@pytest.mark.parametrize("value", [pd.Period("2020-01"), pd.Interval(0, 1), object(), 1j])
def test_an_object_without_a_meaning_here_is_refused_by_name_and_with_a_hint(value):
    for items in ([{"a": value}], {"a": [value]}, {"a": pd.Series([value])}):
        with pytest.raises((SchemaError, SourceError), match="no Ignite type stores") as caught:
            everything(open_source("records", items))
        assert caught.value.hint


def arrays_of_datasets(values, shape, kind):
    """A column as `datasets` writes it."""
    name = f"datasets.features.features.Array{len(shape)}DExtensionType"
    noted = {"ARROW:extension:name": name, "ARROW:extension:metadata": json.dumps([shape, "x"])}
    return pa.field("a", kind, metadata=noted), pa.array(values, kind)


@pytest.mark.parametrize("form", ["whole", "slice", "inside", "any length"])
def test_arrays_of_datasets_have_their_shape(form):
    cells = [np.arange(6).reshape(2, 3).tolist(), None, np.arange(6, 12).reshape(2, 3).tolist()]
    shape = [None, 3] if form == "any length" else [2, 3]
    field, array = arrays_of_datasets(cells, shape, pa.list_(pa.list_(pa.int32())))
    wanted = cells
    if form == "inside":
        inside = pa.StructArray.from_arrays([array], fields=[field])
        field, array, wanted = (
            pa.field("a", inside.type),
            inside,
            [{"a": cells[0]}, {"a": cells[2]}],
        )
        field, array = field, array.take(pa.array([0, 2]))
    table = pa.table([array], pa.schema([field])).slice(1 if form == "slice" else 0)
    source = open_source("stream", table)
    found = plain(everything(source)["A"])
    assert found == (wanted[1:] if form == "slice" else wanted)
    if form in ("whole", "slice"):
        assert source.schema["A"].shape == (2, 3)


def test_an_array_of_datasets_of_another_shape_is_refused():
    field, array = arrays_of_datasets([[[1, 2]]], [2, 3], pa.list_(pa.list_(pa.int32())))
    with pytest.raises(SourceError, match=r"array of 'a' is not of the shape \[2, 3\]"):
        everything(open_source("stream", pa.table([array], pa.schema([field]))))


@pytest.mark.parametrize("orient", ["columns", "split", "table", "index"])
def test_tables_that_pandas_writes_as_one_object_are_refused(tmp_path, orient):
    path, frame = tmp_path / "t.json", pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    frame.to_json(path, orient=orient)
    with pytest.raises(SourceError, match="as pandas writes it") as caught:
        open_source("jsonl", path)
    assert "orient='records', lines=True" in caught.value.hint
    frame.to_json(path, orient="records", lines=True)
    assert everything(open_source("jsonl", path))["A"] == [1, 2]


def test_a_line_for_excel_is_no_heading(tmp_path):
    for delimiter in ",;":
        (tmp_path / "t.csv").write_text("sep=;\na;b\n1;2\n")
        with pytest.raises(SourceError, match=r"a note for Excel|another delimiter"):
            everything(open_source("csv", tmp_path / "t.csv", delimiter=delimiter))


def test_times_of_day_have_the_milliseconds_that_the_file_has(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t,u\n10:00:00.5,10:00\n23:59:59.123,00:00:01\n")
    source = open_source("csv", path)
    assert plain(everything(source)["T"]) == [36_000_500, 86_399_123]
    assert plain(everything(source)["U"]) == [36_000_000, 1000]
    path.write_text("t\n10:00:00.0005\n10:00:00.000000\n")
    assert everything(open_source("csv", path))["T"][0] == b"10:00:00.0005"
    with pytest.raises(SourceError, match="row 2: column T"):
        everything(open_source("csv", path, types="t:time"))


def test_a_text_that_is_not_utf8_is_a_bad_record(tmp_path):
    pq.write_table(pa.table({"a": BAD_TEXT}), tmp_path / "t")
    source = open_source("parquet", tmp_path / "t", bad_records="skip")
    assert everything(source)["A"] == [b"a"] and "row 1" in source.skipped[0].name


def test_json_is_not_taken_for_csv(tmp_path):
    (tmp_path / "t").write_text('{"a":1,"b":2}\n')
    with pytest.raises(SourceError, match="looks like JSON"):
        open_source("csv", tmp_path / "t")


def test_a_zero_byte_alone_is_not_utf16(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n1\0,2\n")
    assert everything(open_source("csv", tmp_path / "t.csv"))["A"] == [b"1\0"]


def test_a_frame_that_is_not_computed_yet_says_how():
    with pytest.raises(ConfigError, match="LazyFrame") as caught:
        open_source("records", pytest.importorskip("polars").LazyFrame({"a": [1]}))
    assert ".collect()" in caught.value.hint


def test_a_column_of_mixed_types_is_named():
    with pytest.raises(SourceError, match="column c") as caught:
        open_source("stream", pd.DataFrame({"c": [1, "a"]}))
    assert "(" not in str(caught.value) and "converted first" in caught.value.hint
