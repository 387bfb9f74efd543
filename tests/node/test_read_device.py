"""Batches on devices of JAX and PyTorch, copied or gathered, are those that `batches` reads."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import ConfigError, DataChanged
from ignitetf.load.loader import load_dataset
from ignitetf.read.divide import make_splits
from ignitetf.train import device_resident

pytestmark = pytest.mark.node
ROWS = 403
DENSE = ["A", "V"]
ORDERS = {
    "scan": {},
    "windows": {"shuffle": 5, "window_bytes": 4000, "epoch": 2},
    "padded": {"shuffle": 5, "shard": (1, 3), "even": "pad"},
    "where": {"shuffle": 5, "where": "V < 200"},
    "keys": {"order": "keys"},
    "global": {"order": "global", "shuffle": 7, "epoch": 1},
    "worker": {"order": "global", "shuffle": 7, "shard": (1, 3)},
    "step": {"order": "global", "shuffle": 7, "shard": (1, 2), "global_batch": 64},
    "split": {"shuffle": 7, "split": "train", "window_bytes": 4000},
    "split by key": {"order": "global", "shuffle": 7, "split": "train", "shard": (0, 2)},
    "even": {"order": "global", "shuffle": 7, "shard": (2, 3), "even": "pad"},
}


@pytest.fixture(scope="module")
def table(client):
    name = f"DEV{os.getpid()}"
    rows = {
        "A": np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3),
        "S": ["x" * (i % 5) for i in range(ROWS)],
        "V": np.arange(ROWS, dtype=np.int32),
    }
    load_dataset(rows, name, client=client, partitions=8)
    make_splits(client, name, {"train": 0.7, "test": 0.3}, seed=5)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


@pytest.fixture(scope="module")
def build(client, table):
    def open_table(**options):
        return open_rows(table, client=client, **{"fields": DENSE} | options)

    return open_table


@pytest.fixture(params=["jax", "torch"])
def framework(request):
    pytest.importorskip(request.param)
    return request.param


def plain(batch):
    """A batch as lists, with the names and shapes of its columns."""
    columns = {"key": batch["key"], **batch["val"]} if "key" in batch else batch["val"]
    return {name: np.asarray(column).tolist() for name, column in columns.items()}


def nested(columns):
    """A batch of any structure as lists."""
    if isinstance(columns, dict):
        return {name: nested(column) for name, column in columns.items()}
    return np.asarray(columns).tolist()


def of_epochs(rows, count, *arguments, **options):
    found = []
    for _ in range(count):
        found.append([plain(batch) for batch in rows.batches(*arguments, **options)])
        rows = rows.next_epoch()
    return found


def copiers():
    return [t for t in threading.enumerate() if t.name == "ignitetf-device"]


@pytest.mark.parametrize("options", ORDERS.values(), ids=list(ORDERS))
def test_copied_batches_are_those_read(build, framework, options):
    rows = build(**options)
    for size, drop in ((32, False), (32, True), (None, False)):
        options = {"batch_size": size, "drop_remainder": drop, "framework": framework}
        with rows.to_device("cpu", **options) as kept:
            assert [plain(batch) for batch in kept] == of_epochs(rows, 1, size, drop)[0]
    assert copiers() == []


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": 5, "window_bytes": 300_000}, {"order": "global"}],
    ids=["scan", "windows", "global"],
)
def test_batches_that_are_held_keep_their_rows(client, cache_name, framework, options):
    # Of so many rows that memory which is read into would be used again and again.
    images = np.random.default_rng(2).integers(0, 256, (5000, 1000), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=8)
    rows = open_rows(cache_name, client=client, page_size=200, **options)
    held = []
    for _ in range(2):
        held += rows.to_device("cpu", framework=framework, batch_size=100)
        rows = rows.next_epoch()
    assert len(held) == 100
    for batch in held:
        found = images[np.asarray(batch["key"])]
        np.testing.assert_array_equal(np.asarray(batch["val"]["IMAGE"]), found)


@pytest.mark.parametrize("options", ORDERS.values(), ids=list(ORDERS))
def test_gathered_batches_are_those_read(build, framework, options):
    rows = build(**options)
    for drop in (False, True):
        kept = device_resident(rows, 32, framework=framework, drop_remainder=drop)
        assert [[plain(b) for b in kept] for _ in range(2)] == of_epochs(rows, 2, 32, drop)
    held = [kept.gather(index) for index in kept.indices()]
    epoch = rows.next_epoch().next_epoch()
    assert list(map(plain, held)) == of_epochs(epoch, 1, 32, True)[0]


@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize("step", [5, 64, 128])
def test_uneven_parts_of_global_steps(build, framework, worker, step):
    rows = build(order="global", shuffle=3, shard=(worker, 3), global_batch=step)
    for size in (None, -(-step // 3)):
        wanted = of_epochs(rows, 2, size)
        kept = device_resident(rows, size, device="cpu", framework=framework)
        assert [[plain(b) for b in kept] for _ in range(2)] == wanted
        copied = rows.to_device("cpu", framework=framework, batch_size=size)
        assert list(map(plain, copied)) == wanted[0]


def test_tensorflow_has_uneven_parts_too(table, address):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    for worker in range(3):
        dataset = IgniteDataset(
            table, addresses=[address], fields=["V"], order="global", shuffle=3,
            shard=(worker, 3), global_batch=128,
        )  # fmt: skip
        kept = device_resident(dataset, 43)
        for _ in range(2):
            wanted = [b["key"].numpy().tolist() for b in dataset.batch(43)]
            assert [b["key"].numpy().tolist() for b in kept] == wanted
        assert len(kept) == len(wanted)
    for options in ({"framework": "jax"}, {"keys": False}):
        with pytest.raises(ConfigError, match="are for rows"):
            device_resident(dataset, 43, **options)


@pytest.mark.parametrize("name", ["windows", "padded", "global", "step"])
def test_every_state_goes_on_with_the_next_batch(build, framework, name):
    rows = build(**ORDERS[name])
    read = rows.batches(32)
    # The last batch of a worker may have fewer rows than those of others.
    whole = [plain(batch) for batch in read][:-1]
    read = rows.batches(32)
    copied = rows.to_device("cpu", framework=framework, batch_size=32, ahead=4)
    gathered = iter(device_resident(rows, 32, framework=framework))
    assert copied.state() == gathered.state() == rows.state()
    for number in range(len(whole)):
        assert plain(next(copied)) == plain(next(gathered)) == plain(next(read))
        state = copied.state()
        assert state == gathered.state() == read.state()
        if number % 3 == 0:
            rest = build(**ORDERS[name]).resume(state)
            with rest.to_device("cpu", framework=framework, batch_size=32) as left:
                assert [plain(batch) for batch in left][:-1] == whole[number + 1 :]
            if name in ("global", "step"):
                left = device_resident(rest, 32, framework=framework)
                assert [plain(batch) for batch in left][:-1] == whole[number + 1 :]
                assert [[plain(b) for b in left]] == of_epochs(rows.next_epoch(), 1, 32)
    copied.close()
    assert copiers() == []


def test_keys_may_be_left_out(build, framework):
    rows = build(order="keys")
    kept = device_resident(rows, 100, framework=framework, keys=False)
    copied = rows.to_device(framework=framework, batch_size=100, keys=False)
    for batches in (kept, copied):
        found = list(batches)
        assert {name for batch in found for name in batch} == {"val"}
        assert [v for batch in found for v in np.asarray(batch["val"]["V"])] == list(range(ROWS))
    assert kept.nbytes == ROWS * (4 + 24)
    assert device_resident(rows, 100, framework=framework).nbytes == ROWS * (4 + 24 + 8)


@pytest.mark.parametrize("kind", ["composite key", "plain values", "text key"])
def test_other_structures(client, cache_name, framework, kind):
    columns, key, tail = {
        "composite key": ("A INT, B SMALLINT, V REAL", "(A, B)", ""),
        "plain values": ("K INT, V DOUBLE", "(K)", ",wrap_value=false"),
        "text key": ("K VARCHAR, V REAL", "(K)", ""),
    }[kind]
    table = cache_name.upper()
    client.sql(f'CREATE TABLE "{table}" ({columns}, PRIMARY KEY {key}) WITH "template=p4{tail}"')
    try:
        for i in range(50):
            place = (i // 7, i % 7) if kind == "composite key" else (i,)
            row = (*(map(str, place) if kind == "text key" else place), i / 4)
            marks = ", ".join("?" * len(row))
            client.sql(f'INSERT INTO "{table}" VALUES ({marks})', row)
        rows = open_rows(f"SQL_PUBLIC_{table}", client=client, order="global", shuffle=1)
        keys = kind != "text key"
        if not keys:
            for ways in (rows.to_device, lambda **to: device_resident(rows, 16, **to)):
                with pytest.raises(ConfigError, match="the key is text") as error:
                    ways(framework=framework)
                assert error.value.hint.startswith("keys=False")
        wanted = [nested(b) for b in rows.batches(16)]
        for batch in wanted if not keys else ():
            del batch["key"]
        copied = rows.to_device(framework=framework, batch_size=16, keys=keys)
        assert list(map(nested, copied)) == wanted
        kept = device_resident(rows, 16, framework=framework, keys=keys)
        assert list(map(nested, kept)) == wanted
    finally:
        client.sql(f'DROP TABLE "{table}"')


def test_what_does_not_fit(build, framework, monkeypatch):
    from ignitetf.read.devices import device_of

    for fields in (["S"], None):
        rows = build(fields=fields)
        with pytest.raises(ConfigError, match="S is text, which a device cannot hold"):
            rows.to_device(framework=framework)
        with pytest.raises(ConfigError, match="S is text, which a device cannot hold"):
            device_resident(rows, 32, framework=framework)
    with pytest.raises(ConfigError, match="the limit is 0 MB"):
        device_resident(build(), 32, framework=framework, limit_bytes=100)
    full = type(device_of(framework, "cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(full, "free_bytes", lambda self: 100)
        with pytest.raises(ConfigError, match="403 rows are about 0 MB, the limit is 0 MB"):
            device_resident(build(), 32, framework=framework)
    for size in (0, None):
        with pytest.raises(ConfigError, match="batch_size"):
            device_resident(build(), size, framework=framework)
    with pytest.raises(ConfigError, match="rest of an epoch"):
        device_resident(build().advance(5), 32, framework=framework)
    with pytest.raises(ConfigError, match="framework"):
        device_resident(build(), 32)
    with pytest.raises(ConfigError, match="ahead"):
        build().to_device(framework=framework, ahead=0)


def test_no_rows(build, framework):
    rows = build(order="global", where="V < 0")
    assert list(rows.to_device(framework=framework, batch_size=32)) == []
    kept = device_resident(rows, 32, framework=framework)
    assert list(kept) == list(kept) == [] and kept.nbytes == 0


def test_rows_that_are_gone_end_the_batches(client, cache_name, framework):
    load_dataset({"V": np.arange(300)}, cache_name, client=client, partitions=4)
    rows = open_rows(cache_name, client=client, order="keys")
    client.sql(f'DELETE FROM "{cache_name}" WHERE V = 299')
    with pytest.raises(DataChanged):
        list(rows.to_device(framework=framework, batch_size=10))
    with pytest.raises(DataChanged):
        device_resident(rows, 10, framework=framework)
    assert copiers() == []


def test_none_of_it_loads_tensorflow(table, address, framework):
    code = f"""
import sys
from ignitetf import open_rows
from ignitetf.train import device_resident
rows = open_rows({table!r}, {address!r}, order="global", fields=["V"])
assert len(list(rows.to_device(framework={framework!r}, batch_size=100))) == 5
assert len(list(device_resident(rows, 100, framework={framework!r}))) == 5
left = rows.to_device(framework={framework!r}, batch_size=10)  # runs when the program ends
next(left)
assert not {{"tensorflow", "jax", "torch"}} - {{{framework!r}}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_a_sharding_of_jax_takes_the_place_of_a_device(table, address):
    pytest.importorskip("jax")
    code = f"""
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ignitetf import open_rows
from ignitetf.train import device_resident
rows = open_rows({table!r}, {address!r}, order="global", fields=["V"])
mesh = Mesh(jax.devices(), "data")
split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
wanted = [b["val"]["V"].tolist() for b in rows.batches(20, True)]
copied = list(rows.to_device(split, batch_size=20, drop_remainder=True))
assert len(copied[0]["key"].addressable_shards) == 4
kept = device_resident(rows, 20, device=whole, drop_remainder=True)
for batches in (copied, list(kept)):
    assert [np.asarray(b["val"]["V"]).tolist() for b in batches] == wanted
"""
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
