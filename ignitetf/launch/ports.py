"""Ports of a group, held until its processes listen on them.

TensorFlow and JAX listen with SO_REUSEADDR. On Linux such a socket may take a port on which another
socket with SO_REUSEADDR is bound but does not listen. So the launcher keeps a socket bound to each
port: the system does not assign the port to other processes, and no connection reaches the
launcher. Other systems do not allow this; there the ports become free when the processes start.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Final, Protocol

from ignitetf.errors import ConfigError
from ignitetf.launch.roles import ADDRESS

__all__ = ["Ports", "ReservedPorts"]

_CAN_RESERVE: Final = sys.platform == "linux"


class Ports(Protocol):
    """The ports of a group: one for each member, and one for the coordinator of JAX."""

    numbers: list[int]

    def allow_listening(self) -> None:
        """Allow the processes that start now to listen on the ports."""

    def close(self) -> None:
        """Release the ports."""


class ReservedPorts:
    """Free ports of an interface, reserved until `close`.

    Args:
        count: Number of ports.
        address: The interface; loopback by default.

    Attributes:
        numbers: The ports.

    Raises:
        ConfigError: There are not enough free ports.
    """

    def __init__(self, count: int, address: str = ADDRESS) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((address, 0))
        except OSError as error:
            self.close()
            raise ConfigError(
                f"no {count} free ports on {address}: {error.strerror}",
                hint="end the programs that use them, or start fewer workers",
            ) from error
        self.numbers = [held.getsockname()[1] for held in self._sockets]

    def allow_listening(self) -> None:
        """Allow the processes that start now to listen on the ports."""
        if not _CAN_RESERVE:
            self.close()

    def close(self) -> None:
        """Release the ports."""
        for held in self._sockets:
            with contextlib.suppress(OSError):
                held.close()
        self._sockets = []
