"""Rows in pages: by key where the node has an index of them, else by partition.

data set, place, filters -> **paging** -> records

A page costs the same wherever it is. Where filters leave out most rows, the search goes through a
stretch of keys or partitions, ends after a part of a second, and the next page goes on from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError
from ignitetf.explore.head import value_at
from ignitetf.net.client import Client
from ignitetf.read.conditions import Table
from ignitetf.ui.data_set import DataSet, record_of
from ignitetf.ui.filters import Filter, masked
from ignitetf.wire.schema import Batch

__all__ = ["Page", "Row", "one_row", "page_rows", "read_page"]

_PAGE_ROWS: Final = 50
_PAGE_BYTES: Final = 8 << 20
_SEARCH_S: Final = 0.12
# Rows that one statement looks through, at first and at most.
_STRETCH: Final = 20_000
_LONGEST_STRETCH: Final = 160_000


@dataclass(frozen=True)
class Row:
    """A row of a page.

    Attributes:
        ref: Where it is, for an address: `key=...` or `at=...`.
        key: Its key, readable.
        values: Its fields.
    """

    ref: tuple[str, str]
    key: Any
    values: dict[str, Any]


@dataclass
class Page:
    """Some rows, and where to go on.

    Attributes:
        rows: The rows.
        following: Where the next page begins; None at the end.
        partial: Whether the search ended early, so that there may be more before `following`.
    """

    rows: list[Row] = field(default_factory=list)
    following: str | None = None
    partial: bool = False


def page_rows(data: DataSet, most: int = _PAGE_ROWS) -> int:
    """Return how many rows a page has, fewer of large ones."""
    return int(max(6, min(most, _PAGE_BYTES / data.row_bytes)))


def read_page(
    client: Client, data: DataSet, after: str | None, filters: Sequence[Filter], count: int
) -> Page:
    """Return the page that begins after a place; None is the beginning."""
    if data.table is not None:
        return _by_key(client, data, data.table, after, filters, count)
    return _by_partition(data, after, filters, count)


def one_row(data: DataSet, ref: tuple[str, str]) -> Row | None:
    """Return the row at a place, or None if it is not there (any more)."""
    kind, text = ref
    if kind == "at":
        partition, offset = _place(data, text)
        found = _by_partition(data, f"{partition}-{offset}", (), 1).rows
        return found[0] if found and found[0].ref == ref else None
    batch = data.by_key([data.parse_key(text)])
    return _row(data, batch, 0, ref) if len(batch) else None


# By key


def _by_key(
    client: Client,
    data: DataSet,
    table: Table,
    after: str | None,
    filters: Sequence[Filter],
    count: int,
) -> Page:
    last = None if after is None else data.parse_key(after)
    keys, end, partial = _keys(client, data, table, last, filters, count)
    page = Page(partial=partial)
    if keys:
        batch = data.by_key(keys)
        assert batch.key is not None
        found = [value_at(data.reader.schema.key, batch.key, i) for i in range(len(batch))]
        page.rows = [_row(data, batch, i, ("key", str(key))) for i, key in enumerate(found)]
    page.following = None if end is None else str(end)
    return page


def _keys(
    client: Client, data: DataSet, table: Table, last: Any, filters: Sequence[Filter], count: int
) -> tuple[list[Any], Any, bool]:
    """Return the keys of a page, after which key the next one begins, and if it ended early."""
    found: list[Any] = []
    stretch, until = _STRETCH, time.monotonic() + _SEARCH_S
    while True:
        bound = _bound(client, data, table, last, stretch) if filters else None
        found += _select(client, table, last, bound, filters, count + 1 - len(found))
        if len(found) > count:
            return found[:count], found[count - 1], False
        if bound is None:
            return found, None, False
        last = bound
        if time.monotonic() > until:
            return found, last, True
        stretch = min(2 * stretch, _LONGEST_STRETCH)


def _bound(client: Client, data: DataSet, table: Table, last: Any, stretch: int) -> Any:
    """Return the key that ends a stretch of rows, or None if it reaches the end."""
    dense = data.reader.own_keys
    if dense is not None:
        bound = (-1 if last is None else last) + stretch
        return None if bound >= dense else bound
    where, params = ("", []) if last is None else (" WHERE _KEY > ?", [last])
    # The name of the table comes from the node's own list, in quotes.
    text = f"SELECT _KEY FROM {table.sql}{where} ORDER BY _KEY LIMIT 1 OFFSET {_STRETCH}"  # nosec B608
    rows = client.sql(text, params, only_query=True).fetchall()
    return rows[0][0] if rows else None


def _select(
    client: Client, table: Table, last: Any, bound: Any, filters: Sequence[Filter], count: int
) -> list[Any]:
    conditions, params = [one.sql(table.columns) for one in filters], [f.value for f in filters]
    if last is not None:
        conditions.append("_KEY > ?")
        params.append(last)
    if bound is not None:
        conditions.append("_KEY <= ?")
        params.append(bound)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # Names are those of the node's own lists, in quotes; values are parameters.
    text = f"SELECT _KEY FROM {table.sql}{where} ORDER BY _KEY LIMIT {count}"  # nosec B608
    return [key for (key,) in client.sql(text, params, only_query=True).fetchall()]


# By partition


def _by_partition(data: DataSet, after: str | None, filters: Sequence[Filter], count: int) -> Page:
    reader, page = data.reader, Page()
    first, offset = (0, 0) if after is None else _place(data, after)
    until = time.monotonic() + _SEARCH_S
    pages = reader.batches(list(range(first, reader.partition_count)))
    with contextlib.closing(pages):
        for item in pages:
            begin = offset if item.unit == 0 else 0
            if item.batch is None or item.first + len(item.batch) <= begin:
                continue
            partition = first + item.unit
            for index in masked(filters, item.batch).tolist():
                at = item.first + index
                if at < begin:
                    continue
                if len(page.rows) == count:
                    page.following = f"{partition}-{at}"
                    return page
                ref = ("at", f"{partition}-{at}")
                page.rows.append(_row(data, item.batch, index, ref))
            if filters and time.monotonic() > until:
                page.following = f"{partition}-{item.first + len(item.batch)}"
                page.partial = True
                return page
    return page


def _place(data: DataSet, text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("-")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 24):
        raise ConfigError(f"{text[:40]!r} is no place of a row", hint="go back to the first page")
    if int(partition) >= data.reader.partition_count:
        raise ConfigError(f"{data.name} has no partition {int(partition)}")
    return int(partition), int(offset)


def _row(data: DataSet, batch: Batch, index: int, ref: tuple[str, str]) -> Row:
    key = None
    if batch.key is not None:
        key = value_at(data.reader.schema.key, batch.key, index)
        key = key.tolist() if isinstance(key, np.ndarray) else key
    return Row(ref, key, record_of(data, batch, index))
