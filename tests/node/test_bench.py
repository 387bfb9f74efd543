"""`bench`: every way reads or writes the rows that were made, and what is told of it is whole."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ignitetf import open_rows
from ignitetf.bench.bare import Entries, Scans
from ignitetf.bench.put_all import PutAll, put_all_seconds
from ignitetf.bench.read import Setup, bench_read, make_ways
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, make_rows, sized
from ignitetf.bench.sweep import bench_partitions
from ignitetf.bench.write import bench_write
from ignitetf.errors import ConfigError, IgniteTFError, RequestTimeout
from ignitetf.tables.caches import create_cache
from ignitetf.tables.spec import CacheSpec

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 700


BARE = {"bare socket", "bare socket, asks ahead"}


@pytest.mark.parametrize("name", ["100b", "blobs", "sql"])
def test_every_way_reads_all_rows(client, name):
    profile = sized(PROFILES[name], ROWS)
    try:
        fill_cache(client, profile, 4)
        ways = make_ways(Setup(client, profile.cache, profile))
        assert {"numpy()", "pyignite scan", *BARE} <= set(ways)
        done = {way: run() for way, run in ways.items()}
        # Those with their own clock say their seconds, too.
        rows = {way: found[0] if isinstance(found, tuple) else found for way, found in done.items()}
        assert rows == dict.fromkeys(ways, ROWS)
    finally:
        drop_rows(client, profile.cache)
    assert not client.cache_exists(profile.cache)


@pytest.mark.parametrize("name", ["100b", "blobs", "sql"])
def test_the_rows_are_the_same_each_time_and_in_the_cache(client, name):
    profile = sized(PROFILES[name], ROWS)
    (made,), parts = make_rows(profile), make_rows(profile, 20 * profile.row_bytes)
    joined = [np.concatenate(each) for each in zip(*(p.values() for p in parts), strict=True)]
    try:
        fill_cache(client, profile, 4)
        found = open_rows(profile.cache, client=client)[:]
    finally:
        drop_rows(client, profile.cache)
    assert found["key"].tolist() == list(range(ROWS))
    for (field, values), again in zip(made.items(), joined, strict=True):
        texts = values.dtype.kind == "U"
        expected = [text.encode() for text in values.tolist()] if texts else values.tolist()
        assert found["val"][field].tolist() == expected
        if name == "100b" or field == "LABEL":  # lengths are drawn before bytes
            assert np.array_equal(values, again)


def test_the_bare_socket_counts_all_entries_however_far_it_asks_ahead(client):
    profile = sized(PROFILES["100b"], ROWS)
    try:
        fill_cache(client, profile, 16)
        for page_bytes in (1, 1_200, 200_000):
            scans = Scans(client, profile.cache, profile.row_bytes, page_bytes)
            assert scans.rows == ROWS and scans.pages >= ROWS / scans.page_rows
            for ahead in (0, 1, 30, scans.ahead):
                assert scans.drain(ahead)[0] == ROWS
                assert sum(scans.counts(ahead)) == ROWS
    finally:
        drop_rows(client, profile.cache)


def test_entries_that_were_read_are_stored_again_as_they_were(client):
    profile = sized(PROFILES["sql"], ROWS)
    try:
        fill_cache(client, profile, 8)
        rows = open_rows(profile.cache, client=client, on_change="ignore")
        before, entries = rows[:], Entries(client, profile.cache, profile.row_bytes)
        for store in (entries.put_all, entries.stream):
            client.cache(profile.cache).clear()
            assert client.cache_size(profile.cache) == 0
            assert store() > 0
            assert client.cache_size(profile.cache) == ROWS
            again = rows[:]
            assert all(map(np.array_equal, before["val"].values(), again["val"].values()))
    finally:
        drop_rows(client, profile.cache)


def test_rates_are_relative_to_both_bare_sockets(client):
    ways = {"numpy()", "batch(128), reduce"}
    rates = bench_read(client.settings, "1kb", rows=9_000, rounds=2, ways=ways)
    found = {rate.way: rate for rate in rates}
    assert set(found) == ways | BARE
    for rate in rates:
        assert rate.ratio > 0 and rate.ratio_ahead > 0 and 0 <= rate.cpu < 64
        assert np.isclose(rate.mb_per_s, rate.rows_per_s * 1008 / 1e6, atol=0.1)
    assert found["bare socket"].ratio == found["bare socket, asks ahead"].ratio_ahead == 1


def test_every_way_to_write_has_a_rate_and_leaves_nothing(client):
    before = client.cache_names()
    rates = {r.way: r for r in bench_write(client.settings, "mnist", rows=ROWS, rounds=1)}
    assert rates["encoded requests, put_all"].to_limit == 1
    assert rates["encoded requests, streamer"].to_streamer == 1
    assert rates["encoded blocks, put_all"].to_limit == 1
    assert rates["pyignite put_all"].to_pyignite == 1
    assert rates["read, numpy(), blocks"].to_rows > 0
    assert {"load_dataset, rows", "load_dataset, blocks"} <= set(rates)
    assert all(rate.rows_per_s > 0 for rate in rates.values())
    assert [
        name for name in client.cache_names() if name not in (*before, "IGNITETF_CATALOG")
    ] == []


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
    images, labels = made["IMAGE"], made["LABEL"]
    # The first batch once more, under keys behind the others: it warms up.
    rows = {i: (images[i % 50].tobytes(), int(labels[i % 50])) for i in range(70)}
    found = {key: (row.IMAGE, row.LABEL) for key, row in client.cache(cache_name).scan()}
    assert found == rows


def test_what_stops_pyignites_process_is_told(client, cache_name):
    with pytest.raises(IgniteTFError, match=r"pyignite's process failed: .*refused"):
        nowhere = client.settings.replace(addresses=("127.0.0.1:1",), idle_timeout_s=1.0)
        put_all_seconds(PutAll(nowhere, cache_name, Profile(1, 1, 1)))


def test_pyignites_process_has_a_time_limit(client, cache_name):
    with pytest.raises(RequestTimeout, match=r"more than 0\.01 s"):
        put_all_seconds(PutAll(client.settings, cache_name, Profile(1, 1, 1)), limit_s=0.01)


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (["read", "--rows", "100b", "--count", "300"], {"numpy()", "pyignite scan"}),
        (["order", "--count", "300"], {"reduce, shuffle, whole set", "eager loop"}),
        (["epochs", "--count", "1000"], {"fit: ignitetf", "reduce: bare socket"}),
        (["fs", "--size", "8"], {"bare_put", "write", "read"}),
        (
            ["keys", "--count", "300", "--rows", "mnist", "--partitions", "8"],
            {"bare GET_ALL, 128 x 8", "numpy(), global"},
        ),
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


def test_first_epochs_of_two_ways_beside_the_bare_socket(client, tmp_path):
    if client.settings.tls:
        pytest.skip("this program takes the address alone")
    root, lines = Path(__file__).resolve().parents[2], tmp_path / "epochs.jsonl"
    words = ["--address", client.settings.addresses[0], "--profile", "blobs", "--rounds", "1"]
    words += ["--later", "1", "--json", lines, "--ways", "now", "--ways", "other:SOME=1"]
    done = subprocess.run(
        [sys.executable, root / "benchmarks" / "first_epochs.py", *words],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    for way in ("now", "other"):
        epochs = [line["what"] for line in found if line["way"] == way]
        assert [what for what in epochs if "MB" not in what] == ["open", "first", "later"]
    assert all(line["wall"] > 0 and line["peak_mib"] > 10 for line in found)
    assert "ratio" in done.stdout and "later" in done.stdout
