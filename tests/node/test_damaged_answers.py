"""Whatever byte of an answer is another one, a client raises an error of ours, or reads a value.

A relay between client and node changes one byte in the body of one answer.
"""

import contextlib
import socket
import struct
import threading

import pytest

from ignitetf import connect
from ignitetf.errors import IgniteTFError
from ignitetf.net.results import only_value

HEAD = 14  # length, id of the request, flags
VALUES = (0, 255)


class Relay:
    """Passes on what a node says, and changes byte `at` of the body of the answer after `arm`."""

    def __init__(self, node):
        self._node, self._armed, self.size = node, None, None
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def arm(self, at, value):
        self._armed = at, value

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, port = self._node.rsplit(":", 1)
                node = socket.create_connection((host, int(port)))
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, node), daemon=True).start()

    def _requests(self, client, node):
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                node.sendall(data)
        for end in (client, node):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _answers(self, client, node):
        with contextlib.suppress(OSError), client, node:
            while len(head := node.recv(4, socket.MSG_WAITALL)) == 4:
                size = struct.unpack("<i", head)[0]
                answer = bytearray(head + node.recv(size, socket.MSG_WAITALL))
                if self._armed is not None:
                    (at, value), self._armed = self._armed, None
                    self.size = len(answer) - HEAD
                    if at < self.size:
                        answer[HEAD + at] = value
                client.sendall(answer)


@pytest.fixture
def relay(address):
    relay = Relay(address)
    yield relay
    relay.close()


QUESTIONS = {
    "a count": lambda c: only_value(c.sql("SELECT COUNT(*) FROM SYS.CACHES WHERE 1 = 0")),
    "rows": lambda c: c.sql("SELECT 'text', DATE '2024-05-01'").fetchall(),
    "nodes": lambda c: c.nodes(),
}


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_a_changed_byte_is_an_error_of_ours_or_a_value(request, relay, name):
    if request.config.getoption("--secure-cluster"):
        pytest.skip("bytes of TLS cannot be changed on their way")
    ask, at, refused = QUESTIONS[name], 0, 0
    while relay.size is None or at < min(relay.size, 50):
        for value in VALUES:
            with connect(relay.address, request_timeout_s=5) as client:
                relay.arm(at, value)
                try:
                    ask(client)
                except IgniteTFError:
                    refused += 1
        at += 1
    assert refused > 10
