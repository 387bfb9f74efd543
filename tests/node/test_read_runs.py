"""Small partitions are read together, and give what each gives alone."""

import contextlib
import gc
import uuid

import numpy as np
import pytest

from ignitetf.errors import ConnectError, SchemaError
from ignitetf.load.loader import load_dataset
from ignitetf.net.channel import Channel
from ignitetf.net.client import connect
from ignitetf.net.round_trips import RoundTrips
from ignitetf.read.changes import Changes, KeyMark
from ignitetf.read.collector import UnitsRecord
from ignitetf.read.divide import make_splits
from ignitetf.read.options import PAGE_BYTES, ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows
from ignitetf.read.scan import scan_portions, scan_units
from ignitetf.read.small_units import SmallUnits
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.concat import concat

pytestmark = pytest.mark.node
ROWS, PARTITIONS = 700, 128
OPTIONS = {
    "rows": {},
    "small pages": {"page_size": 4},
    "where": {"where": "LABEL < 3"},
    "where by keys": {"where": "LABEL < (SELECT 3)"},
    "split": {"split": "some"},
    "without nulls": {"nulls": "drop"},
    "blocks": {},
}


@pytest.fixture(scope="module")
def names(client):
    rng = np.random.default_rng(3)
    columns = {
        "LABEL": rng.integers(0, 9, ROWS).astype(np.int32),
        "TEXT": [f"row {n}" * (n % 5) if n % 7 else None for n in range(ROWS)],
        "IMAGE": rng.integers(0, 256, (ROWS, 3, 4), dtype=np.uint8),
    }
    found = {}
    for layout in ("rows", "blocks"):
        name = found[layout] = f"RUNS_{layout.upper()}"
        given = dict(columns) if layout == "rows" else {**columns, "TEXT": ["a"] * ROWS}
        load_dataset(
            given, name, client=client, partitions=PARTITIONS, layout=layout, if_exists="replace"
        )
    make_splits(client, found["rows"], {"some": 0.4, "rest": 0.6}, seed=5)
    yield found
    for name in found.values():
        client.sql(f'DROP TABLE IF EXISTS "{name}"').close()


def values(batch):
    found = {}
    for name, column in {"": batch.key, **batch.columns}.items():
        if column.lengths is not None:
            found[name] = column.to_bytes()
        else:
            found[name] = np.asarray(column.values).tolist()
        if column.valid is not None:
            pairs = zip(found[name], column.valid.tolist(), strict=True)
            found[name] = [value if valid else None for value, valid in pairs]
    return found


@pytest.mark.parametrize("what", OPTIONS)
@pytest.mark.parametrize("readers", [1, 3])
def test_partitions_read_together_are_those_read_alone(client, names, what, readers):
    name = names["blocks" if what == "blocks" else "rows"]
    options = ReadOptions(**{"nulls": "default", **OPTIONS[what]}, readers=readers)
    reader = CacheReader(client, name, options)
    order = np.random.default_rng(readers).permutation(reader.partition_count).tolist()
    alone = {p: list(CacheReader(client, name, options).batches([p])) for p in order}
    every = list(reader.batches(order))
    for unit, partition in enumerate(order):
        own = [item for item in every if item.unit == unit]
        assert [item.batch is None for item in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].first == alone[partition][-1].first
        assert [values(i.batch) for i in own[:-1]] == [
            values(i.batch) for i in alone[partition][:-1]
        ]
    ends = sorted(np.random.default_rng(1).choice(len(order), 9, replace=False).tolist())
    batches, whole = [], concat([item.batch for item in every if item.batch is not None])
    marks = []
    for item in reader.batches(order, ends):
        if item.batch is None:
            marks.append((item.unit, sum(map(len, batches))))
        else:
            batches.append(item.batch)
    assert values(concat(batches)) == values(whole)
    rows = [sum(len(i.batch) for i in every if i.batch is not None and i.unit <= e) for e in ends]
    assert marks == list(zip(ends, rows, strict=True))
    if what in ("rows", "split"):
        assert len(batches) <= len(ends) + 2


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("readers", [1, 2])
def test_marks_of_keys_are_those_of_single_pages(client, names, built, readers, monkeypatch):
    """However the pages of a partition are read, their keys have the same checksum."""
    if not built:
        monkeypatch.setattr(BatchBuilder, "can_build", lambda schema: False)
    for name in names.values():
        reader = CacheReader(client, name, ReadOptions(nulls="default"))
        query = reader.scan_query(reader.page_size())
        order = list(range(PARTITIONS))
        decoder, found = reader.decoder(), []
        with contextlib.closing(scan_units(client, query, order)) as pages:
            for item in pages:
                if item.page is not None:
                    one = decoder.one(item.unit, item.page)
                    mark = KeyMark()
                    for key in one.keys[0]:
                        mark.add(key)
                    found.append((item.unit, *one.counts, mark.value))
        portions = list(collected(client, reader, query, order, readers))
        assert [record for portion in portions for record in records(portion)] == found
        assert len(portions) < PARTITIONS // 4
        rows = sum(len(part) for portion in portions for part in portion.parts)
        assert rows == sum(count for _, count, _ in found) == ROWS


def collected(client, reader, query, order, readers):
    def new_collector(ends):
        return reader.collector(None, BufferPool(), ends)

    return scan_portions(client, query, order, new_collector, (), readers=readers)


def records(portion):
    """Partition, rows and checksum of each unit, all of which have a single page."""
    for page in portion.pages:
        if isinstance(page, UnitsRecord):
            yield from zip(page.partitions, page.rows, page.marks, strict=True)
        else:
            yield page.place.partition, page.rows, page.mark


def test_small_pages_beside_large_ones_and_in_other_forms(client, cache_name):
    """What the fast way does not take is read by itself, and in its place."""
    rng = np.random.default_rng(5)
    texts = ["x" * int(rng.integers(1, 40)) for _ in range(3000)]
    for n in rng.integers(0, 3000, 6).tolist():
        texts[n] = "y" * 800_000  # an answer that is not small
    columns = {"A": np.arange(3000), "TEXT": texts}
    load_dataset(columns, cache_name, client=client, partitions=256)
    nulls = sorted(rng.choice(3000, 9, replace=False).tolist())
    for n in nulls:
        client.sql(f"UPDATE {cache_name} SET A = NULL WHERE _KEY = {n}").close()
    reader = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
    order = rng.permutation(256).tolist()
    fast = concat([i.batch for i in reader.batches(order, ()) if i.batch is not None])
    slow = [i.batch for p in order for i in reader.batches([p]) if i.batch is not None]
    assert values(fast) == values(concat(slow))
    found = dict(zip(values(fast)[""], values(fast)["TEXT"], strict=True))
    assert found == {n: text.encode() for n, text in enumerate(texts)}


@pytest.mark.parametrize("known", [True, False], ids=["counted by the load", "by an epoch"])
def test_rows_that_come_before_their_turn_are_those_read_alone(client, cache_name, known):
    """Also while rows come and go, and others have another form."""
    rng = np.random.default_rng(5)
    columns = {"A": np.arange(3000), "IMAGE": rng.integers(0, 256, (3000, 30), dtype=np.uint8)}
    load_dataset(columns, cache_name, client=client, partitions=256)
    reader = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
    if not known:
        reader.changes = Changes(cache_name, "ignore", 256, ())
    for change in (None, "DELETE", "UPDATE", "INSERT", None):
        for key in rng.integers(0, 3000, 9).tolist() if change else ():
            client.sql(CHANGES[change].format(cache_name, key)).close()
        alone = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
        slow = [i.batch for p in range(256) for i in alone.batches([p]) if i.batch is not None]
        for _ in range(3):
            fast = [i.batch for i in reader.batches(range(256), ()) if i.batch is not None]
            assert values(concat(fast)) == values(concat(slow))


CHANGES = {
    "DELETE": "DELETE FROM {} WHERE _KEY = {}",
    "UPDATE": "UPDATE {} SET A = NULL WHERE _KEY = {}",
    "INSERT": "INSERT INTO {0} (_KEY, A) VALUES (3000 + {1}, {1})",
}


@pytest.mark.parametrize(("cores", "several"), [(1, 2), (2, 2), (4, 2), (8, 4), (16, 4), (64, 4)])
def test_one_connection_reads_small_partitions_on_any_machine(
    client, names, cache_name, monkeypatch, cores, several
):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert len(client.nodes()) == 1
    assert open_rows(names["rows"], client=client).reader.options.readers == 1
    images = {"IMAGE": np.zeros((40, 90_000), np.uint8)}
    for partitions, wanted in ((2, several), (4, 1), (32, 1)):  # 1.8 MB, 900 KB, 110 KB
        load_dataset(images, cache_name, client=client, partitions=partitions, if_exists="replace")
        assert open_rows(cache_name, client=client).reader.options.readers == wanted
    assert open_rows(names["rows"], client=client, readers=3).reader.options.readers == 3


@pytest.mark.parametrize("partitions", [2, 16])
def test_many_processes_ask_a_node_for_less_and_read_the_same(
    client, cache_name, monkeypatch, partitions
):
    """What all of them ask for at once is bounded, and no row is lost or comes twice."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    rows = 64
    images = np.random.default_rng(3).integers(0, 256, (rows, 600_000), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=partitions)
    for shards in (1, 2, 5, 16):
        found = []
        for index in range(shards):
            opened = open_rows(cache_name, client=client, shard=(index, shards))
            again = open_rows(cache_name, client=client, shard=(0, 1)).of_shard((index, shards))
            reader = opened.reader
            assert again.reader.options.shards == reader.options.shards == shards
            asked = 2 * shards * reader.options.readers * reader.scan_page_bytes
            least = reader.scan_page_bytes == PAGE_BYTES and reader.options.readers == 1
            assert asked <= 64 << 20 or least
            scans = 2 * shards * reader.options.readers * reader.unit_bytes
            assert scans <= 512 << 20 or reader.options.readers == 1
            for batch in opened.batches(7):
                np.testing.assert_array_equal(batch["val"]["IMAGE"], images[batch["key"]])
                found += batch["key"].tolist()
        assert sorted(found) == list(range(rows))


@pytest.mark.parametrize(
    ("row_bytes", "unit_bytes"),
    [(16_000, 350_000), (60_000, 350_000), (90_000, 350_000), (16_000, 900_000), (90_000, 900_000)],
)
def test_partitions_of_some_hundred_kilobytes_too(
    client, cache_name, row_bytes, unit_bytes, monkeypatch
):
    """Few rows in each: some partitions are small beside the mean, some too large to wait."""
    rows = 32 * unit_bytes // row_bytes
    rng = np.random.default_rng(row_bytes)
    images = rng.integers(0, 256, (rows, row_bytes), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=32)
    taken = watched_units(monkeypatch)
    found = {}
    for readers in (1, 2):
        reader = CacheReader(client, cache_name, ReadOptions(readers=readers))
        assert reader.unit_bytes == pytest.approx(unit_bytes, rel=0.2)
        with contextlib.closing(reader.batches(range(32))) as batches:
            found[readers] = [(b.unit, values(b.batch)) for b in batches if b.batch is not None]
        if readers == 1:
            used = np.count_nonzero(reader.partition_counts(range(32)))
            # The form of the rows is learned from the first one.
            assert sum(count for count, _ in taken) == used - 1
            assert [goes_on for _, goes_on in taken].count(False) == 1
    assert sum(map(len, (v[""] for _, v in found[1]))) == rows
    keyed = [
        dict(pair for _, v in found[n] for pair in zip(v[""], v["IMAGE"], strict=True))
        for n in (1, 2)
    ]
    assert [k for _, v in found[1] for k in v[""]] == [k for _, v in found[2] for k in v[""]]
    assert keyed[0] == keyed[1] == dict(enumerate(images.tolist()))


def watched_units(monkeypatch):
    """Return a list of what each `SmallUnits.take` returns from now on."""
    taken, take = [], SmallUnits.take

    def watched(self, *args):
        taken.append(take(self, *args))
        return taken[-1]

    monkeypatch.setattr(SmallUnits, "take", watched)
    return taken


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
def test_rows_are_handed_over_long_before_the_last(client, cache_name, monkeypatch, own):
    """Also where TLS leaves the receiving to Python, some bytes at a time."""
    if not own:
        monkeypatch.setattr(Channel, "socket_number", property(lambda self: -1))
        receive = Channel.receive_some
        monkeypatch.setattr(Channel, "receive_some", lambda self, view: receive(self, view[:16384]))
    images = np.random.default_rng(2).integers(0, 256, (20_000, 784), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=256)
    reader = CacheReader(client, cache_name, ReadOptions(readers=1))
    taken = watched_units(monkeypatch)
    found = concat([i.batch for i in reader.batches(range(256), ()) if i.batch is not None])
    assert np.array_equal(np.sort(found.key.values), np.arange(20_000))
    pages = [count * reader.unit_bytes / PAGE_BYTES for count, _ in taken if count]
    assert pages[0] < 1.1  # the first ones, for which a consumer waits, then some more at a time
    assert all(later < 1.1 * min(2**number, 4) for number, later in enumerate(pages))


@pytest.mark.parametrize("links", [2, 3, 40, 200])
def test_a_connection_to_each_of_many_nodes(client, cache_name, monkeypatch, links):
    """The same rows, in memory that hardly grows; here all of the connections lead to one node."""
    nodes = [uuid.UUID(int=n) for n in range(links)]
    images = np.random.default_rng(2).integers(0, 256, (60_000, 784), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=1024)
    reader = CacheReader(client, cache_name, ReadOptions())
    alone = [i.batch.key.values for i in reader.batches(range(1024), ()) if i.batch is not None]
    owners = {p: nodes[p * 7 % links] for p in range(1024)}
    monkeypatch.setattr("ignitetf.read.scan.owners_of", lambda *args: owners)
    taken = watched_units(monkeypatch)
    reader = CacheReader(client, cache_name, ReadOptions())
    with contextlib.closing(reader.batches(range(1024), ())) as batches:
        found = []
        for item in batches:
            found += [item.batch.key.values.copy()] if item.batch is not None else []
    assert np.array_equal(np.concatenate(found), np.concatenate(alone))
    # The first answer over each connection has the topology before its page.
    assert sum(count for count, _ in taken) >= 1024 - links - 1
    assert sum(pool.nbytes for pool in reader.page_pools) < 160 << 20


def test_one_partition_that_is_large_among_small_ones(client, cache_name, monkeypatch):
    blobs = [bytes([n % 256]) * 2_000 for n in range(400)]
    blobs[123] *= 4_000
    columns = {"BLOB": blobs, "LABEL": np.arange(400)}
    load_dataset(columns, cache_name, client=client, partitions=64)
    rows = open_rows(cache_name, client=client, readers=1)
    taken = watched_units(monkeypatch)
    found = {}
    for batch in rows.batches():
        found |= zip(batch["key"].tolist(), batch["val"]["BLOB"].tolist(), strict=True)
    assert found == dict(enumerate(blobs))
    assert sum(count for count, _ in taken) > 32
    assert not all(goes_on for _, goes_on in taken)


@pytest.mark.parametrize("readers", [1, 2])
def test_what_a_partition_has_is_the_mean_of_those_with_rows(client, cache_name, readers):
    """Else far more would be asked for at a time than a page."""
    images = np.random.default_rng(4).integers(0, 256, (20, 1_000_000), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=128)
    reader = CacheReader(client, cache_name, ReadOptions(readers=readers))
    used = np.count_nonzero(reader.partition_counts(range(128)))
    assert reader.unit_bytes == pytest.approx(20 / used * reader.entry_bytes)
    assert reader.scan_query(reader.page_size()).pipelined <= 16
    batches = [i.batch for i in reader.batches(range(128), ()) if i.batch is not None]
    found = concat(batches)
    order = np.argsort(found.key.values)
    assert np.array_equal(np.asarray(found.columns["IMAGE"].values)[order], images)


@pytest.mark.parametrize("name", ["rows", "blocks"])
def test_a_closed_client_ends_an_epoch_at_once(client, names, name, caplog):
    """Nobody tries for a minute to reach a cluster that was let go."""
    with connect(settings=client.settings) as own:
        rows = open_rows(names[name], client=own, nulls="default")
    with pytest.raises(ConnectError, match="the client is closed"):
        list(rows.batches())
    assert not caplog.records


@pytest.mark.parametrize("readers", [1, 2])
def test_an_epoch_that_has_ended_keeps_no_memory(client, names, readers):
    """Nor does it leave that to the garbage collector, which runs when some memory is long gone."""
    rows = open_rows(names["rows"], client=client, readers=readers, fields=["LABEL", "IMAGE"])
    gc.disable()
    try:
        for _ in range(2):
            assert sum(len(batch["key"]) for batch in rows.batches()) == ROWS
        pools = rows.reader.page_pools
        assert all(pool.nbytes for pool in pools)
        for pool in pools:
            pool.shrink(1 << 40, 0)  # all that nobody uses
        assert [pool.nbytes for pool in pools] == [0] * len(pools)
    finally:
        gc.enable()


@pytest.mark.parametrize("nulls", ["error", "default"])
def test_an_error_names_the_partition_and_the_key(client, cache_name, nulls):
    columns = {"A": np.zeros((300, 3), np.uint8), "B": ["x"] * 300}
    load_dataset(columns, cache_name, client=client, partitions=128)
    change = "B = NULL" if nulls == "error" else "A = X'0102'"
    client.sql(f"UPDATE {cache_name} SET {change} WHERE _KEY = 123").close()
    reader = CacheReader(client, cache_name, ReadOptions(nulls=nulls))
    with pytest.raises(SchemaError) as caught:
        list(reader.batches(list(range(128)), ()))
    assert caught.value.fields["key"] == 123
    partition = caught.value.fields["partition"]
    with pytest.raises(SchemaError):
        list(reader.batches([partition]))
    others = [p for p in range(128) if p != partition]
    with pytest.raises(SchemaError) as caught:  # in the last one, no others are left to read
        list(reader.batches([*others, partition], ()))
    assert (caught.value.fields["key"], caught.value.fields["partition"]) == (123, partition)
    assert sum(i.count for i in reader.batches(others, ())) == 300 - sum_of(reader, partition)


def sum_of(reader, partition):
    return reader.partition_counts([partition])[0]


def test_a_distant_cluster_gives_the_same_rows(client, names, monkeypatch):
    def takes(seconds):
        quickest = property(lambda self: seconds, lambda self, found: None)
        monkeypatch.setattr(type(client), "quickest_s", quickest, raising=False)

    for name in names.values():
        takes(0.001)
        near = open_rows(name, client=client, shard=(0, 1), nulls="default")
        takes(0.1)
        far = open_rows(name, client=client, shard=(0, 1), nulls="default")
        by_hand = open_rows(name, client=client, shard=(0, 1), nulls="default", readers=2)
        monkeypatch.undo()
        assert near.reader.options.in_flight_bytes == by_hand.reader.options.in_flight_bytes == 0
        assert far.reader.options.in_flight_bytes == 100_000_000
        assert 1 < far.reader.options.readers <= 8
        assert by_hand.reader.options.readers == 2
        keys = [np.concatenate([b["key"] for b in rows.batches()]).tolist() for rows in (near, far)]
        assert keys[0] == keys[1] and len(keys[0]) == ROWS


def test_a_near_cluster_whose_first_answers_were_slow_is_not_a_distant_one(client, names):
    """As those of eight processes that begin at once on two cores are."""
    near = open_rows(names["rows"], client=client, shard=(0, 1), nulls="default")
    more_s = iter([0.4, 0.2, 0.05, 0.01])

    class Busy(RoundTrips):
        def add(self, seconds):
            super().add(seconds + next(more_s, 0.0))

    with connect(settings=client.settings) as own:
        own.close_idle()
        own.round_trips = Busy()
        rows = open_rows(names["rows"], client=own, shard=(0, 1), nulls="default")
        assert next(more_s, None) is None  # it was asked again
        assert rows.reader.options == near.reader.options


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_units_of_every_size_are_read_by_several_readers(client, cache_name, readers):
    """Of those that are received whole, some are taken as they arrive."""
    rows = [{"BLOB": bytes([n % 251]) * (n * 997), "NUMBER": np.int64(n)} for n in range(160)]
    load_dataset(rows, cache_name, client=client, partitions=64)
    found = {}
    for batch in open_rows(cache_name, client=client, readers=readers).numpy():
        columns = batch["val"]
        found |= zip(columns["NUMBER"].tolist(), columns["BLOB"], strict=True)
    assert found == {n: row["BLOB"] for n, row in enumerate(rows)}
