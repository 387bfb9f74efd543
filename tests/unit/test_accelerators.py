"""Simulated accelerators: shares of time, what ends them, and the search for the most at work."""

import time

import pytest

from ignitetf.bench.accelerators import ahead_of, utilisation_of
from ignitetf.bench.feeding import Fed
from ignitetf.bench.storage import Search
from ignitetf.bench.workloads import MOST_ROW_BYTES, WORKLOADS
from ignitetf.cli.options import StorageWorkload

STEP_S = 0.02


def batches(seconds=0.0, most=None, ended=None):
    given = 0
    try:
        while most is None or given < most:
            time.sleep(seconds)
            given += 1
            yield given
        raise RuntimeError("the data are gone")
    finally:
        if ended is not None:
            ended.append(given)


@pytest.mark.parametrize("accelerators", [1, 3])
def test_accelerators_compute_while_batches_come_fast_and_wait_while_they_do_not(accelerators):
    ended = []
    fast = utilisation_of(batches(ended=ended), accelerators, STEP_S, 0.4, ahead=2)
    # Steps are counted by what was asked for, and no sleep is shorter than that.
    assert 0.3 < fast.utilisation <= 1.0
    assert fast.seconds >= 0.4 * accelerators
    assert fast.steps <= ended[0]
    slow = utilisation_of(batches(2 * STEP_S), accelerators, STEP_S, 0.4, ahead=2)
    assert 0 < slow.utilisation < min(0.7, fast.utilisation)
    # A step waits for its batch as long as the batch takes longer than the step.
    assert slow.wait_p99_s >= slow.wait_p50_s >= (accelerators - 0.5) * STEP_S
    assert slow.first_s >= 2 * STEP_S > fast.first_s
    assert slow.steps * STEP_S == pytest.approx(slow.utilisation * slow.seconds)


def test_an_error_of_the_batches_ends_all_accelerators_and_is_raised():
    ended, begin = [], time.monotonic()
    with pytest.raises(RuntimeError, match="the data are gone"):
        utilisation_of(batches(most=5, ended=ended), 3, 0.001, 60.0, ahead=2)
    assert ended == [5] and time.monotonic() - begin < 20


@pytest.mark.parametrize("most", [1, 2, 7, 16])
def test_the_search_finds_the_most_that_are_at_work(most):
    for true in range(most + 3):
        search = Search(most, 0.9)
        while (number := search.next) is not None:
            assert 1 <= number <= most
            search.add(Fed(number, 1, 0.95 if number <= true else 0.5, 1.0, None))
        found = 0 if search.best is None else search.best.accelerators
        assert found == min(true, most)
        assert len({run.accelerators for run in search.runs}) == len(search.runs) <= 9


def test_the_commands_offer_every_workload():
    assert [each.value for each in StorageWorkload] == list(WORKLOADS)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_rows_of_a_sample_are_together_about_its_bytes_and_not_too_large(workload):
    assert workload.row_bytes <= MOST_ROW_BYTES
    assert 0 <= workload.sample_rows * workload.row_bytes - workload.sample_bytes < 100
    assert workload.batch_rows == workload.batch * workload.sample_rows
    for accelerators in (1, 8, 1000):
        ahead = ahead_of(accelerators, workload.batch_bytes)
        assert ahead >= 1 and (ahead == 1 or ahead * workload.batch_bytes <= 1 << 30)
