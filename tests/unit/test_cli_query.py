"""Parts of the query command that need no node."""

from __future__ import annotations

import datetime
import decimal
import stat
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest

from ignitetf.cli.prompt import history_file, is_complete
from ignitetf.cli.query import (
    PARQUET_ROWS,
    Limited,
    literal,
    print_rows,
    write_parquet,
)
from ignitetf.errors import SchemaError


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


def test_parquet_of_no_rows_has_the_columns(tmp_path):
    path = tmp_path / "x.parquet"
    assert write_parquet(Result(["a", "a"], []), path) == 0
    assert pq.read_table(path).column_names == ["a", "a_2"]


def test_parquet_file_appears_only_when_complete(tmp_path):
    rows = [*[(1,)] * PARQUET_ROWS, ("text",)]
    path = tmp_path / "x.parquet"
    with pytest.raises(SchemaError, match="column a"):
        print_rows(Result(["a"], rows), "parquet", path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "says"), [(2, True), (3, False), (9, False)])
def test_limit_tells_when_rows_were_left(capsys, limit, says):
    limited = Limited(Result(["a"], [(1,), (2,), (3,)]), limit)
    assert len(list(limited)) == min(limit, 3)
    assert ("there are more" in capsys.readouterr().err) is says
