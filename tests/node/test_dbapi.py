"""`ignitetf.dbapi`: every type both ways, errors of PEP 249, threads, and nothing left behind."""

import datetime
import decimal
import gc
import os
import random
import sys
import threading
import time
import uuid

import numpy as np
import pytest
from helpers.java_programs import java_command, run, secured
from helpers.paths import ROOT

from ignitetf import dbapi

pytestmark = pytest.mark.node
TYPES = (
    "ID BIGINT PRIMARY KEY, A INT, B DOUBLE, S VARCHAR, D DECIMAL(30, 6), U UUID, DT DATE, TM TIME,"
    " TS TIMESTAMP, BI VARBINARY, BO BOOLEAN, CH CHAR(9), SM SMALLINT, TI TINYINT, RE REAL"
)
MARKS = ", ".join("?" * 15)


def record(chance, number):
    day = datetime.date(1900, 1, 1) + datetime.timedelta(chance.randrange(80_000))
    moment = datetime.timedelta(seconds=chance.randrange(86_400))
    values = (
        chance.randrange(-(1 << 31), 1 << 31),
        chance.choice([0.1, -0.0, 1e300, chance.random()]),
        chance.choice(["", "ä€𝄞 '\"; DROP TABLE X --", "x" * chance.randrange(200)]),
        decimal.Decimal(chance.randrange(-(10**20), 10**20)).scaleb(-6),
        uuid.UUID(int=chance.getrandbits(128)),
        day,
        (datetime.datetime.min + moment).time(),
        datetime.datetime.combine(day, datetime.time(1, 2, 3, chance.randrange(1_000_000))),
        chance.randbytes(chance.randrange(50)),
        chance.random() < 0.5,
        "c" * chance.randrange(1, 9),
        chance.randrange(-(1 << 15), 1 << 15),
        chance.randrange(-128, 128),
        chance.randrange(1000) / 8,
    )
    return (number, *(None if chance.random() < 0.1 else value for value in values))


@pytest.fixture(scope="module")
def connection(address):
    with dbapi.connect(address) as found:
        yield found


@pytest.fixture(scope="module")
def rows():
    seed = int(os.environ.get("IGNITETF_FAULT_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    chance = random.Random(seed)
    return [record(chance, number) for number in range(700)]


@pytest.fixture(scope="module")
def table(connection, rows):
    name = f"DBAPI{os.getpid()}"
    cursor = connection.cursor()
    cursor.execute(f"CREATE TABLE {name} ({TYPES})")
    assert cursor.executemany(f"INSERT INTO {name} VALUES ({MARKS})", rows).rowcount == len(rows)
    assert cursor.description is None
    yield name
    cursor.execute(f"DROP TABLE {name}")


def open_queries(connection, name):
    text = "SELECT COUNT(*) FROM SYS.SQL_QUERIES WHERE SQL LIKE ?"
    return connection.execute(text, [f"%{name}%"]).fetchone()[0]


@pytest.mark.core
def test_every_type_comes_back_by_every_way(connection, client, table, rows):
    cursor = connection.cursor()
    connection.page_rows, before = 64, connection.page_rows
    try:
        query = f"SELECT * FROM {table} ORDER BY ID"
        assert cursor.execute(query).fetchall() == rows
        many = (
            list(iter(lambda: cursor.fetchmany(9) or None, None)) if cursor.execute(query) else []
        )
        assert [row for part in many for row in part] == rows
        arrow = cursor.execute(query).fetch_arrow_table()
        frame = cursor.execute(query).fetch_df()
        arrays = cursor.execute(query).fetch_numpy()
    finally:
        connection.page_rows = before
    names = arrow.column_names
    assert list(frame.columns) == list(arrays) == names and len(frame) == len(rows)
    for number, name in enumerate(names):
        wanted = [row[number] for row in rows]
        found = arrow[name].to_pylist()
        assert found == ([None if u is None else str(u) for u in wanted] if name == "U" else wanted)
        missing = [value is None for value in wanted]
        found = arrays[name]
        empty = [v is None or v != v for v in found.tolist()]
        assert empty == missing, name
        if found.dtype.kind == "f":
            assert [v for v in found.tolist() if v == v] == [v for v in wanted if v is not None]
    kinds = {name: kind for name, kind, *_ in cursor.execute(query).description}
    assert kinds["A"] == dbapi.NUMBER and kinds["D"] == dbapi.NUMBER and kinds["S"] == dbapi.STRING
    assert kinds["TS"] == dbapi.DATETIME and kinds["BI"] == dbapi.BINARY != kinds["S"]
    # As pyignite reads them, but for its days and times.
    alike = [n for n in range(15) if names[n] not in ("DT", "TM", "TS")]
    others = list(client.pyignite.sql(query))
    assert [[row[n] for n in alike] for row in others] == [[row[n] for n in alike] for row in rows]


@pytest.mark.core
@pytest.mark.parametrize(
    ("statement", "values", "kind"),
    [
        ("SELEC 1", (), dbapi.ProgrammingError),
        ("SELECT * FROM NO_SUCH_TABLE", (), dbapi.ProgrammingError),
        ("SELECT ?", (), dbapi.ProgrammingError),
        ("SELECT ?", (object(),), dbapi.ProgrammingError),
        ("INSERT INTO {} (ID) VALUES (1)", (), dbapi.IntegrityError),
        ("INSERT INTO {} (ID, A) VALUES (-1, 'x')", (), dbapi.DataError),
        ("INSERT INTO {} (ID, CH) VALUES (-1, ?)", ("c" * 10,), dbapi.DataError),
        ("SELECT 1 / 0", (), dbapi.DataError),
        ("SELECT COUNT(*) FROM {0} a, {0} b, {0} c", (), dbapi.OperationalError),
    ],
)
def test_errors_are_those_of_pep_249(connection, table, statement, values, kind):
    cursor = connection.cursor()
    cursor.timeout_s = 1.0
    with pytest.raises(kind) as caught:
        cursor.execute(statement.format(table), values).fetchall()
    assert type(caught.value) is kind and isinstance(caught.value, dbapi.Error)
    assert "java" not in str(caught.value) or "conversion" in str(caught.value)
    # The cursor and the connection go on.
    assert cursor.execute("SELECT 7").fetchone() == (7,)
    assert connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (700,)


@pytest.mark.core
def test_values_are_no_statements(connection, table):
    for text in ("' OR 1=1 --", '"; DROP TABLE X', "\0", "%", "?"):
        found = connection.execute(f"SELECT ? FROM {table} WHERE S = ? LIMIT 5", (text, text))
        assert found.fetchall() == []
    with pytest.raises(dbapi.Error):
        connection.execute(f"SELECT 1; DROP TABLE {table}").fetchall()
    assert connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (700,)


def test_a_batch_that_fails_says_so_and_leaves_the_connection(connection, table):
    cursor = connection.cursor()
    insert = f"INSERT INTO {table} (ID, A) VALUES (?, ?)"
    try:
        with pytest.raises(dbapi.IntegrityError):
            cursor.executemany(insert, [(number, 1) for number in range(5000, 5300)] + [(5, 1)])
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]
        with pytest.raises(dbapi.ProgrammingError):
            cursor.executemany(insert, [(1,), (2,)])
        with pytest.raises(dbapi.ProgrammingError):
            cursor.executemany("SELECT ?", [(1,)])
    finally:
        gone = cursor.execute(f"DELETE FROM {table} WHERE ID >= 5000").rowcount
    assert gone == 300


def test_threads_share_a_connection(connection, address, table, rows):
    wrong = []

    def read(shared):
        with shared.cursor() as cursor:
            query = f"SELECT * FROM {table} ORDER BY ID"
            wrong.extend(i for i in range(3) if cursor.execute(query).fetchall() != rows)

    own = [dbapi.connect(address) for _ in range(16)]
    shared = [connection] * 16 + own
    threads = [threading.Thread(target=read, args=(one,)) for one in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == [] and not any(thread.is_alive() for thread in threads)
    for one in own:
        one.close()
        with pytest.raises(dbapi.InterfaceError):
            one.cursor()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cursor: cursor.execute(None),
        lambda cursor: cursor.execute(b"SELECT 1"),
        lambda cursor: cursor.executemany(["SELECT 1"], []),
        lambda cursor: cursor.executemany("DELETE FROM X WHERE Y = ?", None),
        lambda cursor: cursor.executemany("DELETE FROM X WHERE Y = ?", 7),
        lambda cursor: cursor.executemany("DELETE FROM X WHERE Y = ?", [7]),
        lambda cursor: cursor.fetchmany("3"),
        lambda cursor: cursor.fetchmany(1.0),
        lambda cursor: cursor.fetchmany(-1),
        lambda cursor: setattr(cursor, "timeout_s", "1") or cursor.execute("SELECT 1"),
        lambda cursor: setattr(cursor, "timeout_s", -1) or cursor.execute("SELECT 1"),
        lambda cursor: setattr(cursor, "timeout_s", float("nan")) or cursor.execute("SELECT 1"),
    ],
)
def test_what_is_no_argument_is_an_error_of_pep_249(connection, wrong):
    cursor = connection.execute("SELECT 1 UNION ALL SELECT 2")
    with pytest.raises(dbapi.ProgrammingError):
        wrong(cursor)
    cursor.timeout_s = None
    assert cursor.execute("SELECT 3").fetchmany(2) == [(3,)]


@pytest.mark.parametrize("rows", [-1, "8", 2.5, 1 << 31])
def test_what_is_no_number_of_rows_is_an_error_of_pep_249(address, rows):
    connection = dbapi.connect(address, page_rows=rows)
    with connection, pytest.raises(dbapi.ProgrammingError, match="page_rows"):
        connection.execute("SELECT 1")


def test_cursors_that_are_given_up_leave_nothing_on_the_node(address, table):
    with dbapi.connect(address, page_rows=8) as connection:
        for number in range(60):
            cursor = connection.execute(f"SELECT * FROM {table}")
            for _ in range(number % 20):
                cursor.fetchone()
            if number % 3 == 0:
                cursor.close()
            elif number % 3 == 1:
                cursor.execute("SELECT 1").fetchall()
            del cursor
        gc.collect()
        with connection.execute(f"SELECT * FROM {table}"):
            assert open_queries(connection, table) >= 1
        until = time.monotonic() + 30
        while open_queries(connection, table) and time.monotonic() < until:
            time.sleep(0.1)
        assert open_queries(connection, table) == 0


def test_another_thread_ends_a_wait(connection, table):
    cursor = connection.cursor()
    timer = threading.Timer(0.5, cursor.cancel)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(dbapi.OperationalError):
        cursor.execute(f"SELECT COUNT(*) FROM {table} a, {table} b, {table} c").fetchall()
    assert time.monotonic() - begun < 15
    timer.join()
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.core
def test_a_data_set_is_read_and_changed_by_its_name(connection, client, cache_name):
    from ignitetf.load.loader import load_dataset

    load_dataset({"X": np.arange(5)}, cache_name, client=client, partitions=1)
    cursor = connection.cursor()
    changed = cursor.executemany(f"UPDATE {cache_name} SET X = ? WHERE X = ?", [(9, 1), (8, 2)])
    assert changed.rowcount == 2
    assert cursor.execute(f"SELECT X FROM {cache_name} ORDER BY X").fetchall() == [
        (0,), (3,), (4,), (8,), (9,)
    ]  # fmt: skip


@pytest.mark.core
def test_arrays_come_back_by_every_way(connection, client, cache_name):
    from ignitetf.load.loader import load_dataset

    rows = [{"V": np.float32([i, i / 2]), "T": ["a\0b", f"ä{i}"][: i % 3]} for i in range(5)]
    load_dataset(rows, cache_name, client=client, partitions=1)
    wanted = [[row["V"].tolist(), row["T"]] for row in rows]
    query = f"SELECT V, T FROM {cache_name} ORDER BY ID"
    assert list(map(list, connection.execute(query).fetchall())) == wanted
    assert [
        list(row.values()) for row in connection.execute(query).fetch_arrow_table().to_pylist()
    ] == wanted
    found = connection.execute(query).fetch_numpy()
    assert [list(row) for row in zip(found["V"], found["T"], strict=True)] == wanted


def test_nothing_is_taken_back(connection):
    connection.commit()
    with pytest.raises(dbapi.NotSupportedError) as caught:
        connection.rollback()
    assert caught.value.hint


def test_another_thread_ends_a_fetch(address, table):
    with dbapi.connect(address, page_rows=8) as connection:
        cursor = connection.execute(f"SELECT * FROM {table}")
        cursor.fetchone()
        cursor.cancel()
        with pytest.raises(dbapi.OperationalError):
            cursor.fetchall()
        # Done with, a result has no connection that could be somebody else's.
        done = connection.execute("SELECT 1")
        done.cancel()
        assert done.fetchall() == [(1,)] == connection.execute("SELECT 1").fetchall()


def test_what_cannot_be_held_is_told(connection, table):
    one = f"FROM {table} WHERE ID = 1"
    with pytest.raises(dbapi.ProgrammingError, match="ID"):
        connection.execute(f"SELECT ID, ID {one}").fetch_numpy()
    assert connection.execute(f"SELECT ID, ID {one}").fetch_arrow_table().num_columns == 2
    with pytest.raises(dbapi.DataError):
        connection.execute("SELECT CAST('20000-01-01 00:00:00' AS TIMESTAMP)").fetchall()
    far = "SELECT CAST('20000-01-01 00:00:00' AS TIMESTAMP) T"
    assert connection.execute(far).fetch_numpy()["T"][0] == np.datetime64("20000-01-01")
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute(f"SELECT * FROM {table}X")
    assert table in caught.value.hint


FEW = "TEMPLATE=REPLICATED"  # half as many partitions
KEYS = {
    "TINYINT": 5,
    "INT": 1 << 20,
    "BIGINT": 1 << 40,
    "DECIMAL(20, 2)": decimal.Decimal("12.50"),
    "DOUBLE": 0.1,
    "VARCHAR": "it's",
    "UUID": uuid.UUID(int=77),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_deletion_finds_the_key_of_its_value(connection, kind):
    """Ignite itself takes a bare parameter for the key as an object, of any type."""
    name, key = f"DELETED{os.getpid()}", KEYS[kind]
    keys = [key]
    if isinstance(key, int) and not isinstance(key, bool):
        keys += [decimal.Decimal(key), np.int64(key), float(key)]
    if kind == "UUID":
        keys.append(str(key))
    cursor = connection.cursor()
    cursor.execute(f'CREATE TABLE {name} (K {kind} PRIMARY KEY, V INT) WITH "{FEW}"')
    try:
        for given in keys:
            cursor.execute(f"INSERT INTO {name} (K, V) VALUES (?, 1)", [key])
            found = cursor.execute(f"DELETE FROM {name} WHERE K = ? -- ?", [given])
            assert (given, found.rowcount) == (given, 1)
        cursor.execute(f"INSERT INTO {name} (K, V) VALUES (?, 1)", [key])
        deleted = cursor.executemany(f"DELETE FROM {name} WHERE K = ?1 AND V = ?2", [(key, 1)])
        assert deleted.rowcount == 1
    finally:
        cursor.execute(f"DROP TABLE {name}")


CLASSES = (
    "Long Integer Double String BigDecimal UUID Date Time Timestamp byte[] Boolean String Short Byte"
    " Float"
)


def test_what_java_reads_and_writes_again_is_the_same(
    connection, client, address, table, rows, node_home, tmp_path
):
    source = ROOT / "tests" / "data" / "java" / "JavaCopy.java"
    command = java_command(source, node_home, tmp_path)
    copy = f"COPIED{os.getpid()}"
    connection.execute(f"CREATE TABLE {copy} ({TYPES})")
    try:
        environment = secured(client.settings, tmp_path)
        told = run(*command, address, table, copy, environment=environment)
        assert told.splitlines() == CLASSES.split()
        query = "SELECT * FROM {} ORDER BY ID"
        found = connection.execute(query.format(copy)).fetchall()
        assert found == connection.execute(query.format(table)).fetchall()
        assert [row[0] for row in found] == [row[0] for row in rows]
    finally:
        connection.execute(f"DROP TABLE {copy}")


@pytest.mark.parametrize(
    ("condition", "given", "count"),
    [
        ("K IN (?, ?)", [1, 2], 2),
        ("K > ? LIMIT ?", [4, 2], 2),
        ("V LIKE ?", ["t3%"], 1),
        ("F = ?", [2], 1),
        ("K = ? + 1", [2], 1),
        ("K = ABS(?) AND V <> '?' /* ? */", [-2], 1),
        ("_KEY = ?", [3], 1),
        ("K = ?", ["3"], 1),
        ("V = ?", [None], 0),
    ],
)
def test_a_deletion_does_what_it_says(connection, few_rows, condition, given, count):
    cursor = connection.cursor()
    cursor.executemany(
        f"MERGE INTO {few_rows} (K, V, F) VALUES (?, ?, ?)",
        [(number, f"t{number}%", float(number)) for number in range(10)],
    )
    assert cursor.execute(f"DELETE FROM {few_rows} WHERE {condition}", given).rowcount == count


@pytest.fixture(scope="module")
def few_rows(connection):
    name = f"FEW{os.getpid()}"
    connection.execute(f"CREATE TABLE {name} (K INT PRIMARY KEY, V VARCHAR, F DOUBLE)")
    yield name
    connection.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("before", [0, 1, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("page_rows", [None, 100])
def test_what_is_left_is_the_same_by_every_way(address, before, page_rows):
    numbers = list(range(1, 2501))
    with dbapi.connect(address, page_rows=page_rows) as connection:
        for rest in ("fetchall", "fetchmany", "iterate"):
            cursor = connection.execute("SELECT X FROM SYSTEM_RANGE(1, 2500)")
            found = [cursor.fetchone() for _ in range(before)]
            if rest == "iterate":
                found += list(cursor)
            else:
                found += getattr(cursor, rest)(*[3000] * (rest == "fetchmany"))
            assert [x for (x,) in found] == numbers
            assert cursor.fetchone() is None and cursor.fetchall() == []
        # Columns can be taken between two pages; how many rows one has is told by `page_rows` alone.
        if before == 0 or (page_rows and before % page_rows == 0):
            cursor = connection.execute("SELECT X FROM SYSTEM_RANGE(1, 2500)")
            for _ in range(before):
                cursor.fetchone()
            assert cursor.fetch_numpy()["X"].tolist() == numbers[before:]


@pytest.mark.parametrize("rows", [1025, 5000])
@pytest.mark.parametrize(
    "change", ["ALTER TABLE {} ADD COLUMN N INT", "ALTER TABLE {} DROP COLUMN B", "DROP TABLE {}"]
)
@pytest.mark.parametrize("rest", ["fetchall", "fetch_numpy", "fetch_arrow_table"])
def test_a_table_that_changes_amid_a_query_keeps_its_columns(address, rows, change, rest):
    """All rows are asked for again with larger pages: of these columns, or the node refuses."""
    name = f"AMID{os.getpid()}"
    with dbapi.connect(address) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(f"CREATE TABLE {name} (K INT PRIMARY KEY, A INT, B INT)")
        fill = f"INSERT INTO {name} (K, A, B) SELECT X, X, X FROM SYSTEM_RANGE(1, ?)"
        connection.execute(fill, [rows])
        cursor = connection.execute(f"SELECT * FROM {name}")
        told = cursor.description
        connection.execute(change.format(name))
        try:
            found = getattr(cursor, rest)()
        except dbapi.OperationalError as error:
            assert "modified concurrently" in str(error)
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
            return
        finally:
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        columns = found if rest == "fetchall" else [np.asarray(found[n]).tolist() for n in "KAB"]
        same = columns if rest == "fetchall" else list(zip(*columns, strict=True))
        assert sorted(same) == [(n, n, n) for n in range(1, rows + 1)]
        assert cursor.description == told


def test_a_value_does_not_depend_on_its_neighbours(connection):
    """Of a row with an expression Ignite makes a table, whose TIME has no milliseconds."""
    name = f"NB{os.getpid()}"
    time = datetime.time(1, 2, 3, 456_000)
    connection.execute(f"CREATE TABLE {name} (ID UUID PRIMARY KEY, N INT, T TIME)")
    try:
        cursor = connection.cursor()
        cursor.execute(f"INSERT INTO {name} VALUES (RANDOM_UUID(), 1, ?)", [time])
        cursor.execute(f"MERGE INTO {name} (T, ID, N) VALUES (?, random_uuid ( ), ?)", [time, 2])
        cursor.execute(f"INSERT INTO {name} VALUES (RANDOM_UUID(), 3, TIME '01:02:03.456')")
        rows = [(number, time) for number in range(4, 8)]
        cursor.executemany(f"INSERT INTO {name} VALUES (RANDOM_UUID(), ?, ?)", rows)
        cursor.execute(f"SELECT N, T FROM {name} ORDER BY N")
        assert cursor.fetchall() == [(number, time) for number in range(1, 8)]
        with pytest.raises(dbapi.Error):
            cursor.execute(f"INSERT INTO {name} VALUES (RANDOM_UUID(), ?, ?)", [8])
    finally:
        connection.execute(f"DROP TABLE {name}")


def test_a_day_beyond_the_years_of_python_is_told_and_comes_by_numpy(connection):
    query = "SELECT DATE '12000-01-01' D"
    for take in ("fetchall", "fetch_df"):
        with pytest.raises(dbapi.DataError, match="out of range"):
            getattr(connection.execute(query), take)()
    assert connection.execute(query).fetch_numpy()["D"] == [np.datetime64("12000-01-01")]


def test_a_statement_with_half_a_character_is_refused(connection):
    with pytest.raises(dbapi.ProgrammingError, match="surrogate"):
        connection.execute("SELECT '\ud800'")
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("take", "package"),
    [("fetch_df", "pandas"), ("fetch_df", "pyarrow"), ("fetch_arrow_table", "pyarrow"),
     ("__arrow_c_stream__", "pyarrow")],
)  # fmt: skip
def test_without_a_package_the_rows_are_still_there(connection, monkeypatch, take, package):
    cursor = connection.execute("SELECT X FROM SYSTEM_RANGE(1, 3)")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, package, None)
        with pytest.raises(dbapi.InterfaceError, match=package) as caught:
            getattr(cursor, take)()
    assert "pip install" in caught.value.hint
    assert cursor.fetchall() == [(1,), (2,), (3,)]
