"""Ports for nodes and servers that tests start."""

import contextlib
import random
import socket


def free_port(count=1):
    """Return the first of `count` consecutive ports that are free now."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for other in range(1, count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + other))
                return port


def lasting_port(count=1):
    """Return the first of `count` consecutive free ports that a node can come back to.

    The system assigns ports to connections from a higher range, which `free_port` may return.
    """
    from ignitetf.node.ports import is_free

    while True:
        first = random.randrange(15_000, 30_000)
        if all(is_free(first + i) for i in range(count)):
            return first
