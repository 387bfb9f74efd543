"""Read rates, printed: `pytest -m bench -s tests/bench`. Nothing about time is asserted."""

import pytest

from ignitetf.explore.bench_read import PROFILES, bench_read

pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.timeout(900)]


@pytest.mark.parametrize("profile", ["mnist", "1mb"])
def test_rates_beside_a_bare_socket(client, profile):
    rates = bench_read(client.settings, profile, rounds=5)
    for rate in rates:
        print(f"{rate.profile:6} {rate.way:28} {rate.rows_per_s:12,.0f} rows/s  {rate.ratio:.2f}")
    ways = {rate.way: rate for rate in rates}
    assert ways["bare socket"].ratio == 1
    assert f"batch({PROFILES[profile].batch}), reduce" in ways
