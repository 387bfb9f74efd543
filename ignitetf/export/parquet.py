"""Parquet files, which keep every type.

columns -> **Arrow arrays, with the field in their metadata** -> Parquet

The source `parquet` reads the metadata, so a shape, an unsigned number or a UUID comes back as what
it was; others read the columns as what Arrow makes of them.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.export.base import Format, Sink, cannot_hold
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.load.sources.arrow import FIELD_METADATA, import_pyarrow
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import BYTES, Batch, Column, Field

__all__ = ["ParquetFormat"]

_HELD: Final = frozenset(
    {
        Family.NUMBER,
        Family.MILLISECONDS,
        Family.TIMESTAMP,
        Family.UUID,
        Family.ENUM,
        Family.TEXT,
        Family.DECIMAL,
        Family.ARRAY,
    }
)
# Rows are gathered to groups of about this size.
_GROUP_BYTES: Final = 32 << 20


class ParquetFormat(Format):
    """Parquet, one row group for some tens of megabytes."""

    kind = "parquet"
    suffix = ".parquet"

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self._pa = import_pyarrow("Parquet files")
        for field in self.fields:
            if family_of(field.type) not in _HELD and field.type is not TypeCode.STRING_ARRAY:
                raise cannot_hold("parquet", field)
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

    def options(self) -> list[str]:
        """Return the key column, if there is one."""
        return ["--key", "KEY"] if "KEY" in {f.name for f in self.fields[:1]} else []

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
        large = {f.name for f in form.fields if f.shape or f.type is TypeCode.BYTE_ARRAY}
        blobs = {f.name for f in form.fields if f.type is TypeCode.BYTE_ARRAY and not f.shape}
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
    valid = None if column.valid is None or column.valid.all() else column.valid
    rows = len(column)
    if field.type is TypeCode.STRING_ARRAY:
        return _lists(pa, column, valid, lambda values: _runs(pa, values, None, pa.string()))
    if field.dtype == BYTES:
        kind = pa.large_binary() if field.type is TypeCode.BYTE_ARRAY else pa.large_string()
        return _runs(pa, column, valid, kind)
    if field.ragged:
        return _lists(pa, column, valid, lambda values: pa.array(values.reshape(-1)))
    assert isinstance(column.values, np.ndarray)
    values = np.ascontiguousarray(column.values)
    if field.shape and field.dtype == np.uint8:
        # Parquet has no numbers of one byte: as a list, each would be written as four.
        kind = pa.binary(field.size)
        nulls = rows - int(valid.sum()) if valid is not None else 0
        buffers = [_bits(pa, valid), pa.py_buffer(values.reshape(-1))]
        return pa.Array.from_buffers(kind, rows, buffers, nulls)
    if field.shape:
        inner = pa.array(values.reshape(-1))
        kind = pa.list_(inner.type, values[:1].size if rows else field.size)
        nulls = rows - int(valid.sum()) if valid is not None else 0
        return pa.Array.from_buffers(kind, rows, [_bits(pa, valid)], nulls, children=[inner])
    array = pa.array(values, mask=None if valid is None else ~valid)
    return _as_time(pa, field, array)


def _as_time(pa: Any, field: Field, array: Any) -> Any:
    """Return the integers of a time as one; anything else as it is."""
    if field.type is TypeCode.TIMESTAMP:
        return array.cast(pa.timestamp("ns", "UTC"))
    if field.type is TypeCode.DATE:
        return array.cast(pa.timestamp("ms", "UTC"))
    if field.type is TypeCode.TIME:
        return array.cast(pa.int32()).cast(pa.time32("ms"))
    return array


def _bits(pa: Any, valid: NDArray[np.bool_] | None) -> Any:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _runs(pa: Any, column: Column, valid: NDArray[np.bool_] | None, kind: Any) -> Any:
    values, offsets = column.compact()
    assert isinstance(values, np.ndarray)
    wide = pa.large_binary() if kind == pa.large_binary() else pa.large_string()
    buffers = [_bits(pa, valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(wide, len(column), buffers).cast(kind)


def _lists(pa: Any, column: Column, valid: NDArray[np.bool_] | None, items: Any) -> Any:
    values, offsets = column.compact()
    inner = items(values)
    kind = pa.large_list(inner.type)
    buffers = [_bits(pa, valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(column), buffers, children=[inner])
