"""`ignitetf bench write`: every way stores all rows; the figures are printed, not judged."""

import json

import pytest
from helpers.java_programs import java_command
from helpers.ports import lasting_port
from test_bench_peers import HERE, Program
from typer.testing import CliRunner

from ignitetf.bench.write import PROFILES, bench_write
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


def test_image_files_beside_reading_them_alone(client):
    rates = bench_write(client.settings, "png", rounds=1, files=2_000)
    assert [r.way for r in rates] == ["files read and checked", "load_dataset, rows"]
    assert all(r.rows_per_s > 0 and r.to_limit > 0 for r in rates)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("profile", ["mnist", "1mb"])
def test_rates_beside_the_streamer_of_a_java_client_node(node_home, tmp_path, profile):
    from ignitetf.local.state import read_state
    from ignitetf.node import Node
    from ignitetf.settings import Settings

    command = java_command(HERE / "JavaStream.java", node_home, tmp_path)
    rows, way = PROFILES[profile].rows, "Java client node, data streamer"
    port = lasting_port()
    with Node.start(f"bench-{port}", port=port, memory="1g") as node:
        discovery = read_state(node.name).members[0].discovery_port
        with Program(*command, f"127.0.0.1:{discovery}", str(tmp_path)) as java:
            more = {way: lambda cache, size: java.ask(cache, rows, size)}
            settings = Settings(addresses=(node.address,))
            rates = {r.way: r for r in bench_write(settings, profile, rounds=3, more=more)}
    print()
    for name, rate in rates.items():
        print(
            f"{profile:6} {name:34} {rate.rows_per_s:10,.0f} rows/s {rate.mb_per_s:7,.0f} MB/s"
            f" {rate.to_limit} {rate.to_streamer} {rate.to_pyignite} {rate.to_rows}"
        )
    assert rates[way].rows_per_s > 0
