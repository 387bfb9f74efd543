"""Requests in flight: never more than allowed, answered in order, sent again where that is meant."""

import math
from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConnectError, ServerError
from ignitetf.net.lines import Lines
from ignitetf.net.pipeline import InFlight, Pipeline
from ignitetf.wire.codes import OpCode

PUT = OpCode.CACHE_PUT


class FakeChannel:
    """Answers each request with its buffers, as long as it lives.

    Args:
        life: Answers until the connection is lost.
        interrupted: Whether Ctrl-C comes instead of that loss.
    """

    def __init__(self, life=10**9, interrupted=False):
        self.life, self.interrupted = life, interrupted
        self.asked, self.most, self.closed = {}, 0, False
        self.next = 0

    def send(self, op, *buffers):
        if self.closed:
            raise ConnectError("closed")
        self.next += 1
        self.asked[self.next] = b"".join(buffers)
        self.most = max(self.most, len(self.asked))
        return self.next

    def receive(self, request):
        if self.closed or self.life == 0:
            self.closed = True
            raise KeyboardInterrupt if self.interrupted else ConnectError("lost")
        self.life -= 1
        body = self.asked.pop(request)
        if body.startswith(b"refused"):
            raise ServerError("refused")
        return memoryview(body)

    def close(self):
        self.closed = True


class FakeClient:
    """Hands out channels in turn."""

    settings = SimpleNamespace(idle_timeout_s=5.0, ahead_bytes=128 << 20)
    quickest_s = math.inf
    idle_count = 0

    def __init__(self, *channels):
        self.channels = deque(channels)
        self.acquired, self.released = [], []

    def acquire(self):
        self.acquired.append(self.channels.popleft())
        return self.acquired[-1]

    def release(self, channel):
        self.released.append(channel)


def payload(number):
    return b"%d" % number


@given(st.integers(0, 20), st.integers(0, 8))
def test_no_more_requests_than_allowed_stay_unanswered(count, limit):
    channel = FakeChannel()
    sent = InFlight(channel, limit)
    for number in range(count):
        sent.send(PUT, payload(number))
        assert len(sent) == len(channel.asked) == min(number + 1, limit)
    # One more while it is sent: the node works on all of them when the oldest answer is awaited.
    assert channel.most == min(count, limit + 1)
    sent.drain()
    assert len(sent) == 0 and not channel.asked


def test_answers_come_in_the_order_of_the_requests():
    sent = InFlight(FakeChannel())
    for number in range(5):
        sent.send(PUT, payload(number), b"!")
    assert [bytes(sent.receive()) for _ in range(5)] == [payload(n) + b"!" for n in range(5)]


def test_a_refused_request_is_answered():
    sent = InFlight(FakeChannel(), 1)
    sent.send(PUT, b"refused")
    with pytest.raises(ServerError):
        sent.send(PUT, b"1")
    assert len(sent) == 1
    assert sent.receive() == b"1"


def test_a_request_that_was_not_sent_waits_for_no_answer():
    channel = FakeChannel()
    sent = InFlight(channel)
    channel.close()
    with pytest.raises(ConnectError):
        sent.send(PUT, b"1")
    assert len(sent) == 0


@given(st.lists(st.integers(0, 4), max_size=4), st.integers(1, 12))
def test_what_a_lost_connection_took_along_is_sent_again(lives, count):
    client = FakeClient(*map(FakeChannel, lives), FakeChannel())
    pipeline = Pipeline(client)
    for number in range(count):
        pipeline.submit(PUT, payload(number))
    assert len(pipeline) == count
    assert [bytes(pipeline.next_answer()) for _ in range(count)] == [
        payload(n) for n in range(count)
    ]
    assert len(pipeline) == 0
    pipeline.close_if_idle()
    *lost, kept = client.acquired
    assert client.released == [kept] and not kept.closed
    assert all(channel.closed for channel in lost)


def test_an_answer_is_of_its_own_request_after_an_interruption():
    client = FakeClient(FakeChannel(1, interrupted=True), FakeChannel())
    pipeline = Pipeline(client)
    for number in range(3):
        pipeline.submit(PUT, payload(number))
    assert pipeline.next_answer() == b"0"
    with pytest.raises(KeyboardInterrupt):
        pipeline.next_answer()
    assert [bytes(pipeline.next_answer()) for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("pending", [0, 1])
def test_a_connection_is_given_back_only_when_all_is_answered(pending):
    channel = FakeChannel()
    client = FakeClient(channel)
    pipeline = Pipeline(client)
    pipeline.submit(PUT, b"0")
    if not pending:
        pipeline.next_answer()
    pipeline.close()
    assert (client.released == [channel], channel.closed) == (not pending, bool(pending))


class FarClient(FakeClient):
    """A distant client, with connections that are open."""

    quickest_s = 0.05

    @property
    def idle_count(self):
        return len(self.channels)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 60))
def test_over_several_connections_answers_come_in_order_and_losses_are_sent_again(lives, count):
    client = FarClient(*map(FakeChannel, lives), *(FakeChannel() for _ in range(count + 8)))
    lines = Lines(client)
    for number in range(count):
        lines.submit(PUT, payload(number))
    assert [bytes(lines.next_answer()) for _ in range(count)] == [payload(n) for n in range(count)]
    assert len(lines) == 0
    assert len(client.acquired) > 1 or (count <= 4 and lives[0] >= count)
    lines.close_if_idle()
    assert all(channel.closed or channel in client.released for channel in client.acquired)


def test_a_near_cluster_has_one_connection():
    client = FakeClient(FakeChannel(), FakeChannel())
    lines = Lines(client)
    for number in range(50):
        lines.submit(PUT, payload(number))
    assert len(client.acquired) == 1
