"""JSON and Arrow files, compression, encodings, and how a CSV may be written."""

import bz2
import gzip
import json
import lzma
import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.packed import zipped, zstandard
from pyarrow import feather
from source_helpers import check_resume, everything, same

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.load.sources.headings import column_of_heading

RECORDS = [
    {"a": 1, "b c": [1, 2], "n": {"x": 1, "y": [{"z": "t"}]}, "p": [[1, 2], [3]], "f": 1},
    {"a": 2, "b c": [], "n": None, "f": 2.5, "late": "ä", "p": []},
    {"a": 2**70, "f": 3, "e": [[1, 2], [3, 4]], "n": {"x": None, "y": []}},
]
LINES = "\n".join(json.dumps(r, ensure_ascii=False) for r in RECORDS).encode()


PACKED = {
    "gzip": gzip.compress(LINES),
    "bzip2": bz2.compress(LINES),
    "xz": lzma.compress(LINES),
    "zip": zipped({"x": LINES, "__MACOSX/._x": b"1"}),
    "zstandard": zstandard(LINES),
}
FORMS = {
    "lines": LINES,
    "a mark": b"\xef\xbb\xbf" + LINES,
    "utf-16": LINES.decode().encode("utf-16"),
    "blank lines": LINES.replace(b"\n", b"\r\n\r\n") + b"\n\n",
    "array": json.dumps(RECORDS).encode(),
    "array over lines": json.dumps(RECORDS, indent=2).encode(),
    "objects over lines": "\n".join(json.dumps(r, indent=1) for r in RECORDS).encode(),
    **PACKED,
}


@pytest.mark.parametrize("form", FORMS)
def test_json_is_the_same_in_every_form(tmp_path, form):
    """Types are those of all values: fractions, integers beyond a long and late names."""
    (tmp_path / "x").write_bytes(FORMS[form])
    source = open_source("jsonl", tmp_path / "x")
    got = everything(source)
    assert got.pop("key") == [0, 1, 2]
    assert got.pop("A") == [b"1", b"2", str(2**70).encode()]
    assert got.pop("F") == [1, 2.5, 3]
    assert got.pop("LATE") == [None, "ä".encode(), None]
    assert got.pop("N") == [{"x": 1, "y": [{"z": b"t"}]}, None, {"x": None, "y": []}]
    expected = {
        "B_C": [np.array([1, 2]), np.array([]), None],
        "E": [None, None, np.array([[1, 2], [3, 4]])],
    }
    assert [[list(one) for one in row or []] for row in got.pop("P")] == [[[1, 2], [3]], [], []]
    assert same(got, expected)
    assert source.schema["A"].type.name == "DECIMAL"
    assert "'b c' is B_C" in source.notes[0]
    check_resume(source)


def test_columns_of_json_are_chosen_and_renamed(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINES)
    source = open_source("jsonl", tmp_path / "x.jsonl", columns="b c,late,f", rename="F=w")
    assert source.schema.names == ("B_C", "W", "LATE")
    texts = open_source(
        "jsonl", tmp_path / "x.jsonl", columns="f,late", key="late", bad_records="skip"
    )
    assert everything(texts) == {"key": ["ä".encode()], "F": [2.5]}
    assert len(texts.skipped) == 2


BAD_JSON = {
    "cut line": (b'{"a":1}\n{"a":\n{"a":3}', "row 2: damaged JSON"),
    "no object": (b'{"a":1}\n5\n{"a":3}', "row 2: a number instead of an object"),
    "twice": (b'{"a":1}\n{"a":1,"a":2}\n{"a":3}', "row 2: .*two values are called 'a'"),
    "another type": (b'{"a":1}\n{"a":"x"}\n{"a":3}', "row 2: field A: str instead of int64"),
    "not utf-8": (b'{"a":1}\n{"a":"\xff"}\n{"a":3}', "row 2: not UTF-8"),
    "in an array": (b'[{"a":1},null,{"a":3}]', "row 2: null instead of an object"),
    "not a double": (b'{"a":1}\n{"a":1e400}\n{"a":3}', "row 2: damaged JSON: no double holds"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_a_bad_object_is_named_or_left_out(tmp_path, case):
    data, words = BAD_JSON[case]
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(SourceError, match=rf"x\.json, {words}"):
        everything(open_source("jsonl", tmp_path / "x.json"))
    source = open_source("jsonl", tmp_path / "x.json", bad_records="skip")
    assert everything(source) == {"key": [0, 2], "A": [1, 3]}
    assert len(source.skipped) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'[{"a":1},{"a":2', "row 2: damaged JSON"),
        (b'[{"a":1}', "the array never ends"),
        (b'[{"a":1}] x', "more text follows"),
        (b"", "no objects"),
        (b"[]", "no objects"),
        (b'{"a":{}}', "its objects are empty"),
        (b'{"a":{"b-c":1,"b_C":2}}', "nested names are equal: 'b-c' and 'b_C' are both 'B_C'"),
        (b'{"a":1,"A":2}', "'a' and 'A' are both 'A'"),
        (b'{"a":1,"_key":2,"_val":3}', "x.json: column name '_KEY' and '_VAL': every table"),
        (b'{"a":' + b"[" * 99_999, "damaged JSON|nested too deep|no objects"),
        (b'{"a":' + b'{"b":' * 700 + b"1" + b"}" * 701, "nested too deep|no objects"),
    ],
)
def test_refused_json(tmp_path, data, words):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("jsonl", tmp_path / "x.json", bad_records="skip"))
    assert caught.value.hint


@pytest.mark.parametrize("form", PACKED)
def test_compression_is_found_by_content_and_a_cut_file_is_not_a_short_one(tmp_path, form):
    (tmp_path / "x.csv").write_bytes(PACKED[form][:-8])
    with pytest.raises(SourceError, match=r"x\.csv: "):
        everything(open_source("jsonl", tmp_path / "x.csv", bad_records="skip"))


def test_a_zip_file_of_several_files_has_a_way_out(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(zipped({"a": b"x\n1\n", "b": b"x\n2\n"}))
    with pytest.raises(SourceError, match="2 files, such as 'a' and 'b'") as caught:
        open_source("csv", path)
    way_out = caught.value.hint.split(" ")[0]
    assert everything(open_source("csv", way_out))["X"] == [1]


TABLE = pa.table(
    {"a b": range(100), "s": pa.array(["x", None] * 50).dictionary_encode(), "d": [[1.5, 2]] * 100}
)


def write_arrow(path, form):
    if form.startswith("feather"):
        feather.write_feather(TABLE, path, compression="zstd")
    else:
        writer = pa.ipc.new_file if "file" in form else pa.ipc.new_stream
        with writer(path, TABLE.schema) as out:
            out.write_table(TABLE, max_chunksize=30)
    if form.startswith("gzip"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@pytest.mark.parametrize("form", ["file", "stream", "feather", "gzip file", "gzip stream"])
def test_arrow_files_are_read_as_pyarrow_wrote_them(tmp_path, form):
    source = open_source("arrow", write_arrow(tmp_path / "x", form), rename="s=word")
    got = everything(source)
    assert got["A_B"] == list(range(100))
    assert got["WORD"] == [b"x", None] * 50
    assert same({"D": got["D"]}, {"D": TABLE["d"].to_pylist()})
    check_resume(source, max_bytes=500)


@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_damaged_arrow_file_is_an_error_and_no_crash(tmp_path, form):
    path = write_arrow(tmp_path / "x", form)
    raw = path.read_bytes()
    chance = random.Random(1)
    for cut in range(0, len(raw) - 8, 400):
        path.write_bytes(raw[:cut])
        with pytest.raises(SourceError):
            everything(open_source("arrow", path, bad_records="skip"))
    for _ in range(100):
        damaged = bytearray(raw)
        for _ in range(3):
            damaged[chance.randrange(len(raw))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            everything(open_source("arrow", path, bad_records="skip"))
        except (SourceError, ConfigError):
            continue


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        ("Größe (cm)", "GROSSE_CM"), (" Café-Nr. ", "CAFE_NR"), ("1990", "_1990"),
        ("价格", "COLUMN_3"), ("", "COLUMN_3"), ("_id", "_ID"), ("a.b/c", "A_B_C"),
    ],
)  # fmt: skip
def test_a_heading_becomes_a_column_by_one_rule(tmp_path, heading, column):
    assert column_of_heading(heading, 2) == column
    path = tmp_path / "x.csv"
    path.write_text(f"a,b,{heading}\n1,2,3\n")
    frame = pd.read_csv(path)
    for kind, name in (("csv", "x.csv"), ("parquet", "x.parquet"), ("arrow", "x.arrow")):
        frame.columns = ["a", "b", heading]
        (frame.to_feather if kind == "arrow" else frame.to_parquet)(tmp_path / "x.parquet")
        if kind == "arrow":
            (tmp_path / "x.parquet").rename(tmp_path / name)
        source = (
            open_source(kind, tmp_path / name, header="row")
            if kind == "csv"
            else (open_source(kind, tmp_path / name))
        )
        assert source.schema.names == ("A", "B", column)
        assert everything(source)[column] == [3]


NUMBERS = ["1,5", "-2", "1.234,5", "1.234.567", ",5", "1,5e3", ""]


def test_numbers_of_another_country_are_those_of_pandas(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n;t\n" + "".join(f"{n};{i}\n" for i, n in enumerate(NUMBERS)))
    options = {"delimiter": ";", "decimal": ",", "thousands": "."}
    got = everything(open_source("csv", path, **options))
    expected = pd.read_csv(path, sep=";", decimal=",", thousands=".")["n"]
    assert [float("nan") if v is None else v for v in got["N"]] == pytest.approx(
        expected.tolist(), nan_ok=True
    )
    declared = everything(open_source("csv", path, types="n:decimal(20,2)", **options))
    assert declared["N"][2] == b"1234.50"
    for odd in ("1.5", "12.34", "1,2,3", "1.23.456"):
        path.write_text("n\n" + "1,5\n" * 20 + f"{odd}\n")
        source = open_source("csv", path, **{**options, "bad_records": "skip"})
        assert (everything(source)["N"], len(source.skipped)) == ([1.5] * 20, 1), odd


def test_missing_values_as_the_file_spells_them(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,t\n1,a\n?,?\n-9,-\n")
    got = everything(open_source("csv", path, null="?,-9,-"))
    assert (got["N"], got["T"]) == ([1, None, None], [b"a", None, None])
    got = everything(open_source("csv", path))
    assert (got["N"], got["T"]) == ([b"1", b"?", b"-9"], [b"a", b"?", b"-"])


@pytest.mark.parametrize(
    ("encoding", "given"),
    [("utf-16", None), ("utf-8-sig", None), ("utf-32", None), ("latin-1", "latin-1"),
     ("utf-16-le", "utf-16-le"), ("shift_jis", "shift_jis")],
)  # fmt: skip
def test_encodings_are_found_or_named(tmp_path, encoding, given):
    word = "東京" if encoding == "shift_jis" else "Köln"
    path = tmp_path / "x.csv"
    path.write_bytes(f"ort,n\n{word},1\nx,2\n".encode(encoding))
    assert everything(open_source("csv", path, encoding=given))["ORT"] == [word.encode(), b"x"]
    if given is None:
        return
    with pytest.raises(SourceError) as caught:
        everything(open_source("csv", path))
    assert "--encoding" in caught.value.hint
    with pytest.raises(ConfigError, match="encoding 'ebcdic-9' is unknown"):
        open_source("csv", path, encoding="ebcdic-9")


def test_a_file_without_a_heading_has_no_row_less(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,1\nb,2\nc\n")
    with pytest.raises(SourceError, match=r"row 3: 1 columns, expected 2"):
        everything(open_source("csv", path, header="none"))
    source = open_source("csv", path, header="none", bad_records="skip")
    assert everything(source) == {"key": [0, 1], "COLUMN_1": [b"a", b"b"], "COLUMN_2": [1, 2]}
    check_resume(source)
    source = open_source("csv", path, header="none", names="x,y", columns="y", bad_records="skip")
    assert everything(source) == {"key": [0, 1], "Y": [1, 2]}
    with pytest.raises(ConfigError, match="without a heading"):
        open_source("csv", path, names="x,y")


def test_splits_are_those_of_the_names_of_files_and_folders(tmp_path):
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("a\n1\n")
    source = open_source("csv", tmp_path)
    assert source.split_names == ("test", "train")
    assert everything(source) == {"key": [0, 1], "A": [1, 1], "SPLIT": [b"test", b"train"]}
    assert everything(open_source("csv", tmp_path, split="test")) == {"key": [0], "A": [1]}
    with pytest.raises(ConfigError, match="no split 'dev'") as caught:
        open_source("csv", tmp_path, split="dev")
    assert "test, train" in caught.value.hint
    (tmp_path / "more.csv").write_text("a\n2\n")
    assert open_source("csv", tmp_path).split_names == ()


def test_what_save_to_disk_writes_has_the_splits_of_its_folders(tmp_path):
    """A DatasetDict: streams with one name in a folder for each split."""
    for split, rows in (("train", 3), ("unsupervised", 2), ("test", 1)):
        (tmp_path / split).mkdir()
        with pa.ipc.new_stream(tmp_path / split / "data-00000-of-00001.arrow", TABLE.schema) as out:
            out.write_table(TABLE.slice(0, rows))
    assert open_source("arrow", tmp_path).split_names == ()
    (tmp_path / "unsupervised").rename(tmp_path / "validation")
    source = open_source("arrow", tmp_path)
    assert source.split_names == ("test", "train", "validation")
    assert everything(source)["SPLIT"] == [b"test", *[b"train"] * 3, *[b"validation"] * 2]
    assert not source.notes[1:]
    path = tmp_path / "test" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-8])
    source = open_source("arrow", path)
    assert everything(source)["A_B"] == [0]
    assert "may have been cut" in source.notes[-1]


def test_folders_of_key_and_value(tmp_path):
    for year, place in (("2019", "de"), ("2020", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / f"year={year}" / f"place={place}"
        folder.mkdir(parents=True)
        (folder / "x.csv").write_text("a\n1\n")
    got = everything(open_source("csv", tmp_path))
    assert (got["YEAR"], got["PLACE"]) == ([2019, 2020], [b"de", None])
    got = everything(open_source("csv", tmp_path, columns="a,year", rename="year=y"))
    assert got == {"key": [0, 1], "A": [1, 1], "Y": [2019, 2020]}
    (tmp_path / "loose.csv").write_text("a\n1\n")
    with pytest.raises(SourceError, match=r"no folder (year|place)=\.\.\. above it"):
        open_source("csv", tmp_path)


def test_a_pipe_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "p.csv"
    os.mkfifo(path)
    holder = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(SourceError, match="only forward") as caught:
            open_source("csv", path)
    finally:
        os.close(holder)
    assert caught.value.hint


def test_copies_and_unfinished_files_in_a_folder_are_not_data(tmp_path):
    """Their rows would be there twice."""
    loaded = ["a.csv", "b.CSV", "c.csv.1", "d.csv-00000-of-00001"]
    others = ["a.csv~", "a.csv.bak", "a.csv.part", "a.csv.md5", "#a.csv#", ".a.csv.swp", "a.csvx"]
    for number, name in enumerate(loaded + others):
        (tmp_path / name).write_text(f"x\n{number}\n")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"x\n99\n"))
    assert sorted(everything(open_source("csv", tmp_path))["X"]) == [0, 1, 2, 3, 99]
