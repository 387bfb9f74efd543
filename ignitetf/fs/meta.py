"""The metadata cache: text keys, byte values, transactions, ranges.

store -> **meta** -> client

All requests are raw: a round trip costs what the node needs. Reads and repeatable writes are
tried again while the cluster changes; a conditional write whose answer was lost is settled by
reading. `round_trips` counts requests, for those who must stay within a number of them.

Source: Apache Ignite 2.17.0, `ClientCacheRequest` (flag 2 and transaction id), `ClientTxStartRequest`,
`ClientCacheSqlFieldsQueryRequest`. Values are byte arrays, not text: a table with values of type
String makes the node look for Lucene classes, which are an optional part of it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from ignitetf.errors import IgniteTFError, ServerError, WireError
from ignitetf.fs.retry import retry
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.failures import damaged
from ignitetf.tables.spec import CacheSpec
from ignitetf.wire.codes import Feature, OpCode, TypeCode

__all__ = ["MetaCache", "Transaction", "metadata_spec"]

T = TypeVar("T")

TABLE: Final = "ENTRY"
_HEAD: Final = struct.Struct("<ib")  # cache id, flags
_TX_HEAD: Final = struct.Struct("<ibi")  # cache id, flags, transaction id
_SIZED: Final = struct.Struct("<bi")  # type code, length
_IN_TRANSACTION: Final = 2
_PESSIMISTIC: Final = 1
_REPEATABLE_READ: Final = 1
_LOCK_TIMEOUT_MS: Final = 10_000
_RANGE_PAGE: Final = 16_384
_SELECT: Final = 1


def _text(value: str) -> bytes:
    data = value.encode()
    return _SIZED.pack(TypeCode.STRING, len(data)) + data


def _blob(value: bytes) -> bytes:
    return _SIZED.pack(TypeCode.BYTE_ARRAY, len(value)) + value


def _keys(keys: Iterable[str]) -> bytes:
    packed = [_text(key) for key in keys]
    return struct.pack("<i", len(packed)) + b"".join(packed)


def _pairs(pairs: Mapping[str, bytes]) -> bytes:
    packed = [_text(key) + _blob(value) for key, value in pairs.items()]
    return struct.pack("<i", len(packed)) + b"".join(packed)


def _read(body: memoryview, at: int) -> tuple[bytes | None, int]:
    """One text or byte array of an answer, as bytes."""
    with damaged("an entry of the metadata cache"):
        code = body[at]
        if code == TypeCode.NULL:
            return None, at + 1
        if code not in (TypeCode.STRING, TypeCode.BYTE_ARRAY):
            raise WireError(f"the file system's metadata hold a value of type {code}")
        (length,) = struct.unpack_from("<i", body, at + 1)
    end = at + 5 + length
    if length < 0 or end > len(body):
        raise WireError("damaged answer from the metadata cache")
    return bytes(body[at + 5 : end]), end


def _flag(body: memoryview) -> bool:
    if len(body) != 1 or body[0] > 1:
        raise WireError("damaged answer from the metadata cache: no yes and no no")
    return bool(body[0])


def _read_map(body: memoryview) -> dict[str, bytes]:
    at, found = 4, {}
    with damaged("entries of the metadata cache"):
        for _ in range(struct.unpack_from("<i", body, 0)[0]):
            key, at = _read(body, at)
            value, at = _read(body, at)
            if key is not None and value is not None:
                found[key.decode()] = value
    return found


class MetaCache:
    """The entries of one file system's metadata cache.

    Attributes:
        name: Name of the cache.
        round_trips: Requests sent since this object was made.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.round_trips = 0
        self._id = cache_id(name)
        self._head = _HEAD.pack(self._id, 0)

    def _call(self, op: OpCode, body: bytes) -> memoryview:
        self.round_trips += 1
        return self.client.call(op, body)

    def get(self, key: str) -> bytes | None:
        """The value of a key, None where there is none."""
        body = retry(self.client, lambda _: self._call(OpCode.CACHE_GET, self._head + _text(key)))
        return _read(body, 0)[0]

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that exist."""
        request = self._head + _keys(keys)
        return _read_map(retry(self.client, lambda _: self._call(OpCode.CACHE_GET_ALL, request)))

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        request = self._head + _text(key) + _blob(value)
        retry(self.client, lambda _: self._call(OpCode.CACHE_PUT, request))

    def put_all(self, pairs: Mapping[str, bytes]) -> None:
        """Set several values, each on its own."""
        if pairs:
            ordered = dict(sorted(pairs.items()))
            request = self._head + _pairs(ordered)
            retry(self.client, lambda _: self._call(OpCode.CACHE_PUT_ALL, request))

    def offer(self, pairs: Mapping[str, bytes]) -> None:
        """Set several values that nobody needs: what the cluster refuses now is left out."""
        if pairs:
            with contextlib.suppress(ServerError):
                self._call(OpCode.CACHE_PUT_ALL, self._head + _pairs(dict(sorted(pairs.items()))))

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Set a value where there is none; the value must be no other client's."""

        def once(earlier: IgniteTFError | None) -> bool:
            request = self._head + _text(key) + _blob(value)
            done = _flag(self._call(OpCode.CACHE_PUT_IF_ABSENT, request))
            return done or (earlier is not None and self.get(key) == value)

        return retry(self.client, once)

    def replace(self, key: str, old: bytes, new: bytes) -> bool:
        """Set a value where the present one is `old`; `new` must be no other client's."""

        def once(earlier: IgniteTFError | None) -> bool:
            request = self._head + _text(key) + _blob(old) + _blob(new)
            done = _flag(self._call(OpCode.CACHE_REPLACE_IF_EQUALS, request))
            return done or (earlier is not None and self.get(key) == new)

        return retry(self.client, once)

    def remove_if(self, key: str, value: bytes) -> bool:
        """Remove a key where its value is this one; no other client may do the same."""

        def once(earlier: IgniteTFError | None) -> bool:
            return self._remove_if(key, value) or (earlier is not None and self.get(key) is None)

        return retry(self.client, once)

    def _remove_if(self, key: str, value: bytes) -> bool:
        request = self._head + _text(key) + _blob(value)
        return _flag(self._call(OpCode.CACHE_REMOVE_IF_EQUALS, request))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys, each on its own."""
        ordered = sorted(keys)
        if ordered:
            request = self._head + _keys(ordered)
            retry(self.client, lambda _: self._call(OpCode.CACHE_REMOVE_KEYS, request))

    def settle(self, key: str) -> None:
        """Wait until no transaction that holds this key is under way.

        A plain read during a commit may see the new state of one key and the old of another.
        Before "it does not exist" is said, the key is asked once more, after this. It is a
        conditional removal whose condition never holds (no value is empty): it takes the lock.
        """
        retry(self.client, lambda _: self._remove_if(key, b""))

    def range(
        self, first: str, end: str, *, limit: int = -1, page: int = _RANGE_PAGE
    ) -> Iterator[tuple[str, bytes]]:
        """Keys from `first` on and before `end`, with their values, found through the index.

        Args:
            first: Least key.
            end: First key after the range.
            limit: Most rows wanted; -1 for all.
            page: Rows of one answer.
        """
        channel, body = retry(self.client, lambda _: self._open_range(first, end, limit, page))
        done = False
        try:
            with damaged("rows of the metadata cache"):
                (cursor,) = struct.unpack_from("<q", body, 0)
            at = 12  # after the number of columns
            while True:
                rows, more = _read_rows(body, at)
                yield from rows
                if not more:
                    break
                self.round_trips += 1
                body = channel.call(OpCode.QUERY_SQL_FIELDS_PAGE, struct.pack("<q", cursor))
                at = 0
            done = True
        finally:
            if done:
                self.client.release(channel)
            else:
                channel.close()

    def _open_range(
        self, first: str, end: str, limit: int, page: int
    ) -> tuple[Channel, memoryview]:
        # The name of the file system was checked when it was opened.
        statement = f'SELECT K, V FROM "{self.name}".{TABLE} WHERE K >= ? AND K < ?'  # nosec B608
        if limit >= 0:
            statement += f" LIMIT {limit}"
        channel = self.client.acquire()
        try:
            request = b"".join(
                [
                    self._head,
                    _text(self.name),
                    struct.pack("<ii", page, -1),
                    _text(statement),
                    struct.pack("<i", 2),
                    _text(first),
                    _text(end),
                    # kind; not joins, local, replicated, ordered, collocated; lazy
                    struct.pack("<7b", _SELECT, 0, 0, 0, 0, 0, 1),
                    struct.pack("<qb", int(self.client.settings.request_timeout_s * 1000), 0),
                ]
            )
            if channel.features & Feature.QUERY_PARTITIONS_BATCH_SIZE:
                request += struct.pack("<ii", -1, 1)
            self.round_trips += 1
            return channel, channel.call(OpCode.QUERY_SQL_FIELDS, request)
        except ServerError:
            self.client.release(channel)
            raise
        except BaseException:
            channel.close()
            raise

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a pessimistic transaction and commit it; again when it was rolled back.

        Args:
            work: Reads, which lock what they read, then writes. It may run several times, and
                `transaction.unsettled` tells that its effect may be there already. An
                exception from it rolls back.
        """
        unsettled = False

        def once(earlier: IgniteTFError | None) -> T:
            nonlocal unsettled
            channel = self.client.acquire()
            try:
                transaction = Transaction(self, channel, earlier if unsettled else None)
                try:
                    result = work(transaction)
                except BaseException:
                    transaction.end(commit=False)
                    raise
                unsettled = True
                transaction.end(commit=True)
            except (IgniteTFError, OSError):
                # The answer to the roll-back came, or the channel is closed already.
                self.client.release(channel)
                raise
            except BaseException:
                channel.close()
                raise
            self.client.release(channel)
            return result

        return retry(self.client, once)


def _read_rows(body: memoryview, at: int) -> tuple[list[tuple[str, bytes]], bool]:
    rows = []
    with damaged("rows of the metadata cache"):
        (count,) = struct.unpack_from("<i", body, at)
        at += 4
        for _ in range(count):
            key, at = _read(body, at)
            value, at = _read(body, at)
            rows.append(((key or b"").decode(), value or b""))
        return rows, bool(body[at])


class Transaction:
    """A transaction on one connection; see `MetaCache.transact`.

    Attributes:
        earlier: What ended the try of the same work before this one, where a try got as far as
            its commit; else None.
        unsettled: Whether an earlier try may have been committed, as a whole or by half.
    """

    def __init__(self, cache: MetaCache, channel: Channel, earlier: IgniteTFError | None) -> None:
        self.earlier = earlier
        self.unsettled = earlier is not None
        self._cache = cache
        self._channel = channel
        request = struct.pack("<bbq", _PESSIMISTIC, _REPEATABLE_READ, _LOCK_TIMEOUT_MS)
        body = self._call(OpCode.TX_START, request + bytes([TypeCode.NULL]))
        with damaged("the id of a transaction"):
            (self._id,) = struct.unpack_from("<i", body, 0)
        self._head = _TX_HEAD.pack(cache._id, _IN_TRANSACTION, self._id)

    def _call(self, op: OpCode, body: bytes) -> memoryview:
        self._cache.round_trips += 1
        return self._channel.call(op, body)

    def lock(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Lock keys in the given order, and give the values of those that exist."""
        return _read_map(self._call(OpCode.CACHE_GET_ALL, self._head + _keys(keys)))

    def put(self, pairs: Mapping[str, bytes]) -> None:
        """Set values."""
        if len(pairs) == 1:
            ((key, value),) = pairs.items()
            self._call(OpCode.CACHE_PUT, self._head + _text(key) + _blob(value))
        elif pairs:
            self._call(OpCode.CACHE_PUT_ALL, self._head + _pairs(pairs))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys."""
        if found := list(keys):
            self._call(OpCode.CACHE_REMOVE_KEYS, self._head + _keys(found))

    def end(self, *, commit: bool) -> None:
        """Commit, or roll back; on a broken connection the node rolls back by itself."""
        if commit:
            self._call(OpCode.TX_END, struct.pack("<ib", self._id, 1))
        elif not self._channel.closed:
            try:
                self._call(OpCode.TX_END, struct.pack("<ib", self._id, 0))
            except IgniteTFError:
                self._channel.close()


def metadata_spec(name: str, backups: int, data_region: str | None) -> CacheSpec:
    """The cache of the metadata, with its SQL table."""
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
