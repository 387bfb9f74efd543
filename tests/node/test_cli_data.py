"""The cache, table and query commands against a node."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from pyignite import GenericObjectMeta
from pyignite.datatypes import FloatArrayObject, IntObject
from typer.testing import CliRunner

from ignitetf.cli.main import app
from ignitetf.cli.options import Connect
from ignitetf.errors import ConfigError, SqlError
from ignitetf.home import ignitetf_home
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import Client
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node

Cli = Callable[..., Any]


@pytest.fixture
def cli(address: str) -> Cli:
    """Runs a command against the node."""

    def run(*args: str, **more: Any) -> Any:
        env = {"IGNITETF_ADDRESS": address}
        return CliRunner().invoke(app, list(args), prog_name="ignitetf", env=env, **more)

    return run


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """A new name; what was made under it is removed."""
    prefix = f"CLI_{uuid.uuid4().hex[:8].upper()}"
    yield prefix
    for cache in client.cache_names():
        if cache.startswith(prefix):
            drop_cache(client, cache)


@pytest.fixture
def numbers(client: Client, name: str) -> str:
    """A table of ID 0..9 and V = ID * ID."""
    client.sql(f'CREATE TABLE {name} (ID INT PRIMARY KEY, V INT) WITH "CACHE_NAME={name}"').close()
    client.sql(f"INSERT INTO {name} SELECT X, X * X FROM SYSTEM_RANGE(0, 9)").close()
    return name


def done(result: Any) -> Any:
    assert result.exit_code == 0, result.stderr
    return result


@pytest.mark.core
def test_cache_from_create_to_drop(cli, name):
    made = done(cli("cache", "create", name, "--partitions", "8", "--backups", "1", "-o", "json"))
    row = {"name": name, "entries": 0, "partitions": 8, "backups": 1, "mode": "PARTITIONED"}
    assert json.loads(made.stdout) == [row]
    assert row in json.loads(done(cli("cache", "ls", "--output", "json")).stdout)
    again = cli("cache", "create", name)
    assert again.exit_code == 1
    assert [line.split(":")[0] for line in again.stderr.splitlines()] == ["error", "hint"]
    described = json.loads(done(cli("cache", "describe", name, "--output", "json")).stdout)
    assert described.items() >= row.items()
    done(cli("cache", "clear", name))
    done(cli("cache", "drop", name))
    assert cli("cache", "drop", name).exit_code == 1
    done(cli("cache", "drop", name, "--if-exists"))


def test_missing_template_prints_xml(cli, name):
    result = cli("cache", "create", name, "--partitions", "7")
    assert result.exit_code == 1
    assert '<property name="name" value="p7*"/>' in result.stderr
    assert result.stderr.startswith("error: the cluster has no cache template p7*")


@pytest.mark.core
def test_table_from_create_to_drop(cli, client, name):
    args = ("table", "create", "voc", "--name", name, "--partitions", "4")
    made = json.loads(done(cli(*args, "-o", "json")).stdout)
    assert [row["table"] for row in made] == [f"{name}_IMAGES", f"{name}_ANNOTATIONS"]
    listed = json.loads(done(cli("table", "ls", "-o", "json")).stdout)
    assert all(row in listed for row in made)
    columns = done(cli("table", "describe", f"{name}_annotations", "-o", "csv")).stdout
    keys = [r["name"] for r in csv.DictReader(io.StringIO(columns)) if r["key"] == "true"]
    assert keys == ["IMAGE_ID", "N"]
    assert cli(*args).exit_code == 1
    for row in made:
        done(cli("table", "drop", row["table"], "--yes"))
    assert not [c for c in client.cache_names() if c.startswith(name)]


def test_table_from_a_file(cli, client, name, tmp_path):
    path = tmp_path / "my.sql"
    path.write_text('CREATE TABLE {name} (ID INT PRIMARY KEY, V INT) WITH "CACHE_NAME={name}"')
    sized = cli("table", "create", str(path), "--name", name, "--partitions", "4")
    assert sized.exit_code == 2
    assert "{options}" in sized.stderr
    path.write_text(path.read_text()[:-1] + '{options}"')
    done(cli("table", "create", str(path), "--name", name, "--partitions", "4"))
    assert client.partition_count(name) == 4


@pytest.mark.core
def test_query_forms(cli, numbers):
    statement = f"SELECT ID, V FROM {numbers} WHERE V > ? ORDER BY ID"
    rows = [{"ID": i, "V": i * i} for i in range(8, 10)]
    args = ("query", statement, "--param", "49")
    assert json.loads(done(cli(*args, "--output", "json")).stdout) == rows
    assert done(cli(*args, "--output", "csv")).stdout == "ID,V\n8,64\n9,81\n"
    table = done(cli(*args)).stdout.splitlines()
    assert [line.split() for line in (table[0], *table[2:])] == [
        ["ID", "V"],
        ["8", "64"],
        ["9", "81"],
    ]


@pytest.mark.core
def test_query_to_files(cli, numbers, tmp_path):
    statement = f"SELECT ID, V FROM {numbers} ORDER BY ID"
    path = tmp_path / "x.parquet"
    done(cli("query", statement, "--to", str(path)))
    assert pq.read_table(path).to_pydict() == {
        "ID": list(range(10)),
        "V": [i * i for i in range(10)],
    }
    path = tmp_path / "x.csv"
    done(cli("query", statement, "--to", str(path)))
    assert len(path.read_text().splitlines()) == 11
    assert path.read_text().startswith("ID,V\n0,0\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.csv", "x.parquet"]


def test_query_loses_no_column_of_any_type(cli, client, name, tmp_path):
    """Scalars, nulls, arrays and objects, in every form; a REAL has the digits of a single float."""
    client.sql(
        f"CREATE TABLE {name} (ID INT PRIMARY KEY, B DOUBLE, S VARCHAR, N DECIMAL(30, 6), D DATE,"
        f" T TIME, M TIMESTAMP, X VARBINARY, F BOOLEAN, U UUID, R REAL, O OTHER)"
    ).close()
    inner = GenericObjectMeta(f"Of{name}", (), {}, schema={"A": IntObject, "L": FloatArrayObject})
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 678901)
    number, unique = decimal.Decimal("-1e10"), uuid.UUID(int=1 << 127)
    day, clock = datetime.date(1900, 1, 1), datetime.time(23, 59, 59)
    text = 'a"b,%s\nü𝄞'
    rows = [
        (1, 0.1, text, number, day, clock, moment, b"\0\xff", True, unique, 0.5,
         inner(A=1, L=[0.5, 2.0])),
        (2, *[None] * 11),
        (3, float("nan"), "", None, None, None, None, b"", False, None, float("inf"), [1, 2, 3]),
    ]  # fmt: skip
    for row in rows:
        client.sql(f"INSERT INTO {name} VALUES ({', '.join('?' * 12)})", row).close()
    query = ("query", f"SELECT * FROM {name} ORDER BY ID")
    wanted = [
        {"ID": 1, "B": 0.1, "S": text, "N": "-10000000000", "D": "1900-01-01", "T": "23:59:59",
         "M": "2024-01-02T03:04:05.678901", "X": "AP8=", "F": True, "U": str(unique), "R": 0.5,
         "O": {"A": 1, "L": [0.5, 2.0]}},
        {"ID": 2, **dict.fromkeys("BSNDTMXFURO")},
        {"ID": 3, "B": "NaN", "S": "", **dict.fromkeys("NDTMU"), "X": "", "F": False,
         "R": "Infinity", "O": [1, 2, 3]},
    ]  # fmt: skip
    assert json.loads(done(cli(*query, "-o", "json")).stdout) == wanted
    lines = done(cli(*query, "-o", "jsonl")).stdout.splitlines()
    assert list(map(json.loads, lines)) == wanted
    told = list(csv.DictReader(io.StringIO(done(cli(*query, "-o", "csv")).stdout)))
    for row, found in zip(wanted, told, strict=True):
        as_text = {n: "" if v is None else v if isinstance(v, str) else json.dumps(v)
                   for n, v in row.items()}  # fmt: skip
        assert found == as_text
    table = ("query", f"SELECT ID, B, S, N, D, T, M, X, F, U, R FROM {name} ORDER BY ID")
    for path in (tmp_path / "x.parquet", tmp_path / "x.arrow"):
        done(cli(*table, "--to", str(path)))
        read = pq.read_table if path.suffix == ".parquet" else feather.read_table
        columns = read(path).to_pydict()
        assert columns.pop("B")[0] == 0.1 and columns.pop("N")[0] == number
        assert columns.pop("U")[0] == str(unique)
        assert columns == {
            "ID": [1, 2, 3], "S": [text, None, ""], "D": [day, None, None], "T": [clock, None, None],
            "M": [moment, None, None], "X": [b"\0\xff", None, b""], "F": [True, None, False],
            "R": [0.5, None, float("inf")],
        }  # fmt: skip
    objects = cli("query", f"SELECT O FROM {name} ORDER BY ID", "--to", str(tmp_path / "o.parquet"))
    assert objects.exit_code == 1 and "column O" in objects.stderr and "hint: " in objects.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.arrow", "x.parquet"]


def test_query_from_a_file_and_from_standard_input(cli, name, tmp_path):
    text = f"""
        -- three; statements
        CREATE TABLE {name} (ID INT PRIMARY KEY, V VARCHAR) WITH "CACHE_NAME={name}";
        INSERT INTO {name} VALUES (1, 'a;b'), (2, NULL);
        SELECT * FROM {name} ORDER BY ID;
    """
    path = tmp_path / "x.sql"
    path.write_text(text)
    result = done(cli("query", "-f", str(path), "-o", "json"))
    assert json.loads(result.stdout) == [{"ID": 1, "V": "a;b"}, {"ID": 2, "V": None}]
    assert result.stderr == "2 rows changed\n"
    result = done(cli("query", "-o", "csv", input=f"SELECT COUNT(*) AS N FROM {name}"))
    assert result.stdout == "N\n2\n"


def test_query_stops_after_max_rows(cli):
    args = ("query", "SELECT X FROM SYSTEM_RANGE(1, 100000)", "-o", "csv", "--max-rows", "3")
    result = done(cli(*args))
    assert result.stdout == "X\n1\n2\n3\n"
    assert "there are more" in result.stderr


@pytest.mark.core
def test_changes_are_told(cli, numbers):
    update = ("query", f"UPDATE {numbers} SET V = 0 WHERE ID < 4")
    assert done(cli(*update)).stderr == "4 rows changed\n"
    assert json.loads(done(cli(*update, "-o", "json")).stdout) == {"updated": 4}


@pytest.mark.core
def test_tables_are_found_by_their_sql_names(cli, client, name):
    """A table of other clients is in a cache SQL_SCHEMA_TABLE; the exact name of a cache wins."""
    client.sql(f"CREATE TABLE {name} (ID INT PRIMARY KEY, V TIMESTAMP)").close()
    client.sql(f"INSERT INTO {name} VALUES (1, '2024-02-29 01:02:03.5')").close()
    cache = f"SQL_PUBLIC_{name}"
    try:
        for given in (name, name.lower(), f"PUBLIC.{name}", cache):
            rows = json.loads(done(cli("head", given, "-o", "json")).stdout)
            assert [row["V"] for row in rows] == ["2024-02-29T01:02:03.500000"]
            stats = json.loads(done(cli("stats", given, "-o", "json")).stdout)
            assert (stats["cache"], stats["rows"]) == (cache, 1)
            found = json.loads(done(cli("cache", "describe", given, "-o", "json")).stdout)
            assert (found["name"], found["table"]) == (cache, name)
        assert f"did you mean {name}" in cli("head", f"{name}X").stderr
        query = f"SELECT V FROM {name}"
        assert done(cli("query", query, "-o", "csv")).stdout.split() == ["V", rows[0]["V"]]
        client.sql(f'CREATE TABLE OTHERS (ID INT PRIMARY KEY, V INT) WITH "CACHE_NAME={name}"')
        try:
            # Now there is a cache of this name.
            assert json.loads(done(cli("head", name, "-o", "json")).stdout) == []
        finally:
            client.sql("DROP TABLE OTHERS").close()
        removed = json.loads(done(cli("cache", "drop", name.lower(), "-o", "json")).stdout)
        assert removed == {"cache": cache, "removed_entries": 1}
    finally:
        client.sql(f"DROP TABLE IF EXISTS {name}").close()


@pytest.mark.core
@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("SELECT * FROM {table}S", "{table}"),
        ("SELECT VV FROM {table}", "V"),
        ("SELECT N.I FROM {table} N", "ID"),
        ("SELECT * FROM NODES", "SYS.NODES"),
        ("UPDATE {table} SET VV = 1", "V"),
    ],
)
def test_sql_errors_suggest_the_name_that_was_meant(cli, numbers, statement, meant):
    result = cli("query", statement.format(table=numbers))
    assert result.exit_code == 1
    assert f"did you mean {meant.format(table=numbers)}" in result.stderr.splitlines()[1]


@pytest.mark.core
@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELEC 1", "Syntax error"),
        ("SELECT * FROM NO_SUCH_TABLE", "NO_SUCH_TABLE"),
        ("SELECT NO_SUCH_COLUMN FROM SYS.CACHES", "NO_SUCH_COLUMN"),
    ],
)
def test_refused_statements_are_one_line_and_a_hint(cli, statement, error):
    result = cli("query", statement)
    assert result.exit_code == 1
    assert result.stdout == ""
    first, hint = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert hint.startswith("hint: ")


def test_the_statement_of_a_file_that_failed_is_named(cli):
    result = cli("query", input="SELECT 1; SELEC 2; SELECT 3")
    assert result.exit_code == 1
    assert "statement 2 of 3" in result.stderr


@pytest.mark.core
def test_prompt(address, numbers, monkeypatch, tmp_path, capsys):
    """Many lines, an error, commands, history: as typed on a terminal."""
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    from ignitetf.cli import prompt

    if (profiles := ignitetf_home() / "profiles").is_dir():
        shutil.copytree(profiles, tmp_path / "profiles")
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    typed = (
        f"SELECT COUNT(*)\rFROM {numbers};\r"
        "SELEC 1;\r"
        f"\\d {numbers.lower()}\r"
        "\\d\r"
        "CREATE USER \"x\" WITH PASSWORD 'hidden-word';\r"
        f"SELECT V FROM {numbers} WHERE ID = 7;\r"
        "\\q\r"
    )
    with create_pipe_input() as keys:
        keys.send_text(typed)
        prompt.run(Connect({"address": address}), input=keys, output=DummyOutput())
    out, err = capsys.readouterr()
    assert out.split()[:3] == ["COUNT(*)", "────────", "10"]
    assert "49" in out.split()
    assert "INT" in out
    assert numbers in out
    assert "error: Syntax error" in err
    history = tmp_path / "query_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "SELECT COUNT(*)" in history.read_text()
    assert "hidden-word" not in history.read_text()


def test_doctor_says_what_is_here_and_what_is_missing(cli: Cli, monkeypatch) -> None:
    from ignitetf.explore import doctor
    from ignitetf.node.jars import IGNITE_VERSION

    packages = (("Keras", ("no-such-package",), "keras"), ("NumPy", ("numpy",), None))
    monkeypatch.setattr(doctor, "_PACKAGES", packages)
    for address, reachable in ((None, True), ("127.0.0.1:1", False)):
        where = () if address is None else ("--address", address)
        result = cli("doctor", "--output", "json", *where)
        assert result.exit_code == (0 if reachable else 1), result.stderr
        found = json.loads(result.stdout)
        rows = {row["name"]: row for row in found["versions"]}
        assert rows["Keras"]["version"] is None and "ignitetf[keras]" in rows["Keras"]["hint"]
        assert rows["NumPy"]["version"] and rows["Python"]["version"]
        node = rows["Ignite"]
        assert (node["version"] or "").startswith(IGNITE_VERSION) == reachable
        assert reachable or ("127.0.0.1:1" in node["note"] and node["hint"])
        assert {row["works"] for row in found["combinations"]} <= {"yes", "no", "untested"}
        states = {row["check"]: row["state"] for row in found["findings"]}
        assert {states[name] for name in ("packages", "memory", "disk", "jars")} == {"ok"}
        assert states.get("cluster") == (None if reachable else "error")
        assert not reachable or states["clock"] == states["templates"] == "ok"
    assert "repaired" in done(cli("doctor")).stdout


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("SHOW TABLES", "\\\\d"),
        ("DESCRIBE X", "\\\\d NAME"),
        ("\\l", "\\\\d"),
        ("USE X", "SCHEMA.TABLE"),
        ("COMMIT", "takes effect at once"),
        ('SELECT "x" FROM SYS.CACHES', "single quotes"),
        ("SELECT CAST('x' AS INT)", "CAST"),
        ("TRUNCATE TABLE X", "DELETE FROM"),
        ("CREATE TABLE NO_KEY (A INT)", "PRIMARY KEY"),
        ("CREATE TABLE KEY_ALONE (A INT PRIMARY KEY)", "another column"),
    ],
)
def test_sql_of_other_databases_gets_a_hint(cli, statement, hint):
    result = cli("query", statement)
    assert result.exit_code == 1
    assert re.search(hint, result.stderr.partition("hint: ")[2])


def test_messages_name_the_data_set_and_not_its_table(client, name):
    load_dataset({"V": np.arange(3)}, name, client=client)
    statements = (
        f"INSERT INTO {name} (ID, V) VALUES (1, 2)",
        f"INSERT INTO {name} (NOPE) VALUES (1)",
        f"ALTER TABLE {name} ADD COLUMN V INT",
        f"SELECT _KEY FROM {name}",
        f"SELECT V, COUNT(*) FROM {name}",
        f"INSERT INTO {name} (V) VALUES (1)",
        f"UPDATE {name} SET ID = 5",
    )
    for statement in statements:
        with pytest.raises(SqlError) as raised:
            client.sql(statement)
        assert "node [" not in raised.value.message, statement
        assert "__" not in f"{raised.value.message} {raised.value.hint}", statement
    with pytest.raises(ConfigError) as named:
        load_dataset({"V": np.arange(3)}, "My Photos", client=client)
    assert "'My Photos'" in named.value.message


def test_doctor_finds_what_is_wrong(tmp_path, monkeypatch) -> None:
    import datetime

    import trustme

    from ignitetf.errors import ConnectError
    from ignitetf.explore import findings
    from ignitetf.settings import Settings

    def unreachable():
        raise ConnectError("nobody there")

    now = datetime.datetime.now(datetime.UTC)
    ended = trustme.CA().issue_cert("here", not_after=now - datetime.timedelta(days=1))
    ended.cert_chain_pems[0].write_to_path(tmp_path / "ended.pem")
    (tmp_path / "no.pem").write_text("no certificate")
    monkeypatch.setattr(findings, "requires", lambda name: ["numpy<1.0", "pandas<1; extra == 'x'"])
    monkeypatch.setattr(findings, "_LEAST_MEMORY", 1 << 60)
    monkeypatch.setattr(findings, "_LEAST_DISK", 1 << 60)
    settings = Settings(ca=str(tmp_path / "ended.pem"), cert=str(tmp_path / "no.pem"))
    found = findings.findings(settings, unreachable)
    wrong = [(row["check"], row["state"]) for row in found if row["state"] != "ok"]
    assert ("memory", "warning") in wrong and ("disk", "warning") in wrong
    assert wrong.count(("certificate", "error")) == 2 and wrong[-1] == ("cluster", "error")
    needed = {row["note"].partition(" needs ")[2] for row in found if row["check"] == "packages"}
    assert len(needed) == 1 and needed.pop().startswith("numpy<1.0, ")
