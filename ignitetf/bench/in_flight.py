"""Sends requests ahead over one connection, with a limited number of unanswered ones.

`net.pipeline` does this for callers that need the answers, and resends what a lost connection
dropped. A measurement of the highest rate needs no
answers, and must not send anything twice.
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
        op: The operation.
        requests: The buffers that make up each body.
        limit: Maximum number of unanswered requests.
    """
    unanswered: deque[int] = deque()
    for buffers in requests:
        unanswered.append(channel.send(op, *buffers))
        if len(unanswered) >= limit:
            channel.receive(unanswered.popleft())
    while unanswered:
        channel.receive(unanswered.popleft())
