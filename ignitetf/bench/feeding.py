"""Feeds simulated accelerators in separate processes: a data set, a bare socket, files of others.

`bench storage` -> where the samples are -> **process** -> utilisation and memory of each run

Each way to read has its own process, so that none is affected by another's memory, threads or lock.
The process reads one JSON object a line, first the `Feed`, and answers each with one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from ignitetf.bench.accelerators import ahead_of, utilisation_of
from ignitetf.bench.peers import PEERS, Reading
from ignitetf.errors import IgniteTFError, RequestTimeout
from ignitetf.settings import Settings

__all__ = ["Fed", "Feed", "FeedGroup", "FeedProcess"]

_START_S: Final = 120.0
_END_S: Final = 5.0
_SWEEP_S: Final = 0.5
_WARM_S: Final = 2.0

Batches = Callable[[], Generator[Any, None, None]]


@dataclass(frozen=True)
class Feed:
    """The configuration of a process.

    Attributes:
        way: The way to read: `ignitetf` from a data set; `bare` with the bare socket that drains its
            scans and yields empty batches; otherwise the name of one of `PEERS`, from files.
        settings: Settings of the connection to the cluster.
        cache: Cache with the samples.
        folder: Folder of the peer with the same samples.
        batch_rows: Rows of a batch.
        batch_bytes: Bytes of a batch.
        columns: Names of the columns to read; all if empty.
        shard: The index of this process, and the number of processes.
    """

    way: str
    settings: Settings
    cache: str
    folder: str
    batch_rows: int
    batch_bytes: int
    columns: tuple[str, ...] = ()
    shard: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Fed:
    """One run of simulated accelerators.

    Attributes:
        accelerators: Number of accelerators.
        steps: Steps of all of them.
        utilisation: Share of the time in which they computed.
        batches_per_s: Batches per second of all accelerators.
        memory_mb: Peak memory of the process during the run minus its memory before reading, in MB
            (10^6); None if the system does not report it.
        first_ms: Milliseconds to the first batch of the opened data set or files.
        wait_p50_ms: Median of the milliseconds that a step waited for its batch.
        wait_p99_ms: Their 99th percentile.
        cpu_s_per_gb: Processor seconds of the process for each gigabyte (10^9) of batches.
    """

    accelerators: int
    steps: int
    utilisation: float
    batches_per_s: float
    memory_mb: float | None
    first_ms: float = 0.0
    wait_p50_ms: float = 0.0
    wait_p99_ms: float = 0.0
    cpu_s_per_gb: float = 0.0


class FeedProcess:
    """A process that feeds accelerators; close it, or use it as a context manager.

    Attributes:
        setting: Description of how it reads, for people.

    Raises:
        IgniteTFError: The process failed; the message is the last line of its error.
        RequestTimeout: It took too long to start.
    """

    def __init__(self, feed: Feed) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._idle_s = feed.settings.idle_timeout_s
        # In its own session: Ctrl-C ends it through this object, without a traceback.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            # The current folder must not affect what is imported.
            env=os.environ | {"PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            self.setting = str(self._ask(asdict(feed), _START_S)["setting"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FeedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, accelerators: int, step_s: float, seconds: float) -> Fed:
        """Let accelerators consume batches for some seconds; see `utilisation_of`."""
        given = {"accelerators": accelerators, "step_s": step_s, "seconds": seconds}
        # A last batch may take as long as the reader waits for a page.
        limit = 3 * (seconds + step_s) + 2 * self._idle_s
        return Fed(**self._ask(given, limit))

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _ask(self, given: dict[str, Any], limit_s: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(given).encode() + b"\n")
            self._stdin.flush()
        if not select.select([out], [], [], limit_s)[0]:
            raise RequestTimeout(f"the process that reads did not answer in {limit_s:.0f} s")
        if not (line := out.readline()):
            raise IgniteTFError(f"the process that reads failed: {self._last_error_line()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_error_line(self) -> str:
        self._process.wait(_END_S)
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace").strip().splitlines()
        lines = [line for line in output if not line.startswith("hint: ")]
        return lines[-1] if lines else "no message"


class FeedGroup:
    """Processes that feed accelerators together, each from its shard; use as a context manager.

    Attributes:
        setting: Description of how the first one reads, for people.

    Args:
        feed: The way to read.
        count: Number of processes.

    Raises:
        IgniteTFError: A process failed.
        RequestTimeout: One took too long to start.
    """

    def __init__(self, feed: Feed, count: int = 1) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            feeds = [replace(feed, shard=(index, count)) for index in range(count)]
            # Started one after the other, because each first measures which setting is the fastest.
            self._processes = [stack.enter_context(FeedProcess(one)) for one in feeds]
            self._threads = stack.enter_context(ThreadPoolExecutor(count))
            self._stack = stack.pop_all()
        self.setting = self._processes[0].setting

    def __enter__(self) -> FeedGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, accelerators: int, step_s: float, seconds: float) -> Fed:
        """Let accelerators, distributed over the processes, consume batches for some seconds.

        The times of waiting and to the first batch are those of the process that waited longest.
        """
        count = len(self._processes)
        numbers = [accelerators // count + (i < accelerators % count) for i in range(count)]
        running = [
            self._threads.submit(process.run, number, step_s, seconds)
            for process, number in zip(self._processes, numbers, strict=True)
            if number
        ]
        runs = [one.result() for one in running]
        memory = [run.memory_mb for run in runs if run.memory_mb is not None]
        return Fed(
            accelerators,
            sum(run.steps for run in runs),
            sum(run.utilisation * run.accelerators for run in runs) / accelerators,
            sum(run.batches_per_s for run in runs),
            round(sum(memory), 1) if len(memory) == len(runs) else None,
            max(run.first_ms for run in runs),
            max(run.wait_p50_ms for run in runs),
            max(run.wait_p99_ms for run in runs),
            round(sum(run.cpu_s_per_gb for run in runs) / len(runs), 3),
        )


# In the process


def _serve(lines: IO[bytes], answers: IO[str]) -> None:
    feed = _read(lines.readline())
    with contextlib.ExitStack() as stack:
        if feed.way in PEERS:
            batches, setting = _from_files(feed)
        else:
            way = _from_cache if feed.way == "ignitetf" else _from_socket
            batches, setting = way(feed, stack)
        gc.collect()
        before = _memory("VmRSS")
        # Filling memory for the first time takes longer than reading it.
        utilisation_of(batches(), 1, 0.0, _WARM_S, ahead_of(1, feed.batch_bytes))
        print(json.dumps({"setting": setting}), file=answers, flush=True)
        for line in lines:
            print(json.dumps(asdict(_run(feed, batches, before, **json.loads(line)))), file=answers)
            answers.flush()


def _run(
    feed: Feed,
    batches: Batches,
    before: float | None,
    accelerators: int,
    step_s: float,
    seconds: float,
) -> Fed:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # resets the peak
    ahead = ahead_of(accelerators, feed.batch_bytes)
    used = time.process_time()
    found = utilisation_of(batches(), accelerators, step_s, seconds, ahead)
    used = time.process_time() - used
    nbytes = max(1, found.steps) * feed.batch_bytes
    peak = _memory("VmHWM")
    return Fed(
        accelerators,
        found.steps,
        found.utilisation,
        found.steps / (found.seconds / accelerators) if found.steps else 0.0,
        None if peak is None or before is None else round(max(0.0, peak - before) / 1e6, 1),
        round(1e3 * found.first_s, 3),
        round(1e3 * found.wait_p50_s, 3),
        round(1e3 * found.wait_p99_s, 3),
        round(1e9 * used / nbytes, 3),
    )


def _read(given: bytes) -> Feed:
    values = json.loads(given)
    settings = values.pop("settings")
    addresses = tuple(settings.pop("addresses"))
    for name in ("columns", "shard"):
        values[name] = tuple(values[name])
    return Feed(settings=Settings(addresses=addresses, **settings), **values)


def _from_cache(feed: Feed, stack: contextlib.ExitStack) -> tuple[Batches, str]:
    """Read batches of NumPy columns, one epoch after the other."""
    from ignitetf import connect, open_rows

    client = stack.enter_context(connect(settings=feed.settings))
    fields = list(feed.columns) or None
    opened = open_rows(feed.cache, client=client, fields=fields, shard=feed.shard)

    def batches() -> Generator[Any, None, None]:
        rows = opened
        while True:
            with rows.batches(feed.batch_rows, drop_remainder=True) as found:
                yield from found
            rows = rows.next_epoch()

    return batches, "batches of NumPy columns"


def _from_socket(feed: Feed, stack: contextlib.ExitStack) -> tuple[Batches, str]:
    """Receive the same pages and count their entries: the upper limit of what a node can feed."""
    from ignitetf import connect
    from ignitetf.bench.bare import Scans

    client = stack.enter_context(connect(settings=feed.settings))
    row_bytes = feed.batch_bytes // feed.batch_rows
    scans = Scans(client, feed.cache, row_bytes, shard=feed.shard)

    def batches() -> Generator[None, None, None]:
        rows = 0
        while True:
            with contextlib.closing(scans.counts(scans.ahead)) as pages:
                for count in pages:
                    rows += count
                    for _ in range(rows // feed.batch_rows):
                        yield None
                    rows %= feed.batch_rows

    return batches, f"the same scans, {scans.ahead} asked for ahead, into one buffer"


def _from_files(feed: Feed) -> tuple[Batches, str]:
    """Read a peer's files with the setting that is quickest here."""
    peer = PEERS[feed.way]
    reading = Reading(Path(feed.folder), feed.batch_rows, feed.columns, shard=feed.shard)
    best = max(peer.settings, key=lambda setting: _rate(peer.read(reading, **setting)))
    shown = ", ".join(f"{name}={value:,}" for name, value in best.items())
    return lambda: peer.read(reading, **best), shown


def _rate(batches: Generator[Any, None, None]) -> float:
    """Return batches per second."""
    with contextlib.closing(batches):
        next(batches)
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < _SWEEP_S:
            next(batches)
            count += 1
        return count / (time.monotonic() - begin)


def _memory(name: str) -> float | None:
    """Return a figure of this process's memory in bytes, as Linux reports it."""
    with contextlib.suppress(OSError):
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
        return None if found is None else 1024.0 * int(found[1])
    return None


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout)
