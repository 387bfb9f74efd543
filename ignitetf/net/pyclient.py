"""Runs pyignite over ignitetf's own connections and translates its errors.

channel -> **pyclient** -> pool, objects

pyignite encodes and decodes typed values: of caches, objects in SQL, cache configurations. The
sockets, time limits and frame checks are ours: an answer must have its declared length, stay below
a limit and have the id of the request. Any error of pyignite for bytes that it cannot read becomes
a WireError.

pyignite trusts counts: one changed byte in the number of columns makes it allocate gigabytes for
minutes. So we first walk over all objects of an answer, and the last one must end where the answer
ends. pyignite cannot read Java's own serialization either, which SQL uses for a DATE. So we replace
such objects by equivalent objects of the binary protocol.
"""

from __future__ import annotations

import contextlib
import decimal
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
    SqlError,
    WireError,
)
from ignitetf.net.channel import Progress, is_ended
from ignitetf.net.failures import late, of_statement, server_error
from ignitetf.net.handshake import open_connection
from ignitetf.settings import Settings, split_address
from ignitetf.wire.codes import Feature, OpCode, TypeCode
from ignitetf.wire.frames import (
    LENGTH_BYTES,
    framed,
    read_answer_head,
    read_answer_length,
    read_request_head,
)
from ignitetf.wire.jdk import NotReadable, plain_object
from ignitetf.wire.objects import object_end
from ignitetf.wire.types import read_binary_type

__all__ = ["PyClient", "check_answer", "readable", "translated"]

_RECEIVE_BYTES: Final = 1 << 20
_DIGITS: Final = decimal.Context(prec=5100)
_YEAR: Final = re.compile(r"\byear\b|date value out of range")


@contextlib.contextmanager
def translated(statement: str | None = None) -> Iterator[None]:
    """Translate pyignite's errors into the project's; `statement` is the SQL being run.

    Inside the block decimals keep all their digits; otherwise pyignite, which divides them, rounds.
    """
    try:
        with decimal.localcontext(_DIGITS):
            yield
    except ReconnectError as error:
        raise ConnectError("connection lost", hint="is the node still running?") from error
    except (PySqlError, CacheError, ClusterError) as error:
        found = server_error(1, str(error))
        raise (found if statement is None else of_statement(found, statement)) from error
    except ParseError as error:
        if statement is None:
            raise WireError(f"an answer cannot be read: {error}") from error
        raise SqlError(
            f"the result has a value that thin clients cannot read: {error}",
            hint="it may be an object that Java serialized by itself; leave that column out",
            statement=statement,
        ) from error
    except RequestTimeout as error:
        if statement is None:
            raise
        raise late(error, statement) from error
    except (TypeError, ParameterError):
        # The caller passed a value for which pyignite has no type.
        raise
    except (IgniteTFError, OSError):
        raise
    except Exception as error:
        unheld = isinstance(error, (ValueError, OverflowError)) and _YEAR.search(str(error))
        if unheld and statement is not None:
            raise SqlError(
                f"the result has a date that datetime cannot hold: {error}",
                hint="CAST it to VARCHAR, or read it with IgniteDataset",
                statement=statement,
            ) from error
        raise WireError(f"damaged answer: {type(error).__name__} while reading it") from error


def _checked(frame: bytearray, request: bytes) -> bytearray:
    """Convert the frame of an answer to one that pyignite can read; WireError if it is damaged."""
    op, request_id = read_request_head(request)
    with memoryview(frame)[LENGTH_BYTES:] as answer:
        head = read_answer_head(answer)
        if head.request_id != request_id:
            raise WireError("answer to an unknown request")
        if not head.failed and (spans := check_answer(op, request, answer[head.begin :])):
            body = readable(answer[head.begin :], spans)
            return bytearray(framed(bytes(answer[: head.begin]) + body))
    return frame


class _Connection(PyConnection):  # type: ignore[misc]
    """pyignite's connection, over a socket from `open_connection`."""

    def __init__(self, client: PyClient, address: str) -> None:
        host, port = split_address(address)
        super().__init__(client, host, port)
        self._address = address
        self._request_lock = threading.Lock()

    def _connect_version(self) -> dict[str, Any]:
        settings = self.client.settings
        self._socket, peer = open_connection(self._address, settings, Feature.CLUSTER_STATES)
        self.timeout = 0.0
        self.client.protocol_context = ProtocolContext(
            peer.version, BitmaskFeature(int(peer.features)) if peer.features else None
        )
        mask = int(peer.features).to_bytes(2, "little")
        return {"features": mask, "node_uuid": peer.node_id}

    def _on_handshake_fail(self, err: BaseException) -> None:
        # pyignite would log a traceback here; the caller gets the error anyway.
        self.failed = True

    @property
    def alive(self) -> bool:
        """True if the connection is usable: the node has not hung up since the last answer."""
        if self.failed or self.closed:
            return False
        if not self._request_lock.acquire(blocking=False):
            return True  # readable data would be the answer to another thread's request
        try:
            return not is_ended(self._socket)
        finally:
            self._request_lock.release()

    def request(self, data: bytes | bytearray, flags: int | None = None) -> bytearray:
        """Send a request and return the frame of its answer; one request at a time."""
        with self._request_lock:
            return self._requested(data)

    def _requested(self, data: bytes | bytearray) -> bytearray:
        self.timeout = self.client.settings.request_timeout_s
        try:
            if self._socket is not None:
                self._socket.settimeout(self.timeout)
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
        """Receive a frame and check its length, request id and objects before pyignite sees it."""
        frame = bytearray()  # includes the length, which pyignite expects
        self._receive(frame, LENGTH_BYTES)
        try:
            self._receive(frame, read_answer_length(frame))
            return _checked(frame, request)
        except WireError as error:
            raise error.at(self._address) from error

    def _receive(self, frame: bytearray, count: int) -> None:
        progress = Progress(self.timeout)
        while count:
            piece = self._socket.recv(min(count, _RECEIVE_BYTES))
            if not piece:
                raise ConnectionResetError("the node closed the connection")
            frame += piece
            count -= len(piece)
            if count:
                progress.received(len(piece))


class PyClient(pyignite.Client):  # type: ignore[misc]
    """pyignite's client with these settings; moves to the next address if a connection is lost."""

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


_INT32: Final = struct.Struct("<i")
_Spans = list[tuple[int, int]]
_SINGLE: Final = frozenset(
    {
        OpCode.CACHE_GET,
        OpCode.CACHE_GET_AND_PUT,
        OpCode.CACHE_GET_AND_REPLACE,
        OpCode.CACHE_GET_AND_REMOVE,
        OpCode.CACHE_GET_AND_PUT_IF_ABSENT,
    }
)


def check_answer(op: int, request: bytes | memoryview, body: memoryview) -> list[tuple[int, int]]:
    """Raise WireError unless the objects in the body of an answer fill it exactly.

    Args:
        op: The request's op code; answers without object counts are not checked.
        request: The request, whose last byte says whether a SQL answer names its columns.
        body: The answer after its header.

    Returns:
        The begin and end of each object in Java's own serialization, for `readable`.
    """
    spans: _Spans = []
    try:
        if op == OpCode.QUERY_SQL_FIELDS:
            _sql(body, spans, named=bool(request[-1]))
        elif op == OpCode.QUERY_SQL_FIELDS_PAGE:
            _rows(body, spans, 0, None)
        elif op == OpCode.QUERY_SCAN:
            _rows(body, spans, 8, 2)
        elif op == OpCode.QUERY_SCAN_PAGE:
            _rows(body, spans, 0, 2)
        elif op == OpCode.CACHE_GET_ALL:
            _rows(body, spans, 0, 2, tail=0)
        elif op in _SINGLE:
            _fill(_end(body, spans, 0), len(body))
        elif op == OpCode.CACHE_GET_NAMES:
            _rows(body, spans, 0, 1, tail=0)
        elif op == OpCode.BINARY_TYPE_GET:
            read_binary_type(body)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError("an answer is cut within an object") from error
    return spans


def readable(body: memoryview, spans: list[tuple[int, int]]) -> bytes:
    """Replace objects in Java's own serialization by objects of the binary protocol.

    Objects of classes without an equivalent stay unchanged.

    Args:
        body: The answer after its header.
        spans: As returned by `check_answer`.
    """
    parts: list[bytes | memoryview] = []
    at = 0
    for begin, end in spans:
        with contextlib.suppress(NotReadable):
            plain = plain_object(bytes(body[begin + 5 : end]), marked=False)
            parts += [body[at:begin], plain]
            at = end
    return b"".join([*parts, body[at:]])


def _sql(body: memoryview, spans: _Spans, *, named: bool) -> None:
    """Check the cursor, the names or number of columns, and the rows."""
    (columns,) = _INT32.unpack_from(body, 8)
    at = 12
    if not 0 < columns <= len(body):
        raise WireError(f"a SQL answer with {columns} columns")
    for _ in range(columns if named else 0):
        if body[at] != TypeCode.STRING:
            raise WireError("the name of a column is not a text")
        at = object_end(body, at)
    _rows(body, spans, at, columns)


def _rows(body: memoryview, spans: _Spans, at: int, columns: int | None, tail: int = 1) -> None:
    """Check a row count, the rows, and `tail` bytes after them (a bool: more pages)."""
    (rows,) = _INT32.unpack_from(body, at)
    at, end, objects = at + 4, len(body) - tail, 0
    if rows < 0:
        raise WireError(f"an answer with {rows} rows")
    while at < end:
        at = _end(body, spans, at)
        objects += 1
    _fill(at, end)
    if (objects % rows if columns is None and rows else objects != rows * (columns or 0)) or (
        tail and body[-1] > 1
    ):
        raise WireError(f"an answer of {objects} objects cannot be {rows} rows")


def _end(body: memoryview, spans: _Spans, at: int) -> int:
    end = object_end(body, at)
    if body[at] == TypeCode.OPTIMIZED:
        spans.append((at, end))
    return end


def _fill(at: int, end: int) -> None:
    if at != end:
        raise WireError(f"the objects of an answer end at byte {at}, it has {end}")
