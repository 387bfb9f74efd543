"""Parquet files, which keep every type.

columns -> **Arrow arrays, with the field in their metadata** -> Parquet

The source `parquet` reads the metadata, so a shape, an unsigned number or a UUID comes back as what
it was; others read the columns as what Arrow makes of them.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.export.base import COLUMNS, Format, Sink
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.concat import FIELD_METADATA, bytes_array, fixed_array, list_array, validity
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import BYTES, Batch, Column, Field

__all__ = ["ParquetFormat"]

# Rows are gathered to groups of about this size.
_GROUP_BYTES: Final = 32 << 20


class ParquetFormat(Format):
    """Parquet, one row group for some tens of megabytes."""

    kind = "parquet"
    suffix = ".parquet"

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self._pa = import_pyarrow("Parquet files")
        self.require("parquet", COLUMNS | {Family.ENUM})
        self.schema = self._pa.schema([self._field(field) for field in self.fields])

    def _field(self, field: Field) -> Any:
        pa = self._pa
        metadata = {}
        if family_of(field.type) is not Family.ENUM:  # no source makes these
            metadata[FIELD_METADATA] = json.dumps(field.to_json()).encode()
        empty = _arrow(pa, field, _nothing(field))
        return pa.field(field.name, empty.type, nullable=field.nullable, metadata=metadata)

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer of row groups."""
        return _ParquetSink(self, target.open(name))

    def record_batch(self, batch: Batch) -> Any:
        """Return a batch as Arrow's."""
        arrays = [_arrow(self._pa, field, batch.columns[field.name]) for field in self.fields]
        for field, array in zip(self.fields, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise SchemaError(f"field {field.name}: a null, and it must have none")
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
        """Gather rows to a row group."""
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


def _nothing(field: Field) -> Column:
    empty = np.empty(0, np.int64)
    if field.type is TypeCode.STRING_ARRAY:
        return Column(Column(np.empty(0, np.uint8), empty, empty), empty, empty)
    if field.dtype == BYTES:
        return Column(np.empty(0, np.uint8), empty, empty)
    if field.ragged:
        return Column(np.empty(0, field.dtype), empty, empty)
    return Column(np.empty((0, *(n or 0 for n in field.shape)), field.dtype))


def _arrow(pa: Any, field: Field, column: Column) -> Any:
    """Return a column as an Arrow array."""
    if field.type is TypeCode.STRING_ARRAY:
        texts, offsets = column.compact()
        assert isinstance(texts, Column)
        return list_array(pa, bytes_array(pa, texts, pa.large_string()), offsets, column.valid)
    if field.dtype == BYTES:
        return bytes_array(pa, column, pa.large_binary() if field.is_blob else pa.large_string())
    if field.ragged:
        numbers, offsets = column.compact()
        assert isinstance(numbers, np.ndarray)
        return list_array(pa, pa.array(numbers.reshape(-1)), offsets, column.valid)
    assert isinstance(column.values, np.ndarray)
    if field.shape and field.dtype == np.uint8:
        # Parquet has no numbers of one byte: as a list, each would be written as four.
        data = pa.py_buffer(np.ascontiguousarray(column.values).reshape(-1))
        buffers = [validity(pa, column.valid), data]
        return pa.Array.from_buffers(pa.binary(field.size), len(column), buffers)
    if field.shape:
        return fixed_array(pa, column.values, (field.size,), column.valid)
    missing = None if column.valid is None else ~column.valid
    return _as_time(pa, field, pa.array(np.ascontiguousarray(column.values), mask=missing))


def _as_time(pa: Any, field: Field, array: Any) -> Any:
    """Return the integers of a time as one; anything else as it is."""
    if field.type is TypeCode.TIMESTAMP:
        return array.cast(pa.timestamp("ns", "UTC"))
    if field.type is TypeCode.DATE:
        return array.cast(pa.timestamp("ms", "UTC"))
    if field.type is TypeCode.TIME:
        return array.cast(pa.int32()).cast(pa.time32("ms"))
    return array
