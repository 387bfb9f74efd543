"""The global order of data in blocks: the promises of the order by key, and bounded windows."""

import os

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import ConfigError, DataChanged
from ignitetf.explore.epoch import verify_epoch
from ignitetf.load import blocks
from ignitetf.load.loader import load_dataset
from ignitetf.read.divide import make_splits
from ignitetf.tables.catalog import read_manifest, write_manifest
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node
ROWS = 1403
WORLDS = (1, 2, 3, 4, 8)
# A window for each block, several windows, and one for all; in bytes.
WINDOWS = (1, 20_000, 256 << 20)


def columns(rows, first=0):
    numbers = range(first, first + rows)
    return {
        "V": np.arange(first, first + rows, dtype=np.int32),
        "S": ["x" * (i % 5) for i in numbers],
        "A": np.arange(first * 6, (first + rows) * 6, dtype=np.float32).reshape(rows, 2, 3),
    }


def load(client, name, data, block_bytes=900, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        load_dataset(data, name, client=client, layout="blocks", **options)
    return name


@pytest.fixture(scope="module")
def made(client):
    """Data sets with a text, and of one number, which is copied in another way."""
    base = f"BLOCKORDER{os.getpid()}"
    dense = {"V": np.arange(9_000, dtype=np.int32)}
    names = {
        "mixed": load(client, base, columns(ROWS), partitions=4),
        "dense": load(client, f"{base}_DENSE", dense, 2_000, partitions=8),
        "one": load(client, f"{base}_ONE", columns(1), partitions=4),
        "none": load(client, f"{base}_NONE", {"V": np.empty(0, np.int32)}, partitions=4),
    }
    assert len(read_manifest(client, base).options.block_rows) > 40
    yield names
    for name in names.values():
        drop_cache(client, name)


@pytest.fixture(scope="module")
def build(client, made):
    return lambda kind="mixed", **options: open_rows(
        made[kind], client=client, **{"shard": (0, 1), "order": "global", **options}
    )


def values(batches):
    """V of each row of the batches, after checking that the rest of the row belongs to it."""
    found = []
    for batch in batches:
        rows = batch["val"]["V"].tolist()
        if "S" in batch["val"]:
            assert list(batch["val"]["S"]) == [b"x" * (v % 5) for v in rows]
            wanted = [list(range(6 * v, 6 * v + 6)) for v in rows]
            assert batch["val"]["A"].reshape(len(rows), 6).tolist() == wanted
        assert batch["key"].tolist() == rows
        found += rows
    return found


@pytest.mark.core
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["mixed", "dense"])
def test_every_row_once_and_another_order_each_epoch(build, kind, window):
    rows = build(kind, shuffle=3, window_bytes=window)
    count = len(rows)
    first, second = values(rows.batches()), values(rows.next_epoch().batches(50))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
    assert values(build(kind, shuffle=3, window_bytes=window).batches(7)) == first
    assert values(build(kind, shuffle=4, window_bytes=window).batches()) != first


@pytest.mark.core
@pytest.mark.parametrize("window", WINDOWS)
def test_rows_are_those_that_the_order_names(client, made, build, window):
    """Blocks read one by one with another client, laid end to end in the order of their numbers."""
    rows = build(shuffle=8, window_bytes=window)
    order = rows.order
    cache = client.cache(made["mixed"])
    keys = order.blocks.keys.values(np.arange(len(order.blocks.rows))).tolist()
    every = [cache.get(key) for key in keys]
    assert [len(block.KEYS) for block in every] == order.blocks.rows.tolist()
    laid = np.concatenate([block.KEYS for block in every])
    for _ in range(2):
        numbers = order.numbers(rows.position.epoch, np.arange(ROWS))
        assert values(rows.batches()) == laid[numbers].tolist()
        rows = rows.next_epoch()


def steps(build, world, start=None, **options):
    """The rows of each global step, worker after worker; and the states after each."""
    rows = [build(shard=(i, world), **options) for i in range(world)]
    if start is not None:
        rows = [r.resume(start) for r in rows]
    iterators = [r.batches() for r in rows]
    found, states = [], []
    while parts := [p for i in iterators if (p := next(i, None)) is not None]:
        found.append(values(parts))
        states.append(iterators[0].state())
    return found, states


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("kind", "batch"), [("mixed", 64), ("mixed", 137), ("dense", 700)])
def test_global_steps_are_equal_for_any_number_of_workers(build, kind, batch, window):
    options = {"kind": kind, "shuffle": 5, "global_batch": batch, "window_bytes": window}
    one, states = steps(build, 1, **options)
    assert {len(s) for s in one[:-1]} == {batch}
    for world in WORLDS[1:]:
        found, theirs = steps(build, world, **options)
        assert found == one
        assert theirs == states


@pytest.mark.core
@pytest.mark.parametrize("before", WORLDS)
def test_any_number_of_workers_goes_on_after_any_step(build, before):
    options = {"shuffle": 6, "global_batch": 150, "window_bytes": 20_000}
    one, _ = steps(build, 1, **options)
    _, states = steps(build, before, **options)
    for number, state in enumerate(states, 1):
        assert state["chain"] == [[1, min(ROWS, number * 150)]]
        after = (4, 16, 3)[number % 3]
        rest, more = steps(build, after, state, **options)
        assert rest == one[number:]
        if more:
            again, _ = steps(build, 16, more[0], **options)
            assert again == one[number + 1 :]


def test_one_worker_goes_on_after_any_row(build):
    rows = build("dense", shuffle=6, window_bytes=50_000)
    every = values(rows.batches())
    for done in (0, 1, 63, 64, 1000, 1024, 4097, 8999, 9000):
        rest = rows.resume(rows.state(done))
        assert len(rest) == 9000 - done
        assert values(rest.batches()) == every[done:]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("even", ["pad", "drop"])
@pytest.mark.parametrize("batch", [90, 6, 5])
def test_even_workers_have_the_same_steps(build, even, window, batch):
    options = {"shuffle": 2, "window_bytes": window, "global_batch": batch}
    one, _ = steps(build, 1, **options)
    rows = [build(even=even, shard=(i, 4), **options) for i in range(4)]
    parts = [[values([b]) for b in r.batches()] for r in rows]
    sizes = [list(map(len, part)) for part in parts]
    assert len({tuple(s) for s in sizes}) == 1
    assert {len(r) for r in rows} == {sum(sizes[0])}
    for whole, *mine in zip(one, *parts, strict=False):
        found = [v for part in mine for v in part]
        # The rows of the step in its order; those that `pad` repeats are its first ones.
        assert found[: len(whole)] == whole[: len(found)]
        assert found[len(whole) :] == whole[: max(0, len(found) - len(whole))]
        assert abs(len(found) - len(whole)) < 4


def test_none_and_one_row(build):
    assert values(build("one", shuffle=1).batches()) == [0]
    assert len(build("none")) == 0
    assert list(build("none", shuffle=1, global_batch=8).batches()) == []
    parts = [build("one", shard=(i, 3), global_batch=3) for i in range(3)]
    assert [len(p) for p in parts] == [1, 0, 0]
    assert [values(p.batches()) for p in parts] == [[0], [], []]
    padded = [build("one", shard=(i, 3), global_batch=3, even="pad") for i in range(3)]
    assert [values(p.batches()) for p in padded] == [[0], [0], [0]]


def test_some_fields_and_nulls_as_a_mask(build, client, cache_name):
    batches = list(build(shuffle=1, fields=["V"]).batches())
    assert {tuple(b["val"]) for b in batches} == {("V",)}
    every = values(build(shuffle=1).batches())
    assert [v for b in batches for v in b["val"]["V"].tolist()] == every
    records = [{"N": None if i % 3 == 0 else i, "T": "a" * (i % 2)} for i in range(300)]
    load(client, cache_name, records, 400, partitions=2)
    for shard in ((0, 1), (1, 2)):
        rows = open_rows(cache_name, client=client, order="global", nulls="mask", shard=shard)
        for batch in rows.batches(32):
            keys = batch["key"]
            assert batch["val"]["N_valid"].tolist() == (keys % 3 > 0).tolist()
            assert batch["val"]["N"].tolist() == np.where(keys % 3 > 0, keys, 0).tolist()


@pytest.mark.parametrize("window", WINDOWS)
def test_an_audited_epoch_has_every_stored_key_once(client, made, window):
    found = set()
    for shards in (1, 3):
        report = verify_epoch(
            client, made["mixed"], order="global", seed=2, shards=shards, window_bytes=window
        )
        assert report.ok and report.rows == report.stored == ROWS
        found.add(tuple(report.shard_rows))
    assert found == {(ROWS,), (468, 468, 467)}


def test_a_state_of_other_windows_another_seed_or_a_scan_is_refused(build):
    state = build(shuffle=2).state(10)
    with pytest.raises(ConfigError, match="window_bytes"):
        build(shuffle=2, window_bytes=20_000).resume(state)
    with pytest.raises(ConfigError, match="seed"):
        build(shuffle=3).resume(state)
    with pytest.raises(ConfigError, match="order 'global'"):
        build(shuffle=2, order="scan").resume(state)


def test_what_blocks_cannot_do_is_refused_with_a_way_on(build):
    with pytest.raises(ConfigError, match="rows in blocks cannot be read by key") as caught:
        build(order="keys")
    assert "layout rows" in caught.value.hint and "global" in caught.value.hint
    with pytest.raises(ConfigError, match="random access"):
        build()[0]
    with pytest.raises(ConfigError, match="by_key"):
        build().by_key([1])
    with pytest.raises(ConfigError, match="nulls='drop'"):
        build(nulls="drop")
    with pytest.raises(ConfigError, match="part="):
        build(part=1)
    with pytest.raises(ConfigError, match="window_bytes"):
        build(window_bytes=0)


def test_a_split_of_blocks_is_refused_in_the_global_order_alone(client, cache_name):
    load(client, cache_name, columns(300), partitions=4)
    make_splits(client, cache_name, {"train": 0.8, "test": 0.2})
    with pytest.raises(ConfigError, match=r"order='global' with split=") as caught:
        open_rows(cache_name, client=client, order="global", split="train")
    assert "scan" in caught.value.hint
    every = [
        v for split in ("train", "test")
        for v in values(open_rows(cache_name, client=client, split=split, shard=(0, 1)).batches())
    ]  # fmt: skip
    assert sorted(every) == list(range(300))


def test_appended_blocks_are_part_of_the_order_and_old_states_are_refused(client, cache_name):
    load(client, cache_name, columns(300), partitions=4)
    old = open_rows(cache_name, client=client, order="global", shuffle=1)
    state = old.state(10)
    load(client, cache_name, columns(200, 300), if_exists="append")
    with pytest.raises(DataChanged, match="entries"):
        values(old.batches())
    rows = open_rows(cache_name, client=client, order="global", shuffle=1)
    assert sorted(values(rows.batches())) == list(range(500))
    with pytest.raises(DataChanged):
        rows.resume(state)
    assert verify_epoch(client, cache_name, order="global", shards=3).ok


def test_blocks_of_an_earlier_version_are_refused_until_they_are_loaded_again(client, cache_name):
    load(client, cache_name, columns(300), partitions=4)
    manifest = read_manifest(client, cache_name)
    entry = manifest.to_json()
    del entry["options"]["block_rows"]
    write_manifest(client, type(manifest).from_json(entry))
    with pytest.raises(ConfigError, match="rows of each block are not known") as caught:
        open_rows(cache_name, client=client, order="global")
    assert "replace" in caught.value.hint
    # Rows that are appended do not tell how many there were in the blocks before.
    load(client, cache_name, columns(10, 300), if_exists="append")
    assert read_manifest(client, cache_name).options.block_rows == ()
    with pytest.raises(ConfigError, match="rows of each block are not known"):
        open_rows(cache_name, client=client, order="global")
    load(client, cache_name, columns(300), if_exists="replace")
    rows = open_rows(cache_name, client=client, order="global")
    assert sorted(values(rows.batches())) == list(range(300))


def test_a_block_that_is_gone_or_another_is_never_left_out_silently(client, cache_name, caplog):
    load(client, cache_name, columns(300), partitions=4)
    rows = open_rows(cache_name, client=client, order="global", window_bytes=4_000)
    lenient = open_rows(cache_name, client=client, order="global", on_change="warn")
    keys = rows.order.blocks.keys.values(np.arange(2)).tolist()
    cache = client.cache(cache_name)
    gone, other = cache.get(keys[0]), cache.get(keys[1])
    cache.remove_key(keys[0])
    with pytest.raises(DataChanged, match="entries, there were"):
        values(rows.batches())
    left = sorted(set(range(300)) - set(gone.KEYS))
    assert sorted(values(lenient.batches(16))) == left
    assert f"block {keys[0]} is gone" in caplog.text
    # The number of blocks is the same again, but one has the rows of another.
    cache.put(keys[0], other)
    if len(other.KEYS) != len(gone.KEYS):
        with pytest.raises(DataChanged, match=f"block {keys[0]} has"):
            values(rows.batches())
    cache.remove_key(keys[0])
    cache.put(1 << 40, other)
    with pytest.raises(DataChanged, match=f"block {keys[0]} is gone"):
        values(rows.batches())


# TensorFlow


@pytest.mark.core
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["mixed", "dense"])
def test_a_tensorflow_dataset_has_the_same_batches(made, build, address, kind, window):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    options = {"order": "global", "shuffle": 3, "window_bytes": window}
    dataset = IgniteDataset(made[kind], addresses=[address], shard=(0, 1), **options)
    rows = build(kind, **options)
    for _ in range(2):
        wanted = [b["key"].tolist() for b in rows.batches(96)]
        assert [b["key"].numpy().tolist() for b in dataset.batch(96)] == wanted
        rows = rows.next_epoch()
    assert len(dataset.batch(96)) == len(wanted)
    every = values(build(kind, **options).batches())
    single = IgniteDataset(made[kind], addresses=[address], shard=(0, 1), **options)
    assert [int(e["key"]) for e in single.resume(single.state(700))] == every[700:]


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_device_resident_has_the_order_of_the_dataset(made, address, shard):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset
    from ignitetf.train import device_resident

    dataset = IgniteDataset(
        made["mixed"], addresses=[address], shard=shard, order="global", shuffle=2,
        window_bytes=20_000, fields=["V"],
    )  # fmt: skip
    resident = device_resident(dataset, 16)
    for _ in range(2):
        wanted = [b["key"].numpy().tolist() for b in dataset.batch(16)]
        assert [b["key"].numpy().tolist() for b in resident] == wanted
    assert resident.columns["key"].shape[0] == ROWS
