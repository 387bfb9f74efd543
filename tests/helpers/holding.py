"""A relay to a node that keeps back one large answer of a kind on each connection: the third.

It is given out once nothing else has come for a while. What came meanwhile is what a reader has
asked for, and has to keep, while one partition is late.
"""

import contextlib
import socket
import struct
import threading
import time

from helpers.relay import Relay
from ignitetf.wire.codes import OpCode

LARGE_BYTES = 64 << 10
NTH = 3  # a reader may look at the first one before it asks for more
QUIET_S = 0.3


class Holding(Relay):
    """The relay.

    Args:
        target: HOST:PORT of the node.
        op: The kind of requests.

    Attributes:
        address: HOST:PORT of the relay.
        kept_back: Whether any answer was kept back.
        passed: Bytes of the answers that passed while one was kept back, of all connections.
    """

    def __init__(self, target, op=OpCode.QUERY_SCAN):
        super().__init__(target)
        self.op = op
        self.kept_back, self.passed = False, 0
        self._lock = threading.Lock()

    def serve(self, near):
        Link(self, near, self.connect())


class Link:
    """One connection through the relay."""

    def __init__(self, relay, near, far):
        self._relay, self._near, self._far = relay, near, far
        self._numbers = set()  # ids of the requests of this kind
        self._held = None  # an answer, from when it is here to when it is given out
        self._last = time.monotonic()
        self._sending = threading.Lock()
        for work in (self._requests, self._answers):
            threading.Thread(target=self._until_it_ends, args=(work,), daemon=True).start()

    def _until_it_ends(self, work):
        """Work until either side has closed the connection, and close the other one."""
        with contextlib.suppress(OSError):
            work()
        for sock in (self._near, self._far):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _requests(self):
        for frame in _frames(self._near):
            op, number = struct.unpack_from("<hq", frame, 4) if len(frame) >= 14 else (0, 0)
            if op == self._relay.op:
                self._numbers.add(number)
            self._far.sendall(frame)

    def _answers(self):
        large = 0
        for frame in _frames(self._far):
            if len(frame) > LARGE_BYTES and _number(frame) in self._numbers:
                large += 1
            if self._held is None and large == NTH:
                self._held, self._relay.kept_back = frame, True
                threading.Thread(target=self._give_out, daemon=True).start()
                continue
            self._pass_on(frame)

    def _pass_on(self, frame):
        with self._sending:
            if self._held:
                with self._relay._lock:
                    self._relay.passed += len(frame)
            self._near.sendall(frame)
            self._last = time.monotonic()

    def _give_out(self):
        while time.monotonic() - self._last < QUIET_S:
            time.sleep(QUIET_S / 10)
        with self._sending, contextlib.suppress(OSError):
            frame, self._held = self._held, b""
            self._near.sendall(frame)


def _number(answer):
    return struct.unpack_from("<q", answer, 4)[0]


def _frames(sock):
    """Yield what comes, with the length in front of it, until the connection ends."""
    with contextlib.suppress(EOFError):
        while True:
            length = _receive(sock, 4)
            yield length + _receive(sock, struct.unpack("<i", length)[0])


def _receive(sock, count):
    found = bytearray()
    while len(found) < count:
        piece = sock.recv(min(1 << 20, count - len(found)))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
