"""Ends connections on which answers are still under way, without harm to the node.

channel -> **parting**

What arrives at a closed socket is answered by a reset. Of the threads of a node that serve its
connections, four on most machines, the one that meets a reset sleeps for a second, and all other
connections that it serves, of any client, wait. So the node is told first that nothing follows, and
what it still sends is thrown away until it has closed its side, which it does at once.

Source: Apache Ignite 2.17.0, `GridNioServer`, by thread dumps of a node that was slow to answer.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
import time
from typing import Final

from ignitetf.threads import start

__all__ = ["hang_up", "part"]

# How long a node that does not close its side is waited for.
_LONGEST_S: Final = 1.0
# The same at the end of the program.
_AT_EXIT_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 16

_parting: set[threading.Thread] = set()


def part(sock: socket.socket) -> None:
    """Close a socket as soon as the node has closed its side, in a thread; returns at once.

    At the very end of the program there are no more threads, and it waits itself.
    """
    try:
        sock.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=_part, args=(sock,), name="ignitetf-parting", daemon=True)
        _parting.add(thread)
        if not start(thread):
            _part(sock)
    except OSError:  # lost already
        sock.close()


def hang_up(sock: socket.socket) -> None:
    """End the wait of a thread that uses a socket, which then closes it; returns at once.

    The node closes its side as soon as it is told that nothing follows, and that ends the wait.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        timer = threading.Timer(_LONGEST_S, _shut, (sock,))
        timer.daemon = True
        if not start(timer):
            _shut(sock)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _part(sock: socket.socket) -> None:
    until = time.monotonic() + _LONGEST_S
    piece = bytearray(_PIECE_BYTES)
    with contextlib.suppress(OSError), sock:
        while (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv_into(piece):
                break
    _parting.discard(threading.current_thread())


def _wait_at_exit() -> None:
    until = time.monotonic() + _AT_EXIT_S
    for thread in list(_parting):
        with contextlib.suppress(RuntimeError):
            thread.join(max(0.0, until - time.monotonic()))


atexit.register(_wait_at_exit)
