"""`Decoder` turns pages into batches of columns, whatever their values are.

frames -> objects -> columns -> **decoder** -> reading

The core lands rows that need not be understood; this one reads all. A test holds that both return
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import described, type_codes
from ignitetf.wire.objects import Bytes, Positions, field_positions, find_rows, headers, unwrap
from ignitetf.wire.schema import Batch, Column, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Decoder"]

_AS_STORED: Final = "schema={'key': 'stored', 'val': None} reads keys as the bytes that are stored"


class Decoder:
    """Decodes the pages of one cache by its schema.

    Args:
        schema: The expected records.
        registry: Known binary types; `decode` raises UnknownType for others.
        fields: Names of the value's fields to decode; None for all.
    """

    def __init__(
        self, schema: Schema, registry: TypeRegistry, fields: Sequence[str] | None = None
    ) -> None:
        names = schema.names if fields is None else tuple(fields)
        self.schema = schema
        self.fields = [schema[name] for name in names]
        self._registry = registry

    def decode(self, page: Page) -> Batch:
        """Decode the records of a page, in its order.

        Returns:
            A batch whose columns are views of the page where possible.

        Raises:
            SchemaError: A record does not match the schema; `record` is its index.
            WireError: The page is damaged.
            UnknownType: The registry lacks a type of the page.
        """
        data = page.data
        key_at, value_at = find_rows(data, page.count)
        key = self._key(data, unwrap(data, key_at))
        if not self.fields:
            return Batch(key, {})
        try:
            if self.schema.type_name is None:
                value = decode_column(data, unwrap(data, value_at), self.fields[0], self._registry)
                return Batch(key, {self.fields[0].name: value})
            return Batch(key, self._fields(data, unwrap(data, value_at)))
        except SchemaError as error:
            # All keys, so that the caller can name the one of the bad record.
            error.fields["keys"] = key
            raise

    def _key(self, data: Bytes, at: Positions) -> Column:
        try:
            return decode_column(data, at, self.schema.key, self._registry)
        except SchemaError as error:
            error.fields["field"] = self.schema.key.name
            raise error.hinted(_AS_STORED) from error

    def _fields(self, data: Bytes, at: Positions) -> dict[str, Column]:
        codes = type_codes(data, at)
        objects = codes == TypeCode.OBJECT
        if (wrong := np.flatnonzero(~objects & (codes != TypeCode.NULL))).size:
            record = int(wrong[0])
            found = described(data, int(at[record]), int(codes[record]), self._registry)
            raise SchemaError(
                f"the value is {found}, the dataset expects a binary object",
                hint="plain values and objects in one cache cannot be read together",
                record=record,
            )
        found_at = headers(data, at[objects])
        places = field_positions(data, found_at, self._registry, [f.name for f in self.fields])
        columns = {}
        for field in self.fields:
            where = np.full(len(at), -1, np.int64)
            where[objects] = places[field.name]
            try:
                columns[field.name] = decode_column(data, where, field, self._registry)
            except SchemaError as error:
                # The cause may be deeper inside, but only the whole field can be left out.
                error.fields["field"] = field.name
                raise
        return columns
