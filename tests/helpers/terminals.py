"""A program in a pseudo-terminal, as a person uses it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\].*?\x07|[()][A-Z0-9]|[=>78])")
_LIMIT_S = 60


class Terminal:
    """A program in a pseudo-terminal of a size."""

    def __init__(self, *command: str, size: tuple[int, int], env: dict[str, str]) -> None:
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self._program = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(other)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def read_until(self, pattern: str) -> str:
        """Return what was shown since the last call, up to what matches."""
        deadline = time.monotonic() + _LIMIT_S
        while not (found := re.search(pattern, self.screen)):
            if not select.select([self._side], [], [], max(0, deadline - time.monotonic()))[0]:
                pytest.fail(f"no {pattern!r} in {self.screen!r}")
            with contextlib.suppress(OSError):
                data = os.read(self._side, 1 << 16).decode(errors="replace")
                self.screen += _ESCAPES.sub("", data)
        shown, self.screen = self.screen[: found.end()], self.screen[found.end() :]
        return shown.replace("\r", "")

    def wait(self) -> int:
        deadline = time.monotonic() + _LIMIT_S
        while self._program.poll() is None and time.monotonic() < deadline:
            if select.select([self._side], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(self._side, 1 << 16)
        return self._program.wait(1)

    def close(self) -> None:
        if self._program.poll() is None:
            os.killpg(self._program.pid, signal.SIGKILL)
            self._program.wait()
        os.close(self._side)
