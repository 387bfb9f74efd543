"""Results of SQL stream for as long as they are read; a time limit is one of each answer."""

import contextlib
import csv
import decimal
import gc
import threading
import time
import warnings

import pytest

from ignitetf.errors import ConfigError, RequestTimeout, ServerOverloaded, SqlError
from ignitetf.net import results
from ignitetf.net.client import connect
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

pytestmark = pytest.mark.node

LIMIT_S = 0.5
ROWS = 3000
# Never ends: the rows of a table, by themselves many times.
ENDLESS = "SELECT SUM({c}) FROM " + ", ".join(f"STREAM T{i}" for i in range(6))
ENDLESS = ENDLESS.format(c=" * ".join(f"T{i}.A" for i in range(6)))


@pytest.fixture(scope="module")
def table(client):
    client.sql("DROP TABLE IF EXISTS STREAM").close()
    client.sql(
        'CREATE TABLE STREAM (ID INT PRIMARY KEY, A INT) WITH "TEMPLATE=p8,CACHE_NAME=STREAM"'
    )
    client.sql(f"INSERT INTO STREAM SELECT X, X FROM SYSTEM_RANGE(1, {ROWS})").close()
    yield "STREAM"
    client.sql("DROP TABLE STREAM").close()


@pytest.fixture
def hasty(address):
    """A client whose requests have half a second."""
    with connect(address, request_timeout_s=LIMIT_S) as found:
        yield found


def running(client, text="STREAM"):
    found = client.sql("SELECT SQL FROM SYS.SQL_QUERIES WHERE SQL NOT LIKE '%SYS.SQL_QUERIES%'")
    return [sql for (sql,) in found if text in sql]


def settled(client, text="STREAM"):
    """Wait until the node runs no such statement."""
    until = time.monotonic() + 30
    while (found := running(client, text)) and time.monotonic() < until:
        time.sleep(0.05)
    return not found


def test_a_slow_reader_gets_all_rows(hasty, table):
    rows = iter(hasty.sql(f"SELECT ID FROM {table}", page_size=500))
    found = [next(rows)[0]]
    for _ in range(3):
        time.sleep(LIMIT_S)
        found += [row[0] for row, _ in zip(rows, range(700), strict=False)]
    found += [row[0] for row in rows]
    assert len(found) >= ROWS - 3  # zip drops the row that it has no partner for
    assert len(set(found)) == len(found)


def test_a_slow_reader_of_a_condition_gets_all_rows(hasty, table):
    reader = CacheReader(hasty, table, ReadOptions(where="A > 0", page_size=50))
    batches = reader.batches(range(reader.partition_count))
    rows = len(next(batches).batch)
    time.sleep(2 * LIMIT_S)
    assert rows + sum(len(b.batch) for b in batches if b.batch is not None) == ROWS


def test_rows_come_page_by_page(client, table):
    """A result that is not read stays on the node."""
    with client.sql(f"SELECT A.ID FROM {table} A, {table} B", page_size=10) as result:
        assert next(iter(result)) is not None
        assert running(client)
    assert settled(client)


def test_a_result_that_was_closed_does_not_end_as_if_it_were_whole(client, table):
    with client.sql(f"SELECT ID FROM {table}", page_size=10) as result:
        rows = iter(result)
        next(rows)
    with pytest.raises(SqlError, match="closed before its last row"):
        list(rows)
    with client.sql("SELECT 1") as whole:
        assert list(whole) == [(1,)]
    assert list(whole) == []


def test_an_abandoned_result_closes_its_cursor(client, table):
    for _ in range(5):
        next(iter(client.sql(f"SELECT ID FROM {table}", page_size=10)))
    assert settled(client)
    kept = [client.sql(f"SELECT ID FROM {table}", page_size=10) for _ in range(3)]
    assert len(running(client)) >= 3 or len(client.nodes()) > 1
    kept.clear()
    gc.collect()
    assert settled(client)


def test_results_that_are_abandoned_while_others_are_read_take_nothing_from_them(client, table):
    def read():
        for _ in range(3):
            next(iter(client.sql(f"SELECT ID FROM {table}", page_size=7)))
            counts.append(len(client.sql(f"SELECT ID FROM {table}", page_size=900).fetchall()))

    counts = []
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [ROWS] * 9
    assert settled(client)


def test_a_query_without_an_answer_is_given_up(client, hasty, table):
    with pytest.raises(RequestTimeout, match=r"no answer within 0.5 s") as caught:
        hasty.sql(ENDLESS)
    assert "timeout_s=" in caught.value.hint
    assert settled(client), "the node goes on"
    assert hasty.sql("SELECT 1").fetchall() == [(1,)]


def test_a_change_without_an_answer_may_still_run(hasty, table):
    change = f"UPDATE {table} SET A = ({ENDLESS}) WHERE ID = -1 OR A = ({ENDLESS})"
    with pytest.raises(RequestTimeout) as caught:
        hasty.sql(change)
    assert "may still run" in caught.value.hint
    for (number,) in hasty.sql("SELECT QUERY_ID FROM SYS.SQL_QUERIES WHERE SQL LIKE 'UPDATE%'"):
        hasty.sql(f"KILL QUERY '{number}'")
    assert settled(hasty)


def test_a_statement_has_a_limit_of_its_own(client, hasty, table):
    with pytest.raises(SqlError, match="cancel") as caught:
        hasty.sql(ENDLESS, timeout_s=LIMIT_S / 2)
    assert "--statement-timeout" in caught.value.hint
    # A limit above that of a request waits longer for the first answer.
    begin = time.monotonic()
    with pytest.raises(SqlError, match="cancel"):
        hasty.sql(ENDLESS, timeout_s=2 * LIMIT_S)
    assert time.monotonic() - begin >= 2 * LIMIT_S
    with pytest.raises(SqlError, match="cancel"):
        for _ in client.sql(f"SELECT A.ID FROM {table} A, {table} B", page_size=1, timeout_s=0.5):
            time.sleep(0.1)
    for wrong in (0, -1, float("nan"), 1e9):
        with pytest.raises(ConfigError, match="timeout_s"):
            client.sql("SELECT 1", timeout_s=wrong)


def test_the_command_writes_every_row_and_knows_the_limit(address, table, tmp_path):
    from typer.testing import CliRunner

    from ignitetf.cli.main import app

    run = CliRunner().invoke
    base = ["query", "--address", address, "--timeout", str(LIMIT_S)]
    target = tmp_path / "all.csv"
    done = run(app, [*base, f"SELECT ID, A FROM {table}", "--output", "csv", "--to", str(target)])
    assert done.exit_code == 0, done.output
    with target.open() as file:
        assert len(list(csv.reader(file))) == ROWS + 1
    late = run(app, [*base, ENDLESS, "--statement-timeout", "0.2"])
    assert late.exit_code == 1


def test_a_column_that_is_called_updated_is_a_column(client):
    result = client.sql("SELECT 7 AS UPDATED UNION ALL SELECT 8 AS UPDATED")
    assert result.update_count is None
    assert sorted(result.fetchall()) == [(7,), (8,)]


def test_decimals_keep_their_digits(client):
    digits = "1234567890" * 12 + "." + "0987654321" * 6 + "1"
    found = client.sql(f"SELECT CAST('{digits}' AS DECIMAL(300, 61))").fetchall()
    assert found == [(decimal.Decimal(digits),)]
    assert client.sql("SELECT ?", (decimal.Decimal(digits),)).fetchall() == found
    assert client.sql("SELECT ?", (-decimal.Decimal(digits),)).fetchall()[0][0] == -found[0][0]


@pytest.mark.parametrize("params", [(), (1, 2), [1, 2, 3]])
def test_parameters_are_counted(client, params):
    with pytest.raises(ConfigError, match="takes 1 parameters"):
        client.sql('SELECT \'?\', "A?" /* ? */ FROM (SELECT ? AS "A?") -- ?', params)


@pytest.mark.parametrize("params", ["a", b"a", {1}, {"a": 1}, 5])
def test_parameters_are_a_list(client, params):
    with pytest.raises(ConfigError, match="not a list"):
        client.sql("SELECT ?", params)


def test_a_client_that_is_dropped_with_open_results_says_nothing(address, table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = connect(address)
        rows = iter(found.sql(f"SELECT ID FROM {table}", page_size=5))
        next(rows)
        found.close()
        with contextlib.suppress(Exception):
            del rows
            gc.collect()


def test_dates_of_sql_are_read_as_sql_writes_them(client, cache_name):
    """A DATE comes in Java's own serialization, of which pyignite knows nothing."""
    days = [
        "0001-01-01",
        "1457-01-01",
        "1583-01-01",
        "1899-12-31",
        "1970-01-01",
        "2024-02-29",
        "9999-12-31",
    ]
    client.sql(f'CREATE TABLE "{cache_name}" (ID INT PRIMARY KEY, D DATE, S VARCHAR)')
    for number, day in enumerate([*days, None]):
        client.sql(f'INSERT INTO "{cache_name}" VALUES (?, CAST(? AS DATE), ?)', (number, day, day))
    query = f'SELECT D, S, CAST(D AS VARCHAR) FROM "{cache_name}" ORDER BY ID'
    rows = client.sql(query, page_size=2).fetchall()
    assert [None if d is None else str(d.date()) for d, _, _ in rows] == [s for _, s, _ in rows]
    assert [s for _, s, _ in rows] == [*days, None]
    client.sql(f'INSERT INTO "{cache_name}" (ID, D) VALUES (99, ?)', ("12000-01-01",))
    with pytest.raises(SqlError, match="a date that datetime cannot hold") as caught:
        client.sql(f'SELECT D FROM "{cache_name}" WHERE ID = 99').fetchall()
    assert "CAST" in caught.value.hint


def test_a_query_that_the_node_has_no_heap_for_leaves_nothing_there(client, table, monkeypatch):
    """The node has begun it when it says so, and keeps it, with what it holds, for the connection."""

    def no_heap(*_):
        raise ServerOverloaded("Java heap space", status=1, server_message="Java heap space")

    with monkeypatch.context() as damaged:
        damaged.setattr(results, "read_named_sql_page", no_heap)
        for _ in range(3):
            with pytest.raises(ServerOverloaded, match="heap"):
                client.sql(f"SELECT A FROM {table}")
    assert settled(client)
