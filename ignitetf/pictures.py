"""Opens encoded images, and makes viewable images from values of a data set.

bytes or array of pixels -> **image** -> load, preview, web page, notebooks

No other module opens images. The size is read from the header before any pixel is decoded.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

__all__ = [
    "PNG_SIGNATURE",
    "LargePicture",
    "PictureError",
    "in_colours",
    "is_turned",
    "open_picture",
    "orientation",
    "picture_of",
    "picture_suffixes",
]

PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
# Pillow runs an external program for these.
_REFUSED_FORMATS = frozenset({"EPS"})
# Formats recognised by their first bytes, so that Pillow does not try every decoder in turn.
_SIGNATURES = ((PNG_SIGNATURE, ("PNG",)), (b"\xff\xd8\xff", ("JPEG",)))
_ORIENTATION: Final = 0x0112  # the tag of EXIF
# The first bytes of EXIF in JPEG, PNG and WebP; TIFF stores the tags of EXIF directly.
_EXIF: Final = (b"Exif\0\0", b"eXIf", b"EXIF", b"II*\0", b"MM\0*")
# In a JPEG, EXIF is in one of the first segments, of at most this size each; in a WebP at the end.
_EXIF_WITHIN: Final = 128 << 10
_MAX_PIXELS: Final = 150_000_000  # of an image for people
# Grey pixels below this are a mask, classes, or levels of another scale (the digits of scikit-learn
# have 17): they would all be black.
_FEW_LEVELS: Final = 32


class PictureError(ValueError):
    """An image that cannot be used; the text is the reason."""


class LargePicture(Exception):
    """The image is too large to be decoded in this thread; raised by callers of `open_picture`."""


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _REFUSED_FORMATS))


def _formats_of(data: bytes) -> tuple[str, ...]:
    for signature, formats in _SIGNATURES:
        if data.startswith(signature):
            return formats
    return _formats()


@functools.cache
def picture_suffixes() -> frozenset[str]:
    """Return the suffixes (lower case, with the dot) of files recognised as images."""
    formats = set(_formats())
    return frozenset(s for s, f in Image.registered_extensions().items() if f in formats)


def is_turned(data: bytes) -> bool:
    """Return whether the EXIF of an encoded image turns or mirrors it."""
    return orientation(data) != 1


def orientation(data: bytes) -> int:
    """Return the orientation in an image's EXIF, from 1 to 8; 1 is upright."""
    ends = data[:_EXIF_WITHIN] + data[-_EXIF_WITHIN:]
    if not any(mark in ends for mark in _EXIF):
        return 1
    try:
        with _opened(data) as image:
            return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # the image was checked before; damaged EXIF is ignored
        return 1


def _opened(data: bytes) -> Image.Image:
    """Open an image by its header; all other functions open images through this one."""
    return Image.open(io.BytesIO(data), formats=_formats_of(data))


@contextlib.contextmanager
def open_picture(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image and read its header; no external program is run.

    Raises:
        PictureError: The image is damaged or refused, also while the body of `with` decodes it.
    """
    if not data:
        raise PictureError("empty file")
    try:
        with _opened(data) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise PictureError(
                    f"{width} x {height} pixels, the limit is {max_pixels:,} (max_pixels)"
                )
            yield image
    except (PictureError, LargePicture):
        raise
    except Exception as error:  # decoders raise many kinds of errors on damaged data
        raise PictureError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    text = re.sub(r"<_io\.BytesIO object at [^>]*>", "the file", " ".join(str(error).split()))
    return f"damaged image: {text or type(error).__name__}"[:200]


def in_colours(image: Image.Image, mode: str) -> Image.Image:
    """Convert an 8-bit image to another mode; transparent pixels keep their own colours."""
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns about other conversions
    return image if image.mode == mode else image.convert(mode)


def picture_of(value: Any) -> Image.Image | None:
    """Return the image of a value, upright and in 8 bits; None if it is not an image."""
    if isinstance(value, bytes):
        try:
            with open_picture(value, _MAX_PIXELS) as image:
                image.load()
                ImageOps.exif_transpose(image, in_place=True)
                if image.mode[0] in "IF":  # 16 or 32 bits
                    return _stretched(np.asarray(image))
                return in_colours(image, "RGB")
        except PictureError:
            return None
    return _picture_of_array(value) if isinstance(value, np.ndarray) else None


def _picture_of_array(value: NDArray[Any]) -> Image.Image | None:
    """Return the RGB image of an array; None if the array does not have the shape of an image.

    Args:
        value: uint8 [height, width], [height, width, 1], [.., 3] or [.., 4], or uint16 of one
            channel.
    """
    if value.dtype not in (np.uint8, np.uint16) or not value.size:
        return None
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    if value.ndim == 2 and (value.dtype == np.uint16 or value.max() < _FEW_LEVELS):
        return _stretched(value)
    if value.dtype == np.uint16:
        return None
    if value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4)):
        return Image.fromarray(np.ascontiguousarray(value)).convert("RGB")
    return None


def _stretched(values: NDArray[Any]) -> Image.Image:
    """Return an RGB image whose smallest value is black and whose largest is white."""
    shown = np.nan_to_num(values.astype(np.float64))
    low, high = float(shown.min()), float(shown.max())
    grey = (shown - low) * (255 / (high - low)) if high > low else np.zeros_like(shown)
    return Image.fromarray(np.rint(grey).astype(np.uint8)).convert("RGB")
