"""Nodes that derive the ids of binary types from their names in a way of their own."""

import pytest
from helpers.plain_nodes import plain_cluster

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConfigError
from ignitetf.net.client import connect

pytestmark = pytest.mark.node


def test_a_load_whose_rows_sql_would_overlook_is_refused(node_home, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIN_EXACT_NAMES", "1")
    rows = [{"A": 1}, {"A": 2}]
    with plain_cluster(node_home, tmp_path) as cluster, connect(cluster.addresses[0]) as client:
        for layout, index in (("rows", []), ("blocks", ["A"])):
            with pytest.raises(ConfigError, match="SQL does not find") as refused:
                load_dataset(rows, "ROWS", client=client, layout=layout, index=index)
            assert "--no-sql" in refused.value.hint
            assert [name for name in client.cache_names() if "ROWS" in name] == []
        load_dataset(rows, "ROWS", client=client, sql=False)
        assert sum(len(part["key"]) for part in open_rows("ROWS", cluster.addresses).numpy()) == 2
