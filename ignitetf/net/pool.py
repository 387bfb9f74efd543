"""The connections of one client: raw channels and pyignite's, kept while idle, opened on demand.

settings -> channel, pyclient -> **pool** -> client

A connection that its node has closed is noticed and replaced when it is acquired.

The pool also knows two facts about the cluster. The addresses of its nodes let it lend a connection
to a particular node. Their time zone is needed to convert between moments and times on the
calendar. Each node publishes the zone of its JVM as an attribute. If an administrator has excluded
that attribute, a node is asked to convert a few moments. If it shows all of them as in UTC, the
zone is UTC.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyignite

from ignitetf.errors import (
    ConfigError,
    ConnectError,
    IgniteTFError,
    RequestTimeout,
    ServerError,
    SqlUnavailable,
)
from ignitetf.local.logs import ended_at
from ignitetf.local.state import running_nodes
from ignitetf.net.channel import Channel, Delay
from ignitetf.net.common import Common, Line, Question, answers_to
from ignitetf.net.failures import is_retryable, retry
from ignitetf.net.handshake import explained
from ignitetf.net.pyclient import PyClient
from ignitetf.settings import DEFAULT_ADDRESS, Settings, is_loopback
from ignitetf.sql import statement
from ignitetf.threads import BackgroundCall, run_parallel, start
from ignitetf.wire.answers import NodeEndpoint, damaged, read_endpoints, read_long
from ignitetf.wire.codes import Feature, OpCode, Status
from ignitetf.wire.frames import read_named_sql_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.requests import encode_parameter, nodes_request, sql_request
from ignitetf.wire.sql_arrays import decode_values
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.zones import UTC, Zone, zone_of

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Pool"]

# Idle channels kept per address; extra ones are opened on demand and closed on release.
_POOL_SIZE: Final = 8
# Requests that change nothing, so they may be sent again.
_READS: Final = frozenset(
    {
        OpCode.CACHE_GET,
        OpCode.CACHE_GET_ALL,
        OpCode.CACHE_GET_SIZE,
        OpCode.CACHE_GET_NAMES,
        OpCode.CACHE_PARTITIONS,
        OpCode.BINARY_TYPE_GET,
        OpCode.BINARY_TYPE_NAME_GET,
    }
)
# An idle connection is kept this many times as long as it took to open.
_REST_TIMES: Final = 300
_MOST_REST_S: Final = 30.0


def _close_idle(pool: weakref.ref[Pool]) -> None:
    if (found := pool()) is not None:
        found._close_channels()


def _forget_connections() -> None:
    """After a fork: the child must not use connections that belong to its parent."""
    for pool in list(_pools):
        pool._forget()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


class Pool:
    """Connections with the same settings, lent to several threads.

    Attributes:
        settings: The settings.
        delay: The time of the quickest request over all connections.
        topology: Version of the topology in the last answer to `nodes`; None before.
        known_nodes: The nodes in that answer.
        reported_topology: Version of the topology that any answer reported last; None before.
        most_window: Bytes that a connection may have under way; see `net.window`.
        delivered_rate: Bytes per second on the last connection that was measured; 0 before.
    """

    def __init__(self, settings: Settings) -> None:
        """Connect with these settings."""
        self.settings = settings
        self.delay = Delay()
        self.topology: int | None = None
        self.known_nodes: Sequence[NodeEndpoint] = ()
        self.reported_topology: tuple[int, int] | None = None
        self.most_window = settings.ahead_bytes
        self.delivered_rate = 0.0
        # Seconds that the quickest connection took to open.
        self._opening_s = _MOST_REST_S
        self._lock = threading.Lock()
        self._idle: dict[str, list[Channel]] = {}
        self._address_of: dict[uuid.UUID, str] = {}
        self._addresses: dict[uuid.UUID, tuple[str, ...]] = {}
        self._closed = False
        # Closes idle connections when it fires.
        self._resting: threading.Timer | None = None
        if settings.tls and settings.tls_insecure:
            warnings.warn("TLS without a check of the server's certificate", stacklevel=3)
        if settings.password and not settings.tls and not is_loopback(settings.addresses):
            warnings.warn("the password is sent without TLS", stacklevel=3)
        self._py: PyClient | None = None
        self._zone: Zone | None = None
        # The connection that the calls of a group share; set in each of their threads.
        self._group = threading.local()
        _pools.add(self)
        try:
            with self.channel():
                pass
        except ConnectError as error:
            if (found := _with_other_nodes(explained(error, settings), settings)) is error:
                raise
            raise found from error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(self.settings.addresses)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all idle connections; those in use are closed when they are released."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the client opens new ones when needed."""
        self._close_channels()
        with self._lock:
            py, self._py = self._py, None
        if py is not None:
            py.close()

    def _close_channels(self) -> None:
        """Close the idle channels, but not pyignite's connections, which may be in use."""
        with self._lock:
            if self._resting is not None:
                self._resting.cancel()
                self._resting = None
            idle, self._idle = self._idle, {}
        for channels in idle.values():
            for channel in channels:
                channel.close()

    def _forget(self) -> None:
        """Forget all connections without closing them; closing would end the parent's."""
        self._lock = threading.Lock()
        self._idle, self._py, self._resting = {}, None, None

    @property
    def node_count(self) -> int:
        """Number of server nodes that `nodes` has found so far."""
        return len(self._addresses)

    @property
    def idle_count(self) -> int:
        """Number of connections that are open and not lent."""
        with self._lock:
            return sum(map(len, self._idle.values()))

    def release_idle(self) -> None:
        """Close unused connections after a while; keep them longer if they took longer to open.

        An idle connection keeps direct memory on the node. But a new one repeats the TLS handshake,
        a node deliberately spends 0.1 s on checking a password, and each round trip counts.
        """
        rest_s = min(_MOST_REST_S, _REST_TIMES * self._opening_s)
        with self._lock:
            if self._resting is not None:
                self._resting.cancel()
            self._resting = threading.Timer(rest_s, _close_idle, (weakref.ref(self),))
            self._resting.daemon = True
            start(self._resting)

    def __del__(self) -> None:
        # A client that was dropped without being closed must not hold connections on the node. At
        # the end of the program the process closes them, and modules may have been unloaded.
        if hasattr(self, "_lock") and not sys.is_finalizing():
            self.close()

    # Raw channels

    @contextlib.contextmanager
    def channel(self, node: uuid.UUID | None = None) -> Iterator[Channel]:
        """Lend a pooled connection, to `node` if it can be reached, otherwise to any node.

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

    def acquire_line(self) -> Channel | Line:
        """Like `acquire`; inside `at_once`, return a line of the connection shared by the calls."""
        common: Common | None = getattr(self._group, "common", None)
        return Line(common) if common is not None and common.works else self.acquire()

    def release_line(self, line: Channel | Line) -> None:
        """Give back a line or channel from `acquire_line`; see `release`."""
        if isinstance(line, Channel):
            self.release(line)
        else:
            line.close()

    @contextlib.contextmanager
    def _line(self) -> Iterator[Channel | Line]:
        """Lend what `acquire_line` returns; see `channel`."""
        line = self.acquire_line()
        try:
            yield line
        except ServerError:
            self.release_line(line)
            raise
        except BaseException:
            line.close()
            raise
        self.release_line(line)

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """Run calls that do not depend on each other, and return their results in order.

        Their requests (`call`, `ask`, SQL) are under way at the same time, over one connection.

        Raises:
            Exception: The first error in the order of the calls, after all of them have ended.
        """
        if len(calls) < 2 or getattr(self._group, "common", None) is not None:
            return run_parallel(*map(self._grouped, calls)) if calls else []
        channel = self.acquire()
        self._group.common = Common(channel)
        try:
            found = run_parallel(*map(self._grouped, calls))
        except Exception:
            self.release(channel)
            raise
        except BaseException:
            channel.close()
            raise
        finally:
            self._group.common = None
        self.release(channel)
        return found

    def open_ahead(self, count: int) -> None:
        """Start to open connections that are soon needed, until `count` are idle."""
        for _ in range(count - self.idle_count):
            BackgroundCall(self._open_idle)

    def _open_idle(self) -> None:
        with contextlib.suppress(IgniteTFError):
            self.release(self.open_channel(self.settings.addresses[0]))

    def _grouped(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return a call that uses the connection of this thread's group in any thread."""
        common = getattr(self._group, "common", None)

        def run() -> Any:
            before = getattr(self._group, "common", None)
            self._group.common = common
            try:
                return call()
            finally:
                self._group.common = before

        return run

    def acquire(self, node: uuid.UUID | None = None) -> Channel:
        """Like `channel`, without the context manager: call `release` or close it afterwards."""
        if self._closed:
            raise ConnectError("the client is closed", closed=True)
        addresses = pooled = list(self.settings.addresses)
        if node is not None and (known := self._address_of.get(node)):
            # Even an open connection to another node would be a detour.
            addresses, pooled = [known, *addresses], [known]
        with self._lock:
            for address in pooled:
                while idle := self._idle.get(address):
                    # A node that was restarted has closed the channels to its former process.
                    if not (channel := idle.pop()).ended:
                        return channel
                    channel.close()
        return self._open_first(addresses)

    def open_channel(self, address: str) -> Channel:
        """Open a new connection to this address, outside the pool."""
        begin = time.monotonic()
        channel = Channel(address, self.settings, self.delay)
        self._opening_s = min(self._opening_s, time.monotonic() - begin)
        if channel.node_id is not None:
            self._address_of[channel.node_id] = address
        return channel

    def release(self, channel: Channel) -> None:
        """Return a channel to the pool; it is closed instead if an answer is outstanding."""
        channel.shrink()
        self.note_topology(channel)
        with self._lock:
            idle = self._idle.setdefault(channel.address, [])
            if not self._closed and channel.idle and len(idle) < _POOL_SIZE:
                idle.append(channel)
                return
        channel.close()

    def note_topology(self, channel: Channel) -> None:
        """Store the version of the topology if the node reported one over this connection."""
        if (version := channel.topology_version) is not None:
            self.reported_topology, channel.topology_version = version, None

    def _open_first(self, addresses: Sequence[str]) -> Channel:
        causes: list[IgniteTFError] = []
        for address in dict.fromkeys(addresses):
            try:
                return self.open_channel(address)
            except (ConnectError, RequestTimeout) as error:
                causes.append(_with_node_end(error, address))
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
        """Send one request on any pooled channel and return the body of its answer.

        A request that only reads is sent again, if necessary to another node, when the connection
        is lost or the cluster changes.
        """

        def once(_: object) -> memoryview:
            with self._line() as line:
                return line.call(op, body, timeout_s=timeout_s)

        return retry(self.settings, once) if op in _READS else once(None)

    def ask(self, *questions: Question[Any]) -> list[Any]:
        """Send questions in one round trip, and return their parsed answers in order.

        Raises:
            IgniteTFError: The error of the first question that was refused.
        """

        def once(_: object) -> list[memoryview | ServerError]:
            with self._line() as line:
                return answers_to(line, questions)

        answers = retry(self.settings, once)
        return [one.answered(answer) for one, answer in zip(questions, answers, strict=True)]

    def zone(self) -> Zone:
        """Return the time zone of the nodes; it is requested once and cached.

        Raises:
            ConfigError: The nodes have different zones, or do not report them.
        """
        if self._zone is None:
            given = self.settings.time_zone
            self._zone = zone_of(given) if given else _cluster_zone(lambda one: self.ask(one)[0])
        return self._zone

    @property
    def pyignite(self) -> pyignite.Client:
        """A pyignite client whose connections use these settings."""
        with self._lock:
            if self._py is None:
                self._py = PyClient(self.settings)
            return self._py

    def nodes(self) -> list[NodeEndpoint]:
        """Return the server nodes and their thin client addresses (op 5102), seed addresses first.

        Empty if the cluster is too old to know this operation.
        """
        found: list[NodeEndpoint]
        (found,) = self.ask(self.nodes_question)
        return found

    @property
    def nodes_are_old(self) -> bool:
        """True if `known_nodes` may be outdated: the topology changed or its version is unknown."""
        reported = self.reported_topology
        return reported is None or self.topology != reported[0]

    @property
    def nodes_question(self) -> Question[list[NodeEndpoint]]:
        """The request that `nodes` sends."""
        return Question(
            OpCode.CLUSTER_GROUP_NODE_ENDPOINTS,
            nodes_request(),
            self._read_nodes,
            _none_if_unknown,
            Feature.CLUSTER_GROUP_GET_NODES_ENDPOINTS,
        )

    def _read_nodes(self, body: memoryview) -> list[NodeEndpoint]:
        with damaged("the list of nodes"):
            found = read_endpoints(body)
            self.topology = read_long(body, "the version of the topology")
        self.known_nodes = found
        seeds = set(self.settings.addresses)
        for node in found:
            ordered = sorted(node.addresses, key=lambda a: a not in seeds)
            if ordered:
                self._address_of.setdefault(node.node_id, ordered[0])
                self._addresses[node.node_id] = node.addresses
        return found

    def addresses_of(self, node: uuid.UUID) -> tuple[str, ...]:
        """Return the addresses of a node in the last answer to `nodes`; empty if unknown."""
        return self._addresses.get(node, ())


def _none_if_unknown(error: ServerError) -> list[NodeEndpoint]:
    """Return no nodes if the cluster does not know the request; raise any other error."""
    if error.fields.get("status") != Status.INVALID_OP_CODE:
        raise error
    return []


def _with_other_nodes(error: ConnectError, settings: Settings) -> ConnectError:
    """If the address is the default one, name the embedded nodes that run here in the error."""
    if "addresses" in settings.origin or settings.addresses != (DEFAULT_ADDRESS,):
        return error
    if not (running := running_nodes()):
        return error
    return error.hinted(f"connect with --node {' or --node '.join(running)}")


def _with_node_end(
    error: ConnectError | RequestTimeout, address: str
) -> ConnectError | RequestTimeout:
    """Add to a connection error how an embedded node at this address ended, if known."""
    if type(error) is not ConnectError or not isinstance(error.__cause__, ConnectionRefusedError):
        return error
    if (reason := ended_at(address)) is None:
        return error
    found = ConnectError(
        f"{error.message}: {reason}",
        hint="'ignitetf node logs' shows its last output; start it again with 'ignitetf node start'",
        **error.fields,
    )
    found.__cause__ = error.__cause__
    return found


Rows = list[tuple[Any, ...]]
Ask = Callable[[Question[Rows]], Rows]

_MOST_ZONES: Final = 1 << 14
_MOST_NAMED: Final = 8
_SET_IT: Final = (
    "or set the time zone of stored times with IGNITETF_TIME_ZONE (time_zone= of connect)"
)
# Winter and summer of years chosen so that only a zone that is UTC agrees with UTC in all of them.
_PROBED: Final = tuple(
    datetime.datetime(year, month, 1, 12)
    for year in (1905, 1942, 1970, 2000, 2024)
    for month in (1, 7)
)


def _cluster_zone(ask: Ask) -> Zone:
    """Return the time zone of a cluster's nodes.

    Args:
        ask: Returns the rows of a query; raises SqlUnavailable if the cluster has no SQL engine.

    Raises:
        ConfigError: The zones of the nodes differ, or are not known.
    """
    try:
        rows = ask(_zone_query(statement("time_zones")))
    except SqlUnavailable:
        return UTC  # without SQL only clients interpret times
    except IgniteTFError as error:
        if is_retryable(error):
            raise
        rows = []  # this user may not read the views
    names = [name for name, _ in rows]
    if not names or None in names:
        return _probed_zone(ask)
    zones = {name: zone_of(name) for name in set(names)}
    if len(set(zones.values())) > 1:
        raise _different_zones(rows)
    return zones[names[0]]


def _probed_zone(ask: Ask) -> Zone:
    texts = ", ".join("CAST(? AS VARCHAR)" for _ in _PROBED)
    (shown,) = ask(_zone_query(f"SELECT {texts}", _PROBED))
    if [str(moment) for moment in _PROBED] == list(shown):
        return UTC
    raise ConfigError(
        "the cluster does not report the time zone of its nodes",
        hint=f"let the nodes publish user.timezone (includeProperties), {_SET_IT}",
    )


def _zone_query(text: str, params: Sequence[Any] = ()) -> Question[Rows]:
    encoded = [encode_parameter(value) for value in params]
    body = sql_request("PUBLIC", text, encoded, _MOST_ZONES, names=True)
    return Question(OpCode.QUERY_SQL_FIELDS, body, _zone_rows)


def _zone_rows(body: memoryview) -> Rows:
    _, columns, page = read_named_sql_page(body)
    places = find_rows(page.data, page.count, len(columns))
    values = [decode_values(page.data, at, TypeRegistry()).to_python() for at in places]
    return list(zip(*values, strict=True))


def _different_zones(rows: Rows) -> ConfigError:
    counts = Counter(name for name, _ in rows)
    shown = [f"{name} on {node}" for name, node in rows[:_MOST_NAMED]]
    more = len(rows) - len(shown)
    return ConfigError(
        "the nodes of the cluster have different time zones, so a DATE, TIME or TIMESTAMP is"
        f" another on each: {', '.join(shown)}{f' and {more} more' if more else ''}",
        hint=f"start all nodes with -Duser.timezone={counts.most_common(1)[0][0]}, {_SET_IT}",
    )
