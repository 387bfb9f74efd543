"""Requests sent ahead over one connection, with a bounded number of answers outstanding.

`net.pipeline` does this for callers that want the answers, and sends again what a lost connection
took along. A measure of what the cluster takes may do neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ignitetf.net.channel import Channel
from ignitetf.wire.codes import OpCode

__all__ = ["send_ahead"]


def send_ahead(
    channel: Channel, op: OpCode, requests: Iterable[tuple[Any, ...]], limit: int
) -> None:
    """Send all requests and receive all answers.

    Args:
        channel: The connection; idle before and after.
        op: What is requested.
        requests: The buffers that make up each body.
        limit: Requests without an answer at most.
    """
    unanswered: deque[int] = deque()
    for buffers in requests:
        unanswered.append(channel.send(op, *buffers))
        if len(unanswered) >= limit:
            channel.receive(unanswered.popleft())
    while unanswered:
        channel.receive(unanswered.popleft())
