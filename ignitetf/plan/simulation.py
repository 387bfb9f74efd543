"""An epoch of many readers on many nodes, event by event, on a clock that nobody waits for.

scenario -> real plan, real assignment -> **events on a heap** -> seconds, hottest node, waits

What decides is the code that reads: `ScanOrder` says which partitions a worker has and in which
order, `assign_readers` which connection reads each, `pipeline_depth` how many requests are on their
way. What is simulated is time: a node makes a page, its link and that of the worker carry it, a
connection makes columns of it, and the worker consumes pages in the order of the plan. A connection
that is ahead waits once its buffer is full, as it does in `ScanThread`.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from ignitetf.plan.affinity import rendezvous_owners
from ignitetf.plan.service import ServiceTimes
from ignitetf.read.nearest import chosen_copies
from ignitetf.read.page_query import pipeline_depth
from ignitetf.read.plan import ScanOrder, Shard
from ignitetf.read.scan import assign_readers
from ignitetf.settings import Settings

__all__ = ["Outcome", "Scenario", "simulate"]

_BUFFERED_PAGES: Final = 2


@dataclass(frozen=True)
class Scenario:
    """A cluster, its readers, and what goes wrong.

    Attributes:
        times: What a page takes.
        partition_bytes: Bytes of each partition.
        nodes: Number of nodes.
        workers: Number of workers, each a shard.
        readers: Connections that a worker asks for; at least one to each of its nodes is opened.
        link_bytes_per_s: Of the link of each node and of each worker.
        node_cores: Pages that a node makes at a time.
        shared_cores: Processors that all nodes and workers share, if they are on one machine; 0 if
            each has its own.
        crowding: By which part both times of a page grow whenever twice as many workers share the
            processors, and their caches.
        backups: Copies beside the primary one.
        seed: Seed of the shuffle of partitions; None reads them in ascending order.
        consume_s: Seconds in which a worker uses a page.
        start_s: Workers begin at equal distances within this time; 0 for all at once.
        slow: Factor of the page time of some nodes.
        lost: Nodes that are lost, and when.
        failover_s: Seconds until a connection to a lost node reads from another one.
        map_s: Seconds in which a node answers one worker's questions before it reads: nodes and
            owners of the partitions.
        asked_nodes: Nodes that workers ask this, in turn; 1 if all have the same first address.
        balanced: Whether copies are read, too, so that nodes have equally many partitions to serve,
            as readers do where a write waits for every copy; else primary ones only.
        ahead_bytes: Rows that the connections of a worker hold ahead together, if there are several.
    """

    times: ServiceTimes
    partition_bytes: Sequence[int]
    nodes: int
    workers: int
    readers: int = 1
    link_bytes_per_s: float = math.inf
    node_cores: int = 1
    shared_cores: int = 0
    crowding: float = 0.0
    backups: int = 0
    seed: int | None = None
    consume_s: float = 0.0
    start_s: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    lost: Mapping[int, float] = field(default_factory=dict)
    failover_s: float = 0.2
    map_s: float = 0.0
    asked_nodes: int = 1
    balanced: bool = True
    ahead_bytes: int = Settings.ahead_bytes


@dataclass(frozen=True)
class Outcome:
    """What became of an epoch.

    Attributes:
        seconds: Until the last worker was done.
        ideal_s: The least that is possible: all nodes always busy, or the largest share of a worker
            through its link, its decoding and its consumer.
        first_s: Until half of the workers had their first page.
        median_s: Until half of the workers were done.
        hottest: Bytes of the node that served most, by the mean.
        busiest: Share of the time in which that node which was busiest made pages.
        largest_share: Bytes of the largest share of a worker, by the mean.
        most_connections: Connections to one node at the start, the most of all nodes.
        connections: Connections of a worker, mean.
        most_waiting: Pages that were asked for and not yet made at one node, the most of all.
        again_bytes: Bytes that were asked for twice because a node was lost.
        events: Number of events.
    """

    seconds: float
    ideal_s: float
    first_s: float
    median_s: float
    hottest: float
    busiest: float
    largest_share: float
    most_connections: int
    connections: float
    most_waiting: int
    again_bytes: int
    events: int


def simulate(scenario: Scenario) -> Outcome:
    """Let all workers read their epoch; the same scenario always has the same outcome.

    Raises:
        ValueError: A lost node had the only copy of a partition.
    """
    return _Cluster(scenario).run()


def _crowded(scenario: Scenario) -> Scenario:
    """Return a scenario with the times of a page that its workers have together."""
    if not scenario.shared_cores:
        return scenario
    times, growth = scenario.times, 1 + scenario.crowding * math.log2(scenario.workers)
    longer = replace(times, page_s=times.page_s * growth, decode_s=times.decode_s * growth)
    return replace(scenario, times=longer, crowding=0.0)


class _Servers:
    """Servers that take work in the order in which it comes, each one at a time."""

    def __init__(self, count: int = 1) -> None:
        self._free = [0.0] * count
        self.busy_s = 0.0

    def take(self, now: float, seconds: float) -> float:
        """Return when work that comes now is done."""
        done = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, done)
        self.busy_s += seconds
        return done


class _Node:
    """A node: its cores, its link, and what it served."""

    def __init__(self, cores: _Servers, slow: float) -> None:
        self.cores = cores
        self.link = _Servers()
        self.slow = slow
        self.served_bytes = 0
        self.making_s = 0.0
        self.waiting = self.most_waiting = 0
        self.is_lost = False

    def make(self, now: float, seconds: float, nbytes: int) -> float:
        """Return when a page that is asked for now is made."""
        self.making_s += seconds
        self.served_bytes += nbytes
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        return self.cores.take(now, seconds)


class _Cluster:
    """All that happens, on one heap."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario = _crowded(scenario)
        self.now = 0.0
        self.again_bytes = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.shared = _Servers(scenario.shared_cores) if scenario.shared_cores else None
        self.nodes = [
            _Node(self.shared or _Servers(scenario.node_cores), scenario.slow.get(i, 1.0))
            for i in range(scenario.nodes)
        ]
        self.owners: list[list[int]] = rendezvous_owners(
            len(scenario.partition_bytes), scenario.nodes, 1 + scenario.backups
        ).tolist()
        self.workers = self._make_workers()

    def _make_workers(self) -> list[_Worker]:
        sizes = self.scenario.partition_bytes
        order = ScanOrder(
            tuple(range(len(sizes))), tuple(sizes), 1.0, seed=self.scenario.seed, window_bytes=0
        )
        read_from = self._read_from()
        self.owners = [
            [read_from[p].int, *(n for n in owners if n != read_from[p].int)]
            for p, owners in enumerate(self.owners)
        ]
        count = self.scenario.workers
        return [_Worker(self, order, Shard(i, count), read_from) for i in range(count)]

    def _read_from(self) -> dict[int, uuid.UUID]:
        """Return the node that each partition is read from, by number."""
        primaries = {p: uuid.UUID(int=owners[0]) for p, owners in enumerate(self.owners)}
        if not self.scenario.balanced:
            return primaries
        copies = [(p, uuid.UUID(int=n)) for p, owners in enumerate(self.owners) for n in owners]
        alike = {uuid.UUID(int=number): 0 for number in range(len(self.nodes))}
        return chosen_copies(primaries, copies, alike)

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a time to come."""
        heapq.heappush(self._heap, (when, next(self._numbers), act))

    def node_of(self, partition: int) -> _Node:
        """Return the first node with a copy that is not lost."""
        for owner in self.owners[partition]:
            if not self.nodes[owner].is_lost:
                return self.nodes[owner]
        raise ValueError(f"partition {partition} is lost with its only copy")

    def run(self) -> Outcome:
        """Run until nothing is left to happen."""
        scenario, count = self.scenario, len(self.workers)
        for number, worker in enumerate(self.workers):
            self.at(scenario.start_s * number / count, worker.ask_for_map)
        for node, when in scenario.lost.items():
            self.at(when, functools.partial(self._lose, self.nodes[node]))
        connections = _connections_to(self.workers)
        while self._heap:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        return self._outcome(connections)

    def _lose(self, node: _Node) -> None:
        node.is_lost = True
        for worker in self.workers:
            for connection in worker.connections:
                connection.lose(node)

    def _outcome(self, connections: dict[int, int]) -> Outcome:
        done = [worker.done_s for worker in self.workers]
        seconds = max(done)
        served = [node.served_bytes for node in self.nodes]
        shares = [worker.nbytes for worker in self.workers]
        mean = sum(shares) / len(shares) or 1.0
        return Outcome(
            seconds=seconds,
            ideal_s=self._ideal_s(),
            first_s=float(np.median([worker.first_s for worker in self.workers])),
            median_s=float(np.median(done)),
            hottest=max(served) / (sum(served) / len(served) or 1.0),
            busiest=max(node.making_s for node in self.nodes) / seconds if seconds else 0.0,
            largest_share=max(shares) / mean,
            most_connections=max(connections.values(), default=0),
            connections=sum(len(w.connections) for w in self.workers) / len(self.workers),
            most_waiting=max(node.most_waiting for node in self.nodes),
            again_bytes=self.again_bytes,
            events=next(self._numbers),
        )

    def _ideal_s(self) -> float:
        given, times = self.scenario, self.scenario.times
        total = sum(given.partition_bytes)
        pages = total / times.page_bytes
        largest = max(worker.nbytes for worker in self.workers)
        if given.shared_cores:
            work = pages * (times.page_s + times.decode_s)
            return max(work / given.shared_cores, largest / times.page_bytes * times.decode_s)
        of_nodes = max(
            pages * times.page_s / (given.nodes * given.node_cores),
            total / given.nodes / given.link_bytes_per_s,
        )
        of_worker = max(
            largest / given.link_bytes_per_s, largest / times.page_bytes * given.consume_s
        )
        return max(of_nodes, of_worker)


def _connections_to(workers: Sequence[_Worker]) -> dict[int, int]:
    """Return the number of connections to each node."""
    found: dict[int, int] = {}
    for worker in workers:
        for connection in worker.connections:
            found[id(connection.node)] = found.get(id(connection.node), 0) + 1
    return found


class _Worker:
    """A shard: its connections, its link, and the order in which it consumes units."""

    def __init__(
        self, cluster: _Cluster, order: ScanOrder, shard: Shard, owners: Mapping[int, uuid.UUID]
    ) -> None:
        self.cluster = cluster
        self.link = _Servers()
        self._index = shard.index
        self.first_s = 0.0
        self.done_s = 0.0
        self._consuming = False
        self._unit = 0
        scenario = cluster.scenario
        units = [p for window in order.windows(shard, 0) for p in window.partitions]
        sizes = [scenario.partition_bytes[p] for p in units]
        self.nbytes = sum(sizes)
        page = scenario.times.page_bytes
        self._pages_left = [max(1, -(-size // page)) for size in sizes]
        used = [nbytes for nbytes in scenario.partition_bytes if nbytes]
        mean = sum(used) / max(1, len(used))
        pipelined = pipeline_depth(mean, page, scenario.readers)
        self._connection_of: dict[int, _Connection] = {}
        self.connections = []
        assigned = assign_readers(owners, units, scenario.readers, pipelined)
        ahead = scenario.ahead_bytes // len(assigned) // page if len(assigned) > 1 else 0
        for share in assigned:
            own = [(u, units[u], sizes[u]) for u in share]
            connection = _Connection(self, own, pipelined + 1, max(_BUFFERED_PAGES, ahead))
            self.connections.append(connection)
            self._connection_of.update(dict.fromkeys(share, connection))

    def ask_for_map(self) -> None:
        """Ask a node for the owners, then begin."""
        cluster = self.cluster
        trip = cluster.scenario.times.round_trip_s
        node = cluster.nodes[self._index % cluster.scenario.asked_nodes]
        ready = node.cores.take(cluster.now + trip / 2, cluster.scenario.map_s)
        cluster.at(ready + trip / 2, self._begin)

    def _begin(self) -> None:
        self.done_s = self.cluster.now
        for connection in self.connections:
            connection.ask()

    def consume(self) -> None:
        """Take the next page of the plan if it is here and the one before is used up."""
        if self._consuming or self._unit == len(self._pages_left):
            return
        if not self._connection_of[self._unit].give(self._unit):
            return
        self._pages_left[self._unit] -= 1
        if not self._pages_left[self._unit]:
            self._unit += 1
        cluster = self.cluster
        self.first_s = self.first_s or cluster.now
        self.done_s = cluster.now + cluster.scenario.consume_s
        self._consuming = True
        cluster.at(self.done_s, self._consumed)

    def _consumed(self) -> None:
        self._consuming = False
        self.consume()


class _Page(NamedTuple):
    """A page: the number of its unit, its partition, its bytes."""

    unit: int
    partition: int
    nbytes: int


class _Connection:
    """One connection: requests pages of its units in order, and keeps some for the consumer.

    Args:
        worker: Whose it is.
        units: Number, partition and bytes of each unit.
        depth: Requests that are unanswered at a time.
        room: Pages that it keeps.
    """

    def __init__(
        self, worker: _Worker, units: Sequence[tuple[int, int, int]], depth: int, room: int
    ) -> None:
        self._worker = worker
        self._cluster = worker.cluster
        self._depth = depth
        self._room = room
        page = self._cluster.scenario.times.page_bytes
        self._wanted: deque[_Page] = deque()
        for unit, partition, size in units:
            for start in range(0, max(1, size), page):
                self._wanted.append(_Page(unit, partition, min(page, size - start)))
        self._arrived: deque[_Page] = deque()
        self._asked: deque[tuple[_Page, _Node]] = deque()
        self._kept: deque[int] = deque()  # units of the pages for the consumer
        self._working = False
        self._life = 0  # counts lost connections: what was on its way then does not arrive
        self.node = self._cluster.node_of(units[0][1])

    def ask(self) -> None:
        """Request further pages, if few are unanswered."""
        cluster = self._cluster
        times = cluster.scenario.times
        while self._wanted and len(self._asked) < self._depth:
            page = self._wanted.popleft()
            node = cluster.node_of(page.partition)
            self._asked.append((page, node))
            act = functools.partial(self._serve, page, node, self._life)
            cluster.at(cluster.now + times.round_trip_s / 2, act)

    def _serve(self, page: _Page, node: _Node, life: int) -> None:
        if life != self._life:
            return
        scenario, now = self._cluster.scenario, self._cluster.now
        seconds = scenario.times.page_s * page.nbytes / scenario.times.page_bytes * node.slow
        made = node.make(now, seconds, page.nbytes)
        self._cluster.at(made, functools.partial(self._send, page, node, life))

    def _send(self, page: _Page, node: _Node, life: int) -> None:
        # The links of both ends carry it at the same time.
        scenario, now = self._cluster.scenario, self._cluster.now
        node.waiting -= 1
        seconds = page.nbytes / scenario.link_bytes_per_s
        there = max(node.link.take(now, seconds), self._worker.link.take(now, seconds))
        arrival = there + scenario.times.round_trip_s / 2
        self._cluster.at(arrival, functools.partial(self._arrive, page, life))

    def _arrive(self, page: _Page, life: int) -> None:
        if life == self._life:
            self._arrived.append(page)
            self._decode()

    def _decode(self) -> None:
        """Begin with the next page that is here, if the buffer has room."""
        if self._working or not self._arrived or len(self._kept) > self._room:
            return
        self._working = True
        page = self._arrived.popleft()
        self._asked.popleft()  # a node answers the requests of a connection in their order
        self.ask()  # as the answer begins
        cluster = self._cluster
        times = cluster.scenario.times
        seconds = times.decode_s * page.nbytes / times.page_bytes
        done = (
            cluster.shared.take(cluster.now, seconds) if cluster.shared else cluster.now + seconds
        )
        cluster.at(done, functools.partial(self._decoded, page))

    def _decoded(self, page: _Page) -> None:
        self._working = False
        self._kept.append(page.unit)
        self._worker.consume()
        self._decode()

    def give(self, unit: int) -> bool:
        """Hand over the next page of a unit, if it is here."""
        if not self._kept or self._kept[0] != unit:
            return False
        self._kept.popleft()
        self._cluster.at(self._cluster.now, self._decode)
        return True

    def lose(self, node: _Node) -> None:
        """Request what was on its way from a node again, from another one, after some time."""
        if all(asked is not node for _, asked in self._asked):
            return
        self._life += 1
        again = [page for page, _ in self._asked]
        self._arrived.clear()
        self._asked.clear()
        self._cluster.again_bytes += sum(page.nbytes for page in again)
        self._wanted.extendleft(reversed(again))
        self._cluster.at(self._cluster.now + self._cluster.scenario.failover_s, self.ask)
