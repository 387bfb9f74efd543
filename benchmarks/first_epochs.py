"""First and later epochs in fresh processes, beside a bare socket that asks ahead.

python benchmarks/first_epochs.py                                   # all profiles, this checkout
python benchmarks/first_epochs.py --profile 60k-8 --rounds 9 --json epochs.jsonl
python benchmarks/first_epochs.py --ways now --ways less:IGNITETF_AHEAD_BYTES=8388608
python benchmarks/first_epochs.py --ways now --ways before:../before/.venv/bin/python
python benchmarks/first_epochs.py --options '{"order": "global", "shuffle": 7}' --batch 128

A way is a name, and after a colon what is different in its processes: the interpreter of another
checkout, or settings of the environment, separated by commas. Every round starts a fresh process for
each way, in turn, in both orders. Before and after each epoch, in a process of its own, the bare
socket drains the same cache with pages of several sizes. The fastest size of the round counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_CACHE: Final = "IGNITETF_FIRST_EPOCHS"
_PAGES: Final = (1 << 20, 4 << 20, 16 << 20)
# Rows, bytes of a row, kind and partitions.
_PROFILES: Final = {
    "60k-8": (60_000, 784, "dense", 8),
    "60k-1024": (60_000, 784, "dense", 1024),
    "600k-8": (600_000, 784, "dense", 8),
    "600k-1024": (600_000, 784, "dense", 1024),
    "1mb-1": (300, 1_000_000, "dense", 1),
    "1mb-16": (300, 1_000_000, "dense", 16),
    "1mb-1024": (300, 1_000_000, "dense", 1024),
    "blobs": (6_000, 20_000, "blobs", 16),
    "sql": (200_000, 43, "columns", 16),
}


# In the processes


def _now() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"wall": time.perf_counter(), "cpu": time.process_time(), "faults": used.ru_minflt}


def _since(before: dict[str, float]) -> dict[str, float]:
    found = {name: value - before[name] for name, value in _now().items()}
    return {**found, "peak_mib": _peak_kib() / 1024}


def _peak_kib() -> float:
    """The most memory of this process; Linux's ru_maxrss begins with that of the parent."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else peak


def _answer(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def read_epochs(given: dict[str, Any]) -> None:
    """Open the rows, then read an epoch for each line of the input."""
    from ignitetf import open_rows

    before = _now()
    rows = open_rows(_CACHE, given["address"], shard=(0, 1), **given["options"])
    _answer(_since(before))
    for _ in sys.stdin:
        before, count, keys = _now(), 0, 0
        with rows.batches(given["batch"]) as batches:
            for batch in batches:
                count += len(batch["key"])
                keys += int(batch["key"].sum())
        _answer({**_since(before), "rows": count, "keys": keys})
        rows = rows.next_epoch()


def drain(given: dict[str, Any]) -> None:
    """Drain the cache with pages of each size, for each line of the input."""
    from ignitetf import connect
    from ignitetf.bench.bare import Scans

    with connect(given["address"]) as client:
        scans = [Scans(client, _CACHE, given["row_bytes"], size) for size in _PAGES]
        _answer({})
        for _ in sys.stdin:
            found = {}
            for size, one in zip(_PAGES, scans, strict=True):
                before = _now()
                rows, seconds = one.drain(one.ahead)
                found[size] = {**_since(before), "wall": seconds, "rows": rows}
            _answer(found)


# In the program


@dataclass(frozen=True)
class Way:
    """What is compared: an interpreter, and settings of its environment."""

    name: str
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Way:
        """Return the way that a text describes; see the top."""
        name, _, rest = text.partition(":")
        parts = [part for part in rest.split(",") if part]
        pythons = [part for part in parts if "=" not in part]
        settings = dict(part.split("=", 1) for part in parts if "=" in part)
        return cls(name, pythons[0] if pythons else sys.executable, settings)


class Child:
    """A process of this file; answers each line with a JSON object."""

    def __init__(self, way: Way, kind: str, given: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [way.python, __file__, kind, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | way.environment,
        )
        self.opened = self._read()

    def ask(self) -> dict[str, Any]:
        """Let it do its work once."""
        self._process.stdin.write("go\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return self._read()

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"a process failed with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def _filled(address: str | None, name: str) -> Iterator[str]:
    """Load a profile's rows; gives the address of the node."""
    from ignitetf import connect
    from ignitetf.bench.rows import Profile, drop_rows, fill_cache

    rows, row_bytes, kind, partitions = _PROFILES[name]
    with connect(address) as client:
        try:
            fill_cache(client, Profile(rows, row_bytes, 128, kind), partitions, _CACHE)  # type: ignore[arg-type]
            yield client.settings.addresses[0]
        finally:
            drop_rows(client, _CACHE)


def _round(
    way: Way, bare: Child, given: dict[str, Any], later: int, bare_first: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each epoch of a fresh process took, and the passes of the bare socket beside it."""
    child = Child(way, "read", given)
    try:
        yield "open", child.opened
        for number in range(1 + later):
            for turn in (0, 1):
                if (turn == 0) is bare_first:
                    for size, one in bare.ask().items():
                        yield f"bare {int(size) >> 20} MB", one
                else:
                    yield "later" if number else "first", child.ask()
    finally:
        child.close()


def measure(name: str, ways: Sequence[Way], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a record for each epoch and pass."""
    rows, row_bytes = _PROFILES[name][:2]
    with _filled(args.address, name) as address:
        given = {"address": address, "row_bytes": row_bytes}
        bare = Child(Way("bare"), "drain", given)
        given |= {"options": json.loads(args.options), "batch": args.batch}
        try:
            for number in range(args.rounds):
                for way in ways if number % 2 else reversed(ways):
                    turns = _round(way, bare, given, args.later, bool(number // 2 % 2))
                    for what, told in turns:
                        assert told.get("rows", rows) == rows, (way, what, told)
                        assert told.get("keys", 0) in (0, rows * (rows - 1) // 2)
                        yield {
                            "profile": name, "way": way.name, "round": number, "what": what, **told
                        }  # fmt: skip
        finally:
            bare.close()


def summarised(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each way and kind of epoch of one profile: medians, and ratio to the bare."""
    found = []
    for way in dict.fromkeys(record["way"] for record in records):
        mine = [record for record in records if record["way"] == way]
        bare = _bare_seconds(mine)
        kinds = sorted({r["what"] for r in mine}, key=lambda w: (w.startswith("bare"), w))
        for what in kinds:
            these = [record for record in mine if record["what"] == what]
            ratios = [bare[record["round"]] / record["wall"] for record in these]
            found.append(
                {
                    "profile": these[0]["profile"],
                    "way": way,
                    "epoch": what,
                    "ms": _median(1e3 * r["wall"] for r in these),
                    "ratio": None if what == "open" else round(statistics.median(ratios), 2),
                    "cpu_ms": _median(1e3 * r["cpu"] for r in these),
                    "faults": round(statistics.median(r["faults"] for r in these)),
                    "peak_mib": round(statistics.median(r["peak_mib"] for r in these)),
                    "runs": len(these),
                }
            )
    return found


def _bare_seconds(records: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return for each round the median of the page size that was quickest in it."""
    found: dict[int, dict[str, list[float]]] = {}
    for record in records:
        if record["what"].startswith("bare"):
            sizes = found.setdefault(record["round"], {})
            sizes.setdefault(record["what"], []).append(record["wall"])
    return {number: min(map(statistics.median, sizes.values())) for number, sizes in found.items()}


def _median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 1)


def main() -> None:
    """Measure, print a table, and write every epoch as a JSON line where that is wanted."""
    if sys.argv[1:2] in (["read"], ["drain"]):
        {"read": read_epochs, "drain": drain}[sys.argv[1]](json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("--address", help="HOST:PORT; else what `ignitetf config` shows")
    option("--profile", action="append", choices=list(_PROFILES), help="default: all")
    option("--ways", action="append", metavar="NAME[:PYTHON][,VARIABLE=VALUE]", default=None)
    option("--rounds", type=int, default=5, help="fresh processes of each way")
    option("--later", type=int, default=3, help="epochs after the first in each process")
    option("--batch", type=int, help="rows of a batch; else about a page")
    option("--options", default="{}", metavar="JSON", help="arguments of open_rows")
    option("--json", type=Path, metavar="FILE", help="append every epoch as a JSON line")
    args = parser.parse_args()
    from ignitetf.cli.output import note, show

    ways = [Way.of(text) for text in args.ways or ("now",)]
    for way in ways:
        if not Path(way.python).is_file():
            parser.error(f"way {way.name!r}: there is no interpreter {way.python}")
    table = []
    for name in args.profile or _PROFILES:
        note(f"{name}: {args.rounds} rounds")
        records = list(measure(name, ways, args))
        table += summarised(records)
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as out:
                out.writelines(f"{json.dumps(record)}\n" for record in records)
    show(table)


if __name__ == "__main__":
    main()
