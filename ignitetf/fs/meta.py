"""The metadata cache: text keys, byte values, transactions, ranges.

store -> **meta** -> client

Requests are sent as raw bytes, so a round trip costs only the time that the node needs. Reads and
idempotent writes are retried while the cluster changes. If the answer to a conditional write is
lost, reading the key shows whether the write was done. `round_trips` counts requests, for callers
that must stay below a number of them.

Values are byte arrays rather than text, because a table with String values makes the node look for
Lucene classes, which are an optional part of it.

If a connection ends before the node has begun a write of its transaction, the node still does the
write, without the transaction (Ignite 2.17: after 11 of 500 connections that were closed right
after such writes). So a transaction sends all its changes in one request, which is done completely
or not at all. Such a request cannot mix removals and puts. So it puts empty values, which count as
missing; later requests remove them if they are still empty.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from ignitetf.errors import CacheNotFound, ClusterReadOnly, IgniteTFError, ServerError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.failures import retry
from ignitetf.tables.spec import CacheSpec
from ignitetf.wire.answers import damaged, int_at, pairs_at, read_bool, read_int, read_sized
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.frames import Page, read_first_sql_page, read_page
from ignitetf.wire.requests import (
    batch_request,
    cache_request,
    cursor_request,
    encode_bytes,
    encode_string,
    sql_request,
    transaction_end_request,
    transaction_start_request,
)

__all__ = ["EarlyTransaction", "MetaCache", "Transaction", "metadata_spec"]

T = TypeVar("T")

TABLE: Final = "ENTRY"
_LOCK_TIMEOUT_MS: Final = 10_000
# Up to this age, a transaction that was begun early has enough of its time left.
_EARLY_S: Final = 2.0
# Time limit for the begin of an unused transaction.
_ABANDON_S: Final = 1.0
_RANGE_PAGE: Final = 16_384
_WHAT: Final = "the file system's metadata"
# A missing schema has two error texts: a thread of the node that has used this schema before does
# not set it again, and notices only when it parses the statement.
_NO_SCHEMA: Final = re.compile(r'Failed to set schema|Schema ".+?" not found')
_EMPTY: Final = b""  # the value of a key that is being removed, which counts as missing


def _keys(keys: Iterable[str]) -> list[bytes]:
    return [encode_string(key) for key in keys]


def _pairs(pairs: Mapping[str, bytes]) -> list[bytes]:
    return [encode_string(key) + encode_bytes(value) for key, value in pairs.items()]


def _read_map(body: memoryview) -> dict[str, bytes]:
    with damaged(_WHAT):
        pairs = pairs_at(body, 4, int_at(body, 0))
        return {k.decode(): v for k, v in pairs if k is not None and v}


def _read_rows(page: Page) -> list[tuple[str, bytes]]:
    with damaged(_WHAT):
        pairs = pairs_at(page.data.data, 0, page.count)
        return [((key or b"").decode(), value or b"") for key, value in pairs]


class MetaCache:
    """The entries of one file system's metadata cache.

    Attributes:
        name: Name of the cache.
        id: Id of the cache.
        round_trips: Requests sent since this object was created.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.round_trips = 0
        self.id = cache_id(name)

    def _call(self, op: OpCode, body: bytes) -> memoryview:
        self.round_trips += 1
        return self.client.call(op, body)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        request = cache_request(self.id, encode_string(key))
        code, value = read_sized(self._call(OpCode.CACHE_GET, request), _WHAT)
        return None if code is TypeCode.NULL or not len(value) else bytes(value)

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of the keys that exist."""
        request = batch_request(self.id, _keys(keys))
        return _read_map(self._call(OpCode.CACHE_GET_ALL, request))

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        request = cache_request(self.id, encode_string(key), encode_bytes(value))
        retry(self.client.settings, lambda _: self._call(OpCode.CACHE_PUT, request))

    def begin_put(self, key: str, value: bytes) -> Callable[[], None]:
        """Send the request that sets a value, and return a function that waits until it is set."""
        request = cache_request(self.id, encode_string(key), encode_bytes(value))
        with contextlib.suppress(IgniteTFError):
            channel = self.client.acquire()
            try:
                number = channel.send(OpCode.CACHE_PUT, request)
            except BaseException:
                channel.close()
                raise
            self.round_trips += 1
            return lambda: self._end_put(channel, number, key, value)
        return lambda: self.put(key, value)

    def _end_put(self, channel: Channel, number: int, key: str, value: bytes) -> None:
        try:
            channel.receive(number)
        except IgniteTFError:
            self.client.release(channel)
            self.put(key, value)
        except BaseException:
            channel.close()
            raise
        else:
            self.client.release(channel)

    def put_all(self, pairs: Mapping[str, bytes]) -> None:
        """Set several values, without a transaction around them."""
        if pairs:
            request = batch_request(self.id, _pairs(dict(sorted(pairs.items()))))
            retry(self.client.settings, lambda _: self._call(OpCode.CACHE_PUT_ALL, request))

    def put_if_possible(self, pairs: Mapping[str, bytes]) -> None:
        """Set several optional values: a refusal is ignored."""
        if pairs:
            request = batch_request(self.id, _pairs(dict(sorted(pairs.items()))))
            with contextlib.suppress(ServerError):
                self._call(OpCode.CACHE_PUT_ALL, request)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Set a value if the key has none; no other client may write an equal value.

        A retry recognizes its own earlier success by the value.
        """
        request = cache_request(self.id, encode_string(key), encode_bytes(value))

        def once(earlier: IgniteTFError | None) -> bool:
            done = read_bool(self._call(OpCode.CACHE_PUT_IF_ABSENT, request), _WHAT)
            if not done and self._remove_if(key, _EMPTY):
                return once(earlier)
            return done or (earlier is not None and self.get(key) == value)

        return retry(self.client.settings, once)

    def replace(self, key: str, old: bytes, new: bytes) -> bool:
        """Set a value if the present one is `old`; no other client may write an equal `new`."""
        objects = (encode_string(key), encode_bytes(old), encode_bytes(new))
        request = cache_request(self.id, *objects)

        def once(earlier: IgniteTFError | None) -> bool:
            done = read_bool(self._call(OpCode.CACHE_REPLACE_IF_EQUALS, request), _WHAT)
            return done or (earlier is not None and self.get(key) == new)

        return retry(self.client.settings, once)

    def remove_if(self, key: str, value: bytes) -> bool:
        """Remove a key if it has this value; no other client may do the same."""

        def once(earlier: IgniteTFError | None) -> bool:
            return self._remove_if(key, value) or (earlier is not None and self.get(key) is None)

        return retry(self.client.settings, once)

    def _remove_if(self, key: str, value: bytes) -> bool:
        request = cache_request(self.id, encode_string(key), encode_bytes(value))
        return read_bool(self._call(OpCode.CACHE_REMOVE_IF_EQUALS, request), _WHAT)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys, without a transaction around them."""
        ordered = sorted(keys)
        if ordered:
            request = batch_request(self.id, _keys(ordered))
            retry(self.client.settings, lambda _: self._call(OpCode.CACHE_REMOVE_KEYS, request))

    def finish_removals(self) -> None:
        """Remove the keys whose removal was interrupted; reads the whole cache."""
        # The name of the file system was checked when it was opened, so this cannot inject SQL.
        statement = f'SELECT K FROM "{self.name}".{TABLE} WHERE LENGTH(V) = 0'  # nosec B608
        # Not removed by SQL: a DELETE fails if another client removes one of the keys meanwhile.
        for (key,) in self.client.sql(statement).fetchall():
            self.finish_removal(key)

    def finish_removal(self, key: str) -> None:
        """Remove a key whose value is empty; errors are ignored."""
        with contextlib.suppress(IgniteTFError):
            self._remove_if(key, _EMPTY)

    def wait_for_transactions(self, key: str) -> None:
        """Wait until no transaction in progress holds this key.

        A plain read during a commit may see the new state of one key and the old state of
        another, so a missing key is read again after this call before it is reported missing.
        The request is a removal on condition that the value is empty: that takes the lock. A
        read-only cluster refuses it, and has no transaction in progress.
        """
        with contextlib.suppress(ClusterReadOnly):
            retry(self.client.settings, lambda _: self._remove_if(key, _EMPTY))

    def range(
        self, first: str, end: str, *, limit: int = -1, page: int = _RANGE_PAGE
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the keys in [first, end) with their values, found through the index.

        Args:
            first: Smallest key.
            end: First key after the range.
            limit: Maximum number of rows; -1 for all.
            page: Rows per answer.
        """
        channel, body = retry(
            self.client.settings, lambda _: self._open_range(first, end, limit, page)
        )
        done = False
        try:
            cursor, _, found = read_first_sql_page(body)
            yield from _read_rows(found)
            while found.more:
                self.round_trips += 1
                body = channel.call(OpCode.QUERY_SQL_FIELDS_PAGE, cursor_request(cursor))
                found = read_page(body)
                yield from _read_rows(found)
            done = True
        finally:
            if done:
                self.client.release(channel)
            else:
                channel.close()

    def _open_range(
        self, first: str, end: str, limit: int, page: int
    ) -> tuple[Channel, memoryview]:
        # The name of the file system was checked when it was opened, so this cannot inject SQL.
        table = f'"{self.name}".{TABLE}'
        statement = f"SELECT K, V FROM {table} WHERE K >= ? AND K < ? AND LENGTH(V) > 0"  # nosec B608
        if limit >= 0:
            statement += f" LIMIT {limit}"
        request = sql_request(
            self.name,
            statement,
            _keys([first, end]),
            page,
            cache=self.id,
            timeout_ms=int(self.client.settings.request_timeout_s * 1000),
        )
        channel = self.client.acquire()
        try:
            self.round_trips += 1
            return channel, channel.call(OpCode.QUERY_SQL_FIELDS, request)
        except ServerError as error:
            self.client.release(channel)
            if not _NO_SCHEMA.search(str(error.fields.get("server_message"))):
                raise
            # The cache is gone or the cluster is inactive; the next request will report which.
            raise CacheNotFound(f"no cache {self.name}", cache=self.name) from error
        except BaseException:
            channel.close()
            raise

    def transact(
        self, work: Callable[[Transaction], T], early: EarlyTransaction | None = None
    ) -> T:
        """Run work in a pessimistic transaction and commit it, retrying after a rollback.

        Args:
            work: Reads, which lock what they read, followed by writes. It may run several times;
                `transaction.unsettled` says whether its effect may already be stored. An
                exception rolls back.
            early: A transaction that was begun for the first try.
        """
        unsettled = False

        def once(earlier: IgniteTFError | None) -> T:
            nonlocal unsettled
            transaction = None if early is None else early.take()
            channel = self.client.acquire() if transaction is None else transaction.channel
            try:
                if transaction is None:
                    transaction = Transaction(self, channel, earlier if unsettled else None)
                    transaction.wait_started()
                try:
                    result = work(transaction)
                    transaction.write()
                except BaseException:
                    # The writes of a lost connection may be stored: see the module docstring.
                    unsettled = unsettled or (transaction.wrote and channel.closed)
                    transaction.end(commit=False)
                    raise
                unsettled = True
                transaction.end(commit=True)
            except (IgniteTFError, OSError):
                # Either the answer to the rollback has arrived, or the channel is already closed.
                self.client.release(channel)
                raise
            except BaseException:
                channel.close()
                raise
            self.client.release(channel)
            return result

        return retry(self.client.settings, once)


class Transaction:
    """A transaction on one connection; see `MetaCache.transact`.

    Locking keys also reads them. Writes are collected until `write` sends all of them together.
    Each of the two costs one round trip for any number of keys.

    Attributes:
        channel: The connection.
        earlier: The error that ended an earlier try of the same work during its commit, or None.
        unsettled: True if an earlier try may have been committed, wholly or in part.
        wrote: True if a write was sent to the node.
    """

    def __init__(self, cache: MetaCache, channel: Channel, earlier: IgniteTFError | None) -> None:
        self.channel = channel
        self.earlier = earlier
        self.unsettled = earlier is not None
        self.wrote = False
        self._cache = cache
        self._seen: dict[str, bytes | None] = {}  # None for a key without a value
        self._written: dict[str, bytes | None] = {}  # None for a key that is removed
        self._early: list[str] = []
        cache.round_trips += 1
        self._begin = channel.send(OpCode.TX_START, transaction_start_request(_LOCK_TIMEOUT_MS))

    @functools.cached_property
    def _id(self) -> int:
        """Id of the transaction; the first access waits for it."""
        return read_int(self.channel.receive(self._begin), "the id of a transaction")

    def abandon(self) -> None:
        """Close the connection after the node has begun the transaction; the node rolls it back."""
        if "_id" not in self.__dict__:
            with contextlib.suppress(IgniteTFError):
                self.channel.receive(self._begin, timeout_s=_ABANDON_S)
        self.channel.close()

    def wait_started(self) -> None:
        """Wait until the node has begun the transaction; raises the error if it could not."""
        _ = self._id

    def _call(self, op: OpCode, body: bytes) -> memoryview:
        self._cache.round_trips += 1
        return self.channel.call(op, body)

    def _batch(self, items: list[bytes]) -> bytes:
        return batch_request(self._cache.id, items, transaction=self._id)

    def lock(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Lock keys in the given order, and return the values of the existing keys."""
        asked = list(dict.fromkeys(keys))
        if unseen := [key for key in asked if key not in self._seen]:
            found = _read_map(self._call(OpCode.CACHE_GET_ALL, self._batch(_keys(unseen))))
            self._seen.update((key, found.get(key)) for key in unseen)
        present = {**self._seen, **self._written}
        return {key: value for key in asked if (value := present[key]) is not None}

    def put(self, pairs: Mapping[str, bytes]) -> None:
        """Set values."""
        self._written.update(pairs)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys."""
        self._written.update(dict.fromkeys(keys))

    def write(self) -> None:
        """Send the puts and removals."""
        written, self._written = self._written, {}
        removed = [key for key, value in written.items() if value is None]
        self._seen.update(written)
        self.wrote = self.wrote or bool(written)
        if len(removed) == len(written):
            if removed:
                self._call(OpCode.CACHE_REMOVE_KEYS, self._batch(_keys(removed)))
            return
        # One request, with empty values for removals: see the module docstring.
        puts = {key: _EMPTY if value is None else value for key, value in written.items()}
        change = OpCode.CACHE_PUT_ALL, self._batch(_pairs(puts))
        if len(puts) == 1:
            request = cache_request(self._cache.id, *_pairs(puts), transaction=self._id)
            change = OpCode.CACHE_PUT, request
        _, *done = self._call_together([change, *map(self._removal, removed)])
        # The node may have processed these removals before the puts: `end` sends them again.
        answers = zip(removed, done, strict=True)
        self._early = [key for key, body in answers if not read_bool(body, _WHAT)]

    def _removal(self, key: str) -> tuple[OpCode, bytes]:
        """Return the request that removes a key whose value is empty."""
        objects = (encode_string(key), encode_bytes(_EMPTY))
        request = cache_request(self._cache.id, *objects, transaction=self._id)
        return OpCode.CACHE_REMOVE_IF_EQUALS, request

    def _is_removed(self, number: int) -> bool:
        """True if a removal that was sent with the commit was done before it."""
        with contextlib.suppress(IgniteTFError):
            return read_bool(self.channel.receive(number), _WHAT)
        return False

    def _call_together(self, requests: list[tuple[OpCode, bytes]]) -> list[memoryview]:
        """Send requests together; returns the answers, or raises an error once all are answered."""
        self._cache.round_trips += bool(requests)
        answers, failures = [], []
        for number in [self.channel.send(*request) for request in requests]:
            try:
                answers.append(self.channel.receive(number))
            except ServerError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return answers

    def end(self, *, commit: bool) -> None:
        """Commit or roll back; if the connection is broken, the node rolls back by itself."""
        if commit:
            again = {key: self.channel.send(*self._removal(key)) for key in self._early}
            self._call(OpCode.TX_END, transaction_end_request(self._id, commit=True))
            for key, number in again.items():
                if not self._is_removed(number):
                    self._cache.finish_removal(key)
        elif not self.channel.closed:
            try:
                self._call(OpCode.TX_END, transaction_end_request(self._id, commit=False))
            except IgniteTFError:
                self.channel.close()


class EarlyTransaction:
    """A transaction that is begun while its work is prepared; this saves a round trip.

    It holds no locks. `close` ends it unless it was taken.
    """

    def __init__(self, cache: MetaCache) -> None:
        self._cache = cache
        self._since = 0.0
        self._found: Transaction | None = None

    def begin(self) -> None:
        """Send the begin request if possible; otherwise the work begins a transaction itself."""
        self._since = time.monotonic()
        with contextlib.suppress(IgniteTFError):
            channel = self._cache.client.acquire()
            try:
                self._found = Transaction(self._cache, channel, None)
            except BaseException:
                channel.close()
                raise

    def take(self) -> Transaction | None:
        """Return the transaction once; None if it is so old that it may time out."""
        found, self._found = self._found, None
        if found is None:
            return None
        if time.monotonic() - self._since > _EARLY_S:
            found.abandon()
            return None
        try:
            found.wait_started()
        except IgniteTFError:
            found.channel.close()
            return None
        return found

    def close(self) -> None:
        """End the transaction unless it was taken."""
        found, self._found = self._found, None
        if found is not None:
            found.abandon()


def metadata_spec(name: str, backups: int, data_region: str | None) -> CacheSpec:
    """Return the spec of the metadata cache, with its SQL table."""
    text, blob = "java.lang.String", "[B"
    entity = {
        "key_type_name": text,
        "value_type_name": blob,
        "table_name": TABLE,
        "key_field_name": "K",
        "value_field_name": "V",
        "query_fields": [
            {"name": "K", "type_name": text, "is_key_field": True},
            {"name": "V", "type_name": blob},
        ],
        "field_name_aliases": [],
        "query_indexes": [],
    }
    return CacheSpec(
        name,
        backups=backups,
        atomicity="TRANSACTIONAL",
        data_region=data_region,
        query_entity=entity,
    )
