"""Data larger than a node's memory: loads, and epochs in every order, beside a node with enough.

`python benchmarks/larger.py --region 512 --times 3`

Two embedded nodes: one with `--persist` and a region that holds a part of the data, the other with
a region that holds all of it. The same rows are loaded into both; then epochs take turns, in both
orders. Each epoch must deliver each key once. The files of the data stay in the system's page cache
where the machine has the memory, as they would on a node with free memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignitetf import Client, Node, connect, open_rows
from ignitetf.bench.rows import Profile, drop_rows, fill_cache
from ignitetf.cli.output import note, show

_PROFILES = {"784 bytes": 784, "100 KB": 100_000, "1 MB": 1_000_000}
_ORDERS: dict[str, dict[str, Any]] = {
    "scan": {},
    "shuffled scan": {"shuffle": 7},
    "global": {"order": "global", "shuffle": 7},
}
_MIB = 1 << 20


@dataclass
class Place:
    """A node, and what was measured on it."""

    name: str
    client: Client
    seconds: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)

    def load(self, profile: Profile, partitions: int) -> None:
        """Load the rows."""
        begin = time.perf_counter()
        fill_cache(self.client, profile, partitions)
        self.seconds.setdefault("load", []).append(time.perf_counter() - begin)

    def epoch(self, profile: Profile, order: str) -> None:
        """Read an epoch; each key has to be there once."""
        begin = time.perf_counter()
        rows = open_rows(profile.cache, client=self.client, **_ORDERS[order])
        count = keys = 0
        with rows.batches(profile.batch) as batches:
            for batch in batches:
                if not count:
                    self.first.setdefault(order, []).append(time.perf_counter() - begin)
                count += len(batch["key"])
                keys += int(batch["key"].sum())
        self.seconds.setdefault(order, []).append(time.perf_counter() - begin)
        assert (count, keys) == (profile.rows, profile.rows * (profile.rows - 1) // 2)


def measure(
    name: str, profile: Profile, places: Sequence[Place], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Load and read one kind of rows; a line for the load and for each order."""
    for place in places:
        place.load(profile, args.partitions)
    for number in range(args.rounds):
        for order in _ORDERS:
            for place in places if number % 2 else reversed(places):
                place.epoch(profile, order)
    mb = profile.rows * profile.row_bytes / 1e6
    for what in ("load", *_ORDERS):
        row: dict[str, Any] = {"rows": name, "MB": round(mb), "what": what}
        for place in places:
            row[f"{place.name}, MB/s"] = round(mb / statistics.median(place.seconds[what]))
            if what in place.first:
                first = statistics.median(place.first[what])
                row[f"{place.name}, first batch ms"] = round(1e3 * first)
        yield row
    for place in places:
        drop_rows(place.client, profile.cache)
        place.seconds.clear()
        place.first.clear()


def main() -> None:
    """Start both nodes, measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("--region", type=int, default=512, help="MiB of memory of the node that stores more")
    option("--times", type=float, default=3.0, help="size of the data, in regions")
    option("--rows", action="append", choices=list(_PROFILES), help="default: all")
    option("--rounds", type=int, default=5)
    option("--partitions", type=int, default=16)
    option("--port", type=int, default=21700)
    args = parser.parse_args()
    nbytes = int(args.times * args.region * _MIB)
    table = []
    with (
        Node.start("larger", port=args.port, memory=f"{args.region}m", persist=True) as small,
        Node.start("enough", port=args.port + 1, memory=f"{2 * nbytes // _MIB}m") as large,
        connect(settings=small.settings) as a,
        connect(settings=large.settings) as b,
    ):
        places = [Place("larger than memory", a), Place("in memory", b)]
        for name in args.rows or _PROFILES:
            note(f"{name}: {args.rounds} rounds")
            size = _PROFILES[name]
            profile = Profile(nbytes // size, size, max(1, min(128, 8_000_000 // size)))
            table += measure(name, profile, places, args)
    show(table)


if __name__ == "__main__":
    main()
