"""`verify --epoch`: a sound epoch has every key once, and a hash that depends on order alone."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ignitetf.errors import ConfigError
from ignitetf.explore.epoch import KeySequence, verify_epoch
from ignitetf.load.loader import load_dataset
from ignitetf.read import rows

pytestmark = pytest.mark.node
ROWS = 500


@pytest.fixture
def table(client, cache_name):
    rows = [{"A": np.int64(i * i), "S": f"s{i}"} for i in range(ROWS)]
    load_dataset(rows, cache_name, client=client, partitions=8)
    return cache_name


@pytest.mark.parametrize("seed", [None, 7])
def test_every_key_once_whatever_the_readers(client, table, seed):
    found = set()
    for readers, page_size in ((1, None), (2, 7), (4, 33), (8, 500)):
        report = verify_epoch(client, table, seed=seed, readers=readers, page_size=page_size)
        assert report.ok and report.rows == report.stored == report.expected == ROWS
        found.add(report.sequence)
    assert len(found) == 1
    shards = verify_epoch(client, table, seed=seed, shards=3)
    assert shards.ok and sum(shards.shard_rows) == ROWS and len(shards.shard_sequences) == 3
    other = verify_epoch(client, table, seed=seed, epoch=1)
    assert other.ok and (other.sequence in found) == (seed is None)


def test_the_order_is_that_of_training(client, address, table):
    tf = pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset
    from ignitetf.wire.checksum import batch_hashes
    from ignitetf.wire.columns import Batch, Dense
    from ignitetf.wire.schema import Schema

    for shard in range(2):
        dataset = IgniteDataset(table, addresses=[address], shuffle=7, shard=(shard, 2), epoch=4)
        keys = np.array([int(k) for k in dataset.map(lambda e: e["key"])])
        schema = dataset.rows.reader.schema
        sequence = KeySequence()
        sequence.add(batch_hashes(Schema(None, schema.key, ()), Batch(Dense(keys))))
        report = verify_epoch(client, table, seed=7, shards=2, epoch=4)
        assert report.shard_sequences[shard] == sequence.digest()
    del tf


@pytest.mark.parametrize(
    ("damage", "figures"),
    [
        (lambda parts: parts[1:], ("missing",)),
        (lambda parts: [*parts, parts[0]], ("repeated",)),
        (lambda parts: [parts[0] + np.uint64(1), *parts[1:]], ("missing", "unknown")),
    ],
)
def test_a_broken_reader_is_caught(client, table, monkeypatch, damage, figures):
    """Guards the guard: rows left out, given twice, or made up."""
    true = rows.read_rows

    def broken(*arguments):
        batches = list(true(*arguments))
        whole = batches[0]
        parts = damage([np.asarray(whole[i : i + 1].key.values) for i in range(len(whole))])
        keys = np.concatenate([np.asarray(p).astype(np.int64) for p in parts])
        yield type(whole)(type(whole.key)(keys + (1000 if "unknown" in figures else 0)))
        yield from batches[1:]

    monkeypatch.setattr(rows, "read_rows", broken)
    report = verify_epoch(client, table)
    assert not report.ok
    assert all(getattr(report, name) for name in figures)


def test_the_command(client, address, table):
    from ignitetf.cli.main import app

    arguments = ["verify", table, "--address", address, "--epoch", "--output", "json"]
    found = CliRunner().invoke(app, [*arguments, "--seed", "3", "--shards", "2", "--number", "5"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    wanted = verify_epoch(client, table, seed=3, shards=2, epoch=5)
    assert report == json.loads(json.dumps(wanted.as_dict()))
    client.sql(f'DELETE FROM "{table}" WHERE _KEY = 7')
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output  # the epoch is that of the rows that are there
    assert json.loads(found.stdout)["stored"] == wanted.stored - 1
    found = CliRunner().invoke(app, [word for word in arguments if word != "--epoch"])
    assert found.exit_code == 1
    assert "the load stored" in found.output


def test_unusable_arguments(client, table):
    for options in ({"shards": 0}, {"seed": -1}, {"readers": 0}, {"window_bytes": 1 << 60}):
        with pytest.raises(ConfigError):
            verify_epoch(client, table, **options)
