"""Rows that are lost with a node of a cluster without our templates: told in every way of reading."""

import numpy as np
import pytest
from helpers.plain_nodes import plain_cluster

from ignitetf import connect
from ignitetf.errors import DataChanged, PartitionLost
from ignitetf.load.loader import load_dataset
from ignitetf.read.rows import open_rows
from ignitetf.tables.describe import describe

pytestmark = [pytest.mark.node, pytest.mark.faults]
ROWS = 100
WAYS = [
    {},
    {"shuffle": 3},
    {"order": "keys"},
    {"order": "global"},
    {"where": "A < 1000"},
    {"where": "A < 1000", "order": "keys"},
    {"where": "A IN (SELECT 1)"},
]


def read(rows):
    return sum(len(batch["key"]) for batch in rows.batches())


def test_no_way_reads_fewer_rows_without_an_error(node_home, tmp_path):
    plain = plain_cluster(node_home, tmp_path, count=2)
    with plain as cluster, connect(cluster.addresses[0]) as client:
        report = load_dataset({"A": np.arange(ROWS)}, "LOST", client=client)
        load_dataset({"A": np.arange(ROWS)}, "LESS", client=client)
        assert any("as empty" in note for note in report.notes)
        assert "as empty" in describe(client, "LOST")["note"]
        client.sql('DELETE FROM "LESS" WHERE A >= 60')  # of a whole cluster, none is lost
        assert [read(open_rows("LESS", client=client, **way)) for way in WAYS[:-1]] == [60] * 6
        opened = [open_rows("LOST", client=client, **way) for way in WAYS]
        cluster.kill(1)
        for rows in opened:
            with pytest.raises((PartitionLost, DataChanged)):
                read(rows)
        for way in ({}, WAYS[3], WAYS[4]):
            with pytest.raises(PartitionLost, match="the load stored 100"):
                open_rows("LOST", client=client, **way)
        lenient = open_rows("LOST", client=client, on_change="warn")
        assert read(lenient) == client.cache_size("LOST") < ROWS
