"""What happens to data that are there: error, append, replace, resume; rows and blocks alike."""

import contextlib
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import CacheExists, ConfigError, LoadInterrupted, SchemaError, ServerOverloaded
from ignitetf.load import blocks, fill
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.sources.base import Source
from ignitetf.load.sources.records import records
from ignitetf.net.client import cache_id
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import list_caches
from ignitetf.tables.removal import drop_cache, remove_cache
from ignitetf.wire.blocks import block_schema, unpack_blocks
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import OpCode
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import read_first_page
from ignitetf.wire.requests import scan_request
from ignitetf.wire.types import TypeRegistry, read_binary_type

pytestmark = pytest.mark.node
LAYOUTS = pytest.mark.parametrize("layout", ["rows", "blocks"])


def arrays(rows, seed=0, start=0):
    rng = np.random.default_rng(seed)
    return {
        "IMAGE": rng.integers(0, 256, (rows, 5, 4), dtype=np.uint8),
        "LABEL": np.arange(start, start + rows, dtype=np.int32),
    }


def passes(client, name):
    """The batches of one pass of a reader."""
    reader = CacheReader(client, name, ReadOptions())
    for item in reader.batches(range(reader.partition_count)):
        if item.batch is not None:
            yield item.batch


def stored(client, name):
    """The batches of a data set, decoded here from the pages of its cache."""
    manifest = read_manifest(client, name)
    packed = manifest.layout == "blocks"
    schema = block_schema(manifest.schema) if packed else manifest.schema
    registry = TypeRegistry()
    request = struct.pack("<i", schema.type_id)
    registry.add(read_binary_type(client.call(OpCode.BINARY_TYPE_GET, request)))
    decoder = Decoder(schema, registry)
    for partition in range(client.partition_count(manifest.cache)):
        scan = scan_request(cache_id(manifest.cache), 1 << 16, partition)
        batch = decoder.decode(read_first_page(client.call(OpCode.QUERY_SCAN, scan))[1])
        found = list(unpack_blocks(manifest.schema, batch)) if packed else [batch]
        assert sum(map(len, found)) == manifest.partition_rows[partition]
        if packed:
            # The manifest has the rows of each block, by partition and by key in each.
            in_order = np.argsort(batch.key.values)
            block_rows = iter(
                manifest.options.block_rows[sum(manifest.options.blocks[:partition]) :]
            )
            assert [len(found[i]) for i in in_order] == [next(block_rows) for _ in found]
        yield from found


def labels(batches):
    """Key -> label."""
    out = {}
    for batch in batches:
        keys, values = batch.key.values, batch.columns["LABEL"].values
        assert not set(keys.tolist()) & out.keys()
        out.update(zip(keys.tolist(), values.tolist(), strict=True))
    return out


def contents(client, name):
    """Key -> label of what is stored."""
    return labels(stored(client, name))


def checksum_of(client, name):
    schema = read_manifest(client, name).schema
    total = sum(checksum(schema, batch) for batch in stored(client, name))
    return f"{total % (1 << 64):016x}"


class Stopping(Source):
    """A source that stops with an error before a given record; its batches are small."""

    def __init__(self, inner, stop_at=None, error=KeyboardInterrupt):
        super().__init__()
        self.inner, self.stop_at, self.error = inner, stop_at, error
        self.schema, self.rows = inner.schema, inner.rows
        self.starts = []

    def fingerprint(self):
        return self.inner.fingerprint()

    def _read(self, start, max_bytes):
        self.starts.append(start)
        for batch in self.inner.batches(start, max_bytes=2000):
            if self.stop_at is not None and self.inner.position > self.stop_at:
                raise self.error
            yield self.inner.position, batch


def source(rows=3000, seed=0, **more):
    return Stopping(records(arrays(rows, seed)), **more)


@pytest.fixture
def noted_often(monkeypatch):
    """Notes after every batch, and blocks so small that there are many."""
    monkeypatch.setattr(fill, "_NOTE_S", 0.0)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "_CHUNK_BYTES", 4000)


@pytest.mark.core
def test_error_names_the_ways_on(client, cache_name):
    load_dataset(arrays(10), cache_name, client=client)
    with pytest.raises(CacheExists) as caught:
        load_dataset(arrays(10), cache_name, client=client)
    assert "append, replace or resume" in caught.value.hint


@pytest.mark.core
@LAYOUTS
def test_append_adds_rows_behind_those_that_are_there(client, cache_name, layout):
    load_dataset(arrays(2000), cache_name, client=client, partitions=4, layout=layout)
    more = arrays(500, seed=1, start=9000)
    report = load_dataset(more, cache_name, client=client, if_exists="append", layout=layout)
    manifest = read_manifest(client, cache_name)
    assert (report.rows, manifest.rows, manifest.version) == (500, 2500, 2)
    found = contents(client, cache_name)
    assert found == {k: k if k < 2000 else 7000 + k for k in range(2500)}
    assert manifest.checksum == checksum_of(client, cache_name)
    assert sum(manifest.partition_rows) == 2500


def test_append_to_rows_of_which_sql_has_exchanged_one_is_read_at_once(client, cache_name):
    """The number of rows is that of the load, but not their partitions."""
    rows = {"N": np.arange(400)}
    load_dataset(rows, cache_name, client=client, partitions=4)
    client.sql(f"DELETE FROM {cache_name} WHERE ID = 7").close()
    client.sql(f"INSERT INTO {cache_name} (ID, N) VALUES (401, 7)").close()
    load_dataset(rows, cache_name, client=client, if_exists="append")
    for order in ("scan", "global"):
        opened = open_rows(cache_name, client=client, order=order, shard=(0, 1))
        found = [n for batch in opened.batches(64) for n in batch["val"]["N"].tolist()]
        assert sorted(found) == sorted([*range(400), *range(400)])


def test_appended_records_must_be_alike(client, cache_name):
    load_dataset(arrays(10), cache_name, client=client)
    with pytest.raises(
        SchemaError, match=r"fields of .* IMAGE is missing, LABEL is missing, X is new"
    ):
        load_dataset({"X": np.arange(3)}, cache_name, client=client, if_exists="append")
    with pytest.raises(ConfigError, match="layout rows"):
        load_dataset(arrays(3), cache_name, client=client, if_exists="append", layout="blocks")
    assert client.cache_size(cache_name) == 10
    turned = dict(reversed(arrays(3, seed=1).items()))
    load_dataset(turned, cache_name, client=client, if_exists="append")
    assert contents(client, cache_name) == {k: k % 10 for k in range(13)}
    assert read_manifest(client, cache_name).checksum == checksum_of(client, cache_name)


def of_classes(names):
    """Three rows of each class, in order."""
    return records(
        [{"NAME": n, "LABEL": i, "BOX_LABELS": [i, 0]} for i, n in enumerate(names) for _ in "abc"],
        class_names=names,
        fingerprint=",".join(names),
    )


@LAYOUTS
def test_a_label_means_the_same_class_in_rows_that_are_appended(
    client, cache_name, layout, noted_often
):
    options = {"client": client, "layout": layout}
    load_dataset(of_classes(["cat", "dog"]), cache_name, partitions=4, **options)
    for names in (["ant", "dog"], ["dog"], ["ant", "bee", "cat", "dog"]):
        stopped = Stopping(of_classes(names), stop_at=1)
        stopped.class_names = names
        with pytest.raises(KeyboardInterrupt):
            load_dataset(stopped, cache_name, if_exists="append", **options)
        load_dataset(of_classes(names), cache_name, if_exists="resume", **options)
    manifest = read_manifest(client, cache_name)
    assert manifest.class_names == ("cat", "dog", "ant", "bee")
    assert (manifest.rows, manifest.checksum) == (27, checksum_of(client, cache_name))
    for batch in stored(client, cache_name):
        names = [name.decode() for name in batch.columns["NAME"].to_bytes()]
        assert [manifest.class_names[i] for i in batch.columns["LABEL"].values] == names


def test_labels_without_names_are_not_given_some(client, cache_name):
    load_dataset(arrays(10), cache_name, client=client)
    named = records(arrays(3), class_names=["ant", "bee", "cat"])
    with pytest.raises(ConfigError, match="numbers without class names"):
        load_dataset(named, cache_name, client=client, if_exists="append")
    assert read_manifest(client, cache_name).class_names == ()


def test_append_over_known_keys_counts_what_is_there(client, cache_name):
    first = [{"id": i, "x": i} for i in range(100)]
    load_dataset(first, cache_name, client=client, key="id")
    again = [{"id": i, "x": -i} for i in range(90, 120)]
    load_dataset(again, cache_name, client=client, key="id", if_exists="append")
    manifest = read_manifest(client, cache_name)
    assert (manifest.rows, manifest.checksum, manifest.partition_rows) == (120, "", ())
    assert client.cache(cache_name).get(95).X == -95


@pytest.mark.core
@LAYOUTS
def test_an_interrupted_load_resumes_where_it_was_noted(client, cache_name, layout, noted_often):
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(stop_at=1500), cache_name, client=client, partitions=4, layout=layout)
    journal = read_journal(client, cache_name)
    assert read_manifest(client, cache_name) is None
    with pytest.raises(CacheExists, match="unfinished"):
        load_dataset(source(), cache_name, client=client, layout=layout)
    whole = source()
    report = load_dataset(whole, cache_name, client=client, if_exists="resume", layout=layout)
    assert whole.starts == [journal.position]
    assert (report.rows, report.resumed_rows) == (3000, journal.rows)
    assert 0 < journal.rows <= 1500
    assert contents(client, cache_name) == {k: k for k in range(3000)}
    assert read_manifest(client, cache_name).checksum == checksum_of(client, cache_name)
    assert read_journal(client, cache_name) is None


@LAYOUTS
def test_an_interrupted_append_resumes(client, cache_name, layout, noted_often):
    options = {"client": client, "layout": layout}
    load_dataset(arrays(1000), cache_name, partitions=4, **options)
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(seed=3, stop_at=1000), cache_name, if_exists="append", **options)
    load_dataset(source(seed=3), cache_name, if_exists="resume", **options)
    manifest = read_manifest(client, cache_name)
    assert (manifest.rows, manifest.version) == (4000, 2)
    assert manifest.checksum == checksum_of(client, cache_name)


@LAYOUTS
def test_what_a_load_has_not_finished_is_not_taken_for_a_data_set(
    client, cache_name, layout, noted_often, caplog
):
    """Rows that are there are read, with a warning; blocks without their end are refused."""
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(stop_at=1500), cache_name, client=client, layout=layout)
    if layout == "blocks":
        with pytest.raises(SchemaError, match="has not finished"):
            open_rows(cache_name, client=client)
    else:
        batches = open_rows(cache_name, client=client).numpy()
        assert 0 < sum(len(batch["key"]) for batch in batches) < 3000
        assert "has not finished" in caplog.text
    caplog.clear()
    load_dataset(source(), cache_name, client=client, layout=layout, if_exists="resume")
    assert len(open_rows(cache_name, client=client)) == 3000 and not caplog.text


def test_resume_of_a_finished_load_does_nothing_and_of_none_loads(client, cache_name):
    first = load_dataset(arrays(100), cache_name, client=client, if_exists="resume")
    again = load_dataset(arrays(100), cache_name, client=client, if_exists="resume")
    assert (first.rows, first.resumed_rows) == (100, 0)
    assert (again.rows, again.resumed_rows) == (100, 100)
    with pytest.raises(ConfigError, match="no unfinished load"):
        load_dataset(arrays(100, seed=9), cache_name, client=client, if_exists="resume")


def test_resume_refuses_another_source_and_other_options(client, cache_name, noted_often):
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(stop_at=1000), cache_name, client=client)
    with pytest.raises(ConfigError, match="not the source"):
        load_dataset(source(seed=8), cache_name, client=client, if_exists="resume")
    with pytest.raises(ConfigError, match="limit"):
        load_dataset(source(), cache_name, client=client, if_exists="resume", limit=7)


@pytest.mark.core
@LAYOUTS
def test_replace_leaves_the_new_rows_under_the_name(client, cache_name, layout):
    load_dataset(arrays(2000), cache_name, client=client, partitions=4, layout=layout)
    new = arrays(700, seed=4, start=100)
    load_dataset(new, cache_name, client=client, if_exists="replace", layout=layout)
    manifest = read_manifest(client, cache_name)
    assert (manifest.cache, manifest.rows, manifest.version) == (cache_name, 700, 2)
    assert client.partition_count(cache_name) == 4
    assert contents(client, cache_name) == {k: k + 100 for k in range(700)}
    assert manifest.checksum == checksum_of(client, cache_name)
    assert [n for n in client.cache_names() if n.startswith(f"{cache_name}__")] == []
    if layout == "rows":
        query = f"SELECT COUNT(*), MIN(LABEL) FROM {cache_name}"
        assert client.sql(query).fetchall() == [(700, 100)]
        assert client.cache(cache_name).get(3).LABEL == 103


@LAYOUTS
def test_the_copies_stay_unless_others_are_asked_for(client, cache_name, layout):
    options = {"client": client, "layout": layout}

    def copies():
        manifest = read_manifest(client, cache_name)
        (row,) = (r for r in list_caches(client) if r["name"] == cache_name)
        assert manifest.options.backups == row["backups"]
        return row["partitions"], row["backups"]

    load_dataset(arrays(300), cache_name, partitions=4, backups=2, **options)
    assert copies() == (4, 2)
    for if_exists in ("append", "replace", "append"):
        load_dataset(arrays(200, seed=5), cache_name, if_exists=if_exists, **options)
        assert copies() == (4, 2)
    load_dataset(arrays(50), cache_name, if_exists="replace", partitions=8, **options)
    assert copies() == (8, 2)
    for backups in (1, 0):
        load_dataset(arrays(50), cache_name, if_exists="replace", backups=backups, **options)
        assert copies() == (8, backups)


@LAYOUTS
def test_a_load_that_is_begun_again_has_the_copies_of_the_first(client, cache_name, layout):
    options = {"client": client, "layout": layout}
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(stop_at=1000), cache_name, backups=1, **options)
    load_dataset(source(), cache_name, if_exists="replace", **options)
    (row,) = (r for r in list_caches(client) if r["name"] == cache_name)
    assert row["backups"] == read_manifest(client, cache_name).options.backups == 1


@pytest.mark.parametrize(("template", "copies"), [("PARTITIONED, BACKUPS=1", 1), ("REPLICATED", 0)])
def test_a_table_of_others_that_is_replaced_keeps_its_copies(client, cache_name, template, copies):
    made = f"CREATE TABLE {cache_name} (ID BIGINT PRIMARY KEY, LABEL INT)"
    client.sql(f'{made} WITH "TEMPLATE={template}, CACHE_NAME={cache_name}"')
    load_dataset(arrays(50), cache_name, client=client, if_exists="replace-foreign")
    assert (read_manifest(client, cache_name).options.backups, len(client.nodes())) == (copies, 1)


def test_readers_see_the_old_or_the_new_rows_while_they_are_replaced(client, address, cache_name):
    """A reader follows the manifest: each whole pass is one of the two sets, or an error."""
    from ignitetf.net.client import connect

    load_dataset(arrays(3000), cache_name, client=client, partitions=4)
    seen, errors, stop = [], [], threading.Event()

    def read():
        with connect(address) as other:
            while not stop.is_set():
                try:
                    found = labels(passes(other, cache_name))
                    seen.append((len(found), found[0]))
                except Exception as error:
                    errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for version in range(1, 5):
            new = arrays(3000 + version, seed=version, start=version * 10)
            load_dataset(new, cache_name, client=client, if_exists="replace")
    finally:
        stop.set()
        thread.join(60)
    allowed = {(3000 + v, 10 * v) for v in range(5)}
    assert seen and set(seen) <= allowed, set(seen) - allowed


@pytest.mark.core
def test_a_replacement_that_fails_leaves_the_old_rows(client, cache_name):
    from ignitetf.errors import SourceError

    load_dataset(arrays(100), cache_name, client=client, partitions=4)
    bad = source(stop_at=1000, error=SourceError("damaged"))
    with pytest.raises(SourceError, match="damaged"):
        load_dataset(bad, cache_name, client=client, if_exists="replace")
    assert len(contents(client, cache_name)) == 100
    assert [n for n in client.cache_names() if n.startswith(f"{cache_name}_")] == []


def test_an_interrupted_replacement_resumes(client, cache_name, noted_often):
    load_dataset(arrays(100), cache_name, client=client, partitions=4)
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(seed=5, stop_at=2000), cache_name, client=client, if_exists="replace")
    assert len(contents(client, cache_name)) == 100
    load_dataset(source(seed=5), cache_name, client=client, if_exists="resume")
    manifest = read_manifest(client, cache_name)
    assert (manifest.rows, manifest.version, manifest.cache) == (3000, 2, cache_name)
    assert manifest.checksum == checksum_of(client, cache_name)


@pytest.mark.parametrize("place", ["create", "copy"])
def test_a_replacement_that_dies_while_it_takes_its_name_is_finished_later(
    client, cache_name, monkeypatch, place
):
    """The manifest names the replacement until the copy is whole."""
    from ignitetf.load import copy, data_set

    load_dataset(arrays(100), cache_name, client=client, partitions=4)

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if place == "copy":
            patch.setattr(copy, "unwrapped", die)
        else:
            patch.setattr(data_set, "create_caches", die)
        load_dataset(source(seed=6), cache_name, client=client, if_exists="replace")
    assert len(contents(client, cache_name)) == 3000
    load_dataset(source(seed=6), cache_name, client=client, if_exists="resume")
    manifest = read_manifest(client, cache_name)
    assert (manifest.cache, manifest.rows, manifest.version) == (cache_name, 3000, 2)
    assert contents(client, cache_name) == {k: k for k in range(3000)}


@pytest.mark.parametrize("if_exists", ["replace", "resume"])
@pytest.mark.parametrize("gone", ["the replacement", "both"])
def test_a_replacement_that_somebody_removed_is_loaded_again(
    client, cache_name, monkeypatch, gone, if_exists
):
    from ignitetf.load import copy

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    load_dataset(arrays(100), cache_name, client=client, partitions=4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(copy, "unwrapped", die)
        load_dataset(source(seed=6), cache_name, client=client, if_exists="replace")
    staging = read_manifest(client, cache_name).cache
    for name in (staging, cache_name) if gone == "both" else (staging,):
        remove_cache(client, name)
    load_dataset(source(seed=6), cache_name, client=client, if_exists=if_exists)
    assert (staging != cache_name, client.cache_exists(staging)) == (True, False)
    manifest = read_manifest(client, cache_name)
    assert (manifest.cache, manifest.rows) == (cache_name, 3000)
    assert contents(client, cache_name) == {k: k for k in range(3000)}
    assert read_journal(client, cache_name) is None


def test_an_interrupt_leaves_no_thread_behind(client, cache_name):
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        load_dataset(source(stop_at=500), cache_name, client=client)
    with contextlib.suppress(RuntimeError):
        threading.current_thread().join(0.0)
    assert not [t for t in threading.enumerate() if t.name.startswith("ignitetf-writer")]
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # a connection that had answers under way ends beside
    assert threading.active_count() <= before


@LAYOUTS
@pytest.mark.parametrize("mode", ["error", "append", "replace"])
@pytest.mark.parametrize("stop_at", [0, 700, 2900])
def test_what_an_interrupted_load_says_of_itself_is_true(client, cache_name, layout, mode, stop_at):
    """Also before its first note: what it keeps, `resume` completes."""
    options = {"client": client, "partitions": 4, "layout": layout}
    if mode != "error":
        load_dataset(arrays(100), cache_name, **options)
    with pytest.raises(KeyboardInterrupt) as caught:
        load_dataset(source(seed=5, stop_at=stop_at), cache_name, if_exists=mode, **options)
    assert caught.value.kept and read_journal(client, cache_name) is not None
    load_dataset(source(seed=5), cache_name, if_exists="resume", **options)
    manifest = read_manifest(client, cache_name)
    assert manifest.rows == len(contents(client, cache_name)) == 3000 + 100 * (mode == "append")
    assert manifest.checksum == checksum_of(client, cache_name)


@LAYOUTS
@pytest.mark.parametrize("place", ["create_caches", "write", "require_stored", "publish"])
def test_a_node_that_does_not_answer_leaves_a_load_to_resume(
    client, address, cache_name, layout, place, monkeypatch
):
    from ignitetf.errors import RequestTimeout
    from ignitetf.load import run
    from ignitetf.net.client import connect

    def no_answer(*args, **kwargs):
        raise RequestTimeout("no answer within 30 s")

    options = {"partitions": 4, "layout": layout, "index": ("LABEL",)}
    with connect(address, idle_timeout_s=0.2) as hasty, monkeypatch.context() as patch:
        patch.setattr(*((fill.Writer, place) if place == "write" else (run, place)), no_answer)
        with pytest.raises(LoadInterrupted, match="no answer") as caught:
            load_dataset(source(), cache_name, client=hasty, **options)
    assert "resume" in caught.value.hint
    load_dataset(source(), cache_name, client=client, if_exists="resume", **options)
    assert contents(client, cache_name) == {k: k for k in range(3000)}
    assert read_manifest(client, cache_name).checksum == checksum_of(client, cache_name)
    assert client.sql(f"SELECT COUNT(*) FROM {cache_name}").fetchall() == [(3000,)]


def test_an_overloaded_node_stops_the_load_with_the_sum(
    client, cache_name, noted_often, monkeypatch
):
    real = fill.Writer.write
    left = [9]

    def write(self, work):
        left[0] -= 1
        if left[0] < 0:
            raise ServerOverloaded("Out of memory in data region", hint="give it more", status=1)
        real(self, work)

    with monkeypatch.context() as patch, pytest.raises(LoadInterrupted) as caught:
        patch.setattr(fill.Writer, "write", write)
        load_dataset(source(), cache_name, client=client)
    assert "Out of memory" in caught.value.message and "resume" in caught.value.hint
    assert caught.value.rows == client.cache_size(cache_name) > 0
    report = load_dataset(source(), cache_name, client=client, if_exists="resume")
    assert report.rows == client.cache_size(cache_name) == 3000


def test_a_manifest_round_trips(client, cache_name):
    load_dataset(arrays(10), cache_name, client=client)
    manifest = read_manifest(client, cache_name)
    assert type(manifest).from_json(manifest.to_json()) == manifest
    assert replace(manifest, cache="").cache == manifest.name


@LAYOUTS
def test_a_table_made_again_with_other_types_has_a_type_of_its_own(client, cache_name, layout):
    """Ignite remembers the fields of a binary type when its last cache is gone."""
    options = {"client": client, "partitions": 2, "layout": layout, "index": ("X",)}
    for values in (np.arange(5), np.linspace(0, 1, 5), np.array(list("abcde")), np.arange(5) + 7):
        for mode in ("replace", "append"):
            load_dataset({"X": values}, cache_name, if_exists=mode, **options)
        assert [len(b) > 0 for b in passes(client, cache_name)]
        assert sum(map(len, passes(client, cache_name))) == 10
        table = cache_name if layout == "rows" else read_manifest(client, cache_name).index
        found = client.sql(f"SELECT X FROM {table} WHERE ID IN (3, 8) ORDER BY ID").fetchall()
        assert found == [(values[3].item(),)] * 2


@LAYOUTS
def test_names_with_one_hash_are_two_data_sets(client, cache_name, layout):
    """A binary type is known by the Java hash of its name without case."""
    names = [f"{cache_name}_{end}" for end in ("U8", "SV")]
    for number, name in enumerate(names):
        rows = {"X": np.arange(5) + number}
        for mode in ("error", "append"):
            load_dataset(rows, name, client=client, partitions=2, layout=layout, if_exists=mode)
    for number, name in enumerate(names):
        found = [b.columns["X"].values for b in passes(client, name)]
        assert sorted(np.concatenate(found)) == sorted([*range(number, 5 + number)] * 2)
        drop_cache(client, name)


def test_fields_with_one_hash_are_refused(client, cache_name):
    rows = {"U8": np.arange(5), "SV": np.arange(5)}
    with pytest.raises(SchemaError, match="SV, U8"):
        load_dataset(rows, cache_name, client=client)
    assert not client.cache_exists(cache_name)


def test_a_load_names_the_columns_with_empty_cells(client, cache_name, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("A,B,C\n1,2,x\n2,,y\n", encoding="utf-8")
    report = load_dataset(open_source("csv", table), cache_name, client=client)
    (note,) = [note for note in report.notes if "no value" in note]
    assert f"{cache_name}: some rows have no value in B;" in note
    whole = load_dataset({"A": np.arange(3)}, cache_name, client=client, if_exists="replace")
    assert not whole.notes


@pytest.mark.parametrize("layout", ["rows", "blocks"])
@pytest.mark.parametrize("sql", [True, False])
@pytest.mark.parametrize("if_exists", ["error", "replace"])
@pytest.mark.parametrize("name", ["My Photos", "1ST", 'A"B'])
def test_a_refused_name_is_shown_as_the_user_wrote_it(client, name, if_exists, sql, layout):
    """The caches and tables of a data set have names of their own, which no message shows."""
    source = records({"X": np.arange(4)})
    options = {"if_exists": if_exists, "sql": sql, "layout": layout}
    with pytest.raises(ConfigError) as caught:
        load_dataset(source, name, client=client, partitions=16, **options)
    assert repr(name) in str(caught.value) and "__" not in str(caught.value)
    assert name not in client.cache_names()
