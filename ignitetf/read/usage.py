"""Usage figures of the readers of this process: sources, waiting times and checksums of keys.

reading, rows -> **usage** -> heartbeats of a job, its audit

The counters are updated per request and per batch, never per row, for all data sets that this
process reads. Two snapshots give the rates between them. A worker process of a loader has its own
counters.

Sums prove that each row was read exactly once in an epoch. Each iteration over a shard has the
number of its rows, and the sum modulo 2^64 of a hash of each key. Added up over the shards of an
epoch, in any order, both are equal to those of the whole data set (`keys_sum`). A checksum costs a
pass over the keys, so it is only computed in a job, which sets IGNITETF_JOB.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.net.topology import Origin, Place
from ignitetf.wire.checksum import marks_of, mix
from ignitetf.wire.columns import Batch
from ignitetf.wire.schema import Schema

__all__ = [
    "Amount",
    "Epoch",
    "Iteration",
    "Snapshot",
    "add_read",
    "add_wait",
    "counted",
    "keys_sum",
    "snapshot",
]

# A snapshot has this many of the latest iterations.
_KEPT: Final = 64
_SALT: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Amount:
    """Rows and bytes received from one node.

    Attributes:
        node: Its address; None for all nodes of a place.
        place: How near the node is: `host`, `data_center` or `elsewhere`.
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
        start: Where in the epoch it began, as the chain of a state; empty for the beginning.
        selection: How rows are selected, such as `split=train`; empty for all rows.
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
        ended: Whether all rows of the shard were returned.
    """

    number: int
    of: Epoch
    rows: int = 0
    checksum: int | None = None
    ended: bool = False


@dataclass(frozen=True)
class Snapshot:
    """All that was counted in this process so far.

    Attributes:
        rows: Rows received from all nodes; see `Amount`.
        nbytes: Bytes of the answers.
        wait_s: Seconds in which consumers waited for rows. A thread that reads ahead, for `tf.data`
            or `to_device`, counts as a consumer.
        nodes: Rows and bytes received from each node.
        iterations: The latest iterations, in the order in which they began.
    """

    rows: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    nodes: tuple[Amount, ...] = ()
    iterations: tuple[Iteration, ...] = ()

    @property
    def places(self) -> dict[Place, Amount]:
        """Rows and bytes received from all nodes of each place."""
        found: dict[Place, Amount] = {}
        for one in self.nodes:
            so_far = found.get(one.place, Amount(None, one.place))
            rows, nbytes = so_far.rows + one.rows, so_far.nbytes + one.nbytes
            found[one.place] = Amount(None, one.place, rows, nbytes)
        return found


class _Counter:
    """The counters of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wait_s = 0.0
        self.origins: dict[Origin, tuple[int, int]] = {}
        self.iterations: deque[Iteration] = deque(maxlen=_KEPT)
        self.numbers = itertools.count(1)


_counter = _Counter()


def _count_anew() -> None:
    global _counter
    _counter = _Counter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_anew)


def add_read(origin: Origin | None, rows: int, nbytes: int) -> None:
    """Count rows that were received from a node; `origin` is None if nothing was received."""
    if origin is None:
        return
    counter = _counter
    with counter.lock:
        before = counter.origins.get(origin, (0, 0))
        counter.origins[origin] = before[0] + rows, before[1] + nbytes


def add_wait(seconds: float) -> None:
    """Count seconds in which a consumer waited for rows."""
    counter = _counter
    with counter.lock:
        counter.wait_s += seconds


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
        for batch in batches:
            checksum = None
            if schema is not None and batch.key is not None:
                assert iteration.checksum is not None
                checksum = (iteration.checksum + keys_sum(marks_of(schema, batch.key))) & _MASK
            so_far = iteration.rows + len(batch)
            iteration = replace(iteration, rows=so_far, checksum=checksum, ended=so_far == rows)
            _put(counter, iteration)
            yield batch
        _put(counter, replace(iteration, ended=True))


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
        origins = dict(counter.origins)
        wait_s, iterations = counter.wait_s, tuple(counter.iterations)
    nodes = tuple(Amount(*origin, *amount) for origin, amount in origins.items())
    rows, nbytes = sum(one.rows for one in nodes), sum(one.nbytes for one in nodes)
    return Snapshot(rows, nbytes, wait_s, nodes, iterations)
