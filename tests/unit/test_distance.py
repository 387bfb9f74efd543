"""What is under way grows with the distance, within the limit that is set."""

import math
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.net.distance import bytes_ahead, is_far, times
from ignitetf.net.round_trips import FAR_S, RoundTrips
from ignitetf.net.together import together


def pool(quickest_s, ahead_bytes=128 << 20):
    settings = SimpleNamespace(ahead_bytes=ahead_bytes)
    return SimpleNamespace(quickest_s=quickest_s, settings=settings)


@pytest.mark.parametrize("quickest_s", [0.0, FAR_S / 2, math.inf])
def test_on_a_near_link_and_before_the_first_request_nothing_more_is_under_way(quickest_s):
    assert bytes_ahead(pool(quickest_s)) == 0
    assert times(pool(quickest_s), 1, 3, 9) == 3


@given(st.floats(FAR_S, 10.0), st.floats(FAR_S, 10.0), st.integers(0, 1 << 40))
def test_more_is_under_way_the_farther_it_is_up_to_the_limit(one_s, other_s, limit):
    near, far = sorted((one_s, other_s))
    assert bytes_ahead(pool(near, limit)) <= bytes_ahead(pool(far, limit)) <= limit
    assert bytes_ahead(pool(near)) == min(128 << 20, int(near * 2e9))


@given(st.floats(FAR_S, 10.0), st.integers(1, 1 << 30), st.integers(1, 4), st.integers(4, 64))
def test_so_many_things_fit_into_the_bytes_or_as_many_as_on_a_near_link(delay_s, size, near, most):
    count = times(pool(delay_s), size, near, most)
    assert near <= count <= most
    assert count == near or count * size <= bytes_ahead(pool(delay_s))


class Link:
    """What a pool knows of its link; the requests take these seconds."""

    def __init__(self, before_s, then_s):
        self.round_trips, self._then_s = RoundTrips(), iter(then_s)
        for seconds in before_s:
            self.round_trips.add(seconds)

    @property
    def quickest_s(self):
        return self.round_trips.quickest_s

    def call(self, op):
        self.round_trips.add(next(self._then_s))

    @property
    def left(self):
        return len(list(self._then_s))


@pytest.mark.parametrize(
    ("before_s", "then_s", "far"),
    [
        ([0.0003], [], False),
        ([0.4, 0.004], [], False),
        ([0.1065, 0.1083], [], True),
        ([0.3, 0.1089, 0.1065, 0.2], [], True),
        ([0.0222, 0.0277], [], True),
        ([], [0.1, 0.1], True),  # after a login, which says nothing
        ([0.4, 0.2], [0.06, 0.03, 0.004], False),
        ([0.4, 0.2], [0.13, 0.12], True),
        ([0.006], [0.0003], False),
        ([0.006], [0.05] * 10, True),  # nobody knows
    ],
)
def test_in_doubt_whether_a_link_is_distant_it_is_asked_again(before_s, then_s, far):
    link = Link(before_s, then_s)
    assert is_far(link) == far
    assert link.left == 0


@given(st.floats(FAR_S, 1.0), st.lists(st.floats(1.0, 1.3), min_size=2))
def test_a_link_that_takes_about_the_same_time_is_known(delay_s, jitter):
    assert is_far(Link([delay_s, *(delay_s * one for one in jitter)], []))


def test_calls_run_together_on_a_distant_link():
    met = threading.Barrier(3)
    calls = [lambda n=n: (met.wait(10) >= 0, n) for n in range(3)]
    assert together(pool(0.1), *calls) == [(True, 0), (True, 1), (True, 2)]


def test_calls_run_one_after_the_other_on_a_near_link():
    ran = []
    together(pool(0.0), *(lambda n=n: ran.append((n, threading.get_ident())) for n in range(3)))
    assert ran == [(n, threading.get_ident()) for n in range(3)]


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_the_first_error_in_the_order_of_the_calls_is_raised(delay_s):
    def fails(kind):
        raise kind

    with pytest.raises(KeyError):
        together(pool(delay_s), dict, lambda: fails(KeyError), lambda: fails(IndexError))
