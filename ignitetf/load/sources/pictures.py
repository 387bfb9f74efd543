"""Encoded images: checks that they are complete, finds their size, and decodes their pixels.

bytes -> **check or decode** -> uint8 [height, width, channels], or uint16 [height, width, 1]

The size is read from the header before any pixel is unpacked, so a small file with the header of an
enormous image is refused without decoding. Large images are unpacked one at a time, all in one
    thread: the C library keeps the memory that each thread has used.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import MAX_RECORD_BYTES
from ignitetf.load.sources.location import Place
from ignitetf.load.sources.png import PngError, sound_png
from ignitetf.pictures import LargePicture, PictureError, in_colours, open_picture

__all__ = [
    "MAX_PIXELS",
    "Loaded",
    "Recipe",
    "check_channels",
    "check_depth",
    "check_picture",
    "decode_cropped",
    "decode_picture",
    "parse_size",
    "pixel_form",
    "turned_note",
]

MAX_PIXELS = 50_000_000
_DEPTH_HINT = "--depth 8 keeps the upper 8 of 16 bits"
_RESIZE_HINT = "give all images one shape with --resize HEIGHTxWIDTH"
# Images above this size are unpacked by one thread of their own.
_LARGE_PIXELS = 4_000_000
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# A stored image, or None and the reason why it is bad.
Loaded = tuple[bytes | NDArray[Any] | None, str]


T = TypeVar("T")


def _in_image_thread(work: Callable[[bool], T]) -> T:
    """Run work on an image; large images are processed in a thread of their own."""
    try:
        return work(False)
    except LargePicture:
        return _large_images(os.getpid()).submit(work, True).result()


@functools.cache
def _large_images(process: int) -> ThreadPoolExecutor:
    """Return the thread for large images; a forked process needs its own."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"ignitetf-large-{process}")


def turned_note(name: str, hint: str = "") -> str:
    """Return what users should know about an image that EXIF turns."""
    return (
        f"{name} has an EXIF orientation; files are stored unchanged, and decoders such as"
        f" tf.io.decode_jpeg ignore the orientation{hint}"
    )


def parse_size(text: str | tuple[int, int]) -> tuple[int, int]:
    """Parse height and width from `480x640`.

    Raises:
        ConfigError: Not two positive numbers.
    """
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d{1,5})\s*[xX,]\s*(\d{1,5})\s*", text)
        size = (int(match[1]), int(match[2])) if match else (0, 0)
    else:
        size = (int(text[0]), int(text[1]))
    if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
        raise ConfigError(f"image size {text!r}", hint="give HEIGHTxWIDTH, for example 480x640")
    return size


def check_channels(channels: int) -> int:
    """Return the number of channels; raises ConfigError if images cannot be decoded to it."""
    if channels not in _MODES:
        raise ConfigError(f"channels={channels}", hint="1 is grey, 3 is RGB, 4 is RGBA")
    return channels


def check_depth(depth: int, channels: int | None = None) -> int:
    """Return the bits of a pixel; raises ConfigError if the channels do not allow them."""
    if depth not in (8, 16):
        raise ConfigError(f"depth={depth}", hint="pixels have 8 or 16 bits")
    if depth == 16 and channels not in (None, 1):
        raise ConfigError(
            f"depth=16 with channels={channels}",
            hint="only grey pixels can have 16 bits: channels=1",
        )
    return depth


def check_picture(
    data: bytes, max_pixels: int = MAX_PIXELS, *, pixels: bool = True
) -> tuple[int, int]:
    """Return height and width of an image, after checking that it decodes to its end.

    A JPEG is unpacked at an eighth of its size. A PNG is only unpacked to rows. Other formats are
    decoded.

    Args:
        data: The encoded image.
        max_pixels: Larger images are refused.
        pixels: True to check the pixels; otherwise only the header, and the CRCs of a PNG.

    Raises:
        PictureError: It cannot be decoded, or has too many pixels.
    """
    try:
        size = sound_png(data, pixels=pixels)
    except PngError as error:
        raise PictureError(f"damaged image: {error}") from error
    if size is not None and size[0] * size[1] <= max_pixels:
        return size
    return _in_image_thread(functools.partial(_checked, data, max_pixels, pixels))


def _checked(data: bytes, max_pixels: int, pixels: bool, in_thread: bool) -> tuple[int, int]:
    with open_picture(data, max_pixels) as image:
        width, height = image.size
        is_png = image.format == "PNG"
        if is_png:
            image.verify()  # its CRCs; the image cannot be used afterwards
        elif pixels:
            _decode(image, in_thread)
    if is_png and pixels:
        with open_picture(data, max_pixels) as image:
            _decode(image, in_thread)
    return height, width


def _decode(image: Image.Image, in_thread: bool) -> None:
    """Decode an image to its end, a JPEG at an eighth of its size."""
    # A JPEG in one scan is unpacked line by line and takes little memory.
    if image.format != "JPEG" or image.info.get("progressive"):
        _check_thread(image, in_thread)
    if image.format == "JPEG":
        image.draft("L", (1, 1))
    image.load()


def _check_thread(image: Image.Image, in_thread: bool) -> None:
    """Raise LargePicture for a large image outside of its thread."""
    if not in_thread and image.size[0] * image.size[1] > _LARGE_PIXELS:
        raise LargePicture


def decode_picture(
    data: bytes,
    channels: int = 3,
    resize: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    *,
    depth: int = 8,
    reduce: bool = True,
    orient: bool = False,
) -> NDArray[Any]:
    """Return the pixels of an image (its first frame), as `[height, width, channels]`.

    Args:
        data: The encoded image.
        channels: 1 grey, 3 RGB, 4 RGBA.
        resize: Height and width to scale it to (bilinear, ignoring the aspect ratio).
        max_pixels: Larger images are refused.
        depth: Bits of a pixel: 8, or 16 for images of 16 bits of grey (with one channel).
        reduce: True to reduce 16 bits to their upper 8; otherwise such images are refused.
        orient: True to turn the image upright, as its EXIF says.

    Raises:
        PictureError: It cannot be decoded, has too many pixels, or has another depth.
    """
    how = functools.partial(_decoded, data, channels, resize, max_pixels, depth, reduce, orient)
    return _in_image_thread(how)


def pixel_form(
    data: bytes, max_pixels: int = MAX_PIXELS, *, orient: bool = False
) -> tuple[tuple[int, int], int]:
    """Return height, width and bits per pixel of an image: 16 for 16-bit grey, otherwise 8.

    Raises:
        PictureError: It cannot be decoded, or has too many pixels.
    """

    def form(in_thread: bool) -> tuple[tuple[int, int], int]:
        with open_picture(data, max_pixels) as image:
            _check_thread(image, in_thread)
            bits = 16 if _has_16_bits(image, image.format) else 8
            image.load()
            if orient:
                ImageOps.exif_transpose(image, in_place=True)
            return image.size[::-1], bits

    return _in_image_thread(form)


def _decoded(
    data: bytes,
    channels: int,
    resize: tuple[int, int] | None,
    max_pixels: int,
    depth: int,
    reduce: bool,
    orient: bool,
    in_thread: bool,
) -> NDArray[Any]:
    with open_picture(data, max_pixels) as image:
        _check_thread(image, in_thread)
        file_format = image.format
        if orient:
            ImageOps.exif_transpose(image, in_place=True)
        bits = 16 if _has_16_bits(image, file_format) else 8
        if depth == 16:
            if bits != 16:
                raise PictureError(f"its pixels have 8 bits of grey or colours; {_DEPTH_HINT}")
            return _deep_pixels(image, resize)
        if bits == 16 and not reduce:
            raise PictureError(f"its pixels have 16 bits; {_DEPTH_HINT}")
        picture = _in_mode(image, file_format, channels)
        if resize is not None and picture.size != resize[::-1]:
            picture = picture.resize(resize[::-1], Image.Resampling.BILINEAR)
        return _pixels(picture, channels)


def _has_16_bits(image: Image.Image, file_format: str | None) -> bool:
    """True if an image has 16 bits of grey."""
    return image.mode.startswith("I;16") or (image.mode == "I" and file_format == "PNG")


def _deep_pixels(image: Image.Image, resize: tuple[int, int] | None) -> NDArray[np.uint16]:
    pixels = np.asarray(image).astype(np.uint16)
    if resize is not None and pixels.shape != resize:
        # Pillow scales 32-bit floats, which hold 16 bits exactly.
        scaled = Image.fromarray(pixels.astype(np.float32)).resize(
            resize[::-1], Image.Resampling.BILINEAR
        )
        pixels = np.rint(np.asarray(scaled)).clip(0, 0xFFFF).astype(np.uint16)
    return pixels[:, :, np.newaxis]


def decode_cropped(
    data: bytes, channels: int, size: tuple[int, int], max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return an image's pixels, cropped or zero-padded around the centre, and its original size.

    Keeps the same pixels as `tf.image.resize_with_crop_or_pad`.

    Args:
        data: The encoded image.
        channels: 1 grey, 3 RGB, 4 RGBA.
        size: Height and width of the result.
        max_pixels: Larger images are refused.

    Raises:
        PictureError: It cannot be decoded, or has too many pixels.
    """
    return _in_image_thread(functools.partial(_cropped, data, channels, size, max_pixels))


def _cropped(
    data: bytes, channels: int, size: tuple[int, int], max_pixels: int, in_thread: bool
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    with open_picture(data, max_pixels) as image:
        _check_thread(image, in_thread)
        (height, width), (rows, columns) = image.size[::-1], size
        left, top = max((width - columns) // 2, 0), max((height - rows) // 2, 0)
        image.load()
        part = image.crop((left, top, min(left + columns, width), min(top + rows, height)))
        pixels = _pixels(_in_mode(part, image.format, channels), channels)
    out = np.zeros((*size, channels), np.uint8)
    top, left = max((rows - height) // 2, 0), max((columns - width) // 2, 0)
    out[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return out, (height, width)


def _in_mode(image: Image.Image, file_format: str | None, channels: int) -> Image.Image:
    """Convert an image to 8 bits; of 16 bits it keeps the upper 8 (Pillow would clip at 255)."""
    if _has_16_bits(image, file_format):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise PictureError(
            "its pixels have 32 bits, decoding keeps only 8; load it without --decode"
        )
    return in_colours(image, _MODES[channels])


def _pixels(image: Image.Image, channels: int) -> NDArray[np.uint8]:
    width, height = image.size
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, channels)


@dataclass(frozen=True)
class Recipe:
    """Handling of image files: keep them unchanged, or decode them to one shape.

    Attributes:
        shape: Height, width and channels of decoded images; None keeps the files.
        resize: Height and width that images are scaled to.
        channels: Channels of decoded images.
        max_pixels: Images with more are bad.
        check_pixels: True to check unchanged files to their last pixel.
        depth: Bits of decoded pixels.
        reduce: True to reduce 16 bits to their upper 8.
        orient: True if decoded images are turned upright.
    """

    shape: tuple[int, ...] | None
    resize: tuple[int, int] | None
    channels: int
    max_pixels: int
    check_pixels: bool = True
    depth: int = 8
    reduce: bool = True
    orient: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of decoded pixels."""
        return np.dtype(np.uint16 if self.depth == 16 else np.uint8)

    def load_all(self, folder: Place, names: Sequence[str]) -> list[Loaded]:
        """Load the files of these names below a folder."""
        return [self.load(folder.child(name)) for name in names]

    def load(self, place: Place) -> Loaded:
        """Load one file."""
        try:
            data = place.read(MAX_RECORD_BYTES)
            if self.shape is None:
                check_picture(data, self.max_pixels, pixels=self.check_pixels)
                return data, ""
            pixels = decode_picture(
                data,
                self.channels,
                self.resize,
                self.max_pixels,
                depth=self.depth,
                reduce=self.reduce,
                orient=self.orient,
            )
        except PictureError as error:
            return None, str(error)
        except SourceError as error:
            return None, error.message.removeprefix(f"{place.name}: ")
        if pixels.shape != self.shape:
            found = " x ".join(map(str, pixels.shape[:2]))
            expected = " x ".join(map(str, self.shape[:2]))
            return None, f"size {found}, the first image has {expected}; {_RESIZE_HINT}"
        return pixels, ""
