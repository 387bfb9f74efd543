"""A TCP proxy on the loopback interface that does to connections what networks do.

    with Proxy("127.0.0.1:10800", Fault(cut_after=5000), seed=1) as proxy:
        connect(proxy.address)

A `Fault` says what happens to the bytes of one direction of one connection. The proxy takes the
faults of its script in turn, one for each connection, and lets connections after the last one
through untouched (or repeats the script for ever). All chance comes from the seed.
"""

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass

_PIECE = 65536


@dataclass(frozen=True)
class Fault:
    """What happens to a connection.

    Attributes:
        direction: "down", from the node to the client, or "up"; the other way is let through.
        skip: Bytes that pass before anything happens (a handshake has some 60 bytes down).
        delay_s: Wait before each piece is passed on.
        bytes_per_s: Limit of the rate; 0 for none.
        slice_bytes: Pass on pieces of this size; 0 as they come.
        cut_after: Bytes after which both connections are reset; None for never.
        truncate_after: Bytes after which the rest is dropped and the receiver sees an end of
            the stream, while the other way goes on.
        stall_after: Bytes after which nothing is passed on any more, and nothing is closed.
        corrupt_at: Offset of a byte that is changed.
        corrupt_mask: Bits of it that are changed.
    """

    direction: str = "down"
    skip: int = 0
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    slice_bytes: int = 0
    cut_after: int | None = None
    truncate_after: int | None = None
    stall_after: int | None = None
    corrupt_at: int | None = None
    corrupt_mask: int = 0x01

    @property
    def end(self):
        """The offset at which the bytes stop, and how: (offset, method), or None."""
        for name in ("cut", "truncate", "stall"):
            if (after := getattr(self, f"{name}_after")) is not None:
                return self.skip + after, name
        return None


def at_random(kind, rng, most):
    """A fault of this kind at a random place before byte `most`."""
    if kind == "corrupt":
        return Fault(corrupt_at=rng.randrange(most), corrupt_mask=1 << rng.randrange(8))
    if kind == "delay":
        return Fault(delay_s=rng.uniform(0.001, 0.05))
    if kind == "slice":
        return Fault(slice_bytes=rng.randrange(1, 400))
    return Fault(**{f"{kind}_after": rng.randrange(most)})


class Proxy:
    """Listens on a free port of 127.0.0.1; `address` is what clients connect to.

    Args:
        target: `HOST:PORT` that is behind it.
        *script: A fault for each connection in turn; None lets one through.
        repeat: Whether the script begins again after its end.
    """

    def __init__(self, target, *script, repeat=False):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._script, self._repeat = list(script), repeat
        self._lock = threading.Lock()
        self._open, self._threads = set(), []
        self._wet, self._drip_s = None, 0.0
        self.connections = 0
        self.passed = {"up": 0, "down": 0}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed = threading.Event()
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def script(self, *faults, repeat=False):
        """Replace the script; for connections that are made from now on."""
        with self._lock:
            self._script, self._repeat = list(faults), repeat

    def dry_up(self, after, drip_s=0.0):
        """Let so many bytes more down, over all connections, then one each `drip_s` seconds or none.

        A connection that is given up in the middle has used what it was sent.
        """
        with self._lock:
            self._wet, self._drip_s = after, drip_s

    def cut_all(self):
        """Reset every connection that is open now."""
        with self._lock:
            found = list(self._open)
        for sock in found:
            _reset(sock)

    def close(self):
        """Stop listening and cut everything."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self._threads)

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(self._target, 5)
            except OSError:
                _reset(client)
                continue
            node.settimeout(None)
            with self._lock:
                self.connections += 1
                fault = self._script.pop(0) if self._script else None
                if self._repeat and fault is not None:
                    self._script.append(fault)
                self._open |= {client, node}
            for sock in (client, node):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = {"up": (client, node), "down": (node, client)}
            for direction, (source, sink) in ways.items():
                mine = fault if fault is not None and fault.direction == direction else None
                self._start(self._pump, direction, source, sink, mine)

    def _pump(self, direction, source, sink, fault):
        at = 0
        try:
            while piece := source.recv(_PIECE):
                for part in _sliced(piece, fault):
                    end = self._pass_on(direction, part, at, sink, fault)
                    at += len(part)
                    with self._lock:
                        self.passed[direction] += len(part)
                    if end is not None:
                        return self._finish(end, source, sink)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone: so is the other.
            _reset(source)
            _reset(sink)
        return None

    def _pass_on(self, direction, part, at, sink, fault):
        """Send a part that begins at offset `at`; gives how the stream ends in it, if it does."""
        if direction == "down" and self._wet is not None:
            return self._pass_drops(part, sink)
        if fault is None:
            sink.sendall(part)
            return None
        if fault.delay_s and at + len(part) > fault.skip:
            self._closed.wait(fault.delay_s)
        if fault.bytes_per_s:
            self._closed.wait(len(part) / fault.bytes_per_s)
        place = None if fault.corrupt_at is None else fault.skip + fault.corrupt_at - at
        if place is not None and 0 <= place < len(part):
            part = bytearray(part)
            part[place] ^= fault.corrupt_mask
        if (end := fault.end) is not None and end[0] < at + len(part):
            sink.sendall(part[: max(0, end[0] - at)])
            return end[1]
        sink.sendall(part)
        return None

    def _pass_drops(self, part, sink):
        with self._lock:
            wet = min(self._wet, len(part))
            self._wet -= wet
        sink.sendall(part[:wet])
        for at in range(wet, len(part) if self._drip_s else 0):
            if self._closed.wait(self._drip_s):
                break
            sink.sendall(part[at : at + 1])
        return None

    def _finish(self, how, source, sink):
        if how == "cut":
            _reset(source)
            _reset(sink)
            return
        if how == "truncate":
            sink.shutdown(socket.SHUT_WR)
        # Read on, so that the sender notices nothing, until somebody hangs up.
        while source.recv(_PIECE):
            pass


def _sliced(piece, fault):
    if fault is None:
        return [piece]
    size = fault.slice_bytes or (min(len(piece), 4096) if fault.bytes_per_s else len(piece))
    return [piece[i : i + size] for i in range(0, len(piece), size)]


def _reset(sock):
    """Close so that the other side gets a reset, and wake the thread that reads."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        sock.close()
