"""Fetch names for a command's arguments that only the cluster knows.

handshake -> **live** -> complete

It imports nothing heavy, so that the user does not notice a delay. NumPy and pyignite take longer
to import than the requests themselves.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from itertools import count
from typing import Final, Literal

from ignitetf.errors import CacheNotFound, ConnectError, IgniteTFError, RequestTimeout, ServerError
from ignitetf.net.failures import server_error
from ignitetf.net.handshake import open_connection
from ignitetf.settings import Settings
from ignitetf.sql import statement
from ignitetf.wire.answers import int_at, pairs_at, read_cache_names, read_error, read_sized
from ignitetf.wire.codes import OpCode, TypeCode, java_hash
from ignitetf.wire.frames import LENGTH_BYTES, read_answer_head, read_answer_length, request_head
from ignitetf.wire.requests import cache_request, encode_string, scan_request, sql_request

__all__ = ["Kind", "live_names"]

# Kinds of names: a data set or cache, a SQL table, a training job, a file.
Kind = Literal["data", "table", "job", "file"]

_MOST: Final = 1000
_OWN_CACHES: Final = ("IGNITETF_", "IGFS_")
_JOBS: Final = "IGNITETF_JOBS"
_FILES: Final = "IGFS_META"


def live_names(kind: Kind, word: str, settings: Settings) -> list[str]:
    """Return the names of a kind that begin with a word, ignoring case.

    Args:
        kind: Kind of the names.
        word: Beginning of the name.
        settings: Connection settings.

    Raises:
        IgniteTFError: The cluster does not answer.
    """
    with _NodeConnection(settings) as connection, contextlib.suppress(CacheNotFound):
        if kind == "file":
            return _files(connection, word)
        if kind == "job":
            return _beginning(word, _jobs(connection))
        tables = _tables(connection)
        found = [name.removeprefix("PUBLIC.") for name in tables]
        if kind == "data":
            body = connection.call(OpCode.CACHE_GET_NAMES)
            shown = {*tables.values()}
            found += [
                name
                for name in read_cache_names(body)
                if name not in shown and not name.startswith(_OWN_CACHES)
            ]
        return _beginning(word, found)
    return []  # the cluster does not have jobs or files yet


def _beginning(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with a word, ignoring case, sorted."""
    return sorted({name for name in names if name.upper().startswith(word.upper())})


def _tables(connection: _NodeConnection) -> dict[str, str]:
    """Return the caches by the names of their tables; none for a user without permission."""
    request = sql_request("PUBLIC", statement("sql_names"), (), _MOST)
    try:
        body = connection.call(OpCode.QUERY_SQL_FIELDS, request)
    except ServerError:
        return {}
    pairs = pairs_at(body, 16, int_at(body, 12))
    found = {(table or b"").decode(): (cache or b"").decode() for table, cache in pairs}
    return {table: cache for table, cache in found.items() if not cache.startswith(_OWN_CACHES)}


def _jobs(connection: _NodeConnection) -> list[str]:
    body = connection.call(OpCode.QUERY_SCAN, scan_request(java_hash(_JOBS), _MOST))
    keys = [(key or b"").decode() for key, _ in pairs_at(body, 12, int_at(body, 8))]
    return [key for key in keys if "#" not in key]  # other entries belong to a job


def _files(connection: _NodeConnection, word: str) -> list[str]:
    """Return the entries of a directory that continue a path, directories with a slash."""
    from ignitetf.fs.path import parts, split_url
    from ignitetf.fs.records import ROOT_ID, Entry, entry_key, entry_range

    path = split_url(word)[1]
    folder, _, begun = path.rpartition("/")
    before = word[: len(word) - len(begun)] or "/"
    parent = ROOT_ID
    for name in parts(folder):
        key = encode_string(entry_key(parent, name))
        request = cache_request(java_hash(_FILES), key)
        code, value = read_sized(connection.call(OpCode.CACHE_GET, request), _FILES)
        entry = None if code is TypeCode.NULL else Entry.from_bytes(value)
        if entry is None or entry.directory_id is None:
            return []
        parent = entry.directory_id
    first, end = entry_key(parent, begun), entry_range(parent)[1]
    request = sql_request(
        _FILES,
        f'SELECT K, V FROM "{_FILES}".ENTRY WHERE K >= ? AND K < ? LIMIT {_MOST}',  # nosec B608
        (encode_string(first), encode_string(end)),
        _MOST,
    )
    found = []
    body = connection.call(OpCode.QUERY_SQL_FIELDS, request)
    for own, record in pairs_at(body, 16, int_at(body, 12)):
        name = (own or b"").decode().partition("/")[2]
        if not name.startswith(begun):
            break
        with contextlib.suppress(IgniteTFError):
            entry = Entry.from_bytes(record or b"")
            found.append(f"{before}{name}{'/' if entry.is_directory else ''}")
    return found


class _NodeConnection:
    """A connection to the first node that answers, for a few requests; a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Connect.

        Raises:
            ConnectError: No address answered.
        """
        self._socket = _first(settings)
        self._socket.settimeout(settings.request_timeout_s)
        self._numbers = count(1)

    def __enter__(self) -> _NodeConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def call(self, op: OpCode, body: bytes = b"") -> memoryview:
        """Send a request and return the body of its answer.

        Raises:
            ServerError: The node refused it.
            ConnectError: The connection was lost, or no answer arrived in time.
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
