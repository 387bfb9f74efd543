"""`DataSet`: a data set or another cache, open for the pages that show it.

cluster -> **data_set** -> paging, sample, views
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError, KeyNotFound
from ignitetf.explore.head import value_at
from ignitetf.explore.preview import picture_of
from ignitetf.net.client import Client
from ignitetf.read.access import Access
from ignitetf.read.conditions import Table
from ignitetf.read.options import ReadOptions
from ignitetf.read.queries import find_selection
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import Manifest, read_manifest
from ignitetf.tables.describe import data_name
from ignitetf.ui.cluster import Cluster
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import BYTES, Batch, Field

__all__ = ["DataSet", "open_data_set", "record_of"]

# How long a cache without a manifest is taken for unchanged.
_UNVERSIONED_S: Final = 10.0
_LABEL: Final = "LABEL"
_BOXES: Final = ("WIDTH", "HEIGHT", "BOXES")


@dataclass(frozen=True)
class DataSet:
    """An open data set.

    Attributes:
        name: Its name.
        version: What changes when it does, for what is kept of it.
        reader: Reads it by partitions.
        access: Reads it by key; None where rows have no key of their own that can be written in an
            address.
        table: Its SQL table; None if it has none with all of its rows.
        picture: The field with images; None if there is none.
    """

    name: str
    version: tuple[Any, ...]
    reader: CacheReader
    access: Access | None
    table: Table | None
    picture: str | None

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest, as it was when it was opened."""
        return self.reader.manifest

    @property
    def rows(self) -> int:
        """Number of rows when it was opened."""
        return self.reader.contents.rows

    @property
    def row_bytes(self) -> float:
        """About the bytes of a row."""
        return max(1.0, self.reader.entry_bytes)

    @property
    def label(self) -> str | None:
        """The field with the class of an image or row."""
        names = self.reader.schema.names
        return _LABEL if _LABEL in names and not self.reader.schema[_LABEL].shape else None

    @property
    def pixels(self) -> bool:
        """Whether images are stored as pixels: few, so that they are shown as squares."""
        return self.picture is not None and self.reader.schema[self.picture].dtype != BYTES

    @property
    def has_boxes(self) -> bool:
        """Whether boxes can be drawn over the images, which are as they were in their files."""
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
        """Return the key that stands in an address.

        Raises:
            KeyNotFound: There can be no such key.
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
        """Return rows by their keys; those that are gone are left out."""
        if self.access is None:
            raise ConfigError(f"{self.name}: rows cannot be read by key")
        return self.access.by_key(keys, "skip")


def open_data_set(cluster: Cluster, name: str) -> DataSet:
    """Return a data set, opened before if it has not changed since.

    Args:
        cluster: The cluster.
        name: Name of a data set, a cache or a table.

    Raises:
        CacheNotFound: There is none.
        ConfigError: It is empty, and has no manifest; or several tables have this name.
        SchemaError: It cannot be read.
    """
    with cluster.client() as client:
        manifest = read_manifest(client, name)
        if manifest is None and not client.cache_exists(name):
            name = data_name(client, name).name
            manifest = read_manifest(client, name)
        if manifest is None:
            if client.cache_size(name) == 0:
                raise ConfigError(
                    f"cache {name!r} has no entries", hint="load rows into it, and look again"
                )
            version: tuple[Any, ...] = (name, int(time.monotonic() / _UNVERSIONED_S))
        else:
            version = (name, manifest.version, manifest.options.load, manifest.created)
            version += tuple(division.digest for division in manifest.splits)
        return cluster.opened.get(version, lambda: _open(cluster.reading, client, name, version))  # type: ignore[no-any-return]


def record_of(data: DataSet, batch: Batch, index: int) -> dict[str, Any]:
    """Return one row as plain values, without its key."""
    fields = data.reader.schema.fields
    return {f.name: _shaped(f, value_at(f, batch.columns[f.name], index)) for f in fields}


def _shaped(field: Field, value: Any) -> Any:
    """Return an array whose length varies with its other dimensions."""
    if field.shape[:1] != (None,) or None in field.shape[1:] or not isinstance(value, np.ndarray):
        return value
    return value.reshape(-1, *field.shape[1:])


def _open(reading: Client, client: Client, name: str, version: tuple[Any, ...]) -> DataSet:
    options = ReadOptions(raw_nulls=True, skip_unreadable=True, on_change="ignore")
    reader = CacheReader(reading, name, options)
    key = reader.schema.key.type
    keyed = not reader.is_blocks and (key in INTEGERS or key is TypeCode.STRING)
    access, table = Access(reader) if keyed else None, None
    if keyed:
        data_set = None if reader.manifest is None else reader.manifest.name
        with contextlib.suppress(IgniteTFError):
            table = find_selection(client, reader.cache, options, data_set).table
    return DataSet(name, version, reader, access, table, _picture_field(reader))


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
    for field in candidates:
        if picture_of(value_at(field, batch.columns[field.name], 0)) is not None:
            return field.name
    return None


def _may_be_picture(field: Field) -> bool:
    if field.type is TypeCode.BYTE_ARRAY and field.dtype == BYTES:
        return True
    return field.dtype.name == "uint8" and len(field.shape) in (2, 3)
