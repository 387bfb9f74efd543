"""One connection to one node: TCP, TLS, handshake, frames, time limits.

settings -> **Channel** -> frames of bytes

Every connection of ignitetf is made here, those of pyignite too (`client` hands it sockets from
`open_connection`). The certificate and the host name are checked before a byte of the handshake
is sent. A channel that timed out or broke is closed for good: a late answer can never be taken
for the next one, and request ids are compared besides.

Source: Apache Ignite 2.17.0, `ClientListenerNioListener` (handshake), `ClientMessageParser`,
`ClientResponse` (header); IEP-9, IEP-23.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import struct
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import (
    AuthenticationError,
    CacheExists,
    CacheNotFound,
    ConfigError,
    ConnectError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    SqlError,
    TlsError,
    WireError,
)
from ignitetf.settings import Settings, split_address
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.codes import Feature, OpCode, Status, TypeCode

__all__ = [
    "FLAG_ERROR",
    "FLAG_TOPOLOGY",
    "MAX_FRAME_BYTES",
    "Channel",
    "Peer",
    "Progress",
    "damaged",
    "open_connection",
    "server_error",
]

# A frame above this is taken for a hostile or broken peer. Memory is touched as bytes arrive only.
MAX_FRAME_BYTES: Final = (1 << 31) - 1
_MAX_HANDSHAKE_BYTES: Final = 1 << 16
# One receive call waits for at most this much, so that its time limit is one of progress.
_RECEIVE_BYTES: Final = 8 << 20
# Less than this within a time limit is no progress.
_PROGRESS_BYTES: Final = 64 << 10
_SOCKET_BUFFER_BYTES: Final = 4 << 20
_VERSIONS: Final = ((1, 7, 0), (1, 6, 0), (1, 5, 0), (1, 4, 0))
_REQUEST: Final = struct.Struct("<ihq")  # length of the rest, op code, request id
_RESPONSE: Final = struct.Struct("<qh")  # request id, flags
FLAG_ERROR: Final = 1
FLAG_TOPOLOGY: Final = 2
_OUR_FEATURES: Final = (
    Feature.CLUSTER_STATES
    | Feature.CLUSTER_GROUP_GET_NODES_ENDPOINTS
    | Feature.QUERY_PARTITIONS_BATCH_SIZE
)
_LOST: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
# With kernel time limits a page arrives in one call that holds no GIL; elsewhere Python polls.
_KERNEL_LIMITS: Final = sys.platform in ("linux", "darwin")


@dataclass(frozen=True)
class Peer:
    """What the handshake told about the other side."""

    address: str
    version: tuple[int, int, int]
    features: Feature
    node_id: uuid.UUID | None


def open_connection(
    address: str, settings: Settings, features: Feature = _OUR_FEATURES
) -> tuple[socket.socket, Peer]:
    """Connect, check the certificate, shake hands.

    Returns:
        The connected socket (its time limit is `settings.connect_timeout_s` still) and its peer.

    Raises:
        ConnectError: Nothing listens there, it is no Ignite node, or it is not ready.
        TlsError: TLS failed: certificate, name, protocol, or only one side speaks it.
        AuthenticationError: User name or password refused.
        RequestTimeout: The peer accepts connections and says nothing.
    """
    deadline = time.monotonic() + settings.connect_timeout_s
    for version in _VERSIONS:
        sock = _open_socket(address, settings, deadline)
        try:
            answer = _handshake(sock, address, settings, version, features, deadline)
        except BaseException:
            sock.close()
            raise
        if isinstance(answer, Peer):
            return sock, answer
        sock.close()
        if answer not in _VERSIONS:
            raise ConnectError(
                f"{address}: the node speaks protocol {'.'.join(map(str, answer))} only",
                hint="ignitetf needs Apache Ignite 2.8 or newer",
            )
    raise ConnectError(f"{address}: no common protocol version")


class Progress:
    """Ends a transfer that trickles: in each time limit some bytes have to come.

    Args:
        limit_s: The limit in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._begin = time.monotonic()
        self._count = 0

    def made(self, count: int) -> None:
        """Note bytes; raises TimeoutError where they were too few."""
        self._count += count
        now = time.monotonic()
        if now - self._begin < self._limit_s:
            return
        if self._count < _PROGRESS_BYTES:
            raise TimeoutError(f"{self._count} bytes in {self._limit_s:g} s")
        self._begin, self._count = now, 0


class Channel:
    """A connection for raw requests; not for several threads at once.

    Requests may be sent ahead; the node works on them at once and answers in any order, and
    answers that come early are kept. Any failure but an error answer closes the channel.

    Attributes:
        waited_s: Seconds in all for which no byte of the next answer was here.
    """

    def __init__(self, address: str, settings: Settings) -> None:
        """Connect to `address`; see `open_connection` for the errors."""
        self.settings = settings
        self._sock, self.peer = open_connection(address, settings)
        self.address = address
        self.node_id = self.peer.node_id
        self.features = self.peer.features
        self.topology_version: tuple[int, int] | None = None
        self.closed = False
        self.waited_s = 0.0
        self._request_id = 0
        self._waiting: set[int] = set()
        self._early: dict[int, memoryview] = {}
        self._buffers = BufferPool()
        self._limit_s = 0.0
        self._wait_all = _KERNEL_LIMITS and not isinstance(self._sock, ssl.SSLSocket)
        if self._wait_all:
            self._sock.settimeout(None)
        self._set_limit(settings.request_timeout_s)

    def __repr__(self) -> str:
        return f"<Channel {self.address}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self, op: OpCode | int, body: bytes | bytearray = b"", *, timeout_s: float | None = None
    ) -> memoryview:
        """Send one request and give the body of its answer (after the header), the caller's own."""
        return self.receive(self.send(op, body), timeout_s=timeout_s)

    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request made of buffers (anything of contiguous bytes); gives its request id."""
        self._check_open()
        self._request_id += 1
        views = [memoryview(b).cast("B") for b in buffers]
        header = _REQUEST.pack(10 + sum(map(len, views)), int(op), self._request_id)
        try:
            if sum(map(len, views)) <= 1 << 16:
                self._sock.sendall(header + b"".join(views))
            else:
                self._send_parts([memoryview(header), *views])
        except OSError as error:
            raise self._broken(error, "sending") from error
        except BaseException:
            self.close()
            raise
        self._waiting.add(self._request_id)
        return self._request_id

    def receive(self, request_id: int, *, timeout_s: float | None = None) -> memoryview:
        """The body of the answer to `request_id`; may wait for others before it.

        Args:
            request_id: As `send` gave it.
            timeout_s: Limit in seconds until the answer begins, and for each further 64 KiB.

        Returns:
            A view of a buffer that is not used again while any view of it is left.

        Raises:
            RequestTimeout: The limit passed; the channel is closed.
            ConnectError: The connection was lost; the channel is closed.
            WireError: The answer breaks the protocol; the channel is closed.
            ServerError: The server answered with an error; the channel stays open.
        """
        self._check_open()
        self._set_limit(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        try:
            frame = self._early.pop(request_id, None)
            while frame is None:
                answer = self._frame()
                answered = int.from_bytes(answer[:8], "little", signed=True)
                if answered not in self._waiting:
                    raise WireError(
                        f"{self.address}: answer to request {answered}, which was not asked"
                    )
                self._waiting.discard(answered)
                if answered == request_id:
                    frame = answer
                else:
                    self._early[answered] = answer
        except OSError as error:
            raise self._broken(error, "waiting for an answer") from error
        except BaseException:
            # A WireError, or Ctrl-C in the middle of a frame: what follows has no meaning.
            self.close()
            raise
        return self._body(frame)

    @property
    def ended(self) -> bool:
        """Whether an idle channel has come to its end, as the other side hung up meanwhile."""
        return self.closed or is_ended(self._sock)

    @property
    def idle(self) -> bool:
        """Whether every request was answered and received, so that the channel can be reused."""
        return not self.closed and not self._waiting and not self._early

    def close(self) -> None:
        """Close the connection; its cursors and streamers on the server end with it."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._sock.close()

    def abort(self) -> None:
        """Wake a thread that waits in `receive`, from another thread."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectError(f"{self.address}: the connection is closed")

    def _set_limit(self, limit_s: float) -> None:
        if limit_s == self._limit_s:
            return
        self._limit_s = limit_s
        if self._wait_all:
            whole = int(limit_s)
            packed = struct.pack("@ll", whole, int((limit_s - whole) * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)
        else:
            self._sock.settimeout(limit_s)

    def _send_parts(self, parts: list[memoryview]) -> None:
        if isinstance(self._sock, ssl.SSLSocket) or not hasattr(self._sock, "sendmsg"):
            for part in parts:
                self._sock.sendall(part)
            return
        while parts:
            sent = self._sock.sendmsg(parts[:64])
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                parts.pop(0)
            if parts and sent:
                parts[0] = parts[0][sent:]

    def _frame(self) -> memoryview:
        head = bytearray(4)
        begin = time.monotonic()
        self._receive_into(memoryview(head))
        self.waited_s += time.monotonic() - begin
        length = int.from_bytes(head, "little", signed=True)
        if not 10 <= length <= MAX_FRAME_BYTES:
            raise WireError(f"{self.address}: answer of impossible length {length}")
        # Not zeroed, and committed by the kernel as bytes arrive: a lying length costs nothing.
        try:
            frame = self._buffers.take(length).data
        except MemoryError as error:
            raise WireError(f"{self.address}: no memory for an answer of {length} bytes") from error
        self._receive_into(frame)
        return frame

    def _receive_into(self, view: memoryview) -> None:
        flags = socket.MSG_WAITALL if self._wait_all else 0
        progress = Progress(self._limit_s)
        while len(view):
            piece = view[:_RECEIVE_BYTES]
            count = self._sock.recv_into(piece, len(piece), flags)
            if count == 0:
                raise ConnectionResetError("the node closed the connection")
            view = view[count:]
            if len(view):
                progress.made(count)

    def _body(self, frame: memoryview) -> memoryview:
        _, flags = _RESPONSE.unpack_from(frame, 0)
        at = _RESPONSE.size
        if flags & ~(FLAG_ERROR | FLAG_TOPOLOGY):
            self.close()
            raise WireError(f"{self.address}: answer with unknown flags {flags:#x}")
        try:
            if flags & FLAG_TOPOLOGY:
                self.topology_version = struct.unpack_from("<qi", frame, at)
                at += 12
            if not flags & FLAG_ERROR:
                return frame[at:]
            (status,) = struct.unpack_from("<i", frame, at)
            message = _string_at(frame, at + 4)[0] or ""
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            self.close()
            raise WireError(f"{self.address}: damaged answer header") from error
        raise server_error(status, message, address=self.address)

    def _broken(self, error: OSError, doing: str) -> ConnectError | RequestTimeout:
        self.close()
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return RequestTimeout(
                f"{self.address}: no answer within {self._limit_s:g} s while {doing}",
                hint="the node may be overloaded or paused; --timeout sets the limit",
                address=self.address,
            )
        return ConnectError(
            f"{self.address}: connection lost while {doing}: {_cause(error)}",
            hint="is the node still running?",
            address=self.address,
        )


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _open_socket(address: str, settings: Settings, deadline: float) -> socket.socket:
    host, port = split_address(address)
    try:
        sock = socket.create_connection((host, port), _left(deadline))
    except TimeoutError as error:
        raise ConnectError(
            f"{address}: no connection within {settings.connect_timeout_s:g} s",
            hint="check the address and the firewall",
            address=address,
        ) from error
    except OSError as error:
        raise ConnectError(
            f"{address}: {_cause(error)}",
            hint="start a node with 'ignitetf node start', or give --address HOST:PORT",
            address=address,
        ) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(_left(deadline))
        return _wrap_tls(sock, host, address, settings) if settings.tls else sock
    except BaseException:
        sock.close()
        raise


def _wrap_tls(sock: socket.socket, host: str, address: str, settings: Settings) -> socket.socket:
    context = tls_context(settings)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(
            f"{address}: the certificate was refused: {error.verify_message}",
            hint="give the CA file with --ca, and an address that the certificate names",
            address=address,
        ) from error
    except (ssl.SSLError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or _cause(error)
        raise TlsError(
            f"{address}: TLS failed: {reason}",
            hint="does this port speak TLS, and does it ask for a client certificate (--cert)?",
            address=address,
            lost=isinstance(error, _LOST),
        ) from error
    except TimeoutError as error:
        raise TlsError(
            f"{address}: no TLS answer within {settings.connect_timeout_s:g} s",
            hint="does this port speak TLS? --no-tls connects without",
            address=address,
            lost=True,
        ) from error


def tls_context(settings: Settings) -> ssl.SSLContext:
    """The TLS context of these settings; raises ConfigError for an unusable file."""
    try:
        context = ssl.create_default_context(cafile=settings.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"CA file {settings.ca}: {_cause(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert:
        # A callable keeps OpenSSL from asking on the terminal for the password of a key.
        password = settings.key_password if settings.key_password is not None else (lambda: "")
        try:
            context.load_cert_chain(settings.cert, settings.key, password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"client certificate {settings.cert}: {_cause(error)}",
                hint="check --cert, --key and the password of the key",
            ) from error
    return context


def _handshake(
    sock: socket.socket,
    address: str,
    settings: Settings,
    version: tuple[int, int, int],
    features: Feature,
    deadline: float,
) -> Peer | tuple[int, int, int]:
    """One try at one version: the peer, or the version the server wants instead."""
    request = _handshake_request(settings, version, features)
    try:
        sock.settimeout(_left(deadline))
        sock.sendall(request)
        answer = _handshake_answer(sock, deadline)
    except TimeoutError as error:
        raise RequestTimeout(
            f"{address}: no answer to the handshake within {settings.connect_timeout_s:g} s",
            hint="is this the thin client port (10800) of a running Ignite node, without TLS?"
            if not settings.tls
            else "is the node paused or overloaded?",
            address=address,
        ) from error
    except ssl.SSLError as error:
        # TLS 1.3 servers refuse a missing client certificate only after the client's Finished.
        raise TlsError(
            f"{address}: TLS failed: {error.reason or _cause(error)}",
            hint="the node asks for a client certificate it trusts: give --cert and --key",
            address=address,
            lost=isinstance(error, _LOST),
        ) from error
    except OSError as error:
        kind = TlsError if settings.tls else ConnectError
        raise kind(
            f"{address}: the handshake was cut: {_cause(error)}",
            hint="is this the thin client port (10800) of an Ignite node? does it need TLS (--tls),"
            " or a client certificate (--cert)?",
            address=address,
            lost=isinstance(error, _LOST),
        ) from error
    if answer is None:
        raise ConnectError(
            f"{address}: the answer is not that of an Ignite node",
            hint="the thin client port is 10800 by default",
            address=address,
        )
    try:
        return _read_handshake(answer, address, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError(f"{address}: damaged handshake answer") from error


def _handshake_request(
    settings: Settings, version: tuple[int, int, int], features: Feature
) -> bytes:
    body = struct.pack("<b3hb", 1, *version, 2)
    if version >= (1, 7, 0):
        mask = int(features).to_bytes(int(features).bit_length() // 8 + 1, "little")
        body += struct.pack("<bi", TypeCode.BYTE_ARRAY, len(mask)) + mask
    if settings.username:
        body += _string(settings.username) + _string(settings.password or "")
    return struct.pack("<i", len(body)) + body


def _handshake_answer(sock: socket.socket, deadline: float) -> bytes | None:
    """The answer's bytes, or None when its length is none that an Ignite node would send."""
    data = bytearray()
    need = 4
    while len(data) < need:
        sock.settimeout(_left(deadline))
        piece = sock.recv(need - len(data))
        if not piece:
            raise ConnectionResetError("the peer closed the connection")
        data += piece
        if need == 4 and len(data) == 4:
            length = int.from_bytes(data, "little", signed=True)
            if not 1 <= length <= _MAX_HANDSHAKE_BYTES:
                return None
            need += length
    return bytes(data[4:])


def _read_handshake(
    answer: bytes, address: str, version: tuple[int, int, int]
) -> Peer | tuple[int, int, int]:
    if answer[0] == 1:
        at, features, node_id = 1, Feature(0), None
        if version >= (1, 7, 0):
            (length,) = struct.unpack_from("<i", answer, 2)
            features = Feature(int.from_bytes(answer[6 : 6 + length], "little"))
            at = 6 + length
        if version >= (1, 4, 0) and answer[at] == TypeCode.UUID:
            node_id = read_uuid(answer, at + 1)
        return Peer(address, version, features & _OUR_FEATURES, node_id)
    if answer[0] != 0:
        raise WireError(f"{address}: handshake answer begins with byte {answer[0]}")
    wanted = struct.unpack_from("<3h", answer, 1)
    message, at = _string_at(answer, 7)
    status = struct.unpack_from("<i", answer, at)[0] if len(answer) >= at + 4 else Status.FAILED
    if status == Status.AUTH_FAILED:
        raise AuthenticationError(
            f"{address}: the node refused the user name or the password",
            hint="check --username and --password",
            address=address,
        )
    if status == Status.NODE_IN_RECOVERY:
        raise ConnectError(
            f"{address}: the node is still starting", hint="try again in a moment", status=status
        )
    if any(wanted) and wanted != version:
        return (wanted[0], wanted[1], wanted[2])
    raise ConnectError(f"{address}: the node refused the handshake: {message}", status=status)


def is_ended(sock: socket.socket) -> bool:
    """Whether a connection without an answer outstanding has something to read: its end."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Raise WireError where the bytes of an answer cannot be taken apart."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise WireError(f"damaged answer: {what}") from error


def server_error(status: int, message: str, *, address: str | None = None) -> ServerError:
    """The error of an answer, told apart by status and by the Java class named in its text."""
    text = message.strip().splitlines()[0] if message.strip() else f"status {status}"
    facts: dict[str, Any] = {"status": status, "server_message": message, "address": address}
    if status == Status.CACHE_DOES_NOT_EXIST:
        return CacheNotFound(text, hint="'ignitetf cache ls' lists the caches", **facts)
    if status == Status.CACHE_EXISTS:
        return CacheExists(text, hint="choose another name, or drop it first", **facts)
    if "lostParts" in message or "partition data has been lost" in message:
        return PartitionLost(
            text, hint="start the nodes that hold it again, or reload the cache", **facts
        )
    if status == Status.TOO_MANY_CURSORS or any(
        sign in message
        for sign in ("Java heap space", "IgniteOutOfMemory", "Out of memory in data region")
    ):
        return ServerOverloaded(text, hint="give the node more memory, or ask for less", **facts)
    if any(sign in message for sign in ("IgniteSQLException", "Failed to parse query")):
        return SqlError(text, hint=None, **facts)
    return ServerError(text, **facts)


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed on another connection, or a moment later."""
    if isinstance(error, TlsError):
        # Cut short, as by a node that dies, or refused.
        return bool(error.fields.get("lost"))
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, (ConnectError, RequestTimeout)):
        return True
    if isinstance(error, ServerError) and not isinstance(error, (PartitionLost, ServerOverloaded)):
        signs = (
            "ClusterTopologyException",
            "ClusterTopologyCheckedException",
            "left topology",
            "No queryable nodes",
            "Failed to find resource with id",
            "Node is stopping",
            "NodeStoppingException",
            "ClusterGroupEmpty",
            # The partition's owner left while the scan was being sent to it.
            "ClusterNode.isLocal()",
        )
        return any(sign in str(error.fields.get("server_message")) for sign in signs)
    return False


def read_uuid(buffer: Any, at: int) -> uuid.UUID:
    """A UUID from its two little-endian longs."""
    high, low = struct.unpack_from("<QQ", buffer, at)
    return uuid.UUID(int=(high << 64) | low)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<bi", TypeCode.STRING, len(data)) + data


def _string_at(buffer: Any, at: int) -> tuple[str | None, int]:
    if buffer[at] != TypeCode.STRING:
        return None, at + 1
    (length,) = struct.unpack_from("<i", buffer, at + 1)
    if length < 0 or at + 5 + length > len(buffer):
        raise IndexError("string beyond the end of the frame")
    return bytes(buffer[at + 5 : at + 5 + length]).decode("utf-8"), at + 5 + length


def is_loopback(addresses: Iterable[str]) -> bool:
    """Whether all addresses are of this machine."""

    def local(host: str) -> bool:
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    return all(local(split_address(a)[0]) for a in addresses)


def _cause(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
