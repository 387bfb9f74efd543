"""One connection for a few requests, without the packages that readers need.

handshake -> **errand** -> completion of a shell

It imports neither NumPy nor pyignite, which take longer than the requests themselves.
"""

from __future__ import annotations

import socket
from itertools import count

from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout
from ignitetf.net.failures import server_error
from ignitetf.net.handshake import open_connection
from ignitetf.settings import Settings
from ignitetf.wire.answers import read_error
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import LENGTH_BYTES, read_answer_head, read_answer_length, request_head

__all__ = ["Errand"]


class Errand:
    """A connection to the first node that answers; a context manager, for one thread."""

    def __init__(self, settings: Settings) -> None:
        """Connect.

        Raises:
            ConnectError: No address answered.
        """
        self._socket = _first(settings)
        self._socket.settimeout(settings.request_timeout_s)
        self._numbers = count(1)

    def __enter__(self) -> Errand:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def call(self, op: OpCode, body: bytes = b"") -> memoryview:
        """Send a request and return the body of its answer.

        Raises:
            ServerError: The node refused it.
            ConnectError: The connection was lost, or no answer came in time.
        """
        try:
            self._socket.sendall(request_head(len(body), op, next(self._numbers)) + body)
            answer = self._exactly(read_answer_length(self._exactly(LENGTH_BYTES)))
        except OSError as error:
            raise ConnectError(f"connection lost: {error}") from error
        head = read_answer_head(answer)
        if head.failed:
            raise server_error(*read_error(answer[head.begin :]))
        return answer[head.begin :]

    def _exactly(self, size: int) -> memoryview:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the node closed the connection")
            data += piece
        return memoryview(bytes(data))


def _first(settings: Settings) -> socket.socket:
    causes: list[IgniteTFError] = []
    for address in settings.addresses:
        try:
            return open_connection(address, settings)[0]
        except (ConnectError, RequestTimeout) as error:
            causes.append(error)
    raise causes[0]
