"""A load that replaces: killed at any of its steps it can be repeated, and the steps are few."""

import contextlib
import dataclasses

import numpy as np
import pytest
from helpers.distant import Distant
from helpers.dying import Death
from helpers.round_trips import counted

from ignitetf.errors import CacheExists, ConfigError, LoadInterrupted, SourceError
from ignitetf.load import run
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.net.pool import Pool
from ignitetf.read.rows import open_rows
from ignitetf.tables import catalog, removal
from ignitetf.tables.catalog import SEPARATOR, read_manifest

pytestmark = pytest.mark.node

ROWS = 40
LAYOUTS = {"rows": {}, "slim table": {"layout": "blocks", "index": ("LABEL",)}}
VIEWS = "SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC'"


def rows(start):
    return {"IMAGE": np.zeros((ROWS, 4), np.uint8), "LABEL": np.arange(start, start + ROWS)}


def forwards(pool, *calls):
    return [call() for call in calls]


def backwards(pool, *calls):
    return [call() for call in reversed(calls)][::-1]


@pytest.fixture
def dying(client, monkeypatch):
    """Run a load in a client that dies; gives how many changes it would have made, at least."""

    def run_until(at, order, *args, **options):
        with (
            connect(settings=client.settings.replace(idle_timeout_s=0.1)) as other,
            monkeypatch.context() as patch,
        ):
            patch.setattr(Pool, "at_once", order)
            death = Death(patch, other, at)
            try:
                load_dataset(*args, client=other, **options)
            except (KeyboardInterrupt, LoadInterrupted):
                assert death.dead
            finally:
                death.dead = True
        return death.changes

    return run_until


def damaged():
    for label in range(2_000):  # more than are looked at before the load
        yield {"IMAGE": b"abcd", "LABEL": label}
    raise SourceError("damaged")


def seen(client, name):
    """First label, number and last label, as readers and as SQL see them."""
    shown = client.sql(f"SELECT MIN(LABEL), COUNT(*), MAX(LABEL) FROM {name}").fetchall()
    return {labels(client, name), *shown}


def labels(client, name):
    batches = open_rows(name, client=client, shard=(0, 1)).batches()
    found = np.sort(np.concatenate([batch["val"]["LABEL"] for batch in batches]))
    return int(found[0]), len(found), int(found[-1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("layout", "order", "if_exists"),
    [
        ("rows", backwards, "replace"),
        ("slim table", forwards, "replace"),
        ("slim table", backwards, "resume"),
    ],
)
def test_a_replacement_that_is_killed_at_any_step(
    client, cache_name, dying, layout, order, if_exists
):
    """What goes together is sent in either order; each kill comes before one more change."""
    options = {"partitions": 2, **LAYOUTS[layout]}
    load_dataset(rows(0), cache_name, client=client, **options)
    old = 0
    for at in range(1, 100):
        new = at * 1000
        changes = dying(at, order, rows(new), cache_name, if_exists="replace", **options)
        catalog.catalog(client).delete(f"{cache_name}{SEPARATOR}lease")
        whole = {(start, ROWS, start + ROWS - 1) for start in (old, new)}
        assert seen(client, cache_name) <= whole, at
        if changes < at:
            break
        if if_exists == "replace":
            with pytest.raises(SourceError, match="damaged"):
                load_dataset(damaged(), cache_name, client=client, if_exists="replace", **options)
            assert seen(client, cache_name) <= whole, at
        begun = read_journal(client, cache_name) is not None
        how = if_exists if begun else "replace"
        load_dataset(rows(new), cache_name, client=client, if_exists=how, **options)
        assert seen(client, cache_name) == {(new, ROWS, new + ROWS - 1)}
        manifest = read_manifest(client, cache_name)
        assert (manifest.cache, read_journal(client, cache_name)) == (cache_name, None)
        names = [cache_name, *[f"{cache_name}_INDEX"] * (layout != "rows")]
        assert [n for n in client.cache_names() if n.startswith(cache_name)] == names
        shown = [view for (view,) in client.sql(VIEWS).fetchall() if view.startswith(cache_name)]
        assert sorted(shown) == names
        old = new
    assert 15 < at < 40


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [forwards, backwards])
def test_a_new_load_that_is_killed_at_any_step(client, cache_name, dying, layout, order):
    """What it leaves has a journal, with which the load is completed or begun again."""
    options = {"partitions": 2, **LAYOUTS[layout]}
    for at in range(1, 100):
        new = at * 1000
        changes = dying(at, order, rows(new), cache_name, **options)
        catalog.catalog(client).delete(f"{cache_name}{SEPARATOR}lease")
        begun = read_journal(client, cache_name) is not None
        assert begun or not client.cache_exists(cache_name) or changes < at
        if changes < at:
            break
        how = ("resume", "replace")[at % 2] if begun else "error"
        load_dataset(rows(new), cache_name, client=client, if_exists=how, **options)
        assert seen(client, cache_name) == {(new, ROWS, new + ROWS - 1)}
        assert read_journal(client, cache_name) is None
        removal.drop_cache(client, cache_name)
    assert 5 < at < 20


def make_table(client, name):
    client.sql(f'CREATE TABLE "{name}" (A INT PRIMARY KEY, B INT) WITH "cache_name={name}"').close()
    client.sql(f'INSERT INTO "{name}" VALUES (1, 2)').close()
    return lambda: client.sql(f'SELECT * FROM "{name}"').fetchall() == [(1, 2)]


def make_cache(client, name):
    cache = client.pyignite.create_cache(name)
    cache.put(1, 2)
    return lambda: cache.get(1) == 2


def load_other(client, name):
    load_dataset(rows(7), name, client=client, partitions=2)
    return lambda: labels(client, name) == (7, ROWS, ROWS + 6)


def break_off(client, name):
    def broken():
        yield from ({"IMAGE": bytes(4), "LABEL": label} for label in range(3000))
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        load_dataset(broken(), name, client=client, partitions=2)
    before = read_journal(client, name)
    return lambda: before is not None and read_journal(client, name) == before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [make_table, make_cache, load_other, break_off])
def test_what_others_make_meanwhile_is_theirs(client, cache_name, monkeypatch, layout, make):
    """Between the look at what there is, which is early, and the lease."""
    found = []
    acquire = run.Lease.acquire

    def late(lease):
        monkeypatch.undo()
        found.append(make(client, lease.name))
        acquire(lease)

    def early_look(pool, *calls):
        return [call() for call in reversed(calls)][::-1]

    monkeypatch.setattr(run.Lease, "acquire", late)
    monkeypatch.setattr(Pool, "at_once", early_look)
    with pytest.raises(CacheExists):
        load_dataset(rows(0), cache_name, client=client, partitions=2, **LAYOUTS[layout])
    assert found[0]()
    if make is not break_off:
        assert read_journal(client, cache_name) is None
    if layout != "rows" and make is not load_other:
        assert f"{cache_name}_INDEX" not in client.cache_names()


@pytest.mark.parametrize(("if_exists", "most"), [("error", 10), ("replace", 27)])
def test_the_round_trips_of_a_load_are_few(client, cache_name, monkeypatch, if_exists, most):
    with (
        Distant(client.settings.addresses[0], 0.1) as proxy,
        connect(settings=client.settings.replace(addresses=(proxy.address,))) as far,
    ):
        far.cache_names()  # the first request tells the distance
        if if_exists == "replace":
            load_dataset(rows(0), cache_name, client=far, partitions=8)
        with counted(monkeypatch) as trips:
            load_dataset(rows(1), cache_name, client=far, partitions=8, if_exists=if_exists)
    assert 5 < trips.count <= most
    assert labels(client, cache_name) == (1, ROWS, ROWS)


def test_readers_do_not_mind_what_becomes_of_the_old_cache(client, cache_name, monkeypatch):
    """The manifest names the replacement while the cache with the data set's name goes."""
    load_dataset(rows(5), cache_name, client=client, partitions=4)
    name, counts = f"{cache_name}_MOVED", type(client).partition_count
    catalog.write_manifest(
        client, dataclasses.replace(read_manifest(client, cache_name), name=name)
    )

    def counted(self, cache):
        if cache == name:
            raise ConfigError("the cluster does not tell the number of partitions")
        return counts(self, cache)

    monkeypatch.setattr(type(client), "partition_count", counted)
    try:
        assert labels(client, name) == (5, ROWS, ROWS + 4)
    finally:
        catalog.drop_manifest(client, name)
