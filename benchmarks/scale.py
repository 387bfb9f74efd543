"""How near the simulation is to real nodes and readers, and epochs of clusters that are not there.

`python benchmarks/scale.py real` starts 1 to 3 embedded nodes and reads with 1 to 8 processes, each
a shard. The times of a page are those of the processor, of nodes and of readers, measured with one
reader, whose epochs take turns with those of the others. How much they grow where many processes
share the processors is measured once before, on one node with the most readers; what other programs
take of the processors, in every epoch. The simulation is told all this and predicts the seconds of
an epoch. `error` is that; `error_own` is with the times of a page from the same epoch.
`python benchmarks/scale.py large` simulates 1,000 readers on 100 nodes.
`python benchmarks/scale.py readers` is no simulation of readers, only of nodes: see `readers`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from readers import readers

from ignitetf.bench.rows import Profile, drop_rows, fill_cache
from ignitetf.bench.workloads import WORKLOADS
from ignitetf.cli.output import note, show
from ignitetf.net.client import Client, connect
from ignitetf.node import Node
from ignitetf.plan.service import ServiceTimes, assumed_times
from ignitetf.plan.simulation import Outcome, Scenario, simulate
from ignitetf.read.rows import open_rows

_ROW_BYTES = WORKLOADS["resnet50"].row_bytes
# Pages of 4 MB for all: those of a single reader are larger, and each takes its own time.
_PAGE_ROWS = 36
# A node compiles its code while it makes so many pages; before that they take it longer.
_WARM_PAGES = 1500
_TICKS = os.sysconf("SC_CLK_TCK")


# One reader, in a process of its own


def reader(address: str, cache: str, index: int, count: int) -> None:
    """Open a shard, then read an epoch for each line of the input and print what it took."""
    with connect(address=address) as client:
        rows = open_rows(cache, client=client, shard=(index, count), page_size=_PAGE_ROWS)
        print("ready", flush=True)
        for _ in sys.stdin:
            spent = time.process_time()
            read = sum(len(batch) for batch in rows.column_batches())
            told = {"rows": read, "cpu": time.process_time() - spent}
            print(json.dumps(told), flush=True)


@contextmanager
def _readers(address: str, cache: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    try:
        for index in range(count):
            words = [sys.executable, __file__, "reader", address, cache, str(index), str(count)]
            started.append(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for process in started:
            _line(process)
        yield started
    finally:
        for process in started:
            process.stdin.close()  # type: ignore[union-attr]
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline()  # type: ignore[union-attr]
    if not line:
        raise SystemExit("a reader failed")
    return line


def _epoch(processes: list[subprocess.Popen[str]], pids: list[int]) -> dict[str, float]:
    """Seconds of an epoch of all readers, and those of the processor."""
    everything, before, begin = _all_cpu(), _cpu(pids), time.perf_counter()
    for process in processes:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    told = [json.loads(_line(process)) for process in processes]
    seconds = time.perf_counter() - begin
    nodes, readers = _cpu(pids) - before, sum(one["cpu"] for one in told)
    return {
        "seconds": seconds,
        "rows": sum(one["rows"] for one in told),
        "readers": readers,
        "nodes": nodes,
        "others": max(0.0, _all_cpu() - everything - nodes - readers),
    }


def _all_cpu() -> float:
    """Seconds of all processors that were not idle, or that the host of this machine kept."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _cpu(pids: list[int]) -> float:
    """Seconds of the processor that processes have taken."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS


# Real nodes beside the simulation


def real(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Epochs on real nodes, and what the simulation says of them."""
    profile = Profile(args.megabytes * 1_000_000 // _ROW_BYTES, _ROW_BYTES, 400)
    found: list[dict[str, Any]] = []
    crowding = None
    for nodes in args.nodes:
        note(f"{nodes} node(s), {profile.rows:,} rows in {args.partitions} partitions")
        node = Node.start("scale", port=args.port, nodes=nodes, memory=args.memory)
        with node, connect(settings=node.settings) as client:
            fill_cache(client, profile, args.partitions)
            warm = _warm_epochs(client, profile, nodes)
            try:
                if crowding is None:
                    crowding = _crowding(
                        client, node, profile, max(args.readers), args.rounds, warm
                    )
                    warm = 2
                for count in args.readers:
                    alone, epochs = _epochs(client, node, profile, count, args.rounds, warm)
                    times, warm = _times(client, profile, alone), 2
                    found.append(
                        _compared(times, crowding, args, client, profile, nodes, count, epochs)
                    )
                    note(str(found[-1]))
            finally:
                drop_rows(client, profile.cache)
    return found


def _warm_epochs(client: Client, profile: Profile, nodes: int) -> int:
    """Epochs until each node has compiled its code."""
    size = open_rows(profile.cache, client=client, page_size=_PAGE_ROWS).reader.page_size()
    return -(-nodes * _WARM_PAGES * size // (2 * profile.rows))


def _epochs(
    client: Client, node: Node, profile: Profile, readers: int, rounds: int, warm: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Epochs of one reader, and in turn with them of so many."""
    address, pids = client.settings.addresses[0], list(node.pids)
    with (
        _readers(address, profile.cache, 1) as single,
        _readers(address, profile.cache, readers) as processes,
    ):
        pairs = [(_epoch(single, pids), _epoch(processes, pids)) for _ in range(warm + rounds)]
    alone, found = [[pair[i] for pair in pairs[warm:]] for i in (0, 1)]
    assert all(one["rows"] == profile.rows for one in (*alone, *found))
    return alone, found


def _crowding(
    client: Client, node: Node, profile: Profile, readers: int, rounds: int, warm: int
) -> float:
    """By which part the times of a page grow whenever twice as many processes read."""
    alone, epochs = _epochs(client, node, profile, readers, rounds, warm)
    one, many = (
        statistics.median(epoch["nodes"] + epoch["readers"] for epoch in each)
        for each in (alone, epochs)
    )
    crowding = max(0.0, many / one - 1) / math.log2(max(2, readers))
    note(f"whenever twice as many processes read, a page takes {100 * crowding:.1f} % longer")
    return crowding


def _times(client: Client, profile: Profile, epochs: list[dict[str, float]]) -> ServiceTimes:
    """Times of the processor for a page, from epochs of one reader on one node."""
    rows = open_rows(profile.cache, client=client, shard=(0, 1), page_size=_PAGE_ROWS)
    reader = rows.reader
    size = reader.page_size()
    nbytes = int(size * reader.entry_bytes)
    pages = profile.rows * reader.entry_bytes / nbytes
    nodes, readers = (statistics.median(one[who] for one in epochs) for who in ("nodes", "readers"))
    trips = []
    for _ in range(30):
        begin = time.perf_counter()
        client.cache_size(reader.cache)
        trips.append(time.perf_counter() - begin)
    times = ServiceTimes(nbytes, nodes / pages, readers / pages, min(trips), True)
    note(
        f"a page of {nbytes / 1e6:.1f} MB takes a node {1e3 * times.page_s:.2f} ms of the processor"
        f" and a reader {1e3 * times.decode_s:.2f} ms; a round trip {1e3 * times.round_trip_s:.2f} ms"
    )
    return times


def _compared(
    times: ServiceTimes,
    crowding: float,
    args: argparse.Namespace,
    client: Client,
    profile: Profile,
    nodes: int,
    readers: int,
    epochs: list[dict[str, float]],
) -> dict[str, Any]:
    opened = open_rows(
        profile.cache, client=client, shard=(0, readers), page_size=_PAGE_ROWS
    ).reader
    sizes = [int(n * opened.entry_bytes) for n in opened.partition_counts(range(args.partitions))]
    cores = os.cpu_count() or 1
    connections, pages = opened.options.readers, sum(sizes) / times.page_bytes

    def predicted(
        epoch: dict[str, float], page_s: float, decode_s: float, crowding: float = 0.0
    ) -> float:
        # What others take makes each processor slower for us.
        left = max(0.1, 1 - epoch["others"] / (cores * epoch["seconds"]))
        slower = replace(times, page_s=page_s / left, decode_s=decode_s / left)
        scenario = Scenario(
            slower, sizes, nodes, readers, connections, shared_cores=cores, crowding=crowding
        )
        return simulate(scenario).seconds

    said = [predicted(epoch, times.page_s, times.decode_s, crowding) for epoch in epochs]
    measured = [epoch["seconds"] for epoch in epochs]
    ratios = [a / b for a, b in zip(said, measured, strict=True)]
    own = [
        predicted(epoch, epoch["nodes"] / pages, epoch["readers"] / pages) / epoch["seconds"]
        for epoch in epochs
    ]
    return {
        "nodes": nodes,
        "readers": readers,
        "measured_s": round(statistics.median(measured), 3),
        "simulated_s": round(statistics.median(said), 3),
        "error": round(statistics.median(ratios) - 1, 3),
        "error_own": round(statistics.median(own) - 1, 3),
        "node_cpu_s": round(statistics.median(one["nodes"] for one in epochs), 3),
        "reader_cpu_s": round(statistics.median(one["readers"] for one in epochs), 3),
        "others_cpu_s": round(statistics.median(one["others"] for one in epochs), 3),
    }


# 1,000 readers on 100 nodes

_NODES, _WORKERS, _TOTAL = 100, 1000, 1_482_900_000_000


def large(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Epochs of 1.48 TB, as CosmoFlow's, read by 1,000 readers from 100 nodes."""
    times = assumed_times(WORKLOADS["cosmoflow"].row_bytes)
    if args.page_ms:
        times = replace(times, page_s=args.page_ms / 1e3, decode_s=args.decode_ms / 1e3)
    plain: dict[str, Any] = {"link_bytes_per_s": 0.9 * args.network_gbit * 1e9 / 8, "backups": 1}
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "1,024 partitions": (1024, {}),
        "8,192 partitions": (8192, {}),
        "32,768 partitions": (32768, {}),
        "1,024, primary copies only": (1024, {"balanced": False}),
        "8,192, primary copies only": (8192, {"balanced": False}),
        "8,192, shuffled": (8192, {"seed": 7}),
        "8,192, a node takes 3 times as long": (8192, {"slow": {3: 3.0}}),
        "8,192, one node is lost at a third": (8192, {"lost": {3: 2.5}}),
        "8,192, 5 nodes are lost, 2 copies": (
            8192,
            {"lost": {n: 2.0 + 0.1 * n for n in (3, 20, 41, 60, 77)}, "backups": 2},
        ),
        "8,192, all ask one node first, 5 ms each": (8192, {"map_s": 0.005}),
        "8,192, each asks another node, 5 ms": (8192, {"map_s": 0.005, "asked_nodes": _NODES}),
        "8,192, readers start within 2 s": (8192, {"start_s": 2.0}),
    }
    return [_large(name, times, *case, plain) for name, case in cases.items()]


def _large(
    name: str, times: ServiceTimes, partitions: int, case: dict[str, Any], plain: dict[str, Any]
) -> dict[str, Any]:
    begin = time.perf_counter()
    sizes = [_TOTAL // partitions] * partitions
    said: Outcome = simulate(Scenario(times, sizes, _NODES, _WORKERS, **{**plain, **case}))
    return {
        "case": name,
        "seconds": round(said.seconds, 2),
        "to ideal": round(said.seconds / said.ideal_s, 2),
        "half done": round(said.median_s, 2),
        "first page": round(said.first_s, 2),
        "hottest": round(said.hottest, 2),
        "largest share": round(said.largest_share, 2),
        "connections": f"{said.connections:.1f}, {said.most_connections}",
        "waiting": said.most_waiting,
        "again_mb": round(said.again_bytes / 1e6),
        "took_s": round(time.perf_counter() - begin, 1),
    }


def main() -> None:
    """Run one of the three."""
    if sys.argv[1:2] == ["reader"]:
        address, cache, index, count = sys.argv[2:]
        reader(address, cache, int(index), int(count))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("real")
    one.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    one.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4, 8])
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--megabytes", type=int, default=512)
    one.add_argument("--partitions", type=int, default=16)
    one.add_argument("--memory", default="1g")
    one.add_argument("--port", type=int, default=10800)
    one.set_defaults(run=real)
    two = parts.add_parser("large")
    two.add_argument("--page-ms", type=float, default=0.0, help="of the processor of a node")
    two.add_argument("--decode-ms", type=float, default=0.0)
    two.add_argument("--network-gbit", type=float, default=25.0)
    two.set_defaults(run=large)
    three = parts.add_parser("readers")
    three.add_argument("--readers", type=int, default=1000)
    three.add_argument("--nodes", type=int, default=100)
    three.add_argument("--partitions-each", type=int, default=1, choices=[1, 2, 4, 8, 16])
    three.add_argument("--rows", type=int, default=60_000)
    three.add_argument("--row-bytes", type=int, default=784)
    three.add_argument("--epochs", type=int, default=2)
    three.add_argument("--rotate", action="store_true", help="each begins at another address")
    three.add_argument("--memory", default="512m", help="of the node that is recorded")
    three.add_argument("--port", type=int, default=10800)
    three.set_defaults(run=readers)
    for part in (one, two, three):
        part.add_argument("--output", default="table", choices=["table", "json", "csv"])
    args = parser.parse_args()
    show(args.run(args), args.output)


if __name__ == "__main__":
    main()
