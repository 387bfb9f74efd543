"""`Client`: settings in, caches, SQL, partition map and raw channels out.

settings -> channel -> **client** -> load, read, fs

pyignite's connections run over the verified and time-limited sockets of `channel` (`pyclient`),
so that typed work (caches, SQL, binary types) and raw pages share one way to connect. A client may
be used by several threads.

Source: Apache Ignite 2.17.0, `ClientCachePartitionsRequest` (op 1101),
`ClientClusterGroupGetNodesEndpointsRequest` (op 5102).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pyignite

from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    ConnectError,
    IgniteTFError,
    RequestTimeout,
    ServerError,
    SqlError,
    WireError,
)
from ignitetf.local.ended import ended_at
from ignitetf.net.channel import Channel
from ignitetf.net.cluster import (
    NodeEndpoint,
    PartitionMap,
    read_cache_names,
    read_endpoints,
    read_partition_map,
)
from ignitetf.net.probe import explained
from ignitetf.net.pyclient import PyClient, sql_arguments, translated
from ignitetf.net.redirect import run
from ignitetf.net.retry import is_retryable
from ignitetf.net.sql_result import SqlResult
from ignitetf.settings import Settings, is_loopback
from ignitetf.sql.tokens import count_parameters
from ignitetf.wire.answers import damaged, read_long
from ignitetf.wire.codes import Feature, OpCode, java_hash
from ignitetf.wire.parameters import parameter_list
from ignitetf.wire.requests import (
    destroy_request,
    nodes_request,
    partitions_request,
    size_request,
)

__all__ = ["Client", "NodeEndpoint", "PartitionMap", "SqlResult", "cache_id", "connect"]

# Idle channels kept for each address; more are opened on demand and closed when given back.
_POOL_SIZE = 8
# How long a secured connection is kept for the next epoch, or the next request.
_REST_S = 30.0
# Milliseconds that Java's int holds.
_LONGEST_STATEMENT_S = ((1 << 31) - 1) // 1000
_PARTS = re.compile(r"\bparts=(\d+)")


@functools.lru_cache(maxsize=256)
def cache_id(name: str) -> int:
    """Id of a cache in requests: Java's hash of its name."""
    return java_hash(name)


def connect(
    address: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    **given: Any,
) -> Client:
    """Connect to a cluster.

    Args:
        address: `HOST:PORT`, or several (a sequence, or separated by commas).
        settings: Complete settings; nothing else is looked at then.
        **given: The attributes of `Settings` (`username`, `password`, `tls`, `ca`, `cert`,
            `key`, `tls_insecure`, `connect_timeout_s`, ...). What is not given comes from the
            environment, the profile, the running embedded node, or the default.

    Returns:
        A connected client; close it, or use it as a context manager.

    Raises:
        ConnectError: No address answered; the message has the cause of each.
        ConfigError: A setting is unusable.
    """
    if settings is None:
        if isinstance(address, str) or address is None:
            given["address"] = address
        else:
            given["addresses"] = tuple(address)
        settings = Settings.resolve(**given)
    return Client(settings)


def _close_idle(client: weakref.ref[Client]) -> None:
    if (found := client()) is not None:
        found.close_idle()


def _forget_connections() -> None:
    """In a child process: what is said over a connection of its parent is not for the child."""
    for client in list(_clients):
        client._forget()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


class Client:
    """A connection to a cluster; see `connect`."""

    def __init__(self, settings: Settings) -> None:
        """Connect with these settings."""
        self.settings = settings
        self._lock = threading.Lock()
        self._idle: dict[str, list[Channel]] = {}
        self._address_of: dict[uuid.UUID, str] = {}
        self._closed = False
        # The end of the rest of idle connections.
        self._resting: threading.Timer | None = None
        if settings.tls and settings.tls_insecure:
            warnings.warn("TLS without a check of the server's certificate", stacklevel=3)
        if settings.password and not settings.tls and not is_loopback(settings.addresses):
            warnings.warn("the password is sent without TLS", stacklevel=3)
        self._py: PyClient | None = None
        _clients.add(self)
        try:
            with self.channel():
                pass
        except ConnectError as error:
            if (found := explained(error, settings)) is error:
                raise
            raise found from error

    def __repr__(self) -> str:
        return f"<Client {','.join(self.settings.addresses)}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all idle connections; those in use are closed when they are given back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that nobody uses; the client opens others when it needs them."""
        with self._lock:
            if self._resting is not None:
                self._resting.cancel()
                self._resting = None
            idle, self._idle = self._idle, {}
            py, self._py = self._py, None
        for channels in idle.values():
            for channel in channels:
                channel.close()
        if py is not None:
            py.close()

    def _forget(self) -> None:
        """Begin without connections. The old ones are not ended, which would end the parent's."""
        self._lock = threading.Lock()
        self._idle, self._py, self._resting = {}, None, None

    def rest(self) -> None:
        """Close the connections that nobody uses: now, or where new ones are costly after a while.

        TLS is agreed upon anew for each connection, and a node takes a tenth of a second of its
        time, on purpose, to check a password.
        """
        if not (self.settings.tls or self.settings.username):
            self.close_idle()
            return
        with self._lock:
            if self._resting is not None:
                self._resting.cancel()
            self._resting = threading.Timer(_REST_S, _close_idle, (weakref.ref(self),))
            self._resting.daemon = True
            self._resting.start()

    def __del__(self) -> None:
        # A client that was dropped without being closed keeps no connection of the node's.
        if hasattr(self, "_lock"):
            self.close()

    # Raw channels

    @contextlib.contextmanager
    def channel(self, node: uuid.UUID | None = None) -> Iterator[Channel]:
        """A connection of the pool, to `node` where that can be reached, else to any node.

        It goes back to the pool afterwards, unless an exception passed through that leaves its
        state unknown. For one thread at a time.
        """
        channel = self.acquire(node)
        try:
            yield channel
        except ServerError:
            self.release(channel)
            raise
        except BaseException:
            channel.close()
            raise
        self.release(channel)

    def acquire(self, node: uuid.UUID | None = None) -> Channel:
        """As `channel`, without the context; give it back with `release`, or close it."""
        if self._closed:
            raise ConnectError("the client is closed")
        addresses = pooled = list(self.settings.addresses)
        if node is not None and (known := self._address_of.get(node)):
            # A connection to another node, though it is open already, would be a detour.
            addresses, pooled = [known, *addresses], [known]
        with self._lock:
            for address in pooled:
                while idle := self._idle.get(address):
                    # A node that was restarted has hung up; one of its own is as good as none.
                    if not (channel := idle.pop()).ended:
                        return channel
                    channel.close()
        return self._open_first(addresses)

    def open_channel(self, address: str) -> Channel:
        """A new connection to this address, outside the pool."""
        channel = Channel(address, self.settings)
        if channel.node_id is not None:
            self._address_of[channel.node_id] = address
        return channel

    def release(self, channel: Channel) -> None:
        """Give a channel back; it is closed when an answer is outstanding."""
        channel.rest()
        with self._lock:
            idle = self._idle.setdefault(channel.address, [])
            if not self._closed and channel.idle and len(idle) < _POOL_SIZE:
                idle.append(channel)
                return
        channel.close()

    def _open_first(self, addresses: Sequence[str]) -> Channel:
        causes: list[IgniteTFError] = []
        for address in dict.fromkeys(addresses):
            try:
                return self.open_channel(address)
            except (ConnectError, RequestTimeout) as error:
                causes.append(_of_ended_node(error, address))
        if len(causes) == 1:
            raise causes[0]
        kind = type(causes[0]) if len({type(c) for c in causes}) == 1 else ConnectError
        raise kind(
            "no address answered: " + "; ".join(c.message for c in causes),
            hint=causes[0].hint,
            lost=any(map(is_retryable, causes)),
        ) from causes[0]

    def call(
        self, op: OpCode | int, body: bytes | bytearray = b"", *, timeout_s: float | None = None
    ) -> memoryview:
        """One request on any pooled channel; the body of its answer."""
        with self.channel() as channel:
            return channel.call(op, body, timeout_s=timeout_s)

    # pyignite

    @property
    def pyignite(self) -> pyignite.Client:
        """A pyignite client over connections of these settings."""
        with self._lock:
            if self._py is None:
                self._py = PyClient(self.settings)
            return self._py

    def cache(self, name: str) -> Any:
        """The pyignite cache object of this name; raises CacheNotFound where there is none."""
        self.require_cache(name)
        return self.pyignite.get_cache(name)

    def sql(
        self,
        statement: str,
        params: Sequence[Any] = (),
        *,
        schema: str = "PUBLIC",
        page_size: int = 1024,
        timeout_s: float | None = None,
    ) -> SqlResult:
        """Run one SQL statement.

        The rows come page by page, for as long as they are asked for; each page has the time limit
        of a request. A statement that does not begin to answer within it is given up.

        Args:
            statement: One statement; `?` stands for a parameter.
            params: Values for the parameters, sent apart from the text; see `encode_parameter`.
            schema: SQL schema of names without one.
            page_size: Rows fetched at once.
            timeout_s: Limit in seconds for the statement as a whole, with the reading of its rows;
                the node cancels it then. Its first answer may take as long.

        Raises:
            SqlError: The node refused the statement, or cancelled it after `timeout_s`.
            RequestTimeout: No answer came; a query was given up with its connection, a statement
                that changes something may go on.
            ConfigError: The parameters are not those that the statement takes.

        A statement that writes to a data set by its name is run on the table of that.
        """
        options = {"schema": schema, "page_size": page_size, "timeout_s": timeout_s}
        return run(self._sql, self.cache_exists, statement, params, options)

    def _sql(
        self,
        statement: str,
        params: Sequence[Any],
        *,
        schema: str = "PUBLIC",
        page_size: int = 1024,
        timeout_s: float | None = None,
    ) -> SqlResult:
        """Run one SQL statement as it is."""
        values = parameter_list(params)
        expected = count_parameters(statement)
        if expected is not None and expected != len(values):
            raise ConfigError(
                f"the statement takes {expected} parameters, {len(values)} are given",
                hint="one value for each '?', in their order",
            )
        wait_s, milliseconds = self.settings.request_timeout_s, 0
        if timeout_s is not None:
            if not 0 < timeout_s <= _LONGEST_STATEMENT_S:
                raise ConfigError(
                    f"timeout_s={timeout_s}", hint=f"above 0, up to {_LONGEST_STATEMENT_S} seconds"
                )
            # The node is to tell that it cancelled the statement.
            wait_s, milliseconds = wait_s + timeout_s, max(1, int(timeout_s * 1000))
        with translated(statement), self.pyignite.waiting(wait_s):
            cursor = self.pyignite.sql(
                statement,
                page_size=page_size,
                query_args=sql_arguments(values) or None,
                schema=schema,
                include_field_names=True,
                lazy=True,
                timeout=milliseconds,
            )
        return SqlResult(cursor, statement)

    # Caches

    def cache_names(self) -> list[str]:
        """Names of all caches, sorted."""
        with contextlib.suppress(WireError):
            return self._cache_names()
        # The node counts the names before it writes them, and a cache may go in between.
        return self._cache_names()

    def _cache_names(self) -> list[str]:
        body = self.call(OpCode.CACHE_GET_NAMES)
        with damaged("the list of caches"):
            return sorted(read_cache_names(body))

    def cache_exists(self, name: str) -> bool:
        """Whether there is a cache of this name."""
        return name in self.cache_names()

    def require_cache(self, name: str) -> None:
        """Raise CacheNotFound, with the nearest names, unless the cache exists."""
        names = self.cache_names()
        if name in names:
            return
        import difflib

        near = difflib.get_close_matches(name.upper(), {n.upper(): n for n in names}, 3)
        found = [n for n in names if n.upper() in near]
        raise CacheNotFound(
            f"no cache {name!r}",
            hint=f"did you mean {' or '.join(found)}?"
            if found
            else "'ignitetf cache ls' lists the caches",
            cache=name,
        )

    def cache_size(self, name: str) -> int:
        """Number of entries, primary copies only.

        A lost partition lowers it without an error.
        """
        with _named(name):
            body = self.call(OpCode.CACHE_GET_SIZE, size_request(cache_id(name)))
        return read_long(body, f"the size of {name}")

    def destroy_cache(self, name: str) -> None:
        """Remove a cache and its entries; raises CacheNotFound where there is none."""
        with _named(name):
            self.call(OpCode.CACHE_DESTROY, destroy_request(cache_id(name)))

    # Topology

    def partition_map(self, name: str) -> PartitionMap:
        """The primary node of each partition, as the cluster knows it now (op 1101)."""
        with _named(name):
            body = self.call(OpCode.CACHE_PARTITIONS, partitions_request(cache_id(name)))
        with damaged(f"the partition map of {name}"):
            return read_partition_map(body)

    def partition_count(self, name: str) -> int:
        """Number of partitions, from the view SYS.CACHES (or the partition map without SQL)."""
        try:
            rows = self.sql(
                "SELECT AFFINITY FROM SYS.CACHES WHERE CACHE_NAME = ?", (name,)
            ).fetchall()
        except SqlError:
            rows = []
        if rows and (found := _PARTS.search(rows[0][0] or "")):
            return int(found[1])
        self.require_cache(name)
        if count := self.partition_map(name).count:
            return count
        raise ConfigError(
            f"cache {name!r}: the cluster does not tell the number of partitions",
            hint="its affinity function is a custom one",
            cache=name,
        )

    def nodes(self) -> list[NodeEndpoint]:
        """The server nodes and their thin client addresses (op 5102), the seeds' first.

        Empty where the cluster is older than this operation.
        """
        with self.channel() as channel:
            if not channel.features & Feature.CLUSTER_GROUP_GET_NODES_ENDPOINTS:
                return []
            body = channel.call(OpCode.CLUSTER_GROUP_NODE_ENDPOINTS, nodes_request())
        with damaged("the list of nodes"):
            found = read_endpoints(body)
        seeds = set(self.settings.addresses)
        for node in found:
            ordered = sorted(node.addresses, key=lambda a: a not in seeds)
            if ordered:
                self._address_of.setdefault(node.node_id, ordered[0])
        return found


def _of_ended_node(
    error: ConnectError | RequestTimeout, address: str
) -> ConnectError | RequestTimeout:
    """The error of a connection, with what is known of an embedded node that has ended there."""
    if type(error) is not ConnectError or not isinstance(error.__cause__, ConnectionRefusedError):
        return error
    if (told := ended_at(address)) is None:
        return error
    found = ConnectError(
        f"{error.message}: {told}",
        hint="'ignitetf node logs' has its last words; start it again with 'ignitetf node start'",
        **error.fields,
    )
    found.__cause__ = error.__cause__
    return found


@contextlib.contextmanager
def _named(cache: str) -> Iterator[None]:
    """Name the cache in an error that has only its id."""
    try:
        yield
    except CacheNotFound as error:
        raise CacheNotFound(
            f"no cache {cache!r}", hint=error.hint, cache=cache, status=error.status
        ) from error
