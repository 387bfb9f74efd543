"""Browse a data set or another cache: pages of rows, filters, single rows and their pictures.

name -> **View** -> pages of rows

Rows are read by key if the node has an index of the keys, otherwise by partition. Every page costs
the same, wherever it begins. If filters exclude most rows, the search scans a range of keys or
partitions and stops after a fraction of a second. The next page continues from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError, KeyNotFound
from ignitetf.explore.filters import Filter, masked, parse_filters
from ignitetf.net.client import Client
from ignitetf.pictures import picture_of
from ignitetf.read.access import Access
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.records import value_at
from ignitetf.read.selection import Table, find_selection
from ignitetf.tables.catalog import Manifest, read_manifest
from ignitetf.tables.describe import data_name
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import BYTES, Field

__all__ = ["Page", "Row", "View", "open_view", "version_of"]

# Time that a cache without a manifest is assumed to be unchanged.
_UNVERSIONED_S: Final = 10.0
_LABEL: Final = "LABEL"
_BOXES: Final = ("WIDTH", "HEIGHT", "BOXES")
_PAGE_ROWS: Final = 50
_FEWEST_ROWS: Final = 6
_PAGE_BYTES: Final = 8 << 20
_SEARCH_S: Final = 0.12
# Rows that one statement scans, at first and at most.
_STRETCH: Final = 20_000
_LONGEST_STRETCH: Final = 160_000


@dataclass(frozen=True)
class Row:
    """A row of a page.

    Attributes:
        ref: Its position, as used in an address: `key=...` or `at=...`.
        key: Its key, readable.
        values: Its fields.
    """

    ref: tuple[str, str]
    key: Any
    values: dict[str, Any]


@dataclass
class Page:
    """Some rows, and where the next page begins.

    Attributes:
        rows: The rows.
        following: Start of the next page; None at the end.
        partial: True if the search ended early, so that there may be more before `following`.
    """

    rows: list[Row] = field(default_factory=list)
    following: str | None = None
    partial: bool = False


@dataclass(frozen=True)
class View:
    """An open data set; see `open_view`.

    Attributes:
        name: Its name.
        version: Changes whenever the data set changes; identifies cached results.
        reader: Reads it by partitions.
        access: Reads it by key; None if rows have no key of their own that an address can contain.
        table: The SQL table with all of its rows; None if it has none.
        picture: The field with images; None if it has none.
    """

    name: str
    version: tuple[Any, ...]
    reader: CacheReader
    access: Access | None
    table: Table | None
    picture: str | None

    @property
    def manifest(self) -> Manifest | None:
        """The manifest at the time the view was opened."""
        return self.reader.manifest

    @property
    def cache(self) -> str:
        """The cache that holds it."""
        return self.reader.cache

    @property
    def partition_count(self) -> int:
        """Number of partitions of the cache."""
        return self.reader.partition_count

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a row."""
        return self.reader.schema.fields

    @property
    def key_fields(self) -> tuple[Field, ...]:
        """The fields of its key, or the key itself."""
        key = self.reader.schema.key
        return key.fields or (key,)

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons why fields cannot be read, by field name."""
        return {name: error.message for name, error in self.reader.left_out.items()}

    @property
    def numbered(self) -> int | None:
        """Number of keys, if they are 0, 1, 2 ... and rows can be read by key."""
        return None if self.access is None else self.reader.own_keys

    @property
    def by_number(self) -> bool:
        """True if rows are in the order of their keys, which are whole numbers."""
        return self.table is not None and self.reader.schema.key.type in INTEGERS

    @property
    def rows(self) -> int:
        """Number of rows when it was opened."""
        return self.reader.contents.rows

    @property
    def row_bytes(self) -> float:
        """Approximate size of a row in bytes."""
        return max(1.0, self.reader.entry_bytes)

    @property
    def label(self) -> str | None:
        """The field with the class of an image or row."""
        names = self.reader.schema.names
        return _LABEL if _LABEL in names and not self.reader.schema[_LABEL].shape else None

    @property
    def pixels(self) -> bool:
        """True if images are stored as pixels: small ones, whose pixels are shown as squares."""
        return self.picture is not None and self.reader.schema[self.picture].dtype != BYTES

    @property
    def has_boxes(self) -> bool:
        """True if boxes can be drawn over the images, which must be stored as image files."""
        schema = self.reader.schema
        if self.picture is None or not set(_BOXES) <= set(schema.names):
            return False
        return schema[self.picture].dtype == BYTES and schema["BOXES"].shape == (None, 4)

    def class_name(self, label: Any) -> str:
        """Return the name of a class; its number if it has no name."""
        names = () if self.manifest is None else self.manifest.class_names
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(names):
            return names[label]
        return str(label)

    def parse_key(self, text: str) -> int | str:
        """Return the key written in an address.

        Raises:
            KeyNotFound: The text cannot be a key of this data set.
        """
        if self.reader.schema.key.type is TypeCode.STRING:
            return text
        try:
            return int(text)
        except ValueError:
            raise KeyNotFound(
                f"{self.name}: no row with key {text[:40]!r}", hint="keys are whole numbers here"
            ) from None

    def by_key(self, keys: list[Any]) -> Batch:
        """Return rows by their keys; removed rows are left out."""
        if self.access is None:
            raise ConfigError(f"{self.name}: rows cannot be read by key")
        return self.access.by_key(keys, "skip")

    def filters(self, texts: Sequence[str]) -> tuple[Filter, ...]:
        """Return the conditions in texts such as `LABEL:eq:3`; see `explore.filters`."""
        return parse_filters(self.reader.schema, texts)

    def page_rows(self, most: int = _PAGE_ROWS, least: int = _FEWEST_ROWS) -> int:
        """Return the number of rows of a page: `least` to `most`, limited to about 8 MB."""
        return int(max(least, min(most, _PAGE_BYTES / self.row_bytes)))

    def page(
        self,
        client: Client,
        after: str | None = None,
        filters: Sequence[Filter] = (),
        count: int = _PAGE_ROWS,
    ) -> Page:
        """Return a page of rows.

        Args:
            client: The connection for fetching keys by SQL.
            after: Start of the page: `following` of the previous page, or None for the first
                page.
            filters: Conditions that all rows of the page fulfil.
            count: Most rows of the page.

        Raises:
            KeyNotFound: `after` is not a key of this data set.
            ConfigError: `after` is not a valid position, or a filter does not fit the table.
        """
        if self.table is not None:
            return _by_key(client, self, self.table, after, filters, count)
        return _by_partition(self, after, filters, count)

    def row(self, ref: tuple[str, str]) -> Row | None:
        """Return the row at a `Row.ref`, or None if it is not there (any more)."""
        kind, text = ref
        if kind == "at":
            partition, offset = _place(self, text)
            found = _by_partition(self, f"{partition}-{offset}", (), 1).rows
            return found[0] if found and found[0].ref == ref else None
        batch = self.by_key([self.parse_key(text)])
        return _row(self, batch, 0, ref) if len(batch) else None


def version_of(client: Client, name: str) -> tuple[Any, ...]:
    """Return a version that changes with the data set; its first part is the cache's name.

    Raises:
        CacheNotFound: No data set, cache or table has this name.
        ConfigError: It is empty, and has no manifest; or several tables have this name.
    """
    manifest = read_manifest(client, name)
    if manifest is None and not client.cache_exists(name):
        name = data_name(client, name).name
        manifest = read_manifest(client, name)
    if manifest is None:
        if client.cache_size(name) == 0:
            raise ConfigError(f"cache {name!r} has no entries", hint="load rows into it first")
        return name, int(time.monotonic() / _UNVERSIONED_S)
    version = (name, manifest.version, manifest.options.load, manifest.created)
    return *version, *(division.digest for division in manifest.splits)


def open_view(client: Client, name: str) -> View:
    """Open a data set for browsing.

    Args:
        client: The connection, which the view keeps using; several threads may use the view.
        name: Name of a data set, a cache or a table.

    Raises:
        CacheNotFound: There is none.
        ConfigError: It is empty, and has no manifest; or several tables have this name.
        SchemaError: It cannot be read.
    """
    version = version_of(client, name)
    options = ReadOptions(raw_nulls=True, skip_unreadable=True, on_change="ignore")
    reader = CacheReader(client, version[0], options)
    key = reader.schema.key.type
    keyed = not reader.is_blocks and (key in INTEGERS or key is TypeCode.STRING)
    access, table = Access(reader) if keyed else None, None
    if keyed:
        data_set = None if reader.manifest is None else reader.manifest.name
        with contextlib.suppress(IgniteTFError):
            table = find_selection(client, reader.cache, options, data_set).table
    return View(version[0], version, reader, access, table, _picture_field(reader))


def _record(data: View, batch: Batch, index: int) -> dict[str, Any]:
    """Return one row as plain values, without its key."""
    fields = data.reader.schema.fields
    return {f.name: _shaped(f, value_at(f, batch.columns[f.name], index)) for f in fields}


def _shaped(field: Field, value: Any) -> Any:
    """Return an array of varying length, reshaped to its other dimensions."""
    if field.shape[:1] != (None,) or None in field.shape[1:] or not isinstance(value, np.ndarray):
        return value
    return value.reshape(-1, *field.shape[1:])


def _picture_field(reader: CacheReader) -> str | None:
    """Return the first field whose first value is an image."""
    candidates = [f for f in reader.schema.fields if _may_be_picture(f)]
    if not candidates:
        return None
    pages = reader.batches(list(range(reader.partition_count)))
    with contextlib.closing(pages):
        batch = next((item.batch for item in pages if item.batch is not None), None)
    if batch is None:
        return None
    for one in candidates:
        if picture_of(value_at(one, batch.columns[one.name], 0)) is not None:
            return one.name
    return None


def _may_be_picture(field: Field) -> bool:
    if field.type is TypeCode.BYTE_ARRAY and field.dtype == BYTES:
        return True
    return field.dtype.name == "uint8" and len(field.shape) in (2, 3)


# By key


def _by_key(
    client: Client,
    data: View,
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
    client: Client, data: View, table: Table, last: Any, filters: Sequence[Filter], count: int
) -> tuple[list[Any], Any, bool]:
    """Return a page's keys, the key to continue after (None at the end), and if time ran out."""
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


def _bound(client: Client, data: View, table: Table, last: Any, stretch: int) -> Any:
    """Return the last key of a range of rows, or None if the range reaches the end."""
    dense = data.reader.own_keys
    if dense is not None:
        bound = (-1 if last is None else last) + stretch
        return None if bound >= dense else bound
    where, params = ("", []) if last is None else (" WHERE _KEY > ?", [last])
    # The table's name is from the node's own list, in quotes.
    text = f"SELECT _KEY FROM {table.sql}{where} ORDER BY _KEY LIMIT 1 OFFSET {stretch}"  # nosec B608
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


def _by_partition(data: View, after: str | None, filters: Sequence[Filter], count: int) -> Page:
    reader, page = data.reader, Page()
    first, offset = (0, 0) if after is None else _place(data, after)
    until = time.monotonic() + _SEARCH_S
    pages = reader.batches(list(range(first, reader.partition_count)))
    seen = 0  # rows of the partition so far
    with contextlib.closing(pages):
        for item in pages:
            begin = offset if item.unit == 0 else 0
            before, seen = seen, seen + item.count
            if item.batch is None:
                seen = 0
                continue
            if seen <= begin:
                continue
            partition = first + item.unit
            for index in masked(filters, item.batch).tolist():
                at = before + index
                if at < begin:
                    continue
                if len(page.rows) == count:
                    page.following = f"{partition}-{at}"
                    return page
                ref = ("at", f"{partition}-{at}")
                page.rows.append(_row(data, item.batch, index, ref))
            if filters and time.monotonic() > until:
                page.following = f"{partition}-{seen}"
                page.partial = True
                return page
    return page


def _place(data: View, text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("-")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 24):
        raise ConfigError(
            f"{text[:40]!r} is not a position of a row", hint="go back to the first page"
        )
    if int(partition) >= data.reader.partition_count:
        raise ConfigError(f"{data.name} has no partition {int(partition)}")
    return int(partition), int(offset)


def _row(data: View, batch: Batch, index: int, ref: tuple[str, str]) -> Row:
    key = None
    if batch.key is not None:
        key = value_at(data.reader.schema.key, batch.key, index)
        key = key.tolist() if isinstance(key, np.ndarray) else key
    return Row(ref, key, _record(data, batch, index))
