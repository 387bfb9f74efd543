"""`Client`: the entry point to a cluster, with caches, SQL, the partition map and raw channels.

pool -> **client** -> load, read, fs

SQL, raw pages and pyignite (caches, and values of SQL that are objects) use the same verified and
time-limited sockets. A client may be used by several threads.

Source: Apache Ignite 2.17.0, `ClientCachePartitionsRequest` (op 1101).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    SqlError,
    SqlUnavailable,
    WireError,
)
from ignitetf.net.channel import limit_socket
from ignitetf.net.common import Question
from ignitetf.net.handshake import open_connection
from ignitetf.net.pool import Pool
from ignitetf.net.results import SqlResult, execute
from ignitetf.net.statements import NO_VIEWS, run_redirected, statement_request
from ignitetf.settings import Settings
from ignitetf.spelling import did_you_mean
from ignitetf.sql import statement
from ignitetf.wire.answers import (
    PartitionMap,
    damaged,
    int_at,
    read_cache_names,
    read_long,
    read_partition_map,
)
from ignitetf.wire.codes import OpCode, TypeCode, java_hash
from ignitetf.wire.frames import read_named_sql_page
from ignitetf.wire.requests import destroy_request, partitions_request, size_request

__all__ = ["Client", "cache_id", "connect"]

# If the cache has copies, the number was complete again 0.15 s after it had fallen.
_SETTLES_S: Final = 2.0
_POLL_S: Final = 0.05
# Replaces the list of views in the SQL for a cluster without views.
_VIEWS: Final = "SYS.VIEWS"
_NONE: Final = "(SELECT '' AS NAME, '' AS SCHEMA, '' AS SQL WHERE FALSE)"
# Rows per page for answers that should fit into one page.
_MANY: Final = 1 << 14


@functools.lru_cache(maxsize=256)
def cache_id(name: str) -> int:
    """Return the id of a cache in requests: Java's hash of its name."""
    return java_hash(name)


def connect(
    address: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    **given: Any,
) -> Client:
    """Connect to a cluster.

    Args:
        address: `HOST:PORT`, or several (a sequence, or separated by commas).
        settings: Complete settings; if given, all other arguments are ignored.
        **given: The attributes of `Settings` (`username`, `password`, `tls`, `ca`, `cert`,
            `key`, `tls_insecure`, `connect_timeout_s`, ...). Missing ones come from the
            environment, the profile, the running embedded node, or the default.

    Returns:
        A connected client; close it, or use it as a context manager.

    Raises:
        ConnectError: No address answered; the message gives the cause for each.
        ConfigError: A setting is unusable.
    """
    if settings is None:
        if isinstance(address, str) or address is None:
            given["address"] = address
        else:
            given["addresses"] = tuple(address)
        settings = Settings.resolve(**given)
    return Client(settings)


class Client(Pool):
    """A connection to a cluster; see `connect`.

    `Pool` manages its connections, both raw ones and pyignite's.
    """

    # SQL

    def sql(
        self,
        statement: str,
        params: Sequence[Any] = (),
        *,
        schema: str = "PUBLIC",
        page_size: int | None = None,
        timeout_s: float | None = None,
        only_query: bool = False,
    ) -> SqlResult:
        """Run one SQL statement.

        Rows are fetched page by page as they are consumed, and each page has the time limit of a
        request. A statement whose answer has not begun within it raises RequestTimeout. A statement
        that writes to a data set by its name runs on that data set's table.

        Args:
            statement: One statement, with `?` for each parameter.
            params: Values for the parameters, sent apart from the text; see `encode_parameter`.
            schema: SQL schema for unqualified names.
            page_size: Rows fetched at once. None starts with 1,024, learns the size of a row from
                the first page, and then takes as many as fill the link for a round trip. For that
                the query runs twice if the node made the first page in less than ten round trips.
            timeout_s: Limit in seconds for the whole statement, including the reading of its rows,
                after which the node cancels it. The first answer may take this long.
            only_query: Let the node refuse any statement that is not a query.

        Raises:
            SqlError: The node refused the statement, or cancelled it after `timeout_s`.
            RequestTimeout: No answer arrived. A query ends when its connection is closed; a
                statement that changes something may still be running.
            ConfigError: The parameters do not match the statement.
        """
        options = {
            "schema": schema,
            "page_size": page_size,
            "timeout_s": timeout_s,
            "only_query": only_query,
        }
        return run_redirected(
            self._sql,
            lambda text, values: self._sql(text, values).fetchall(),
            self.cache_exists,
            statement,
            params,
            options,
        )

    def about(self, name: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one of the project's statements about tables and views.

        A cluster older than 2.17 has no views of users, and a cluster without a SQL engine has no
        tables. The rows are then those of a cluster in which none was made.

        Args:
            name: Name of the statement, as in `ignitetf.sql.statement`.
            params: Values for its parameters.
        """
        text = statement(name)
        try:
            return self.sql(text, params).fetchall()
        except SqlUnavailable:
            return []
        except SqlError as error:
            if _VIEWS not in text or not NO_VIEWS.search(error.message):
                raise
        return self.sql(text.replace(_VIEWS, _NONE), params).fetchall()

    def require_sql(self) -> None:
        """Raise SqlUnavailable if the cluster has no SQL engine."""
        self.sql("SELECT 1").close()

    @functools.cached_property
    def has_views(self) -> bool:
        """True if users can make SQL views; they cannot before Apache Ignite 2.17."""
        try:
            self.sql(statement("views_of_table"), ("",)).close()
        except SqlError as error:
            if not isinstance(error, SqlUnavailable) and not NO_VIEWS.search(error.message):
                raise
            return False
        return True

    def _sql(self, statement: str, params: Sequence[Any], **options: Any) -> SqlResult:
        """Run one SQL statement unchanged."""
        return execute(self, statement, params, **options)

    # The protocol

    def open_socket(self, address: str | None = None) -> socket.socket:
        """Return a new socket after TLS, handshake and login, for a program's own requests.

        The node expects requests of Ignite's thin client protocol on it. A receive or send that
        makes no progress for `request_timeout_s` raises TimeoutError or BlockingIOError.

        Args:
            address: `HOST:PORT` of a node; None for the first one of the settings.

        Raises:
            ConnectError: The node does not answer, or refuses the connection.
        """
        sock, _ = open_connection(address or self.settings.addresses[0], self.settings)
        limit_socket(sock, self.settings.request_timeout_s)
        return sock

    # Caches

    def cache(self, name: str) -> Any:
        """Return the pyignite cache of this name; raises CacheNotFound if there is none."""
        self.require_cache(name)
        return self.pyignite.get_cache(name)

    def cache_names(self) -> list[str]:
        """Return the names of all caches, sorted."""
        with contextlib.suppress(WireError):
            return self._cache_names()
        # The node counts the names before it writes them, so an answer is damaged if a cache is
        # dropped in between.
        return self._cache_names()

    def _cache_names(self) -> list[str]:
        body = self.call(OpCode.CACHE_GET_NAMES)
        with damaged("the list of caches"):
            return sorted(read_cache_names(body))

    def cache_exists(self, name: str) -> bool:
        """Return whether a cache of this name exists."""
        return name in self.cache_names()

    def require_cache(self, name: str) -> None:
        """Raise CacheNotFound, suggesting similar names, unless the cache exists."""
        names = self.cache_names()
        if name in names:
            return
        hint = did_you_mean(name, names, "'ignitetf cache ls' lists the caches", count=3)
        raise CacheNotFound(f"no cache {name!r}", hint=hint, cache=name)

    def cache_size(self, name: str) -> int:
        """Return the number of entries, counting primary copies only.

        A lost partition lowers the number without raising an error.
        """
        with _with_cache_name(name):
            body = self.call(OpCode.CACHE_GET_SIZE, size_request(cache_id(name)))
        return read_long(body, f"the size of {name}")

    def size_question(self, name: str) -> Question[int | None]:
        """Return the request of `cache_size`; its result is None if the node refuses it."""
        return Question(
            OpCode.CACHE_GET_SIZE,
            size_request(cache_id(name)),
            lambda body: read_long(body, f"the size of {name}"),
            lambda _: None,
        )

    def settled_size(self, name: str, expected: int) -> int:
        """Return the number of entries; repeat the request for a while if it is below `expected`.

        For a moment after a node was lost, no other node counts the entries of its partitions.
        """
        deadline = time.monotonic() + _SETTLES_S
        while (size := self.cache_size(name)) < expected and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return size

    def destroy_cache(self, name: str) -> None:
        """Remove a cache and its entries; raises CacheNotFound if there is none."""
        with _with_cache_name(name):
            self.call(OpCode.CACHE_DESTROY, destroy_request(cache_id(name)))

    # Partitions

    def partition_map(self, name: str) -> PartitionMap:
        """Return the current primary node of each partition (op 1101)."""
        with _with_cache_name(name):
            body = self.call(OpCode.CACHE_PARTITIONS, partitions_request(cache_id(name)))
        with damaged(f"the partition map of {name}"):
            return read_partition_map(body)

    def partitions_question(self, name: str) -> Question[int | None]:
        """Return the request for the number of partitions of a cache, for any affinity function.

        Its result is None if the cache does not exist, or the cluster does not answer SQL.
        """
        request = statement_request(self, statement("partitions"), (name,), "PUBLIC", 16, None)
        return Question(OpCode.QUERY_SQL_FIELDS, request, _read_partitions, lambda _: None)

    def partition_count(self, name: str) -> int:
        """Return the number of partitions from the views, or without SQL from the partition map."""
        found: int | None
        (found,) = self.ask(self.partitions_question(name))
        if found is not None:
            return found
        self.require_cache(name)
        if count := self.partition_map(name).count:
            return count
        raise ConfigError(
            f"cache {name!r}: the cluster does not report the number of partitions",
            hint="it has no SQL engine, and the cache has its own affinity function",
            cache=name,
        )

    def copies(self, name: str) -> tuple[list[tuple[int, uuid.UUID]], int]:
        """Return the partitions of a cache and the nodes with a whole copy of each.

        Returns:
            Pairs of partition and node, and the number of copies that are being filled.

        Raises:
            SqlError: The cluster does not answer SQL, or refuses this user.
        """
        found = self.sql(statement("copies"), (name,), page_size=_MANY).fetchall()
        whole = [(partition, node) for partition, node, state in found if state == "OWNING"]
        return whole, len(found) - len(whole)


def _read_partitions(body: memoryview) -> int | None:
    _, _, page = read_named_sql_page(body)
    if not page.count:
        return None
    with damaged("the number of partitions of a cache"):
        if page.data[0] != TypeCode.INT:
            raise WireError(f"the number of partitions is of type {page.data[0]}")
        return int_at(page.data.data, 1)


@contextlib.contextmanager
def _with_cache_name(cache: str) -> Iterator[None]:
    """Replace the cache's id by its name in errors."""
    try:
        yield
    except CacheNotFound as error:
        raise CacheNotFound(
            f"no cache {cache!r}", hint=error.hint, cache=cache, status=error.status
        ) from error
