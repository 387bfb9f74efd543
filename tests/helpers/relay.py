"""The listening side of relays to a node: what clients connect to, and a thread that accepts."""

import contextlib
import socket
import threading


class Relay:
    """Listens on a free port of 127.0.0.1; a subclass has `serve`, which gets each connection.

    Args:
        target: HOST:PORT of the node.

    Attributes:
        address: HOST:PORT of the relay.
    """

    def __init__(self, target):
        self._target = target.rsplit(":", 1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self._listener.close()

    def connect(self):
        """Return a new connection to the node."""
        host, port = self._target
        return socket.create_connection((host, int(port)))

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.serve(near)
