"""`ignitetf bench write`: every way stores all rows; the figures are printed, not judged."""

import json

import pytest
from typer.testing import CliRunner

from ignitetf.cli.main import app

pytestmark = [pytest.mark.node, pytest.mark.bench]


def test_bench_write_prints_every_way_beside_the_limit(address, client):
    before = client.cache_names()
    args = ["bench", "write", "--rows", "mnist", "--rounds", "1", "--output", "json"]
    result = CliRunner().invoke(app, [*args, "--address", address])
    assert result.exit_code == 0, result.output
    rates = {r["way"]: r for r in json.loads(result.stdout)}
    assert rates["encoded requests, put_all"]["to_limit"] == 1.0
    assert rates["encoded requests, streamer"]["to_streamer"] == 1.0
    assert rates["read, bare socket, blocks"]["to_limit"] == 1.0
    assert rates["read, numpy(), blocks"]["to_rows"] > 0
    assert rates["pyignite put_all"]["to_pyignite"] == 1.0
    assert {"load_dataset, rows", "load_dataset, blocks", "writer, rows"} <= set(rates)
    assert all(r["rows_per_s"] > 0 for r in rates.values())
    assert [n for n in client.cache_names() if n not in before and "CATALOG" not in n] == []
    print(result.stdout)
