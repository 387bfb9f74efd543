"""Ports of a group, held until its processes listen on them.

TensorFlow and JAX listen with SO_REUSEADDR. On Linux such a socket may take a port on which another
socket with SO_REUSEADDR is bound but does not listen. So the launcher keeps one bound to each port:
the system gives it to nobody who asks for any port, and no connection ends up there. Other systems
do not allow it; there the ports are free from the moment that the processes start.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Final

from ignitetf.errors import ConfigError
from ignitetf.launch.roles import ADDRESS

__all__ = ["HeldPorts"]

_CAN_HOLD: Final = sys.platform == "linux"


class HeldPorts:
    """Free ports of the loopback interface, which nobody else is given; close them in the end.

    Args:
        count: How many.

    Attributes:
        numbers: The ports.

    Raises:
        ConfigError: There are not so many.
    """

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((ADDRESS, 0))
        except OSError as error:
            self.close()
            raise ConfigError(
                f"no {count} free ports on {ADDRESS}: {error.strerror}",
                hint="end what uses them, or start fewer workers",
            ) from error
        self.numbers = [held.getsockname()[1] for held in self._sockets]

    def hand_over(self) -> None:
        """Let the processes that start now listen on the ports."""
        if not _CAN_HOLD:
            self.close()

    def close(self) -> None:
        """Let go of the ports."""
        for held in self._sockets:
            with contextlib.suppress(OSError):
                held.close()
        self._sockets = []
