"""Requests to end a job by signals: Ctrl-C, SIGTERM, SIGHUP.

A handler that raises could leave a process half started, so these handlers only store the request.
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
    """Requests to end a job, received while this context is open.

    Args:
        asked: Returns whether the end was requested in another way, such as `ignitetf stop`.

    Attributes:
        number: The first signal that was received; None if there was none.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.number: int | None = None
        self.hurry = False
        self._asked = asked
        self._before: dict[int, Any] = {}

    @property
    def signal(self) -> int:
        """Number of the signal that determines the exit code of a stopped job."""
        return int(signal.SIGTERM) if self.number is None else self.number

    @property
    def name(self) -> str:
        """Name of the signal that determines the exit code."""
        return signal.Signals(self.signal).name

    @property
    def stopping(self) -> bool:
        """True if the job should end."""
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
        # A second signal ends the job without a grace period.
        self.hurry = self.number is not None
        if self.number is None:
            self.number = number
