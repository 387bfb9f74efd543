"""Epochs of untouched data agree, however the rows of each came: pages, readers, way and distance."""

import os

import numpy as np
import pytest
from helpers.distant import Distant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy import Fault, Proxy

from ignitetf import connect
from ignitetf.errors import DataChanged
from ignitetf.load.loader import load_dataset
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows
from ignitetf.tables.removal import drop_cache
from ignitetf.wire.columns import Runs

pytestmark = [pytest.mark.node, pytest.mark.faults]
ROWS, PARTITIONS = 3000, 8
KEYS = {
    "numbers": lambda: {"A": np.arange(ROWS)},
    "texts": lambda: {"K": [f"key {n}" * (1 + n % 3) for n in range(ROWS)], "A": np.arange(ROWS)},
}


KINDS = (*KEYS, "blocks")
WAYS = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([None, 1000, 375, 64, 7]),
        "readers": st.sampled_from([1, 2, 3]),
        "fields": st.sampled_from([None, ("A",)]),
    }
)


@pytest.fixture(scope="module")
def readers(client, address):
    """Functions that open a data set over the node, and over a proxy; all know of the same epochs."""
    names = {kind: f"MARKS{os.getpid()}_{kind.upper()}" for kind in KINDS}
    for kind, name in names.items():
        options = {"layout": "blocks"} if kind == "blocks" else {}
        options |= {"key": "K"} if kind == "texts" else {}
        source = KEYS.get(kind, KEYS["numbers"])()
        load_dataset(source, name, client=client, partitions=PARTITIONS, **options)
    with Distant(address, 0.004) as proxy, connect(proxy.address) as distant:
        clients, known = {"near": client, "distant": distant}, {}

        def opened(kind, place, **options):
            reader = CacheReader(clients[place], names[kind], ReadOptions(**options))
            reader.changes = known.setdefault(kind, reader.changes)
            return reader

        yield opened
    for name in names.values():
        drop_cache(client, name)


def keys(reader, ends):
    batches = reader.batches(list(range(reader.partition_count)), None if ends else ())
    found = [b.batch.key for b in batches if b.batch is not None]
    return [k for p in found for k in (p.to_bytes() if isinstance(p, Runs) else p.values.tolist())]


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), st.data())
def test_epochs_of_untouched_data_agree(readers, kind, data):
    first, second = (
        keys(readers(kind, data.draw(st.sampled_from(["near", "distant"])), **data.draw(WAYS)),
             data.draw(st.booleans()))
        for _ in range(2)
    )  # fmt: skip
    assert first == second and len(first) == ROWS


@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(KEYS)), WAYS, st.integers(0, 1 << 16))
def test_rows_that_come_again_agree(readers, address, kind, way, cut):
    """Wherever the connection was lost, in one epoch or the other."""
    expected = keys(readers(kind, "near"), ends=False)
    cuts = Fault(skip=2000, cut_after=cut), Fault(skip=2000, cut_after=cut // 2)
    with Proxy(address, *cuts) as proxy, connect(proxy.address) as client:
        reader = readers(kind, "near", **way)
        reader.client = client
        assert keys(reader, ends=True) == expected


def test_a_link_that_turns_out_to_be_near(client, address, cache_name):
    """Pages of the second epoch are other ones than those of the first."""
    row = np.zeros((20_000, 800), np.uint8)
    load_dataset({"IMAGE": row}, cache_name, client=client, partitions=1)
    with Distant(address, 0.02) as proxy:
        rows = open_rows(cache_name, proxy.address)
        assert sum(len(batch["key"]) for batch in rows.batches()) == len(row)
        proxy.delay_s = 0
        for _ in range(2):
            rows = rows.next_epoch()
            assert sum(len(batch["key"]) for batch in rows.batches()) == len(row)


@pytest.mark.parametrize("way", [{}, {"page_size": 64}, {"page_size": 375, "readers": 3}])
def test_other_keys_are_told_in_any_way(client, cache_name, way):
    """As many rows, with another key, which an epoch before had not."""
    load_dataset(KEYS["texts"](), cache_name, client=client, partitions=1, key="K")
    reader = CacheReader(client, cache_name, ReadOptions(page_size=1000))
    keys(reader, ends=False)
    client.sql(f'DELETE FROM "{cache_name}" WHERE _KEY = ?', ("key 1key 1",))
    client.sql(f'INSERT INTO "{cache_name}" (_KEY, A) VALUES (?, 1)', ("key 1key 2",))
    reader.options = ReadOptions(**way)
    with pytest.raises(DataChanged, match="other keys than in an earlier epoch"):
        keys(reader, ends=False)
