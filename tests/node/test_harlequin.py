"""The adapter for harlequin, by its interface."""

from __future__ import annotations

import datetime
import threading
import uuid

import pytest

pytest.importorskip("harlequin", reason="harlequin is not installed")

from harlequin.exception import HarlequinConnectionError, HarlequinQueryError

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
