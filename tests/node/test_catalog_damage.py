"""A damaged text of the catalog is told, keeps nobody from other data sets, and can be removed."""

import logging
import random

import numpy as np
import pytest

from ignitetf.errors import IgniteTFError
from ignitetf.load.loader import load_dataset
from ignitetf.read.rows import open_rows
from ignitetf.tables import lease
from ignitetf.tables.catalog import SEPARATOR, catalog, list_manifests
from ignitetf.tables.describe import describe
from ignitetf.tables.lease import Holder, Lease
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node

ROWS = {"A": np.arange(30)}


@pytest.fixture
def damage(client):
    """Replaces an entry of the catalog by what is left of it; takes it away at the end."""
    changed = []

    def damage(name, change):
        texts = catalog(client)
        changed.append(name)
        texts.put(name, change(texts.get(name)))

    yield damage
    for name in changed:
        catalog(client).delete(name)


def cut(text):
    return text[: len(text) // 2]


def no_object(text):
    return "[1, 2]"


def other_names(text):
    return text.replace('"', '"x', 1)


WAYS = [cut, no_object, other_names]


@pytest.mark.parametrize("change", WAYS)
def test_a_damaged_manifest(client, cache_name, damage, caplog, change):
    other = f"{cache_name}_OTHER"
    for name in (cache_name, other):
        load_dataset(ROWS, name, client=client, partitions=2)
    damage(cache_name, change)
    with pytest.raises(IgniteTFError) as caught:
        open_rows(cache_name, client=client)
    assert f"cache drop {cache_name}" in caught.value.hint
    with caplog.at_level(logging.WARNING):
        assert other in [manifest.name for manifest in list_manifests(client)]
    assert cache_name in caplog.text
    assert describe(client, other)["name"] == other
    drop_cache(client, other)
    drop_cache(client, cache_name)
    assert not {cache_name, other} & set(client.cache_names())
    load_dataset(ROWS, cache_name, client=client, partitions=2)
    assert len(open_rows(cache_name, client=client)) == 30


@pytest.mark.parametrize("change", WAYS)
def test_a_damaged_journal(client, cache_name, damage, change):
    load_dataset(ROWS, cache_name, client=client, partitions=2)
    journal = f"{cache_name}{SEPARATOR}journal"
    catalog(client).put(journal, catalog(client).get(cache_name))
    damage(journal, change)
    with pytest.raises(IgniteTFError):
        load_dataset(ROWS, cache_name, client=client, partitions=2, if_exists="resume")
    drop_cache(client, cache_name)
    assert cache_name not in client.cache_names()
    assert catalog(client).get(journal) is None


@pytest.mark.parametrize("change", WAYS)
def test_a_damaged_lease_expires_as_that_of_an_unknown_holder(
    client, cache_name, damage, monkeypatch, change
):
    monkeypatch.setattr(lease, "EXPIRES_S", 0.5)
    load_dataset(ROWS, cache_name, client=client, partitions=2)
    entry = f"{cache_name}{SEPARATOR}lease"
    catalog(client).put(entry, Holder.of_this_process("load").to_text())
    damage(entry, change)
    with Lease(client, cache_name, "removal"):
        pass
    assert catalog(client).get(entry) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_holder_can_be_read_whatever_byte_was_changed(seed):
    rng, text = random.Random(seed), Holder.of_this_process("load").to_text()
    for at in range(len(text)):
        found = Holder.from_text(text[:at] + chr(rng.randrange(32, 127)) + text[at + 1 :])
        assert isinstance(found.has_ended, bool) and str(found)
        assert str(Holder.from_text(text[:at]))
