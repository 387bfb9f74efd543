"""`ignitetf bench read --rows partitions`: throughput by number of partitions and nodes.

Repeats the benchmark published for the old bridge, as far as one machine can: rows of 1 MB in pages
of 20 MB, with 1, 2, 4 ... 2,048 partitions, on the current cluster or on embedded nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ignitetf import Node
from ignitetf.bench.read import Rate, bench_read
from ignitetf.bench.rows import PROFILES
from ignitetf.errors import ConfigError, NodeError
from ignitetf.settings import Settings

__all__ = ["PARTITIONS", "SWEEP", "bench_partitions"]

SWEEP: Final = "partitions"
PARTITIONS: Final = tuple(1 << power for power in range(12))
_PROFILE: Final = PROFILES[SWEEP]
_NODE_NAME: Final = "bench-read"
_FIRST_PORT, _LAST_PORT = 10800, 10900
_NODE_MEMORY: Final = 3 << 30
_WAYS: Final = ("numpy()", f"batch({_PROFILE.batch}), reduce")

Note = Callable[[str], None]


def bench_partitions(
    settings: Callable[[], Settings],
    *,
    nodes: Sequence[int] = (),
    partitions: Sequence[int] = PARTITIONS,
    rows: int | None = None,
    rounds: int = 3,
    note: Note = lambda message: None,
) -> list[Rate]:
    """Measure every number of partitions on every cluster.

    Args:
        settings: Returns the settings of the current cluster; not called if `nodes` are given.
        nodes: Numbers of embedded nodes to start, one cluster after the other; empty means the
            current cluster.
        partitions: Numbers of partitions. Those without a template in the cluster are left out.
        rows: Rows of 1 MB; None for 1,000.
        rounds: Times each way is run.
        note: Receives lines for the user.
    """
    rows = rows or _PROFILE.rows
    rates = []
    for here, cluster in _clusters(settings, nodes, rows, note):
        for number in partitions:
            note(f"{rows:,} rows of 1 MB in {number} partitions, {cluster}")
            try:
                rates += bench_read(
                    here, SWEEP, rounds=rounds, partitions=number, rows=rows, ways=_WAYS
                )
            except ConfigError as error:
                if "partitions" not in error.fields:
                    raise
                note(f"left out: {error.message}")
    return rates


def _clusters(
    settings: Callable[[], Settings], nodes: Sequence[int], rows: int, note: Note
) -> Iterator[tuple[Settings, str]]:
    if not nodes:
        yield settings(), "the cluster at hand"
    for count in nodes:
        with _embedded(count, rows * _PROFILE.row_bytes, note) as here:
            yield here, f"{count} node{'s' if count > 1 else ''}"


@contextmanager
def _embedded(count: int, data_bytes: int, note: Note) -> Iterator[Settings]:
    """Start embedded nodes on the first free ports, and remove them afterwards."""
    for port in range(_FIRST_PORT, _LAST_PORT):
        try:
            node = Node.start(
                _NODE_NAME,
                port=port,
                nodes=count,
                memory=max(_NODE_MEMORY // count, 2 * data_bytes // count),
                template_partitions=(PARTITIONS[-1],),
                note=note,
            )
        except NodeError as error:
            if "port" not in error.fields or port == _LAST_PORT - 1:
                raise
            continue
        with node:
            yield node.settings
        return
