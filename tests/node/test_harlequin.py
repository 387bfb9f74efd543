"""The adapter for harlequin, by its interface and in the program itself."""

from __future__ import annotations

import asyncio
import datetime
import threading
import uuid

import pytest

pytest.importorskip("harlequin", reason="harlequin is not installed")

from harlequin import Harlequin
from harlequin.exception import HarlequinConnectionError, HarlequinQueryError
from harlequin.plugins import load_adapter_plugins

from ignitetf.cli.harlequin import IgniteAdapter

pytestmark = pytest.mark.node


def test_an_editor_runs_shows_and_cancels(address):
    connection = IgniteAdapter((address,), unknown="option").connect()
    name = f"HQ_{uuid.uuid4().hex[:8].upper()}"
    try:
        columns = "ID INT PRIMARY KEY, N VARCHAR, D TIMESTAMP"
        assert connection.execute(f"CREATE TABLE {name} ({columns})") is None
        values = "(1, 'a', TIMESTAMP '2024-01-02 00:00:00'), (2, NULL, NULL)"
        assert connection.execute(f"INSERT INTO {name} (ID, N, D) VALUES {values}") is None
        cursor = connection.execute(f"SELECT * FROM {name} ORDER BY ID;")
        assert cursor.columns() == [("ID", "##"), ("N", "s"), ("D", "ts")]
        rows = [
            {"ID": 1, "N": "a", "D": datetime.datetime(2024, 1, 2)},
            {"ID": 2, "N": None, "D": None},
        ]
        assert cursor.fetchall().to_pylist() == rows
        limited = connection.execute(f"SELECT * FROM {name} ORDER BY ID").set_limit(1)
        assert limited.fetchall().to_pylist() == rows[:1]
        empty = connection.execute(f"SELECT ID FROM {name} WHERE ID > 9").fetchall()
        assert (empty.num_rows, empty.column_names) == (0, ["ID"])
        catalog = {schema.label: schema for schema in connection.get_catalog().items}
        (table,) = [item for item in catalog["PUBLIC"].children if item.label == name]
        assert {column.label for column in table.children} == {"ID", "N", "D"}
        assert "SYS" in catalog
        with pytest.raises(HarlequinQueryError, match=f"did you mean {name}"):
            connection.execute(f"SELECT * FROM {name}X")
        threading.Timer(0.5, connection.cancel).start()
        slow = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B"
        assert connection.execute(slow) is None
        assert connection.execute("SELECT 1 AS A").fetchall().to_pylist() == [{"A": 1}]
    finally:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.close()
    with pytest.raises(HarlequinConnectionError, match="hint: "):
        IgniteAdapter(("127.0.0.1:1",)).connect()


def test_the_program_shows_the_rows_of_each_statement(address, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # harlequin keeps a history there
    app = Harlequin(load_adapter_plugins()["ignite"]((address,)))
    statements = "SELECT 40 + 2 AS ANSWER, 'x' AS T; SELECT 1 AS NONE WHERE FALSE"
    shown = asyncio.run(_shown(app, statements, tables=2))
    assert shown == [(["ANSWER", "T"], [[42, "x"]]), (["NONE"], [])]


async def _shown(app, statements, tables):
    """Run statements in the editor; return the columns and rows of the tables that appear."""
    async with app.run_test(size=(120, 36)) as pilot:
        await _until(pilot, lambda: app.editor is not None and app.connection is not None)
        app.editor.text = statements
        app.editor.focus()
        await pilot.press("ctrl+a", "ctrl+j")
        await _until(pilot, lambda: len(app.results_viewer.query("ResultsTable")) == tables)
        return [
            (
                [str(column.label).split()[0] for column in table.ordered_columns],
                [list(table.get_row_at(row)) for row in range(table.row_count)],
            )
            for table in app.results_viewer.query("ResultsTable")
        ]


async def _until(pilot, condition):
    for _ in range(200):
        await pilot.pause(0.1)
        if condition():
            return
    raise AssertionError("harlequin did not get there within 20 s")
