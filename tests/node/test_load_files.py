"""Files of other people are loaded and read back as an independent library reads them."""

import bz2
import gzip
import io
import json
import lzma

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.packed import zipped, zstandard
from PIL import Image
from typer.testing import CliRunner

from ignitetf import open_rows
from ignitetf.cli.main import app

pytestmark = pytest.mark.node


@pytest.fixture
def load(address, cache_name):
    """Run `ignitetf load KIND FILE ...`; returns its messages, and the rows as they are read."""

    def invoke(kind, *args, code=0):
        shared = ["--cache", cache_name, "--address", address, "--if-exists", "replace"]
        result = CliRunner().invoke(app, ["load", kind, *map(str, args), *shared])
        assert result.exit_code == code, result.output
        if code:
            return result.stderr, []
        rows = open_rows(cache_name, address=address, nulls="mask", order="keys")
        return result.stderr, plain(pa.table(rows).to_pylist())

    return invoke


def plain(value):
    """Rows without their key, whose texts are not bytes, with None where a mark says so."""
    if isinstance(value, dict):
        marks = {name: value[name] for name in value if name.endswith("_valid")}
        return {
            name: plain(one) if marks.get(f"{name}_valid", True) else None
            for name, one in value.items()
            if name != "key" and name not in marks
        }
    if isinstance(value, list):
        return [plain(one) for one in value]
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


NESTED = [
    {
        "id": 1,
        "tags": ["a", "b"],
        "at": {"x": 1.5, "deep": [{"n": 1}, {"n": 2}]},
        "p": [[1], [2, 3]],
    },
    {"id": 2, "tags": [], "at": {"x": 2.0, "deep": []}, "p": []},
    {"id": 3, "tags": ["ä"], "at": None, "p": [[], [4, 5, 6]]},
]


LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in NESTED).encode()
JSON_FILES = {
    "lines": LINES,
    "array": json.dumps(NESTED, indent=1).encode(),
    "utf-16": LINES.decode().encode("utf-16"),
    "gzip": gzip.compress(LINES),
    "bzip2": bz2.compress(LINES),
    "xz": lzma.compress(LINES),
    "zip": zipped({"__MACOSX/._x": b"1", "x.jsonl": LINES}),
    "zstandard": zstandard(LINES),
}


@pytest.mark.parametrize("form", ["lines", "array", "zstandard"])
def test_json_is_read_back_as_it_was(load, tmp_path, form):
    (tmp_path / "x").write_bytes(JSON_FILES[form])
    _, rows = load("jsonl", tmp_path / "x")
    assert rows == [{name.upper(): value for name, value in row.items()} for row in NESTED]


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_nested_columns_of_arrow_are_read_back_as_they_were(load, tmp_path, form):
    table = pa.Table.from_pylist(NESTED).append_column(
        "m", pa.array([[("k", 1)], [], [("a", 2), ("b", 3)]], pa.map_(pa.string(), pa.int64()))
    )
    path = tmp_path / "x"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        writer = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        with writer(path, table.schema) as out:
            out.write_table(table, max_chunksize=2)
    kind = "parquet" if form == "parquet" else "arrow"
    _, rows = load(kind, path, "--rename", "id=number", "--columns", "id,tags,at,p,m")
    maps = [row.pop("M") for row in rows]
    assert rows == [
        {"NUMBER" if name == "id" else name.upper(): value for name, value in row.items()}
        for row in NESTED
    ]
    found = [dict(zip(one["keys"], one["values"], strict=True)) for one in maps]
    assert found == [{"k": 1}, {}, {"a": 2, "b": 3}]
    _, rows = load(kind, path, "--columns", "tags")
    assert rows == [{"TAGS": row["tags"]} for row in NESTED]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nested_names_follow_the_rule_of_headings(load, client, cache_name, tmp_path, kind):
    at = [{"x-y": 1, "Größe": [{"1st": 1.5}], "ok": "a"}, {"x-y": 2, "Größe": [], "ok": "b"}]
    frame = pd.DataFrame({"where at": at})
    if kind == "jsonl":
        frame.to_json(tmp_path / "x", orient="records", lines=True)
    else:
        frame.to_parquet(tmp_path / "x")
    told, rows = load(kind, tmp_path / "x")
    wanted = [
        {"x_y": one["x-y"], "Grosse": [{"_1st": v["1st"]} for v in one["Größe"]], "ok": one["ok"]}
        for one in at
    ]
    assert rows == [{"WHERE_AT": one} for one in wanted]
    assert "'where at.Größe.1st' is WHERE_AT.Grosse._1st" in " ".join(told.split())
    found = client.sql(f"SELECT WHERE_AT FROM {cache_name}").fetchall()
    assert sorted(value["x_y"] for (value,) in found) == [1, 2]


def test_a_csv_of_another_country_is_read_as_pandas_reads_it(load, tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(
        "Größe (cm);Preis;Ort;n\n1,5;1.234,50;Köln;?\n2;7;?;+1\n-0,25;1.000.000;Ulm;2\n".encode(
            "latin-1"
        )
    )
    options = ["--delimiter", ";", "--decimal", ",", "--thousands", ".", "--null", "?"]
    messages, rows = load("csv", path, *options, "--encoding", "latin-1")
    expected = pd.read_csv(
        path, sep=";", decimal=",", thousands=".", na_values=["?"], encoding="latin-1"
    )
    expected.columns = ["GROSSE_CM", "PREIS", "ORT", "N"]
    found = pd.DataFrame(rows)[expected.columns].astype(expected.dtypes.to_dict())
    pd.testing.assert_frame_equal(found, expected)
    assert "'Größe (cm)' is GROSSE_CM" in messages
    messages, _ = load("csv", path, *options, code=1)
    assert "not UTF-8" in messages and "--encoding" in messages


def test_a_csv_without_a_heading(load, tmp_path):
    path = tmp_path / "iris.data"
    path.write_bytes(b"5.1,3.5,Iris-setosa\n4.9,3.0,Iris-virginica\n")
    messages, _ = load("csv", path, code=1)
    assert "'5.1' is a number" in messages and "--header none" in messages
    _, rows = load("csv", path, "--header", "none", "--names", "length,width,kind")
    expected = pd.read_csv(path, header=None, names=["LENGTH", "WIDTH", "KIND"])
    assert rows == expected.to_dict("records")
    messages, _ = load("csv", path, "--header", "none", "--names", "a,b", code=1)
    assert "3 columns, and 2 names" in messages


def png(value):
    out = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), value, np.uint8)).save(out, "PNG")
    return out.getvalue()


def write_images(path, values, names):
    images = [{"bytes": png(value), "path": f"{value}.png"} for value in values]
    table = pa.table({"image": images, "label": [value % 2 for value in values]})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    note = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": note}), path)


def test_a_data_set_of_hugging_face_has_images_classes_and_splits(
    load, client, cache_name, address, tmp_path
):
    folder = tmp_path / "data"
    folder.mkdir()
    write_images(folder / "train-00000-of-00002.parquet", [1, 2], ["no", "yes"])
    write_images(folder / "train-00001-of-00002.parquet", [3], ["no", "yes"])
    write_images(folder / "test-00000-of-00001.parquet", [4], ["no", "yes"])
    _, rows = load("parquet", tmp_path)
    shown = sorted((row["IMAGE"], row["IMAGE_PATH"], row["LABEL"], row["SPLIT"]) for row in rows)
    expected = [(png(v), f"{v}.png", v % 2, "test" if v == 4 else "train") for v in (1, 2, 3, 4)]
    assert shown == sorted(expected)
    for split, labels in (("train", [0, 1, 1]), ("test", [0])):
        for order in ("scan", "keys"):
            part = open_rows(cache_name, address=address, split=split, order=order)
            assert part.class_names == ["no", "yes"]
            assert len(part) == len(labels)
            (batch,) = part.batches(10)
            assert sorted(batch["val"]["LABEL"].tolist()) == labels
    _, rows = load("parquet", tmp_path, "--split", "test")
    assert [(row["LABEL"], "SPLIT" in row) for row in rows] == [(0, False)]
    messages, _ = load("parquet", tmp_path, "--split", "dev", code=1)
    assert "splits: test, train" in messages


def test_a_damaged_image_in_a_table_is_a_bad_record(load, tmp_path):
    path = tmp_path / "x.parquet"
    images = [{"bytes": png(1), "path": "1.png"}, {"bytes": png(2)[:-20], "path": "2.png"}]
    images.append({"bytes": None, "path": "3.png"})
    note = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    table = pa.table({"image": images}).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, path)
    messages, _ = load("parquet", path, code=1)
    assert "row 2: column image: damaged image" in messages
    messages, rows = load("parquet", path, "--bad-records", "skip")
    assert [row["IMAGE"] for row in rows] == [png(1)]
    assert (
        "row 2" in messages and "row 3: column image: the file '3.png' is missing from" in messages
    )


@pytest.mark.parametrize("way", ["folder", "pattern", "list"])
def test_folders_of_key_and_value_are_columns(load, tmp_path, way):
    frame = pd.DataFrame(
        {"year": [2019, 2019, 2020], "country": ["de", "fr", "de"], "x": [1.5, 2.5, 3.5]}
    )
    frame.to_parquet(tmp_path / "t", partition_cols=["year", "country"])
    files = sorted((tmp_path / "t").rglob("*.parquet"))
    places = {"folder": [tmp_path / "t"], "pattern": [tmp_path / "t" / "*" / "*" / "*.parquet"]}
    _, rows = load("parquet", *places.get(way, files))
    rows = sorted(rows, key=lambda row: row["X"])
    assert rows == frame.rename(columns=str.upper).to_dict("records")


def test_boxes_of_coco_and_yolo_are_read_back_as_json_and_text_say(
    load, client, cache_name, address, tmp_path
):
    for folder in ("images/train", "images/val", "labels/train"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("train/1.png", "val/2.png"):
        (tmp_path / "images" / name).write_bytes(png(7))
    whole = {
        "images": [
            {"id": 5, "file_name": "train/1.png", "width": 5, "height": 4},
            {"id": 6, "file_name": "val/2.png", "width": 5, "height": 4},
        ],
        "annotations": [{"id": 1, "image_id": 5, "category_id": 17, "bbox": [1, 0, 2, 3]}],
        "categories": [{"id": 17, "name": "cat"}, {"id": 3, "name": "car"}],
    }
    (tmp_path / "instances.json").write_text(json.dumps(whole))
    (tmp_path / "labels/train/1.txt").write_text("1 0.4 0.375 0.4 0.75\n")
    (tmp_path / "data.yaml").write_text(
        "train: images/train\nval: images/val\nnames: {0: car, 1: cat}\n"
    )
    for kind, file in (("coco", "instances.json"), ("yolo", "data.yaml")):
        _, rows = load(kind, tmp_path / file)
        shown = [(np.round(row["BOXES"], 4).tolist(), row["BOX_LABELS"]) for row in rows]
        assert shown == [([[1, 0, 3, 3]], [1]), ([], [])], kind
        assert [row["IMAGE"] for row in rows] == [png(7)] * 2
        assert open_rows(cache_name, address=address).class_names == ["car", "cat"]
    assert len(open_rows(cache_name, address=address, split="val")) == 1
