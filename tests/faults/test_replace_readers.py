"""Who reads a data set by SQL while it is replaced sees the old rows or the new ones.

Also when the loader is killed at any moment; and whatever resumes it then leaves the new ones.
"""

import contextlib
import random
import signal
import sys
import threading
import time

import pyignite
import pytest
from loaders import SPAN, Loaders

from ignitetf.errors import DataChanged
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows
from ignitetf.tables.describe import describe, list_tables
from ignitetf.tables.removal import drop_cache

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(300)]
if sys.platform == "win32":
    pytest.skip("POSIX signals", allow_module_level=True)

ROWS = 2000
SEED = 20241124


@pytest.fixture(scope="module")
def loaders(address, tmp_path_factory):
    with Loaders(address, tmp_path_factory.mktemp("loaders")) as found:
        yield found


def totals(source):
    return ROWS, ROWS * source * SPAN + ROWS * (ROWS - 1) // 2


@contextlib.contextmanager
def polled(ask, count=2):
    """Ask in threads for as long as the block takes; gives what was answered, in order."""
    seen, stop = [[] for _ in range(count)], threading.Event()

    def run(mine):
        with ask() as query:
            while not stop.is_set():
                try:
                    mine.append(query())
                except Exception as error:
                    mine.append(error)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def by_pyignite(address, text):
    @contextlib.contextmanager
    def ask():
        client = pyignite.Client()
        host, port = address.split(":")
        with client.connect(host, int(port)):
            yield lambda: tuple(next(client.sql(text)))

    return ask


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_poll_sees_the_old_or_the_new_rows(client, address, cache_name, loaders, layout):
    """Every answer is one whole set of rows, and never an older one than the answer before."""
    chance = random.Random(SEED)
    assert loaders.start(cache_name, layout, "error", 0, ROWS, 0).outcome() == "ok"
    text = f'SELECT COUNT(*), SUM(LABEL) FROM "{cache_name}"'
    with polled(by_pyignite(address, text)) as seen:
        for source in range(1, 5):
            loader = loaders.start(cache_name, layout, "replace", source, ROWS, 0.005)
            if source % 2:
                time.sleep(chance.uniform(0.1, 1.0))
                loader.send(signal.SIGKILL)
                if loader.outcome() != "ok":
                    assert client.sql(text).fetchall()[0] in (totals(source - 1), totals(source))
                    begun = read_journal(client, cache_name) is not None
                    mode = chance.choice(["resume", "replace"]) if begun else "replace"
                    loader = loaders.start(cache_name, layout, mode, source, ROWS, 0)
            assert loader.outcome() == "ok"
            assert client.sql(text).fetchall() == [totals(source)]
    versions = {totals(source): source for source in range(5)}
    for mine in seen:
        assert set(mine) <= versions.keys(), {a for a in mine if a not in versions}
        order = [versions[answer] for answer in mine]
        assert order == sorted(order) and order[0] == 0 and order[-1] == 4
    slim = {f"{cache_name}_INDEX"} if layout == "blocks" else set()
    assert {n for n in client.cache_names() if n.startswith(cache_name)} == {cache_name, *slim}


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_who_opens_it_meanwhile_reads_one_set_of_rows(client, address, cache_name, layout):
    """Or is told while reading that it was replaced; the opening itself does not notice."""

    @contextlib.contextmanager
    def ask():
        def query():
            opened = open_rows(cache_name, client=other, shard=(0, 1))
            try:
                labels = [int(x) for batch in opened.batches() for x in batch["val"]["LABEL"]]
            except DataChanged:
                return None
            return len(labels), sum(labels)

        with connect(address) as other:
            yield query

    load_dataset(rows(0), cache_name, client=client, partitions=4, layout=layout)
    with polled(ask) as seen:
        for source in range(1, 9):
            load_dataset(
                rows(source * SPAN),
                cache_name,
                client=client,
                partitions=(4, 16)[source % 2],
                layout=layout,
                if_exists="replace",
            )
    versions = {totals(source): source for source in range(9)}
    for mine in seen:
        order = [versions[answer] for answer in mine if answer is not None]
        assert order == sorted(order) and len(set(order)) > 4


def rows(start, number=ROWS):
    return ({"LABEL": start + i, "NOTE": "x" * 20} for i in range(number))


def test_a_query_that_streams_the_old_rows_reads_them_to_their_end(client, address, cache_name):
    load_dataset(rows(0), cache_name, client=client, partitions=4)
    with connect(address) as other:
        streaming = iter(other.sql(f"SELECT LABEL FROM {cache_name}", page_size=50))
        found = [next(streaming)[0]]
        replaced = threading.Thread(
            target=lambda: load_dataset(
                rows(ROWS), cache_name, client=client, partitions=4, if_exists="replace"
            )
        )
        replaced.start()
        query = f"SELECT MIN(LABEL) FROM {cache_name}"
        while other.sql(query).fetchall() != [(ROWS,)]:
            time.sleep(0.01)
        found += [label for (label,) in streaming]
        replaced.join(60)
    assert sorted(found) == list(range(ROWS))


def test_the_names_of_sql_follow_what_a_replacement_has(client, cache_name):
    """From rows to blocks with a slim table, to blocks without, and back."""
    name, index = cache_name, f"{cache_name}_INDEX"
    ways = [
        ({}, {name}),
        ({"layout": "blocks", "index": ("LABEL",)}, {name, index}),
        ({"layout": "blocks"}, set()),
        ({"layout": "blocks", "index": ("LABEL",)}, {name, index}),
        ({"index": ("LABEL",)}, {name}),
        ({"sql": False}, set()),
        ({}, {name}),
    ]
    for way, (options, names) in enumerate(ways):
        options = {"client": client, "partitions": 4, "if_exists": "replace", **options}
        load_dataset(rows(way), name, **options)
        tables = [t["table"] for t in list_tables(client) if t["table"].startswith(name)]
        assert set(tables) == names
        for view in (name, index):
            if view in names:
                query = f'SELECT COUNT(*), MIN(LABEL) FROM "{view}"'
                assert client.sql(query).fetchall() == [(ROWS, way)]
            else:
                with pytest.raises(Exception, match="not found"):
                    client.sql(f'SELECT COUNT(*) FROM "{view}"')
        views = client.sql("SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC'").fetchall()
        assert {v for (v,) in views if v.startswith(name)} == names
        found = describe(client, name)
        assert (found["rows"], found["data_set"]) == (ROWS, name)
    drop_cache(client, name)
    views = client.sql("SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC'").fetchall()
    assert [v for (v,) in views if v.startswith(name)] == []
