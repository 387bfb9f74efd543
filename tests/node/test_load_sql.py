"""The rows of a SELECT as a data set: joins, types as they were, and what cannot be gone on with."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from ignitetf.errors import ConfigError, SourceError
from ignitetf.explore.head import first_rows
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.net.client import connect
from ignitetf.tables.catalog import read_manifest

pytestmark = pytest.mark.node
TYPES = {
    "B": ("TINYINT", 1), "S": ("SMALLINT", 2), "I": ("INT", 3), "L": ("BIGINT", 4), "R": ("REAL", 1.5),
    "D": ("DOUBLE", 2.5), "T": ("VARCHAR", "é"), "Y": ("BOOLEAN", True), "C": ("DECIMAL(9,2)", "1.25"),
}  # fmt: skip


@pytest.fixture
def joined(client, cache_name):
    """A data set of pixels, and a table of patients by SQL."""
    images = [{"IMAGE": np.full((2, 3), i, np.uint8), "VEC": np.arange(3.0) + i, "PID": i % 3,
               "LABEL": i % 2} for i in range(200)]  # fmt: skip
    load_dataset(images, f"{cache_name}_A", client=client)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    table = f"{cache_name}_B"
    client.sql(f"CREATE TABLE {table} (PID BIGINT PRIMARY KEY, {columns})").close()
    values = [value for _, value in TYPES.values()]
    marks = ", ".join("?" * (len(values) + 1))
    for pid in (0, 1):
        row = [pid, *(values if pid else [None] * len(values))]
        client.sql(f"INSERT INTO {table} VALUES ({marks})", row).close()
    return cache_name, (
        f"SELECT A.ID, A.IMAGE, A.VEC, A.LABEL, B.B, B.S, B.I, B.L, B.R, B.D, B.T, B.Y, B.C, B.L + 1 AS M"
        f" FROM {cache_name}_A A JOIN {table} B ON A.PID = B.PID"
    )


def test_a_join_becomes_a_data_set_with_its_types(client, address, joined):
    name, select = joined
    opening = {"connect": functools.partial(connect, address)}
    source = open_source("sql", select, key="ID", **opening)
    load_dataset(source, name, client=client)
    schema = read_manifest(client, name).schema
    assert schema["IMAGE"].shape == (2, 3) and schema["VEC"].shape == (3,)
    kinds = ["BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "STRING", "BOOL", "DECIMAL", "LONG"]
    assert [schema[n].type.name for n in (*TYPES, "M")] == kinds
    rows = {row["key"]: row for row in first_rows(client, name, 300)}
    assert sorted(rows) == [i for i in range(200) if i % 3 < 2]
    for i, row in rows.items():
        assert (row["IMAGE"] == i).all() and (row["VEC"] == np.arange(3) + i).all()
        expected = [value if i % 3 else None for _, value in TYPES.values()]
        assert [row[n] for n in TYPES] == expected
    again = open_source("sql", select, key="ID", **opening)
    with pytest.raises(ConfigError, match="no unfinished load"):
        load_dataset(again, name, client=client, if_exists="resume")


def test_what_is_no_source_is_told(address, joined):
    name, select = joined
    opening = {"connect": functools.partial(connect, address)}
    for text, error, words in (
        (f"DELETE FROM {name}_A", ConfigError, "no SELECT"),
        (f"{select} WHERE 1 = 0", SourceError, "no rows"),
        (f"SELECT PID, PID AS PID FROM {name}_A", SourceError, "two columns are called PID"),
        (f"SELECT COUNT(*) FROM {name}_A", SourceError, "not a SQL identifier"),
    ):
        with pytest.raises(error, match=words) as caught:
            open_source("sql", text, **opening)
        assert caught.value.hint


def test_the_command(client, address, joined):
    name, select = joined
    program = "from ignitetf.cli.main import main; main()"
    command = [sys.executable, "-c", program, "load", "sql", select, "--address", address]
    done = subprocess.run(
        [*command, "--cache", name, "-o", "json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["rows"] == 134
    assert client.partition_count(name) == 16
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and "--cache NAME" in done.stderr
