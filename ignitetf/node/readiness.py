"""Wait until a node is ready: it runs, its log reports the start, and it answers a thin client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ignitetf.errors import (
    AuthenticationError,
    ConnectError,
    IgniteTFError,
    NodeError,
    RequestTimeout,
    ServerError,
    SqlError,
)
from ignitetf.local.logs import failure_cause, log_tail
from ignitetf.local.state import Member
from ignitetf.settings import Settings

__all__ = ["answers", "use_views", "wait_active", "wait_answer", "wait_started"]

_STARTED = b"Ignite node started OK"
# Reading the log is cheap. Querying a recovering node is expensive, and fills its log.
_LOG_POLL_S = 0.1
_QUERY_POLL_S = 0.3
_INACTIVE = 0


def wait_started(members: Sequence[Member], deadline: float) -> None:
    """Wait until each member's log says that it has started.

    Raises:
        NodeError: A member ended, or time ran out; includes the end of its log.
    """
    waiting = list(members)
    while waiting:
        for member in list(waiting):
            directory = Path(member.directory)
            alive = member.alive
            if _STARTED in (directory / "out.log").read_bytes():
                waiting.remove(member)
            elif not alive:
                raise _ended(member)
        if waiting:
            _check_time(waiting[0], deadline)
            time.sleep(_LOG_POLL_S)


def wait_active(member: Member, login: Callable[[], Settings], deadline: float) -> None:
    """Activate the cluster; a new cluster that keeps data on disk is inactive.

    Call this when all members have joined. The same members must be present at the next start.

    Args:
        member: The member to send the request to.
        login: Returns the settings to connect with; may query the node itself, and may be retried.
        deadline: Time limit, in `time.monotonic` seconds.

    Raises:
        NodeError: The member ended, or time ran out.
    """
    from ignitetf.net.channel import Channel
    from ignitetf.wire.codes import OpCode
    from ignitetf.wire.requests import cluster_state_request

    def make_active() -> None:
        settings = login()
        with Channel(settings.addresses[0], settings) as channel:
            if channel.call(OpCode.CLUSTER_GET_STATE)[0] == _INACTIVE:
                limit = max(1.0, deadline - time.monotonic())
                request = cluster_state_request(active=True)
                channel.call(OpCode.CLUSTER_CHANGE_STATE, request, timeout_s=limit)

    _retry(make_active, member, deadline)


def wait_answer(member: Member, settings: Settings, deadline: float) -> None:
    """Wait until the member answers a query.

    Raises:
        NodeError: It ended, or time ran out.
    """
    _retry(lambda: answers(settings), member, deadline)


def answers(settings: Settings) -> None:
    """Send a query to the address in `settings`; raises what the client raises."""
    from ignitetf.net.client import Client

    with Client(settings) as client:
        rows = client.sql("SELECT 1").fetchall()
    if rows != [(1,)]:
        raise ConnectError(f"{settings.addresses[0]}: SELECT 1 gave {rows!r}")


def _retry(attempt: Callable[[], None], member: Member, deadline: float) -> None:
    while True:
        try:
            attempt()
            return
        except AuthenticationError:
            raise
        except (ConnectError, RequestTimeout, ServerError) as error:
            if not member.alive:
                raise _ended(member) from error
            _check_time(member, deadline, error.message)
        time.sleep(_QUERY_POLL_S)


def _ended(member: Member) -> NodeError:
    directory = Path(member.directory)
    cause = failure_cause(directory)
    return NodeError(
        f"node {member.name!r} ended while it started" + (f": {cause}" if cause else ""),
        hint=f"its log is {directory / 'log'}",
        log_tail=log_tail(directory),
    )


def _check_time(member: Member, deadline: float, last: str = "") -> None:
    if time.monotonic() < deadline:
        return
    raise NodeError(
        f"node {member.name!r} was not ready in time" + (f": {last}" if last else ""),
        hint="is the machine busy? raise the limit with --timeout SECONDS",
        log_tail=log_tail(Path(member.directory)),
    )


def use_views(settings: Settings) -> None:
    """Use each SQL view once on a node that has joined a cluster.

    `Client.sql` restores views that the node lacks; other programs cannot.
    """
    from ignitetf.net.client import Client

    with suppress(IgniteTFError), Client(settings) as client:
        names = client.sql("SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC'").fetchall()
        for (name,) in names:
            with suppress(SqlError):  # a view whose table was dropped
                client.sql(f'SELECT 1 FROM "{name}" WHERE FALSE').close()  # nosec B608
