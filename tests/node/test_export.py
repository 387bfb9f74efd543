"""`ignitetf export`: what is exported and loaded again is equal, in every format."""

import contextlib
import datetime as dt
import io
import json
import shlex
import signal
import subprocess
import time
import uuid
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from helpers.interruptible import COMMAND
from PIL import Image

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.explore.preview import contact_sheet
from ignitetf.explore.stats import dataset_stats
from ignitetf.export.export import export_dataset
from ignitetf.load.kinds import KINDS
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import read_manifest, write_manifest
from ignitetf.tables.describe import describe

pytestmark = pytest.mark.node
ROWS = 300


def command(*words, **options):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, **options)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def same(left, right):
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return left == right


def content(client, name):
    """All rows by key, and what the manifest says of them."""
    manifest = read_manifest(client, name)
    rows = first_rows(client, name, manifest.rows + 1)
    return {row.pop("key"): row for row in rows}, manifest


def require_equal(client, name, again):
    (rows, old), (found, new) = content(client, name), content(client, again)
    assert found.keys() == rows.keys()
    for key, row in rows.items():
        assert sorted(found[key]) == sorted(row), key
        assert all(same(found[key][n], value) for n, value in row.items()), (key, found[key], row)
    types = [{f.name: (f.type, f.dtype, f.shape) for f in m.schema.fields} for m in (old, new)]
    assert types[0] == types[1]


def check_round_trip(client, name, target, **options):
    """Export, load as the report says, compare."""
    report = export_dataset(name, str(target), client=client, **options)
    _, load, kind, place, cache, _, *words = shlex.split(report.load)
    assert (load, cache) == ("load", "--cache")
    flags = {option.flag: option for option in KINDS[kind].options}
    found = {}
    while words:
        option = flags[words.pop(0)]
        found[option.name] = True if option.type is bool else option.type(words.pop(0))
    source = open_source(kind, place, **found)
    load_dataset(source, f"{name}_AGAIN", client=client, if_exists="replace")
    require_equal(client, name, f"{name}_AGAIN")
    return report


def picture(number):
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG" if number % 2 else "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """Image files of two classes, with a table that has nulls."""
    folder = tmp_path_factory.mktemp("pets")
    lines = ["path,label,age,score,taken,note"]
    for i in range(60):
        path = f"{'cat' if i % 3 else 'dog'}/{i:02}.{'jpg' if i % 2 else 'png'}"
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(picture(i))
        age = "" if i % 5 == 0 else i
        note = '"é, x"' * (i % 2)
        lines.append(f"{path},{path[:3]},{age},{i / 3},2024-01-{i % 28 + 1:02},{note}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def require_class_names(client, address, name):
    """Class names are wherever labels are shown."""
    assert open_rows(name, client=client, nulls="default").class_names == ["cat", "dog"]
    assert describe(client, name)["class_names"] == ["cat", "dog"]
    assert dataset_stats(client, name).class_names == ["cat", "dog"]
    sheet = contact_sheet(client, name, count=6)
    assert [tile.caption for tile in sheet.tiles] == ["cat"] * 3 + ["dog"] * 3


FORMATS = {"folder": "", "tfrecord": ".tfrecord", "parquet": ".parquet", "webdataset": ".tar"}
FORMATS["huggingface"] = ".parquet"


@pytest.mark.parametrize("kind", FORMATS)
def test_images_come_back_as_they_were(client, address, cache_name, pets, tmp_path, kind):
    source = open_source("images", pets / "labels.csv")
    load_dataset(source, cache_name, client=client)
    assert client.partition_count(cache_name) == 16
    options = {"format": kind}
    if kind == "tfrecord":
        with pytest.raises(SchemaError, match=r"SCORE.*64 bits|TAKEN.*tfrecord cannot hold"):
            export_dataset(cache_name, str(tmp_path / "out.tfrecord"), client=client)
        assert not names_in(tmp_path)
        options["fields"] = ["IMAGE", "LABEL", "NAME", "AGE", "NOTE"]
        load_dataset(
            open_source("images", pets / "labels.csv", columns="label,age,note"),
            cache_name, client=client, if_exists="replace",
        )  # fmt: skip
    target = tmp_path / f"out{FORMATS[kind]}"
    report = check_round_trip(client, cache_name, target, **options)
    assert report.rows == 60
    require_class_names(client, address, cache_name)
    if kind in ("folder", "huggingface"):
        assert read_manifest(client, f"{cache_name}_AGAIN").class_names == ("cat", "dog")
    if kind == "folder":
        for i in (0, 1):
            path = f"{'cat' if i % 3 else 'dog'}/{i:02}.{'jpg' if i % 2 else 'png'}"
            assert (target / path).read_bytes() == picture(i)


def typed(i):
    return {
        "IMAGE": np.full((4, 3, 1), i % 250, np.uint8),
        "DEEP": np.full((2, 2), i * 200, np.uint16),
        "VEC": np.arange(i % 4, dtype=np.float32),
        "DOUBLES": np.array([i / 7, -0.1]),
        "I16": np.int16(i - 100),
        "U32": np.uint32(4_000_000_000 + i),
        "LONG": -(2**60) + i,
        "HALF": i / 2,
        "FLAG": bool(i % 2),
        "TEXT": f'zeile {i}\n"ü",' if i % 3 else "",
        "WORDS": [f"w{k}" for k in range(i % 3)],
        "LABEL": i % 10,
        "NOTHING": None if i % 4 else i,
        "NO_TEXT": None if i % 5 else f"t{i}",
    }


@pytest.fixture
def rows(client, cache_name):
    load_dataset([typed(i) for i in range(ROWS)], cache_name, client=client)
    return cache_name


@pytest.mark.parametrize("kind", ["tfrecord", "parquet", "webdataset", "huggingface"])
def test_typed_rows_come_back_as_they_were(client, address, rows, tmp_path, kind):
    target = tmp_path / "out"
    report = check_round_trip(client, rows, target, format=kind, shards=3)
    assert (report.files, report.rows) == (3, ROWS)
    assert len([n for n in names_in(target) if not n.startswith(".")]) == 3


def test_times_decimals_and_keys_of_their_own(client, address, cache_name, tmp_path):
    made = [
        {
            "K": f"k{i:03}",
            "AT": dt.datetime(2024, 1, 1, 2, 3, 4, i) if i % 3 else None,
            "DAY": dt.date(2024, 1, 1) + dt.timedelta(days=i),
            "CLOCK": dt.time(1, 2, i % 60),
            "PRICE": Decimal(i) / 4,
            "UID": uuid.UUID(int=i),
        }
        for i in range(40)
    ]
    load_dataset(made, cache_name, client=client, key="K")
    for kind in ("parquet", "webdataset"):
        check_round_trip(client, cache_name, tmp_path / kind, format=kind)
    with pytest.raises(SchemaError, match="tfrecord cannot hold") as caught:
        export_dataset(cache_name, str(tmp_path / "x.tfrecord"), client=client)
    assert "--fields" in caught.value.hint
    with pytest.raises(SchemaError, match="no field contains images"):
        export_dataset(cache_name, str(tmp_path / "x"), client=client)
    assert names_in(tmp_path) == ["parquet", "webdataset"]


def test_rows_in_blocks_keep_their_keys(client, address, cache_name, tmp_path):
    made = [{"X": i, "VEC": np.full(3, i, np.float32)} for i in range(200)]
    load_dataset(made, cache_name, client=client, layout="blocks")
    check_round_trip(client, cache_name, tmp_path / "out", format="tfrecord", shards=2)


def test_pixels_go_to_a_folder_and_rows_can_be_chosen(client, address, cache_name, tmp_path):
    texts = ["007", "NA", "null", "", 'a "b", c', "two\nlines", " x ", "é"]
    made = [
        {
            "IMAGE": np.full((4, 3, 1), i * 1000, np.uint16),
            "LABEL": np.int32(i % 3),
            "NAME": ("../x", "a b/ü.png", "", "same", "/abs", ".hid")[i % 6],
            "WORD": texts[i % 8],
            "SHORT": np.int16(-i),
            "REAL": np.float32(i / 3),
            "SCORE": i / 3 if i % 4 else None,
            "FLAG": bool(i % 2),
            "AT": dt.datetime(2024, 1, 1, 2, 3, 4, i),
            "DAY": dt.date(2024, 1, i % 28 + 1) if i % 5 else None,
        }
        for i in range(50)
    ]
    load_dataset(made, cache_name, client=client)
    check_round_trip(client, cache_name, tmp_path / "all")
    assert names_in(tmp_path) == ["all"] and not (tmp_path / "x").exists()
    load_dataset(
        [{**made[0], "WORD": None}, made[1]], cache_name, client=client, if_exists="replace"
    )
    with pytest.raises(SchemaError, match=r"WORD.*nulls"):
        export_dataset(cache_name, str(tmp_path / "none"), client=client)
    assert names_in(tmp_path) == ["all"]
    load_dataset(made, cache_name, client=client, if_exists="replace")
    report = export_dataset(
        cache_name, str(tmp_path / "one.parquet"), client=client, where="LABEL = 1"
    )
    assert report.rows == 17 and "--key KEY" in report.load
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "one.parquet")
    assert table["KEY"].to_pylist() == list(range(1, 50, 3))


def test_every_image_of_a_folder_has_a_path_of_its_own(client, address, cache_name, tmp_path):
    names = [
        "00000001.png", "", "", "a.png", "a.png/b.png", "A.PNG", "c/d", "c/d.png/e", " lead.png",
        "trail.png ", "ü" * 150, "labels.csv", "labels.csv/x.png", "a/" * 90 + "x", "3/00000014.png",
        ".", "..", "/", "//", "./x", "a/.", "a/..", "a\0b", "a\nb", "x" * 5000, " ", "...", "\\",
    ]  # fmt: skip
    texts = ["a\rb", "a\r\nb", "\n", "\ufeffx", "'", '"', "\t", "\x85", "\u2028", " "]
    # Names that are numbers, but not their own; one is as long as no folder's may be.
    classes = ["1", "10", "11", "2", "x" * 300, "a/b", "..", ".", "/"]
    made = [
        {
            "IMAGE": picture(i),
            "LABEL": np.int32(i % len(classes)),
            "NAME": name,
            "TEXT": texts[i % len(texts)],
        }
        for i, name in enumerate(names)
    ]
    load_dataset(made, cache_name, client=client)
    manifest = replace(read_manifest(client, cache_name), class_names=tuple(classes))
    write_manifest(client, manifest)
    check_round_trip(client, cache_name, tmp_path / "out")
    assert read_manifest(client, f"{cache_name}_AGAIN").class_names == tuple(classes)
    files = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert len(files) == len(names) + 3  # the table, the classes, the mark of an export
    for odd in (("1", "10"), ("1", "a\nb", *classes[2:])):  # a label has no name; a name two lines
        write_manifest(client, replace(manifest, class_names=odd))
        with pytest.raises(SchemaError, match=r"LABEL.*(not a class|class name)"):
            export_dataset(cache_name, str(tmp_path / "odd"), client=client)
    assert names_in(tmp_path) == ["out"]


def test_tables_of_sql_are_exported_with_nulls_and_keys(client, address, cache_name, tmp_path):
    client.sql(
        f"CREATE TABLE {cache_name} (ID VARCHAR PRIMARY KEY, B TINYINT, S SMALLINT, R REAL, D DOUBLE,"
        " T VARCHAR, Y BOOLEAN, C DECIMAL(20,3), X BINARY(4), U UUID, DA DATE, TI TIME, TS TIMESTAMP)"
    ).close()
    for values in (
        "('a',1,2,1.5,0.1,'é',TRUE,123456789.125,X'01020304','12345678-1234-1234-1234-123456789abc',"
        "'2024-02-29','13:14:15','2024-02-29 13:14:15.123456789')",
        "('b'" + ",NULL" * 12 + ")",
    ):
        client.sql(f"INSERT INTO {cache_name} VALUES {values}").close()
    rows = {row["key"]: row for row in first_rows(client, cache_name)}
    assert list(rows["b"].values()) == ["b"] + [None] * 12
    for kind in ("parquet", "webdataset"):
        report = export_dataset(cache_name, str(tmp_path / kind), client=client, format=kind)
        assert report.load.endswith("--key KEY")
        source = open_source(kind, str(tmp_path / kind), key="KEY")
        load_dataset(source, f"{cache_name}_AGAIN", client=client, if_exists="replace")
        found = {r["key"]: r for r in first_rows(client, f"{cache_name}_AGAIN")}
        assert found.keys() == rows.keys()
        assert all(same(found[k][name], v) for k in rows for name, v in rows[k].items())
    pair = f"{cache_name}_PAIR"
    client.sql(f"CREATE TABLE {pair} (P BIGINT, Q VARCHAR, V REAL, PRIMARY KEY(P, Q))").close()
    client.sql(f"INSERT INTO {pair} VALUES (1, 'x', 0.5), (1, 'y', NULL)").close()
    report = export_dataset(pair, str(tmp_path / "pair.tfrecord"), client=client)
    *words, place, _, _, option, features = shlex.split(report.load)
    assert (words[-1], option) == ("tfrecord", "--features")
    load_dataset(open_source("tfrecord", place, features=features), f"{pair}_AGAIN", client=client)
    found = [(r["P"], r["Q"], r["V"]) for r in first_rows(client, f"{pair}_AGAIN")]
    assert sorted(found) == [(1, "x", 0.5), (1, "y", None)]


def test_of_two_exports_to_one_target_the_first_to_end_has_it(client, address, rows, tmp_path):
    for shards in (1, 2):
        target = tmp_path / f"out{shards}"
        options = {"format": "parquet", "shards": shards}

        def other(rows_written, size, target=target, options=options):
            export_dataset(rows, str(target), client=client, fields=["I16"], **options)

        with pytest.raises(ConfigError, match="exists"):
            export_dataset(rows, str(target), client=client, on_progress=other, **options)
        found = open_source("parquet", str(target))
        assert found.schema.names == ("I16",) and sum(map(len, found.batches())) == ROWS
    assert names_in(tmp_path) == ["out1", "out2"]


def test_a_full_disk_is_told_with_the_target_and_left_empty(client, address, rows, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for kind in ("tfrecord", "parquet", "webdataset"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        try:
            with pytest.raises(OSError, match=f"out.{kind}"):
                export_dataset(rows, str(tmp_path / f"out.{kind}"), client=client, format=kind)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not names_in(tmp_path)


def test_the_target_is_whole_or_not_there(client, address, rows, tmp_path):
    target = tmp_path / "out.parquet"
    for words in (["out.parket"], ["out", "--format", "parqet"], ["out", "--split", "tran"]):
        done = command("export", rows, str(tmp_path / words[0]), *words[1:], "--address", address)
        assert done.returncode and "hint" in done.stderr, done.stderr
    done = command("export", rows, str(target), "--address", address, "-o", "json")
    found = json.loads(done.stdout)
    assert found["rows"] == ROWS
    words = shlex.split(found["load"].replace(f"--cache {rows}", f"--cache {rows}_AGAIN"))[1:]
    assert command(*words, "--address", address).returncode == 0
    require_equal(client, rows, f"{rows}_AGAIN")
    before = target.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        export_dataset(rows, str(target), client=client)

    def fail(rows, size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dataset(rows, str(target), client=client, overwrite=True, on_progress=fail)
    assert target.read_bytes() == before and names_in(tmp_path) == ["out.parquet"]
    export_dataset(rows, str(target), client=client, overwrite=True, fields=["I16"])
    assert target.read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="not made by an export"):
        options = {"shards": 2, "overwrite": True, "format": "tfrecord"}
        export_dataset(rows, str(tmp_path / "mine"), client=client, **options)
    for _ in range(2):
        export_dataset(rows, str(tmp_path / "s"), client=client, **options)
    assert names_in(tmp_path) == ["mine", "out.parquet", "s"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_export_leaves_nothing(client, address, cache_name, tmp_path, how):
    load_dataset({"X": np.zeros((3000, 20_000), np.uint8)}, cache_name, client=client)
    words = ["export", cache_name, str(tmp_path / "out"), "--format", "webdataset", "--shards", "9"]
    with subprocess.Popen([*COMMAND, *words, "--address", address]) as process:
        until = time.monotonic() + 60
        while not any(p.stat().st_size for p in tmp_path.glob(".out.*/*.tar")):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.005)
        process.send_signal(how)
        assert process.wait(60)
    assert not names_in(tmp_path)
    with contextlib.suppress(Exception):
        client.destroy_cache(cache_name)


def test_into_igfs(client, address, rows):
    import fsspec

    url = f"igfs://{address}/export-{rows}"
    fs, path = fsspec.url_to_fs(url)
    fs.makedirs(path)
    for shards in (1, 2, 2):
        target = f"{url}/{'one.parquet' if shards == 1 else 'two'}"
        options = {"format": "parquet", "shards": shards, "overwrite": True}
        export_dataset(rows, target, client=client, **options)
    assert fs.cat(f"{path}/one.parquet")[:4] == b"PAR1"
    found = {name.removeprefix(f"{path}/") for name in fs.find(path)}
    shard = "two/0000{}-of-00002.parquet"
    assert found - {"two/.ignitetf-export"} == {"one.parquet", shard.format(0), shard.format(1)}
    fs.rm(path, recursive=True)
