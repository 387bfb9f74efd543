"""Requests to end a job that come as signals: Ctrl-C, SIGTERM, SIGHUP.

A handler that raises could leave a process half started, so these only take notes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Requests"]

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")


class Requests:
    """What asks for the end of a job, while this context is open.

    Args:
        asked: Whether somebody else asks for it, such as `ignitetf stop`.

    Attributes:
        number: The first signal that came; None if none did.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.number: int | None = None
        self.hurry = False
        self._asked = asked
        self._before: dict[int, Any] = {}

    @property
    def signal(self) -> int:
        """Number of the signal whose exit code a stopped job has."""
        return int(signal.SIGTERM) if self.number is None else self.number

    @property
    def name(self) -> str:
        """Name of that signal."""
        return signal.Signals(self.signal).name

    @property
    def stopping(self) -> bool:
        """Whether the job shall end."""
        return self.number is not None or self._asked()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _SIGNALS:
                number = getattr(signal, name)
                # nohup and a shell's background jobs ignore signals deliberately.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        # The second one ends the job without grace.
        self.hurry = self.number is not None
        if self.number is None:
            self.number = number
