"""Fetches entries by their keys: many GET_ALL requests in flight, answers in any order.

requests -> **fetch** -> pages of entries -> lookup

A group is what is handed over at once: some thousand keys. It is asked for by many small requests,
because a node answers those in parallel. Where the entries go is up to the group's sink; usually
(`Parts`) each answer is received behind the others of its group into one piece of memory. So a group
is decoded in one pass, however small its requests are.

There are one or several connections to each node that owns keys, each with a thread. A lost
connection is replaced, and its unanswered requests are sent again to whichever node takes them: a
node forwards keys that it does not own. Groups are handed over in the order asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import IgniteTFError, WireError
from ignitetf.net.channel import Channel, Receive
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

__all__ = ["MOST_BYTES", "MOST_GROUPS", "Answer", "Fetch", "Parts", "Received", "Request", "Sink"]

log = logging.getLogger(__name__)

# Fewer in flight leave the node idle between answers.
_LEAST_IN_FLIGHT: Final = 16
# Bytes in flight, in those that arrive between a request and the beginning of its answer.
_AHEAD: Final = 4
# Limit over all connections, which is reached by large rows and at a distance.
MOST_BYTES: Final = 48 << 20
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
        first: Number of its first key among all those of the group's requests, in their order.
        count: Number of keys.
        keys: The keys, if they are integers.
        body: Its bytes.
        nbytes: About as many bytes as its answer has.
    """

    node: uuid.UUID | None
    first: int
    count: int
    keys: NDArray[np.int64] | None
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


class Answer(NamedTuple):
    """An answer that begins to arrive.

    Attributes:
        link: Number of the connection that it comes over, which a thread of its own receives from.
        request: What was asked.
        source: The node that answers.
        entries: How many entries it has.
        nbytes: Their bytes.
        memory: Takes so much memory of the connection, which keeps it for the next epoch.
    """

    link: int
    request: Request
    source: Source
    entries: int
    nbytes: int
    memory: Callable[[int], memoryview]


class Sink(Protocol):
    """Where the entries of a group go. Called by the threads of all connections."""

    def place(self, answer: Answer) -> memoryview | Receive:
        """Return the memory for the entries of an answer, or what receives them."""

    def received(self, answer: Answer) -> None:
        """Count an answer that has arrived as a whole."""


@dataclass
class _Part:
    """What one connection has received of a group: entries, one after the other."""

    memory: memoryview
    used: int = 0
    count: int = 0


class Parts:
    """Receives entries one after the other, by the connection and the node that answers.

    Args:
        nbytes: About as many bytes as the group has.
        links: Connections that receive it.
    """

    def __init__(self, nbytes: int, links: int) -> None:
        self._nbytes = nbytes
        self._links = links
        # Each is of one thread; another node that has taken over has a part of its own.
        self._parts: dict[tuple[int, Source], _Part] = {}
        self._arriving: dict[int, _Part] = {}

    def place(self, answer: Answer) -> memoryview:
        """See `Sink`."""
        key, nbytes = (answer.link, answer.source), answer.nbytes
        part = self._parts.get(key)
        if part is None:
            size = max(nbytes, int(_SPARE * self._nbytes / self._links))
            part = self._parts[key] = _Part(answer.memory(size))
        elif part.used + nbytes > len(part.memory):
            # Rows are longer than those before: at least half as much again.
            size = max(part.used + nbytes, len(part.memory) * 3 // 2)
            memory = answer.memory(size)
            memory[: part.used] = part.memory[: part.used]
            part.memory = memory
        self._arriving[answer.link] = part
        return part.memory[part.used : part.used + nbytes]

    def received(self, answer: Answer) -> None:
        """See `Sink`."""
        part = self._arriving[answer.link]
        part.used += answer.nbytes
        part.count += answer.entries

    def pages(self) -> list[Received]:
        """Return what has arrived: a page for each connection, in no order within it."""
        return [_page(part, source) for (_, source), part in self._parts.items() if part.count]


S = TypeVar("S", bound=Sink)


@dataclass
class _Group(Generic[S]):
    """A group that is being received.

    Attributes:
        requests: How many of its requests are not answered yet.
        nbytes: About as many bytes as all its answers have.
        sink: Where its entries go.
    """

    requests: int
    nbytes: int
    sink: S


class Fetch(Generic[S]):
    """The rows of groups of keys, in the order of the groups; iterate it once, and close it.

    Args:
        client: The connection settings.
        name: The cache, for messages.
        groups: The requests of each group. Taken by the threads, a few groups ahead.
        nodes: The nodes that the requests name.
        new_sink: Makes the sink of a group, given its requests; called by one thread at a time.
        links: Connections to each node.
        retry: How long to try to replace a lost connection.
        times: Receives the times of each thread that has ended.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        groups: Iterable[Sequence[Request]],
        nodes: Sequence[uuid.UUID | None],
        new_sink: Callable[[Sequence[Request]], S],
        *,
        links: int = 1,
        retry: RetryPolicy | None = None,
        times: Times | None = None,
    ) -> None:
        self.name = name
        self.times = times if times is not None else Times()
        self.ready = threading.Condition()
        self.stopped = False
        self.error: BaseException | None = None
        self._source: Iterator[Sequence[Request]] | None = iter(groups)
        self._new_sink = new_sink
        self._open: deque[_Group[S]] = deque()
        self._open_bytes = 0
        self._todo: dict[uuid.UUID | None, deque[_Asked[S]]] = {node: deque() for node in nodes}
        policy = retry or RetryPolicy()
        every = [node for node in nodes for _ in range(links)]
        self._links = [_Link(self, client, link, policy) for link in enumerate(every)]

    # The consumer's side

    def groups(self) -> Generator[S, None, None]:
        """Yield the sink of each group, which has its entries, but for keys that do not exist.

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
                yield group.sink
                if os.getpid() != process:
                    raise forked(self.name)
        finally:
            if os.getpid() == process:
                self._end()

    def _next(self) -> _Group[S] | None:
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

    def take(self, node: uuid.UUID | None) -> _Asked[S] | None:
        """Return the next request for a node; None if there is none now."""
        todo = self._todo[node]
        while not todo and self._source is not None and self._has_room():
            self._open_group()
        return todo.popleft() if todo else None

    def give_back(self, node: uuid.UUID | None, items: Iterable[_Asked[S]]) -> None:
        """Put requests back that were not answered, in front of all others."""
        self._todo[node].extendleft(reversed(list(items)))
        self.ready.notify_all()

    def is_over(self, node: uuid.UUID | None) -> bool:
        """Whether no request for this node will come any more."""
        return self._source is None and not self._todo[node]

    def _has_room(self) -> bool:
        """Whether another group may be asked for, beside those that are open."""
        wanted = min(MOST_BYTES, 2 * sum(link.wanted_bytes for link in self._links))
        count = len(self._open)
        return count < 2 or (count < MOST_GROUPS and self._open_bytes < wanted)

    def _open_group(self) -> None:
        assert self._source is not None
        requests = next(self._source, None)
        if requests is None:
            self._source = None
            self.ready.notify_all()
            return
        nbytes = sum(request.nbytes for request in requests)
        group = _Group(len(requests), nbytes, self._new_sink(requests))
        self._open.append(group)
        self._open_bytes += group.nbytes
        for request in requests:
            node = request.node if request.node in self._todo else next(iter(self._todo))
            self._todo[node].append((group, request))
        self.ready.notify_all()


_Asked = tuple[_Group[S], Request]


class _Link(threading.Thread, Generic[S]):
    """One connection: keeps enough requests in flight, and receives their answers."""

    def __init__(
        self,
        fetch: Fetch[S],
        client: Client,
        link: tuple[int, uuid.UUID | None],
        retry: RetryPolicy,
    ) -> None:
        super().__init__(name=f"ignitetf-fetch-{fetch.name}", daemon=True)
        self._fetch = fetch
        self._client = client
        self._number, self._node = link
        self._retry = retry
        self._backoff, self._heap_backoff = Backoff(READ), Backoff(HEAP)
        self._channel: Channel | None = None
        self._source: Source | None = None
        self._asked: dict[int, tuple[_Group[S], Request, float]] = {}
        self._asked_bytes = 0
        self._rate = 0.0  # bytes a second
        self._delay = 0.0  # the shortest time until an answer began, in seconds
        self._since = 0.0
        self._received = 0
        self._most_bytes = MOST_BYTES // 2
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

    def _next(self) -> list[_Asked[S]]:
        """Return the next requests; waits for one unless answers are outstanding."""
        fetch, found = self._fetch, list[_Asked[S]]()
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

    def _send(self, items: list[_Asked[S]]) -> None:
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
        channel, source = self._channel, self._source
        assert channel is not None and source is not None
        waited = channel.waited_s
        begin = time.monotonic()
        answer: Answer | None = None

        def place(number: int, count: int, nbytes: int) -> memoryview | Receive:
            nonlocal answer
            group, request, sent = self._asked[number]
            if not 0 <= count <= request.count:
                raise WireError(f"{self._fetch.name}: {count} entries for {request.count} keys")
            delay = time.monotonic() - sent
            self._delay = min(self._delay or delay, delay)
            answer = Answer(self._number, request, source, count, nbytes, channel.memory)
            return group.sink.place(answer)

        number = channel.next_answer(place)
        assert answer is not None
        group, request, _ = self._asked.pop(number)
        group.sink.received(answer)
        self._asked_bytes -= request.nbytes
        self._backoff.progress()
        self._heap_backoff.progress()
        self._adapt(answer.nbytes)
        wait = channel.waited_s - waited
        self.times.wait += wait
        self.times.receive += time.monotonic() - begin - wait
        with self._fetch.ready:
            group.requests -= 1
            if not group.requests:
                self._fetch.ready.notify_all()

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


def _page(part: _Part, source: Source) -> Received:
    page = Page(part.count, False, np.frombuffer(part.memory, np.uint8)[: part.used])
    return Received(page, source)
