"""What the native core lands is what the general decoder reads, in every order; see net/flow.py."""

import numpy as np
import pytest
from helpers.plain_scan import scanned_batches

from ignitetf.errors import DataChanged
from ignitetf.load.loader import load_dataset
from ignitetf.read.keys import IntegerKeys
from ignitetf.read.lookup import KeyReading
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.scans import Permutation, ScanReading
from ignitetf.wire.columns import Runs, concat

pytestmark = pytest.mark.node
ROWS = 3_000
OPTIONS = {"nulls": "default", "on_change": "error"}


@pytest.fixture(scope="module")
def name(client):
    """Rows of many types, some of them changed by SQL since: nulls, and another form."""
    from ignitetf.tables.removal import remove_cache

    rng, found = np.random.default_rng(3), "CORE_READING"
    columns = {
        "A": np.arange(ROWS),
        "HALF": np.arange(ROWS) / 2,
        "IMAGE": rng.integers(0, 256, (ROWS, 6, 5), np.uint8),
        "TEXT": ["é" * int(n) for n in rng.integers(0, 60, ROWS)],
        "BLOB": [rng.bytes(int(n)) for n in rng.integers(0, 90_000, ROWS) ** 2 // 90_000],
    }
    load_dataset(columns, found, client=client, partitions=64, if_exists="replace")
    for key in rng.choice(ROWS, 20, replace=False).tolist():
        client.sql(f"UPDATE {found} SET A = NULL, TEXT = NULL WHERE _KEY = {key}").close()
    yield found
    remove_cache(client, found)


def values(batch):
    columns = {"": batch.key, **batch.columns}
    return {
        column: found.to_bytes() if isinstance(found, Runs) else found.values.tolist()
        for column, found in columns.items()
    }


def general(client, name, partitions):
    """The rows as the general decoder reads the pages that pyignite's way of asking returns."""
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    list(reader.batches([0]))  # so that its types are known
    parts = scanned_batches(reader, partitions)
    return values(concat([reader.without_nulls(part, None) for part in parts]))


def landed(batches):
    return values(concat([item.batch for item in batches if item.batch is not None]))


@pytest.mark.parametrize("page_size", [None, 1, 7, 100_000])
def test_partitions_in_any_order_and_pages_of_any_size(client, name, page_size):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS, page_size=page_size))
    order = np.random.default_rng(page_size or 0).permutation(64).tolist()
    expected = general(client, name, order)
    for _ in range(2):  # and their marks are those of the pass before
        assert landed(ScanReading(reader, order).batches()) == expected


def test_marks_do_not_depend_on_pages(client, name):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    for page_size in (None, 3, 50):
        found = CacheReader(client, name, ReadOptions(**OPTIONS, page_size=page_size))
        found.changes = reader.changes
        assert len(landed(ScanReading(found, range(64)).batches())[""]) == ROWS


def test_rows_of_which_nobody_knows_the_number(client, name):
    reader = CacheReader(client, name, ReadOptions(nulls="default", on_change="ignore"))
    expected = general(client, name, range(64))
    assert landed(ScanReading(reader, range(64)).batches()) == expected


def test_each_row_lands_at_its_place(client, name):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    counts = reader.partition_counts(range(64))
    places = np.random.default_rng(5).permutation(ROWS)
    plan = Permutation(places, np.zeros(64, np.int64))
    expected = general(client, name, range(64))
    found = landed(ScanReading(reader, range(64), (), plan).batches())
    assert sum(counts) == ROWS
    for column, wanted in expected.items():
        assert [found[column][place] for place in places.tolist()] == wanted


def test_rows_by_key_in_any_order(client, name):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    keys = IntegerKeys(reader.schema, ROWS)
    expected = general(client, name, range(64))
    rows = {key: number for number, key in enumerate(expected[""])}
    for numbers in (np.arange(ROWS), np.random.default_rng(1).permutation(ROWS), np.arange(1)):
        found = values(concat(list(KeyReading(reader, keys, numbers).batches())))
        order = [rows[key] for key in numbers.tolist()]
        for column, wanted in expected.items():
            assert found[column] == [wanted[row] for row in order]


def test_batches_end_where_they_must(client, name):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    counts, parts, rows = reader.partition_counts(range(64)), [], 0
    for item in ScanReading(reader, range(64), [5, 6, 63]).batches():
        if item.batch is None:
            parts.append(rows)
        else:
            rows += len(item.batch)
    assert parts == [sum(counts[:6]), sum(counts[:7]), ROWS]


def test_rows_that_come_and_go_are_told(client, name):
    reader = CacheReader(client, name, ReadOptions(**OPTIONS))
    keys = IntegerKeys(reader.schema, ROWS + 5)
    with pytest.raises(DataChanged, match="rows are gone"):
        list(KeyReading(reader, keys, np.arange(ROWS + 5)).batches())
    client.sql(f"INSERT INTO {name} (_KEY, A) VALUES (90000, 1)").close()
    try:
        with pytest.raises(DataChanged, match=r"entries, .*stored|than in an earlier"):
            list(ScanReading(reader, range(64)).batches())
    finally:
        client.sql(f"DELETE FROM {name} WHERE _KEY = 90000").close()
