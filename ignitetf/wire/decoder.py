"""`Decoder`: pages in, batches of columns out; the fixed-stride path first, else the general one.

frames -> objects -> columns -> **decoder** -> tensors

Both paths give equal batches on every page that the first accepts; a test holds that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.fields import field_positions, headers
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import described, type_codes
from ignitetf.wire.objects import Bytes, Positions, find_rows, unwrap
from ignitetf.wire.schema import Batch, Column, Schema
from ignitetf.wire.strided import FixedStride
from ignitetf.wire.types import TypeRegistry

__all__ = ["Decoder"]


class Decoder:
    """Decodes the pages of one cache by its schema.

    Args:
        schema: What the records are expected to be.
        registry: Binary types; `decode` raises UnknownType for one that it lacks.
        fields: Names of the value's fields to decode, None for all.
    """

    def __init__(
        self, schema: Schema, registry: TypeRegistry, fields: Sequence[str] | None = None
    ) -> None:
        names = schema.names if fields is None else tuple(fields)
        self.schema = schema
        self.fields = [schema[name] for name in names]
        self._registry = registry
        self._stride: FixedStride | None = None
        self._strided_pages = 0
        self._general_pages = 0

    @property
    def pages(self) -> tuple[int, int]:
        """Pages decoded by the fixed-stride and by the general path."""
        return self._strided_pages, self._general_pages

    def decode(self, page: Page) -> Batch:
        """The records of a page, in its order.

        Returns:
            A batch whose columns are views of the page where its form allows.

        Raises:
            SchemaError: A record is not what the schema says; `record` is its index.
            WireError: The page is damaged.
            UnknownType: The registry lacks a type of the page.
        """
        if (batch := self._strided(page)) is not None:
            self._strided_pages += 1
            return batch
        self._general_pages += 1
        return self._general(page)

    def _strided(self, page: Page) -> Batch | None:
        if self._stride is not None:
            if (batch := self._stride.read(page.data, page.count)) is not None:
                return batch
            if self._general_pages > self._strided_pages:
                return None
        self._stride = FixedStride.learn(
            page.data, page.count, self.schema, self.fields, self._registry
        )
        return None if self._stride is None else self._stride.read(page.data, page.count)

    def _general(self, page: Page) -> Batch:
        data = page.data
        key_at, value_at = find_rows(data, page.count)
        key = decode_column(data, unwrap(data, key_at), self.schema.key, self._registry)
        try:
            if self.schema.type_name is None:
                value = decode_column(data, unwrap(data, value_at), self.fields[0], self._registry)
                return Batch(key, {self.fields[0].name: value})
            return Batch(key, self._fields(data, unwrap(data, value_at)))
        except SchemaError as error:
            error.fields["keys"] = key  # of all records; whoever names the place takes its one
            raise

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
                # What is wrong may be inside of it; only the field itself can be left out.
                error.fields["field"] = field.name
                raise
        return columns
