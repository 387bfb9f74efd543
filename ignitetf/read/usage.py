"""Usage figures of the readers of this process: sources, waiting times and checksums of keys.

reading, rows -> **usage** -> heartbeats of a job, its audit, `ignitetf.metrics`

The counters are updated per request and per batch, never per row (except for rows that are left
out), for all data sets that this process reads. Two snapshots give the rates between them. A worker
process of a loader has its own counters.

Sums prove that each row was read exactly once in an epoch. Each iteration over a shard has the
number of its rows, and the sum modulo 2^64 of a hash of each key. Added up over the shards of an
epoch, in any order, both are equal to those of the whole data set (`keys_sum`). A checksum costs a
pass over the keys, so it is only computed in a job, which sets IGNITETF_JOB.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.net.topology import Origin, Place
from ignitetf.wire.checksum import marks_of, mix
from ignitetf.wire.columns import Batch
from ignitetf.wire.schema import Schema

__all__ = [
    "Amount",
    "DataSetUsage",
    "Epoch",
    "Iteration",
    "Skipped",
    "Snapshot",
    "add_read",
    "add_retries",
    "add_skipped",
    "add_wait",
    "counted",
    "keys_sum",
    "snapshot",
]

# A snapshot has this many of the latest iterations.
_KEPT: Final = 64
_SALT: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Amount:
    """Rows and bytes received from one node.

    Attributes:
        node: Its address; None for all nodes of a place.
        place: The distance of the node: `host`, `data_center` or `elsewhere`.
        rows: Number of received rows, including rows that do not belong to the shard. In the block
            layout, the number of blocks times their average rows.
        nbytes: Bytes of the answers.
    """

    node: str | None
    place: Place
    rows: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Epoch:
    """Which rows an iteration reads.

    Attributes:
        cache: Name of the data set; those of a mixture are joined by `+`.
        order: `scan`, `keys`, `global` or `mix`.
        epoch: Number of the epoch.
        shard: (index, count) of the worker.
        start: The position in the epoch at which it began, as the chain of a state; empty for the
            beginning.
        selection: The selection of rows, such as `split=train`; empty for all rows.
    """

    cache: str
    order: str
    epoch: int
    shard: tuple[int, int]
    start: tuple[tuple[int, int], ...] = ()
    selection: str = ""


@dataclass(frozen=True)
class Iteration:
    """One pass over a shard of an epoch, and its progress.

    Attributes:
        number: Number of this iteration among those of this process, from 1.
        of: The rows that are read.
        rows: Number of rows returned to the consumer so far.
        checksum: `keys_sum` of their keys; None outside a job, and for rows without keys.
        ended: True if all rows of the shard were returned.
        wait_s: Seconds in which the consumer waited for these rows.
        seconds: Seconds from the first request to the latest batch.
    """

    number: int
    of: Epoch
    rows: int = 0
    checksum: int | None = None
    ended: bool = False
    wait_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Skipped:
    """Rows that `map_rows` left out because its function failed.

    Attributes:
        error: Name of the class of the error.
        rows: Number of rows.
    """

    error: str
    rows: int


@dataclass(frozen=True)
class DataSetUsage:
    """The amount read of one data set.

    Attributes:
        name: Name of the data set or cache.
        wait_s: Seconds in which consumers waited for its rows.
        retries: Number of times that a read continued after a failure.
        nodes: Rows and bytes received from each node.
        skipped: Rows that were left out, for each class of errors.
    """

    name: str
    wait_s: float = 0.0
    retries: int = 0
    nodes: tuple[Amount, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """All that was counted in this process so far.

    Attributes:
        rows: Rows received from all nodes; see `Amount`.
        nbytes: Bytes of the answers.
        wait_s: Seconds in which consumers waited for rows. A thread that reads ahead, for `tf.data`
            or `to_device`, counts as a consumer.
        retries: Number of times that reads continued after a failure.
        data_sets: The same figures for each data set, in the order in which they were first read.
        iterations: The latest iterations, in the order in which they began.
    """

    rows: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    retries: int = 0
    data_sets: tuple[DataSetUsage, ...] = ()
    iterations: tuple[Iteration, ...] = ()

    @property
    def nodes(self) -> tuple[Amount, ...]:
        """Rows and bytes received from each node, for all data sets."""
        found: dict[tuple[str | None, Place], Amount] = {}
        for one in itertools.chain.from_iterable(each.nodes for each in self.data_sets):
            so_far = found.get((one.node, one.place), Amount(one.node, one.place))
            found[one.node, one.place] = _sum(so_far, one)
        return tuple(found.values())

    @property
    def places(self) -> dict[Place, Amount]:
        """Rows and bytes received from all nodes of each place."""
        found: dict[Place, Amount] = {}
        for one in self.nodes:
            found[one.place] = _sum(found.get(one.place, Amount(None, one.place)), one)
        return found


def _sum(first: Amount, second: Amount) -> Amount:
    """Return the first amount with the rows and bytes of both."""
    rows, nbytes = first.rows + second.rows, first.nbytes + second.nbytes
    return replace(first, rows=rows, nbytes=nbytes)


@dataclass
class _DataSetCounter:
    """The counters of one data set."""

    wait_s: float = 0.0
    retries: int = 0
    origins: dict[Origin, Amount] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def usage(self, name: str) -> DataSetUsage:
        """Return the figures as they are now; called with the lock of all counters."""
        skipped = tuple(Skipped(error, rows) for error, rows in sorted(self.skipped.items()))
        nodes = tuple(self.origins.values())
        return DataSetUsage(name, self.wait_s, self.retries, nodes, skipped)


class _Counter:
    """The counters of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.data_sets: dict[str, _DataSetCounter] = {}
        self.iterations: deque[Iteration] = deque(maxlen=_KEPT)
        self.numbers = itertools.count(1)


_counter = _Counter()


def _reset_counter() -> None:
    global _counter
    _counter = _Counter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_counter)


@contextlib.contextmanager
def _counter_of(name: str) -> Iterator[_DataSetCounter]:
    """Hold the lock, and yield the counter of a data set."""
    counter = _counter
    with counter.lock:
        yield counter.data_sets.setdefault(name, _DataSetCounter())


def add_read(name: str, origin: Origin | None, rows: int, nbytes: int) -> None:
    """Count rows that were received from a node; `origin` is None if nothing was received."""
    if origin is None:
        return
    with _counter_of(name) as counter:
        so_far = counter.origins.get(origin, Amount(*origin))
        counter.origins[origin] = _sum(so_far, Amount(*origin, rows, nbytes))


def add_wait(name: str, seconds: float) -> None:
    """Count seconds in which a consumer waited for rows."""
    with _counter_of(name) as counter:
        counter.wait_s += seconds


def add_retries(name: str, retries: int) -> None:
    """Count reads that continued after a failure."""
    with _counter_of(name) as counter:
        counter.retries += retries


def add_skipped(name: str, error: str, rows: int) -> None:
    """Count rows that were left out because of an error of this class."""
    with _counter_of(name) as counter:
        counter.skipped[error] += rows


def counted(
    batches: Generator[Batch, None, None],
    epoch: Epoch,
    schema: Schema | None,
    rows: int | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches, and count them as an iteration of this epoch.

    Args:
        batches: The rows of a shard; closed with this generator.
        epoch: Describes the rows.
        schema: The schema with the type of their keys; None computes no checksum.
        rows: Number of rows, if it is known. The iteration then counts as ended after the last row,
            even if the consumer does not request another batch.
    """
    with contextlib.closing(batches):
        if not os.environ.get("IGNITETF_JOB"):
            schema = None
        counter = _counter
        with counter.lock:
            iteration = Iteration(next(counter.numbers), epoch, 0, None if schema is None else 0)
            counter.iterations.append(iteration)
        begin = asked = time.monotonic()
        for batch in batches:
            now = time.monotonic()
            checksum = None
            if schema is not None and batch.key is not None:
                assert iteration.checksum is not None
                checksum = (iteration.checksum + keys_sum(marks_of(schema, batch.key))) & _MASK
            so_far = iteration.rows + len(batch)
            iteration = replace(
                iteration, rows=so_far, checksum=checksum, ended=so_far == rows,
                wait_s=iteration.wait_s + now - asked, seconds=now - begin,
            )  # fmt: skip
            _put(counter, iteration)
            if iteration.ended:
                _log_end(iteration)
            yield batch
            asked = time.monotonic()
        if not iteration.ended:
            iteration = replace(iteration, ended=True)
            _put(counter, iteration)
            _log_end(iteration)


def _log_end(iteration: Iteration) -> None:
    """Log the rows of a whole iteration, and the share of its time that its consumer waited."""
    of, seconds = iteration.of, iteration.seconds
    share = iteration.wait_s / seconds if seconds else 0.0
    log.info(
        "%s: epoch %d, shard %d of %d: %d rows in %.1f s, wait %.0f %%",
        of.cache, of.epoch, of.shard[0], of.shard[1], iteration.rows, seconds, 100 * share,
    )  # fmt: skip


def _put(counter: _Counter, iteration: Iteration) -> None:
    """Replace the earlier version of this iteration, unless it has been dropped."""
    with counter.lock:
        kept = counter.iterations
        at = iteration.number - kept[0].number
        if at >= 0:
            kept[at] = iteration


def keys_sum(marks: NDArray[np.uint64]) -> int:
    """Return the sum modulo 2^64 of a hash of each key; sums of parts can be added up.

    Args:
        marks: The result of `marks_of` for the keys.
    """
    return int(mix(marks, _SALT).sum(dtype=np.uint64))


def snapshot() -> Snapshot:
    """Return all counters of this process; `dataclasses.asdict` converts them for JSON."""
    counter = _counter
    with counter.lock:
        data_sets = tuple(own.usage(name) for name, own in counter.data_sets.items())
        iterations = tuple(counter.iterations)
    nodes = [amount for each in data_sets for amount in each.nodes]
    return Snapshot(
        rows=sum(one.rows for one in nodes),
        nbytes=sum(one.nbytes for one in nodes),
        wait_s=sum(each.wait_s for each in data_sets),
        retries=sum(each.retries for each in data_sets),
        data_sets=data_sets,
        iterations=iterations,
    )
