"""`ignitetf bench storage`: accelerators that a cluster, or TFRecord files, keep busy.

workload -> samples in a cache and in files -> accelerators 1, 2, 4 ... -> **the most at work**

Each step is a sleep, as in MLPerf Storage. For each way to read, the benchmark finds how many
accelerators one process can feed so that they compute for the required share of their time. All
ways run in turn, over the same samples; the files are in the page cache, since they were just
written. A bare socket shows the upper limit of what the nodes can send here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ignitetf import Client, connect
from ignitetf.bench.feeding import Fed, Feed, FeedProcess
from ignitetf.bench.read import BARE_AHEAD
from ignitetf.bench.rows import Profile, drop_rows, fill_cache
from ignitetf.bench.workloads import Workload
from ignitetf.errors import ConfigError, ServerOverloaded
from ignitetf.explore.cluster import data_regions
from ignitetf.export.export import export_dataset
from ignitetf.settings import Settings

__all__ = ["Search", "Supported", "bench_storage"]

_CACHE: Final = "IGNITETF_BENCH_STORAGE"
_MOST_BYTES: Final = 2_000_000_000
# Share of the free memory: rows need a little more than their bytes, and other clients need room.
_NODE_SHARE, _DISK_SHARE = 0.6, 0.5
_FILES: Final = 8
_IGNITE, _TFRECORD = "ignitetf", "TFRecord, page cache"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Supported:
    """The accelerators that one way of reading keeps busy.

    Attributes:
        workload: Name of the workload.
        way: How the samples were read.
        accelerators: The largest number tried whose utilisation was high enough; 0 for none.
        utilisation: Their share of time computing; that of one accelerator if none was kept busy.
        needed: The required share.
        mb_per_s: Megabytes (10^6) of samples per second that they consumed.
        memory_mb: Peak memory of the reading process minus its memory before reading.
        first_ms: Milliseconds to the first batch of what is open already.
        wait_p50_ms: Median of the milliseconds that a step waited for its batch.
        wait_p99_ms: Their 99th percentile.
        limit: Whether this is the largest number allowed, so that the true number may be higher.
        setting: How it was read.
        sample_bytes: Bytes of a sample.
        batch: Samples of a step.
        step_s: Seconds of a step.
        samples: Samples of the data set, which was read repeatedly.
        runs: All runs: `accelerators`, `utilisation`, `mb_per_s`, `memory_mb`, `first_ms`,
            `wait_p50_ms`, `wait_p99_ms`.
    """

    workload: str
    way: str
    accelerators: int
    utilisation: float
    needed: float
    mb_per_s: float
    memory_mb: float | None
    first_ms: float
    wait_p50_ms: float
    wait_p99_ms: float
    limit: bool
    setting: str
    sample_bytes: int
    batch: int
    step_s: float
    samples: int
    runs: tuple[dict[str, Any], ...]


class Search:
    """Finds the largest number with a high enough utilisation: doubles, then halves the interval.

    Args:
        most: Largest number to try.
        needed: The required utilisation.
    """

    def __init__(self, most: int, needed: float) -> None:
        self._most = most
        self._needed = needed
        self._bad = most + 1
        self.runs: list[Fed] = []
        self.best: Fed | None = None

    @property
    def next(self) -> int | None:
        """The next number to try; None if the result is known."""
        good = 0 if self.best is None else self.best.accelerators
        if good + 1 >= self._bad:
            return None
        if self._bad > self._most:
            return min(max(1, 2 * good), self._most)
        return (good + self._bad) // 2

    def add(self, run: Fed) -> None:
        """Record a run with the number `next`."""
        self.runs.append(run)
        if run.utilisation >= self._needed:
            self.best = run
        else:
            self._bad = run.accelerators


def bench_storage(
    settings: Settings,
    workload: Workload,
    *,
    accelerators: int = 64,
    seconds: float = 5.0,
    most_bytes: int = _MOST_BYTES,
    say: Say = lambda message: None,
) -> list[Supported]:
    """Find how many accelerators each way of reading keeps busy.

    Args:
        settings: How to connect to the cluster; the samples are loaded there and removed
            afterwards.
        workload: Samples and steps.
        accelerators: The largest number to try.
        seconds: Duration of each run.
        most_bytes: Maximum bytes of samples; fewer if the node has less room.
        say: Receives lines for the user.

    Returns:
        One for each way that can run here: TFRecord needs TensorFlow.

    Raises:
        ServerOverloaded: The node has no room for a batch.
        ConfigError: The disk has no room for the files.
    """
    if workload.note:
        say(f"{workload.name}: {workload.note}")
    if importlib.util.find_spec("tensorflow") is None:
        say("without TensorFlow, TFRecord files are left out")
        ways: tuple[str, ...] = (_IGNITE, BARE_AHEAD)
    else:
        ways = (_IGNITE, BARE_AHEAD, _TFRECORD)
    with _samples(settings, workload, most_bytes, _TFRECORD in ways, say) as (profile, files):
        batch = profile.batch, workload.batch_bytes
        feeds = {
            _IGNITE: Feed("ignitetf", settings, _CACHE, (), *batch),
            BARE_AHEAD: Feed("bare", settings, _CACHE, (), *batch),
            _TFRECORD: Feed("tfrecord", settings, "", files, *batch),
        }
        with contextlib.ExitStack() as stack:
            processes = {}
            for way in ways:
                processes[way] = stack.enter_context(FeedProcess(feeds[way]))
                say(f"{way}: {processes[way].setting}")
            searches = {way: Search(accelerators, workload.least_utilisation) for way in ways}
            _search(processes, searches, workload, seconds, say)
    return [
        _supported(way, processes[way].setting, searches[way], workload, profile, accelerators)
        for way in ways
    ]


def _search(
    processes: dict[str, FeedProcess],
    searches: dict[str, Search],
    workload: Workload,
    seconds: float,
    say: Say,
) -> None:
    """Run all searches to their end, one run of each in turn, in both orders."""
    order = list(searches)
    while any(searches[way].next is not None for way in order):
        for way in order:
            if (number := searches[way].next) is None:
                continue
            run = processes[way].run(number, workload.step_s, seconds)
            searches[way].add(run)
            say(
                f"{way}: {number} accelerator{'s' if number > 1 else ''}, {100 * run.utilisation:.1f} % at work"
            )
        order.reverse()


def _supported(
    way: str, setting: str, search: Search, workload: Workload, profile: Profile, most: int
) -> Supported:
    shown = search.runs[0] if search.best is None else search.best
    figures = _figures(shown, workload)
    return Supported(
        workload=workload.name,
        way=way,
        accelerators=0 if search.best is None else shown.accelerators,
        utilisation=figures["utilisation"],
        needed=workload.least_utilisation,
        mb_per_s=figures["mb_per_s"],
        memory_mb=shown.memory_mb,
        first_ms=shown.first_ms,
        wait_p50_ms=shown.wait_p50_ms,
        wait_p99_ms=shown.wait_p99_ms,
        limit=search.best is not None and shown.accelerators == most,
        setting=setting,
        sample_bytes=workload.sample_bytes,
        batch=workload.batch,
        step_s=workload.step_s,
        samples=profile.rows // workload.sample_rows,
        runs=tuple(_figures(run, workload) for run in search.runs),
    )


def _figures(run: Fed, workload: Workload) -> dict[str, Any]:
    return {
        "accelerators": run.accelerators,
        "utilisation": round(run.utilisation, 4),
        "mb_per_s": round(run.batches_per_s * workload.batch_bytes / 1e6, 1),
        "memory_mb": run.memory_mb,
        "first_ms": run.first_ms,
        "wait_p50_ms": run.wait_p50_ms,
        "wait_p99_ms": run.wait_p99_ms,
    }


@contextlib.contextmanager
def _samples(
    settings: Settings, workload: Workload, most_bytes: int, files: bool, say: Say
) -> Generator[tuple[Profile, tuple[str, ...]], None, None]:
    """Load samples, write them to files if wanted, and remove both at the end."""
    with connect(settings=settings) as client, contextlib.ExitStack() as stack:
        drop_rows(client, _CACHE)  # left by an interrupted run
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ignitetf-bench-")))
        profile = _sized(client, workload, most_bytes, folder if files else None, say)
        stack.callback(drop_rows, client, _CACHE)
        fill_cache(client, profile, cache=_CACHE)
        if not files:
            yield profile, ()
            return
        say("writing the same samples to TFRecord files")
        target = folder / "samples"
        export_dataset(_CACHE, str(target), client=client, format="tfrecord", shards=_FILES)
        yield profile, tuple(str(path) for path in sorted(target.glob("*.tfrecord")))


def _sized(
    client: Client, workload: Workload, most_bytes: int, folder: Path | None, say: Say
) -> Profile:
    """Return the number of rows that fit: whole batches, at least one."""
    batch = workload.batch_bytes
    used, most = data_regions(client).get("default", (0, 0))
    room = int(_NODE_SHARE * (most - used)) if most else most_bytes
    if room < batch:
        raise ServerOverloaded(
            f"a batch of {workload.name} has {batch / 1e6:,.0f} MB, and of the node's free memory"
            f" {room / 1e6:,.0f} MB may be used",
            hint="give the node more memory (ignitetf node start --memory SIZE), or remove data",
        )
    nbytes = max(batch, min(most_bytes, room))
    if folder is not None:
        free = int(_DISK_SHARE * shutil.disk_usage(folder).free)
        if free < batch:
            raise ConfigError(
                f"{folder.parent} has no room for {batch / 1e6:,.0f} MB of files",
                hint="set TMPDIR to a folder with more room",
            )
        nbytes = min(nbytes, free)
    # Whole batches: the rest at the end of an epoch would be read and not used.
    samples = nbytes // batch * workload.batch
    free_text = f"; the node has {(most - used) / 1e9:.2f} GB free" if most else ""
    say(
        f"loading {samples:,} samples of {workload.sample_bytes:,} bytes,"
        f" {samples * workload.sample_bytes / 1e9:.2f} GB{free_text}"
    )
    rows = samples * workload.sample_rows
    return Profile(rows, workload.row_bytes, workload.batch_rows)
