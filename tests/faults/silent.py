"""A peer that takes connections and gives as good as nothing, for the tests of time limits.

with Silent("trickles") as peer:
    connect(peer.address)
"""

import contextlib
import socket
import struct
import threading

KINDS = ("accepts", "trickles at once", "shakes hands", "trickles")
# Success; features: none, in one byte; the id of a node.
_WELCOME = struct.pack("<bbib", 1, 12, 1, 0) + bytes([10]) + bytes(range(16))
_PAUSE_S = 0.05


class Silent:
    """Listens on a free port of 127.0.0.1.

    Args:
        kind: "accepts" never answers; "trickles at once" gives a byte of its handshake now and
            then; "shakes hands" and then never answers; "trickles" shakes hands, and answers each
            request with a byte of a long answer now and then; "reads nothing" after the handshake.
    """

    def __init__(self, kind):
        assert kind in (*KINDS, "reads nothing")
        self.kind = kind
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed, self._asked = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._open = set()
        self.connections = 0
        self._threads = []
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._closed.set()
        self._asked.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self._threads)

    @property
    def held(self):
        """Connections that the other side has not closed."""
        with self._lock:
            return len(self._open)

    def held_after(self, seconds):
        """`held`, once there were connections and it is zero, or the seconds are over."""
        self._asked.set()
        for _ in range(int(seconds / _PAUSE_S)):
            if self.connections and not self.held:
                break
            self._closed.wait(_PAUSE_S)
        return self.held

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, name="silent", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(sock)
            self._start(self._serve, sock)

    def _serve(self, sock):
        try:
            if self.kind == "trickles at once":
                self._trickle(sock, struct.pack("<i", 60_000) + bytes(60_000))
            if self.kind in ("shakes hands", "trickles", "reads nothing"):
                self._request(sock)
                sock.sendall(struct.pack("<i", len(_WELCOME)) + _WELCOME)
            if self.kind == "trickles":
                request = self._request(sock)
                head = struct.pack("<iqh", 100_000, struct.unpack_from("<q", request, 2)[0], 0)
                self._trickle(sock, head + bytes(100_000 - 10))
            if self.kind == "reads nothing":
                self._asked.wait()
            while sock.recv(65536):
                pass
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _request(self, sock):
        (length,) = struct.unpack("<i", self._exactly(sock, 4))
        return self._exactly(sock, length)

    def _exactly(self, sock, count):
        data = b""
        while len(data) < count:
            if not (piece := sock.recv(count - len(data))):
                raise ConnectionResetError
            data += piece
        return data

    def _trickle(self, sock, data):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            sock.sendall(bytes([byte]))
            if self._closed.wait(_PAUSE_S):
                return
