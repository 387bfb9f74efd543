"""The order of an epoch by key: the key at each place, and the places of each worker.

keys -> **key order** -> lookup -> rows
                         |
                     blocks

Place i of an epoch is one key: the i-th, or the i-th of a permutation that depends on seed and
epoch. A global step is a range of places, and each worker reads a slice of it. So the rows of a
step are the same for any number of workers. A position is one number (the places that are done),
and a training can resume from it with another number of workers. `StepOrder` is the common base of
the orders of keys and of blocks (`blocks`).

No sockets and no TensorFlow here.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.keys import Keys
from ignitetf.read.scan_order import Even, OrderName, Position, Shard

if TYPE_CHECKING:
    from typing import Self

__all__ = ["KeyOrder", "Permutation", "Places", "Slices", "StepOrder", "Turns"]

# Up to this many numbers are sorted, which takes 5 ms and 512 KB.
_SORTED: Final = 1 << 16
# Each half is changed four times; after three times, statistical tests find no pattern any more.
_ROUNDS: Final = 8
# Odd constants of the finalizers of SplitMix64 and MurmurHash3, which spread a change of any input
# bit over all bits.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


class Permutation:
    """The order of N numbers for a seed and an epoch, or for a part of an epoch.

    It is computed when it is needed, and never stored. A Feistel network permutes the smallest
    range of 2^k numbers that contains all N. A result outside the N numbers is permuted again until
    it is one of them ("cycle walking"), on average less than once. The result is a permutation of
    the N numbers. Every position costs the same, independent of the positions before it. So a
    training can resume from a position alone.

    A network with halves of a few bits cannot mix well: with one-bit halves it reaches only half of
    the 24 orders of 4 numbers. So up to 2^16 numbers are sorted by hashes instead.

    The results are the same on every machine and with every version of NumPy, because it uses only
    sums, products and shifts of 64-bit integers, and a stable sort.

    Args:
        count: N, at most 2^63.
        seed: Seed, any non-negative integer.
        epoch: Number of the epoch.
        part: Number of a part of the epoch that is permuted alone; None for the epoch as a whole.
    """

    def __init__(self, count: int, seed: int, epoch: int, part: int | None = None) -> None:
        self.count = count
        name = f"{seed}:{epoch}" if part is None else f"{seed}:{epoch}:{part}"
        digest = hashlib.blake2b(name.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)
        bits = max(2, (count - 1).bit_length())
        self._low = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._table = self._sorted() if count <= _SORTED else None

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number at each position.

        Args:
            positions: Positions from 0 to N - 1, of any shape and in any order.

        Returns:
            int64 of the same shape.
        """
        if self._table is not None:
            return self._table[positions]
        found = self._network(positions.reshape(-1).astype(np.uint64))
        limit = np.uint64(self.count)
        beyond = np.flatnonzero(found >= limit)
        while len(beyond):
            again = self._network(found[beyond])
            found[beyond] = again
            beyond = beyond[again >= limit]
        return found.view(np.int64).reshape(positions.shape)

    def _sorted(self) -> NDArray[np.int64]:
        """Return all numbers in the order of their hashes."""
        numbers = np.arange(self.count, dtype=np.uint64)
        hashes = _hash_values(_hash_values(numbers * _STEP, self._keys[0]), self._keys[1])
        return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)

    def _network(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = numbers & self._low_mask, numbers >> self._low
        for number, key in enumerate(self._keys):
            # The upper bits of a product depend on all bits of its factors.
            if number % 2:
                low ^= (_hash_values(high, key) >> np.uint64(32)) & self._low_mask
            else:
                high ^= (_hash_values(low, key) >> np.uint64(32)) & self._high_mask
        high <<= self._low
        high |= low
        return high


def _hash_values(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each value; each bit depends on every bit of value and key."""
    mixed = values + key
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


_HINT: Final = "pass what state() gave, as it is"


class Places(Protocol):
    """Places of an epoch, in the order in which one process reads them."""

    def __len__(self) -> int: ...

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the places of rows `start` to `stop`, int64 [stop - start]."""


@dataclass(frozen=True)
class Slices:
    """The places of an epoch that one worker reads: its slice of each global step.

    A step of b places is cut into one slice for each of n workers, in their order. Without `even`
    the first b mod n slices are one place longer than the others. `drop` leaves out the places that
    would make slices unequal. `pad` extends the last slices with the first places of the step.

    Attributes:
        first: The first place; the places before it are done.
        end: Number of places of the epoch.
        step: Places of a global step; the last one may have fewer.
        shard: The worker.
        even: The way to give all slices of a step the same length.
    """

    first: int
    end: int
    step: int
    shard: Shard
    even: Even | None = None

    def __len__(self) -> int:
        return self.whole_steps * self._slice(self.step)[1] + self._slice(self._rest)[1]

    @property
    def step_rows(self) -> int:
        """Rows of this worker in a whole step."""
        return self._slice(self.step)[1]

    @property
    def whole_steps(self) -> int:
        """Number of steps that have `step` places."""
        return (self.end - self.first) // self.step

    @property
    def _rest(self) -> int:
        """Places of the last step, if it is shorter than the others."""
        return (self.end - self.first) % self.step

    def _slice(self, places: int) -> tuple[int, int]:
        """Return begin and length of this worker's slice of a step with `places` places."""
        index, count = self.shard.index, self.shard.count
        short, more = divmod(places, count)
        if self.even is None:
            return index * short + min(index, more), short + (index < more)
        size = short + (self.even == "pad" and more > 0)
        return index * size, size

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the places of this worker's rows `start` to `stop`, int64 [stop - start]."""
        return self.places_of(np.arange(start, stop, dtype=np.int64))

    def places_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of some of this worker's rows, which must ascend, int64 [rows]."""
        begin, size = self._slice(self.step)
        whole = self.whole_steps * size
        cut = int(np.searchsorted(rows, whole))
        rows, last = rows[:cut], rows[cut:] - whole
        found = self.first + rows // max(1, size) * self.step
        found += (begin + rows % max(1, size)) % self.step
        if not len(last):
            return found
        begin, _ = self._slice(self._rest)
        base = self.first + self.whole_steps * self.step
        return np.concatenate((found, base + (begin + last) % max(1, self._rest)))

    def rows_before(self, place: int) -> int:
        """Return how many of its rows this worker reads before it reaches a place.

        A row that `pad` repeats counts at the end of its step, not at the place that it repeats.
        """
        if place >= self.end:
            return len(self)
        steps, more = divmod(place - self.first, self.step)
        begin, size = self._slice(self.step if steps < self.whole_steps else self._rest)
        return steps * self._slice(self.step)[1] + min(max(0, more - begin), size)

    def sizes(self, drop_remainder: bool = False) -> list[int]:
        """Return the length of this worker's slice of each step; the last may be left out."""
        sizes = [self._slice(self.step)[1]] * self.whole_steps
        last = self._slice(self._rest)[1]
        return sizes if drop_remainder or not last else [*sizes, last]

    def full_batches(self, batch: int) -> int:
        """Return how many full batches every worker has; the number is the same for all workers.

        Args:
            batch: Rows of a batch; a slice has one or several batches.
        """
        found = self.whole_steps * max(1, self.step_rows // batch)
        if self.even is None and self.step % self.shard.count:
            return found  # Workers with shorter slices would have one more.
        last = replace(self, shard=Shard(self.shard.count - 1, self.shard.count))
        return found + last._slice(self._rest)[1] // batch

    def after(self, rows: int) -> int:
        """Return how many places are done after each worker has read `rows` rows.

        Raises:
            ConfigError: `rows` ends in the middle of a step, in which other workers have read
                other places.
        """
        if self.shard.count == 1:
            return self.first + rows
        size = self._slice(self.step)[1]
        steps, more = divmod(rows, size) if size else (0, rows)
        if not more and steps <= self.whole_steps:
            return self.first + steps * self.step
        if rows == len(self):
            return self.end
        raise ConfigError(
            f"a state after {rows} rows, in the middle of a global step of which each of"
            f" {self.shard.count} workers reads {size}",
            hint="take the state between global steps",
        )


@dataclass(frozen=True)
class Turns:
    """The places of every n-th batch of a worker, for one of n processes that read for it in turn.

    If the processes return one batch each, in their order, the worker receives the same batches as
    if it read alone.

    Attributes:
        slices: The worker's places.
        batch: Rows of a batch; the worker's last batch may have fewer.
        process: Number of this process, from 0.
        drop_last: Leave out a last batch that has fewer rows, here or for another worker.
        done: Batches that this process has already returned.
    """

    slices: Slices
    batch: int
    process: Shard
    drop_last: bool = False
    done: int = 0

    def __len__(self) -> int:
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        """Return the number of rows of each remaining batch."""
        rows = len(self.slices)
        full = self.slices.full_batches(self.batch) if self.drop_last else None
        batches = -(-rows // self.batch) if full is None else full
        left = range(self.process.index, batches, self.process.count)[self.done :]
        return [min(self.batch, rows - number * self.batch) for number in left]

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the places of rows `start` to `stop`, int64 [stop - start]."""
        rows = np.arange(start, stop, dtype=np.int64)
        numbers = self.process.index + (self.done + rows // self.batch) * self.process.count
        return self.slices.places_of(numbers * self.batch + rows % self.batch)


@dataclass(frozen=True, kw_only=True)
class StepOrder(ABC):
    """An order whose epoch has places from 0 on, read in global steps.

    Attributes:
        even: The way to give all workers the same number of rows, see `Slices`.
        global_batch: Rows of a global step, over all workers; None for the workers' batch size
            times their number.
    """

    even: Even | None = None
    global_batch: int | None = None

    # Every place is one row, so the number of rows is always known.
    known: Final = True

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of places of an epoch."""

    def slices(self, position: Position, shard: Shard) -> Slices:
        """Return the places that a worker still has to read from a position on.

        Raises:
            ConfigError: The position does not belong to this epoch.
        """
        done = sum(rows for _, rows in position.chain)
        if any(workers != 1 for workers, _ in position.chain) or done > self.total:
            raise ConfigError(
                f"a state after {list(position.chain)}, of {self.total} rows", hint=_HINT
            )
        # Without a batch size a step has one row for each worker. The end of a step of any batch
        # size is also the end of such a small step.
        step = self.global_batch or shard.count
        return Slices(done, self.total, step, shard, self.even)

    def turns(
        self,
        position: Position,
        shard: Shard,
        batch_size: int | None,
        drop_last: bool,
        process: Shard,
        done: int = 0,
    ) -> Turns:
        """Return the places that one of a worker's processes still has to read.

        Args:
            position: Number of the worker's first row.
            shard: The worker.
            batch_size: Rows of a batch; None for the worker's slice of each step.
            drop_last: Leave out a last batch that has fewer rows.
            process: Number of the process among the worker's processes, from 0.
            done: Batches that it has returned since `position`.
        """
        slices = self.slices(position, shard)
        if batch_size is None or self.is_uneven(shard):
            batch_size = slices.step_rows
        return Turns(slices, batch_size, process, drop_last, done)

    def is_uneven(self, shard: Shard) -> bool:
        """Return True if the slices of a whole step differ in length."""
        step = self.global_batch
        return step is not None and self.even is None and step % shard.count > 0

    def rows_left(self, position: Position, shard: Shard) -> int:
        """Return the number of rows that a worker still has to read."""
        return len(self.slices(position, shard))

    def after(self, position: Position, rows: int, shard: Shard) -> Position:
        """Return the position after each worker has read `rows` more rows."""
        done = self.slices(position, shard).after(rows)
        return Position(position.epoch, ((1, done),))

    def with_batch(self, batch_size: int, shard: Shard) -> Self:
        """Return the order for workers that read batches of this size.

        Raises:
            ConfigError: `batch_size` does not divide this worker's slice of `global_batch` rows.
        """
        if self.global_batch is None:
            return replace(self, global_batch=batch_size * shard.count)
        size, more = divmod(self.global_batch, shard.count)
        if batch_size != size + (more > 0) and (more or size % batch_size):
            raise ConfigError(
                f"batches of {batch_size} rows do not divide the"
                f" {size}{f' or {size + 1}' if more else ''} rows that each of {shard.count}"
                f" workers has of global_batch={self.global_batch}",
                hint="leave the batch size out: a batch is then this worker's part of a step",
            )
        return self


@dataclass(frozen=True)
class KeyOrder(StepOrder):
    """The order of rows by their keys.

    Attributes:
        keys: The keys.
        seed: Seed of the permutation; None reads the keys in their own order.
    """

    keys: Keys
    seed: int | None = None

    @property
    def name(self) -> OrderName:
        """`keys` or `global`."""
        return "keys" if self.seed is None else "global"

    @property
    def total(self) -> int:
        """The number of keys."""
        return len(self.keys)

    def numbers(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the key at each place of an epoch."""
        if self.seed is None:
            return places
        return _permutation(len(self.keys), self.seed, epoch)(places)


@functools.lru_cache(maxsize=8)
def _permutation(count: int, seed: int, epoch: int) -> Permutation:
    return Permutation(count, seed, epoch)
