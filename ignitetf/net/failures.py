"""Interprets failures: turns an error answer into an exception and detects a full node.

channel, client -> **failures** -> errors
"""

from __future__ import annotations

import re
from typing import Any, Final

from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ClusterInactive,
    ClusterReadOnly,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    SqlError,
    SqlUnavailable,
)
from ignitetf.sql.tokens import is_query
from ignitetf.wire.codes import Status

__all__ = ["CHANGED", "is_full", "late", "of_statement", "plain_text", "server_error"]

_JAVA_CLASS: Final = re.compile(r"(?:class )?(?:[a-zA-Z_]\w*\.)+[A-Z][\w$]*(?:Exception|Error): ")
_SQL_STATE: Final = re.compile(r"^[0-9A-Z]{5}: ")
# A node that forwarded the query to another one quotes that node's message in brackets.
_FROM_OTHER_NODE: Final = re.compile(
    r"Failed to execute \w+ query on remote node \[nodeId=.*errMsg=(.*)\]"
)
# What a node answers when the cluster changed during a request; a retry may succeed.
CHANGED: Final = (
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
# What a node appends to the message about a transaction: all its fields, in a kilobyte.
_TRANSACTION: Final = re.compile(r"(?:: | \[timeout=\d+, tx=)?GridNearTx\w+ ?\[.*")
_HEAP: Final = ("Java heap space", "GC overhead limit exceeded")
_H2_CODE: Final = re.compile(r" \[\d{5}-\d+\]")


def plain_text(message: str) -> str:
    """Reduce a node's message to one line without Java class names or repetitions."""
    text = message.strip().splitlines()[0] if message.strip() else ""
    text = _SQL_STATE.sub("", text.split("; SQL statement:")[0])
    text = _TRANSACTION.sub("", text)
    text = _JAVA_CLASS.sub("", _FROM_OTHER_NODE.sub(r"\1", text))
    text = _H2_CODE.sub("", text).removeprefix("Failed to parse query. ")
    return ": ".join(dict.fromkeys(text.split(": ")))


# A key, a transaction, a statement and a new cache say it each in another way.
_READ_ONLY: Final = re.compile(r"cluster (?:is )?in read-only mode", re.IGNORECASE)
_REFUSES: Final = "cache topology is not valid"
# A key, a scan and a statement of SQL say it each in another way.
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
    if status == Status.TOO_MANY_CURSORS or any(
        sign in message for sign in (*_HEAP, "IgniteOutOfMemory", "Out of memory in data region")
    ):
        return ServerOverloaded(
            text, hint="give the node more memory (--memory), or ask for less", **facts
        )
    if "Schema change operation failed: B+Tree is corrupted" in message:
        # Only the new index is affected: memory ran out while it was being built.
        return ServerOverloaded(
            "the index could not be made, most likely because memory ran out; the table is as it was",
            hint="give the node more memory (ignitetf node start --memory SIZE), or remove data",
            **facts,
        )
    if "Failed to complete exchange process" in message:
        # The cluster failed to create a cache; the reason is only in the nodes' logs.
        return ServerOverloaded(
            "the cluster could not make the cache, most likely because memory ran out, and has undone it",
            hint="give the node more memory (ignitetf node start --memory SIZE), remove data, or"
            " choose fewer partitions; a primary key must not be a DATE; the node's log says more",
            **facts,
        )
    if "no query engine is configured" in message:
        return SqlUnavailable(
            "the cluster has no SQL engine",
            hint="put ignite-indexing or ignite-calcite on the class path of its nodes; without,"
            " loads with --no-sql (sql=False) and reads work, but neither igfs:// nor where=",
            **facts,
        )
    if _H2_CODE.search(message) or any(
        sign in message for sign in ("IgniteSQLException", "Failed to parse query")
    ):
        return SqlError(text, hint=None, **facts)
    return ServerError(text, **facts)


def _state_error(message: str, facts: dict[str, Any]) -> ServerError | None:
    """Return the error of a request that the state of the cluster does not allow, else None."""
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
    if _REFUSES in message:  # a transaction's request, which names the validator of a cache alike
        return ClusterReadOnly(
            "the cluster takes no changes of this cache: it is read-only, or the cache has a"
            " topology validator that refuses them",
            hint=again,
            **facts,
        )
    return None


def is_asked_too_much(error: IgniteTFError) -> bool:
    """Return whether a node had no room for an answer beside others that it was asked for.

    Its Java heap had none, and may have a moment later; the scan that needed it cannot go on, and
    says "cursor invalidation" from then on. Or the connection had as many cursors as it may have.
    """
    if error.fields.get("status") == Status.TOO_MANY_CURSORS:
        return True
    message = str(error.fields.get("server_message"))
    return any(sign in message for sign in (*_HEAP, "underlying cursor invalidation"))


def is_full(error: IgniteTFError) -> bool:
    """Return whether a node refused to store something, nearly always for lack of memory.

    An update that fails for lack of memory only says "Failed to update keys", and a transaction
    only "Committing a transaction has produced runtime exception".
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
    """Return the error of a SQL statement, with it and a hint; one that tells more stays as it is."""
    if type(error) not in (ServerError, SqlError):
        return error
    message = str(error.fields["server_message"])
    facts = {**error.fields, "statement": statement}
    return SqlError(plain_text(message) or "SQL error", hint=_sql_hint(message, statement), **facts)


def late(error: RequestTimeout, statement: str) -> RequestTimeout:
    """Return the error of a SQL statement whose answer did not come, with it and a hint."""
    facts = {**error.fields, "statement": statement}
    return RequestTimeout(error.message, hint=_late_hint(statement), **facts)


def _sql_hint(message: str, statement: str) -> str:
    if any(sign in message for sign in CHANGED):
        again = "a node left the cluster meanwhile: run the statement again"
        return again if is_query(statement) else f"{again}, after a look at what it did"
    if "out of bounds" in message and _DISTINCT.search(statement):
        # GridSqlQuerySplitter.splitAggregate of 2.17 expects an argument, which COUNT(*) lacks.
        return "Apache Ignite cannot have COUNT(*) beside a DISTINCT aggregate: write COUNT(1)"
    if "The query was cancelled" in message:
        return "after its own limit (timeout_s=, --statement-timeout), or by KILL QUERY"
    if "Table" in message and "not found" in message:
        return "'ignitetf table ls' lists the tables; write the schema if it is not PUBLIC"
    if "Column" in message and "not found" in message:
        return "'ignitetf table describe NAME' lists the columns"
    return "[*] in the message marks the place" if "[*]" in message else "check the statement"


def _late_hint(statement: str) -> str:
    if is_query(statement):
        return "the node gives it up; timeout_s= (--statement-timeout) lets a statement take longer"
    return (
        "it may go on on the node: look at what it did before it is run again; timeout_s="
        " (--statement-timeout) waits longer for it"
    )
