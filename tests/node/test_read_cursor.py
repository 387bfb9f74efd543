"""Pages of any size: the next is asked for while one is on its way, also where there is none."""

from dataclasses import replace

import numpy as np
import pytest

from ignitetf import IgniteDataset, connect, load_dataset, open_rows
from ignitetf.errors import ConnectError, SchemaError
from ignitetf.read import reading

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 24


@pytest.fixture
def cache(client, cache_name):
    columns = {"LABEL": np.arange(ROWS, dtype=np.int32), "TEXT": [f"row {n}" for n in range(ROWS)]}
    load_dataset(columns, cache_name, client=client, partitions=1)
    return cache_name


@pytest.mark.parametrize("where", [None, "LABEL >= 0"])
def test_pages_of_every_size_give_the_same_rows(client, cache, where):
    whole = None
    for size in range(1, ROWS + 2):
        dataset = IgniteDataset(cache, settings=client.settings, where=where, page_size=size)
        rows = [
            (key, label, text)
            for page in dataset.numpy()
            for key, label, text in zip(
                page["key"].tolist(),
                page["val"]["LABEL"].tolist(),
                page["val"]["TEXT"].tolist(),
                strict=True,
            )
        ]
        assert sorted(label for _, label, _ in rows) == list(range(ROWS))
        whole = whole or rows
        assert rows == whole


def test_an_early_request_leaves_the_connection_usable(client, cache):
    for _ in range(3):
        dataset = IgniteDataset(cache, settings=client.settings, page_size=ROWS // 2)
        for _ in range(2):
            assert sum(len(page["key"]) for page in dataset.numpy()) == ROWS


@pytest.mark.parametrize("readers", [1, 3])
def test_rows_are_the_same_for_any_number_of_connections(client, cache_name, readers):
    rng = np.random.default_rng(2)
    columns = {"A": rng.integers(0, 99, 900), "TEXT": [f"row {n}" * (n % 5) for n in range(900)]}
    load_dataset(columns, cache_name, client=client, partitions=8)
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=17, readers=readers)
    rows = {}
    for page in dataset.numpy():
        for at, key in enumerate(page["key"].tolist()):
            rows[key] = (int(page["val"]["A"][at]), page["val"]["TEXT"][at])
    assert rows == {
        n: (int(columns["A"][n]), columns["TEXT"][n].encode()) for n in range(len(columns["A"]))
    }


def test_errors_say_where(client, cache_name):
    arrays = {"A": np.zeros((900, 3), np.uint8)}
    load_dataset(arrays, cache_name, client=client, partitions=8)
    client.sql(f"UPDATE {cache_name} SET A = X'0102' WHERE _KEY = 123")
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=17)
    with pytest.raises(SchemaError, match="has 2 elements, the dataset expects 3") as caught:
        list(dataset.numpy())
    assert caught.value.fields["cache"] == cache_name
    assert caught.value.fields["partition"] in range(8)
    assert caught.value.fields["field"] == "A"


def test_a_lost_connection_is_replaced(client, cache_name, monkeypatch):
    """The look-up of a type is the one request that decoding makes."""
    columns = {"A": np.arange(300)}
    load_dataset(columns, cache_name, client=client, partitions=2)
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=50)
    work, lost = reading.with_types, []

    def with_types(*args):
        if len(lost) < 3:
            lost.append(True)
            raise ConnectError("lost")
        return work(*args)

    monkeypatch.setattr(reading, "with_types", with_types)
    pages = list(dataset.numpy())
    assert len(lost) == 3
    assert sorted(np.concatenate([p["val"]["A"] for p in pages]).tolist()) == list(range(300))


@pytest.mark.parametrize("size", [1, 10, 11, 12, 13, 40])
def test_more_partitions_than_a_connection_may_have_cursors(client, cache_name, size):
    """Pages that are a little smaller than most partitions leave a cursor open for each of them."""
    rows = 256 * 12
    load_dataset({"A": np.arange(rows)}, cache_name, client=client, partitions=256)
    settings = replace(client.settings, request_timeout_s=5.0)
    with connect(settings=settings) as impatient:
        expected = open_rows(cache_name, client=client, shard=(0, 1))
        found = open_rows(
            cache_name, client=impatient, shard=(0, 1), page_size=size, on_node_loss="error"
        )
        keys = [
            np.concatenate([batch["key"] for batch in one.batches()]) for one in (expected, found)
        ]
    np.testing.assert_array_equal(*keys)
    assert len(keys[0]) == rows
