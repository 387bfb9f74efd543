"""Processes that read and check many small image files.

names -> **worker process** -> encoded images or pixels -> threads of the loader

Small files spend most of their time in Python itself, where threads block each other. A worker is a
plain process with two pipes: it imports nothing of the program that started it, and ends when that
program ends. If a worker fails, its files are read in the thread instead.

`ProcessPoolExecutor` is not used: its processes run the main module of the program again (or are
    forked from its threads), outlive a killed program, and are all lost with the first one that
    dies. Reading 20,000 PNG files of 28 x 28 on 2 cores takes 0.40 s here and 0.52 s there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Final

from ignitetf.load.sources.location import Place
from ignitetf.load.sources.pictures import Loaded, Recipe

__all__ = ["Workers", "main"]

_SIZE: Final = struct.Struct("<Q")
_START: Final = (
    "import sys; sys.path[:] = {path!r}; from ignitetf.load.sources.workers import main; main()"
)
# Exceptions of the pipes, and of unpickling the answer of a dead or damaged worker.
_FAILURES: Final = (OSError, EOFError, ValueError, pickle.UnpicklingError, struct.error)


class Workers:
    """A few worker processes, each used by one thread at a time; a context manager.

    Args:
        recipe: Handling of each file.
        count: Number of processes.
    """

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.recipe = recipe
        self._all = [process for _ in range(count) if (process := _start()) is not None]
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._all:
            self._free.put(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # data for a dead worker
                    if pipe is not None:
                        pipe.close()

    def load_all(self, folder: Place, names: Sequence[str]) -> list[Loaded]:
        """Run `Recipe.load_all` in a free worker; called in threads, for local files."""
        try:
            process = self._free.get_nowait()
        except queue.Empty:
            return self.recipe.load_all(folder, names)
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, (folder, self.recipe, list(names)))
            found: list[Loaded] = _receive(process.stdout)
        except _FAILURES:
            process.kill()  # a failed worker is not used again
            return self.recipe.load_all(folder, names)
        self._free.put(process)
        return found


def _start() -> subprocess.Popen[bytes] | None:
    """Start a worker process; None if the interpreter cannot be started again."""
    code = _START.format(path=[os.path.abspath(p) for p in sys.path])  # noqa: PTH100
    try:
        return subprocess.Popen(
            [sys.executable or "python", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_SIZE.pack(len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> list[Loaded]:
    (size,) = _SIZE.unpack(_exactly(stream, _SIZE.size))
    # The data are from our own process, through a pipe; its program is this module.
    found: list[Loaded] = pickle.loads(_exactly(stream, size))  # nosec B301
    return found


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("the pipe ended")
    return data


def main() -> None:
    """Run the worker: answer requests from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader ends its workers itself
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # library output must not get into the answers
    requests = sys.stdin.buffer
    while head := requests.read(_SIZE.size):
        (size,) = _SIZE.unpack(head)
        folder, recipe, names = pickle.loads(_exactly(requests, size))  # nosec B301
        _send(answers, recipe.load_all(folder, names))
