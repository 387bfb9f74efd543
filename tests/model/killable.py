"""Loads in processes that can be killed: a program that forks one for each line it reads.

A line is a JSON object: address, name, generation, rows, pause (seconds before each batch) and
options of `load_dataset`. The program answers with the number of the process.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

from ignitetf.load.sources.arrays import ArraySource

GROUPS = 5
_BATCH_BYTES = 1_500
_SPAN = 1 << 20


def row_of(generation, number):
    """The N, T and G of a record: no other record has this N."""
    n = generation * _SPAN + number
    return n, f"t{n}", number % GROUPS


class Records(ArraySource):
    """The records of a generation, in small batches with a pause before each."""

    def __init__(self, generation, rows, pause=0.0):
        found = [row_of(generation, number) for number in range(rows)]
        super().__init__(
            {
                "N": np.array([row[0] for row in found], np.int64),
                "T": [row[1] for row in found],
                "G": np.array([row[2] for row in found], np.int32),
            }
        )
        self._pause = pause

    def _read(self, start, max_bytes):
        for found in super()._read(start, min(max_bytes, _BATCH_BYTES)):
            time.sleep(self._pause)
            yield found


class Loaders:
    """The program, started when it is first needed; a context manager."""

    def __init__(self):
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(60)
            self._process.stdout.close()

    def load_and_kill(self, after, **work):
        """Start a load and kill it after some seconds, unless it has ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        print(json.dumps(work), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        until = time.monotonic() + after
        while time.monotonic() < until and _runs(pid):
            time.sleep(0.005)
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)
        while _runs(pid):
            time.sleep(0.005)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _load(address, name, generation, rows, pause, options):
    from ignitetf.load.loader import load_dataset
    from ignitetf.net.client import connect

    with connect(address) as client:
        load_dataset(Records(generation, rows, pause), name, client=client, **options)


def main():
    import ignitetf.load.loader
    import ignitetf.net.client  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                _load(**json.loads(line))
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
