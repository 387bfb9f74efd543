"""Retries: which failures are temporary, how long to wait before the next try, when to give up.

failures -> **retry** -> client, load, read, fs

Everything that retries takes its waits from a `Backoff`, and all policies are defined here.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ignitetf.errors import (
    AuthenticationError,
    ConnectError,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    TlsError,
)
from ignitetf.net.failures import CHANGED, is_full
from ignitetf.settings import Settings

__all__ = [
    "CONFLICT",
    "FAILURES",
    "HEAP",
    "LOAD",
    "QUERY",
    "READ",
    "ROOM",
    "Backoff",
    "Policy",
    "Tries",
    "is_retryable",
    "retry",
]

T = TypeVar("T")

# Errors of the cluster and the way to it; others are of the data or of the arguments.
FAILURES: Final = (ServerError, ConnectError, RequestTimeout)

# What a node answers, when the cluster changed during a request, to a single write or a
# transaction, which may have taken effect fully, partly or not at all. Only for callers that find
# out which by reading.
_UNSETTLED: Final = (
    "TransactionRollback",
    "TransactionTimeout",
    "TransactionDeadlock",
    "TransactionOptimistic",
    "Failed to acquire lock",
    "Failed to map keys",
    "left grid",
    "node left",
    "ClusterTopology",
    "Failed to send",
    "rolled back",
    # A transaction past its limit, whose error names no class of Java where the node throws it
    # itself: "Cache transaction timed out", "Transaction has been timed out".
    "timed out",
    # The same, caught while it was being rolled back.
    "Invalid transaction state",
    "Committing a transaction has produced",
    "Failed to commit transaction",
    "Heuristic",
)

# Time limits of a file operation in seconds, by the error of its last try.
_CHANGE_LIMIT_S: Final = 40.0
_CONNECT_LIMIT_S: Final = 3.0
# A node that dies during a commit answers like a full one, but not for this long.
_FULL_LIMIT_S: Final = 5.0
# The pool may hold this many connections to a node that is gone; each costs a try but no wait.
_STALE_CONNECTIONS: Final = 12


def is_retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed on another connection or a moment later."""
    if isinstance(error, TlsError):
        # `lost` means cut short, as by a dying node; otherwise TLS was refused.
        return bool(error.fields.get("lost"))
    if isinstance(error, AuthenticationError) or _is_closed(error):
        return False
    if isinstance(error, (ConnectError, RequestTimeout)):
        return True
    if isinstance(error, (PartitionLost, ServerOverloaded)):
        return False
    return _says(error, CHANGED)


def _is_closed(error: BaseException) -> bool:
    """Whether it is the client that was closed: no other connection comes."""
    return isinstance(error, ConnectError) and bool(error.fields.get("closed"))


def _is_repeatable(error: BaseException) -> bool:
    """Whether a file operation may succeed a moment later; a timeout has waited long enough."""
    if isinstance(error, RequestTimeout):
        return False
    return is_retryable(error) or _says(error, _UNSETTLED)


def _is_repeatable_query(error: BaseException) -> bool:
    return is_retryable(error) and not isinstance(error, RequestTimeout)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, ServerError) and is_full(error)


def _says(error: BaseException, signs: tuple[str, ...]) -> bool:
    if not isinstance(error, ServerError):
        return False
    message = str(error.fields.get("server_message"))
    return any(sign in message for sign in signs)


@dataclass(frozen=True)
class Policy:
    """How one kind of work is retried.

    Attributes:
        first_s: Wait before the second try, in seconds.
        longest_s: The longest wait.
        doubling: Whether each wait is twice the previous one; otherwise it grows by `first_s`.
        jitter: Whether waits are shortened at random, by up to half, so that the many clients that
            lost the same node do not return all at once.
        tries: Number of tries after which to give up.
        passes: Whether a failure may be temporary.
    """

    first_s: float
    longest_s: float
    doubling: bool = True
    jitter: bool = False
    tries: float = math.inf
    passes: Callable[[BaseException], bool] = is_retryable


READ: Final = Policy(first_s=0.1, longest_s=5.0, jitter=True)
# A node without heap for an answer, by who asks for fewer at a time from then on.
HEAP: Final = Policy(first_s=0.2, longest_s=2.0, jitter=True, tries=6, passes=lambda _: True)
LOAD: Final = Policy(first_s=0.2, longest_s=5.0)
_ACTION: Final = Policy(first_s=0.1, longest_s=1.0, jitter=True, passes=_is_repeatable)
# A statement that its own limit has ended is not repeated.
QUERY: Final = Policy(first_s=0.1, longest_s=1.0, jitter=True, passes=_is_repeatable_query)
# A node out of memory, after something was removed to make room.
ROOM: Final = Policy(first_s=0.2, longest_s=1.6, tries=5, passes=_is_full)
# Another client is changing the same directory, which takes it a few milliseconds.
CONFLICT: Final = Policy(
    first_s=0.002, longest_s=0.1, doubling=False, tries=100, passes=lambda _: True
)


class Backoff:
    """Counts the failures of one piece of work since it last made progress.

    Attributes:
        failures: Number of failures since then.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.progress()

    def progress(self) -> None:
        """Start over, because the work has made progress."""
        self._since = time.monotonic()
        self.failures = 0

    def wait_s(self, error: BaseException, limit_s: float = math.inf) -> float | None:
        """Return the seconds to wait before the next try, or None to give up and raise the error.

        Args:
            error: The error of the last try.
            limit_s: Seconds without progress after which to give up; 0 means no retry.
        """
        policy = self._policy
        self.failures += 1
        left_s = self._since + limit_s - time.monotonic()
        if left_s <= 0 or self.failures >= policy.tries or not policy.passes(error):
            return None
        # Bounded, because a larger power would overflow a float.
        steps = 2.0 ** min(self.failures - 1, 32) if policy.doubling else self.failures
        wait = min(policy.longest_s, policy.first_s * steps)
        if policy.jitter:
            wait *= random.uniform(0.5, 1.0)
        return min(wait, left_s)


class Tries:
    """The waits between the tries of a request that may be repeated."""

    def __init__(self, settings: Settings, policy: Policy = _ACTION) -> None:
        self._limit_s = settings.idle_timeout_s
        self._backoff = Backoff(policy)

    def progress(self) -> None:
        """Start over, because a request was answered."""
        self._backoff.progress()

    def wait(self, error: IgniteTFError) -> None:
        """Wait before the next try; raises the error of the last one if there is none."""
        wait_s = self._backoff.wait_s(error, min(self._limit_s, _limit_s(error)))
        if wait_s is None:
            raise error
        if not isinstance(error, ConnectError) or self._backoff.failures > _STALE_CONNECTIONS:
            time.sleep(wait_s)


def retry(
    settings: Settings, action: Callable[[IgniteTFError | None], T], policy: Policy = _ACTION
) -> T:
    """Run an action that may be repeated, while the cluster changes or connections are stale.

    Args:
        settings: `idle_timeout_s` limits the total time.
        action: Called with the error of the previous try, or None the first time. That try may have
            taken effect partly, or fully without an answer.
        policy: Which errors may pass, and how long to wait.
    """
    tries = Tries(settings, policy)
    earlier: IgniteTFError | None = None
    while True:
        try:
            return action(earlier)
        except IgniteTFError as error:
            tries.wait(error)
            earlier = error


def _limit_s(error: IgniteTFError) -> float:
    if isinstance(error, ConnectError):
        return _CONNECT_LIMIT_S
    return _FULL_LIMIT_S if is_full(error) else _CHANGE_LIMIT_S
