"""Frames through SQLAlchemy: pandas, Polars and DuckDB see the rows that were written."""

import datetime
import os

import duckdb
import hypothesis.strategies as some
import pandas as pd
import polars as pl
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings

import ignitetf.sqlalchemy as ignite
from ignitetf import dbapi

pytestmark = pytest.mark.node
NAME = f"fr{os.getpid()}"
MOMENTS = some.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
ROWS = some.lists(
    some.fixed_dictionaries(
        {
            "number": some.none() | some.integers(-(1 << 63), (1 << 63) - 1),
            "small": some.none() | some.integers(-128, 127),
            "real": some.none() | some.floats(allow_nan=False, allow_infinity=False),
            "price": some.none()
            | some.decimals(-(10**12), 10**12, places=4, allow_nan=False, allow_infinity=False),
            "text": some.none()
            | some.text(some.characters(exclude_categories=["Cs"]), max_size=20),
            "data": some.none() | some.binary(max_size=20),
            "flag": some.none() | some.booleans(),
            "uid": some.none() | some.uuids(),
            "day": some.none() | MOMENTS.map(lambda moment: moment.date()),
            "clock": some.none()
            | some.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
            "moment": some.none() | MOMENTS,
        }
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def engine(address):
    found = sa.create_engine(f"ignite://{address}/PUBLIC")
    yield found
    found.dispose()


@pytest.fixture(scope="module")
def table(engine):
    types = {
        "number": sa.BigInteger,
        "small": ignite.TINYINT,
        "real": sa.Float,
        "price": sa.Numeric(20, 4),
        "text": sa.String,
        "data": sa.LargeBinary,
        "flag": sa.Boolean,
        "uid": sa.Uuid,
        "day": sa.Date,
        "clock": sa.Time,
        "moment": sa.DateTime,
    }
    key = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
    columns = [sa.Column(name, kind) for name, kind in types.items()]
    found = sa.Table(f"{NAME}_random", sa.MetaData(), key, *columns)
    found.create(engine)
    yield found
    found.drop(engine)


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(rows=ROWS)
def test_random_rows_are_the_same_by_every_way(engine, address, table, rows):
    names = list(rows[0])
    wanted = [tuple(row[name] for name in names) for row in rows]
    query = f"SELECT {', '.join(map(str.upper, names))} FROM {table.name} ORDER BY ID"
    with engine.connect() as connection:
        connection.execute(table.delete())
        connection.execute(table.insert(), [{"id": i, **row} for i, row in enumerate(rows)])
        columns = [table.c[name] for name in names]
        found = connection.execute(sa.select(*columns).order_by(table.c.id)).all()
        frame = pd.read_sql(sa.text(query), connection)
    assert [tuple(row) for row in found] == wanted
    with dbapi.connect(address) as connection:
        assert connection.execute(query).fetchall() == wanted
        arrow = connection.execute(query).fetch_arrow_table()
    for name in set(names) - {"real", "uid"}:
        assert arrow[name.upper()].to_pylist() == [row[name] for row in rows]
    # Numbers and times with a null are others in pandas.
    for name in ("text", "data", "flag", "uid", "clock"):
        told = [None if pd.isna(value) else value for value in frame[name]]
        assert told == [row[name] for row in rows]


def test_frames_of_pandas_are_written_and_read(engine):
    frame = pd.DataFrame(
        {
            "a": [1, 2, 3],
            "b": [1.5, None, 2.0],
            "s": ["x", None, "ä'\""],
            "t": pd.to_datetime(
                ["2024-01-02 03:04:05.123456", "1969-12-31", None], format="ISO8601"
            ),
            "k": [True, False, True],
        }
    )
    name = f"{NAME}_pandas"
    try:
        frame.to_sql(name, engine, index=False)
        frame.assign(a=frame.a + 3).to_sql(name, engine, index=False, if_exists="append")
        found = pd.read_sql_table(name, engine).sort_values("a", ignore_index=True)
        pd.testing.assert_frame_equal(found[:3], frame, check_dtype=False)
        assert found.a.tolist() == [1, 2, 3, 4, 5, 6]
        frame.to_sql(name, engine, index=False, if_exists="replace", method="multi")
        part = pd.read_sql(sa.text(f"SELECT a FROM {name} WHERE a > :n"), engine, params={"n": 1})
        assert sorted(part.a) == [2, 3]
    finally:
        sa.Table(name, sa.MetaData(), sa.Column("a")).drop(engine, checkfirst=True)


def test_polars_and_duckdb_read_through_the_engine(engine):
    name = f"{NAME}_polars"
    times = [datetime.time(1, 2, 3, 456_000), None, datetime.time(0, 0, 0, 1000)]
    frame = pl.DataFrame({"X": [1, 2, 3], "Y": ["a", None, "c"]})
    try:
        frame.with_columns(pl.Series("T", times)).write_database(name, engine, engine="sqlalchemy")
        clocks = pl.read_database(f"SELECT T FROM {name} ORDER BY X", engine)
        assert clocks["T"].to_list() == times
        query = f"SELECT X, Y FROM {name} ORDER BY X"
        assert pl.read_database(query.replace("X, Y", "x, y"), engine).rows() == frame.rows()
        with engine.connect() as connection:
            items = connection.connection.cursor()
            items.execute(query)
            assert duckdb.sql("SELECT SUM(X), COUNT(Y) FROM items").fetchall() == [(6, 2)]
    finally:
        sa.Table(name, sa.MetaData(), sa.Column("x")).drop(engine, checkfirst=True)


@pytest.mark.parametrize("method", [None, "multi"])
@pytest.mark.parametrize("first", ["index", "INDEX", "is", "user", "select", "a b"])
def test_frames_are_written_with_their_index_and_any_first_column(engine, method, first):
    name = f"{NAME}_first"
    frame = pd.DataFrame({"b": [1, 2, 3]}, index=pd.Index([7, 8, 9], name=first))
    try:
        for how in ("replace", "append"):
            frame.to_sql(name, engine, if_exists=how, method=method)
        found = pd.read_sql_table(name, engine)
        back = "index" if first == "INDEX" else first
        assert sorted(zip(found[back], found.b, strict=True)) == sorted(
            [(7, 1), (8, 2), (9, 3)] * 2
        )
    finally:
        sa.Table(name, sa.MetaData(), sa.Column("b")).drop(engine, checkfirst=True)
