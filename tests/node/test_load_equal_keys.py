"""Equal keys mean the same in both layouts: a new load refuses them, an appended row takes over."""

import contextlib

import numpy as np
import pytest
from helpers.dying import Death

from ignitetf.errors import IgniteTFError, SourceError
from ignitetf.explore.epoch import verify_epoch
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import SEPARATOR, catalog, read_manifest

pytestmark = pytest.mark.node

LAYOUTS = pytest.mark.parametrize(
    "options",
    [{}, {"layout": "blocks"}, {"layout": "blocks", "index": ("X",)}],
    ids=["rows", "blocks", "slim table"],
)
KINDS = {
    "numbers": lambda i: i,
    "texts": lambda i: f"k{i}",
    "numbers of 32 bits": np.int32,
}


def records(numbers, kind="numbers", value=lambda i: i):
    return [{"ID": KINDS[kind](i), "X": value(i), "NOTE": "n" * (i % 7)} for i in numbers]


def stored(client, name):
    """X by key, as readers find them; more than once where they do."""
    found = []
    for batch in open_rows(name, client=client, shard=(0, 1)).batches():
        keys = [
            k.decode() if isinstance(k, bytes) else k for k in np.asarray(batch["key"]).tolist()
        ]
        found += zip(keys, np.asarray(batch["val"]["X"]).tolist(), strict=True)
    return sorted(found)


def load(client, name, rows, **options):
    return load_dataset(rows, name, client=client, key="ID", partitions=2, **options)


@LAYOUTS
@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_of_one_load_are_refused_and_nothing_is_left(client, cache_name, options, kind):
    rows = records([*range(1, 400), 7, 8, 7], kind)
    with pytest.raises(
        SourceError, match="3 of 402 records share their key with another record in ID"
    ):
        load(client, cache_name, rows, **options)
    assert [n for n in client.cache_names() if n.startswith(cache_name)] == []
    assert read_manifest(client, cache_name) is None


@LAYOUTS
def test_equal_keys_far_apart_are_refused(client, cache_name, options):
    """In other batches, and so in other blocks; the data set that was there stays."""
    load(client, cache_name, records(range(5)), **options)
    numbers = np.r_[np.arange(100_000), 3]
    rows = {"ID": numbers, "X": np.zeros((len(numbers), 100), np.uint8)}
    with pytest.raises(SourceError, match="1 of 100,001 records"):
        load(client, cache_name, rows, if_exists="replace", **{**options, "index": ()})
    assert stored(client, cache_name) == [(i, i) for i in range(5)]


@LAYOUTS
@pytest.mark.parametrize("kind", KINDS)
def test_an_appended_row_takes_the_place_of_the_one_with_its_key(client, cache_name, options, kind):
    load(client, cache_name, records(range(100), kind), **options)
    again = records([*range(90, 120), 115], kind, lambda i: -i)
    load(client, cache_name, again, if_exists="append", **options)
    key = KINDS[kind]
    plain = (lambda i: int(key(i))) if kind != "texts" else key
    assert stored(client, cache_name) == sorted((plain(i), i if i < 90 else -i) for i in range(120))
    manifest = read_manifest(client, cache_name)
    assert (manifest.rows, len(open_rows(cache_name, client=client))) == (120, 120)
    assert verify_epoch(client, cache_name, order="global", shards=2).ok
    if options.get("layout") != "blocks" or "index" in options:
        text = f"SELECT COUNT(*), SUM(X) FROM {cache_name}"
        assert client.sql(text).fetchall() == [(120, sum(range(90)) - sum(range(90, 120)))]


@LAYOUTS
def test_a_data_set_that_is_appended_to_itself_is_itself(client, cache_name, options):
    """Of its blocks nothing is left in those that were there; they are read as those of no rows."""
    for if_exists in ("error", "append", "append"):
        load(client, cache_name, records(range(300)), if_exists=if_exists, **options)
    assert stored(client, cache_name) == [(i, i) for i in range(300)]
    rows = open_rows(cache_name, client=client)
    assert len(rows) == 300
    for order in ("global", "scan"):
        assert verify_epoch(client, cache_name, order=order, shards=2).ok, order


def test_an_append_that_is_killed_at_any_step_is_resumed(client, cache_name, monkeypatch):
    """Also while it stores blocks again that have rows whose place others have taken."""
    options = {"layout": "blocks"}
    for at in range(1, 100):
        load(client, cache_name, records(range(100)), if_exists="replace", **options)
        again = records(range(90, 120), value=lambda i: -i)
        with (
            connect(settings=client.settings.replace(idle_timeout_s=0.1)) as other,
            monkeypatch.context() as patch,
        ):
            death = Death(patch, other, at)
            with contextlib.suppress(KeyboardInterrupt, IgniteTFError):
                load(other, cache_name, again, if_exists="append", **options)
            died, death.dead = death.dead, True
        catalog(client).delete(f"{cache_name}{SEPARATOR}lease")
        begun = read_journal(client, cache_name) is not None
        if died:
            how = "resume" if begun else "append"
            load(client, cache_name, again, if_exists=how, **options)
        assert stored(client, cache_name) == [(i, i if i < 90 else -i) for i in range(120)]
        assert read_manifest(client, cache_name).rows == 120
        if not died:
            break
    assert 3 < at < 20
