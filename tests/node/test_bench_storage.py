"""`bench storage` and `plan`: what they measure on a node, and that nothing is left of it."""

import pytest

from ignitetf.bench.read import BARE_AHEAD
from ignitetf.bench.storage import bench_storage
from ignitetf.bench.workloads import Workload
from ignitetf.errors import ServerOverloaded
from ignitetf.plan.service import measure_times

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

SMALL = Workload("small", 20, 5_000, 0.02, 0.05, 1_000)


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """A folder for temporary files that is empty in the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def test_each_way_keeps_accelerators_busy_and_leaves_nothing(client, no_files):
    before, told = set(client.cache_names()), []
    found = bench_storage(
        client.settings, SMALL, accelerators=2, seconds=0.2, most_bytes=1_000_000, say=told.append
    )
    ways = [s.way for s in found]
    assert ways[:3] == ["ignitetf", BARE_AHEAD, "TFRecord"] and "Parquet" in ways
    for one in found:
        assert one.workload == "small" and one.samples == 200
        assert one.accelerators == 2 and one.limit
        assert 0.05 <= one.utilisation <= 1 and one.mb_per_s > 0 and one.cpu_s_per_gb > 0
        assert one.memory_mb is None or one.memory_mb < 500
        assert 0 < one.first_ms < 10_000 and 0 <= one.wait_p50_ms <= one.wait_p99_ms
        assert [run["accelerators"] for run in one.runs] == [1, 2]
    assert any("200 samples of 5,000 bytes" in line for line in told)
    assert set(client.cache_names()) - before <= {"IGNITETF_CATALOG"}


def test_a_batch_that_the_node_has_no_room_for_is_refused(client, no_files):
    before = set(client.cache_names())
    huge = Workload("huge", 1, 1 << 50, 1.0, 0.9, 1)
    with pytest.raises(ServerOverloaded, match=r"a batch of huge has .* MB") as caught:
        bench_storage(client.settings, huge)
    assert "--memory" in caught.value.hint
    assert set(client.cache_names()) == before


def test_times_of_a_page_are_measured_and_leave_nothing(client):
    before = set(client.cache_names())
    times = measure_times(client, Workload("some", 10, 100_000, 0.1, 0.9, 100))
    assert times is not None and times.measured
    assert 2_000_000 < times.page_bytes < 8_000_000
    assert times.page_s > 0 and times.decode_s >= 0 and times.round_trip_s > 0
    assert times.reader_bytes_per_s <= times.node_bytes_per_s
    assert set(client.cache_names()) - before <= {"IGNITETF_CATALOG"}
