"""Owners that are not there: the answers of one real node, kept and given again by many.

real node -> `Recording` (a relay) -> `Answers` -> **`serve`**, in a process of its own -> readers

What thousands of readers take of a client's machine cannot be tried with real nodes on it. So one
reader reads everything once through a relay that keeps each answer by its request. Owners then give
the same bytes to any number of connections; only the list of nodes and the owners of the partitions
are made up. Requests that continue a cursor are not kept: a partition has a single page.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ignitetf.settings import split_address
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import LENGTH_BYTES, framed, read_answer_head, read_length
from ignitetf.wire.requests import encode_string, encode_uuid

_HOST = "127.0.0.1"
_HEAD = struct.Struct("<hq")  # op code, request id
_PLAIN = struct.Struct("<qh")  # of an answer without an error: request id, flags
_NODE_BYTES = 16  # the id of the node ends the answer to a handshake
_BACKLOG = 1024


@dataclass
class Answers:
    """What a node said: to the handshake, and to each request by its op code and body."""

    handshake: bytes = b""
    bodies: dict[bytes, bytes] = field(default_factory=dict)


class Recording:
    """A relay to a node that keeps its answers.

    Args:
        address: Of the node.
    """

    def __init__(self, address: str) -> None:
        self.answers = Answers()
        self._node = split_address(address)
        self._listener = socket.create_server((_HOST, 0))
        self.address = f"{_HOST}:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End the relay and its connections."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._node, 10)
                self._sockets += [client, node]
                asked: dict[int, bytes] = {}
                for work in (self._requests, self._replies):
                    threading.Thread(target=work, args=(client, node, asked), daemon=True).start()

    def _requests(
        self, client: socket.socket, node: socket.socket, asked: dict[int, bytes]
    ) -> None:
        for number, message in enumerate(_messages(client)):
            if number:  # after the handshake
                _, request = _HEAD.unpack_from(message)
                asked[request] = message[:2] + message[_HEAD.size :]
            node.sendall(framed(message))
        with contextlib.suppress(OSError):
            node.shutdown(socket.SHUT_WR)

    def _replies(self, client: socket.socket, node: socket.socket, asked: dict[int, bytes]) -> None:
        for number, message in enumerate(_messages(node)):
            if number:
                head = read_answer_head(message)
                if not head.failed:
                    self.answers.bodies[asked.pop(head.request_id)] = message[head.begin :]
            else:
                self.answers.handshake = message
            with contextlib.suppress(OSError):
                client.sendall(framed(message))


def _messages(sock: socket.socket) -> Iterator[bytes]:
    """Yield messages without their length, until the other side ends."""
    with contextlib.suppress(OSError), sock.makefile("rb") as stream:
        while len(prefix := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
            yield stream.read(read_length(prefix))


def allow_files(count: int) -> None:
    """Let this process open so many files; raises SystemExit if it must not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise SystemExit(f"{count} open files are needed, {hard} are allowed")
    if count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def serve(answers: Answers, nodes: int, partitions: int, files: int, pipe: Connection) -> None:
    """Be so many nodes, with so many open files, until the pipe says so.

    Sends the addresses first; then, for each message, the number of connections that are open, the
    most that were, and how many came to each node.
    """
    allow_files(files)
    asyncio.run(_Owners(answers, nodes, partitions).run(pipe))


class _Owners:
    """Nodes that own partitions in turn."""

    def __init__(self, answers: Answers, nodes: int, partitions: int) -> None:
        self._answers = answers
        self._ids = [uuid.UUID(int=1 + number) for number in range(nodes)]
        self._partitions = partitions
        self._nodes_body = b""
        self.open = self.most_open = 0
        self.came = [0] * nodes

    async def run(self, pipe: Connection) -> None:
        """Listen at a port for each node."""
        servers = [
            await asyncio.start_server(self._taker(number), _HOST, 0, backlog=_BACKLOG)
            for number in range(len(self._ids))
        ]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        self._nodes_body = self._list_of_nodes(ports)
        pipe.send([f"{_HOST}:{port}" for port in ports])
        while await asyncio.to_thread(pipe.recv):
            pipe.send((self.open, self.most_open, self.came))
        for server in servers:
            server.close()

    def _list_of_nodes(self, ports: list[int]) -> bytes:
        out = struct.pack("<qi", 1, len(ports))
        for node, port in zip(self._ids, ports, strict=True):
            out += _plain(node) + struct.pack("<ii", port, 1) + encode_string(_HOST)
        return out + struct.pack("<i", 0)

    def _owners(self, cache: bytes) -> bytes:
        out = struct.pack("<qiibi", 1, 0, 1, 1, 1) + cache + struct.pack("<ii", 0, len(self._ids))
        for number, node in enumerate(self._ids):
            own = range(number, self._partitions, len(self._ids))
            out += encode_uuid(node.int >> 64, node.int & (1 << 64) - 1)
            out += struct.pack(f"<i{len(own)}i", len(own), *own)
        return out

    def _taker(self, number: int):  # type: ignore[no-untyped-def]
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            self.came[number] += 1
            try:
                await self._talk(number, reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                self.open -= 1
                writer.close()

        return take

    async def _talk(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await _message(reader)
        welcome = self._answers.handshake[:-_NODE_BYTES] + _plain(self._ids[number])
        writer.write(framed(welcome))
        while True:
            message = await _message(reader)
            op, request = _HEAD.unpack_from(message)
            writer.write(framed(_PLAIN.pack(request, 0) + self._answer(op, message)))
            await writer.drain()

    def _answer(self, op: int, message: bytes) -> bytes:
        body = message[_HEAD.size :]
        if op == OpCode.CLUSTER_GROUP_NODE_ENDPOINTS:
            return self._nodes_body
        if op == OpCode.CACHE_PARTITIONS:
            return self._owners(body[4:8])
        return self._answers.bodies[message[:2] + body]


async def _message(reader: asyncio.StreamReader) -> bytes:
    prefix = await reader.readexactly(LENGTH_BYTES)
    return await reader.readexactly(read_length(prefix))


def _plain(node: uuid.UUID) -> bytes:
    return struct.pack("<QQ", node.int >> 64, node.int & (1 << 64) - 1)
