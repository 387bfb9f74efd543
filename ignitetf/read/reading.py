"""One pass over rows through the core: a plan, its flow, and groups of rows in plan order.

plan, flow, landing -> **reading** -> scans, lookup -> reader -> batches

A plan has requests, and a place for each row of their answers. `scans` requests partitions,
`lookup` requests keys, and `statement_batches` requests the keys that one SQL statement finds.
Groups are yielded in the order of the places, each when all of its rows have landed.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import UNIT, Landing, UnitState
from ignitetf.errors import IgniteTFError
from ignitetf.net.binary_types import fetch_ahead, with_types
from ignitetf.net.client import Client
from ignitetf.net.failures import READ, Backoff
from ignitetf.net.flow import MOST_OPEN, Flow, Plan, requests_of
from ignitetf.net.window import LEAST_BYTES
from ignitetf.read.keys import RecordContext
from ignitetf.read.landing import Left, RowLayout
from ignitetf.read.selection import Selection
from ignitetf.read.usage import add_read, add_retries, add_wait
from ignitetf.threads import BackgroundCall
from ignitetf.wire.buffers import ALIGNED_ROWS
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import Page
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["Reading", "statement_batches"]

# Approximate size of a group of rows. It is small, so that its reused memory stays in the
# processor's cache.
_GROUP_BYTES: Final = 1 << 20
_MOST_GROUP_ROWS: Final = 65_536
# A group that is one batch is passed on without a copy; this limits its bytes.
_MOST_BATCH_BYTES: Final = 16 << 20
# Bytes that may be filled before the consumer takes them, at least.
_AHEAD_BYTES: Final = 32 << 20
# Up to this many groups are read at once, in the caller's thread.
_FEW_GROUPS: Final = 2
# Rows in a page of a statement that reads keys.
_STATEMENT_PAGE: Final = 32_768
_STATEMENT_BYTES: Final = 2 << 20
_INT_BYTES: Final = 4

log = logging.getLogger(__name__)

T = TypeVar("T")


def _group_rows(row_bytes: float, batch_rows: int | None) -> int:
    """Return the number of rows of a group: whole batches, unless batches are large."""
    row_bytes = max(row_bytes, 16.0)
    rows = int(min(_MOST_GROUP_ROWS, _GROUP_BYTES // row_bytes))
    if batch_rows is not None and batch_rows * row_bytes <= _MOST_BATCH_BYTES:
        return max(1, rows // batch_rows) * batch_rows
    # Groups are cut at aligned rows, so that TensorFlow can use them without a copy.
    return rows // ALIGNED_ROWS * ALIGNED_ROWS if rows >= ALIGNED_ROWS else max(1, rows)


class Reading(abc.ABC):
    """Base of the passes: lands rows of a reader, and compares them with what is known."""

    _least_window = LEAST_BYTES

    def __init__(
        self,
        reader: CacheReader,
        stored: Schema,
        name_of: Callable[[int], int | None],
        most_rows: int = _MOST_GROUP_ROWS,
        batch_rows: int | None = None,
    ) -> None:
        self._reader = reader
        self._stored_bytes = max(1.0, reader.entry_bytes * reader.block_rows)
        # A read of few rows gets a small group, because it may be kept for long.
        rows = _group_rows(self._stored_bytes, batch_rows)
        self._rows = min(rows, 1 << (most_rows - 1).bit_length())
        self._layout: RowLayout = reader.row_layout(stored, self._rows)
        self._left = Left(self._rows)
        self._decoder = _PageDecoder(
            reader.client, reader.name, stored, reader.registry, reader.retry_s
        )
        self._name_of = name_of  # a unit's partition, for messages
        self._type_id = stored.type_id
        self._fetching: BackgroundCall | None = None
        self._counted = 0  # units whose rows were counted
        self._retries = 0  # of the flow, as counted so far

    def _groups(
        self, plan: Plan, landing: Landing, retry_s: float | None = None
    ) -> Generator[tuple[int, Batch], None, None]:
        """Yield the first place and the rows of each group."""
        reader = self._reader
        flow = Flow(
            reader.client, reader.name, plan, landing, self,
            connections=self._connections, most_open=self._most_open,
            least_window=self._least_window, is_small=self._is_small(plan.units),
            retry_s=reader.retry_s if retry_s is None else retry_s,
        )  # fmt: skip
        self._fetching = fetch_ahead(reader.client, reader.registry, self._type_id)
        with self._usage(plan.units, flow), contextlib.closing(flow.groups()) as groups:
            while True:
                begin = time.monotonic()
                taken = next(groups, None)
                add_wait(reader.name, time.monotonic() - begin)
                self._count(plan.units, flow)
                self._add_retries(flow)
                if taken is None:
                    break
                number = taken[0] // self._rows
                left, gone = self._left.take(number), self._left.gone(number)
                if len(gone) < taken[1]:
                    yield taken[0], self._layout.batch(taken, left, gone)

    @property
    def _connections(self) -> int:
        """The number of connections to each node."""
        return -(-self._reader.options.readers // max(1, self._reader.node_count))

    @property
    def _most_open(self) -> int:
        """The number of cursors that a connection may have open."""
        return MOST_OPEN

    def _is_small(self, units: NDArray[Any]) -> bool:
        """Return True if the rows fit into few groups."""
        rows = int(units["rows"].sum()) if (units["rows"] >= 0).all() else None
        return rows is not None and rows <= _FEW_GROUPS * self._rows

    def _landing(
        self,
        units: NDArray[Any],
        total: int,
        page_rows: int,
        next_page: OpCode,
        places: NDArray[np.int64] | None = None,
    ) -> Landing:
        """Return the `Landing` for answers of cursors; `total` is -1 if rows are not counted."""
        # The first answer to a SQL query has the number of columns before its page.
        skipped = _INT_BYTES if next_page == OpCode.QUERY_SQL_FIELDS_PAGE else 0
        return Landing(
            self._layout.native, units, places, None, None, total, self._ahead, self._group_bytes,
            page_rows, True, skipped, next_page,
        )  # fmt: skip

    def _landing_by_key(
        self,
        units: NDArray[Any],
        places: NDArray[np.int64] | None,
        keys: bytes,
        key_at: NDArray[np.int64],
    ) -> Landing:
        """Return the `Landing` for answers to requests by key; key i is `keys[key_at[i]:]`."""
        total = len(key_at) - 1
        return Landing(
            self._layout.native, units, places, keys, key_at, total, self._ahead, self._group_bytes,
            total, False, 0, 0,
        )  # fmt: skip

    @property
    def _group_bytes(self) -> int:
        return int(self._stored_bytes * self._rows)

    @property
    def _ahead(self) -> int:
        """The least number of groups that may be filled before the consumer takes them."""
        return max(2, _AHEAD_BYTES // max(1, self._group_bytes))

    def _count(self, units: NDArray[Any], flow: Flow) -> None:
        """Count and compare, in order, the units that have ended since the last call."""
        first = self._counted
        if first == len(units) or units["state"][first] != UnitState.ENDED:
            return  # no unit has ended, as after most groups
        still_open = np.flatnonzero(units["state"][first:] != UnitState.ENDED)
        last = first + int(still_open[0]) if len(still_open) else len(units)
        self._counted, ended = last, units[first:last]
        self._add_usage(ended, flow)
        self._compare(first, ended)

    @contextlib.contextmanager
    def _usage(self, units: NDArray[Any], flow: Flow) -> Iterator[None]:
        """Count the received rows of unfinished units when the pass stops early."""
        try:
            yield
        finally:
            self._add_usage(units[self._counted :], flow)
            self._add_retries(flow)

    def _add_usage(self, units: NDArray[Any], flow: Flow) -> None:
        for lane in set(units["lane"].tolist()):
            own = units[units["lane"] == lane]
            if own["nbytes"].any():
                rows = round(int(own["done"].sum()) * self._reader.block_rows)
                add_read(self._reader.name, flow.origins.get(lane), rows, int(own["nbytes"].sum()))

    def _add_retries(self, flow: Flow) -> None:
        """Count the retries of the flow since the last call."""
        if retries := flow.retries - self._retries:
            self._retries += retries
            add_retries(self._reader.name, retries)

    def _compare(self, first: int, ended: NDArray[Any]) -> None:  # noqa: B027 (keys have nothing)
        """Compare the ended units, the first of which is number `first`, with what is known."""

    # Callbacks of the flow

    def learn(self, type_id: int, schema_id: int, flags: int) -> None:
        """Add the stored form of the rows to the core's layout."""
        if self._fetching is not None:
            self._fetching.wait()
        self._decoder.with_types(self._layout.learn, type_id, schema_id, flags)

    def leave(
        self, unit: int, entries: bytes, places: NDArray[np.int64], absent: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decode and place the entries that the core did not land; see `net.flow.Sink`."""
        self._left.add(places, self._decoded(unit, entries, places))
        return places

    def _decoded(self, unit: int, entries: bytes, places: NDArray[np.int64]) -> Batch:
        page = Page(len(places), False, np.frombuffer(entries, np.uint8))
        return self._decoder.decode(self._name_of(unit), page, self._row_of(unit, places))

    @abc.abstractmethod
    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error for a unit whose number of rows differs from the expected one."""

    @abc.abstractmethod
    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error for a unit whose rows changed between two connections."""

    def _row_of(self, unit: int, places: NDArray[np.int64]) -> int:
        """Return the number of the first row within its unit, for messages."""
        return 0


class _PageDecoder:
    """Decodes pages of one cache; may be used by several threads.

    Args:
        client: Fetches types that the registry lacks.
        name: Name of the data set, for messages.
        schema: Fields to decode.
        registry: Known binary types.
        retry_s: Time limit in seconds for requesting a type again after a lost connection.
    """

    def __init__(
        self, client: Client, name: str, schema: Schema, registry: TypeRegistry, retry_s: float
    ) -> None:
        self._client = client
        self._name = name
        self._registry = registry
        self._decoder = Decoder(schema, registry)
        self._retry_s = retry_s

    def decode(self, partition: int | None, page: Page, first: int = 0) -> Batch:
        """Decode a page.

        Args:
            partition: The partition of all its entries; None if they are of several.
            page: The page.
            first: Number of its first entry, for messages.

        Raises:
            SchemaError: A record does not match the schema; names cache, partition, key and field.
        """
        with RecordContext(self._name, partition, first=first):
            return self.with_types(self._decoder.decode, page)

    def with_types(self, work: Callable[..., T], *args: Any) -> T:
        """Return `work(*args)`; fetches the types that it needs, as `net.binary_types.with_types`.

        A type is requested over another connection. That one may be lost although the page is here,
        so the request is retried.
        """
        backoff = Backoff(READ)
        while True:
            try:
                return with_types(self._client, self._registry, work, *args)
            except IgniteTFError as error:
                if (wait := backoff.wait_s(error, self._retry_s)) is None:
                    raise
                log.warning("%s: %s; requesting it again in %.1f s", self._name, error, wait)
                time.sleep(wait)


class _StatementReading(Reading):
    """Reads the keys of the rows that one SQL statement finds in the whole table.

    Args:
        reader: The cache.
        selection: Table and condition.
        key: The field that describes how keys are read.
        field: A field whose value follows each key, and the name of its column.
    """

    def __init__(
        self,
        reader: CacheReader,
        selection: Selection,
        key: Field,
        field: tuple[Field, str] | None = None,
    ) -> None:
        fields = () if field is None else (field[0],)
        schema = Schema(
            None if field else "", key, fields, key_type_name=reader.schema.key_type_name
        )
        super().__init__(reader, schema, lambda _: None)
        self._body = selection.key_query(_STATEMENT_PAGE, None if field is None else field[1])

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, in the order in which the cluster finds them."""
        units = np.zeros(1, UNIT)
        units["lane"], units["rows"], units["expected"] = -1, -1, _STATEMENT_BYTES
        landing = self._landing(units, -1, _STATEMENT_PAGE, OpCode.QUERY_SQL_FIELDS_PAGE)
        requests = requests_of(OpCode.QUERY_SQL_FIELDS, [self._body])
        plan = Plan(units, requests, np.zeros(1, np.int64), lambda _: {})
        with contextlib.closing(self._groups(plan, landing, retry_s=0.0)) as groups:
            for _, batch in groups:
                yield batch

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Never called: the number of rows is not known."""
        raise AssertionError("the number of rows is not known")

    def other_keys(self, unit: int) -> IgniteTFError:
        """Never called: a statement is run again from the beginning, not continued."""
        raise AssertionError("a statement is not continued over another connection")


def statement_batches(
    reader: CacheReader, selection: Selection, key: Field, field: tuple[Field, str] | None = None
) -> Generator[tuple[bool, Batch], None, None]:
    """Yield the rows that the statement finds; after a lost connection it starts again.

    Yields:
        A flag for a first batch, and the batch. The caller must discard all batches before a
        first batch.
    """
    selection.check_whole(reader.client)
    backoff, first = Backoff(READ), True
    while True:
        try:
            with contextlib.closing(
                _StatementReading(reader, selection, key, field).batches()
            ) as batches:
                for batch in batches:
                    yield first, batch
                    first = False
            break
        except IgniteTFError as error:
            if (wait := backoff.wait_s(error, reader.retry_s)) is None:
                raise
            log.warning("%s: %s; retrying in %.1f s", reader.name, error, wait)
            time.sleep(wait)
            first = True
    selection.check_whole(reader.client)
