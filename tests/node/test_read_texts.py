"""Texts and blobs through the dataset: the same with the op that cuts them out, and without it."""

import os

import numpy as np
import pytest

from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS = 500
# Below and above the size from which texts are views of their page.
SIZES = {"short": (0, 40), "long": (0, 3000), "large": (9000, 12_000)}


@pytest.fixture(scope="module", params=SIZES)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=["rows", "blocks"])
def table(client, kind, request):
    name = f"TEXTS{os.getpid()}_{kind}_{request.param}".upper()
    rng = np.random.default_rng(11)
    least, most = SIZES[kind]
    rows = [
        {
            "BLOB": rng.bytes(int(rng.integers(least, most))),
            "NAME": f"name-{i}" * int(rng.integers(0, 9)),
            "LABEL": np.int32(i),
        }
        for i in range(ROWS)
    ]
    load_dataset(rows, name, client=client, partitions=4, layout=request.param)
    yield name, {i: (row["BLOB"], row["NAME"].encode()) for i, row in enumerate(rows)}
    client.sql(f'DROP TABLE IF EXISTS "{name}"')
    if client.cache_exists(name):
        client.destroy_cache(name)


@pytest.fixture
def build(address, table):
    from ignitetf import IgniteDataset

    return lambda **options: IgniteDataset(table[0], addresses=[address], **options)


def rows_of(elements):
    found = {}
    for item in elements:
        value = item["val"]
        found[int(value["LABEL"])] = (value["BLOB"].numpy(), value["NAME"].numpy())
    return found


def rows_of_batches(batches):
    found = {}
    for batch in batches:
        value = batch["val"]
        texts = zip(value["BLOB"].numpy().tolist(), value["NAME"].numpy().tolist(), strict=True)
        found |= dict(zip(value["LABEL"].numpy().tolist(), texts, strict=True))
    return found


@pytest.mark.parametrize("page_size", [None, 7, 64])
def test_every_way_gives_the_texts(build, table, page_size):
    _, expected = table
    dataset = build(page_size=page_size)
    assert rows_of(dataset) == expected
    assert rows_of_batches(dataset.batch(32)) == expected
    assert rows_of_batches(dataset.batch(200)) == expected
    assert rows_of_batches(dataset.shuffle(100, seed=1).batch(13)) == expected
    assert rows_of_batches(dataset.batch(10).unbatch().batch(64)) == expected


def test_batches_kept_after_the_epoch_are_whole(build, table):
    kept = list(build(shuffle=3).batch(50)) + list(build().batch(128).cache().prefetch(2))
    assert rows_of_batches(kept[:10]) == rows_of_batches(kept[10:]) == table[1]
