"""pyignite over the connections of `transport`, and its errors in the project's own words.

transport -> **pyclient** -> client

pyignite encodes and decodes typed values (SQL, cache configurations). Its sockets, time limits and
checks of frames are ours: an answer has the length it says, below a limit, and the request id that
was asked; whatever pyignite makes of bytes that it cannot read is a WireError.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final

import pyignite
from pyignite.connection import Connection as PyConnection
from pyignite.connection.bitmask_feature import BitmaskFeature
from pyignite.connection.protocol_context import ProtocolContext
from pyignite.exceptions import CacheError, ClusterError, ParameterError, ParseError, ReconnectError
from pyignite.exceptions import SQLError as PySqlError

from ignitetf.errors import (
    ConnectError,
    IgniteTFError,
    RequestTimeout,
    ServerError,
    SqlError,
    WireError,
)
from ignitetf.failures import server_error
from ignitetf.handshake import open_connection
from ignitetf.settings import Settings, split_address
from ignitetf.transport import FLAG_ERROR, FLAG_TOPOLOGY, MAX_FRAME_BYTES, Progress, is_ended
from ignitetf.wire.answers import check_answer
from ignitetf.wire.codes import Feature

__all__ = ["PyClient", "translated"]

_RECEIVE_BYTES: Final = 1 << 20
_FLAGS: Final = struct.Struct("<h")
_DISTINCT: Final = re.compile(r"\(\s*DISTINCT\b", re.IGNORECASE)
_PREFIX: Final = 4  # the length, which pyignite expects before the answer


@contextlib.contextmanager
def translated(statement: str | None = None) -> Iterator[None]:
    """Turn pyignite's errors into the project's; `statement` is the SQL that is under way."""
    try:
        yield
    except ReconnectError as error:
        raise ConnectError("connection lost", hint="is the node still running?") from error
    except (PySqlError, CacheError, ClusterError) as error:
        message = str(error)
        found = server_error(1, message)
        if statement is not None and type(found) in (ServerError, SqlError):
            raise SqlError(
                _sql_message(message),
                hint=_sql_hint(message, statement),
                statement=statement,
                status=1,
            ) from error
        raise found from error
    except ParseError as error:
        if statement is None:
            raise WireError(f"an answer cannot be read: {error}") from error
        # A DATE comes as a serialized java.sql.Date, for which the protocol has no type code.
        raise SqlError(
            f"the result has a value that thin clients cannot read: {error}",
            hint="CAST a column of the type DATE to TIMESTAMP or VARCHAR",
            statement=statement,
        ) from error
    except (TypeError, ParameterError):
        # A value of the caller's for which pyignite has no type.
        raise
    except (IgniteTFError, OSError):
        raise
    except Exception as error:
        raise WireError(f"damaged answer: {type(error).__name__} while it was read") from error


def _sql_message(message: str) -> str:
    text = message.strip().splitlines()[0] if message.strip() else "SQL error"
    # "Failed to parse query. Syntax error in SQL statement "..."; expected ...; SQL statement: ..."
    text = text.split("; SQL statement:")[0]
    return re.sub(r"^([0-9A-Z]{5}: )?(\S*Exception: )?(Failed to parse query\. )?", "", text)


def _sql_hint(message: str, statement: str) -> str:
    if "out of bounds" in message and _DISTINCT.search(statement):
        # GridSqlQuerySplitter.splitAggregate of 2.17 takes an argument that COUNT(*) has not.
        return "Apache Ignite cannot have COUNT(*) beside a DISTINCT aggregate: write COUNT(1)"
    if "Table" in message and "not found" in message:
        return "'ignitetf table ls' lists the tables; write the schema if it is not PUBLIC"
    if "Column" in message and "not found" in message:
        return "'ignitetf table describe NAME' lists the columns"
    return "[*] in the message marks the place" if "[*]" in message else "check the statement"


class _Connection(PyConnection):  # type: ignore[misc]
    """pyignite's connection over a socket of `transport`."""

    def __init__(self, client: PyClient, address: str) -> None:
        host, port = split_address(address)
        super().__init__(client, host, port)
        self._address = address
        self._request_lock = threading.Lock()

    def _connect_version(self) -> dict[str, Any]:
        settings = self.client.settings
        self._socket, peer = open_connection(self._address, settings, Feature.CLUSTER_STATES)
        self.timeout = settings.request_timeout_s
        self.client.protocol_context = ProtocolContext(
            peer.version, BitmaskFeature(int(peer.features)) if peer.features else None
        )
        mask = int(peer.features).to_bytes(2, "little")
        return {"features": mask, "node_uuid": peer.node_id}

    def _on_handshake_fail(self, err: BaseException) -> None:
        # pyignite logs a traceback here; the error itself reaches the caller.
        self.failed = True

    @property
    def alive(self) -> bool:
        """Whether it can be used; not, when the node hung up since the last answer."""
        return not self.failed and not self.closed and not is_ended(self._socket)

    def request(self, data: bytes | bytearray, flags: int | None = None) -> bytearray:
        """Send a request and give the frame of its answer; one at a time."""
        with self._request_lock:
            try:
                self.send(data, reconnect=False)
                return self._answer(bytes(data))
            except TimeoutError as error:
                self.close()
                raise RequestTimeout(
                    f"{self._address}: no answer within {self.timeout:g} s",
                    hint="--timeout sets the limit",
                    address=self._address,
                ) from error
            except (OSError, EOFError) as error:
                self.close()
                raise ConnectError(
                    f"{self._address}: connection lost: {error}",
                    hint="is the node still running?",
                    address=self._address,
                ) from error
            except BaseException:
                self.failed = True
                self.close()
                raise

    def _answer(self, request: bytes) -> bytearray:
        """The whole frame; length, request id and objects are checked before pyignite sees it."""
        frame = bytearray()
        self._receive(frame, _PREFIX)
        length = int.from_bytes(frame, "little", signed=True)
        if not 10 <= length <= MAX_FRAME_BYTES:
            raise WireError(f"{self._address}: answer of impossible length {length}")
        self._receive(frame, length)
        if frame[_PREFIX : _PREFIX + 8] != request[6:14]:
            raise WireError(f"{self._address}: answer to a request that was not asked")
        with memoryview(frame) as view:
            (flags,) = _FLAGS.unpack_from(view, _PREFIX + 8)
            if flags & ~(FLAG_ERROR | FLAG_TOPOLOGY):
                raise WireError(f"{self._address}: answer with unknown flags {flags:#x}")
            if not flags & FLAG_ERROR:
                begin = _PREFIX + 10 + (12 if flags & FLAG_TOPOLOGY else 0)
                check_answer(int.from_bytes(request[4:6], "little"), request, view[begin:])
        return frame

    def _receive(self, frame: bytearray, count: int) -> None:
        progress = Progress(self.timeout)
        while count:
            piece = self._socket.recv(min(count, _RECEIVE_BYTES))
            if not piece:
                raise ConnectionResetError("the node closed the connection")
            frame += piece
            count -= len(piece)
            if count:
                progress.made(len(piece))


class PyClient(pyignite.Client):  # type: ignore[misc]
    """pyignite's client over connections of these settings; uses the next address on a loss."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(compact_footer=True, partition_aware=False)
        self.settings = settings
        self._connect([])

    def _connect(self, nodes: Any) -> None:
        self._nodes = [_Connection(self, a) for a in self.settings.addresses]
        causes: list[IgniteTFError] = []
        for index, node in enumerate(self._nodes):
            try:
                node.connect()
            except (ConnectError, RequestTimeout) as error:
                causes.append(error)
            else:
                self._current_node = index
                return
        raise causes[0]
