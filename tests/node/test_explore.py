"""`head`, `stats` and `preview` against what the same rows are in NumPy, in rows and in blocks."""

import datetime
import io
import json
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from ignitetf.cli.values import jsonable
from ignitetf.errors import SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.explore.preview import contact_sheet, half_blocks
from ignitetf.explore.stats import dataset_stats
from ignitetf.explore.times import iso_text
from ignitetf.load.loader import load_dataset

pytestmark = pytest.mark.node
ROWS = 500


def made_rows():
    rng = np.random.default_rng(4)
    for i in range(ROWS):
        yield {
            "IMAGE": rng.integers(0, 256, (6, 5, 3), dtype=np.uint8),
            "LABEL": int(i % 4),
            "SCORE": float(rng.normal(1e6, 2.0)) if i % 7 else None,
            "NAME": f"row {i % 3}",
        }


@pytest.fixture(scope="module", params=["rows", "blocks"])
def cache(request, client):
    name = f"EXPLORE_{request.param.upper()}"
    rows = list(made_rows())
    if request.param == "blocks":
        rows = [{k: v for k, v in row.items() if k != "SCORE"} for row in rows]
    load_dataset(rows, name, client=client, partitions=4, layout=request.param, if_exists="replace")
    yield name, rows
    client.destroy_cache(name)


@pytest.mark.core
def test_head_gives_the_rows_of_their_keys(client, cache):
    name, rows = cache
    found = first_rows(client, name, ROWS)
    assert sorted(r["key"] for r in found) == list(range(ROWS))
    assert [r["key"] for r in first_rows(client, name, 7)] == [r["key"] for r in found[:7]]
    for record in found:
        expected = rows[record["key"]]
        assert (record["IMAGE"] == expected["IMAGE"]).all()
        assert all(record[n] == v for n, v in expected.items() if n != "IMAGE")


@pytest.mark.core
def test_stats_are_those_of_numpy(client, cache):
    name, rows = cache
    found = dataset_stats(client, name)
    columns = {c.name: c for c in found.columns}
    assert found.rows == sum(found.partition_rows) == ROWS
    images = np.stack([r["IMAGE"] for r in rows])
    image = columns["IMAGE"]
    assert (image.minimum, image.maximum) == (images.min(), images.max())
    assert (image.mean, image.std) == pytest.approx((images.mean(), images.std()))
    assert columns["LABEL"].top == {str(i): ROWS // 4 for i in range(4)}
    assert columns["NAME"].distinct == 3
    assert (columns["NAME"].minimum, columns["NAME"].maximum) == (5, 5)
    if "SCORE" in columns:
        scores = np.array([r["SCORE"] for r in rows if r["SCORE"] is not None])
        score = columns["SCORE"]
        assert (score.rows, score.nulls) == (len(scores), ROWS - len(scores))
        # The deviation is a millionth of the mean: a naive sum of squares would lose it.
        assert (score.mean, score.std) == pytest.approx((scores.mean(), scores.std()), rel=1e-9)


def test_times_are_told_as_times(client):
    client.sql('DROP TABLE IF EXISTS "EXPLORE_TIMES"').close()
    client.sql(
        "CREATE TABLE EXPLORE_TIMES (ID INT PRIMARY KEY, D DATE, C TIME, T TIMESTAMP)"
    ).close()
    days = [
        datetime.date(1815, 12, 10),
        None,
        datetime.date(2024, 2, 29),
        datetime.date(9999, 1, 1),
    ]
    clocks = [datetime.time(0, 0, 1), datetime.time(23, 59, 59), None, datetime.time(4, 30)]
    moments = [datetime.datetime(2024, 2, 29, 12, 30, 0, 5000 * i) for i in range(4)]
    for row in zip(range(4), days, clocks, moments, strict=True):
        texts = [None if value is None else str(value) for value in row[1:]]
        statement = (
            "INSERT INTO EXPLORE_TIMES VALUES (?,"
            " CAST(? AS DATE), CAST(? AS TIME), CAST(? AS TIMESTAMP))"
        )
        client.sql(statement, [row[0], *texts]).close()
    found = {c.name: c for c in dataset_stats(client, "EXPLORE_TIMES").columns}
    for name, values in (("D", days), ("C", clocks), ("T", moments)):
        there = [value for value in values if value is not None]
        column = found[name]
        bounds = [iso_text(column.minimum), iso_text(column.maximum)]
        assert bounds == [_iso(min(there)), _iso(max(there))]
        assert column.top == {_iso(value): 1 for value in there}
        assert (column.rows, column.nulls) == (len(there), 4 - len(there))
    assert iso_text(found["T"].mean) == "2024-02-29T12:30:00.007500"
    assert found["T"].std == np.timedelta64(5_590_170, "ns")
    shown = {row["key"]: row for row in first_rows(client, "EXPLORE_TIMES")}
    for i in range(4):
        given = [None if v is None else _iso(v) for v in (days[i], clocks[i], moments[i])]
        assert [jsonable(shown[i][name]) for name in "DCT"] == given
    client.sql("DROP TABLE EXPLORE_TIMES").close()


def _iso(value):
    is_day = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return f"{value}T00:00:00" if is_day else value.isoformat()


def test_the_sheet_shows_the_images(client, cache):
    name, _ = cache
    _, rows = cache
    sheet = contact_sheet(client, name, count=8, columns=2, size=60)
    assert (sheet.field, sheet.shown, sheet.undecodable) == ("IMAGE", 8, 0)
    assert [tile.caption for tile in sheet.tiles] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    pixels = np.asarray(sheet.image)
    # 6 x 5 pixels become 60 x 50, in the middle of a tile of 60.
    first = pixels[4 + 5 : 64 : 10, 4 + 5 + 5 : 4 + 55 : 10]
    assert any((first == row["IMAGE"]).all() for row in rows if row["LABEL"] == 0)
    assert half_blocks(sheet.image, 20).count("▀") % 20 == 0
    text = sheet.text(40)
    assert text.count("▀") and [
        line.split() for line in text.split("\n") if line[:1] in tuple("0123")
    ]
    if name.endswith("ROWS"):
        some = contact_sheet(client, name, count=4, where="LABEL IN (1, 3)")
        assert [tile.caption for tile in some.tiles] == ["1", "1", "3", "3"]
        with pytest.raises(SchemaError, match="no row matches LABEL = 9"):
            contact_sheet(client, name, where="LABEL = 9")


def test_what_is_no_image_is_told(client):
    load_dataset(
        [{"A": 1, "BLOB": b"no image"}], "EXPLORE_NONE", client=client, if_exists="replace"
    )
    with pytest.raises(SchemaError, match="no field contains images"):
        contact_sheet(client, "EXPLORE_NONE")
    with pytest.raises(SchemaError, match="no field 'X'"):
        contact_sheet(client, "EXPLORE_NONE", field="X")
    client.destroy_cache("EXPLORE_NONE")


@pytest.mark.core
def test_commands(client, address, tmp_path):
    name, picture = "EXPLORE_CLI", io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).save(picture, "PNG")
    rows = [{"IMAGE": picture.getvalue(), "LABEL": 1}, {"IMAGE": b"broken", "LABEL": 2}]
    load_dataset(rows, name, client=client, partitions=1, if_exists="replace")

    def run(*args):
        program = "from ignitetf.cli.main import main; main()"
        command = [sys.executable, "-c", program, *args, "--address", address, "-o", "json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    assert [r["LABEL"] for r in run("head", name, "-n", "5")] == [1, 2]
    assert run("stats", name)["rows"] == 2
    out = tmp_path / "sheet.png"
    found = run("preview", name, "--out", str(out))
    assert (found["images"], found["undecodable"]) == (2, 1)
    assert Image.open(out).size[0] > 100
    client.destroy_cache(name)


def test_decimals_are_described_by_their_values(client, cache_name):
    texts = ["-7.25", "123456789012345678901234567890.5", "3", "3"]
    load_dataset([{"D": Decimal(text)} for text in texts], cache_name, client=client)
    (found,) = [c for c in dataset_stats(client, cache_name).columns if c.name == "D"]
    assert (found.minimum, found.maximum) == (Decimal(texts[0]), Decimal(texts[1]))
    assert found.mean == pytest.approx(float(sum(map(Decimal, texts))) / 4)
    assert found.distinct == 3
