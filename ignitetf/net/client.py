"""`Client`: the entry point to a cluster, with caches, SQL, the partition map and raw channels.

settings -> channel -> **client** -> load, read, fs

pyignite runs over the same verified and time-limited sockets (`pyclient`), so that typed work
(caches, SQL, binary types) and raw pages connect in one way. A client may be used by several
threads.

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

# Idle channels kept per address; extra ones are opened on demand and closed on release.
_POOL_SIZE = 8
# How long an idle secured connection is kept for the next epoch or request.
_REST_S = 30.0
# The node takes the limit as milliseconds in a Java int.
_LONGEST_STATEMENT_S = ((1 << 31) - 1) // 1000
_PARTS = re.compile(r"\bparts=(\d+)")


@functools.lru_cache(maxsize=256)
def cache_id(name: str) -> int:
    """Return the id of a cache in requests: Java's hash of its name."""
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
        settings: Complete settings; if given, all other arguments are ignored.
        **given: The attributes of `Settings` (`username`, `password`, `tls`, `ca`, `cert`,
            `key`, `tls_insecure`, `connect_timeout_s`, ...). Missing ones come from the
            environment, the profile, the running embedded node, or the default.

    Returns:
        A connected client; close it, or use it as a context manager.

    Raises:
        ConnectError: No address answered; the message gives the cause for each.
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
    """After a fork: the child must not use connections that belong to its parent."""
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
        # Closes idle connections when it fires.
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
        """Close all idle connections; those in use are closed when they are released."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the client opens new ones when needed."""
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
        """Forget all connections without closing them, which would end the parent's."""
        self._lock = threading.Lock()
        self._idle, self._py, self._resting = {}, None, None

    def release_idle(self) -> None:
        """Close unused connections: at once, or after a while if new ones would be costly.

        An idle connection keeps direct memory on the node. But a new one repeats the TLS handshake,
        and a node deliberately spends 0.1 s on checking a password.
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
        # A client that was dropped without being closed must not hold connections on the node.
        if hasattr(self, "_lock"):
            self.close()

    # Raw channels

    @contextlib.contextmanager
    def channel(self, node: uuid.UUID | None = None) -> Iterator[Channel]:
        """Lend a pooled connection, to `node` if it can be reached, else to any node.

        It returns to the pool afterwards, unless an exception has left its state unknown. For use
        by one thread at a time.
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
        """Like `channel`, without the context manager: call `release` or close it afterwards."""
        if self._closed:
            raise ConnectError("the client is closed")
        addresses = pooled = list(self.settings.addresses)
        if node is not None and (known := self._address_of.get(node)):
            # Even an open connection to another node would be a detour.
            addresses, pooled = [known, *addresses], [known]
        with self._lock:
            for address in pooled:
                while idle := self._idle.get(address):
                    # A node that was restarted has hung up on the channels opened before.
                    if not (channel := idle.pop()).ended:
                        return channel
                    channel.close()
        return self._open_first(addresses)

    def open_channel(self, address: str) -> Channel:
        """Open a new connection to this address, outside the pool."""
        channel = Channel(address, self.settings)
        if channel.node_id is not None:
            self._address_of[channel.node_id] = address
        return channel

    def release(self, channel: Channel) -> None:
        """Return a channel to the pool; it is closed instead if an answer is outstanding."""
        channel.shrink()
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
        """Send one request on any pooled channel and return the body of its answer."""
        with self.channel() as channel:
            return channel.call(op, body, timeout_s=timeout_s)

    # pyignite

    @property
    def pyignite(self) -> pyignite.Client:
        """A pyignite client whose connections use these settings."""
        with self._lock:
            if self._py is None:
                self._py = PyClient(self.settings)
            return self._py

    def cache(self, name: str) -> Any:
        """Return the pyignite cache of this name; raises CacheNotFound if there is none."""
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

        Rows are fetched page by page as they are consumed, and each page has the time limit of a
        request. A statement whose answer has not begun by then is given up. A statement that writes
        to a data set by its name runs on that data set's table.

        Args:
            statement: One statement, with `?` for each parameter.
            params: Values for the parameters, sent apart from the text; see `encode_parameter`.
            schema: SQL schema for unqualified names.
            page_size: Rows fetched at once.
            timeout_s: Limit in seconds for the whole statement, including the reading of its rows,
                after which the node cancels it. The first answer may take this long.

        Raises:
            SqlError: The node refused the statement, or cancelled it after `timeout_s`.
            RequestTimeout: No answer came. A query is given up together with its connection; a
                statement that changes something may still be running.
            ConfigError: The parameters do not match the statement.
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
        """Run one SQL statement unchanged."""
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
            # Wait longer than the node's own limit, so that it can report the cancellation.
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
        """Return the names of all caches, sorted."""
        with contextlib.suppress(WireError):
            return self._cache_names()
        # The node counts the names before it writes them, so dropping a cache in between spoils
        # the answer.
        return self._cache_names()

    def _cache_names(self) -> list[str]:
        body = self.call(OpCode.CACHE_GET_NAMES)
        with damaged("the list of caches"):
            return sorted(read_cache_names(body))

    def cache_exists(self, name: str) -> bool:
        """Return whether a cache of this name exists."""
        return name in self.cache_names()

    def require_cache(self, name: str) -> None:
        """Raise CacheNotFound, suggesting similar names, unless the cache exists."""
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
        """Return the number of entries, counting primary copies only.

        A lost partition lowers the number without raising an error.
        """
        with _named(name):
            body = self.call(OpCode.CACHE_GET_SIZE, size_request(cache_id(name)))
        return read_long(body, f"the size of {name}")

    def destroy_cache(self, name: str) -> None:
        """Remove a cache and its entries; raises CacheNotFound if there is none."""
        with _named(name):
            self.call(OpCode.CACHE_DESTROY, destroy_request(cache_id(name)))

    # Topology

    def partition_map(self, name: str) -> PartitionMap:
        """Return the current primary node of each partition (op 1101)."""
        with _named(name):
            body = self.call(OpCode.CACHE_PARTITIONS, partitions_request(cache_id(name)))
        with damaged(f"the partition map of {name}"):
            return read_partition_map(body)

    def partition_count(self, name: str) -> int:
        """Return the number of partitions, from SYS.CACHES or, without SQL, the partition map."""
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
        """Return the server nodes and their thin client addresses (op 5102), seed addresses first.

        Empty if the cluster is too old to know this operation.
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
    """Add what is known about an embedded node that has ended there to a connection error."""
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
    """Put the cache's name into errors that only have its id."""
    try:
        yield
    except CacheNotFound as error:
        raise CacheNotFound(
            f"no cache {cache!r}", hint=error.hint, cache=cache, status=error.status
        ) from error
