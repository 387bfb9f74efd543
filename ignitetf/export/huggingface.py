"""Exports to Parquet files as Hugging Face's `datasets` writes them.

columns -> **images as files, labels with the names of their classes** -> Parquet

`load_dataset("parquet", ...)` shows such images as pictures and such labels as classes. A load of
ours restores the original types.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import numpy as np

from ignitetf.export.base import python_values
from ignitetf.export.images import image_file, is_pixels, suffix_of
from ignitetf.export.parquet import ParquetFormat
from ignitetf.export.rows import ExportRows
from ignitetf.wire.arrow import array_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column
from ignitetf.wire.schema import BYTES, Field

__all__ = ["HuggingFaceFormat"]

_METADATA: Final = b"huggingface"


class HuggingFaceFormat(ParquetFormat):
    """Parquet with the features of Hugging Face in its metadata.

    An image is a struct of the bytes of its file and a path, which is null. Pixels become PNG.
    Labels whose classes have names become int64.
    """

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        pa, names = self._pa, list(rows.class_names)
        self._images = _image_names(rows)
        self._label = next(
            (f.name for f in self.fields if names and f.name == "LABEL" and _is_whole(f)), None
        )
        notes: dict[str, Any] = {name: {"_type": "Image"} for name in self._images}
        if self._label is not None:
            notes[self._label] = {"names": names, "_type": "ClassLabel"}
        fields = [self._noted(field) for field in self.schema]
        metadata = {_METADATA: json.dumps({"info": {"features": notes}}).encode()}
        self.schema = pa.schema(fields, metadata=metadata)

    def _noted(self, field: Any) -> Any:
        """Return the Arrow field for `datasets`, which knows fields that may be null only."""
        pa = self._pa
        if field.name in self._images:
            # The original field is in the metadata of the bytes.
            content = pa.field("bytes", pa.binary(), metadata=field.metadata)
            return pa.field(field.name, pa.struct([content, pa.field("path", pa.string())]))
        if field.name == self._label:
            return field.with_type(pa.int64()).with_nullable(True)
        return field

    def array(self, field: Field, column: Column, kind: Any) -> Any:
        """Return a column as an array; images as structs of bytes and path."""
        pa = self._pa
        if field.name == self._label:
            return super().array(field, column, pa.from_numpy_dtype(field.dtype)).cast(kind)
        if field.name not in self._images:
            return super().array(field, column, kind)
        if field.dtype == BYTES:
            content = array_of(pa, column, pa.large_binary()).cast(pa.binary())
        else:
            files = [None if v is None else image_file(v) for v in python_values(field, column)]
            content = pa.array(files, pa.binary())
        paths = pa.nulls(len(content), pa.string())
        return pa.StructArray.from_arrays(
            [content, paths], fields=list(kind), mask=content.is_null()
        )


def _is_whole(field: Field) -> bool:
    return field.dtype != BYTES and not field.shape and np.issubdtype(field.dtype, np.integer)


def _image_names(rows: ExportRows) -> list[str]:
    """Return the fields of images: pixels, and blobs whose first value is an image file."""
    found = [f.name for f in rows.fields if is_pixels(f)]
    blobs = [
        f for f in rows.fields
        if f.type is TypeCode.BYTE_ARRAY and f.dtype == BYTES and not f.shape
    ]  # fmt: skip
    if not blobs:
        return found
    with contextlib.closing(rows.batches()) as batches:
        first = next(batches, None)
    if first is None:
        return found
    for field in blobs:
        values = python_values(field, first.columns[field.name])
        value = next((value for value in values if value is not None), b"")
        if suffix_of(value) != ".bin":
            found.append(field.name)
    return found
