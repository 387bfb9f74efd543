"""A day, a time of day and a timestamp are the same on the calendar, whatever zone the nodes are in.

The truth is text: what is written in a statement, and what the node makes a text of.
"""

import datetime as dt

import pyarrow as pa
import pytest
from helpers.java_programs import java_command, run
from helpers.paths import ROOT
from helpers.plain_nodes import CURRENT, plain_cluster

import ignitetf
from ignitetf import dbapi
from ignitetf.errors import ConfigError
from ignitetf.explore.head import first_rows

pytestmark = [pytest.mark.node, pytest.mark.slow]

ZONES = (("Europe/Berlin", CURRENT), ("Asia/Shanghai", "2.13.0"), ("America/St_Johns", "2.8.1"))
# Winter and summer, days of changes, hours that come twice, before 1970, before 1900, far ahead.
MOMENTS = (
    "2024-05-01 12:30:00",
    "2024-01-01 00:00:00",
    "2024-03-31 00:00:00",
    "2024-03-31 04:00:00",
    "2024-10-27 02:30:00",
    "2024-11-03 00:00:30",
    "2006-10-29 00:00:00",
    "1986-05-04 00:00:00",
    "1940-06-02 00:00:00",
    "1969-12-31 23:59:59",
    "1901-01-01 00:00:00",
    "1899-12-31 23:59:59",
    "1890-06-01 08:00:00",
    "2150-07-01 00:00:00",
)
# Beyond what nanoseconds hold, and of the Julian calendar.
FAR = ("1582-10-15 00:00:00", "1582-10-04 12:00:00", "1457-01-01 00:00:00", "0001-01-01 00:00:00",
       "9999-12-31 23:59:59")  # fmt: skip
# A day of Shanghai that begins at one o'clock.
DAYS = (*(text[:10] for text in (*MOMENTS, *FAR)), "1940-06-01")
OF_DAY = ("00:00:00", "00:30:00", "12:30:00.125", "23:59:59.999")
DAY_ALONE = "1940-06-01"


@pytest.fixture(scope="module", params=ZONES, ids=[zone for zone, _ in ZONES])
def zoned(request, node_home, tmp_path_factory):
    """The zone of a node, its address, and a client."""
    zone, version = request.param
    folder = tmp_path_factory.mktemp("zone")
    with (
        plain_cluster(node_home, folder, version, zones=(zone,)) as cluster,
        ignitetf.connect(cluster.addresses[0]) as client,
    ):
        yield zone, cluster.addresses[0], client


@pytest.fixture(scope="module")
def name(zoned):
    """A table of all times, which SQL wrote from texts."""
    _, _, client = zoned
    client.sql("CREATE TABLE T (ID INT PRIMARY KEY, D DATE, T TIME, TS TIMESTAMP)")
    for number, text in enumerate(MOMENTS):
        day, time = text[:10], time_at(number)
        client.sql(f"INSERT INTO T VALUES ({number}, '{day}', '{time}', '{text}')")
    return "T"


def moment(text):
    return dt.datetime.fromisoformat(text)


def time_at(number):
    return OF_DAY[number % len(OF_DAY)]


def table_of(client, name, **options):
    """Return the rows of a data set as a table in the order of their keys."""
    return pa.table(ignitetf.open_rows(name, client=client, **options)).sort_by("key")


def shown(kind, text):
    return f"{kind} '{text}'"


def test_what_a_statement_says_comes_back_as_it_says(zoned):
    _, address, _ = zoned
    literals = [*(shown("TIMESTAMP", t) for t in (*MOMENTS, *FAR)), *(shown("DATE", d) for d in DAYS),
                *(shown("TIME", t) for t in OF_DAY)]  # fmt: skip
    statement = "SELECT " + ", ".join(f"{text} AS C{i}" for i, text in enumerate(literals))
    days = [dt.date.fromisoformat(text) for text in DAYS]
    times = [dt.time.fromisoformat(text) for text in OF_DAY]
    expected = [*map(moment, (*MOMENTS, *FAR)), *days, *times]
    with dbapi.connect(address) as connection:
        cursor = connection.cursor()
        assert list(cursor.execute(statement).fetchone()) == expected
        arrow = cursor.execute(statement).fetch_arrow_table()
        assert [column[0].as_py() for column in arrow.columns] == expected
        arrays = list(cursor.execute(statement).fetch_numpy().values())
        assert [array[0].item() for array in arrays[: -len(times)]] == expected[: -len(times)]


def test_a_parameter_is_what_it_is_in_the_statement(zoned, name):
    _, _, client = zoned
    values = [*map(moment, (*MOMENTS, *FAR)), *map(dt.date.fromisoformat, DAYS),
              *map(dt.time.fromisoformat, OF_DAY)]  # fmt: skip
    casts = ", ".join("CAST(? AS VARCHAR)" for _ in values)
    (texts,) = client.sql(f"SELECT {casts}", values).fetchall()
    assert list(texts) == [*MOMENTS, *FAR, *DAYS, *OF_DAY]
    for number, text in enumerate(MOMENTS):
        found = client.sql("SELECT ID FROM T WHERE TS = ?", [moment(text)]).fetchall()
        assert found == [(number,)]
    day = dt.date(2024, 3, 31)
    assert client.sql("SELECT ID FROM T WHERE D = ? ORDER BY ID", [day]).fetchall() == [(2,), (3,)]


def test_a_time_with_a_zone_is_what_utc_has_then(zoned):
    _, _, client = zoned
    given = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    (row,) = client.sql("SELECT CAST(? AS VARCHAR)", [given]).fetchall()
    assert row == ("2024-05-01 10:30:00",)


def test_a_data_set_reads_what_sql_wrote(zoned, name):
    _, _, client = zoned
    found = table_of(client, name)
    assert found["TS"].to_pylist() == [*map(moment, MOMENTS)]
    assert [day.date() for day in found["D"].to_pylist()] == [moment(t).date() for t in MOMENTS]
    assert found["T"].to_pylist() == [dt.time.fromisoformat(time_at(i)) for i in range(len(found))]
    rows = sorted(first_rows(client, "SQL_PUBLIC_T", 100), key=lambda row: row["key"])
    assert [str(row["TS"])[:19].replace("T", " ") for row in rows] == list(MOMENTS)


def test_sql_finds_what_a_load_stored(zoned):
    zone, _, client = zoned
    frame = pa.table({
        "ID": pa.array(range(len(MOMENTS)), pa.int32()),
        "D": [moment(text).date() for text in MOMENTS],
        "T": pa.array([dt.time.fromisoformat(time_at(i)) for i in range(len(MOMENTS))], pa.time32("ms")),
        "TS": [*map(moment, MOMENTS)],
    })  # fmt: skip
    ignitetf.load_dataset(frame, "LOADED", key="ID", client=client)
    for number, text in enumerate(MOMENTS):
        where = (
            f"TS = TIMESTAMP '{text}' AND D = DATE '{text[:10]}' AND T = TIME '{time_at(number)}'"
        )
        assert client.sql(f"SELECT _KEY FROM LOADED__ROWS WHERE {where}").fetchall() == [(number,)]
    texts = client.sql("SELECT CAST(TS AS VARCHAR) FROM LOADED__ROWS ORDER BY _KEY").fetchall()
    assert [text for (text,) in texts] == list(MOMENTS)
    assert table_of(client, "LOADED")["TS"].to_pylist() == [*map(moment, MOMENTS)]
    if dict(ZONES)[zone] == "2.8.1":
        return  # no where= before 2.13
    early = dt.datetime(1970, 1, 1)
    chosen = table_of(client, "LOADED", where="TS < ?", where_params=[early])["TS"].to_pylist()
    assert sorted(chosen) == sorted(m for m in map(moment, MOMENTS) if m < early)


def test_what_java_wrote_is_what_its_classes_say(zoned, node_home, tmp_path):
    """A Java program in the zone of the nodes; what is a moment is shown by SQL's calendar."""
    zone, address, client = zoned
    command = java_command(ROOT / "tests" / "data" / "java" / "JavaTimes.java", node_home, tmp_path)
    run(command[0], f"-Duser.timezone={zone}", *command[1:], address, "JAVA", *MOMENTS)
    found = table_of(client, "JAVA")
    moments = [*map(moment, MOMENTS)]
    for column in ("timestamp", "date", "localDateTime", "instant"):
        assert found[column].to_pylist() == moments, column
    midnights = [dt.datetime.combine(m, dt.time()) for m in moments]
    for column in ("day", "late", "localDate"):
        assert found[column].to_pylist() == midnights, column
    assert found["time"].to_pylist() == [m.time() for m in moments]


def test_what_the_nodes_leave_out_is_refused_by_name(node_home, tmp_path):
    """Two members in two zones: each time would be another on each."""
    zones = ("Pacific/Chatham", "Europe/Berlin")
    with plain_cluster(node_home, tmp_path, count=2, zones=zones) as cluster:
        with ignitetf.connect(cluster.addresses[0]) as client:
            assert client.sql("SELECT 1").fetchall() == [(1,)]
            with pytest.raises(ConfigError) as error:
                client.sql("SELECT CURRENT_DATE").fetchall()
            assert all(zone in error.value.message for zone in zones)
        with ignitetf.connect(cluster.addresses[0], time_zone=zones[0]) as client:
            text = "TIMESTAMP '2024-05-01 12:30:00'"
            (row,) = client.sql(f"SELECT {text}").fetchall()
            assert row == (dt.datetime(2024, 5, 1, 12, 30),)
