"""Answers come out of a connection as they went in, however they were cut on the way."""

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.net.channel import Incoming
from ignitetf.wire.buffers import BufferPool

SIZES = st.one_of(st.integers(1, 60), st.integers(1, 5000), st.integers(120_000, 700_000))


def content(number, size):
    return bytes((number * 31 + i) % 251 for i in range(251)) * (size // 251 + 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SIZES, st.booleans()), min_size=1, max_size=25),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=9),
)
def test_what_was_sent_is_received(answers, cuts):
    sent = [content(number, size)[:size] for number, (size, _) in enumerate(answers)]
    near, far = socket.socketpair()
    near.settimeout(20)

    def send():
        data, at, number = b"".join(sent), 0, 0
        least = len(data) // 2000  # single bytes of megabytes would take seconds
        while at < len(data):
            step = max(least, cuts[number % len(cuts)])
            far.sendall(data[at : at + step])
            at, number = at + step, number + 1

    sender = threading.Thread(target=send)
    sender.start()
    incoming = Incoming(near, BufferPool())
    incoming.limit_s = 20.0
    received = []
    for size, peeks in answers:
        if peeks:
            few = min(size, 54)
            assert len(incoming.peek(few)) == few
        received.append(incoming.take(size))
        if size % 2:
            incoming.rest()
    sender.join()
    # All at the end: no memory was used again while it was in use.
    assert [bytes(view) for view in received] == sent
    far.close()
    with pytest.raises(ConnectionResetError):
        incoming.take(1)
    near.close()
