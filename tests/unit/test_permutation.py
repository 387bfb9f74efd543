"""A bijection for every N, uniform over seeds, and the same numbers everywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.read.key_order import Permutation

pytestmark = pytest.mark.core

# Numbers of standard deviations that no statistic here may be off: a chance of 1 in 300 million.
SIGMAS = 6
SMALL = [5, 2, 4, 6, 1, 8, 9, 0, 7, 3]
LARGE = [9667330, 6435274, 3655623, 4520765, 1042255, 1233597]
HUGE = [533985283546, 463125357548]


def order(count, seed=0, epoch=0):
    return Permutation(count, seed, epoch)(np.arange(count))


def surprise(counts, expected, freedom):
    """How many standard deviations chi-square is above or below what chance gives."""
    chi = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi - freedom) / (2 * freedom) ** 0.5


def test_a_bijection_for_every_count_up_to_2000():
    for count in range(1, 2001):
        assert (np.sort(order(count, 3, count)) == np.arange(count)).all(), count


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 300_000])
def test_a_bijection_where_the_way_changes(count):
    assert (np.sort(order(count, 1)) == np.arange(count)).all()


@given(st.integers(1, 1 << 20), st.integers(0, 2**128), st.integers(0, 2**32), st.data())
def test_places_are_independent_of_each_other(count, seed, epoch, data):
    """A number is the same in whatever order and shape the places are asked for."""
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8))
    permutation = Permutation(count, seed, epoch)
    alone = [int(permutation(np.array([p]))[0]) for p in places]
    assert permutation(np.array(places)).tolist() == alone
    assert permutation(np.array([places, places]))[1].tolist() == alone
    assert all(0 <= number < count for number in alone)


def test_beyond_32_bits_places_do_not_collide():
    """At 2**31 + 11 a table of all numbers would take 16 GB; a million of them stand for it."""
    count = 2**31 + 11
    permutation = Permutation(count, 5, 9)
    places = np.random.default_rng(0).integers(count, size=1_000_000)
    edges = np.array([0, 1, 2**31 - 1, 2**31, count - 2, count - 1])
    places = np.unique(np.concatenate((places, edges)))
    found = permutation(places)
    assert len(np.unique(found)) == len(places)
    assert found.min() >= 0 and found.max() < count
    cells = np.bincount(found * 1000 // count, minlength=1000)
    assert surprise(cells, len(found) / 1000, 999) < SIGMAS


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 16, 17, 64])
def test_every_number_at_every_place_and_every_pair_side_by_side(count):
    seeds = 20_000
    found = np.stack([order(count, seed) for seed in range(seeds)])
    places = np.zeros((count, count))
    for place in range(count):
        places[place] = np.bincount(found[:, place], minlength=count)
    assert surprise(places, seeds / count, (count - 1) ** 2) < SIGMAS
    pairs = np.bincount(found[:, 0] * count + found[:, 1], minlength=count * count)
    apart = pairs[np.flatnonzero(~np.eye(count, dtype=bool).ravel())]
    assert surprise(apart, seeds / len(apart), max(1, len(apart) - 1)) < SIGMAS


@pytest.mark.parametrize("count", [65_537, 70_001, 131_072, 1_000_003])
def test_large_orders_are_uniform_over_places_and_neighbours(count):
    """Which sixteenth of the numbers comes at which sixteenth of the places, and next to which."""
    places = np.random.default_rng(count).integers(0, count - 1, 2_000)
    cells, pairs = np.zeros(256), np.zeros(256)
    for seed in range(150):
        permutation = Permutation(count, seed, seed % 3)
        here, there = (permutation(places + step) * 16 // count for step in (0, 1))
        cells += np.bincount(places * 16 // count * 16 + here, minlength=256)
        pairs += np.bincount(here * 16 + there, minlength=256)
    sizes = np.bincount(places * 16 // count, minlength=16) * 150
    assert surprise(cells, np.repeat(sizes / 16, 16), 240) < SIGMAS
    assert surprise(pairs, pairs.sum() / 256, 255) < SIGMAS


def test_the_check_of_uniformity_finds_a_bad_permutation():
    """Guards the guard: a rotation by the seed is a bijection, too."""
    found = np.stack([(np.arange(16) + seed) % 16 for seed in range(20_000)])
    pairs = np.bincount(found[:, 0] * 16 + found[:, 1], minlength=256)
    apart = pairs[np.flatnonzero(~np.eye(16, dtype=bool).ravel())]
    assert surprise(apart, 20_000 / 240, 239) > SIGMAS


def test_seeds_and_epochs_give_unrelated_orders():
    orders = [order(1000, seed, epoch) for seed in range(8) for epoch in range(8)]
    equal = [int((a == b).sum()) for i, a in enumerate(orders) for b in orders[:i]]
    # One place in common is expected of two random orders, ten hardly ever.
    assert max(equal) < 10 and 0.8 < np.mean(equal) < 1.2


def test_the_numbers_never_change():
    """A state resumed by another version or on another machine goes on with the same rows."""
    assert order(10, 7, 2).tolist() == SMALL
    large = Permutation(10_000_019, 7, 2)
    assert large(np.arange(6)).tolist() == LARGE
    assert Permutation(2**40 + 1, 2**100, 0)(np.array([0, 2**39])).tolist() == HUGE
