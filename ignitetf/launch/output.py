"""The output of the workers: whole lines, each with the name of its worker in front.

bytes of a pipe -> **output** -> lines -> terminal, file
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import IO, Final

from ignitetf.launch.roles import Role

__all__ = ["Lines", "Prefixed"]

_LONGEST: Final = 1 << 16
# A progress bar is redrawn many times a second; its line is shown once per this interval.
_REDRAWN_S: Final = 1.0
_COLOURS: Final = (36, 33, 32, 35, 34, 31)


class Lines:
    """Splits the bytes of one stream into lines, without line ends.

    A line that is redrawn (with a carriage return, as by progress bars) is yielded only once a
    second, and when it ends.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._drawn = 0.0

    def feed(self, data: bytes) -> Iterator[str]:
        """Append bytes, and yield the complete lines."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield _text(line.rstrip(b"\r").rpartition(b"\r")[2])
        while len(rest) > _LONGEST:
            yield _text(rest[:_LONGEST])
            rest = rest[_LONGEST:]
        drawn, over, rest = rest.rpartition(b"\r")
        if over and rest == b"" and (now := time.monotonic()) - self._drawn >= _REDRAWN_S:
            self._drawn = now
            yield _text(drawn.rpartition(b"\r")[2])
            self._rest = b""
        else:
            self._rest = drawn.rpartition(b"\r")[2] + over + rest

    def end(self) -> Iterator[str]:
        """Yield the last line if it is incomplete."""
        if self._rest.strip(b"\r"):
            yield _text(self._rest.rstrip(b"\r").rpartition(b"\r")[2])
        self._rest = b""


class Prefixed:
    """Writes lines to this process's streams, in colour on a terminal.

    Args:
        out: Receives the workers' standard output.
        err: Receives their standard error.
    """

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._streams = {"stdout": out, "stderr": err}
        self._gone: list[IO[str]] = []
        plain = bool(os.environ.get("NO_COLOR"))
        self._coloured = {
            name: stream.isatty() and not plain for name, stream in self._streams.items()
        }

    def write(self, role: Role, stream: str, line: str) -> None:
        """Write one line of a worker.

        Args:
            role: The worker.
            stream: "stdout" or "stderr".
            line: The line, without its end.

        Raises:
            OSError: The reader of the stream has closed it; raised for the first line only.
        """
        prefix = f"[{role.name}]"
        if self._coloured[stream]:
            prefix = f"\033[{_COLOURS[role.number % len(_COLOURS)]}m{prefix}\033[0m"
        target = self._streams[stream]
        if target in self._gone:
            return
        try:
            target.write(f"{prefix} {line}\n")
            target.flush()
        except OSError:
            # Raised once, so that output during the end of the job does not disturb it.
            self._gone.append(target)
            raise


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
