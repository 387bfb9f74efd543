"""`ignitetf load` and `ignitetf verify` as a user types them."""

import gzip
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from ignitetf.cli.main import app

pytestmark = pytest.mark.node


@pytest.fixture
def run(address):
    def invoke(*args, code=0):
        result = CliRunner().invoke(app, [*map(str, args), "--address", address])
        assert result.exit_code == code, result.output
        return result

    return invoke


def one_line_and_hint(result):
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ")
    return lines[0]


def test_mnist_report_resume_and_verify(run, client, cache_name, mnist_dir):
    options = ("--source", mnist_dir, "--split", "test", "--cache", cache_name, "--output", "json")
    report = json.loads(run("load", "mnist", *options, "--partitions", 8).stdout)
    assert {"cache", "rows", "skipped", "bytes", "seconds", "rows_per_s", "mb_per_s"} <= set(report)
    assert (report["cache"], report["rows"], report["skipped"]) == (cache_name, 10_000, 0)
    assert "exists" in one_line_and_hint(run("load", "mnist", *options, code=1))
    again = json.loads(run("load", "mnist", *options, "--if-exists", "resume").stdout)
    assert (again["rows"], again["resumed_rows"]) == (10_000, 10_000)
    checked = run("verify", cache_name, "--source", mnist_dir, "--output", "json")
    assert json.loads(checked.stdout)["ok"] is True
    client.sql(f"UPDATE {cache_name} SET LABEL = 12 WHERE ID = 5").close()
    failed = run("verify", cache_name, code=1)
    assert "wrong: checksum" in failed.stderr


@pytest.mark.core
def test_digits_fill_two_caches_with_shapes(run, client, cache_name):
    for split, rows in (("train", 1438), ("test", 359)):
        name = f"{cache_name}_{split.upper()}"
        found = run("load", "digits", "--cache", name, "--split", split, "-o", "json")
        assert json.loads(found.stdout)["rows"] == rows
        assert client.sql(f"SELECT COUNT(*) FROM {name}").fetchall() == [(rows,)]


def damaged(folder, name, change):
    target = folder / f"{name}.gz"
    data = bytearray(gzip.decompress(target.read_bytes()))
    target.write_bytes(gzip.compress(change(data)))


DAMAGES = {
    "missing": lambda f: (f / "t10k-labels-idx1-ubyte.gz").unlink(),
    "truncated": lambda f: damaged(f, "t10k-images-idx3-ubyte", lambda d: d[:-100]),
    "magic": lambda f: damaged(f, "t10k-labels-idx1-ubyte", lambda d: b"\1\2\3\4" + d[4:]),
    "cut archive": lambda f: (f / "t10k-images-idx3-ubyte.gz").write_bytes(
        (f / "t10k-images-idx3-ubyte.gz").read_bytes()[:5000]
    ),
    "lengths": lambda f: shutil.copy(
        f / "train-labels-idx1-ubyte.gz", f / "t10k-labels-idx1-ubyte.gz"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_mnist_is_one_line_and_leaves_nothing(run, client, tmp_path, mnist_dir, damage):
    """Both splits are looked at before the first row is stored."""
    folder = tmp_path / "mnist"
    shutil.copytree(mnist_dir, folder, copy_function=shutil.copyfile)
    before = client.cache_names()
    DAMAGES[damage](folder)
    name = f"T_BAD_{damage.upper().replace(' ', '_')}"
    one_line_and_hint(
        run("load", "mnist", "--source", folder, "--split", "test", "--cache", name, code=1)
    )
    assert [n for n in client.cache_names() if n not in before and "CATALOG" not in n] == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--partitions", 0), 1),
        (("--if-exists", "maybe"), 2),
        (("--limit", 0), 2),
        (("--layout", "columns"), 2),
        (("--index", "NOTHING"), 1),
    ],
)
def test_wrong_options(run, client, cache_name, mnist_dir, options, code):
    args = ("--source", mnist_dir, "--split", "test", "--cache", cache_name)
    run("load", "mnist", *args, *options, code=code)
    assert not client.cache_exists(cache_name)


@pytest.mark.core
def test_no_node_is_said_in_one_line(tmp_path, mnist_dir):
    args = ["load", "mnist", "--source", str(mnist_dir), "--address", "127.0.0.1:1"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 1
    one_line_and_hint(result)


@pytest.mark.core
def test_csv_with_a_key_column_and_bad_rows(run, client, cache_name, tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("cell_id,size\n5,1.5\n7,2.5\n9,oops,1\n11,3.5\n")
    args = ("load", "csv", path, "--cache", cache_name, "--key", "CELL_ID", "-o", "json")
    one_line_and_hint(run(*args, code=1))
    assert not client.cache_exists(cache_name)
    result = run(*args, "--bad-records", "skip")
    report = json.loads(result.stdout)
    assert (report["rows"], report["skipped"]) == (3, 1)
    assert "skipped" in result.stderr and "cells.csv" in result.stderr
    assert client.cache(cache_name).get(7).SIZE == 2.5


@pytest.mark.core
def test_npz_named_after_its_file_in_blocks(run, client, tmp_path, cache_name):
    path = tmp_path / f"{cache_name.lower()}.npz"
    np.savez(path, x=np.arange(500, dtype=np.float32).reshape(100, 5), label=np.arange(100))
    report = json.loads(run("load", "npz", path, "--layout", "blocks", "-o", "json").stdout)
    assert (report["cache"], report["rows"]) == (cache_name, 100)
    assert json.loads(run("verify", cache_name, "--source", path, "-o", "json").stdout)["ok"]


def test_without_sql_there_is_no_table(run, tmp_path, cache_name):
    path = tmp_path / f"{cache_name.lower()}.npz"
    np.savez(path, x=np.arange(500, dtype=np.float32).reshape(100, 5), label=np.arange(100))
    rows = json.loads(run("load", "npz", path, "--no-sql", "-o", "json").stdout)["rows"]
    assert rows == 100
    tables = json.loads(run("table", "ls", "-o", "json").stdout)
    assert cache_name not in [table["cache"] for table in tables]
    assert json.loads(run("verify", cache_name, "--source", path, "-o", "json").stdout)["ok"]


def test_voc_reports_both_tables(run, cache_name, voc_dir):
    result = run("load", "voc", voc_dir, "--cache", cache_name, "--limit", 20, "-o", "json")
    reports = json.loads(result.stdout)
    assert [r["cache"] for r in reports] == [cache_name, f"{cache_name}_ANNOTATIONS"]


def test_several_files_are_one_table(run, cache_name, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    places = []
    for part in range(3):
        places.append(tmp_path / f"part-{part}.csv")
        places[-1].write_text("a,b\n" + "".join(f"{part * 10 + i},{i}\n" for i in range(10)))
    report = json.loads(run("load", "csv", *places, "--cache", cache_name, "-o", "json").stdout)
    assert report["rows"] == 30
    given = [word for place in places for word in ("--source", place)]
    assert json.loads(run("verify", cache_name, *given, "-o", "json").stdout)["ok"] is True
    given[-1] = places[0]
    run("verify", cache_name, *given, code=1)
    for part in range(2):
        table = pa.table({"a": [part], "b": ["x"]})
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    found = [tmp_path / f"{part}.parquet" for part in range(2)]
    name = f"{cache_name}_P"
    assert (
        json.loads(run("load", "parquet", *found, "--cache", name, "-o", "json").stdout)["rows"]
        == 2
    )


def test_tfrecords_with_a_key(run, client, cache_name, tmp_path):
    tf = pytest.importorskip("tensorflow")
    places = []
    for part in range(2):
        places.append(tmp_path / f"{part}.tfrecord")
        with tf.io.TFRecordWriter(str(places[-1])) as writer:
            for i in range(5):
                numbers = {"id": 100 * part + i, "x": i}
                features = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                    for name, value in numbers.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    args = ("load", "tfrecord", *places, "--cache", cache_name, "-o", "json")
    assert json.loads(run(*args, "--key", "ID").stdout)["rows"] == 10
    assert client.cache(cache_name).get(103).X == 3


def voc_pairs(folder, voc_dir):
    for kind, ending in (("JPEGImages", "jpg"), ("Annotations", "xml")):
        (folder / kind).mkdir(parents=True)
        for file in sorted((voc_dir / kind).glob(f"*.{ending}"))[:4]:
            shutil.copyfile(file, folder / kind / file.name)
    return sorted((folder / "JPEGImages").iterdir())[2], sorted((folder / "Annotations").iterdir())[
        2
    ]


def cut_image(image, note):
    image.write_bytes(image.read_bytes()[:3000])


def no_box(image, note):
    note.write_text("<annotation><object><name>RBC</name></object></annotation>")


def outside(image, note):
    note.write_text(note.read_text().replace("<xmax>", "<xmax>99"))


VOC_DAMAGES = {
    "corrupt JPEG": cut_image,
    "no box": no_box,
    "box outside": outside,
    "no image": lambda image, note: image.unlink(),
    "no annotation": lambda image, note: note.unlink(),
    "empty folder": lambda image, note: [
        file.unlink() for folder in (image.parent, note.parent) for file in folder.iterdir()
    ],
}


@pytest.mark.parametrize("damage", VOC_DAMAGES)
def test_bad_voc_is_one_line_and_leaves_nothing(run, client, cache_name, tmp_path, voc_dir, damage):
    """With --bad-records skip the good pairs are loaded, and the bad one is named once."""
    VOC_DAMAGES[damage](*voc_pairs(tmp_path / "voc", voc_dir))
    args = ("load", "voc", tmp_path / "voc", "--cache", cache_name, "-o", "json")
    one_line_and_hint(run(*args, code=1))
    assert [n for n in client.cache_names() if n.startswith(cache_name)] == []
    if damage != "empty folder":
        result = run(*args, "--bad-records", "skip")
        assert [report["rows"] > 0 for report in json.loads(result.stdout)] == [True, True]
        assert json.loads(result.stdout)[0]["rows"] == 3
        assert result.stderr.count("skipped") == 1
    else:
        one_line_and_hint(run(*args, "--bad-records", "skip", code=1))


BAD_TABLES = {
    "ragged": "a,b\n1,2\n3\n",
    # In the third block, of 4 MiB each.
    "types half-way": "a,b\n" + f"1,{'t' * 1000}\n" * 12_000 + "x,t\n",
    "no heading": "1,2\n1,2\n",
    "one name twice": "a,A\n1,2\n",
    "empty": "",
    "not UTF-8": b"a,b\n\xff\xfe,1\n",
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_bad_csv_is_one_line_and_leaves_nothing(run, client, cache_name, tmp_path, kind):
    path, content = tmp_path / "t.csv", BAD_TABLES[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = one_line_and_hint(run("load", "csv", path, "--cache", cache_name, code=1))
    assert "t.csv" in message
    assert [n for n in client.cache_names() if n.startswith(cache_name)] == []
