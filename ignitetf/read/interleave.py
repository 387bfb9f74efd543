"""Interleaving: which component's row stands at which place, with the weights in every step.

counts, step -> **interleaving** -> mix order

A step of b places is filled from a line on which the components lie end to end, each as long as
its share: b points at a distance of 1 hit every component as often as its share says, to within one
row. Where the points begin moves from step to step, so that over an epoch each component is hit
exactly as often as it has rows. Golden-ratio lattices spread both the beginnings over the steps and
the points over the places of a step, so that the work of a worker is mixed nearly like the step.

All of it is arithmetic with whole numbers: any place can be computed, nothing is stored for the
places, and results are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_PLACES", "MOST_STEP", "Interleaving"]

Numbers = NDArray[np.int64]
# Below these, no product here exceeds 63 bits.
MOST_PLACES: Final = 1 << 40
MOST_STEP: Final = 1 << 31
# The golden ratio less one, times 2^64.
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Interleaving:
    """Places of an epoch, each of which is one row of one component.

    In every step, the last one too, a component has the number of rows that its share of the epoch
    makes, rounded down or up.

    Args:
        counts: Rows of each component in an epoch; their sum is at most `MOST_PLACES`.
        step: Places of a step, at most `MOST_STEP`.
    """

    def __init__(self, counts: Sequence[int], step: int) -> None:
        self.step = step
        self._steps, self._rest = divmod(sum(counts), step)
        last = _last_step(counts, step)
        whole = [count - rows for count, rows in zip(counts, last, strict=True)]
        self._last = _ends(last)
        self._whole = _ends(whole)
        # Of the components up to k, a step has `_base[k]` rows, and one more in `_more[k]` steps.
        self._base, self._more = np.divmod(self._whole, max(1, self._steps))
        self._stride = _stride(self._steps)
        self._point_stride, self._last_stride = _stride(step), _stride(self._rest)

    def at(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return what stands at these places, which belong to adjacent steps.

        Returns:
            The component of each place, and the number of the row among the component's rows of
            the epoch, both int64. Rows of a step have higher numbers than those of the steps
            before.
        """
        if not len(places):
            return places, places
        steps, at = np.divmod(places, self.step)
        first = int(steps.min())
        ends, before = self._table(first, int(steps.max()) + 1)
        row = steps - first
        is_last = steps == self._steps
        point = at * self._point_stride % self.step
        point[is_last] = at[is_last] * self._last_stride % max(1, self._rest)
        source = (point[:, None] >= ends[row, 1:]).sum(1)
        return source, before[row, source] + point - ends[row, source]

    def _table(self, first: int, stop: int) -> tuple[Numbers, Numbers]:
        """Return where components end in each step, and their rows in the steps before.

        Both have a row for each step; the ends begin with 0.
        """
        stop_whole = min(stop, self._steps)
        size = max(0, stop_whole - first)
        start = first * self._stride % max(1, self._steps)
        begins = (start + self._stride * np.arange(size)) % max(1, self._steps)
        more = (begins[:, None] < self._more).astype(np.int64)
        ends = self._base + more
        done = [
            first * int(base) + _hits(first, self._steps, self._stride, int(limit))
            for base, limit in zip(self._base, self._more, strict=True)
        ]
        sums = np.cumsum(ends, axis=0) - ends + np.array(done, np.int64)
        if stop > self._steps:
            ends = np.concatenate((ends, self._last[None]))
            sums = np.concatenate((sums, self._whole[None]))
        return ends, np.diff(sums, axis=1)


def _last_step(counts: Sequence[int], step: int) -> list[int]:
    """Return the rows of each component in the last step, if it has fewer places than others.

    They are rounded so that both the last step and the mean of all others have their shares,
    rounded down or up; a table of shares can always be rounded so (it is a flow in a network).
    """
    total = sum(counts)
    steps, rest = divmod(total, step)
    least, most = [], []
    for count in counts:
        low, high = step * count // total, -(-step * count // total)
        least.append(max(rest * count // total, count - steps * high))
        most.append(min(-(-rest * count // total), count - steps * low))
    missing = rest - sum(least)
    for number, (low, high) in enumerate(zip(least, most, strict=True)):
        more = min(high - low, missing)
        least[number] += more
        missing -= more
    return least


def _ends(counts: Sequence[int]) -> Numbers:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _stride(count: int) -> int:
    """Return a number without a common divisor with `count`, near its golden section."""
    stride = max(1, count * _GOLDEN >> 64)
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride


def _hits(first: int, count: int, stride: int, limit: int) -> int:
    """Return how many of the first multiples of the stride, modulo the count, are below a limit."""
    if not limit:
        return 0
    return first + _floors(first, count, stride, 0) - _floors(first, count, stride, count - limit)


def _floors(terms: int, divisor: int, factor: int, offset: int) -> int:
    """Return the sum of (factor * i + offset) // divisor for i = 0 ... terms - 1.

    Whole parts are summed at once; what remains counts the points of a lattice below a line, which
    are those beside the mirrored line, with the numbers of the next step of Euclid's algorithm.
    """
    found = 0
    while terms > 0:
        whole, factor = divmod(factor, divisor)
        found += whole * terms * (terms - 1) // 2
        whole, offset = divmod(offset, divisor)
        found += whole * terms
        last = factor * terms + offset
        if last < divisor:
            break
        terms, offset = divmod(last, divisor)
        divisor, factor = factor, divisor
    return found
