"""What a thousand readers take in one process: threads, memory, connections, and what they leave.

`python benchmarks/readers.py --readers 1000 --nodes 100`

One embedded node is filled and recorded, then stopped; `owner` gives its answers again, as many
nodes, from a process of its own. Each reader has a client and a thread of its own and reads its
shard. All begin at once, and all have their first batch before any has its second.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from owner import Answers, Recording, allow_files, serve

from ignitetf import Client, Node, connect, open_rows
from ignitetf.bench.rows import Profile, drop_rows, fill_cache
from ignitetf.cli.output import note, show
from ignitetf.read.rows import EpochRows

_PARTITIONS = 1024
_NODE = "readers"
_SPARE_FILES = 200
_STOPPING_S = 10.0
_STARTING_S = 120.0
_NOTICED_S = 0.5  # the owners see what was closed
_LOOKING_S = 0.02


def readers(args: Any) -> list[dict[str, Any]]:
    """Open readers, read with all of them at once, and close them; a line for each state."""
    profile = Profile(args.rows, args.row_bytes, 128)
    page = 4 * -(-args.rows // _PARTITIONS)  # more than any partition has
    answers = _recorded(profile, page, args.port, args.memory)
    note(f"recorded {sum(map(len, answers.bodies.values())) / 1e6:.0f} MB of answers")
    shards = _PARTITIONS // args.partitions_each
    # A connection to the node that was asked for the owners stays beside those to the owners.
    wanted = args.readers * (args.partitions_each + 1) + _SPARE_FILES
    allow_files(wanted)
    with _owners(answers, args.nodes, wanted) as (addresses, connections):
        states = _States(connections, args.readers)
        with contextlib.ExitStack() as stack:
            opened, begin = [], time.perf_counter()
            for index in range(args.readers):
                client = stack.enter_context(_client(addresses, index, args.rotate))
                shard = (index % shards, shards)
                opened.append(open_rows(profile.cache, client=client, shard=shard, page_size=page))
            states.add("opened", time.perf_counter() - begin)
            for epoch in range(args.epochs):
                _read(opened, profile, shards, epoch, states)
        del opened, client
        gc.collect()
        states.add("closed", 0.0)
        ctypes.CDLL(None).malloc_trim(0)
        states.add("closed, and freed memory given back", 0.0)
    return states.rows


def _client(addresses: Sequence[str], index: int, rotate: bool) -> Client:
    begin = index % len(addresses) if rotate else 0
    return connect([*addresses[begin:], *addresses[:begin]])


def _read(
    opened: Sequence[EpochRows], profile: Profile, shards: int, epoch: int, states: _States
) -> None:
    """Read an epoch with all readers; each row comes once from every complete set of shards."""
    count = len(opened)
    together = threading.Barrier(count + 1, timeout=_STARTING_S)

    def read(rows: EpochRows) -> NDArray[np.int64]:
        batches = rows.batches()
        together.wait()
        keys = [next(batches)["key"].copy()]
        together.wait()  # all have a batch; here the state is noted
        together.wait()
        keys += [batch["key"].copy() for batch in batches]
        return np.concatenate(keys)

    with ThreadPoolExecutor(count) as threads, states.peaks():
        reading = [threads.submit(read, rows) for rows in opened]
        try:
            together.wait()
            begin = time.perf_counter()
            together.wait()
            states.add(f"epoch {epoch + 1}: first batches", time.perf_counter() - begin)
            begin = time.perf_counter()
            together.wait()
            found = [one.result(_STARTING_S) for one in reading]
        except BaseException:
            together.abort()
            raise
    states.add(f"epoch {epoch + 1}: the rest", time.perf_counter() - begin)
    assert list(map(len, found)) == list(map(len, opened))
    times = np.bincount(np.concatenate(found), minlength=profile.rows)
    whole, rest = divmod(count, shards)
    assert times.min() >= whole and times.max() <= whole + bool(rest)


def _recorded(profile: Profile, page: int, port: int, memory: str) -> Answers:
    """Return all answers that reading the data set needs, from a node that is then stopped."""
    node = Node.start(_NODE, port=port, memory=memory)
    with node, connect(settings=node.settings) as client:
        fill_cache(client, profile, _PARTITIONS)
        recording = Recording(client.settings.addresses[0])
        try:
            with connect(recording.address) as through:
                rows = open_rows(profile.cache, client=through, shard=(0, 1), page_size=page)
                read = sum(len(batch["key"]) for batch in rows.batches())
        finally:
            recording.close()
            drop_rows(client, profile.cache)
    assert read == profile.rows
    return recording.answers


@contextmanager
def _owners(
    answers: Answers, nodes: int, files: int
) -> Iterator[tuple[list[str], Callable[[], Any]]]:
    """Start the owners; gives their addresses, and a function that asks for their connections."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=serve, args=(answers, nodes, _PARTITIONS, files, there), daemon=True
    )
    process.start()
    there.close()

    def connections() -> Any:
        here.send(True)
        return here.recv()

    try:
        yield here.recv(), connections
    finally:
        with contextlib.suppress(OSError):
            here.send(False)
        process.join(_STOPPING_S)
        process.kill()
        process.join()


class _States:
    """A line for each state of the process, with what it has more than before the first."""

    def __init__(self, connections: Callable[[], Any], count: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._connections = connections
        self._count = count
        self._process = psutil.Process()
        gc.collect()
        self._before = self._now()
        self._most = self._before

    def _now(self) -> tuple[int, int, int]:
        """Return threads, open files and bytes of memory."""
        rss = self._process.memory_info().rss
        return threading.active_count(), self._process.num_fds(), rss

    @contextmanager
    def peaks(self) -> Iterator[None]:
        """Look often while something happens; the most until now is in the next lines."""
        self._most, done = self._now(), threading.Event()

        def look() -> None:
            while not done.wait(_LOOKING_S):
                self._most = tuple(map(max, self._most, self._now()))  # type: ignore[assignment]

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def add(self, state: str, seconds: float) -> None:
        """Note what the process has now, and the most since `peaks`."""
        time.sleep(_NOTICED_S)
        now = [a - b for a, b in zip(self._now(), self._before, strict=True)]
        most = [max(a - b, c) for a, b, c in zip(self._most, self._before, now, strict=True)]
        held, _, came = self._connections()
        self._most = self._before
        self.rows.append(
            {
                "state": state,
                "seconds": round(seconds, 2),
                "threads": now[0],
                "most": most[0],
                "files": now[1],
                "connections": held,
                "busiest node": max(came),
                "all nodes": sum(came),
                "rss_mb": round(now[2] / 1e6),
                "most_mb": round(most[2] / 1e6),
                "kb_a_reader": round(most[2] / 1e3 / self._count),
            }
        )
        note(str(self.rows[-1]))


def main() -> None:
    """Measure, and print a line for each state."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    option = parser.add_argument
    option("--readers", type=int, default=1000)
    option("--nodes", type=int, default=100)
    option("--partitions-each", type=int, default=1, choices=[1, 2, 4, 8, 16])
    option("--rows", type=int, default=60_000)
    option("--row-bytes", type=int, default=784)
    option("--epochs", type=int, default=2)
    option("--rotate", action="store_true", help="each begins at another address")
    option("--memory", default="512m", help="of the node that is recorded")
    option("--port", type=int, default=10800)
    option("--output", default="table", choices=["table", "json", "csv"])
    args = parser.parse_args()
    show(readers(args), args.output)


if __name__ == "__main__":
    main()
