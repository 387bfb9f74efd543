"""Read rates, printed: `pytest -m bench -s tests/bench`. Nothing about time is asserted."""

import pytest

from ignitetf.bench.read import bench_read
from ignitetf.bench.rows import PROFILES

pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.timeout(900)]


@pytest.mark.parametrize("profile", ["mnist", "1mb", "blobs", "sql"])
def test_rates_beside_a_bare_socket(client, profile):
    rates = bench_read(client.settings, profile, rounds=5)
    print()
    for rate in rates:
        print(
            f"{rate.profile:6} {rate.way:40} {rate.rows_per_s:12,.0f} rows/s"
            f" {rate.mb_per_s:8,.0f} MB/s {rate.ratio:5.2f} {rate.ratio_ahead:5.2f}"
        )
    ways = {rate.way: rate for rate in rates}
    assert ways["bare socket"].ratio == 1
    assert f"batch({PROFILES[profile].batch}), reduce" in ways
