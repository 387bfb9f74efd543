"""Exports to Parquet files, which keep every type.

columns -> **Arrow arrays, with the field in their metadata** -> Parquet

The source `parquet` reads the metadata, so it restores shapes, unsigned numbers and UUIDs. Other
readers see the Arrow types of the columns.
"""

from __future__ import annotations

from typing import IO, Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.export.base import COLUMNS, Format, Sink
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.wire.arrow import array_of, arrow_field, meant_type
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import BYTES, Field

__all__ = ["ParquetFormat"]

# Approximate size of a row group.
_GROUP_BYTES: Final = 32 << 20


class ParquetFormat(Format):
    """Parquet, with row groups of some tens of megabytes."""

    kind = "parquet"
    suffix = ".parquet"

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self._pa = import_pyarrow("Parquet files")
        self.require("parquet", COLUMNS | {Family.ENUM})
        self.schema = self._pa.schema([self._field(field) for field in self.fields])

    def _field(self, field: Field) -> Any:
        kind = meant_type(self._pa, field, _form(self._pa, field), "UTC")
        if family_of(field.type) is Family.ENUM:  # no source makes these
            return self._pa.field(field.name, kind, nullable=field.nullable)
        return arrow_field(self._pa, field, kind, nullable=field.nullable)

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer that writes row groups."""
        return _ParquetSink(self, target.open(name))

    def array(self, field: Field, column: Column, kind: Any) -> Any:
        """Return the column of a field as an array of the type in the schema."""
        return array_of(self._pa, column, kind)

    def record_batch(self, batch: Batch) -> Any:
        """Return a batch as a record batch of Arrow."""
        columns = [batch.columns[field.name] for field in self.fields]
        kinds = self.schema.types
        arrays = [self.array(*one) for one in zip(self.fields, columns, kinds, strict=True)]
        for field, array in zip(self.fields, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise SchemaError(f"field {field.name}: must not be null")
        return self._pa.record_batch(arrays, schema=self.schema)


class _ParquetSink(Sink):
    def __init__(self, form: ParquetFormat, file: IO[bytes]) -> None:
        from pyarrow import parquet

        self._form, self._file = form, file
        # Neither blobs nor arrays repeat, and image files are compressed already.
        large = {f.name for f in form.fields if f.shape or f.is_blob}
        blobs = {f.name for f in form.fields if f.is_blob}
        plain = [f.name for f in form.fields if f.name not in large]
        self._writer = parquet.ParquetWriter(
            file,
            form.schema,
            compression={f.name: "snappy" if f.name in blobs else "zstd" for f in form.fields},
            use_dictionary=plain,
            write_statistics=plain,
        )
        self._waiting: list[Any] = []
        self._size = 0

    def write(self, batch: Batch) -> None:
        """Add rows to the current row group."""
        self._waiting.append(self._form.record_batch(batch))
        self._size += batch.nbytes
        if self._size >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._form.schema))
        self._waiting, self._size = [], 0

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()
        self._file.close()


def _form(pa: Any, field: Field) -> Any:
    """Return the Arrow type for the values of a field."""
    if field.dtype == BYTES:
        return pa.large_list(pa.large_binary()) if field.shape else pa.large_binary()
    number = pa.from_numpy_dtype(field.dtype)
    if field.ragged:
        return pa.large_list(number)
    if not field.shape:
        return number
    # Parquet has no one-byte numbers: in a list, each would take four bytes.
    return pa.binary(field.size) if field.dtype == np.uint8 else pa.list_(number, field.size)
