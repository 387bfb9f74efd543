"""Forms of printed data."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ignitetf.cli.output import Output, as_rows, jsonable, progress, show, text, unique


class Result:
    """Rows as an SQL result has them; counts how far they were read."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self._rows, self.read = columns, rows, 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows:
            self.read += 1
            yield row


def printed(data: Any, output: str, **more: Any) -> str:
    out = io.StringIO()
    show(data, output, file=out, **more)
    return out.getvalue()


VALUES = [
    (decimal.Decimal("1.50"), "1.50"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (datetime.datetime(2024, 2, 29, 1, 2, 3, 4000), "2024-02-29T01:02:03.004000"),
    (datetime.date(2024, 2, 29), "2024-02-29"),
    (datetime.timedelta(hours=1, seconds=2), "01:00:02"),
    (b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    ([1, b"a"], [1, "YQ=="]),
    ({"a": {"b": None}}, {"a": {"b": None}}),
    (np.float32(0.5), 0.5),
    (np.arange(3), [0, 1, 2]),
    (True, True),
    (None, None),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[str(v) for v, _ in VALUES])
def test_json_values(value, expected):
    assert jsonable(value) == expected
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == expected


def test_json_is_one_document_of_rows():
    rows = [{"a": 1, "b": "ü"}, {"a": 2, "b": None}]
    assert json.loads(printed(rows, "json")) == rows
    assert json.loads(printed([], "json")) == []
    assert json.loads(printed(Result(["x"], []), "json")) == []


def test_json_of_a_record_is_one_object():
    assert json.loads(printed({"state": "running", "pids": [1, 2]}, "json")) == {
        "state": "running",
        "pids": [1, 2],
    }


def test_columns_with_one_name_keep_all_values():
    data = Result(["X", "X", "X_2"], [(1, 2, 3)])
    assert unique(data.columns) == ["X", "X_2", "X_2_2"]
    assert json.loads(printed(data, "json")) == [{"X": 1, "X_2": 2, "X_2_2": 3}]


def test_csv_quotes_and_leaves_nulls_empty():
    data = Result(["a", "b"], [('say "hi", now\n', None), ("", b"\x01")])
    assert list(csv.reader(io.StringIO(printed(data, "csv")))) == [
        ["a", "b"],
        ['say "hi", now\n', ""],
        ["", "AQ=="],
    ]


@pytest.mark.parametrize("output", ["csv", "json"])
def test_rows_are_written_while_they_are_read(output):
    """So that memory stays bounded whatever the number of rows."""
    data = Result(["a"], [(i,) for i in range(100)])

    class Out(io.StringIO):
        ahead = 0

        def write(self, part: str) -> int:
            self.ahead = max(self.ahead, data.read - self.getvalue().count("\n"))
            return super().write(part)

    out = Out()
    show(data, output, file=out)
    assert data.read == 100
    assert out.ahead <= 2


def test_piped_table_is_whole_and_plain():
    long = "w" * 500
    lines = printed([{"name": long, "n": 1}, {"name": "b", "n": 22}], "table").splitlines()
    assert [line.split() for line in (lines[0], *lines[2:])] == [
        ["name", "n"],
        [long, "1"],
        ["b", "22"],
    ]
    assert "\x1b" not in "".join(lines)
    assert all(line == line.rstrip() for line in lines)


def test_table_shows_markup_as_text_and_bytes_as_a_length():
    out = printed([{"a": "[red]x[/red]", "b": b"12345", "c": None}], "table")
    assert "[red]x[/red]" in out
    assert "<5 bytes>" in out
    assert "NULL" in out


def test_given_columns_decide_on_order_and_fill_gaps():
    assert printed([{"a": 1, "b": 2}], "csv", columns=["b", "c", "a"]) == "b,c,a\n2,,1\n"
    names, rows = as_rows([{"a": 1}], ["a"])
    assert (names, [list(r) for r in rows]) == (["a"], [[1]])


@pytest.mark.parametrize("output", list(Output))
def test_every_output_takes_a_record(output):
    assert "value" in printed({"key": "value"}, output)


def test_text_of_nested_values_is_json():
    assert text({"a": [1.5]}) == '{"a": [1.5]}'


def test_progress_is_silent_without_a_terminal(capsys):
    with progress("rows", 10) as advance:
        advance(5, nbytes=100)
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_shows_rates(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("rows", 1000) as advance:
        advance(500, 1_000_000)
        advance(500, 1_000_000)
    assert "1,000 rows" in terminal.getvalue()
    assert "rows/s" in terminal.getvalue()
    assert "MB/s" in terminal.getvalue()
