"""The columns of a whole result are what the same statement gives page by page."""

import datetime
import decimal
import random
import uuid

import numpy as np
import pyarrow as pa
import pytest
from pyignite import GenericObjectMeta
from pyignite import datatypes as t

from ignitetf import dbapi
from ignitetf.load.loader import load_dataset
from ignitetf.net.channel import Delay

pytestmark = pytest.mark.node

ROWS = 1500
CITIES = ["Oslo", "", "Zürich", "東京", "x" * 300, None]


@pytest.fixture
def connection(client):
    with dbapi.connect(client.settings.addresses) as made:
        yield made


def whole_of(cursor):
    """All rows of a result, from the columns that `fetch_numpy` and the others make arrays of."""
    _, pages = cursor._whole()
    return [row for page in pages for row in zip(*(v.to_python() for v in page), strict=True)]


def both(connection, statement):
    """The rows of a statement, page by page and as a whole."""
    return list(connection.execute(statement)), whole_of(connection.execute(statement))


def row_of(number, rng):
    return (
        number,
        f"k{number % 7}",
        rng.choice([None, rng.randrange(-(2**63), 2**63)]),
        rng.choice([rng.random(), float("inf"), -0.0, None]),
        rng.choice(CITIES),
        rng.choice([True, False, None]),
        rng.randrange(-128, 128),
        rng.randrange(-(2**15), 2**15),
        np.float32(rng.random()).item(),
        decimal.Decimal(rng.randrange(10**6)) / 100,
        datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=rng.randrange(10**6)),
        datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(1000)),
        uuid.UUID(int=rng.getrandbits(128)),
    )


COLUMNS = (
    'ID INT, KIND VARCHAR, BIG BIGINT, X DOUBLE, "City" VARCHAR, OK BOOLEAN, B TINYINT, S SMALLINT,'
    " F REAL, PRICE DECIMAL(10, 2), AT TIMESTAMP, D DATE, U UUID"
)


def fill(connection, name, key, options=""):
    connection.execute(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY ({key})) {options}")
    rng = random.Random(name)
    marks = ", ".join("?" * 13)
    rows = [row_of(number, rng) for number in range(ROWS)]
    connection.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


@pytest.fixture
def table(connection, cache_name):
    yield cache_name.upper()
    connection.execute(f"DROP TABLE IF EXISTS {cache_name}")


@pytest.mark.parametrize(
    ("key", "options"),
    [("ID", ""), ("ID", 'WITH "WRAP_KEY=true"'), ("ID, KIND", 'WITH "TEMPLATE=p8"')],
)
def test_the_rows_as_a_whole_are_those_of_the_pages(connection, table, key, options):
    fill(connection, table, key, options)
    for statement in (
        f"SELECT * FROM {table}",
        f'SELECT x."City" c, F, ID, BIG, X, KIND, AT, PRICE, ID FROM PUBLIC.{table} AS x',
        f'SELECT KIND, BIG, "City", X, D, PRICE, OK, B, S FROM {table}',
        f"SELECT ID, BIG, X FROM {table} ORDER BY ID DESC",
    ):
        pages, whole = both(connection, statement)
        assert len(whole) == ROWS
        assert repr(whole) == repr(pages)
        frame = connection.execute(statement).fetch_arrow_table()
        stream = pa.table(connection.execute(statement))
        # Of decimals a stream keeps more digits than are there.
        assert frame.cast(stream.schema).equals(stream)


def test_a_table_that_was_altered_has_the_columns_that_it_has_now(connection, table):
    fill(connection, table, "ID")
    connection.execute(f"ALTER TABLE {table} ADD COLUMN LATE INT")
    connection.execute(f"UPDATE {table} SET LATE = ID WHERE ID > 1400")
    connection.execute(f"ALTER TABLE {table} DROP COLUMN KIND")
    pages, whole = both(connection, f"SELECT * FROM {table}")
    assert repr(whole) == repr(pages) and len(whole[0]) == 13


def test_a_data_set_is_taken_by_its_name(connection, client, cache_name):
    rows = 4 * ROWS
    columns = {
        "AGE": np.arange(rows, dtype=np.int32),
        "X": np.random.default_rng(3).random(rows),
        "NAME": [f"name {n}" for n in range(rows)],
    }
    load_dataset(pa.table(columns), cache_name, client=client, partitions=4)
    pages, whole = both(connection, f'SELECT * FROM "{cache_name}"')
    assert len(whole) == rows and repr(whole) == repr(pages)


def value_class(client, table, **fields):
    found = client.sql("SELECT VALUE_TYPE_NAME FROM SYS.TABLES WHERE TABLE_NAME = ?", [table])
    return GenericObjectMeta(found.fetchall()[0][0], (), {}, schema=fields)


SMALL = "ID INT PRIMARY KEY, A BIGINT, X DOUBLE, C VARCHAR"


@pytest.mark.parametrize("extra", [False, True])
def test_rows_that_are_unlike_the_table_are_what_the_node_makes_of_them(
    connection, client, table, extra
):
    """An Integer among Longs as the last row, or a field that the table does not have."""
    connection.execute(f'CREATE TABLE {table} ({SMALL}) WITH "CACHE_NAME={table}"')
    rows = [(n, n * 2**40, n / 3, f"c{n}") for n in range(ROWS)]
    connection.cursor().executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
    kinds = {"A": t.LongObject, "X": t.DoubleObject, "C": t.String}
    values = {"A": 5, "X": 1.5, "C": "c"}
    if extra:
        kinds["HIDDEN"], values["HIDDEN"] = t.String, "x" * 1000
    else:
        kinds["A"] = t.IntObject
    unlike = value_class(client, table, **kinds)
    cache = client.pyignite.get_cache(table)
    for key in (10_001, 10_002, 10_003):
        cache.put(key, unlike(**values), key_hint=t.IntObject)
    statement = f"SELECT * FROM {table}"
    try:
        expected = list(connection.execute(statement))
    except dbapi.Error as error:
        with pytest.raises(type(error)):
            whole_of(connection.execute(statement))
    else:
        assert whole_of(connection.execute(statement)) == expected


def test_a_slow_handshake_does_not_make_a_near_node_a_distant_one(connection):
    pool = connection.client()
    pool.close_idle()
    pool.delay = Delay()
    pool.delay.add(100.0)
    connection.execute("SELECT 1").fetchall()
    assert pool.delay.seconds < 100.0


def test_nothing_is_left_on_the_node(connection, client, table):
    fill(connection, table, "ID")
    whole_of(connection.execute(f"SELECT * FROM {table}"))
    query = "SELECT COUNT(*) FROM SYS.SQL_QUERIES WHERE SQL LIKE ?"
    assert client.sql(query, [f"%FROM %{table}%"]).fetchall() == [(0,)]
