"""Half an hour of mixed traffic on three nodes, one of which is killed every minute.

IGNITETF_SOAK_MINUTES sets the length; run it with `-m soak -s` to see the figures.
"""

import contextlib
import ctypes
import gc
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.ports import lasting_port
from helpers.settled import settle

from ignitetf.fs.check import check
from ignitetf.net.client import connect

sys.path.insert(0, str(Path(__file__).parent))
from soak_traffic import Appends, Files, Inserts, Loads, Queries, Reads

MINUTES = float(os.environ.get("IGNITETF_SOAK_MINUTES", "30"))
PERIOD_S = 60.0
SEED = int(os.environ.get("IGNITETF_SOAK_SEED", "20241121"))
# The least growth that is told from the noise of an allocator and a pool of connections.
RSS_GROWTH_MB = 60
DESCRIPTOR_GROWTH = 12

pytestmark = [
    pytest.mark.node,
    pytest.mark.faults,
    pytest.mark.soak,
    pytest.mark.timeout(int(MINUTES * 60 + 900)),
]


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class Samples:
    """Memory and descriptors of this process, one sample every few seconds.

    Attributes:
        rss: Resident memory in MB.
        used: What the program has allocated of it with malloc, in MB; the difference that is not
            Python's own is fragments. Zero where the C library does not tell.
        blocks: Blocks that Python's own allocator has given out.
        descriptors: Open files and sockets.
    """

    def __init__(self):
        self.process = psutil.Process()
        self.rss, self.used, self.blocks, self.descriptors = [], [], [], []

    def take(self):
        gc.collect()
        used = 0.0
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libc.so.6")
            # What the allocator keeps of freed memory is no leak; glibc gives it back here.
            library.malloc_trim(0)
            library.mallinfo2.restype = _Mallinfo2
            found = library.mallinfo2()
            used = (found.uordblks + found.hblkhd) / 1e6
        self.used.append(used)
        self.blocks.append(sys.getallocatedblocks())
        self.rss.append(self.process.memory_info().rss / 1e6)
        self.descriptors.append(self.process.num_fds())

    @staticmethod
    def growth(values):
        """Median of the last quarter against that of the second."""
        quarter = max(1, len(values) // 4)
        return statistics.median(values[-quarter:]) - statistics.median(
            values[quarter : 2 * quarter]
        )


def report(minute, workers, samples, kills):
    rounds = ", ".join(f"{w.name} {w.rounds}" for w in workers)
    errors = sum(sum(w.errors.values()) for w in workers)
    print(
        f"minute {minute:.1f}: kills {kills}, rounds {rounds}; told errors {errors}, wrong"
        f" {sum(len(w.wrong) for w in workers)}; RSS {samples.rss[-1]:.0f} MB,"
        f" allocated {samples.used[-1]:.1f} MB and {samples.blocks[-1]} blocks,"
        f" descriptors {samples.descriptors[-1]}",
        flush=True,
    )


def kill_every_minute(node, workers, samples):
    """Kill a random member and bring it back, until the time is over; gives the kills."""
    rng, kills = random.Random(SEED), 0
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < MINUTES * 60:
        quiet = time.monotonic() + PERIOD_S * rng.uniform(0.4, 0.5)
        while time.monotonic() < quiet:
            time.sleep(5)
            samples.take()
        os.kill(rng.choice(node.pids), signal.SIGKILL)
        kills += 1
        time.sleep(rng.uniform(3, 10))
        node = type(node).start(node.name)
        with connect(node.addresses) as client:
            settle(client)
        report(passed / 60, workers, samples, kills)
        assert not any(w.wrong for w in workers), [w.wrong for w in workers]
        time.sleep(max(0.0, begin + passed + PERIOD_S - time.monotonic()))
    return kills


def test_nothing_is_lost_while_nodes_are_killed(node_home):
    from ignitetf.node import Node

    print(f"\nsoak of {MINUTES:g} minutes, seed {SEED}")
    with Node.start("soak", port=lasting_port(3), nodes=3, memory="600m") as node:
        addresses = node.addresses
        kinds = (Reads, Queries, Inserts, Loads, Appends, Files)
        workers = [kind(addresses, SEED + i) for i, kind in enumerate(kinds)]
        reads, _, inserts, loads, appends, files = workers
        samples = Samples()
        for worker in workers:
            worker.start()
        try:
            kills = kill_every_minute(node, workers, samples)
        finally:
            for worker in workers:
                worker.done.set()
            for worker in workers:
                worker.join(180)
        assert not any(worker.is_alive() for worker in workers), "a worker hangs"
        # The last word: everything that was ever acknowledged, read again.
        for name in loads.ledger:
            loads.check(name)
        for path in files.ledger:
            files.check(path)
        lost = {"inserted": inserts.lost(), "appended": appends.lost()}
        checked = check(files.store, repair=True, read=True)
        for worker in workers:
            print(f"{worker.name}: {worker.rounds} rounds, longest {worker.longest_s:.1f} s")
            for text, count in worker.errors.most_common():
                print(f"  {count} x {text}")
        growth = Samples.growth(samples.rss), Samples.growth(samples.descriptors)
        print(
            f"kills {kills}; acknowledged rows: inserted {len(inserts.ledger)},"
            f" appended {appends.acknowledged}, loads {loads.rounds}; lost {lost};"
            f" files {files.version} written, torn {files.torn}, check ok {checked.ok};"
            f" epochs {reads.rounds}"
        )
        print(
            f"RSS {samples.rss[0]:.0f} to {samples.rss[-1]:.0f} MB (growth {growth[0]:+.1f}),"
            f" descriptors {samples.descriptors[0]} to {samples.descriptors[-1]}"
            f" (growth {growth[1]:+.1f})"
        )
        for worker in workers:
            worker.client.close()
        assert not any(worker.wrong for worker in workers), [w.wrong for w in workers]
        assert all(worker.rounds > MINUTES for worker in workers)
        assert lost == {"inserted": 0, "appended": 0} and files.torn == 0
        assert checked.ok, checked
        assert growth[0] < RSS_GROWTH_MB and growth[1] < DESCRIPTOR_GROWTH
