"""The order of a mixture: which row of which component stands at each place of an epoch.

key order, interleaving -> **mix order** -> mixture

A component gives an epoch `rows` of its `count` rows: all of them as often as that goes, and a part
of them once more. The part moves on with each epoch along one fixed order of the component, so
after any number of epochs all of its rows have been used equally often, to within one.

Everything is computed for the places asked for; nothing is stored for each row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignitetf.read.interleave import Interleaving
from ignitetf.read.key_order import StepOrder
from ignitetf.read.permutation import Permutation

__all__ = ["MixOrder", "Share"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """What an epoch has of one component.

    Attributes:
        count: Rows that the component has.
        rows: Rows of it in an epoch; above zero only if it has rows.
        seed: Seed of its own order; None for the order of its keys.
    """

    count: int
    rows: int
    seed: int | None

    def numbers(self, epoch: int, places: Numbers, shuffled: bool) -> Numbers:
        """Return which rows of the component its places of an epoch are.

        Args:
            epoch: Number of the epoch.
            places: Places from 0 to `rows` - 1.
            shuffled: Whether the places are in random order already.
        """
        passes, rest = divmod(self.rows, self.count)
        number, found = places // self.count, places % self.count
        in_part = number == passes
        if self.seed is not None and not shuffled:
            # Each pass is an epoch of the component's own.
            for nth in np.unique(number[~in_part]).tolist():
                own = number == nth
                found[own] = _permutation(self.count, self.seed, epoch * passes + nth)(found[own])
            if in_part.any():
                found[in_part] = _permutation(rest, self.seed, epoch)(found[in_part])
        if in_part.any():
            part = (found[in_part] + epoch * rest % self.count) % self.count
            if self.seed is not None:
                part = _permutation(self.count, self.seed, 0)(part)
            found[in_part] = part
        return found


@dataclass(frozen=True)
class MixOrder(StepOrder):
    """The order of the rows of several components.

    Attributes:
        shares: What an epoch has of each component.
        seed: Seed of the permutation of all rows of an epoch; None interleaves them, which needs
            the `global_batch`.
    """

    shares: tuple[Share, ...]
    seed: int | None = None

    @functools.cached_property
    def total(self) -> int:
        """The number of rows of an epoch."""
        return sum(share.rows for share in self.shares)

    @functools.cached_property
    def _ends(self) -> Numbers:
        return np.cumsum([share.rows for share in self.shares], dtype=np.int64)

    @functools.cached_property
    def _interleaving(self) -> Interleaving:
        assert self.global_batch is not None
        return Interleaving([share.rows for share in self.shares], self.global_batch)

    def rows_at(self, epoch: int, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the component, and the number of the row in it, at places of adjacent steps."""
        if self.seed is None:
            source, found = self._interleaving.at(places)
        else:
            slots = _permutation(self.total, self.seed, epoch)(places)
            source = np.searchsorted(self._ends, slots, side="right")
            found = slots - self._ends[source] + np.array([s.rows for s in self.shares])[source]
        for component in np.unique(source).tolist():
            own = source == component
            share = self.shares[component]
            found[own] = share.numbers(epoch, found[own], self.seed is not None)
        return source, found


# At most 512 KB each.
@functools.lru_cache(maxsize=64)
def _permutation(count: int, seed: int, epoch: int) -> Permutation:
    return Permutation(count, seed, epoch)
