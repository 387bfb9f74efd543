"""Trying requests again while the cluster changes or connections are stale.

store -> meta, chunks -> **retry** -> client
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout, ServerError
from ignitetf.fs.oserrors import is_full
from ignitetf.net.client import Client
from ignitetf.net.failures import is_retryable

__all__ = ["retry"]

T = TypeVar("T")

# Trying again makes sense; whether the failed try took effect is found out by reading.
_TX_SIGNS: Final = (
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
    "Committing a transaction has produced",
    "Heuristic",
)
_CHANGE_BUDGET_S: Final = 40.0
_CONNECT_BUDGET_S: Final = 3.0
# A node that dies during a commit says the same as a full one, but not for so long.
_FULL_BUDGET_S: Final = 5.0
_STALE_CONNECTIONS: Final = 12


def retry(client: Client, action: Callable[[IgniteTFError | None], T]) -> T:
    """Run an action until it succeeds, while the cluster changes or connections are stale.

    Args:
        client: Its settings limit the time.
        action: Called with the error of the try before, which may have taken effect without an
            answer or by half; None the first time.
    """
    begin = time.monotonic()
    earlier: IgniteTFError | None = None
    failures = 0
    idle_s = client.settings.idle_timeout_s
    while True:
        try:
            return action(earlier)
        except IgniteTFError as error:
            failures += 1
            lost = isinstance(error, (ConnectError, RequestTimeout))
            passed = time.monotonic() - begin
            if not is_retryable(error) and not _rolled_back(error):
                raise
            if passed > min(idle_s, _budget_s(error, lost)):
                raise
            if isinstance(error, RequestTimeout):
                raise
            earlier = error
            # The pool may hold several connections of a node that is gone.
            if not lost or failures > _STALE_CONNECTIONS:
                time.sleep(min(1.0, 0.05 * 2 ** min(failures, 5)) * random.uniform(0.5, 1.0))


def _budget_s(error: IgniteTFError, lost: bool) -> float:
    if lost:
        return _CONNECT_BUDGET_S
    return _FULL_BUDGET_S if is_full(error) else _CHANGE_BUDGET_S


def _rolled_back(error: IgniteTFError) -> bool:
    message = str(error.fields.get("server_message"))
    return isinstance(error, ServerError) and any(sign in message for sign in _TX_SIGNS)
