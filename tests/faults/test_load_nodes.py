"""A load into several nodes: rows go to the nodes that own them, and on when one of those dies."""

import threading

import numpy as np
import psutil
import pytest
from helpers.ports import lasting_port

from ignitetf.errors import PartitionLost
from ignitetf.explore.verify import verify
from ignitetf.load import fill
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import base, open_source
from ignitetf.load.writer import find_route
from ignitetf.net.client import connect
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import list_caches
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import BYTES, Field, Schema

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
ROWS, PARTITIONS = 40_000, 16


def arrays():
    rng = np.random.default_rng(4)
    return {
        "IMAGE": rng.integers(0, 256, (ROWS, 100), dtype=np.uint8),
        "LABEL": np.arange(ROWS, dtype=np.int32),
    }


def expected(schema):
    columns = {name: Dense(values) for name, values in arrays().items()}
    return f"{checksum(schema, Batch(Dense(np.arange(ROWS)), columns)):016x}"


@pytest.fixture(scope="module")
def cluster(node_home):
    from ignitetf.node import Node

    with Node.start("loaded", port=lasting_port(4), nodes=4, memory="256m") as node:
        yield node


def test_rows_go_to_the_nodes_that_own_them(cluster):
    """Each part of a batch has the rows of one node, as the cluster's own map says."""
    with connect(cluster.addresses) as client:
        load_dataset(arrays(), "ROUTED", client=client, partitions=PARTITIONS)
        manifest = read_manifest(client, "ROUTED")
        assert verify(client, "ROUTED").findings == []
        assert manifest.checksum == expected(manifest.schema)
        route = find_route(client, "ROUTED", manifest.schema)
        assert set(route.nodes) == {node.node_id for node in client.nodes()}
        rows = Batch(Dense(np.arange(1000)), {"N": Dense(np.arange(1000))})
        owner = client.partition_map("ROUTED").owner
        parts = route.split(rows)
        assert sorted(np.concatenate([part.key.values for _, part in parts])) == list(range(1000))
        for place, part in parts:
            found = partitions_of(manifest.schema, part.key, PARTITIONS)
            assert {owner(p) for p in set(found.tolist())} == {route.nodes[place]}
            assert np.array_equal(part.key.values, part.columns["N"].values)
        text = Schema("T", Field("key", TypeCode.STRING, BYTES), manifest.schema.fields)
        assert find_route(client, "ROUTED", text) is None


def test_a_replicated_table_that_is_replaced_is_on_all_nodes(cluster):
    with connect(cluster.addresses) as client:
        made = "CREATE TABLE EVERYWHERE (ID BIGINT PRIMARY KEY, LABEL INT)"
        client.sql(f'{made} WITH "TEMPLATE=REPLICATED, CACHE_NAME=EVERYWHERE"')
        rows = {"LABEL": np.arange(10, dtype=np.int32)}
        load_dataset(rows, "EVERYWHERE", client=client, if_exists="replace-foreign")
        (cache,) = (c for c in list_caches(client) if c["name"] == "EVERYWHERE")
        assert (cache["backups"], cache["entries"]) == (len(client.nodes()) - 1, 10)
        assert cache["backups"] > 0


def test_a_select_begins_again_when_a_node_dies_and_tells_lost_partitions(cluster):
    rows, killed = 3000, threading.Event()
    made = {"N": np.arange(rows), "X": np.zeros((rows, 6000), np.uint8)}
    with connect(cluster.addresses) as client:
        for name, backups in (("KEPT", 1), ("LOST", 0)):
            load_dataset(made, name, client=client, partitions=PARTITIONS, backups=backups)

        def progress(rows, nbytes):
            if not killed.is_set():
                killed.set()
                process = psutil.Process(cluster.pids[2])
                process.kill()
                process.wait(30)

        source = open_source(
            "sql", "SELECT N, X FROM KEPT", connect=lambda: connect(cluster.addresses)
        )
        load_dataset(source, "COPY", client=client, backups=1, on_progress=progress)
        found = client.sql("SELECT COUNT(1), COUNT(DISTINCT N), MAX(N) FROM COPY").fetchall()
        assert killed.is_set() and [list(row) for row in found] == [[rows, rows, rows - 1]]
        with pytest.raises(PartitionLost) as caught:
            client.sql("SELECT N FROM LOST").fetchall()
        assert "reload" in caught.value.hint
        for name in ("KEPT", "LOST", "COPY"):
            client.sql(f"DROP TABLE {name}").close()


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_node_that_dies_in_the_middle_costs_no_row(cluster, layout, monkeypatch):
    monkeypatch.setattr(fill, "_NOTE_S", 0.2)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    monkeypatch.setattr(base, "BATCH_BYTES", 200_000)
    name, written, killed = f"DIES_{layout.upper()}", [0], threading.Event()

    def progress(rows, nbytes):
        written[0] += rows
        if written[0] > ROWS // 2 and not killed.is_set():
            killed.set()
            process = psutil.Process(cluster.pids[-1 if layout == "rows" else 1])
            process.kill()
            process.wait(30)

    options = {"partitions": PARTITIONS, "backups": 2, "layout": layout}
    with connect(cluster.addresses, request_timeout_s=20) as client:
        report = load_dataset(arrays(), name, client=client, on_progress=progress, **options)
        manifest = read_manifest(client, name)
        assert killed.is_set() and report.rows == manifest.rows == ROWS
        assert manifest.checksum == expected(manifest.schema)
        assert verify(client, name).findings == []
