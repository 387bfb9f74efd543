"""Loads in processes that can be killed and stopped: a program that forks one for each line.

A line has: address, cache, layout, mode, number of the source, rows, seconds of each batch, and
the file for the outcome. The program answers with the number of the process; the outcome is `ok`,
or the class of the error and its text.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SPAN = 100_000  # labels of source k begin at k * SPAN


def arrays(number, rows):
    rng = np.random.default_rng(number)
    return {
        "BLOB": rng.integers(0, 256, (rows, 50), dtype=np.uint8),
        "LABEL": np.arange(rows, dtype=np.int32) + number * SPAN,
    }


class Loader:
    """One load under way."""

    def __init__(self, pid, place):
        self.pid, self.place = pid, place

    def send(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def outcome(self, limit_s=60):
        """`ok`, or the error; None of one that was killed."""
        deadline = time.monotonic() + limit_s
        while not self.place.exists():
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                break
            assert time.monotonic() < deadline, "the loader hangs"
            time.sleep(0.01)
        return self.place.read_text() if self.place.exists() else None


class Loaders:
    """The program, which is started once; a context manager."""

    def __init__(self, address, folder):
        self.address, self.folder, self.count = address, folder, 0

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait(60)

    def start(self, cache, layout, mode, number, rows, batch_s):
        self.count += 1
        place = self.folder / f"{cache}-{self.count}"
        words = [self.address, cache, layout, mode, number, rows, batch_s, place]
        print(*words, file=self.process.stdin, flush=True)
        return Loader(int(self.process.stdout.readline()), place)


def load(address, cache, layout, mode, number, rows, batch_s):
    from ignitetf.load.loader import load_dataset
    from ignitetf.net.client import connect

    with connect(address) as client:
        load_dataset(
            arrays(int(number), int(rows)),
            cache,
            client=client,
            partitions=4,
            layout=layout,
            index=("LABEL",),
            if_exists=mode,
            on_progress=lambda rows, nbytes: time.sleep(float(batch_s)),
        )


def child(words, place):
    try:
        load(*words)
        text = "ok"
    except BaseException as error:
        text = f"{type(error).__name__} {error}"
    part = Path(f"{place}.part")
    part.write_text(text)
    part.rename(place)
    os._exit(0)


def main():
    import signal

    import ignitetf.load.loader  # noqa: F401
    from ignitetf.load import blocks, fill
    from ignitetf.load.sources import base
    from ignitetf.tables import lease

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fill._NOTE_S, fill._NOTE_TRIPS, base.BATCH_BYTES = 0.02, 0, 20_000
    blocks.BLOCK_BYTES, blocks._CHUNK_BYTES = 5_000, 10_000
    lease.EXPIRES_S, lease.TRUSTED_S, lease.RENEWED_S = 3.0, 1.5, 0.2
    for line in sys.stdin:
        *words, place = line.split()
        pid = os.fork()
        if pid == 0:
            child(words, place)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
