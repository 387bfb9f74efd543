"""The size of a cluster for a training: every figure with its rule.

workload, accelerators, service times -> **sizing** -> nodes, partitions, copies, workers, memory

The rules are simple sums, so that each can be checked by hand. A node is assumed to serve one page
after the other, in the measured time; with more cores it serves more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.bench.workloads import Workload
from ignitetf.errors import ConfigError
from ignitetf.plan.service import ServiceTimes
from ignitetf.settings import Settings

__all__ = ["ClusterPlan", "Demand", "make_plan"]

# Share of a link that is available for data.
_LINK_SHARE: Final = 0.9
# Share of a node's memory for data; stored size of rows and partitions relative to their bytes.
_MEMORY_SHARE, _STORED = 0.8, 1.05
_MOST_PARTITIONS: Final = 65_000  # Ignite's own limit
_PARTITIONS_A_WORKER: Final = 8
_PARTITIONS_A_NODE: Final = 64
# Rows are consumed in order, and requested up to two windows ahead. So if one connection is not
# enough, a partition must not be larger than that.
_PARTITION_WINDOWS: Final = 2
_LEAST_PARTITIONS: Final = 16
# Minimum rows of a partition, unless it has the minimum bytes.
_LEAST_ROWS: Final = 16
_LEAST_BYTES: Final = 16 << 20
_LEAST_HEAP: Final = 512 << 20
_PAGE_COPIES: Final = 2  # a page needs twice its bytes while it is made
# Rows of an index leaf, which a node loads into the heap for a scan; and the bytes of such rows for
# all scans of a reader on a node.
_LEAF_ROWS, _MOST_SCANNED = 336, 128 << 20
_AHEAD: Final = 2  # batches for each accelerator


@dataclass(frozen=True)
class Demand:
    """The demand of a training.

    Attributes:
        workload: Samples and steps.
        accelerators: Their number.
        samples: Samples of the data set; None for those of the workload.
        per_worker: Maximum accelerators of a host; each host is one worker.
        network_gbit: Link of each host, in 10^9 bits per second.
        node_memory: Memory of a node for data, in bytes.
        nodes: Number of nodes; None for as many as are needed.
    """

    workload: Workload
    accelerators: int
    samples: int | None = None
    per_worker: int = 8
    network_gbit: float = 25.0
    node_memory: int = 64 << 30
    nodes: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the data set."""
        samples = self.workload.samples if self.samples is None else self.samples
        return samples * self.workload.sample_rows

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that all accelerators consume without a pause."""
        return self.accelerators * self.workload.bytes_per_s

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes per second that a link carries."""
        return _LINK_SHARE * self.network_gbit * 1e9 / 8


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster and its readers.

    Attributes:
        nodes: Number of nodes.
        backups: Copies of each partition in addition to the primary one.
        partitions: Partitions of the cache.
        workers: Hosts with accelerators, each a shard of the data.
        per_worker: Accelerators of a worker.
        readers: Connections that a worker's rate requires.
        node_memory: Memory that a node needs for the data, in bytes.
        node_heap: Java heap that a node needs for answers, in bytes.
        worker_memory: Memory that a worker needs for pages and batches, in bytes.
        utilisation: Maximum share of time in which accelerators compute, limited by the slowest
            part.
        slowest: The slowest part: `accelerators`, `nodes` or `links`.
        rules: The rule of each figure, by its name.
        notes: Advice and warnings.
    """

    nodes: int
    backups: int
    partitions: int
    workers: int
    per_worker: int
    readers: int
    node_memory: int
    node_heap: int
    worker_memory: int
    utilisation: float
    slowest: str
    rules: dict[str, str]
    notes: tuple[str, ...]

    def as_rows(self) -> list[dict[str, Any]]:
        """Return a row for each figure: name, value for people, rule."""
        values = {
            "nodes": f"{self.nodes:,}",
            "copies": f"{self.backups} (backups)",
            "partitions": f"{self.partitions:,}",
            "workers": f"{self.workers:,}",
            "readers": f"{self.readers} a worker",
            "node memory": _gb(self.node_memory),
            "node heap": _gb(self.node_heap),
            "worker memory": _gb(self.worker_memory),
            "utilisation": f"{100 * self.utilisation:.0f} %",
        }
        return [
            {"figure": name, "value": value, "rule": self.rules[name]}
            for name, value in values.items()
        ]


def make_plan(demand: Demand, times: ServiceTimes) -> ClusterPlan:
    """Return the cluster that feeds the accelerators.

    Raises:
        ConfigError: The data set cannot be divided among this number of workers.
    """
    rules: dict[str, str] = {}
    workers, per_worker = _workers(demand, rules)
    nodes, backups = _nodes(demand, times, rules)
    readers = _readers(demand, times, workers, rules)
    largest = _PARTITION_WINDOWS * times.window_bytes if readers > 1 else None
    partitions = _partitions(demand, nodes, workers, largest, rules)
    connections = workers * min(max(readers, nodes), max(1, partitions // workers))
    memory = _memory(demand, times, (nodes, backups, partitions), connections, rules)
    worker_memory = _worker_memory(demand, times, per_worker, max(readers, nodes), rules)
    utilisation, slowest = _utilisation(demand, times, nodes, workers, rules)
    return ClusterPlan(
        nodes=nodes,
        backups=backups,
        partitions=partitions,
        workers=workers,
        per_worker=per_worker,
        readers=readers,
        node_memory=memory[0],
        node_heap=memory[1],
        worker_memory=worker_memory,
        utilisation=utilisation,
        slowest=slowest,
        rules=rules,
        notes=_notes(demand, times, partitions, utilisation, slowest),
    )


def _workers(demand: Demand, rules: dict[str, str]) -> tuple[int, int]:
    each = demand.workload.bytes_per_s
    carried = max(1, int(demand.link_bytes_per_s // each))
    per_worker = min(demand.per_worker, carried, demand.accelerators)
    why = "as many as a host has"
    if per_worker < min(demand.per_worker, demand.accelerators):
        why = f"more do not fit into a link of {demand.network_gbit:g} Gbit/s"
    rules["workers"] = (
        f"{demand.accelerators:,} accelerators, {per_worker} a worker ({why}), each {_rate(each)}"
    )
    return -(-demand.accelerators // per_worker), per_worker


def _nodes(demand: Demand, times: ServiceTimes, rules: dict[str, str]) -> tuple[int, int]:
    rate = min(times.node_bytes_per_s, demand.link_bytes_per_s)
    for_rate = math.ceil(demand.bytes_per_s / rate)
    stored = _STORED * demand.rows * demand.workload.row_bytes
    room = _MEMORY_SHARE * demand.node_memory
    backups = 0 if max(for_rate, math.ceil(stored / room)) == 1 else 1
    for_memory = math.ceil((1 + backups) * stored / room)
    needed = max(for_rate + backups, for_memory)
    rules["nodes"] = (
        f"the larger of {_rate(demand.bytes_per_s)} by {_rate(rate)} a node = {for_rate:,}"
        f"{', and one that may be lost' if backups else ''}; and {_gb((1 + backups) * stored)} of"
        f" data and copies by {_gb(room)} = {for_memory:,}"
    )
    if demand.nodes is not None:
        rules["nodes"] = f"as given; {needed:,} needed: {rules['nodes']}"
        needed = demand.nodes
        backups = 0 if needed == 1 else 1
    rules["copies"] = (
        "1 where there is more than one node: an epoch goes on without one"
        if backups
        else "0 on one node: there is no place for a copy"
    )
    return needed, backups


def _partitions(
    demand: Demand, nodes: int, workers: int, largest: int | None, rules: dict[str, str]
) -> int:
    wanted = max(_LEAST_PARTITIONS, _PARTITIONS_A_WORKER * workers, _PARTITIONS_A_NODE * nodes)
    rules["partitions"] = (
        f"a power of two, at least {_PARTITIONS_A_WORKER} a worker and {_PARTITIONS_A_NODE} a node,"
        " so that shares are alike"
    )
    if largest is not None:
        wanted = max(wanted, demand.rows * demand.workload.row_bytes // largest)
        rules["partitions"] += (
            f"; of {_gb(largest)} at most ({_PARTITION_WINDOWS} windows), so that a worker's"
            " connections are at work at the same time"
        )
    partitions = 1 << (wanted - 1).bit_length()
    least = max(1, min(_LEAST_ROWS, _LEAST_BYTES // demand.workload.row_bytes))
    most = min(max(1, demand.rows // least), _MOST_PARTITIONS)
    if partitions > most:
        partitions = 1 << (most.bit_length() - 1)
        rows = f"{least} rows" if least > 1 else "a row"
        rules["partitions"] += f"; at most one for {rows}, and {_MOST_PARTITIONS:,}"
    if partitions < workers:
        raise ConfigError(
            f"{demand.rows:,} rows are too few to divide among {workers:,} workers",
            hint="give --samples, or plan for fewer accelerators",
        )
    return partitions


def _readers(demand: Demand, times: ServiceTimes, workers: int, rules: dict[str, str]) -> int:
    each = demand.bytes_per_s / workers
    readers = math.ceil(each / times.reader_bytes_per_s)
    rules["readers"] = (
        f"{_rate(each)} a worker by {_rate(times.reader_bytes_per_s)} a connection; a worker opens"
        " at least one to each node that has some of its partitions"
    )
    return readers


def _memory(
    demand: Demand,
    times: ServiceTimes,
    cluster: tuple[int, int, int],
    connections: int,
    rules: dict[str, str],
) -> tuple[int, int]:
    nodes, backups, partitions = cluster
    copies = min(nodes, 1 + backups)
    data = _STORED * demand.rows * demand.workload.row_bytes * copies / nodes
    rules["node memory"] = (
        f"{copies} of {_gb(demand.rows * demand.workload.row_bytes)} by {nodes:,} nodes, 5 % more,"
        f" in {100 * _MEMORY_SHARE:.0f} % of it"
    )
    here = math.ceil(connections / nodes)
    row_bytes, partition_rows = demand.workload.row_bytes, math.ceil(demand.rows / partitions)
    scan = row_bytes * min(_LEAF_ROWS, partition_rows)
    page = min(times.page_bytes, partition_rows * row_bytes)
    pages = max(1, times.window_bytes // page)
    scans = max(1, min(pages, _MOST_SCANNED // scan))
    heap = max(_LEAST_HEAP, here * (_PAGE_COPIES * pages * page + scans * scan))
    rules["node heap"] = (
        f"{here:,} connections, each with {pages * page / 1e6:.1f} MB of pages under way, which take"
        f" {_PAGE_COPIES} times as much while they grow, and with scans ({scans:,}) of up to"
        f" {_LEAF_ROWS} rows, {scan / 1e6:.1f} MB; at least {_LEAST_HEAP >> 20} MiB"
    )
    return int(data / _MEMORY_SHARE), int(heap)


def _worker_memory(
    demand: Demand, times: ServiceTimes, per_worker: int, connections: int, rules: dict[str, str]
) -> int:
    batches = per_worker * _AHEAD * demand.workload.batch_bytes
    under_way = min(Settings.ahead_bytes, connections * max(times.window_bytes, times.page_bytes))
    rules["worker memory"] = (
        f"{_AHEAD} batches of {demand.workload.batch_bytes / 1e6:,.1f} MB for each of {per_worker}"
        f" accelerators, {under_way / 1e6:,.0f} MB under way on up to {connections:,} connections,"
        " and as many of rows that wait for their turn"
    )
    return batches + 2 * under_way


def _utilisation(
    demand: Demand, times: ServiceTimes, nodes: int, workers: int, rules: dict[str, str]
) -> tuple[float, str]:
    parts = {
        "nodes": nodes * min(times.node_bytes_per_s, demand.link_bytes_per_s),
        "links": workers * demand.link_bytes_per_s,
    }
    slowest = min(parts, key=lambda name: parts[name])
    share = parts[slowest] / demand.bytes_per_s
    rules["utilisation"] = (
        f"{_rate(parts[slowest])} of all {slowest}{' of workers' if slowest == 'links' else ''} by"
        f" {_rate(demand.bytes_per_s)} wanted"
    )
    return (1.0, "accelerators") if share >= 1 else (share, slowest)


def _notes(
    demand: Demand, times: ServiceTimes, partitions: int, utilisation: float, slowest: str
) -> tuple[str, ...]:
    notes = []
    if utilisation < demand.workload.least_utilisation:
        notes.append(
            f"the {slowest} keep accelerators busy for {100 * utilisation:.0f} % of the time,"
            f" {100 * demand.workload.least_utilisation:.0f} % are wanted"
        )
    if partitions > 1024:
        notes.append(
            f"{partitions:,} partitions need a template in the nodes' XML: ignitetf node config"
            " shows those of an embedded node, which end at 1,024"
        )
    if demand.workload.sample_rows > 1:
        notes.append(
            f"samples of {demand.workload.sample_bytes / 1e6:,.1f} MB are counted as"
            f" {demand.workload.sample_rows} rows each, because a node sends whole rows"
        )
    if not times.measured:
        notes.append("no node was measured: times are assumed")
    return tuple(notes)


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _rate(bytes_per_s: float) -> str:
    return f"{_gb(bytes_per_s)}/s"
