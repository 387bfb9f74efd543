"""Files that `bench storage` reads beside a cluster: each format gives back the rows written."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from ignitetf.bench.peers import PEERS, Reading, missing_packages
from ignitetf.bench.rows import Profile, make_rows

KINDS = {"dense": 10_000, "floats": 1_600, "wide": 761}
BATCH, ROWS = 10, 160


def written(peer, kind, folder):
    """Write rows in parts of two batches; return all of them as columns."""
    profile = Profile(ROWS, KINDS[kind], BATCH, kind)
    peer.write(make_rows(profile, 2 * BATCH * KINDS[kind]), folder)
    parts = list(make_rows(profile, 2 * BATCH * KINDS[kind]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def raw(value):
    """Return each row of a column as bytes."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if value.dtype == object:
        return list(value)
    return [row.tobytes() for row in np.ascontiguousarray(value)]


def rows_of(batch, columns):
    """Return the rows of a batch as the bytes of each column."""
    if isinstance(batch, np.ndarray) and batch.dtype.names is None:
        dtype = np.dtype([(n, v.dtype, v.shape[1:]) for n, v in columns.items()])
        batch = batch.reshape(-1).view(dtype)
    names = batch.dtype.names if isinstance(batch, np.ndarray) else list(batch)
    found = {}
    for name in names:
        values = batch[name]
        kind = columns[name].dtype
        if columns[name].ndim == 1:  # TensorFlow's records have 64 bits
            values = np.asarray(values).astype(kind)
        found[name] = raw(values)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", list(PEERS))
def test_a_pass_has_each_row_once_and_shards_divide_it(name, kind, tmp_path):
    peer = PEERS[name]
    if missing := missing_packages(peer):
        pytest.skip(f"needs {', '.join(missing)}")
    columns = written(peer, kind, tmp_path)
    keyed = lambda row: tuple(sorted(row.items()))  # noqa: E731
    expected = sorted(keyed(row) for row in rows_of(columns, columns))
    for setting in peer.settings[:2]:
        for count in (1, 2):
            found = []
            for index in range(count):
                reading = Reading(tmp_path, BATCH, once=True, shard=(index, count))
                for batch in peer.read(reading, **setting):
                    found += rows_of(batch, columns)
            assert sorted(map(keyed, found)) == expected


@pytest.mark.parametrize("name", list(PEERS))
def test_a_start_leaves_out_that_many_rows(name, tmp_path):
    peer = PEERS[name]
    if missing := missing_packages(peer):
        pytest.skip(f"needs {', '.join(missing)}")
    columns = written(peer, "dense", tmp_path)
    setting = peer.settings[0]

    def read(start):
        reading = Reading(tmp_path, BATCH, start=start, once=True)
        return [row for batch in peer.read(reading, **setting) for row in rows_of(batch, columns)]

    assert read(120) == read(0)[120:]


@pytest.mark.parametrize("name", ["Parquet", "Lance scan", "TFRecord"])
def test_formats_with_columns_read_only_those_asked_for(name, tmp_path):
    peer = PEERS[name]
    if missing := missing_packages(peer):
        pytest.skip(f"needs {', '.join(missing)}")
    written(peer, "wide", tmp_path)
    reading = Reading(tmp_path, BATCH, ("C003", "C150"), once=True)
    for batch in peer.read(reading, **peer.settings[0]):
        assert set(batch) == {"C003", "C150"}


def test_a_missing_package_is_named_as_pip_calls_it():
    peer = replace(PEERS["Parquet"], needs=("lance", "no_such_module", "numpy"))
    wanted = (
        ["no_such_module"] if importlib.util.find_spec("lance") else ["pylance", "no_such_module"]
    )
    assert missing_packages(peer) == wanted
