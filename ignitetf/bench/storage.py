"""`ignitetf bench storage`: accelerators that a cluster, or files of other formats, keep busy.

workload -> samples in a cache and in files -> accelerators 1, 2, 4 ... -> **the most at work**

Each step is a sleep, as in MLPerf Storage. For each way to read, the benchmark finds how many
accelerators its processes can feed so that they compute for the required share of their time. All
ways run in turn, over the same samples; the files are in the page cache, since they were just
written. A bare socket shows the upper limit of what the nodes can send here.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ignitetf import Client, connect
from ignitetf.bench.feeding import Fed, Feed, FeedGroup
from ignitetf.bench.peers import PEERS, missing_packages
from ignitetf.bench.read import BARE_AHEAD
from ignitetf.bench.rows import Profile, drop_rows, fill_cache, make_rows, sized
from ignitetf.bench.workloads import Workload
from ignitetf.errors import ConfigError, ServerOverloaded
from ignitetf.explore.cluster import data_regions
from ignitetf.settings import Settings

__all__ = ["WAYS", "Search", "Supported", "bench_storage"]

_CACHE: Final = "IGNITETF_BENCH_STORAGE"
_MOST_BYTES: Final = 2_000_000_000
# Share of the free memory: rows need a little more than their bytes, and other clients need room.
_NODE_SHARE, _DISK_SHARE = 0.6, 0.5
# The files have parts of this size, so that each of several processes has some to read.
_FILE_PART_BYTES: Final = 8 << 20
_CLUSTER: Final = {"ignitetf": "ignitetf", BARE_AHEAD: "bare"}
WAYS: Final = (*_CLUSTER, *PEERS)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Supported:
    """The accelerators that one way of reading keeps busy.

    Attributes:
        workload: Name of the workload.
        way: The way of reading.
        accelerators: The largest number tried whose utilisation was high enough; 0 for none.
        utilisation: Their share of time computing; that of one accelerator if none was kept busy.
        needed: The required share.
        mb_per_s: Megabytes (10^6) of samples per second that they consumed.
        memory_mb: Peak memory of the reading process minus its memory before reading.
        first_ms: Milliseconds to the first batch of what is open already.
        wait_p50_ms: Median of the milliseconds that a step waited for its batch.
        wait_p99_ms: Their 99th percentile.
        cpu_s_per_gb: Processor seconds of the reading processes for each gigabyte (10^9).
        limit: True if this is the largest number allowed, so that the true number may be higher.
        setting: The setting of that way.
        sample_bytes: Bytes of a sample.
        batch: Samples of a step.
        step_s: Seconds of a step.
        samples: Samples of the data set, which was read repeatedly.
        runs: All runs: `accelerators`, `utilisation`, `mb_per_s`, `memory_mb`, `first_ms`,
            `wait_p50_ms`, `wait_p99_ms`, `cpu_s_per_gb`.
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
    cpu_s_per_gb: float
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
    ways: Sequence[str] = (),
    processes: int = 1,
    accelerators: int = 64,
    seconds: float = 5.0,
    most_bytes: int = _MOST_BYTES,
    say: Say = lambda message: None,
) -> list[Supported]:
    """Find how many accelerators each way of reading keeps busy.

    Args:
        settings: Settings of the connection to the cluster; the samples are loaded there and removed
            afterwards.
        workload: Samples and steps.
        ways: Names of the ways, of `WAYS`; all that can run here if empty.
        processes: Number of processes of each way; each reads its share of the samples.
        accelerators: The largest number to try.
        seconds: Duration of each run.
        most_bytes: Maximum bytes of samples; fewer if the node or the machine has less room.
        say: Receives lines for the user.

    Returns:
        One for each way, in the order of `WAYS`.

    Raises:
        ServerOverloaded: The node has no room for a batch.
        ConfigError: A way is unknown or its package is missing, or the disk has no room.
    """
    if workload.note:
        say(f"{workload.name}: {workload.note}")
    chosen = _chosen(ways, workload, say)
    with _samples(settings, workload, most_bytes, chosen, say) as (profile, folder):
        names = tuple(next(make_rows(sized(profile, 1))))[: workload.columns or None]
        columns = names if workload.columns else ()
        with contextlib.ExitStack() as stack:
            groups = {}
            for way in chosen:
                kind = _CLUSTER.get(way, way)
                place = str(folder / _folder(way)) if kind in PEERS else ""
                batch = profile.batch, workload.batch_bytes
                feed = Feed(kind, settings, _CACHE, place, *batch, columns)
                groups[way] = stack.enter_context(FeedGroup(feed, processes))
                say(f"{way}: {groups[way].setting}")
            searches = {way: Search(accelerators, workload.least_utilisation) for way in chosen}
            _search(groups, searches, workload, seconds, say)
    return [
        _supported(way, groups[way].setting, searches[way], workload, profile, accelerators)
        for way in chosen
    ]


def _chosen(ways: Sequence[str], workload: Workload, say: Say) -> list[str]:
    """Return the ways that can run, in the order of `WAYS`; say which ones are left out."""
    for way in ways:
        if way not in WAYS:
            hint = f"the ways are: {'; '.join(WAYS)}"
            raise ConfigError(f"unknown way to read: {way!r}", hint=hint)
    chosen = []
    for way in WAYS:
        peer = PEERS.get(way)
        missing = missing_packages(peer) if peer is not None else []
        if ways and way not in ways:
            continue
        if missing and ways:
            raise ConfigError(
                f"{way} needs the package {missing[0]!r}", hint=f"pip install {' '.join(missing)}"
            )
        if missing:
            say(f"{way} is left out: it needs {', '.join(missing)}")
        elif peer is not None and workload.row_bytes < peer.least_bytes and not ways:
            say(f"{way} is left out: samples are smaller than {peer.least_bytes:,} bytes")
        else:
            chosen.append(way)
    return chosen


def _folder(way: str) -> str:
    """Return the name of the folder of a way's files; ways with the same files share it."""
    return PEERS[way].write.__name__.strip("_")


def _search(
    groups: dict[str, FeedGroup],
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
            run = groups[way].run(number, workload.step_s, seconds)
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
        cpu_s_per_gb=shown.cpu_s_per_gb,
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
        "cpu_s_per_gb": run.cpu_s_per_gb,
    }


@contextlib.contextmanager
def _samples(
    settings: Settings, workload: Workload, most_bytes: int, ways: Sequence[str], say: Say
) -> Generator[tuple[Profile, Path], None, None]:
    """Load samples, write them to the files of each way, and remove all at the end."""
    writers = {_folder(way): PEERS[way].write for way in ways if way in PEERS}
    with connect(settings=settings) as client, contextlib.ExitStack() as stack:
        drop_rows(client, _CACHE)  # left by an interrupted run
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ignitetf-bench-")))
        profile = _sized(client, workload, most_bytes, folder, len(writers), say)
        stack.callback(drop_rows, client, _CACHE)
        fill_cache(client, profile, cache=_CACHE)
        # Whole batches: readers of some formats cut their batches at the end of a part.
        part_bytes = max(1, _FILE_PART_BYTES // workload.batch_bytes) * workload.batch_bytes
        for name, write in writers.items():
            say(f"writing the same samples to files: {name.removeprefix('write_')}")
            (folder / name).mkdir()
            write(make_rows(profile, part_bytes), folder / name)
        yield profile, folder


def _sized(
    client: Client, workload: Workload, most_bytes: int, folder: Path, copies: int, say: Say
) -> Profile:
    """Return the number of rows that fit: whole batches, at least one."""
    batch = workload.batch_bytes
    used, most = data_regions(client).get("default", (0, 0))
    room = int(_NODE_SHARE * (most - used)) if most else most_bytes
    if room < batch:
        raise ServerOverloaded(
            f"a batch of {workload.name} has {batch / 1e6:,.0f} MB, but only {room / 1e6:,.0f} MB of"
            " the node's memory may be used",
            hint="give the node more memory (ignitetf node start --memory SIZE), or remove data",
        )
    nbytes = max(batch, min(most_bytes, room))
    if copies:
        free = int(_DISK_SHARE * shutil.disk_usage(folder).free) // copies
        if free < batch:
            raise ConfigError(
                f"{folder.parent} has no room for {copies * batch / 1e6:,.0f} MB of files",
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
    return Profile(rows, workload.row_bytes, workload.batch_rows, workload.kind)
