"""Reads the rows of a data set in the order of their export.

cache -> reader -> **rows, by ascending key** -> formats

By ascending key, loaded rows have the order of their source. Rows whose keys have no order, and
rows in blocks, are exported partition by partition.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.net.client import Client
from ignitetf.read.access import key_order_of
from ignitetf.read.arguments import chosen_partitions, open_reader, order_of
from ignitetf.read.fields import KEY_AS_STORED
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import WINDOW_BYTES, Position, Shard
from ignitetf.wire.columns import Batch, Column, Runs, Struct
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import Field

__all__ = ["KEY", "ExportRows"]

# Name of the key field, unless the keys are the running numbers of a load.
KEY: Final = "KEY"
_ALONE: Final = Shard(0, 1)
_NESTED: Final = (Family.OBJECT, Family.LIST, Family.MAP)


class ExportRows:
    """The rows to export.

    Attributes:
        name: Name of the cache or data set.
        fields: The fields of each row; keys that are not running numbers are the first field.
        class_names: Names of the values of LABEL, if they have names.
        length: Number of rows; None if it is unknown before reading.
        key_name: Name of the key field; None if there is none, or one field for each part of a key.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        split: str | None = None,
    ) -> None:
        """Open a cache; raises what `open_rows` raises."""
        options = ReadOptions(fields=fields, where=where, split=split, raw_nulls=True)
        reader = open_reader(client, name, options, 1)
        if any(family_of(field.type) in _NESTED for field in reader.schema.key.fields):
            # Such keys do not fit into a column, and a key cannot be left out as a field can.
            reader = open_reader(client, name, replace(options, schema=KEY_AS_STORED), 1)
        self.name = name
        self.class_names = [] if reader.manifest is None else list(reader.manifest.class_names)
        self._rows, ordered = _in_order(reader)
        self.length = self._rows.length
        whole = where is None and split is None
        running = ordered and whole and reader.own_keys is not None
        self._key_fields = () if running else _key_fields(reader)
        self.key_name = KEY if [f.name for f in self._key_fields] == [KEY] else None
        self.fields = (*self._key_fields, *reader.schema.fields)
        if alike := {f.name for f in self._key_fields} & set(reader.schema.names):
            raise SchemaError(
                f"{name}: the key and a field are both called {sorted(alike)[0]}",
                hint="leave the field out with --fields",
            )

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, with key columns if keys are fields; close it to stop early."""
        for batch in self._rows.column_batches():
            key = batch.key
            assert key is not None
            columns = dict(batch.columns)
            self._require_whole_lists(columns)
            if self._key_fields:
                columns |= key.fields if isinstance(key, Struct) else {KEY: key}
            yield Batch(key, columns)

    def _require_whole_lists(self, columns: Mapping[str, Column]) -> None:
        """Raise SchemaError for a null in a list of texts, because no source can read it back."""
        for name, column in columns.items():
            valid = column.items.valid if isinstance(column, Runs) else None
            if valid is not None and not valid.all():
                raise SchemaError(
                    f"{self.name}: field {name} has a null inside a list, which no format holds",
                    hint="leave the field out with --fields, or choose rows with --where",
                    field=name,
                )


def _in_order(reader: CacheReader) -> tuple[EpochRows, bool]:
    """Return all rows, sorted by key if possible, and whether they are sorted."""
    try:
        keys = key_order_of(reader, "keys", None, None, None, _ALONE, WINDOW_BYTES)
        return EpochRows(reader, keys, _ALONE, Position(0)), True
    except ConfigError:
        partitions = chosen_partitions(reader, -1, local=False)
        scan = order_of(reader, partitions, None, None, _ALONE, WINDOW_BYTES)
        return EpochRows(reader, scan, _ALONE, Position(0)), False


def _key_fields(reader: CacheReader) -> tuple[Field, ...]:
    key = reader.schema.key
    return key.fields or (replace(key, name=KEY),)
