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
from hypothesis import example, given
from hypothesis import strategies as st

from ignitetf.cli.output import Output, as_rows, note, progress, show, unique
from ignitetf.cli.tables import CHUNK_ROWS, _folded, block_lines, record_lines, table_lines
from ignitetf.cli.values import csv_values, json_texts, jsonable, text

pytestmark = pytest.mark.core


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
    (np.datetime64("2024-02-29T01:02:03.004000000"), "2024-02-29T01:02:03.004000"),
    (np.datetime64("2024-02-29T01:02:03.000000001"), "2024-02-29T01:02:03.000000001"),
    (np.array(["2024-02-29", "NaT"], "M8[D]"), ["2024-02-29", None]),
    (True, True),
    (None, None),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[str(v) for v, _ in VALUES])
def test_json_values(value, expected):
    assert jsonable(value) == expected
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == expected


ANY_VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.one_of(st.lists(ANY_VALUE), st.lists(st.floats()), st.lists(st.none() | st.text())))
def test_values_of_a_column_are_written_as_each_alone(values):
    assert json_texts(values) == [json.dumps(jsonable(v), ensure_ascii=False) for v in values]
    lines = [io.StringIO(), io.StringIO()]
    csv.writer(lines[0]).writerows([v] for v in csv_values(values))
    csv.writer(lines[1]).writerows([text(v)] for v in values)
    assert lines[0].getvalue() == lines[1].getvalue()


def test_json_is_one_document_of_rows():
    rows = [{"a": 1, "b": "ü"}, {"a": 2, "b": None}]
    assert json.loads(printed(rows, "json")) == rows
    assert json.loads(printed([], "json")) == []
    assert json.loads(printed(Result(["x"], []), "json")) == []
    assert [json.loads(line) for line in printed(rows, "jsonl").splitlines()] == rows
    assert printed([], "jsonl") == ""


def test_json_of_a_record_is_one_object():
    assert json.loads(printed({"state": "running", "pids": [1, 2]}, "json")) == {
        "state": "running",
        "pids": [1, 2],
    }


def test_a_table_of_a_record_leaves_out_what_is_not_known():
    record = {"name": "x", "cause": None}
    assert printed(record, "table").split() == ["name", "x"]
    assert json.loads(printed(record, "json")) == record


@pytest.mark.parametrize("width", [60, 100, 200])
def test_times_and_uuids_are_whole_at_any_width(width):
    row = ["7dc65d3d-0b7e-4a3c-8d2f-1c1e0f0b9a55", "2026-11-30T22:49:00.323000", "a text " * 20, 5]
    for count in range(1, 5):
        names = ["FIRST", "SECOND", "THIRD", "FOURTH"][:count]
        lines = list(table_lines(names, [row[:count]] * 2, width))
        assert all(len(line) <= width for line in lines)
        for value in row[: min(count, 2)]:
            assert sum(value in line for line in lines) == 2


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, data: Any, **more: Any) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    show(data, "table", file=out, **more)
    return out.getvalue().splitlines()


def wide_rows(columns: int = 25, rows: int = 3) -> list[dict[str, Any]]:
    def value(row: int, column: int) -> Any:
        plain = f"r{row}c{column}e"
        return [plain, f"{plain}界界", 1000 * column + row, f"{plain}\t"][column % 4]

    return [{f"COLUMN_{c}_": value(r, c) for c in range(columns)} for r in range(rows)]


@pytest.mark.parametrize("width", [*range(1, 24), 40, 60, 80, 100, 137, 200, 400, 1000])
def test_no_column_is_lost_or_cut_at_any_width(monkeypatch, width):
    from rich.cells import cell_len

    rows = wide_rows()
    lines = on_terminal(monkeypatch, width, rows)
    assert all(cell_len(line) <= max(width, 2) for line in lines)
    shown = "".join("".join(lines).split())
    for row in rows:
        for name, value in row.items():
            assert str(value).replace("\t", "\\t") in shown or width < 24
            assert name in shown or width < 24
    letters = "".join("".join(str(v) for v in row.values()) for row in rows)
    assert all(shown.count(letter) >= letters.count(letter) for letter in set(letters) - {"\t"})
    assert "…" not in shown


@pytest.mark.parametrize("width", [60, 100, 200])
def test_values_stand_below_the_names_of_their_columns(monkeypatch, width):
    rows = [{f"C{c}_": f"r{r}c{c}." for c in range(25)} for r in range(3)]
    lines = on_terminal(monkeypatch, width, rows)
    head = ""
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        head = line if after.startswith("─") else head
        for word in line.split():
            if word.startswith("r"):
                name = f"C{word.rpartition('c')[2].rstrip('.')}_"
                assert head.split().count(name) == 1
                assert f" {head} ".index(f" {name} ") == f" {line} ".index(f" {word} ")


def test_columns_that_do_not_fit_are_grouped_by_what_names_the_rows(monkeypatch):
    rows = [{"name": f"n{i}", **{f"column{c}": 10**12 + c for c in range(5)}} for i in range(2)]
    lines = on_terminal(monkeypatch, 40, rows)
    heads = [line.split() for line in lines if "column" in line]
    assert heads == [
        ["name", "column0", "column1"],
        ["name", "column2", "column3"],
        ["name", "column4"],
    ]
    # Names that are not unique do not tell the rows apart: they get numbers.
    lines = on_terminal(monkeypatch, 40, [{**row, "name": "same"} for row in rows])
    assert lines[0].split()[0] == "#"


def test_many_groups_become_a_block_a_row(monkeypatch):
    lines = on_terminal(monkeypatch, 30, wide_rows(rows=2))
    assert [line.split()[1] for line in lines if line.startswith("──")] == ["1", "2"]
    assert len(lines) == 2 * 26


def test_long_texts_are_folded_and_numbers_never(monkeypatch):
    lines = on_terminal(monkeypatch, 40, [{"text": "word" * 30, "n": 12345678}])
    assert "12345678" in lines[2]
    assert "".join(line.split()[0] for line in lines[2:]) == "word" * 30
    (name, value), *rest = (line.split() for line in record_lines({"text": "word" * 30}, 40))
    assert name == "text"
    assert value + "".join(map("".join, rest)) == "word" * 30
    assert list(block_lines(["a"], [(1,), (2,)], None))[1::2] == ["a  1", "a  2"]


@given(st.text(st.sampled_from("ab 界"), max_size=60), st.integers(2, 20))
@example(" aaa界", 4)
def test_words_are_broken_only_where_they_are_longer_than_a_line(text, width):
    from rich.cells import cell_len

    lines = _folded(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    words = [word for line in lines for word in line.split()]
    short = [word for word in text.split() if cell_len(word) <= width]
    assert all(words.count(word) >= short.count(word) for word in short)


def test_a_terminal_shows_rows_while_they_are_read():
    data = Result(["a", "b"], [(i, "x" * (i // 2000)) for i in range(5 * CHUNK_ROWS)])
    ahead, shown = 0, []
    for line in table_lines(data.columns, data, 80):
        shown += [int(line.split()[0])] if line[:5].strip().isdigit() else []
        ahead = max(ahead, data.read - len(shown))
    assert ahead <= CHUNK_ROWS
    assert shown == list(range(5 * CHUNK_ROWS))


def test_floats_are_readable_in_tables_and_exact_for_programs():
    single = float(np.float32(0.1))
    rows = [{"d": 0.1 + 0.2, "s": single, "a": np.array([0.1], "f4"), "n": float("nan")}]
    assert printed(rows, "table").splitlines()[2].split() == ["0.3", "0.1", "[0.1]", "NaN"]
    assert printed(rows, "csv").splitlines()[1].split(",")[:2] == [repr(0.1 + 0.2), repr(single)]
    assert json.loads(printed(rows, "json"))[0]["s"] == single
    # A column with one double has doubles.
    assert "0.100000001490116" in printed([{"a": single}, {"a": 0.3}], "table")


def test_control_characters_do_not_reach_a_terminal():
    out = printed([{"a\x1b": "\x1b[31mred\x9b", "b": "x\ty\r"}], "table")
    assert "\x1b" not in out and "\x9b" not in out and "\t" not in out and "\r" not in out
    assert "x\\ty\\r" in out


def test_given_columns_decide_on_order_and_fill_gaps():
    assert printed([{"a": 1, "b": 2}], "csv", columns=["b", "c", "a"]) == "b,c,a\n2,,1\n"
    names, rows = as_rows([{"a": 1}], ["a"])
    assert (names, [list(r) for r in rows]) == (["a"], [[1]])


@pytest.mark.parametrize("output", list(Output))
def test_every_output_takes_a_record(output):
    assert "value" in printed({"key": "value"}, output)


def test_text_of_nested_values_is_json():
    assert text({"a": [1.5]}) == '{"a": [1.5]}'


@pytest.mark.parametrize("width", [20, 60, 100])
def test_messages_on_a_terminal_end_their_lines_between_words(monkeypatch, width):
    message = (
        "hint: 'ignitetf table describe NAME' shows the columns; in the prompt this is \\d NAME"
    )
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    note(f"error: first\n{message}")
    lines = screen.getvalue().splitlines()
    assert lines[0] == "error: first"
    assert " ".join(lines[1:]) == message
    assert all(len(line) <= width for line in lines)


def test_progress_is_silent_without_a_terminal(capsys):
    with progress("rows", 10) as advance:
        advance(5, nbytes=100)
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_shows_rates(monkeypatch):
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
