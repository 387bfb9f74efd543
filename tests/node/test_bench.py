"""`bench`: every way reads or writes the rows that were made, and what is told of it is whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ignitetf.bench import put_all
from ignitetf.bench.bare import drain, new_buffer, owners_of
from ignitetf.bench.put_all import PutAll, put_all_seconds
from ignitetf.bench.read import bench_read
from ignitetf.bench.rows import (
    PROFILES,
    Profile,
    drop_rows,
    fill_cache,
    make_rows,
    sized,
)
from ignitetf.bench.sweep import bench_partitions
from ignitetf.bench.ways import Setup, make_ways
from ignitetf.errors import ConfigError, IgniteTFError, RequestTimeout
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.caches import create_cache
from ignitetf.tables.spec import CacheSpec

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 700


BARE = {"bare socket", "bare socket, asks ahead"}


def values_of(column):
    return column.to_bytes() if column.lengths is not None else column.values.tolist()


@pytest.mark.parametrize("name", ["100b", "blobs", "sql"])
def test_every_way_reads_all_rows(client, name):
    profile = sized(PROFILES[name], ROWS)
    try:
        fill_cache(client, profile, 4)
        ways = make_ways(Setup(client, profile.cache, profile, 4))
        assert {"numpy()", "pyignite scan", *BARE} <= set(ways)
        done = {way: run.run() for way, run in ways.items()}
        # Those with their own clock say their seconds, too.
        rows = {way: found[0] if isinstance(found, tuple) else found for way, found in done.items()}
        assert rows == dict.fromkeys(ways, ROWS)
    finally:
        drop_rows(client, profile.cache)
    assert not client.cache_exists(profile.cache)


@pytest.mark.parametrize("name", ["100b", "blobs", "sql"])
def test_the_rows_are_the_same_each_time_and_in_the_cache(client, name):
    profile = sized(PROFILES[name], ROWS)
    made = {}
    for batch in make_rows(profile):
        columns = {n: values_of(c) for n, c in batch.columns.items()}
        for i, key in enumerate(batch.key.values.tolist()):
            made[key] = {n: values[i] for n, values in columns.items()}
    try:
        fill_cache(client, profile, 4)
        reader, found = CacheReader(client, profile.cache, ReadOptions()), {}
        for item in reader.batches(range(4)):
            if item.batch is None:
                continue
            columns = {n: values_of(c) for n, c in item.batch.columns.items()}
            for i, key in enumerate(item.batch.key.values.tolist()):
                found[key] = {n: values[i] for n, values in columns.items()}
    finally:
        drop_rows(client, profile.cache)
    assert found == made and len(made) == ROWS


def test_the_bare_socket_counts_all_entries_however_far_it_asks_ahead(client):
    profile = sized(PROFILES["100b"], ROWS)
    try:
        fill_cache(client, profile, 16)
        owners = owners_of(client, profile.cache, range(16))
        assert sorted(p for parts in owners.values() for p in parts) == list(range(16))
        for page in (1, 7, 1000):
            for ahead in (0, 1, 30):
                assert (
                    drain(client.settings, owners, profile.cache, page, new_buffer(), ahead)[0]
                    == ROWS
                )
    finally:
        drop_rows(client, profile.cache)


def test_shares_of_the_time_are_shares(client, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # more cores, more readers
    ways = {"numpy()", "batch(128), reduce"}
    # Partitions of more than half a megabyte: rows of smaller ones are taken apart as they arrive.
    rates = bench_read(client.settings, "1kb", rows=9_000, rounds=2, ways=ways)
    found = {rate.way: rate for rate in rates}
    assert set(found) == ways | BARE
    for way in ways:
        rate = found[way]
        assert 0 <= rate.hand_over <= 1 and 0 < rate.decode <= 1 and rate.start_ms >= 0
        # Two readers, and the consumer, which takes pages apart itself when it would wait: what
        # each of them does, it does one after the other. Two rounds: sums are exact.
        readers = 2
        assert rate.wait + rate.receive <= 1.01 * readers
        assert rate.wait + rate.receive + rate.decode <= 1.01 * readers + rate.hand_over
        assert np.isclose(rate.mb_per_s, rate.rows_per_s * 1008 / 1e6, atol=0.1)
        assert rate.ratio is not None
    for way in BARE:
        assert found[way].decode is None and found[way].start_ms is None


def test_an_unknown_way_is_refused_and_leaves_nothing(client):
    with pytest.raises(ConfigError, match="by telepathy"):
        bench_read(client.settings, "100b", rows=10, rounds=1, ways={"by telepathy"})
    assert not client.cache_exists(PROFILES["100b"].cache)


def test_partitions_without_a_template_are_left_out(client):
    notes = []
    rates = bench_partitions(
        lambda: client.settings, partitions=(1, 3, 4), rows=5, rounds=1, note=notes.append
    )
    assert sorted({rate.partitions for rate in rates}) == [1, 4]
    assert [line for line in notes if "left out" in line and "p3" in line]


def test_the_command_prints_json_and_draws(address, tmp_path):
    from typer.testing import CliRunner

    from ignitetf.cli.main import app

    plot = tmp_path / "rates.png"
    words = ["bench", "read", "--address", address, "--rows", "sql", "--rows", "partitions"]
    words += ["--partitions", "2", "--count", "40", "--rounds", "1", "--output", "json"]
    words += ["--plot", str(plot)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rates = json.loads(done.stdout)
    assert {rate["profile"] for rate in rates} == {"sql", "partitions"}
    assert all(rate["rows_per_s"] > 0 and rate["rows"] == 40 for rate in rates)
    with Image.open(plot) as image:
        assert image.format == "PNG" and image.width > 500


def test_pyignite_writes_the_same_rows_in_a_process_of_its_own(client, cache_name):
    create_cache(client, CacheSpec(cache_name, partitions=2))
    profile = Profile(50, 100, 20)
    assert put_all_seconds(PutAll(client.settings, cache_name, profile)) > 0
    (made,) = make_rows(profile)
    images, labels = (made.columns[name].values for name in ("IMAGE", "LABEL"))
    # The first batch once more, under keys behind the others: it warms up.
    rows = {i: (images[i % 50].tobytes(), int(labels[i % 50])) for i in range(70)}
    found = {key: (row.IMAGE, row.LABEL) for key, row in client.cache(cache_name).scan()}
    assert found == rows


def test_what_stops_pyignites_process_is_told(client, cache_name):
    with pytest.raises(IgniteTFError, match=r"pyignite's process failed: .*refused"):
        nowhere = client.settings.replace(addresses=("127.0.0.1:1",), idle_timeout_s=1.0)
        put_all_seconds(PutAll(nowhere, cache_name, Profile(1, 1, 1)))


def test_pyignites_process_has_a_time_limit(client, cache_name, monkeypatch):
    monkeypatch.setattr(put_all, "_LIMIT_S", 0.01)
    with pytest.raises(RequestTimeout, match=r"more than 0\.01 s"):
        put_all_seconds(PutAll(client.settings, cache_name, Profile(1, 1, 1)))


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (["read", "--rows", "100b", "--count", "300"], {"numpy()", "pyignite scan"}),
        (["order", "--count", "300"], {"reduce, shuffle, whole set", "eager loop"}),
        (["epochs", "--count", "1000"], {"fit: ignitetf", "reduce: bare socket"}),
        (["fs", "--size", "8"], {"bare_put", "write", "read"}),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_run_from_the_checkout_adds_its_figures_to_the_history(client, tmp_path, words, ways):
    if client.settings.tls:
        pytest.skip("these programs take the address alone")
    history, root = tmp_path / "history.jsonl", Path(__file__).resolve().parents[2]
    where = ["--address", client.settings.addresses[0], "--rounds", "1", "--history", history]
    done = subprocess.run(
        [sys.executable, root / "benchmarks" / "run.py", *words, *where],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in history.read_text().splitlines()]
    assert ways <= {line["way"] for line in found}
    assert {line["bench"] for line in found} == {words[0]}
    assert all(line["commit"] and line["rounds"] == 1 and line["peak_mib"] > 10 for line in found)
    assert all(line["way"] in done.stdout for line in found)
