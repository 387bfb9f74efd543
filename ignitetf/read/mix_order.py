"""The order of a mixture: the component and the row at each place of an epoch.

key order, interleaving -> **mix order** -> mixture

An epoch has `rows` rows of a component with `count` rows: all of them `rows // count` times, and a
part of them once more. In each epoch the part continues along one fixed order of the component. So
after any number of epochs all of its rows have been used equally often, to within one.

Everything is computed for the requested places; nothing is stored for each row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.key_order import Permutation, StepOrder
from ignitetf.read.scan_order import whole_argument

__all__ = ["MOST_PLACES", "MOST_STEP", "Interleaving", "MixOrder", "Share", "rows_of"]

Numbers = NDArray[np.int64]
# Below these limits, no product in this module exceeds 63 bits.
MOST_PLACES: Final = 1 << 40
MOST_STEP: Final = 1 << 31
# (Golden ratio - 1) * 2^64.
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Interleaving:
    """Assigns a row of a component to each place of an epoch.

    In every step, including the last one, the number of rows of a component is its share of the
    epoch times the size of the step, rounded down or up.

    Args:
        counts: Rows of each component in an epoch; their sum is at most `MOST_PLACES`.
        step: Places of a step, at most `MOST_STEP`.
    """

    def __init__(self, counts: Sequence[int], step: int) -> None:
        self.step = step
        self._steps, self._rest = divmod(sum(counts), step)
        last = _last_step(counts, step)
        whole = [count - rows for count, rows in zip(counts, last, strict=True)]
        self._last = _end_offsets(last)
        self._whole = _end_offsets(whole)
        # A step has `_base[k]` rows of the components up to k, and one more in `_more[k]` steps.
        self._base, self._more = np.divmod(self._whole, max(1, self._steps))
        self._stride = _stride(self._steps)
        self._point_stride, self._last_stride = _stride(step), _stride(self._rest)

    def at(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return component and row at these places, which belong to adjacent steps.

        Returns:
            The component of each place, and the number of the row among the component's rows of
            the epoch, both int64. Rows of a step have higher numbers than rows of earlier steps.
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
        """Return the ends of the components in each step, and their rows in the steps before.

        Both arrays have one row per step. Each row of the ends begins with 0.
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
    """Return the rows of each component in the last step, if that is shorter than the others.

    In the last step and in the mean of all other steps, each component has its share, rounded down
    or up. Such a rounding always exists, because a table of shares is a flow in a network.
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


def _end_offsets(counts: Sequence[int]) -> Numbers:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _stride(count: int) -> int:
    """Return a number that is coprime to `count` and near its golden section."""
    stride = max(1, count * _GOLDEN >> 64)
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride


def _hits(first: int, count: int, stride: int, limit: int) -> int:
    """Return how many of the first multiples of `stride`, modulo `count`, are below `limit`."""
    if not limit:
        return 0
    return first + _floors(first, count, stride, 0) - _floors(first, count, stride, count - limit)


def _floors(terms: int, divisor: int, factor: int, offset: int) -> int:
    """Return the sum of (factor * i + offset) // divisor for i = 0 ... terms - 1.

    The whole parts of factor and offset are summed directly. The rest counts the lattice points
    below a line. Mirroring the line turns that into the same problem with smaller numbers, those of
    the next step of Euclid's algorithm.
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


_HALF: Final = Fraction(1, 2)


def rows_of(
    has: Mapping[str, int],
    weights: Any,
    epoch_size: Any,
    repeat: Any,
    choose: Any,
) -> dict[str, int]:
    """Return the number of rows of each component in an epoch; see `mix_rows`.

    Args:
        has: Number of rows of each component.
        weights: Share of each component, or None.
        epoch_size: Rows of an epoch by weights, or None.
        repeat: Number of times that an epoch repeats the rows of a component, or None.
        choose: Number of rows of a component in an epoch, or None.

    Raises:
        ConfigError: An argument is unusable, or an epoch has no rows or too many.
    """
    if weights is not None:
        if repeat is not None or choose is not None:
            raise ConfigError(
                "weights= cannot be combined with repeat= or choose=",
                hint="pass the one or the other",
            )
        rows = _by_weight(has, weights, epoch_size)
    elif epoch_size is not None:
        raise ConfigError("epoch_size= needs weights=", hint="repeat= and choose= set the size")
    else:
        rows = _by_rows(has, _named("repeat", repeat, has), _named("choose", choose, has))
    if not 0 < (total := sum(rows.values())) <= MOST_PLACES:
        limit = f"{MOST_PLACES} at most" if total else "at least one"
        raise ConfigError(f"the mixture has an epoch of {total} rows", hint=limit)
    return rows


def _by_weight(has: Mapping[str, int], weights: Any, epoch_size: Any) -> dict[str, int]:
    """Return the rows of an epoch divided by weight; the largest remainders are rounded up."""
    given = _named("weights", weights, has)
    if missing := [name for name in has if name not in given]:
        raise ConfigError(f"no weight for {', '.join(missing)}", hint="0 leaves a component out")
    exact = {name: _fraction("weights", name, given[name]) for name in has}
    for name, weight in exact.items():
        if weight and not has[name]:
            raise ConfigError(
                f"weights[{name!r}]={given[name]!r}, but the component has no rows",
                hint="its weight can only be 0",
            )
    if not (whole := sum(exact.values())):
        raise ConfigError("all weights are zero", hint="at least one is above zero")
    size = sum(has[name] for name, weight in exact.items() if weight)
    if epoch_size is not None:
        size = whole_argument("epoch_size", epoch_size, 1, MOST_PLACES)
    quotas = {name: weight * size / whole for name, weight in exact.items()}
    rows = {name: math.floor(quota) for name, quota in quotas.items()}
    left = size - sum(rows.values())
    for name in sorted(has, key=lambda name: rows[name] - quotas[name])[:left]:
        rows[name] += 1
    return rows


def _by_rows(
    has: Mapping[str, int], repeat: Mapping[str, Any], choose: Mapping[str, Any]
) -> dict[str, int]:
    """Return the rows of each component by `repeat` and `choose`; all rows once without these."""
    if both := sorted(set(repeat) & set(choose)):
        raise ConfigError(
            f"repeat= and choose= both name {', '.join(both)}", hint="pass one of them for each"
        )
    rows = dict(has)
    for name, times in repeat.items():
        rows[name] = math.floor(_fraction("repeat", name, times) * has[name] + _HALF)
    for name, number in choose.items():
        rows[name] = whole_argument(f"choose[{name!r}]", number, 0, MOST_PLACES)
        if rows[name] and not has[name]:
            raise ConfigError(
                f"choose[{name!r}]={number}, but the component has no rows", hint="only 0 fits"
            )
    return rows


def _named(argument: str, given: Any, has: Mapping[str, int]) -> dict[str, Any]:
    """Return a checked argument that maps component names to values; empty for None."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{argument}={given!r}", hint="a dict with the names of components")
    if unknown := [name for name in given if name not in has]:
        raise ConfigError(
            f"{argument} for {', '.join(map(repr, unknown))}",
            hint=f"the components are {', '.join(has)}",
        )
    return dict(given)


def _fraction(argument: str, name: str, value: Any) -> Fraction:
    """Return a checked number, at least 0, as an exact fraction."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError("no number")
        found = Fraction(value) if isinstance(value, Fraction) else Fraction(float(value))
        if found < 0:
            raise ValueError("below zero")
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{argument}[{name!r}]={value!r}", hint="a finite number, 0 or above"
        ) from error
    return found


@dataclass(frozen=True)
class Share:
    """The share of one component in an epoch.

    Attributes:
        count: Number of rows of the component.
        rows: Number of its rows in an epoch; above zero only if `count` is.
        seed: Seed of its own order; None for the order of its keys.
    """

    count: int
    rows: int
    seed: int | None

    def numbers(self, epoch: int, places: Numbers, shuffled: bool) -> Numbers:
        """Return the number of the component's row at each of its places in an epoch.

        Args:
            epoch: Number of the epoch.
            places: Places from 0 to `rows` - 1.
            shuffled: True if the places are already in random order.
        """
        passes, rest = divmod(self.rows, self.count)
        number, found = places // self.count, places % self.count
        in_part = number == passes
        if self.seed is not None and not shuffled:
            # Each pass over the component is an epoch of its own order.
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
        shares: The share of each component in an epoch.
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
    def _end_offsets(self) -> Numbers:
        return np.cumsum([share.rows for share in self.shares], dtype=np.int64)

    @functools.cached_property
    def _interleaving(self) -> Interleaving:
        assert self.global_batch is not None
        return Interleaving([share.rows for share in self.shares], self.global_batch)

    def rows_at(self, epoch: int, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the component and the number of its row at places of adjacent steps."""
        if self.seed is None:
            source, found = self._interleaving.at(places)
        else:
            slots = _permutation(self.total, self.seed, epoch)(places)
            source = np.searchsorted(self._end_offsets, slots, side="right")
            found = (
                slots - self._end_offsets[source] + np.array([s.rows for s in self.shares])[source]
            )
        for component in np.unique(source).tolist():
            own = source == component
            share = self.shares[component]
            found[own] = share.numbers(epoch, found[own], self.seed is not None)
        return source, found


# At most 512 KB each.
@functools.lru_cache(maxsize=64)
def _permutation(count: int, seed: int, epoch: int) -> Permutation:
    return Permutation(count, seed, epoch)
