"""Fetches entries by their keys: many GET_ALL requests in flight, answers in any order.

requests -> **fetch** -> pages of entries -> lookup

A group is what is handed over at once: some thousand keys. It is asked for by many small requests,
because a node answers those in parallel, and each answer is received behind the others of its group
into one piece of memory. So a group is decoded in one pass, however small its requests are.

There is a thread and a connection for each node that owns keys. A lost connection is replaced, and
its unanswered requests are sent again to whichever node takes them: a node forwards keys that it
does not own. Groups are handed over in the order asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ignitetf.errors import IgniteTFError, WireError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.failures import is_asked_too_much
from ignitetf.net.places import Source
from ignitetf.net.retry import HEAP, READ, Backoff
from ignitetf.read.cursor import Times
from ignitetf.read.error_context import forked
from ignitetf.read.page_query import RetryPolicy
from ignitetf.read.usage import add_wait
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = ["MOST_GROUPS", "Fetch", "Received", "Request"]

log = logging.getLogger(__name__)

# Fewer in flight leave the node idle between answers.
_LEAST_IN_FLIGHT: Final = 16
# Bytes in flight, in those that arrive between a request and the beginning of its answer.
_AHEAD: Final = 4
# Limit over all connections, which is reached only at a distance.
_MOST_BYTES: Final = 48 << 20
# Limit for groups of few bytes or none.
MOST_GROUPS: Final = 32
# How long closing waits for a thread; one that still expects an answer then ends alone.
_CLOSING_S: Final = 1.0
# Memory for a group is taken with so much to spare, since rows differ in length.
_SPARE: Final = 1.06


@dataclass(frozen=True)
class Request:
    """A GET_ALL request.

    Attributes:
        node: The node that owns its keys; None for any.
        count: Number of keys.
        body: Its bytes.
        nbytes: About as many bytes as its answer has.
    """

    node: uuid.UUID | None
    count: int
    body: bytes
    nbytes: int


class Received(NamedTuple):
    """Entries that came from one node.

    Attributes:
        page: The entries.
        source: The node.
    """

    page: Page
    source: Source


@dataclass
class _Part:
    """What one connection has received of a group: entries, one after the other."""

    memory: memoryview
    source: Source
    used: int = 0
    count: int = 0


@dataclass
class _Group:
    """A group that is being received.

    Attributes:
        requests: How many of its requests are not answered yet.
        nbytes: About as many bytes as all its answers have.
        parts: What has arrived, by the node asked and the one that answered.
    """

    requests: int
    nbytes: int
    parts: dict[tuple[uuid.UUID | None, Source], _Part] = field(default_factory=dict)


class Fetch:
    """The rows of groups of keys, in the order of the groups; iterate it once, and close it.

    Args:
        client: The connection settings.
        name: The cache, for messages.
        groups: The requests of each group. Taken by the threads, a few groups ahead.
        nodes: The nodes that the requests name, for each of which there is a connection.
        retry: How long to try to replace a lost connection.
        times: Receives the times of each thread that has ended.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        groups: Iterable[Sequence[Request]],
        nodes: Sequence[uuid.UUID | None],
        *,
        retry: RetryPolicy | None = None,
        times: Times | None = None,
    ) -> None:
        self.name = name
        self.times = times if times is not None else Times()
        self.ready = threading.Condition()
        self.stopped = False
        self.links = len(nodes)
        self.error: BaseException | None = None
        self._source: Iterator[Sequence[Request]] | None = iter(groups)
        self._open: deque[_Group] = deque()
        self._open_bytes = 0
        self._todo: dict[uuid.UUID | None, deque[tuple[_Group, Request]]] = {
            node: deque() for node in nodes
        }
        policy = retry or RetryPolicy()
        self._links = [_Link(self, client, node, policy) for node in nodes]

    # The consumer's side

    def pages(self) -> Generator[list[Received], None, None]:
        """Yield the entries of each group: a page for each connection, in no order within it.

        Keys that the cache does not have are missing from the pages.

        Raises:
            IgniteTFError: What ended a thread.
            ConfigError: The process was forked since the first group.
        """
        process = os.getpid()
        self.times.began = time.monotonic()
        try:
            for link in self._links:
                link.start()
            while (group := self._next()) is not None:
                yield [_received(part) for part in group.parts.values() if part.count]
                if os.getpid() != process:
                    raise forked(self.name)
        finally:
            if os.getpid() == process:
                self._end()

    def _next(self) -> _Group | None:
        """Wait for the next group; None after the last."""
        begin = time.monotonic()
        with self.ready:
            self.ready.wait_for(self._is_next)
            starved = time.monotonic() - begin
            self.times.starved += starved
            add_wait(starved)
            if self.error is not None:
                raise self.error
            if not self._open:
                return None
            group = self._open.popleft()
            self._open_bytes -= group.nbytes
            self.ready.notify_all()
            return group

    def _is_next(self) -> bool:
        if self.error is not None or (self._open and not self._open[0].requests):
            return True
        return self._source is None and not self._open

    def _end(self) -> None:
        with self.ready:
            self.stopped = True
            self.ready.notify_all()
        until = time.monotonic() + _CLOSING_S
        for link in self._links:
            link.join(max(0.0, until - time.monotonic()))
            self.times.add(link.times)

    # The threads' side; all of it with `ready` held

    def take(self, node: uuid.UUID | None) -> tuple[_Group, Request] | None:
        """Return the next request for a node; None if there is none now."""
        todo = self._todo[node]
        while not todo and self._source is not None and self._has_room():
            self._open_group()
        return todo.popleft() if todo else None

    def give_back(self, node: uuid.UUID | None, items: Iterable[tuple[_Group, Request]]) -> None:
        """Put requests back that were not answered, in front of all others."""
        self._todo[node].extendleft(reversed(list(items)))
        self.ready.notify_all()

    def is_over(self, node: uuid.UUID | None) -> bool:
        """Whether no request for this node will come any more."""
        return self._source is None and not self._todo[node]

    def _has_room(self) -> bool:
        """Whether another group may be asked for, beside those that are open."""
        wanted = min(_MOST_BYTES, 2 * sum(link.wanted_bytes for link in self._links))
        count = len(self._open)
        return count < 2 or (count < MOST_GROUPS and self._open_bytes < wanted)

    def _open_group(self) -> None:
        assert self._source is not None
        requests = next(self._source, None)
        if requests is None:
            self._source = None
            self.ready.notify_all()
            return
        group = _Group(len(requests), sum(r.nbytes for r in requests))
        self._open.append(group)
        self._open_bytes += group.nbytes
        for request in requests:
            node = request.node if request.node in self._todo else next(iter(self._todo))
            self._todo[node].append((group, request))
        self.ready.notify_all()


class _Link(threading.Thread):
    """One connection: keeps enough requests in flight, and receives their answers."""

    def __init__(
        self, fetch: Fetch, client: Client, node: uuid.UUID | None, retry: RetryPolicy
    ) -> None:
        super().__init__(name=f"ignitetf-fetch-{fetch.name}", daemon=True)
        self._fetch = fetch
        self._client = client
        self._node = node
        self._share = 1 / fetch.links
        self._retry = retry
        self._backoff, self._heap_backoff = Backoff(READ), Backoff(HEAP)
        self._channel: Channel | None = None
        self._source: Source | None = None
        self._asked: dict[int, tuple[_Group, Request, float]] = {}
        self._asked_bytes = 0
        self._rate = 0.0  # bytes a second
        self._delay = 0.0  # the shortest time until an answer began, in seconds
        self._since = 0.0
        self._received = 0
        self._most_bytes = _MOST_BYTES // 2
        self.wanted_bytes = 0
        self.times = Times()

    def run(self) -> None:
        """Receive until nothing is left; an error that ends it early goes to the consumer."""
        try:
            while self._try():
                pass
        except BaseException as error:
            with self._fetch.ready:
                self._fetch.error = self._fetch.error or error
                self._fetch.ready.notify_all()
        channel, self._channel = self._channel, None
        if channel is not None:
            self._client.release(channel)

    def _try(self) -> bool:
        """Send what may be sent, and receive one answer; return False when nothing is left."""
        try:
            # Several at once, because each call costs as much as the node's work for some rows.
            if self._asked_bytes <= self.wanted_bytes // 2:
                self._send(self._next())
            if not self._asked:
                return False
            self._receive()
        except IgniteTFError as error:
            self._lost(error)
        return True

    def _next(self) -> list[tuple[_Group, Request]]:
        """Return the next requests; waits for one unless answers are outstanding."""
        fetch, found = self._fetch, list[tuple[_Group, Request]]()
        room = self.wanted_bytes - self._asked_bytes
        with fetch.ready:
            while not fetch.stopped and fetch.error is None:
                item = fetch.take(self._node)
                if item is not None:
                    found.append(item)
                    room -= item[1].nbytes
                    if room > 0:
                        continue
                if found or self._asked or fetch.is_over(self._node):
                    break
                fetch.ready.wait()
        return found

    def _send(self, items: list[tuple[_Group, Request]]) -> None:
        if not items:
            return
        try:
            if self._channel is None:
                self._channel = self._client.acquire(self._node)
                self._source = self._client.source_of(self._channel)
            bodies = [request.body for _, request in items]
            numbers = self._channel.send_all(OpCode.CACHE_GET_ALL, bodies)
        except BaseException:
            with self._fetch.ready:
                self._fetch.give_back(self._node, items)
            raise
        now = time.monotonic()
        if not self._asked:
            self._since, self._received = now, 0
        for number, (group, request) in zip(numbers, items, strict=True):
            self._asked[number] = (group, request, now)
            self._asked_bytes += request.nbytes
            least = min(self._most_bytes, _LEAST_IN_FLIGHT * request.nbytes)
            self.wanted_bytes = max(self.wanted_bytes, least)

    def _receive(self) -> None:
        assert self._channel is not None
        waited = self._channel.waited_s
        begin = time.monotonic()
        part: _Part | None = None
        found = (0, 0)

        def room(number: int, count: int, nbytes: int) -> memoryview:
            nonlocal part, found
            group, request, sent = self._asked[number]
            if not 0 <= count <= request.count:
                raise WireError(f"{self._fetch.name}: {count} entries for {request.count} keys")
            delay = time.monotonic() - sent
            self._delay = min(self._delay or delay, delay)
            part, found = self._part(group, nbytes), (count, nbytes)
            return part.memory[part.used : part.used + nbytes]

        number = self._channel.next_answer(room)
        assert part is not None
        part.used += found[1]
        part.count += found[0]
        group, request, _ = self._asked.pop(number)
        self._asked_bytes -= request.nbytes
        self._backoff.progress()
        self._heap_backoff.progress()
        self._adapt(found[1])
        wait = self._channel.waited_s - waited
        self.times.wait += wait
        self.times.receive += time.monotonic() - begin - wait
        with self._fetch.ready:
            group.requests -= 1
            if not group.requests:
                self._fetch.ready.notify_all()

    def _part(self, group: _Group, nbytes: int) -> _Part:
        """Return this connection's part of a group, with room for so many more bytes."""
        source = self._source
        assert source is not None
        # Another node that has taken over has a part of its own.
        part = group.parts.get((self._node, source))
        if part is None:
            size = max(nbytes, int(_SPARE * group.nbytes * self._share))
            part = group.parts[self._node, source] = _Part(self._memory(size), source)
        elif part.used + nbytes > len(part.memory):
            # Rows are longer than those before: at least half as much again.
            size = max(part.used + nbytes, len(part.memory) * 3 // 2)
            memory = self._memory(size)
            memory[: part.used] = part.memory[: part.used]
            part.memory = memory
        return part

    def _memory(self, nbytes: int) -> memoryview:
        """Return memory of the connection, which keeps it for the next epoch."""
        assert self._channel is not None
        return self._channel.memory(nbytes)

    def _adapt(self, nbytes: int) -> None:
        """Ask for several times as much at once as arrives while an answer is on its way.

        Since requests are sent when half of them are answered, a smaller multiple would never find
        out that the link could carry more.
        """
        self._received += nbytes
        elapsed = time.monotonic() - self._since
        if elapsed < 4 * self._delay:
            return
        self._rate = max(self._received / elapsed, self._rate / 2)
        self._since, self._received = time.monotonic(), 0
        self.wanted_bytes = min(
            self._most_bytes, max(self.wanted_bytes, int(_AHEAD * self._rate * self._delay))
        )

    def _wait_s(self, error: IgniteTFError) -> float | None:
        """Return how long to wait before reading on; None to give up."""
        if not is_asked_too_much(error):
            return self._backoff.wait_s(error, self._retry.budget_s)
        # Of fewer answers at a time, each may find room; at least one is asked for.
        self._most_bytes = self.wanted_bytes = self.wanted_bytes // 4
        return self._heap_backoff.wait_s(error)

    def _lost(self, error: IgniteTFError) -> None:
        """Give the unanswered requests back, and wait before the next try."""
        channel, self._channel = self._channel, None
        if channel is not None:
            # Also after an error answer: those to the other requests would still arrive there.
            channel.close()
        with self._fetch.ready:
            items = [(group, request) for group, request, _ in self._asked.values()]
            self._fetch.give_back(self._node, items)
            self._asked.clear()
            self._asked_bytes = 0
            if self._fetch.stopped:
                return
        wait = self._wait_s(error)
        if wait is None:
            raise error.at(self._fetch.name, cache=self._fetch.name) from error
        log.warning("%s: %s; reading on in %.1f s", self._fetch.name, error, wait)
        with self._fetch.ready:
            self._fetch.ready.wait_for(lambda: self._fetch.stopped, wait)


def _received(part: _Part) -> Received:
    page = Page(part.count, False, np.frombuffer(part.memory, np.uint8)[: part.used])
    return Received(page, part.source)
