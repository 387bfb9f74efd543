"""A distant cluster: a proxy through which every byte takes its time, as many as there may be."""

import collections
import contextlib
import socket
import sys
import threading
import time

_PIECE = 256 << 10


class Distant:
    """Listens on a free port of 127.0.0.1; `address` is what clients connect to.

    Args:
        target: `HOST:PORT` that is behind it.
        delay_s: Seconds from one side to the other, each way.

    Attributes:
        delay_s: As given; may be changed.
        connections: Connections that were made.
        resets: Of them, those that either side ended by a reset.
    """

    def __init__(self, target, delay_s):
        host, _, port = target.rpartition(":")
        self._target, self.delay_s = (host, int(port)), delay_s
        self._open = []
        self.connections = self.resets = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        _start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._target, 5)
                node.settimeout(None)
                self.connections += 1
                self._open += [client, node]
                for sock in (client, node):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pump(client, node)
                self._pump(node, client)

    def _pump(self, source, sink):
        pieces, there = collections.deque(), threading.Semaphore(0)
        _start(self._take, source, pieces, there)
        _start(self._give, sink, pieces, there)

    def _take(self, source, pieces, there):
        piece = b"."
        while piece:
            try:
                piece = source.recv(_PIECE)
            except OSError as error:
                piece = b""
                self._failed(error)
            pieces.append((time.monotonic() + self.delay_s, piece))
            there.release()

    def _give(self, sink, pieces, there):
        try:
            while True:
                there.acquire()
                due, piece = pieces.popleft()
                time.sleep(max(0.0, due - time.monotonic()))
                if not piece:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(piece)
        except OSError as error:
            self._failed(error)

    def _failed(self, error):
        # A socket tells a reset once: to whoever sends or receives first.
        self.resets += isinstance(error, ConnectionResetError | BrokenPipeError)


def _start(work, *args):
    threading.Thread(target=work, args=args, name="distant", daemon=True).start()


def main(target, delay_s):
    """Be such a proxy until the standard input ends; the first line of the output is the address."""
    with Distant(target, float(delay_s)) as proxy:
        print(proxy.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
