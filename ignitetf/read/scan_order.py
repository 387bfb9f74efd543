"""Which rows are read in which order: shards, epochs, shuffling and positions.

**scan_order** -> batches -> rows

An epoch of a shard is a fixed sequence of rows. It is determined by the data, the seed and the
epoch number. Partitions are assigned to the shards once, by size, and never change shard. Without a
seed, a shard reads its partitions in ascending order. With a seed, each epoch permutes the
partitions, groups consecutive ones into windows of a limited number of bytes, and permutes the rows
of each window. Rows of a partition are ordered by key hash, the same on every node. So nothing here
depends on the cluster or on the number of readers.

This module defines the order of scans, and what all orders share: shards and positions. The order
by keys is in `key_order`.

A position is a chain of (number of shards, rows that each has consumed). The rows that remain after
one link are distributed again, in equal contiguous ranges, to the shards of the next link. So an
epoch continues where it stopped even if the number of workers changed.

No sockets and no TensorFlow here.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError

__all__ = [
    "MOST_PLANNED",
    "MOST_ROWS",
    "WINDOW_BYTES",
    "Even",
    "OrderName",
    "Piece",
    "Position",
    "ScanOrder",
    "Shard",
    "Window",
    "whole",
    "whole_argument",
]

WINDOW_BYTES: Final = 256 << 20
# The first window is small, because the first batch has to wait for all of its rows.
_FIRST_WINDOW_BYTES: Final = 8 << 20
Even = Literal["pad", "drop"]
OrderName = Literal["scan", "keys", "global"]
_UNBOUNDED: Final = 1 << 62
MOST_ROWS: Final = _UNBOUNDED - 1
# Limit on the rows of a plan, because their places and keys are in memory.
MOST_PLANNED: Final = 1 << 20
# A state with more shards or links was not written by any training.
_MOST_SHARDS: Final = 4096
_MOST_LINKS: Final = 1000
_ORDER_STREAM, _ROWS_STREAM = 0, 1


@dataclass(frozen=True)
class Window:
    """Consecutive partitions of a shard whose rows are permuted together.

    Attributes:
        partitions: The partitions in reading order.
        first: Number of the window's first row within the shard's epoch.
        rows: Number of rows.
    """

    partitions: tuple[int, ...]
    first: int
    rows: int


@dataclass(frozen=True)
class Shard:
    """One of `count` equal workers, each of which reads its share of the rows.

    Raises:
        ConfigError: The index or the count is not an integer, or is out of range.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        try:
            index, count = whole(self.index), whole(self.count)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"shard=({self.index!r}, {self.count!r})", hint="write shard=(index, count)"
            ) from error
        if count < 1 or not 0 <= index < count:
            raise ConfigError(
                f"shard {index} of {count}", hint="the index counts from 0 to count - 1"
            )
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "count", count)

    @classmethod
    def of(cls, value: Any) -> Shard:
        """Return the shard for `(index, count)`; raises ConfigError for any other value."""
        if isinstance(value, cls):
            return value
        try:
            index, count = value
        except (TypeError, ValueError) as error:
            raise ConfigError(f"shard={value!r}", hint="write shard=(index, count)") from error
        return cls(index, count)


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of the epoch of a shard."""

    shard: Shard
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Position:
    """A place in an epoch.

    Attributes:
        epoch: Number of the epoch.
        chain: (number of shards, rows consumed by each), one link for each change of that number.
            In orders by key, a single link: (1, rows that all shards together have consumed).
    """

    epoch: int
    chain: tuple[tuple[int, int], ...] = ()

    def after(self, rows: int, workers: int) -> Position:
        """Return the position after each of the workers has consumed `rows` more rows."""
        chain = list(self.chain)
        if chain and chain[-1][0] == workers:
            rows += chain.pop()[1]
        return Position(self.epoch, (*chain, (workers, rows)))

    @classmethod
    def from_state(cls, state: Any) -> Position:
        """Return the position stored in a state; raises ConfigError if there is none."""
        hint = "pass what state() gave, as it is"
        try:
            epoch, links = whole(state["epoch"]), state["chain"]
            if not isinstance(state, dict) or not isinstance(links, (list, tuple)):
                raise TypeError("neither an object nor a list")
            chain = tuple((whole(n), whole(k)) for n, k in links)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("not a state of a dataset", hint=hint) from error
        sound = 0 <= epoch < _UNBOUNDED and len(chain) <= _MOST_LINKS
        if not sound or any(not 0 < n <= _MOST_SHARDS or not 0 <= k < _UNBOUNDED for n, k in chain):
            raise ConfigError("the state has impossible numbers", hint=hint)
        if any(a[0] == b[0] for a, b in itertools.pairwise(chain)):
            raise ConfigError("the state has two links with the same number of workers", hint=hint)
        return cls(epoch, chain)


@dataclass(frozen=True)
class ScanOrder:
    """The order of the rows of some partitions, as scans return them.

    Attributes:
        partitions: Partitions to read, ascending.
        counts: Rows in each partition.
        row_bytes: Bytes of a row, to compute the size of windows.
        seed: Seed of the shuffle; None does not shuffle.
        even: The way to give shards the same number of rows: repeat their own (`pad`), leave out their
            last ones (`drop`), or None: the numbers differ.
        window_bytes: Upper limit for a window of more than one partition; the first windows of an
            epoch are smaller.
        known: True if `counts` are exact. Otherwise they are estimates above zero, and the place of
            a row is known only after reading.
    """

    partitions: tuple[int, ...]
    counts: tuple[int, ...]
    row_bytes: float
    seed: int | None = None
    even: Even | None = None
    window_bytes: int = WINDOW_BYTES
    known: bool = True

    @property
    def name(self) -> OrderName:
        """`scan`."""
        return "scan"

    def rows_left(self, position: Position, shard: Shard) -> int:
        """Return the number of rows that a shard still has to read; only if `known`."""
        return _length(self.pieces(position.chain, shard))

    def after(self, position: Position, rows: int, shard: Shard) -> Position:
        """Return the position after each of the shards has consumed `rows` more rows."""
        return position.after(rows, shard.count)

    def share(self, shard: Shard) -> tuple[int, ...]:
        """Return the partitions of one shard, ascending.

        Partitions are assigned by descending size, each to the shard with the fewest rows.
        """
        return _shares(self.partitions, self.counts, shard.count)[shard.index]

    def own_rows(self, shard: Shard) -> int:
        """Return the number of rows that belong to a shard."""
        return _share_rows(self.partitions, self.counts, shard.count)[shard.index]

    def rows(self, shard: Shard) -> int:
        """Return the rows that a shard reads in an epoch, after `even`; unlimited if unknown.

        Raises:
            ConfigError: A shard does not have a row that it could repeat.
        """
        return self._rows_of_all(shard.count)[shard.index]

    def _rows_of_all(self, count: int) -> Sequence[int]:
        """Return `rows` for each of `count` shards, in one call.

        The cached result has all partitions as its key, so a look-up costs time.
        """
        if not self.known:
            return [_UNBOUNDED] * count
        every = _share_rows(self.partitions, self.counts, count)
        if self.even is None or count == 1:
            return every
        if self.even == "drop":
            return [min(every)] * count
        if max(every) and not min(every):
            raise ConfigError(
                f"{count} shards, and one of them has no rows to repeat",
                hint="load the data with more partitions, or use even='drop'",
            )
        return [max(every)] * count

    def windows(self, shard: Shard, epoch: int) -> Sequence[Window]:
        """Return the windows of a shard's epoch, in order."""
        if self.seed is None:
            return _single_windows(self.partitions, self.counts, shard)
        sizes = dict(zip(self.partitions, self.counts, strict=True))
        rng = np.random.default_rng([self.seed, epoch, _ORDER_STREAM])
        # All partitions are permuted together, so that the order does not depend on the shards.
        rank = dict(zip(self.partitions, rng.permutation(len(self.partitions)), strict=True))
        groups: list[list[int]] = []
        nbytes = 0.0
        for partition in sorted(self.share(shard), key=lambda p: rank[p]):
            size = sizes[partition] * self.row_bytes
            if not groups or nbytes + size > self._limit(len(groups) - 1):
                groups.append([])
                nbytes = 0.0
            groups[-1].append(partition)
            nbytes += size
        rows = [sum(sizes[p] for p in group) for group in groups]
        firsts = itertools.accumulate(rows, initial=0)
        return [
            Window(tuple(g), first, n) for g, first, n in zip(groups, firsts, rows, strict=False)
        ]

    def _limit(self, window: int) -> int:
        """Return the upper limit for the bytes of the window with this number."""
        # The limit doubles with each window; after 40 doublings it exceeds any memory.
        return min(self.window_bytes, _FIRST_WINDOW_BYTES << min(window, 40))

    def permutation(self, window: Window, epoch: int) -> NDArray[np.int64]:
        """Return the order of a window's rows, as their numbers within the window."""
        assert self.seed is not None
        name = min(window.partitions)
        rng = np.random.default_rng([self.seed, epoch, _ROWS_STREAM, name])
        return rng.permutation(window.rows)

    def pieces(self, chain: Sequence[tuple[int, int]], shard: Shard) -> list[Piece]:
        """Return the pieces that a shard still has to read after the links of `chain`.

        Raises:
            ConfigError: A link consumes more rows than any of its shards has.
        """
        shares = self._distributed([], 1, fresh=True)
        for number, (links, consumed) in enumerate(chain):
            shares = self._distributed(shares, links, fresh=number == 0)
            if consumed > (longest := max(map(_length, shares))):
                raise ConfigError(
                    f"a state after {consumed} rows for each of {links} workers, which had"
                    f" {longest} at most",
                    hint="pass what state() gave, as it is",
                )
            shares = [_tail(pieces, consumed) for pieces in shares]
        if not chain or chain[-1][0] != shard.count:
            shares = self._distributed(shares, shard.count, fresh=not chain)
        return shares[shard.index]

    def _distributed(
        self, shares: list[list[Piece]], count: int, *, fresh: bool
    ) -> list[list[Piece]]:
        """Return the pieces of all shards, distributed to `count` shards.

        A fresh epoch is distributed by partitions.
        """
        if fresh:
            every = enumerate(self._rows_of_all(count))
            return [[Piece(Shard(i, count), 0, rows)] for i, rows in every]
        left = [p for pieces in shares for p in pieces]
        total = _length(left)
        bounds = [i * total // count for i in range(count + 1)]
        if self.even == "drop":
            bounds = [i * (total // count) for i in range(count + 1)]
        dealt = [_head(_tail(left, a), b - a) for a, b in itertools.pairwise(bounds)]
        if self.even == "pad" and total:
            longest = max(_length(d) for d in dealt)
            dealt = [d + _head(left, longest - _length(d)) for d in dealt]
        return dealt


@functools.lru_cache(maxsize=64)
def _shares(
    partitions: tuple[int, ...], counts: tuple[int, ...], count: int
) -> tuple[tuple[int, ...], ...]:
    """Return the partitions of each of `count` shards."""
    if count == 1:
        return (partitions,)
    loads = [(0, 0, i) for i in range(count)]  # rows, partitions, shard
    shares: list[list[int]] = [[] for _ in range(count)]
    for size, partition in sorted(zip((-n for n in counts), partitions, strict=True)):
        rows, owned, least = loads[0]
        heapq.heapreplace(loads, (rows - size, owned + 1, least))
        shares[least].append(partition)
    return tuple(tuple(sorted(share)) for share in shares)


@functools.lru_cache(maxsize=64)
def _share_rows(
    partitions: tuple[int, ...], counts: tuple[int, ...], count: int
) -> tuple[int, ...]:
    """Return the number of rows of each of `count` shards."""
    sizes = dict(zip(partitions, counts, strict=True))
    return tuple(sum(sizes[p] for p in share) for share in _shares(partitions, counts, count))


@functools.lru_cache(maxsize=64)
def _single_windows(
    partitions: tuple[int, ...], counts: tuple[int, ...], shard: Shard
) -> tuple[Window, ...]:
    """Return the windows of a shard that does not shuffle: each of its partitions alone."""
    sizes = dict(zip(partitions, counts, strict=True))
    share = _shares(partitions, counts, shard.count)[shard.index]
    firsts = itertools.accumulate((sizes[p] for p in share), initial=0)
    return tuple(Window((p,), first, sizes[p]) for p, first in zip(share, firsts, strict=False))


def _length(pieces: Sequence[Piece]) -> int:
    return sum(map(len, pieces))


def _tail(pieces: Sequence[Piece], rows: int) -> list[Piece]:
    """Return the pieces without their first `rows` rows."""
    out = []
    for piece in pieces:
        if rows >= len(piece):
            rows -= len(piece)
            continue
        out.append(Piece(piece.shard, piece.start + rows, piece.stop))
        rows = 0
    return out


def _head(pieces: Sequence[Piece], rows: int) -> list[Piece]:
    """Return the first `rows` rows of the pieces."""
    out = []
    for piece in pieces:
        if rows <= 0:
            break
        size = min(rows, len(piece))
        out.append(Piece(piece.shard, piece.start, piece.start + size))
        rows -= size
    return out


def whole(value: Any) -> int:
    """Return a value of any integer type as int; raises TypeError for other types, and for bool."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{value!r} is not a whole number")
    return operator.index(value)


def whole_argument(name: str, value: Any, least: int, most: int = MOST_ROWS) -> int:
    """Return an integer argument between two limits; raises ConfigError for any other value."""
    try:
        number = whole(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}={value!r}", hint="a whole number") from error
    if not least <= number <= most:
        bounds = f"{least} or above" if number < least else f"{most} or below"
        raise ConfigError(f"{name}={number}", hint=f"a whole number, {bounds}")
    return number
