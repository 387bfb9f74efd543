"""Ctrl-C and SIGTERM in the middle of every long command: it ends soon and leaves nothing behind.

Left behind would be: a process, a cursor on the node, a connection, a temporary file, a cache or
table that was not there before (but what a load says it keeps, so that it can go on).
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.interruptible import command_that_tells

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]
if sys.platform == "win32":
    pytest.skip("POSIX signals", allow_module_level=True)

# The product's limit is 2 s; a loaded machine takes longer to start and end an interpreter.
LIMIT_S = 15
# Seconds from a command's beginning to the signal. Most commands have an end of their own, which it
# must precede: where one has ended, the next one is met in the last fifth of its time, so in its
# work. The long ones at the end are for a machine that is busy.
WAITS_S = [*(1.2 * 0.8**k for k in range(12)), 2, 3, 5]
WATCH_WAITS_S = [1.2, 3, 6, 12]  # watching begins late
TABLE = "INTERRUPTED_ROWS"
ENDLESS = f'SELECT COUNT(*) FROM {TABLE} A, {TABLE} B, {TABLE} C WHERE A."V" + B."V" > C."V" + 1'
# Sends rows for longer than anybody waits.
MANY_ROWS = "SELECT A.X FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B"


@pytest.fixture(scope="module")
def table(client):
    from ignitetf.load.loader import load_dataset

    rows = ({"V": i, "BLOB": bytes(2000)} for i in range(60_000))
    load_dataset(rows, TABLE, client=client, partitions=8, if_exists="replace")
    yield TABLE
    client.sql(f'DROP TABLE IF EXISTS "{TABLE}"')


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """Once for all: it takes 400 MB of disk."""
    path = tmp_path_factory.mktemp("big") / "big.npz"
    np.savez(path, X=np.zeros((400, 1_000_000), np.uint8))
    yield path
    path.unlink()


def commands(folder, table, big):
    watched = folder / "watched"
    watched.mkdir()
    many = folder / "many.bin"
    with many.open("wb") as out:
        out.truncate(3 << 30)
    return {
        "load": ["load", "npz", str(big), "--cache", "INTERRUPTED_LOAD", "--if-exists", "replace"],
        "query": ["query", ENDLESS, "--timeout", "200"],
        # In the folder that has to be empty afterwards.
        "query to a file": ["query", MANY_ROWS, "--to", str(folder / "tmp" / "x.csv")],
        "stats": ["stats", table],
        "verify": ["verify", table],
        "verify epoch": ["verify", table, "--epoch", "--seed", "3"],
        "fs put": ["fs", "put", str(many), "/interrupted.bin"],
        "checkpoint watch": ["checkpoint", "watch", str(watched), "/interrupted"],
        "bench read": ["bench", "read"],
        "bench write": ["bench", "write"],
    }


NAMES = [
    "load", "query", "query to a file", "stats", "verify", "verify epoch", "fs put", "checkpoint watch",
    "bench read", "bench write",
]  # fmt: skip


def left_on_the_node(client):
    scans = client.sql("SELECT COUNT(*) FROM SYS.SCAN_QUERIES").fetchall()[0][0]
    queries = client.sql(
        "SELECT COUNT(*) FROM SYS.SQL_QUERIES WHERE SQL NOT LIKE '%SYS.SQL_QUERIES%'"
    ).fetchall()[0][0]
    return scans, queries


def interrupted(words, wait_s, number, temporary):
    """Exit code and messages of a command that gets a signal after some seconds."""
    begun = temporary.with_name("begun")
    begun.unlink(missing_ok=True)
    command = subprocess.Popen(
        [*command_that_tells(begun), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    while not begun.exists() and command.poll() is None:
        time.sleep(0.001)
    # Somewhere in its work, or still starting: either way it has to end.
    time.sleep(wait_s)
    began = time.monotonic()
    command.send_signal(number)
    try:
        _, told = command.communicate(timeout=LIMIT_S)
    finally:
        command.kill()
    print(f"{words[:2]}: ended after {time.monotonic() - began:.2f} s with {command.returncode}")
    return command.returncode, told


def in_its_work(name, code, told):
    """Whether the signal came neither before the work nor after it."""
    if name == "checkpoint watch":
        return code == 0 and "watching" in told
    # A load whose end was a moment before leaves its cache, as it should.
    return code in (130, 143) and (name != "load" or "resume" in told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_command_leaves_nothing(client, address, table, big, tmp_path, name, number):
    caches = set(client.cache_names())
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = [*commands(tmp_path, table, big)[name], "--address", address]
    for wait_s in WATCH_WAITS_S if name == "checkpoint watch" else WAITS_S:
        code, told = interrupted(words, wait_s, number, temporary)
        assert "Traceback" not in told, told
        # In its last moments, with nothing left to clean up, a signal simply ends the program.
        assert code in (0, 130, 143, -number), (code, told)
        if in_its_work(name, code, told):
            break
    else:
        pytest.fail(f"{name} was never in its work when the signal came")
    assert list(temporary.iterdir()) == []
    deadline = time.monotonic() + LIMIT_S
    while left_on_the_node(client) != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_on_the_node(client) == (0, 0)
    kept = set(client.cache_names()) - caches - {"IGNITETF_CATALOG"}
    if name == "load":
        assert "resume" in told
        kept = {c for c in kept if not c.startswith("INTERRUPTED_LOAD")}
        for cache in set(client.cache_names()) - caches:
            if cache.startswith("INTERRUPTED_LOAD"):
                client.destroy_cache(cache)
    assert {c for c in kept if not c.lower().startswith("igfs")} == set()


def test_nothing_of_an_interrupted_upload_is_seen(client, address):
    import fsspec

    host, port = address.rsplit(":", 1)
    fs = fsspec.filesystem("igfs", host=host, port=int(port), skip_instance_cache=True)
    assert not fs.exists("/interrupted.bin")
