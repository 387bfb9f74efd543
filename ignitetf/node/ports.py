"""TCP ports of the loopback interface: find free ones, wait for one to become free."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping

from ignitetf.errors import NodeError

__all__ = ["LOOPBACK", "client_ports", "free_ports", "is_free", "wait_free"]

LOOPBACK = "127.0.0.1"
_LAST = 65_535
_EXIT_S = 10.0


def is_free(port: int) -> bool:
    """True if a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":  # on Windows the option would allow two processes on one port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def client_ports(first: int, count: int, owners: Mapping[int, str]) -> list[int]:
    """Return `count` consecutive ports starting at `first`.

    Args:
        first: The first port.
        count: Number of ports.
        owners: Ports of other embedded nodes, with their names.

    Raises:
        NodeError: A port is taken or out of range; the message names the option.
    """
    if not 1 <= first <= _LAST - count + 1:
        raise NodeError(
            f"--port {first} is out of range for {count} node{'s' if count > 1 else ''}",
            hint=f"choose a port from 1 to {_LAST - count + 1}",
        )
    ports = list(range(first, first + count))
    for port in ports:
        if port in owners or not is_free(port):
            option = f"--port {first}" if count == 1 else f"--port {first} with --nodes {count}"
            owner = f"node {owners[port]!r}" if port in owners else "another program"
            raise NodeError(
                f"port {port} ({option}) is taken by {owner}",
                hint="choose another with --port, or stop the program that uses it",
                port=port,
            )
    return ports


def wait_free(port: int) -> bool:
    """Wait until the port of a killed process is free; False if it is not after 10 s.

    A killed process appears ended before its last thread has closed its sockets.
    """
    deadline = time.monotonic() + _EXIT_S
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def free_ports(start: int, excluded: Collection[int]) -> Iterator[int]:
    """Yield free ports from `start` upwards, skipping the excluded ones.

    Raises:
        NodeError: No port is free.
    """
    for port in range(start, _LAST + 1):
        if port not in excluded and is_free(port):
            yield port
    raise NodeError("no free port was found for the node", hint="stop nodes that are not needed")
