"""Loads of one name at the same time: one wins, the others are told so, nothing is lost.

The law: what is stored afterwards is what the loads that reported success leave when they run one
after another, in some order; and `verify` finds nothing wrong.
"""

import itertools
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from loaders import SPAN, Loaders

from ignitetf.errors import CacheNotFound, DataSetBusy
from ignitetf.explore.verify import verify
from ignitetf.load.journal import read_journal
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.lease import Lease
from ignitetf.tables.removal import clear_cache, drop_cache, drop_table

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(300)]
if sys.platform == "win32":
    pytest.skip("POSIX signals", allow_module_level=True)

ROWS = 3000
SEED = 20241123
MODES = ["error", "append", "replace", "resume"]
TOLD = ("DataSetBusy", "CacheExists", "ConfigError")


@pytest.fixture(scope="module")
def loaders(address, tmp_path_factory):
    with Loaders(address, tmp_path_factory.mktemp("loaders")) as found:
        yield found


def after(content, mode, source):
    """The sources of a data set after one more load; None where that is refused."""
    if mode == "replace" or not content:
        return [source]
    if mode == "append":
        return [*content, source]
    return content if mode == "resume" and content == [source] else None


def possible(content, done):
    """What loads leave that ran one after another, in any order in which all of them succeed."""
    for order in itertools.permutations(done):
        found = content
        for mode, source in order:
            found = None if found is None else after(found, mode, source)
        if found is not None:
            yield sorted(found)


def sources(client, name):
    """The sources of the rows that are stored, each of them whole."""
    try:
        reader = CacheReader(client, name, ReadOptions())
    except CacheNotFound:
        return []
    counts = Counter()
    for item in reader.batches(range(reader.partition_count)):
        if item.batch is not None:
            counts.update((item.batch.columns["LABEL"].values // SPAN).tolist())
    assert set(counts.values()) <= {ROWS}, counts
    return sorted(counts)


def require_consistent(client, name, layout):
    """The manifest, the rows, the slim table and SQL agree, and nothing is left of the loads."""
    manifest = read_manifest(client, name)
    found = sources(client, name)
    assert manifest.rows == ROWS * len(found)
    report = verify(client, name)
    assert report.ok, report.findings
    assert client.sql(f'SELECT COUNT(*) FROM "{name}"').fetchall() == [(manifest.rows,)]
    left = {n for n in client.cache_names() if n.startswith(f"{name}_")}
    assert left == ({f"{name}_INDEX"} if layout == "blocks" else set())
    assert read_journal(client, name) is None
    return found


def data_sets(loaders, cache_name, layout):
    """Names of data sets, and the sources of their rows; every second one has some."""
    for number in range(4):
        name = f"{cache_name}_{number}"
        before = [1] if number % 2 else []
        if before:
            assert loaders.start(name, layout, "error", 1, ROWS, 0).outcome() == "ok"
        yield name, before


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_two_loads_at_once(client, cache_name, loaders, layout):
    """Random pairs of ways."""
    chance = random.Random(SEED)
    for name, before in data_sets(loaders, cache_name, layout):
        pair = [(chance.choice(MODES), source) for source in (2, 3)]
        under_way = []
        for mode, source in pair:
            under_way.append(loaders.start(name, layout, mode, source, ROWS, 0.02))
            time.sleep(chance.choice([0, 0, 0.1]))
        told = [loader.outcome() for loader in under_way]
        done = [load for load, text in zip(pair, told, strict=True) if text == "ok"]
        assert all(text == "ok" or text.startswith(TOLD) for text in told), (pair, told)
        assert done or before, (pair, told)
        found = require_consistent(client, name, layout)
        assert found in list(possible(before, done)), (pair, told, SEED)
        drop_cache(client, name)


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_killed_loader_does_not_keep_the_data_set(client, cache_name, loaders, layout):
    """The next one has it at once: that a process of this machine has ended is known."""
    chance = random.Random(SEED)
    for name, before in data_sets(loaders, cache_name, layout):
        killed = chance.choice(["append", "replace"] if before else MODES)
        loader = loaders.start(name, layout, killed, 2, ROWS, 0.05)
        time.sleep(chance.uniform(0.05, 0.6))
        loader.send(signal.SIGKILL)
        ended = loader.outcome() == "ok"
        unfinished = read_journal(client, name)
        mode = chance.choice(["resume", "replace"]) if unfinished or ended else "replace"
        source = 2 if mode == "resume" else 3
        assert loaders.start(name, layout, mode, source, ROWS, 0).outcome() == "ok", (killed, mode)
        found = require_consistent(client, name, layout)
        kept = after(before, killed, 2) if mode == "resume" else [3]
        assert found == sorted(kept), (killed, mode, SEED)
        drop_cache(client, name)


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_loader_that_stood_still_writes_nothing_more(client, cache_name, loaders, layout):
    """It is taken over after the time of the lease, and stops by itself when it goes on."""
    first = loaders.start(cache_name, layout, "error", 2, ROWS, 0.1)
    while read_journal(client, cache_name) is None or read_journal(client, cache_name).rows == 0:
        time.sleep(0.02)
    first.send(signal.SIGSTOP)
    try:
        second = loaders.start(cache_name, layout, "replace", 3, ROWS, 0)
        assert second.outcome() == "ok"
    finally:
        first.send(signal.SIGCONT)
    told = first.outcome()
    assert told.startswith("DataSetBusy") and "taken over" in told
    assert require_consistent(client, cache_name, layout) == [3]


def test_a_loader_that_stood_still_goes_on_where_nobody_took_over(client, cache_name, loaders):
    loader = loaders.start(cache_name, "rows", "error", 2, ROWS, 0.05)
    while not client.cache_exists(cache_name):
        time.sleep(0.02)
    loader.send(signal.SIGSTOP)
    time.sleep(3.5)
    loader.send(signal.SIGCONT)
    assert loader.outcome() == "ok"
    assert require_consistent(client, cache_name, "rows") == [2]


def test_what_is_being_loaded_is_neither_dropped_nor_cleared(client, cache_name, loaders):
    loader = loaders.start(cache_name, "blocks", "error", 2, ROWS, 0.2)
    while not client.cache_exists(f"{cache_name}_INDEX"):
        time.sleep(0.02)
    commands = [*itertools.product((drop_cache, clear_cache), ("", "_INDEX"))]
    for command, name in [*commands, (drop_table, "_INDEX__ROWS")]:
        with pytest.raises(DataSetBusy) as caught:
            command(client, cache_name + name)
        error = caught.value
        assert (error.pid, error.work) == (loader.pid, "load") and str(loader.pid) in str(error)
        assert error.host in str(error) and error.since in str(error)
    assert loader.outcome() == "ok"
    assert require_consistent(client, cache_name, "blocks") == [2]


def test_the_clock_of_the_holder_does_not_matter(client, cache_name, monkeypatch):
    """One on another machine, whose clock is wrong, is judged by its renewals alone."""
    from ignitetf.tables import lease

    monkeypatch.setattr(lease, "RENEWED_S", 0.1)
    monkeypatch.setattr(lease, "EXPIRES_S", 1.0)
    other = Lease(client, cache_name, "load")
    other._holder = replace(
        other._holder, machine="elsewhere", pid=1, started=1e12, since="2099-01-01"
    )
    with other:
        with pytest.raises(DataSetBusy, match="2099-01-01"), Lease(client, cache_name, "load"):
            pass
        # It falls silent, as a killed one does.
        other._ended.set()
        time.sleep(0.3)
        with Lease(client, cache_name, "load") as mine:
            mine.check()
            other._renewed = 0.0
            with pytest.raises(DataSetBusy, match="taken over"):
                other.check()
            mine._renewed = 0.0
            mine.check()
    with Lease(client, cache_name, "load"):
        pass
