"""The prompt of `ignitetf query`, in a pseudo-terminal and by its parts."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from helpers.interruptible import COMMAND
from helpers.terminals import Terminal

from ignitetf.cli.options import Connect
from ignitetf.cli.shell import Shell
from ignitetf.net.client import Client, connect

pytestmark = pytest.mark.node


@pytest.fixture
def table(client: Client) -> Iterator[str]:
    """A table of 24 columns and 3 rows, whose values are all different."""
    name = f"PROMPT_{uuid.uuid4().hex[:8].upper()}"
    columns = ", ".join(f"COLUMN_{i} VARCHAR" for i in range(24))
    client.sql(f"CREATE TABLE {name} (ID INT PRIMARY KEY, {columns})").close()
    for row in range(3):
        values = ", ".join(f"'value {row} of {i};'" for i in range(24))
        client.sql(f"INSERT INTO {name} VALUES ({row}, {values})").close()
    yield name
    client.sql(f"DROP TABLE IF EXISTS {name}").close()


@pytest.fixture
def shell(address: str) -> Iterator[Shell]:
    found = Shell(Connect({"address": address}))
    yield found
    found.close()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_terminal_shows_every_column(address, table, tmp_path, width):
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
        "IGNITETF_ADDRESS": address, "TERM": "xterm", "PAGER": "cat", "PROMPT_TOOLKIT_NO_CPR": "1",
        "NO_COLOR": "1", "EDITOR": "sed -i s/1/7/",
    }  # fmt: skip
    terminal = Terminal(*COMMAND, "query", size=(40, width), env=env)
    try:
        terminal.read_until("ignite>")
        terminal.type(f"SELECT * FROM {table} ORDER BY ID;\r")
        shown = terminal.read_until(r"\n3 rows, [\d.]+ s")
        lines = [line for line in shown.splitlines() if "ignite>" not in line]
        assert all(len(line) <= width for line in lines)
        for column in range(24):
            assert re.search(rf"\bCOLUMN_{column}\b", shown)
            for row in range(3):
                assert f"value {row} of {column};" in shown
        terminal.type("SELECT * FRM X;\r")
        terminal.read_until("error: Syntax error")
        # A statement that takes long shows its time, and Ctrl-C ends it.
        terminal.type(
            "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B;\r"
        )
        terminal.read_until(r"running, \d+ s")
        terminal.type("\x03")
        terminal.read_until("interrupted")
        terminal.type("SELECT 1 AS ONE;\r")
        terminal.read_until(r"\n1 row, ")
        terminal.type("\\e\r")
        terminal.read_until("SELECT 7")
        terminal.type("\r")
        assert re.search(r"\n +7\n", terminal.read_until(r"\n1 row, "))
        terminal.type("exit\r")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_commands_of_the_prompt(shell, table, tmp_path, capsys):
    def told(text: str) -> tuple[str, str]:
        assert shell.handle(text)
        out, err = capsys.readouterr()
        return out, err

    out, err = told(f"SELECT ID FROM {table} ORDER BY ID;")
    assert out.split() == ["ID", "──", "0", "1", "2"]
    assert re.fullmatch(r"3 rows, \d+\.\d{3} s\n", err)
    assert told("\\timing")[1] == "timing off\n"
    assert told("SELECT 1;")[1] == "1 row\n"
    assert told(f"UPDATE {table} SET COLUMN_1 = 'x' WHERE ID < 2;")[1] == "2 rows changed\n"
    told("\\x on")
    assert told(f"SELECT ID, COLUMN_1 FROM {table} WHERE ID = 1;")[0].splitlines()[1:] == [
        "ID        1", "COLUMN_1  x",
    ]  # fmt: skip
    told("\\x auto")
    assert table in told("\\dt PROMPT_*")[0]
    assert "COLUMN_23" in told(f"\\d {table.lower()}")[0]
    told(f"CREATE INDEX {table}_I ON {table} (COLUMN_2);")
    assert f"{table}_I" in told(f"\\di {table}")[0]
    assert told("\\?")[1].count("\\") > 10
    # Mistakes are one line, with what was meant.
    for wrong, meant in (
        ("\\dtt", "\\dt"), ("\\set timout 5", "timeout"), (f"SELECT * FROM {table}X;", table),
        ("\\x perhaps", "auto or on or off"), ("\\set timeout soon", "\\set timeout"),
    ):  # fmt: skip
        out, err = told(wrong)
        assert (out, err.count("error: ")) == ("", 1)
        assert meant in err
    # Rows to files, in the form of their suffix.
    path = tmp_path / "x.csv"
    told(f"\\o {path}")
    out, err = told(f"SELECT ID FROM {table} ORDER BY ID;")
    assert (out, err) == ("", f"3 rows in {path}\n")
    assert list(csv.reader(path.open())) == [["ID"], ["0"], ["1"], ["2"]]
    assert "rows of one query" in told("SELECT 2;")[1]
    told(f"\\o {tmp_path / 'x.parquet'}")
    told(f"SELECT ID FROM {table} ORDER BY ID;")
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"ID": [0, 1, 2]}
    told("\\o")
    script = tmp_path / "x.sql"
    script.write_text("\\timing on\nSELECT 5 AS A;\nSELEC;\nSELECT 6;")
    out, err = told(f"\\i {script}")
    assert "5" in out and "6" not in out and f"error: {script}, line 3: Syntax error" in err
    # The limit of a statement.
    assert told("\\set timeout 0.2")[1] == "timeout 0.2 s\n"
    slow = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B;"
    assert "cancelled" in told(slow)[1]
    told("\\set timeout off")
    assert told("SELECT 1;")[0].split()[-1] == "1"
    assert not shell.handle("quit")


def test_completion_has_the_names_of_the_moment(shell, client, table, monkeypatch):
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from ignitetf.cli import shell as module
    from ignitetf.cli.completion import completer

    def found(text: str, at: int | None = None) -> list[str]:
        document = Document(text, at)
        return [c.text for c in completer(shell).get_completions(document, CompleteEvent())]

    assert found(f"SELECT * FROM {table[:-1].lower()}") == [table]
    assert found(f"SELECT COLUMN_23 FROM {table}", len("SELECT COLUMN_23")) == ["COLUMN_23"]
    assert "NODE_ID" in found("SELECT N.NOD FROM SYS.NODES N", len("SELECT N.NOD"))
    assert found(f"\\d {table[:-1]}") == [table]
    monkeypatch.setattr(module, "_NAMES_S", 0.0)
    client.sql(f"ALTER TABLE {table} ADD COLUMN (NEWCOMER INT)").close()
    assert "NEWCOMER" in found(f"SELECT NEW FROM {table}", len("SELECT NEW"))


def test_exports_stream_in_bounded_memory(address, tmp_path):
    """30,000 rows are 120 MB of text; they take a few pages at a time."""
    program = (
        "import resource, sys; from ignitetf.cli.main import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    statement = "SELECT X, RPAD('', 4000, CAST(X AS VARCHAR)) AS T FROM SYSTEM_RANGE(1, {})"

    def exported(rows: int, path: Path) -> int:
        args = ("query", statement.format(rows), "--address", address, "--to", str(path))
        done: Any = subprocess.run(
            [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    for name in ("x.csv", "x.jsonl", "x.parquet", "x.arrow"):
        few, many = (exported(rows, tmp_path / name) for rows in (5_000, 30_000))
        assert many - few < 60, f"{name}: {few} MB for few rows, {many} MB for many"
    table = pq.read_table(tmp_path / "x.parquet", columns=["X"])
    assert table.column("X").to_pylist() == list(range(1, 30_001))
    with pa.OSFile(str(tmp_path / "x.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["X"].to_pylist() == list(range(1, 30_001))
    for name, lines in (("x.csv", 30_001), ("x.jsonl", 30_000)):
        with (tmp_path / name).open() as text:
            assert sum(1 for _ in text) == lines


def test_live_names_of_the_cluster(address, client, table):
    from ignitetf.cli.live import live_names
    from ignitetf.fs.filesystem import IgniteFileSystem
    from ignitetf.jobs.store import JobStore
    from ignitetf.settings import Settings

    def names(kind: Any, word: str) -> list[str]:
        return live_names(kind, word, Settings.resolve(address=address))

    assert names("data", table[:-1].lower()) == [table]
    assert names("table", table[:-1]) == [table]
    with connect(address) as own:
        assert names("job", "") == sorted(job.id for job in JobStore(own).jobs())
    fs = IgniteFileSystem(settings=client.settings, skip_instance_cache=True)
    folder = f"/live-{uuid.uuid4().hex[:8]}"
    fs.makedirs(f"{folder}/deep")
    try:
        fs.pipe_file(f"{folder}/deep/file", b"1")
        assert names("file", folder[:-1]) == [f"{folder}/"]
        assert names("file", f"igfs://{folder}/") == [f"igfs://{folder}/deep/"]
        assert names("file", f"{folder}/deep/f") == [f"{folder}/deep/file"]
    finally:
        fs.rm(folder, recursive=True)
