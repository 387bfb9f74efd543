"""Decompresses files, which are recognised by their first bytes, not by their names.

stream -> **gzip, bzip2, xz, zip, Zstandard** -> plain stream
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, cast

from ignitetf.errors import MissingExtra, SourceError

__all__ = ["HEAD_BYTES", "Decompressed", "compression_of", "decompressed"]

# Bytes at the beginning of a file that show its compression.
HEAD_BYTES: Final = 10
_MAGIC: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty one
    b"\x28\xb5\x2f\xfd": "zstd",
}
# `BZh` and a digit may also begin a text, so the magic number of the first block follows.
_BZIP2: Final = (b"1AY&SY", b"\x17rE8P\x90")


def compression_of(head: bytes) -> str | None:
    """Return the compression of a file that begins with these bytes; None for a plain file."""
    if head.startswith(b"BZh") and head[4:HEAD_BYTES] in _BZIP2:
        return "bz2"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


class Decompressed(io.BufferedIOBase):
    """The decompressed bytes of a stream, which is closed with it; it can be read only forward."""

    def __init__(self, reader: Any, raw: Any) -> None:
        self._reader = reader
        self._raw_file = raw

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, or all."""
        return cast(
            bytes, self._reader.read() if size is None or size < 0 else self._reader.read(size)
        )

    def close(self) -> None:
        """Close this stream and the compressed one."""
        if self.closed:
            return
        try:
            super().close()
            self._reader.close()
        finally:
            self._raw_file.close()


def decompressed(raw: Any, name: str, how: str) -> Decompressed:
    """Return the plain bytes of a stream.

    Args:
        raw: The compressed stream, at its beginning.
        name: Its name, for messages.
        how: Result of `compression_of`.

    Raises:
        SourceError: It is a zip file without a file, or with several.
        MissingExtra: The package for this compression is not installed.
    """
    if how == "gzip":
        return Decompressed(gzip.GzipFile(fileobj=raw, mode="rb"), raw)
    if how == "zip":
        return Decompressed(_only_member(raw, name), raw)
    from fsspec.compression import compr

    if how in compr:
        return Decompressed(compr[how](raw, mode="rb"), raw)
    pa = MissingExtra.module("pyarrow", f"{name}: Zstandard files need pyarrow", "arrow")
    return Decompressed(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), how), raw)


def _only_member(raw: Any, name: str) -> Any:
    """Open the only file in a zip file; files that macOS adds are ignored."""
    whole = zipfile.ZipFile(raw)
    found = []
    for one in whole.infolist():
        parts = PurePosixPath(one.filename).parts
        if not one.is_dir() and parts[0] != "__MACOSX" and not parts[-1].startswith("."):
            found.append(one.filename)
    if not found:
        raise SourceError(f"{name}: a zip file without a file", hint="pack it again")
    if len(found) > 1:
        raise SourceError(
            f"{name}: a zip file of {len(found):,} files, such as {found[0]!r} and {found[1]!r}",
            hint=f"zip://{found[0]}::{name} loads one of them",
        )
    return whole.open(found[0])
