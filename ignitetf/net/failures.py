"""Interprets failures: what an error answer means, which failures pass, how long to wait.

channel, client -> **failures** -> errors, and waits of load, read, fs

Everything that retries takes its waits from a `Backoff`, and all policies are defined here.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ignitetf.errors import (
    AuthenticationError,
    CacheExists,
    CacheNotFound,
    ClusterInactive,
    ClusterReadOnly,
    ConnectError,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    SqlError,
    SqlUnavailable,
    TlsError,
)
from ignitetf.settings import Settings
from ignitetf.sql.tokens import first_word, is_query, tokens
from ignitetf.wire.codes import Status

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
    "is_full",
    "is_retryable",
    "late",
    "of_statement",
    "plain_text",
    "retry",
    "server_error",
]

_JAVA_CLASS: Final = re.compile(r"(?:class )?(?:[a-zA-Z_]\w*\.)+[A-Z][\w$]*(?:Exception|Error): ")
_SQL_STATE: Final = re.compile(r"^[0-9A-Z]{5}: ")
# A node that forwarded the query to another one quotes that node's message in brackets. The message
# can contain the rewritten statement, in which `T__Z0` is the table `T`.
_FROM_OTHER_NODE: Final = re.compile(
    r"Failed to execute \w+ query on remote node \[nodeId=.*?errMsg=(.*)\]", re.DOTALL
)
_ALIAS: Final = re.compile(r"__Z\d+\b")
# Answers of a node when the cluster changed during a request; a retry may succeed.
_CHANGED: Final = (
    "ClusterTopologyException",
    "ClusterTopologyCheckedException",
    "left topology",
    "Data node has left the grid",
    "Failed to fetch data from node",
    "No queryable nodes",
    "Failed to find resource with id",
    "Node is stopping",
    "NodeStoppingException",
    "ClusterGroupEmpty",
    # The partition's owner left while the scan was being sent to it.
    "ClusterNode.isLocal()",
)
_DISTINCT: Final = re.compile(r"\(\s*DISTINCT\b", re.IGNORECASE)
# A node appends all fields of a transaction to messages about it, a kilobyte.
_TRANSACTION: Final = re.compile(r"(?:: | \[timeout=\d+, tx=)?GridNearTx\w+ ?\[.*")
_HEAP: Final = ("Java heap space", "GC overhead limit exceeded")
_H2_CODE: Final = re.compile(r" \[\d{5}-\d+\]")


def plain_text(message: str) -> str:
    """Reduce a node's message to one line without Java class names or repetitions."""
    whole = _FROM_OTHER_NODE.sub(lambda quoted: _ALIAS.sub("", quoted[1]), message).strip()
    text = whole.splitlines()[0] if whole else ""
    text = _SQL_STATE.sub("", text.split("; SQL statement:")[0])
    text = _JAVA_CLASS.sub("", _TRANSACTION.sub("", text))
    text = _H2_CODE.sub("", text).removeprefix("Failed to parse query. ")
    return ": ".join(dict.fromkeys(text.split(": ")))


# Requests for a key, a transaction, a statement and a new cache word this differently.
_READ_ONLY: Final = re.compile(r"cluster (?:is )?in read-only mode", re.IGNORECASE)
_REFUSES: Final = "cache topology is not valid"
# Requests for a key, a scan and a SQL statement word this differently.
_LOST: Final = ("lostParts", "partition data has been lost", "cache partition has been lost")


def server_error(status: int, message: str, *, address: str | None = None) -> ServerError:
    """Choose the exception for an error answer by its status and the Java class in its text."""
    text = plain_text(message) or f"status {status}"
    facts: dict[str, Any] = {"status": status, "server_message": message, "address": address}
    if (found := _state_error(message, facts)) is not None:
        return found
    if status == Status.CACHE_DOES_NOT_EXIST:
        return CacheNotFound(text, hint="'ignitetf cache ls' lists the caches", **facts)
    if status == Status.CACHE_EXISTS:
        return CacheExists(text, hint="choose another name, or drop it first", **facts)
    if any(sign in message for sign in _LOST):
        return PartitionLost(
            text, hint="start the nodes that hold it again, or reload the cache", **facts
        )
    if "unsafe memory access operation" in message or "No space left on device" in message:
        # Java reports the first when a memory-mapped file no longer fits on the disk.
        return ServerOverloaded(
            "the node's disk is full",
            hint="make room on the disk of its work directory and start it again: what it had"
            " acknowledged is there",
            **facts,
        )
    if any(sign in message for sign in _HEAP):
        return ServerOverloaded(
            text,
            hint="request fewer rows at once (page_size=), or start the node with a larger heap:"
            " IGNITETF_JVM_OPTIONS=-Xmx4g",
            **facts,
        )
    if status == Status.TOO_MANY_CURSORS or any(
        sign in message for sign in ("IgniteOutOfMemory", "Out of memory in data region")
    ):
        return ServerOverloaded(
            text, hint="give the node more memory (--memory), or request less", **facts
        )
    if "Schema change operation failed: B+Tree is corrupted" in message:
        # Only the new index is affected: memory ran out while it was being built.
        return ServerOverloaded(
            "the index could not be made, most likely because memory ran out; the table is unchanged",
            hint="give the node more memory (ignitetf node start --memory SIZE), or remove data",
            **facts,
        )
    if "Failed to complete exchange process" in message:
        # The cluster failed to create a cache; the reason is only in the nodes' logs.
        return ServerOverloaded(
            "the cluster could not make the cache, most likely because memory ran out; nothing remains",
            hint="give the node more memory (ignitetf node start --memory SIZE), remove data, or"
            " choose fewer partitions; a primary key must not be a DATE; see the node's log for details",
            **facts,
        )
    if "no query engine is configured" in message:
        return SqlUnavailable(
            "the cluster has no SQL engine",
            hint="put ignite-indexing or ignite-calcite on the class path of its nodes; without"
            " them, loads with --no-sql (sql=False) and reads work, but neither igfs:// nor where=",
            **facts,
        )
    if _H2_CODE.search(message) or any(
        sign in message for sign in ("IgniteSQLException", "Failed to parse query")
    ):
        return SqlError(text, hint=None, **facts)
    return ServerError(text, **facts)


def _state_error(message: str, facts: dict[str, Any]) -> ServerError | None:
    """Return the error if the state of the cluster forbids the request, otherwise None."""
    if "the cluster is inactive" in message:
        return ClusterInactive(
            "the cluster is inactive: it neither reads nor writes",
            hint="activate it: 'control.sh --set-state ACTIVE', or 'ignitetf node start' for an"
            " embedded node",
            **facts,
        )
    again = "'control.sh --set-state ACTIVE' lets it take changes again; what only reads works now"
    if _READ_ONLY.search(message):
        return ClusterReadOnly("the cluster is read-only: it takes no changes", hint=again, **facts)
    if _REFUSES in message:  # also the answer to a transaction if a validator of the cache refuses
        return ClusterReadOnly(
            "the cluster takes no changes of this cache: it is read-only, or the cache has a"
            " topology validator that refuses them",
            hint=again,
            **facts,
        )
    return None


def is_node_overloaded(error: IgniteTFError) -> bool:
    """Return whether a node had no room for an answer in addition to the others under way.

    There are two causes. Its Java heap was full, which may pass in a moment; a scan cannot continue
    then, and reports "cursor invalidation". Or the connection had its maximum of open cursors.
    """
    if error.fields.get("status") == Status.TOO_MANY_CURSORS:
        return True
    message = str(error.fields.get("server_message"))
    return any(sign in message for sign in (*_HEAP, "underlying cursor invalidation"))


def is_full(error: IgniteTFError) -> bool:
    """Return whether a node refused to store something, nearly always for lack of memory.

    An update that fails for lack of memory reports only "Failed to update keys". A transaction
    reports only "Committing a transaction has produced runtime exception".
    """
    message = str(error.fields.get("server_message"))
    signs = (
        "Failed to update keys",
        "Committing a transaction has produced runtime exception",
        "Out of memory in data region",
        "IgniteOutOfMemory",
    )
    return isinstance(error, ServerOverloaded) or any(sign in message for sign in signs)


def of_statement(error: ServerError, statement: str) -> ServerError:
    """Add a SQL statement and a hint to its error; return a more specific error unchanged."""
    if type(error) not in (ServerError, SqlError):
        return error
    message = str(error.fields["server_message"])
    facts = {**error.fields, "statement": statement}
    return SqlError(plain_text(message) or "SQL error", hint=_sql_hint(message, statement), **facts)


def late(error: RequestTimeout, statement: str) -> RequestTimeout:
    """Add a SQL statement and a hint to the error of its missing answer."""
    facts = {**error.fields, "statement": statement}
    return RequestTimeout(error.message, hint=_late_hint(statement), **facts)


# Statements of other databases that Apache Ignite's SQL lacks.
_LISTING: Final = (
    "'ignitetf table ls' lists the tables, 'ignitetf table describe NAME' the columns; in the prompt"
    " these are \\d and \\d NAME"
)
_OTHERS: Final = {
    "SHOW": _LISTING,
    "DESCRIBE": _LISTING,
    "DESC": _LISTING,
    "\\": _LISTING,
    "USE": "write the schema before the table: SCHEMA.TABLE",
    "TRUNCATE": "DELETE FROM T removes the rows of a table",
    **dict.fromkeys(
        ("BEGIN", "START", "COMMIT", "ROLLBACK"),
        "each statement takes effect at once: Apache Ignite 2 has no SQL transactions",
    ),
}
_NO_COLUMN: Final = re.compile(r'Column ("(?:[^"]|"")+") not found')
# Texts of errors, and what to do.
_ADVICE: Final = (
    (re.compile(r"duplicate key|already in cache", re.I), "MERGE INTO replaces rows with equal keys"),
    (re.compile(r"column count does not match", re.I),
     "name the columns: INSERT INTO T (A, B) VALUES (1, 2); 'ignitetf table describe T' lists them"),
    (re.compile(r"data conversion|value conversion|cannot parse", re.I),
     "'ignitetf table describe NAME' shows the types of the columns; CAST(x AS TYPE) converts"),
    (re.compile(r"must be in the GROUP BY list"),
     "name the column in GROUP BY, or aggregate it: MIN(column)"),
    # The node's log has the cause: "Key is missing from query".
    (re.compile(r"Failed to prepare update plan"),
     "name each column of the key, and another one: 'ignitetf table describe NAME' lists the keys"),
    (re.compile(r"can't modify key"),
     "the key of a row is fixed: INSERT a row with the new key and DELETE the old one"),
    (re.compile(r"No PRIMARY KEY defined|at least one non PRIMARY KEY"),
     "a table has a key and another column: CREATE TABLE T (ID BIGINT PRIMARY KEY, V INT)"),
    (re.compile(r"AUTO_INCREMENT columns are not supported"),
     "generate the keys yourself, or use RANDOM_UUID() with a column of type UUID"),
)  # fmt: skip


def _sql_hint(message: str, statement: str) -> str | None:
    if (other := _OTHERS.get(first_word(statement) or statement.lstrip()[:1])) is not None:
        return other
    if any(sign in message for sign in _CHANGED):
        again = "a node left the cluster meanwhile: run the statement again"
        return again if is_query(statement) else f"{again}, after a look at what it did"
    if "out of bounds" in message and _DISTINCT.search(statement):
        # GridSqlQuerySplitter.splitAggregate of 2.17 expects an argument, which COUNT(*) lacks.
        return "Apache Ignite cannot combine COUNT(*) with a DISTINCT aggregate: write COUNT(1)"
    if "The query was cancelled" in message:
        return "after its own limit (timeout_s=, --statement-timeout), or by KILL QUERY"
    if "Table" in message and "not found" in message:
        return "'ignitetf table ls' lists the tables; write the schema if it is not PUBLIC"
    if (missing := _NO_COLUMN.search(message)) is not None:
        if any(token.kind == "name" and token.text == missing[1] for token in tokens(statement)):
            return (
                "single quotes make a text: 'x'; double quotes name a column, a table or a schema"
            )
        return "'ignitetf table describe NAME' lists the columns"
    for sign, advice in _ADVICE:
        if sign.search(message):
            return advice
    return "[*] in the message marks the place" if "[*]" in message else None


def _late_hint(statement: str) -> str:
    if is_query(statement):
        return "the node cancels it; timeout_s= (--statement-timeout) sets a longer limit"
    return (
        "it may still run on the node: check what it did before you run it again; timeout_s="
        " (--statement-timeout) waits longer for it"
    )


T = TypeVar("T")

# Errors of the cluster and of connections to it; others concern the data or the arguments.
FAILURES: Final = (ServerError, ConnectError, RequestTimeout)

# Answers of a node to a single write or a transaction when the cluster changed meanwhile. The
# request may have taken effect fully, partly or not at all. Only for callers that read afterwards
# to find out which.
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
    # A transaction past its limit. If the node throws this error itself, it names no Java class:
    # "Cache transaction timed out", "Transaction has been timed out".
    "timed out",
    # The same, seen while the transaction was being rolled back.
    "Invalid transaction state",
    "Committing a transaction has produced",
    "Failed to commit transaction",
    "Heuristic",
)

# Time limits of a file operation in seconds, by the error of its last try.
_CHANGE_LIMIT_S: Final = 40.0
_CONNECT_LIMIT_S: Final = 3.0
# A node that dies during a commit answers like a full one, but for less time than this.
_FULL_LIMIT_S: Final = 5.0
# The pool may hold this many connections to a node that has left; each costs a try but no wait.
_STALE_CONNECTIONS: Final = 12


def is_retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed on another connection or a moment later."""
    if isinstance(error, TlsError):
        # `lost` means that the connection was cut, as by a dying node; otherwise TLS was refused.
        return bool(error.fields.get("lost"))
    if isinstance(error, AuthenticationError) or _is_closed(error):
        return False
    if isinstance(error, (ConnectError, RequestTimeout)):
        return True
    if isinstance(error, (PartitionLost, ServerOverloaded)):
        return False
    return _says(error, _CHANGED)


def _is_closed(error: BaseException) -> bool:
    """Return True if the client itself was closed, so that no other connection can be opened."""
    return isinstance(error, ConnectError) and bool(error.fields.get("closed"))


def _is_repeatable(error: BaseException) -> bool:
    """Return True if a file operation may succeed a moment later; a timeout is not repeated."""
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
    """The rules for retrying one kind of work.

    Attributes:
        first_s: Wait before the second try, in seconds.
        longest_s: The longest wait.
        doubling: True if each wait is twice the previous one; otherwise it grows by `first_s`.
        jitter: True if waits are shortened at random, by up to half, so that the many clients that
            lost the same node do not return all at once.
        tries: Number of tries after which the error is raised.
        passes: Returns whether a failure may be temporary.
    """

    first_s: float
    longest_s: float
    doubling: bool = True
    jitter: bool = False
    tries: float = math.inf
    passes: Callable[[BaseException], bool] = is_retryable


READ: Final = Policy(first_s=0.1, longest_s=5.0, jitter=True)
# A node without heap for an answer; the caller requests less at a time from then on.
HEAP: Final = Policy(first_s=0.2, longest_s=2.0, jitter=True, tries=6, passes=lambda _: True)
LOAD: Final = Policy(first_s=0.2, longest_s=5.0)
_ACTION: Final = Policy(first_s=0.1, longest_s=1.0, jitter=True, passes=_is_repeatable)
# A statement that exceeded its own time limit is not repeated.
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
        """Return the seconds to wait before the next try, or None if the error must be raised.

        Args:
            error: The error of the last try.
            limit_s: Seconds without progress after which to return None; 0 means no retry.
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
        """Wait before the next try; raises the error of the last try if no try is left."""
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
        action: Called with the error of the previous try, or None the first time. The previous try
            may have taken effect partly, or fully without an answer.
        policy: Which errors are retried, and how long to wait.
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
