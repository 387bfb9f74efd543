"""`Flow`: the requests of a plan, over a connection or a few to each node, through lost connections.

plan, landing -> **flow** -> lanes of the core, which land the answers

Each connection has a thread in which the core sends, receives and lands. The core returns to Python
for an unknown form, for rows that need the general decoder, and for an error. When a connection is
lost, its unfinished units are read again from their first row. Rows that have landed are compared,
by the mark of their keys, and do not land a second time.

The core alone decides how much is requested ahead; `window` explains the rule. The window is halved
when a node has no heap for an answer.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import Event, Landing, Lane, UnitState
from ignitetf.errors import ConfigError, IgniteTFError, ServerError, WireError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.failures import HEAP, READ, Backoff, is_node_overloaded, server_error
from ignitetf.net.topology import Origin, origin_of
from ignitetf.net.window import LEAST_BYTES, first_bytes, widened
from ignitetf.wire.answers import read_error
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import request_frames, request_head

__all__ = ["MOST_OPEN", "Flow", "Plan", "Requests", "Sink", "requests_of"]

log = logging.getLogger(__name__)

# The id of a plan's first request; a channel's own ids are lower.
_FIRST_ID: Final = 1 << 40
# Open cursors per connection; the node allows 128.
MOST_OPEN: Final = 120
# Time that closing waits for a thread. A thread that still expects an answer ends later by itself.
_CLOSING_S: Final = 1.0
_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Requests:
    """The requests of a plan, as bytes.

    Attributes:
        frames: The requests one after another, with their heads.
        frame_at: The offset of each request, and the end of the last one, int64 `[n + 1]`.
    """

    frames: bytes
    frame_at: NDArray[np.int64]


def requests_of(op: OpCode, bodies: Sequence[bytes] | NDArray[np.void]) -> Requests:
    """Return requests with these bodies; their ids count from `_FIRST_ID`."""
    if isinstance(bodies, np.ndarray):
        frames = request_frames(op, _FIRST_ID, bodies)
        size = len(frames) // max(1, len(bodies))
        return Requests(frames, np.arange(len(bodies) + 1, dtype=np.int64) * size)
    parts, sizes = [], [0]
    for number, body in enumerate(bodies):
        head = request_head(len(body), op, _FIRST_ID + number)
        parts += [head, body]
        sizes.append(len(head) + len(body))
    return Requests(b"".join(parts), np.cumsum(sizes, dtype=np.int64))


@dataclass(frozen=True)
class Plan:
    """The requests of a read, and the node that answers each.

    Attributes:
        units: The state of each request, in the core's layout; see `_core.UNIT`.
        requests: The request of each unit.
        partitions: The partition of each unit.
        owners: Returns the node to read each partition from; with True, without cached answers.
    """

    units: NDArray[Any]
    requests: Requests
    partitions: NDArray[np.int64]
    owners: Callable[[bool], Mapping[int, uuid.UUID]]


class Sink(Protocol):
    """Interprets the answers that the core alone cannot."""

    def learn(self, type_id: int, schema_id: int, flags: int) -> None:
        """Tell the core how rows of this form are stored."""

    def leave(
        self, unit: int, entries: bytes, places: NDArray[np.int64], absent: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decode the entries of a unit that the core could not decode, and land them.

        Args:
            unit: The unit.
            entries: The entries, in the format of a page.
            places: The place of each entry; -1 if no requested key has exactly these bytes.
            absent: Rows of the unit whose keys have not arrived.

        Returns:
            The places that are complete, int64.
        """

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error of a unit whose number of rows differs from the expected one."""

    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error of a unit whose rows changed between two connections."""


class _Restart(Exception):
    """The connection must be replaced, although it works."""


class _Refused(Exception):
    """The sink failed for good: its own retries are used up, and reading again would not help."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause = cause


class Flow:
    """The connections of one plan.

    Args:
        client: The cluster.
        name: Name of the data set, for messages.
        plan: The source to read.
        landing: The memory in which answers land.
        sink: Interprets what the core cannot.
        connections: Connections to each node.
        most_open: Limit per connection on cursors that stay open for a further page.
        least_window: Bytes that a connection may have under way if the delay is 0.
        is_small: True if all rows fit into the first window and into the groups that may be
            filled ahead. If one node has all of them, they are then read in the caller's thread.
        retry_s: Seconds without progress after which a failure is raised; 0 never retries.

    Attributes:
        origins: The node that each lane reads from, by the number of the lane.
        retries: Number of times that a lane continued after a failure.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        plan: Plan,
        landing: Landing,
        sink: Sink,
        *,
        connections: int = 1,
        most_open: int = MOST_OPEN,
        least_window: int = LEAST_BYTES,
        is_small: bool = False,
        retry_s: float = 60.0,
    ) -> None:
        self._client = client
        self._name = name
        self._plan, self._units = plan, plan.units
        self._landing = landing
        self._sink = sink
        self._connections = connections
        self._most_open = max(1, min(MOST_OPEN, most_open))
        self._least_window = least_window
        self._is_small = is_small
        self._retry_s = retry_s
        self._most_window = widened(client)
        self._window = self._most_window  # the window of the lane that ended last
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._lanes = 0
        self._process = os.getpid()
        self.origins: dict[int, Origin] = {}
        self.retries = 0

    def groups(self) -> Generator[tuple[int, int, Any, tuple[Any, ...], bytes], None, None]:
        """Yield the groups of rows in order, as `Landing.take` returns them.

        Closing the generator at any point ends the threads, and closes the connections that have
        unanswered requests or open cursors.

        Raises:
            IgniteTFError: A connection failed, and no retry is left. The groups before the
                failure were yielded.
            ConfigError: The process was forked since the first group.
        """
        try:
            self._start(range(len(self._units)))
            while True:
                # In a child, a lock that a thread of the parent held would never be released.
                if os.getpid() != self._process:
                    raise ConfigError(
                        f"{self._name}: the process was forked while it read, and the threads that"
                        " receive are its parent's",
                        hint="start reading in the process that uses the rows",
                    )
                taken = self._landing.take(_POLL_S)
                if taken is False:
                    self._wait_for_ends()
                    return
                if taken is not None:
                    yield taken
                elif self._error is not None:
                    raise self._error
        finally:
            if os.getpid() == self._process:
                self._close()

    def _wait_for_ends(self) -> None:
        """Wait until the nodes have reported the end of all units; raise the error if one fails."""
        while self._error is None and (self._units["state"] != UnitState.ENDED).any():
            for thread in filter(threading.Thread.is_alive, list(self._threads)):
                thread.join(_POLL_S)
        if self._error is not None:
            raise self._error

    def _close(self) -> None:
        self._stopped.set()
        self._landing.stop()
        until = time.monotonic() + _CLOSING_S
        # A thread whose start was interrupted, or is under way, cannot be joined.
        for thread in filter(threading.Thread.is_alive, list(self._threads)):
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, units: Sequence[int]) -> None:
        """Start the threads that read these units, one for each connection."""
        shares = self._shares(units, self._plan.owners(False))
        if self._is_small and len(shares) == 1:
            for node, own in shares.items():
                self._read(node, own)
            return
        most = self._client.settings.ahead_bytes // max(1, len(shares) * self._connections)
        self._most_window = max(1, min(self._most_window, most))
        for node, own in shares.items():
            lanes = max(1, min(self._connections, len(own)))
            for first in range(lanes):
                self._start_lane(node, own[first::lanes])

    def _shares(
        self, units: Sequence[int], owners: Mapping[int, uuid.UUID]
    ) -> dict[uuid.UUID | None, list[int]]:
        """Return the units to read from each node, in order; the node None means any node."""
        found: dict[uuid.UUID | None, list[int]] = {}
        partitions = self._plan.partitions[list(units)].tolist()
        for unit, partition in zip(units, partitions, strict=True):
            found.setdefault(owners.get(partition), []).append(unit)
        return found

    def _start_lane(self, node: uuid.UUID | None, units: Sequence[int]) -> None:
        self._start_thread(self._read, node, units)

    def _start_thread(self, work: Callable[..., None], *args: Any) -> None:
        name = f"ignitetf-read-{self._name}"
        thread = threading.Thread(target=work, args=args, name=name, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    # The threads

    def _read(self, node: uuid.UUID | None, units: Sequence[int]) -> None:
        try:
            self._read_all(node, units)
        except BaseException as error:
            if self._error is None and not self._stopped.is_set():
                self._error = error.cause if isinstance(error, _Refused) else error
            self._landing.wake()

    def _read_all(self, node: uuid.UUID | None, units: Sequence[int]) -> None:
        """Read units to their end, over a new connection after each failure."""
        backoff, heap = Backoff(READ), Backoff(HEAP)
        is_lost = False
        while units and not self._stopped.is_set():
            before = self._progress(units)
            try:
                if is_lost:
                    node, units = self._find_new_owners(units)
                self._read_over(node, units)
            except _Restart:
                is_lost = False
            except IgniteTFError as error:
                is_lost = True
                if self._stopped.is_set():
                    return
                if self._progress(units) != before:
                    backoff.progress()
                    heap.progress()
                self._wait_to_retry(error, backoff, heap)
            units = [unit for unit in units if self._units["state"][unit] != UnitState.ENDED]
            self._reset(units)

    def _find_new_owners(self, units: Sequence[int]) -> tuple[uuid.UUID | None, Sequence[int]]:
        """Look up where to read units now.

        Returns:
            The node of the first unit, and the units to read there. Other threads read the rest.
        """
        (node, own), *others = self._shares(units, self._plan.owners(True)).items()
        for other, rest in others:
            self._start_lane(other, rest)
        return node, own

    def _progress(self, units: Sequence[int]) -> tuple[int, int]:
        own = self._units[list(units)]
        new = np.maximum(own["done"], own["replay"])
        return int(new.sum()), int((own["state"] == UnitState.ENDED).sum())

    def _wait_to_retry(self, error: IgniteTFError, backoff: Backoff, heap: Backoff) -> None:
        """Wait before the next try; raise the error if there is none."""
        if is_node_overloaded(error):
            self._most_window = max(1, min(self._most_window, self._window) // 2)
            self._client.most_window = self._most_window
            self._most_open = max(1, self._most_open // 2)
            wait = heap.wait_s(error, self._retry_s)
        else:
            wait = backoff.wait_s(error, self._retry_s)
        if wait is None:
            raise error
        log.warning("%s: %s; retrying in %.1f s", self._name, error, wait)
        with self._lock:
            self.retries += 1
        self._stopped.wait(wait)

    def _reset(self, units: Sequence[int]) -> None:
        """Reset units, which no lane may hold, to their state before the first request."""
        for unit in units:
            row = self._units[unit]
            if row["done"] > row["replay"]:
                row["replay"], row["replay_mark"] = row["done"], row["mark"]
            row["done"] = row["mark"] = row["cursor"] = 0
            row["state"] = UnitState.QUEUED

    def _read_over(self, node: uuid.UUID | None, units: Sequence[int]) -> None:
        """Read units over a connection."""
        channel = self._client.acquire(node)
        with self._lock:
            number, self._lanes = self._lanes, self._lanes + 1
        self.origins[number] = origin_of(self._client, channel)
        is_clean, gives_up = False, True
        lane = None
        try:
            channel.begin_exchange()
            lane = self._lane(channel, number, units)
            is_clean = self._run(lane, channel)
        except (IgniteTFError, _Restart):
            gives_up = False  # the units may be read again
            raise
        finally:
            if lane is not None:
                _, _, self._window, *_, major, minor = lane.state()
                if major:
                    channel.topology_version = major, minor
                    self._client.note_topology(channel)
            if is_clean:
                self._client.release(channel)
            elif gives_up and threading.current_thread() not in self._threads:
                self._start_thread(self._part, channel, lane)  # a node may answer late
            else:
                self._part(channel, lane)

    def _part(self, channel: Channel, lane: Lane | None) -> None:
        """Close a connection that has unanswered requests or open cursors."""
        if lane is not None and not channel.closed:
            with contextlib.suppress(OSError, IgniteTFError):
                lane.drain()
        channel.exchanged((_FIRST_ID,), ())  # some may be unanswered
        channel.close()

    def _lane(self, channel: Channel, number: int, units: Sequence[int]) -> Lane:
        least = min(self._least_window, self._most_window)
        window = first_bytes(self._client, self._most_window, self._least_window)
        return Lane(
            self._landing,
            number,
            channel.socket_number,
            channel.receive_some,
            channel.send_bytes,
            np.array(units, np.int64),
            self._plan.requests.frames,
            self._plan.requests.frame_at,
            _FIRST_ID,
            self._client.settings.request_timeout_s,
            self._client.delay.seconds,
            window,
            least,
            self._most_window,
            self._most_open,
        )

    def _run(self, lane: Lane, channel: Channel) -> bool:
        """Run a lane to its end; returns whether its connection can be used again."""
        while True:
            try:
                event, unit, a, b, c, body = lane.run()
            except OSError as error:
                channel.fail(error)
            if event == Event.DONE:
                return True
            if event == Event.STOPPED:
                return False
            if event in (Event.UNKNOWN, Event.LEFT):
                try:
                    self._sink.learn(a, b, c) if event == Event.UNKNOWN else self._leave_rows(lane)
                except Exception as error:
                    raise _Refused(error) from error
            else:
                self._fail(Event(event), unit, a, body, channel)

    def _leave_rows(self, lane: Lane) -> None:
        entries, places, absent, unit = lane.left()
        done = self._sink.leave(
            unit,
            entries or b"",
            np.frombuffer(places or b"", np.int64),
            np.frombuffer(absent or b"", np.int64),
        )
        self._landing.count(np.ascontiguousarray(done))

    def _fail(self, event: Event, unit: int, a: int, body: bytes, channel: Channel) -> None:
        """Raise the error of an event."""
        if event == Event.FAILED:
            raise _answered(body, channel.address)
        if event == Event.LOST:
            channel.fail(_connection_error(a))
        if event == Event.DAMAGED:
            channel.fail(WireError(body.decode()))
        if event == Event.COUNT:
            raise self._sink.other_count(unit, a)
        if event == Event.REPLAYED:
            raise self._sink.other_keys(unit)
        raise _Restart


def _answered(body: bytes, address: str) -> ServerError:
    try:
        status, message = read_error(memoryview(body))
    except WireError as error:
        raise error.at(address) from error
    return server_error(status, message, address=address)


def _connection_error(number: int) -> OSError:
    if number in (errno.EAGAIN, errno.EWOULDBLOCK):
        return TimeoutError("timed out")
    if not number:
        return ConnectionResetError("the node has closed it")
    return OSError(number, os.strerror(number))
