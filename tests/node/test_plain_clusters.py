"""Loads on clusters as Ignite sets them up: what could be made once is replaced and resumed there.

They have none of our templates, and so the number of partitions that is Ignite's own.
"""

import contextlib

import numpy as np
import pytest
from helpers.dying import CHANGES, Death
from helpers.plain_nodes import CURRENT, VERSIONS, plain_cluster

from ignitetf.errors import CacheExists, ConfigError, IgniteTFError, SourceError
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.partitions import DEFAULT_PARTITIONS
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import SEPARATOR, catalog, read_manifest
from ignitetf.tables.removal import drop_cache
from ignitetf.wire.codes import OpCode

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROWS = 40
LAYOUTS = {
    "rows": {},
    "index": {"index": ("LABEL",)},
    "without SQL": {"sql": False},
    "blocks": {"layout": "blocks"},
    "slim table": {"layout": "blocks", "index": ("LABEL",)},
    "with Ignite's number": {"partitions": DEFAULT_PARTITIONS},
}


@pytest.fixture(
    scope="module",
    params=[CURRENT, *(pytest.param(v, marks=pytest.mark.soak) for v in VERSIONS)],
)
def plain(request, node_home, tmp_path_factory):
    """A client of a cluster of one plain node."""
    folder = tmp_path_factory.mktemp("plain")
    with (
        plain_cluster(node_home, folder, request.param) as cluster,
        connect(cluster.addresses[0]) as client,
    ):
        yield client


def rows(start=0):
    return {"IMAGE": np.zeros((ROWS, 4), np.uint8), "LABEL": np.arange(start, start + ROWS)}


def load(client, name, start, if_exists, **options):
    return load_dataset(rows(start), name, client=client, if_exists=if_exists, **options)


def labels(client, name):
    batches = open_rows(name, client=client, shard=(0, 1)).batches()
    return np.sort(np.concatenate([batch["val"]["LABEL"] for batch in batches])).tolist()


def caches(client, name):
    return [cache for cache in client.cache_names() if cache.startswith(name)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_loaded_can_be_replaced_appended_and_resumed(plain, layout):
    name, options = "PLAIN", LAYOUTS[layout]
    load(plain, name, 0, "error", **options)
    made = caches(plain, name)
    load(plain, name, 1000, "replace", **options)
    load(plain, name, 2000, "append", **options)
    assert labels(plain, name) == [*range(1000, 1000 + ROWS), *range(2000, 2000 + ROWS)]
    with contextlib.suppress(KeyboardInterrupt):
        load_dataset(stopping(), name, client=plain, if_exists="replace", **options)
    assert read_journal(plain, name) is not None
    load(plain, name, 3000, "replace", **options)
    load(plain, name, 3000, "resume", **options)
    assert labels(plain, name) == list(range(3000, 3000 + ROWS))
    assert caches(plain, name) == made
    drop_cache(plain, name)
    assert caches(plain, name) == []


def stopping():
    for label in range(3000):
        yield {"IMAGE": bytes(4), "LABEL": label}
    raise KeyboardInterrupt


def damaged():
    for label in range(3000):
        yield {"IMAGE": bytes(4), "LABEL": label}
    raise SourceError("damaged")


def test_a_replacement_that_is_killed_on_its_way_is_resumed(plain, monkeypatch):
    """Old or new rows are there by the name of the data set after each kill, and then the new."""
    name, options, old = "PLAIN_KILLED", LAYOUTS["rows"], 0
    load(plain, name, old, "error", **options)
    for at in range(1, 100, 5):
        new = at * 1000
        with (
            connect(settings=plain.settings.replace(idle_timeout_s=0.1)) as other,
            monkeypatch.context() as patch,
        ):
            death = Death(patch, other, at, CHANGES - {OpCode.CACHE_PUT_ALL})
            with contextlib.suppress(KeyboardInterrupt, IgniteTFError):
                load(other, name, new, "replace", **options)
            died, death.dead = death.dead, True
        catalog(plain).delete(f"{name}{SEPARATOR}lease")
        assert labels(plain, name)[0] in (old, new), at
        begun = read_journal(plain, name) is not None
        load(plain, name, new, "resume" if begun else "replace", **options)
        assert labels(plain, name) == list(range(new, new + ROWS))
        old = new
        if not died:
            break
    assert 10 < at < 40
    drop_cache(plain, name)


def made_by_sql(client, name):
    client.sql(f'CREATE TABLE "{name}" (ID BIGINT PRIMARY KEY, V INT) WITH "CACHE_NAME={name}"')
    client.sql(f'INSERT INTO "{name}" VALUES (1, 2)')
    return lambda: client.sql(f'SELECT * FROM "{name}"').fetchall() == [(1, 2)]


def made_by_a_client(client, name):
    cache = client.pyignite.create_cache(name)
    cache.put(1, 2)
    return lambda: cache.get(1) == 2


def made_where_a_data_set_was(client, name):
    """The catalog still speaks of that."""
    load(client, name, 0, "error")
    client.sql(f'DROP TABLE "{name}__ROWS"')
    return made_by_a_client(client, name)


@pytest.mark.parametrize("make", [made_by_sql, made_by_a_client, made_where_a_data_set_was])
def test_what_others_made_is_replaced_by_its_own_word_only(plain, make):
    """And not before all new rows are there."""
    name = f"orders_{make.__name__}"
    there = make(plain, name)
    with pytest.raises(CacheExists, match="not created by an ignitetf load") as caught:
        load(plain, name, 7, "replace")
    assert "replace-foreign" in caught.value.hint
    with pytest.raises(SourceError, match="damaged"):
        load_dataset(damaged(), name, client=plain, if_exists="replace-foreign")
    assert there() and caches(plain, name) == [name]
    load(plain, name, 7, "replace-foreign")
    assert labels(plain, name) == list(range(7, 7 + ROWS))
    load(plain, name, 8, "replace")
    assert (labels(plain, name)[0], read_manifest(plain, name).rows) == (8, ROWS)
    drop_cache(plain, name)


def test_what_cannot_be_made_is_refused_while_all_is_there(plain):
    """A number of partitions that takes a template, and a name that somebody else has."""
    name = "PLAIN_REFUSED"
    load(plain, name, 0, "error")
    with pytest.raises(ConfigError, match="no cache template p16"):
        load(plain, name, 1, "replace", partitions=16)
    assert labels(plain, name)[0] == 0
    slim = f"{name}_INDEX__ROWS"
    plain.sql(f'CREATE TABLE "{slim}" (ID BIGINT PRIMARY KEY, V INT)')
    with pytest.raises(CacheExists, match=slim):
        load(plain, name, 1, "replace", **LAYOUTS["slim table"])
    assert (labels(plain, name)[0], read_journal(plain, name)) == (0, None)
    assert caches(plain, name) == [name]
    plain.sql(f'DROP TABLE "{slim}"')
    drop_cache(plain, name)
