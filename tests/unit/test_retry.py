"""Trying again: what passes, how long the waits are, and that they end."""

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import (
    AuthenticationError,
    ConfigError,
    ConnectError,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    TlsError,
)
from ignitetf.net import failures as module
from ignitetf.net.failures import CONFLICT, LOAD, READ, ROOM, Backoff, Policy, is_retryable, retry

LOST = ConnectError("lost")
LEFT = ServerError("x", server_message="node left topology")
ROLLED_BACK = ServerError("x", server_message="TransactionRollbackException")
FULL = ServerOverloaded("x")
SETTINGS = SimpleNamespace(idle_timeout_s=60.0)


class Clock:
    """A time that passes in sleeps only."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def waits(backoff, error, clock, limit_s=math.inf):
    """The waits of work that fails at once, each time, until it is given up."""
    while (wait_s := backoff.wait_s(error, limit_s)) is not None:
        clock.sleep(wait_s)
    return clock.slept


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (LOST, True),
        (RequestTimeout("x"), True),
        (TlsError("cut", lost=True), True),
        (TlsError("refused"), False),
        (AuthenticationError("x"), False),
        (ConnectError("the client is closed", closed=True), False),
        (LEFT, True),
        (ServerError("x", server_message="Failed to find resource with id 7"), True),
        (ServerError("x", server_message="NullPointerException"), False),
        (PartitionLost("x", server_message="node left topology"), False),
        (ServerOverloaded("x", server_message="node left topology"), False),
        (ROLLED_BACK, False),
        (ConfigError("x"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_passes(error, passes):
    assert is_retryable(error) is passes
    for policy in (READ, LOAD):
        assert (Backoff(policy).wait_s(error) is not None) is passes


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (READ, LOST, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (LOAD, LOST, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]),
        (ROOM, FULL, [0.2, 0.4, 0.8, 1.6]),
        (CONFLICT, LOST, [0.002, 0.004, 0.006, 0.008, 0.010]),
    ],
)
def test_waits_grow_to_the_longest(policy, error, expected):
    backoff = Backoff(policy)
    for upper in expected:
        wait_s = backoff.wait_s(error)
        assert upper * (0.5 if policy.jitter else 0.999) <= wait_s <= upper * 1.001
    backoff.progress()
    assert backoff.wait_s(error) <= expected[0]


def test_the_waits_for_others_are_bounded_in_number(clock):
    assert len(waits(Backoff(CONFLICT), LOST, clock)) == 99
    assert max(clock.slept) == 0.1


@given(
    st.floats(0.001, 1),
    st.floats(1, 10),
    st.booleans(),
    st.booleans(),
    st.floats(0, 120),
)
def test_no_wait_reaches_beyond_the_limit(first_s, longest_s, doubling, jitter, limit_s):
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        policy = Policy(first_s, longest_s, doubling=doubling, jitter=jitter)
        slept = waits(Backoff(policy), LOST, clock, limit_s)
    assert sum(slept) == pytest.approx(limit_s)
    assert all(wait_s <= longest_s for wait_s in slept)


def test_progress_moves_the_limit(clock):
    backoff = Backoff(READ)
    clock.now += 50
    backoff.progress()
    clock.now += 50
    assert backoff.wait_s(LOST, 60) is not None
    clock.now += 10
    assert backoff.wait_s(LOST, 60) is None


def test_very_many_failures_still_have_a_wait():
    backoff = Backoff(READ)
    for _ in range(3000):
        assert backoff.wait_s(LOST) <= 5


def test_an_action_is_told_how_the_try_before_ended(clock):
    tries = []

    def action(earlier):
        tries.append(earlier)
        if len(tries) < 3:
            raise (LEFT, ROLLED_BACK)[len(tries) - 1]
        return "done"

    assert retry(SETTINGS, action) == "done"
    assert tries == [None, LEFT, ROLLED_BACK]
    assert len(clock.slept) == 2


# What a node of 2.17 says of a transaction that met its limit, by the moment.
ENDED = (
    "Cache transaction timed out: GridNearTxLocal[xid=1]",
    "class org.apache.ignite.transactions.TransactionTimeoutException: Failed to acquire lock",
    "Transaction has been timed out: GridNearTxLocal[xid=1]",
    "Cache transaction is marked as rollback-only (will be rolled back automatically): xid=1",
    "Invalid transaction state for commit [state=ROLLING_BACK, tx=1]",
    "Failed to commit transaction, transaction is concurrently rolled back on timeout: xid=1",
)


@pytest.mark.parametrize("message", ENDED)
def test_a_transaction_that_met_its_limit_is_run_again(clock, message):
    errors = iter([ServerError("x", server_message=message)])

    def action(earlier):
        for error in errors:
            raise error
        return earlier

    assert retry(SETTINGS, action).server_message == message


@pytest.mark.parametrize(
    ("error", "limit_s"),
    [
        (LOST, 3.0),
        (ServerError("x", server_message="rolled back: Failed to update keys"), 5.0),
        (ROLLED_BACK, 40.0),
        (LEFT, 40.0),
    ],
)
@pytest.mark.parametrize("idle_s", [60.0, 1.0])
def test_a_file_operation_is_given_up_with_the_last_error(clock, error, limit_s, idle_s):
    def action(_):
        raise error

    with pytest.raises(type(error)) as caught:
        retry(SimpleNamespace(idle_timeout_s=idle_s), action)
    assert caught.value is error
    assert clock.now - 100 == pytest.approx(min(limit_s, idle_s))


def test_stale_connections_cost_no_wait(clock):
    tries = itertools.count()

    def action(_):
        if next(tries) < 12:
            raise LOST

    retry(SETTINGS, action)
    assert not clock.slept


@pytest.mark.parametrize(
    "error", [RequestTimeout("x"), FULL, IgniteTFError("x"), KeyboardInterrupt(), OSError("x")]
)
def test_what_ends_an_operation_at_once(clock, error):
    tries = []

    def action(_):
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        retry(SETTINGS, action)
    assert tries == [1] and not clock.slept
