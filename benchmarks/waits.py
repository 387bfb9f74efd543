"""What a trainer feels: time to the first batch, and how long each of 10,000 steps waits.

`python benchmarks/waits.py --rows 784 --rows 25000 --kill`

Each way of reading runs in fresh processes, in turn, in both orders: the first batch of a new
process (imports and connection included), of data that is open, and after 90 % of an epoch; then an
epoch whose steps sleep for `--step` milliseconds. A thread puts batches into a queue of eight for
each way alike. With `--kill`, one of three nodes is killed in the middle of an epoch; rows have two
copies. Readers of files, as in `ignitetf bench storage`, read what was just written; they run where
their packages are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ignitetf.bench.peers import PEERS, Reading, missing_packages
from ignitetf.bench.rows import Profile, drop_rows, make_rows

_CACHE = "IGNITETF_BENCH_WAITS"
_OURS: dict[str, dict[str, Any]] = {
    "ignitetf, scan": {},
    "ignitetf, shuffled scan": {"shuffle": 7},
    "ignitetf, global": {"order": "global", "shuffle": 7},
}
_STEPS, _LATE = 10_000, 0.9
_PART_BYTES = 8 << 20
_QUEUE = 8
_HALF = "half"

Opening = Callable[[int], Generator[Any, None, None]]


# In the process of a way


def _ours(given: dict[str, Any]) -> Opening:
    from ignitetf import connect, open_rows

    client = connect(given["address"])
    rows = open_rows(_CACHE, client=client, **_OURS[given["way"]])

    def read(start: int) -> Generator[Any, None, None]:
        at = rows.resume(rows.state(start)) if start else rows
        with at.batches(given["batch"]) as found:
            yield from found

    return read


def _others(given: dict[str, Any]) -> Opening:
    peer = PEERS[given["way"]]

    def read(start: int) -> Generator[Any, None, None]:
        reading = Reading(Path(given["folder"]), given["batch"], start=start, once=True)
        yield from peer.read(reading, **given["setting"])

    return read


def _first(read: Opening, start: int) -> float:
    """Return the milliseconds to the first batch."""
    begin = time.perf_counter()
    with contextlib.closing(read(start)) as batches:
        next(batches)
        return 1e3 * (time.perf_counter() - begin)


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches that a thread takes from an iterator."""
    shared: queue.Queue[Any] = queue.Queue(_QUEUE)

    def feed() -> None:
        try:
            for batch in batches:
                shared.put(batch)
            shared.put(None)
        except BaseException as error:
            shared.put(error)

    threading.Thread(target=feed, daemon=True).start()
    while (found := shared.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield found


def _waits(read: Opening, steps: int, step_s: float) -> Iterator[float]:
    """Yield the seconds that each step waits for its batch."""
    batches = _ahead(read(0))
    for number in range(steps):
        asked = time.perf_counter()
        if next(batches, None) is None:
            return
        yield time.perf_counter() - asked
        if number == steps // 2:
            print(_HALF, flush=True)
        time.sleep(step_s)


def _peak_mib() -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return round(float(line.split()[1]) / 1024)
    return 0.0


def run(given: dict[str, Any]) -> None:
    """Measure one way and print the figures as JSON."""
    read = (_ours if given["way"] in _OURS else _others)(given)
    with contextlib.closing(read(0)) as batches:
        next(batches)
    cold_ms = 1e3 * (time.time() - given["began"])
    late = int(_LATE * given["steps"]) * given["batch"]
    opened_ms, resumed_ms = _first(read, 0), _first(read, late)
    used = time.process_time()
    waits = np.array(list(_waits(read, given["steps"], given["step_s"])))
    used = time.process_time() - used
    assert len(waits) == given["steps"], f"{len(waits)} of {given['steps']} steps"
    found = {
        "first_cold_ms": cold_ms,
        "first_opened_ms": opened_ms,
        "first_resumed_ms": resumed_ms,
        **{f"p{p}_ms": 1e3 * float(np.percentile(waits[1:], p)) for p in (50, 99)},
        "most_ms": 1e3 * float(waits[1:].max()),
        "cpu_s_per_gb": 1e9 * used / (given["steps"] * given["batch"] * given["row_bytes"]),
        "peak_mib": _peak_mib(),
    }
    print(json.dumps(found), flush=True)


# In the program


def _child(given: dict[str, Any], at_half: Callable[[], None]) -> dict[str, float]:
    began = {"began": time.time()}
    with subprocess.Popen(
        [sys.executable, __file__, "run", json.dumps(given | began)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        for line in lines:
            if line.strip() == _HALF:
                at_half()
                continue
            found: dict[str, float] = json.loads(line)
            return found
    raise SystemExit(f"{given['way']}: the process failed with code {process.returncode}")


def _quickest(way: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the setting of a peer with the highest rate here."""
    reading = Reading(Path(given["folder"]), given["batch"])

    def rate(setting: dict[str, Any]) -> float:
        begin, count = time.perf_counter(), 0
        with contextlib.closing(PEERS[way].read(reading, **setting)) as batches:
            for _ in batches:
                count += 1
                if time.perf_counter() - begin > 1:
                    break
        return count / (time.perf_counter() - begin)

    return max(PEERS[way].settings, key=rate)


@contextlib.contextmanager
def _prepared(
    profile: Profile, ways: Sequence[str], address: str, backups: int
) -> Iterator[dict[str, dict[str, Any]]]:
    """Load the rows, write the files, and give what each way has to know."""
    from ignitetf import connect, load_dataset

    with tempfile.TemporaryDirectory() as name, connect(address) as client:
        drop_rows(client, _CACHE)
        try:
            for number, part in enumerate(make_rows(profile)):
                options: Any = {"if_exists": "append"} if number else {"backups": backups}
                load_dataset(part, _CACHE, client=client, **options)
            batch = {"batch": profile.batch, "row_bytes": profile.row_bytes}
            prepared: dict[str, dict[str, Any]] = {}
            for way in ways:
                prepared[way] = {"way": way, "address": address, **batch}
                if way in PEERS:
                    folder = Path(name) / PEERS[way].write.__name__
                    if not folder.exists():
                        folder.mkdir()
                        rows = max(1, _PART_BYTES // (profile.batch * profile.row_bytes))
                        PEERS[way].write(
                            make_rows(profile, rows * profile.batch * profile.row_bytes), folder
                        )
                    prepared[way]["folder"] = str(folder)
                    prepared[way]["setting"] = _quickest(way, prepared[way])
            yield prepared
        finally:
            drop_rows(client, _CACHE)


def _medians(head: dict[str, Any], runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = runs[0]
    return head | {name: round(statistics.median(r[name] for r in runs), 2) for name in names}


def measure(args: argparse.Namespace, row_bytes: int, address: str) -> list[dict[str, Any]]:
    """Return a row of medians for each way."""
    from ignitetf.cli.output import note

    profile = Profile(args.steps * args.batch, row_bytes, args.batch)
    ways = [*_OURS, *(w for w, p in PEERS.items() if not missing_packages(p))]
    ways = [w for w in ways if w in _OURS or row_bytes >= PEERS[w].least_bytes]
    ways = [w for w in ways if not args.way or w in args.way]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with _prepared(profile, ways, address, 0) as prepared:
        for number in range(args.rounds):
            for way in ways if number % 2 else reversed(ways):
                given = prepared[way] | {"steps": args.steps, "step_s": args.step / 1e3}
                runs[way].append(_child(given, lambda: None))
                note(f"round {number + 1}: {way}")
    return [_medians({"bytes": row_bytes, "way": way}, found) for way, found in runs.items()]


def killed(args: argparse.Namespace, row_bytes: int) -> list[dict[str, Any]]:
    """Return a row of medians for each order, with a node killed in the middle of each epoch."""
    from ignitetf import Node

    table = []
    profile = Profile(args.steps * args.batch, row_bytes, args.batch)
    for way in _OURS:
        found = []
        for _ in range(args.rounds):
            memory = f"{3 * profile.rows * (row_bytes + 200) // 2 + (300 << 20) >> 20}m"
            with (
                Node.start("waits", port=args.port, nodes=3, memory=memory) as node,
                _prepared(profile, [way], ",".join(node.settings.addresses), 1) as prepared,
            ):
                pid = node.pids[-1]
                given = prepared[way] | {"steps": args.steps, "step_s": args.step / 1e3}
                found.append(_child(given, lambda pid=pid: os.kill(pid, signal.SIGKILL)))  # type: ignore[misc]
        table.append(_medians({"bytes": row_bytes, "way": f"{way}, a node killed"}, found))
    return table


def main() -> None:
    """Measure and print a table."""
    if sys.argv[1:2] == ["run"]:
        run(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("--address", help="HOST:PORT; else a node is started")
    option("--rows", type=int, action="append", help="bytes of a row; repeatable; default: 784")
    option("--batch", type=int, default=32)
    option("--steps", type=int, default=_STEPS)
    option("--step", type=float, default=1.0, help="milliseconds of a step")
    option("--rounds", type=int, default=5)
    option("--way", action="append", help="default: all that can run here")
    option("--kill", action="store_true", help="also with a node killed in the middle")
    option("--port", type=int, default=21720)
    option("--memory", default="4g", help="of the node that is started")
    args = parser.parse_args()
    from ignitetf import Node
    from ignitetf.cli.output import show

    table = []
    with contextlib.ExitStack() as stack:
        address = args.address
        if address is None:
            node = Node.start("waits-one", port=args.port + 10, memory=args.memory)
            address = stack.enter_context(node).settings.addresses[0]
        for row_bytes in args.rows or (784,):
            table += measure(args, row_bytes, address)
    if args.kill:
        for row_bytes in args.rows or (784,):
            table += killed(args, row_bytes)
    show(table)


if __name__ == "__main__":
    main()
