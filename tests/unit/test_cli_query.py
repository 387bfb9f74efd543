"""Parts of the query command that need no node."""

from __future__ import annotations

import datetime
import decimal
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ignitetf.cli.completion import candidates
from ignitetf.cli.files import PARQUET_ROWS, form_of, write_file, write_parquet
from ignitetf.cli.paged import Limited
from ignitetf.cli.prompt import history_file
from ignitetf.cli.query import literal
from ignitetf.cli.shell import is_complete, units
from ignitetf.errors import ConfigError, SchemaError
from ignitetf.sql.references import references
from ignitetf.tables.names import SqlNames, SqlTable


class Result:
    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self._rows = columns, rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        yield from self._rows


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-1", -1),
        ("2.5", 2.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ('"7"', "7"),
        ("seven", "seven"),
        ("", ""),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("[1]", "[1]"),
        ("2024-01-01", "2024-01-01"),
        (str(1 << 63), decimal.Decimal(1 << 63)),
    ],
)
def test_literals_of_param(text, value):
    found = literal(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1; -- why", True),
        ("SELECT 1 /* ;", False),
        ("SELECT 1;\nSELECT 2", False),
        ("SELECT 1;\nSELECT 2;", True),
        ("\\d", True),
        ("quit", True),
        ("EXIT;", True),
        ("quitting", False),
        ("", True),
        (";", True),
    ],
)
def test_enter_runs_only_whole_statements(text, complete):
    assert is_complete(text) is complete


def test_history_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path / "home"))
    path = history_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert stat.S_IMODE(history_file().stat().st_mode) == 0o600


def test_parquet_keeps_types_over_row_groups(tmp_path):
    rows = [
        (
            i,
            i / 2,
            None if i % 2 else f"s{i}",
            bytes([i % 256]),
            decimal.Decimal("1.5"),
            uuid.UUID(int=i),
            datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=i),
            datetime.timedelta(seconds=i % 1000),
            None,
            [1.0, float(i)],
        )
        for i in range(PARQUET_ROWS * 2 + 3)
    ]
    path = tmp_path / "x.parquet"
    assert write_parquet(Result(list("abcdefghij"), rows), path) == len(rows)
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups == 3
    last = {
        name: column[-1].as_py() for name, column in zip("abcdefghij", table.columns, strict=True)
    }
    i = len(rows) - 1
    assert table.num_rows == len(rows)
    assert last == {
        "a": i,
        "b": i / 2,
        "c": f"s{i}",
        "d": bytes([i % 256]),
        "e": decimal.Decimal("1.5"),
        "f": str(uuid.UUID(int=i)),
        "g": datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=i),
        "h": (datetime.datetime.min + datetime.timedelta(seconds=i % 1000)).time(),
        "i": None,
        "j": [1.0, float(i)],
    }


def test_parquet_knows_the_type_of_a_column_that_begins_with_nulls(tmp_path):
    rows = [(i, i if i > 3 * PARQUET_ROWS else None) for i in range(5 * PARQUET_ROWS)]
    path = tmp_path / "x.parquet"
    assert write_parquet(Result(["a", "b"], rows), path) == len(rows)
    assert pq.read_table(path)["b"].to_pylist() == [b for _, b in rows]
    assert pq.ParquetFile(path).num_row_groups == 5


def test_parquet_of_no_rows_has_the_columns(tmp_path):
    path = tmp_path / "x.parquet"
    assert write_parquet(Result(["a", "a"], []), path) == 0
    assert pq.read_table(path).column_names == ["a", "a_2"]


def test_parquet_file_appears_only_when_complete(tmp_path):
    rows = [*[(1,)] * PARQUET_ROWS, ("text",)]
    path = tmp_path / "x.parquet"
    with pytest.raises(SchemaError, match="column a"):
        write_file(Result(["a"], rows), path, "parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "says"), [(2, True), (3, False), (9, False)])
def test_limit_tells_when_rows_were_left(limit, says):
    told: list[int] = []
    limited = Limited(Result(["a"], [(1,), (2,), (3,)]), limit, told.append)
    assert len(list(limited)) == min(limit, 3)
    assert told == [limit] * says


def test_the_suffix_decides_on_the_form():
    forms = {"a.csv": "csv", "a.JSON": "json", "a.parquet": "parquet", "a.txt": "table"}
    assert {name: form_of(Path(name)) for name in forms} == forms
    assert form_of(Path("a.csv"), "json") == "json"
    assert form_of(None) == "table"
    assert form_of(Path("/dev/stdout")) == form_of(Path("a.xlsx"), "table") == "table"


@pytest.mark.parametrize("name", ["c.xlsx", "c.csv.gz", "c.sqlite", "c.xls"])
def test_a_form_that_is_not_written_is_refused(name):
    """Before, such a file had a table for people in it."""
    with pytest.raises(ConfigError, match=f"{name}: cannot write files") as caught:
        form_of(Path(name))
    assert ".parquet" in caught.value.hint


def test_a_text_is_commands_by_line_and_statements_by_semicolon():
    text = "\\x on\nSELECT 1;\n  \\d T\nSELECT ';\n\\no';\nSELECT 2; SELECT\n3;\nquit\nSELECT 4"
    assert list(units(text)) == [
        (1, "\\x on"), (2, "SELECT 1"), (3, "\\d T"), (4, "SELECT ';\n\\no'"), (6, "SELECT 2"),
        (6, "SELECT\n3"), (8, "quit"), (9, "SELECT 4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM City c, SYS.NODES WHERE x", [(None, "CITY", "C"), ("SYS", "NODES", None)]),
        ('UPDATE "t" SET a = 1', [(None, "t", None)]),
        ("INSERT INTO A SELECT 1 FROM B AS X JOIN C ON 1", "ABC"),
        ("SELECT 1 FROM (SELECT 1 FROM A) Q -- FROM B", "A"),
        ("SELECT ' FROM B' FROM", ""),
    ],
)
def test_tables_that_a_statement_names(text, found):
    if isinstance(found, str):
        assert [one.table for one in references(text)] == list(found)
    else:
        assert references(text) == found


NAMES = SqlNames(
    {
        SqlTable("PUBLIC", "CITY"): ("ID", "NAME", "Population"),
        SqlTable("PUBLIC", "PERSON"): ("ID", "CITY_ID"),
        SqlTable("PUBLIC", "mixed"): ("x",),
        SqlTable("SYS", "NODES"): ("NODE_ID",),
    }
)


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("SELECT * FROM ", ["CITY", "PERSON", '"mixed"', "SYS.NODES"]),
        ("SELECT * FROM c", ["CITY"]),
        ("SELECT * FROM CITY, p", ["PERSON"]),
        ("SELECT * FROM CITY JOIN no", ["SYS.NODES"]),
        ("SELECT * FROM SYS.", ["NODES"]),
        ('SELECT * FROM "mi', ['"mixed"']),
        ("UPDATE ", ["CITY"]),
        ("INSERT INTO pe", ["PERSON"]),
        ("SELECT | FROM CITY", ["ID", "NAME", '"Population"', "CITY"]),
        ("SELECT p.| FROM PERSON p", ["ID", "CITY_ID"]),
        ("SELECT n| FROM CITY", ["NAME", "not", "null"]),
        ("SELECT * FROM CITY WHERE pop", ['"Population"']),
        ("sel", ["select"]),
        ("SELECT 'FROM ", []),
        ("SELECT 1 -- FROM ", []),
    ],
)
def test_completion_knows_the_context(typed, first):
    before, _, after = typed.partition("|")
    _, found = candidates(before, after, NAMES)
    assert found[: len(first)] == first
    assert bool(found) == bool(first)
