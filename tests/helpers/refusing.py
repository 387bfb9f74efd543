"""A relay that answers some requests itself, as a node does that has no room in its Java heap."""

import contextlib
import struct
import threading

from helpers.holding import _frames
from helpers.relay import Relay

MESSAGE = b"Java heap space"


class Refusing(Relay):
    """Listens on a free port of 127.0.0.1; `address` is what clients connect to.

    Args:
        target: HOST:PORT of the node.
        ops: The kinds of requests.
        times: How many of them are refused.

    Attributes:
        refused: How many were.
    """

    def __init__(self, target, ops, times):
        super().__init__(target)
        self._ops, self._times = ops, times
        self.refused = 0
        self._lock = threading.Lock()

    def serve(self, near):
        far, sending = self.connect(), threading.Lock()
        for work in (self._requests, self._answers):
            threading.Thread(target=work, args=(near, far, sending), daemon=True).start()

    def _requests(self, near, far, sending):
        with contextlib.suppress(OSError), near, far:
            for frame in _frames(near):
                op, number = struct.unpack_from("<hq", frame, 4) if len(frame) >= 14 else (0, 0)
                if op in self._ops and self._refuses():
                    text = struct.pack("<bi", 9, len(MESSAGE)) + MESSAGE
                    body = struct.pack("<qhi", number, 1, 1) + text
                    with sending:
                        near.sendall(struct.pack("<i", len(body)) + body)
                else:
                    far.sendall(frame)

    def _answers(self, near, far, sending):
        with contextlib.suppress(OSError), near, far:
            for frame in _frames(far):
                with sending:
                    near.sendall(frame)

    def _refuses(self):
        with self._lock:
            refuses = self.refused < self._times
            self.refused += refuses
            return refuses
