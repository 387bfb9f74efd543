"""A relay that makes a node of Ignite look like one of GridGain 8.9, by its handshake."""

import contextlib
import struct
import threading

from helpers.holding import _frames
from helpers.relay import Relay

_IGNITE = (1, 7, 0)
_ACCEPTED_MASK_AT = 10  # after the length, the byte 1, the type code and the length of the mask
_ARRAY = 12


class GridGain(Relay):
    """Listens on a free port of 127.0.0.1; `address` is what clients connect to.

    Args:
        target: HOST:PORT of the node of Ignite.
        accepts: The protocol versions that it accepts.
        wants: The version that it names when it refuses another.
        features: The features that it announces.

    Attributes:
        asked: The version and the features of each client, in the order of arrival.
    """

    def __init__(self, target, *, accepts=((1, 7, 1),), wants=(1, 7, 1), features=0x2_0000_00FF):
        super().__init__(target)
        self._accepts, self._wants = accepts, wants
        self._mask = features.to_bytes(features.bit_length() // 8 + 1, "little")
        self.asked = []

    def serve(self, near):
        threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        with contextlib.suppress(OSError), near:
            frames = _frames(near)
            first = next(frames, None)
            if first is None:
                return
            version = struct.unpack_from("<3h", first, 5)
            mask_end = 17 + struct.unpack_from("<i", first, 13)[0]
            self.asked.append((version, int.from_bytes(first[17:mask_end], "little")))
            if version not in self._accepts:
                text = b"Unsupported version"
                body = struct.pack("<b3hbi", 0, *self._wants, 9, len(text)) + text
                near.sendall(struct.pack("<i", len(body)) + body)
                return
            with self.connect() as far:
                far.sendall(bytes(first[:5]) + struct.pack("<3h", *_IGNITE) + bytes(first[11:]))
                answers = _frames(far)
                near.sendall(self._announced(next(answers)))
                threading.Thread(target=_relay, args=(answers, near), daemon=True).start()
                for frame in frames:
                    far.sendall(frame)

    def _announced(self, accepted):
        assert accepted[4] == 1
        size = struct.unpack_from("<i", accepted, 6)[0]
        rest = bytes(accepted[_ACCEPTED_MASK_AT + size :])
        body = b"\1" + struct.pack("<bi", _ARRAY, len(self._mask)) + self._mask + rest
        return struct.pack("<i", len(body)) + body


def _relay(frames, sock):
    with contextlib.suppress(OSError):
        for frame in frames:
            sock.sendall(frame)
