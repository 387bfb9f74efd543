"""Finds the image field of a data set, and encodes its images as files.

columns -> **image files** -> folder, webdataset
"""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
from PIL import Image

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Field

__all__ = ["image_field", "image_file", "is_pixels", "suffix_of"]

_SIGNATURES: Final = (
    (b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"BM", ".bmp"),
    (b"II*\0", ".tif"), (b"MM\0*", ".tif"),
)  # fmt: skip
_CHANNELS: Final = (1, 3, 4)


def image_field(name: str, fields: tuple[Field, ...]) -> Field:
    """Return the field with the images: IMAGE, or the only field that can hold images.

    Raises:
        SchemaError: No field can hold images, or several can.
    """
    found = [f for f in fields if f.type is TypeCode.BYTE_ARRAY and f.dtype == BYTES]
    found += [f for f in fields if is_pixels(f)]
    named = [f for f in found if f.name == "IMAGE"] or found
    if len(named) == 1:
        return named[0]
    several = f"{', '.join(f.name for f in named)} could be the images"
    raise SchemaError(
        f"{name}: {several if named else 'no field contains images'}",
        hint="choose one with --fields" if named else "export to parquet, tfrecord or webdataset",
    )


def is_pixels(field: Field) -> bool:
    """Return True if the values are pixels that PNG can hold: 8 bits, or 16 bits of grey."""
    shape = field.shape
    if field.ragged or len(shape) != 3 or shape[2] not in _CHANNELS:
        return False
    return field.dtype == np.uint8 or (field.dtype == np.uint16 and shape[2] == 1)


def image_file(value: Any) -> bytes:
    """Return the bytes of an image file: the stored file, or pixels encoded as PNG."""
    if isinstance(value, bytes):
        return value
    pixels = value[:, :, 0] if value.shape[2] == 1 else value
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()


def suffix_of(data: bytes) -> str:
    """Return the suffix of an image file, found by its first bytes."""
    for signature, suffix in _SIGNATURES:
        if data.startswith(signature):
            return suffix
    return ".webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ".bin"
