"""Metadata of Hugging Face's `datasets` in its Parquet and Arrow files.

Arrow schema -> **images, names of classes** -> ArrowTable

An image (or a sound) is stored as a struct of `bytes` and `path`. It becomes two columns: the file
as a blob, and its path as a text. The names of classes are in the metadata of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.load.sources.base import ordered_map
from ignitetf.load.sources.pictures import check_picture
from ignitetf.pictures import PictureError, open_picture
from ignitetf.wire.arrow import FIELD_METADATA
from ignitetf.wire.schema import BYTES, Field, Shape

__all__ = ["Features"]

_METADATA: Final = b"huggingface"
_PATH: Final = "_path"


class Features:
    """Metadata about the columns of a file.

    Attributes:
        schema: The schema with files in place of structs of bytes and path.
        pictures: Positions of the columns of images in this schema.
    """

    def __init__(self, schema: Any) -> None:
        """Read the metadata of a schema."""
        pa = import_pyarrow("tables")
        self._noted = _noted(schema.metadata)
        self._files = {i for i, field in enumerate(schema) if _is_file(pa, field.type)}
        fields: list[Any] = []
        self.pictures: set[int] = set()
        # Positions of the contents of files; each is followed by their paths.
        self._contents: set[int] = set()
        # By position, the columns that `export --format huggingface` converted: their original type,
        # and the shape of its values.
        self._exported: dict[int, tuple[Any, Shape]] = {}
        for i, field in enumerate(schema):
            note = self._noted.get(field.name, {}).get("_type")
            content = field.type.field("bytes").with_name(field.name) if i in self._files else field
            before = _before_export(pa, content) if note in ("Image", "ClassLabel") else None
            if note == "Image" and (before is None or before[0] == content.type):
                self.pictures.add(len(fields))
            if before is not None:
                self._exported[i] = before
                fields.append(content.with_type(before[0]))
                continue
            if i in self._files:
                self._contents.add(len(fields))
            fields.append(content)
            if i in self._files:
                fields.append(field.type.field("path").with_name(field.name + _PATH))
        self.schema = pa.schema(fields)

    def flat(self, batch: Any, chosen: Iterable[int]) -> tuple[Any, dict[int, str]]:
        """Return a record batch with the columns of `schema`, and rows with damaged files.

        Args:
            batch: The record batch of the file.
            chosen: Positions in `schema` of the columns to load; others may be nulls.
        """
        wrong: dict[int, str] = {}
        if not self._files and not self._exported:
            return batch, wrong
        pa = import_pyarrow("tables")
        wanted = set(chosen)
        arrays: list[Any] = []
        for i, array in enumerate(batch.columns):
            found = [array]
            if i in self._files:
                parts = dict(zip((f.name for f in array.type), array.flatten(), strict=True))
                found = [parts["bytes"], parts["path"]]
            if i in self._exported:
                kind, shape = self._exported[i]
                if len(arrays) in wanted:
                    found = [_as_before(pa, found[0], kind, shape, wrong)]
                else:
                    found = [pa.nulls(len(batch), kind)]
            arrays += found
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), wrong

    def damaged(self, flat: Any, chosen: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Yield rows whose images or files cannot be used, with the reason.

        Args:
            flat: Result of `flat`.
            chosen: Positions of the columns to look at.
        """
        for i in chosen:
            name, column = flat.schema.names[i], flat.column(i)
            reasons: Iterable[str] = ()
            if i in self.pictures:
                reasons = ordered_map(_damage, column)
            yield from ((at, f"column {name}: {why}") for at, why in enumerate(reasons) if why)
            if i in self._contents:
                yield from _outside(name, column, flat.column(i + 1))

    def class_names(self, column: str | None) -> list[str] | None:
        """Return the names of the classes of a column, in the order of their numbers."""
        names = self._noted.get(column or "", {}).get("names")
        return [str(name) for name in names] if isinstance(names, list) else None


def _noted(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Return the notes about each column; empty if there are none, or if they are damaged."""
    try:
        found = json.loads((metadata or {})[_METADATA])["info"]["features"]
        return {name: note for name, note in found.items() if isinstance(note, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _before_export(pa: Any, field: Any) -> tuple[Any, Shape] | None:
    """Return type and shape of a column before an export of ours; None if another tool made it."""
    try:
        noted = Field.from_json(json.loads((field.metadata or {})[FIELD_METADATA]))
    except (KeyError, ValueError, SchemaError):
        return None
    if noted.dtype == BYTES:
        return field.type, ()
    kind = pa.from_numpy_dtype(noted.dtype)
    if noted.shape:
        kind = pa.binary(noted.size) if pa.types.is_uint8(kind) else pa.list_(kind, noted.size)
    return kind, noted.shape


def _as_before(pa: Any, array: Any, kind: Any, shape: Shape, wrong: dict[int, str]) -> Any:
    """Return a column as it was before an export of ours: pixels of PNG files, smaller integers.

    Args:
        pa: pyarrow.
        array: The column, files in place of structs.
        kind: Its type before the export.
        shape: The shape of its values then.
        wrong: Gets the rows whose file is damaged, or not of these pixels; their value is a null.
    """
    is_bytes = pa.types.is_fixed_size_binary(kind)
    if not is_bytes and not pa.types.is_fixed_size_list(kind):
        return array.cast(kind)
    dtype = np.dtype(np.uint8 if is_bytes else kind.value_type.to_pandas_dtype())
    values: list[Any] = []
    for at, file in enumerate(array.to_pylist()):
        values.append(None)
        if file is None:
            continue
        try:
            pixels = _pixels(file, shape, dtype)
        except PictureError as error:
            wrong[at] = str(error)
            continue
        values[at] = pixels.tobytes() if is_bytes else pixels.ravel()
    return pa.array(values, kind)


def _pixels(file: bytes, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the pixels of an image.

    Raises:
        PictureError: It is damaged, or has other pixels than its column.
    """
    height, width = check_picture(file)
    with open_picture(file, height * width) as image:
        found = np.asarray(image)
    pixels = found.astype(dtype)
    expected = shape[:2] if shape[2:] == (1,) else shape
    if found.shape != expected or (pixels != found).any():
        raise PictureError(
            f"its pixels are {found.dtype} {list(found.shape)}, those of its column {dtype}"
            f" {list(expected)}"
        )
    return pixels


def _is_file(pa: Any, kind: Any) -> bool:
    """True if a type is a struct of the bytes of a file and its path."""
    types = pa.types
    if not types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    content, path = kind.field("bytes").type, kind.field("path").type
    is_bytes = types.is_binary(content) or types.is_large_binary(content)
    return bool(is_bytes and (types.is_string(path) or types.is_large_string(path)))


def _outside(name: str, content: Any, path: Any) -> Iterator[tuple[int, str]]:
    """Yield the rows that have the path of a file only."""
    for at in np.flatnonzero(content.is_null().to_numpy(zero_copy_only=False)).tolist():
        if (file_path := path[at].as_py()) is not None:
            yield (
                at,
                f"column {name}: the file {file_path[:80]!r} is missing from the table, which only has its path",
            )


def _damage(value: Any) -> str:
    """Return the fault of an image in an Arrow scalar; empty for a good image or a null."""
    data = value.as_py()
    if data is None:
        return ""
    if not isinstance(data, bytes):
        return f"{type(data).__name__} instead of the bytes of an image"
    try:
        check_picture(data)
    except PictureError as error:
        return str(error)
    return ""
