"""Ports for nodes and servers that tests start."""

import contextlib
import random
import socket


def free_port(count=1):
    """The first of `count` ports in a row that nobody uses now."""
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
    """The first of `count` free ports that stay its node's own while that is away.

    The system gives connections ports from above; `free_port` may name one of those.
    """
    from ignitetf.node.ports import is_free

    while True:
        first = random.randrange(15_000, 30_000)
        if all(is_free(first + i) for i in range(count)):
            return first
