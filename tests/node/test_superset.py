"""The engine spec for Apache Superset, on a real node.

Superset itself is too large for a test run, so its base class is a stand-in with the few methods
that the spec builds on; docs/sqlalchemy.md says what was tried with Superset.
"""

import importlib
import sys
import threading
import time
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from ignitetf import dbapi

pytestmark = pytest.mark.node

_BASE = "superset.db_engine_specs.base"
_ENDLESS = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 10000000) A, SYSTEM_RANGE(1, 10000000) B WHERE A.X = B.X + ?"


class _BaseEngineSpec:
    @classmethod
    def execute(cls, cursor, query, database, **kwargs):
        cursor.execute(query, **kwargs)

    @classmethod
    def fetch_data(cls, cursor, limit=None):
        return cursor.fetchall()

    @classmethod
    def df_to_sql(cls, database, table, df, to_sql_kwargs):
        df.to_sql(table.table, database, **to_sql_kwargs)


@dataclass
class _Table:
    table: str


@pytest.fixture
def spec(monkeypatch):
    parts = _BASE.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[_BASE].BaseEngineSpec = _BaseEngineSpec
    monkeypatch.delitem(sys.modules, "ignitetf.sqlalchemy.superset", raising=False)
    yield importlib.import_module("ignitetf.sqlalchemy.superset").IgniteEngineSpec
    sys.modules.pop("ignitetf.sqlalchemy.superset")


@pytest.fixture
def connection(client):
    with dbapi.connect(client.settings.addresses) as made:
        yield made


def test_a_statement_that_changes_rows_returns_none(spec, connection, cache_name):
    cursor = connection.cursor()
    for statement in (
        f"CREATE TABLE {cache_name} (ID INT PRIMARY KEY, V INT)",
        f"INSERT INTO {cache_name} VALUES (1, 2), (3, 4)",
        f"UPDATE {cache_name} SET V = 5",
    ):
        spec.execute(cursor, statement, None)
        assert spec.fetch_data(cursor, 10) == []
    spec.execute(cursor, f"SELECT V FROM {cache_name}", None)
    assert spec.fetch_data(cursor, 10) == [(5,), (5,)]
    cursor.execute(f"DROP TABLE {cache_name}")


def test_a_marked_statement_is_stopped_over_another_connection_and_no_other(spec, connection):
    cursors = [connection.cursor(), connection.cursor()]
    marks = [spec.get_cancel_query_id(cursor, SimpleNamespace()) for cursor in cursors]
    assert marks[0] != marks[1]
    assert spec.get_cancel_query_id(cursors[0], SimpleNamespace()) == marks[0]
    ended = {}

    def run(number):
        try:
            spec.execute(cursors[number], _ENDLESS.replace("?", str(number)), None)
        except dbapi.OperationalError as error:
            ended[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    with dbapi.connect(connection.client().settings.addresses) as other:
        for number in (0, 1):
            assert not ended.keys() - set(range(number))
            limit = time.monotonic() + 20
            while not spec.cancel_query(other.cursor(), None, marks[number]):
                assert time.monotonic() < limit
                time.sleep(0.05)
            threads[number].join(20)
            assert "cancelled" in str(ended[number])
        assert not spec.cancel_query(other.cursor(), None, marks[0])


@pytest.mark.parametrize("name", ["{}", "x{}", "{}x"])
def test_a_frame_replaces_a_table_whatever_the_case_of_its_name(spec, client, cache_name, name):
    pandas = pytest.importorskip("pandas")
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"ignite://{client.settings.addresses[0]}/PUBLIC")
    table = _Table(name.format(cache_name.upper()))
    for rows in (3, 2):
        frame = pandas.DataFrame({"a": range(rows)})
        spec.df_to_sql(engine, table, frame, {"if_exists": "replace", "index": False})
        assert client.sql(f'SELECT COUNT(*) FROM "{table.table}"').fetchall() == [(rows,)]
    client.sql(f'DROP TABLE "{table.table}"').close()
    engine.dispose()
