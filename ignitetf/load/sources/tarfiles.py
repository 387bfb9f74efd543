"""Tar files, read up to their end mark.

stream -> **members** -> archives, webdataset

Python's `tarfile` ends silently at a damaged header, at the end of a file that was cut between two
members, and at the end mark of the first of two joined files. Here each of them is an error, because
members would be lost.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, Final, Literal

__all__ = ["members", "open_tar"]

_PIECE: Final = 1 << 20


class _Member(tarfile.TarInfo):
    """A member whose header must be whole."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Member:
        """Read a header; a block of zeros ends the file."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not buf:
                raise tarfile.ReadError("it ends without an end mark, so it may be cut") from error
            if any(buf):
                raise tarfile.ReadError(f"damaged header of a member: {error}") from error
            raise


def open_tar(stream: Any, mode: Literal["r:", "r|*"]) -> tarfile.TarFile:
    """Open a tar file.

    Args:
        stream: Its bytes.
        mode: `r:` reads members in any order, `r|*` in theirs, also from compressed bytes.
    """
    return tarfile.open(fileobj=stream, mode=mode, tarinfo=_Member)


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file.

    Raises:
        ReadError: It is damaged or cut, or more data follow its end mark.
    """
    yield from tar
    assert tar.fileobj is not None
    while piece := tar.fileobj.read(_PIECE):
        if piece.strip(b"\0"):
            raise tarfile.ReadError(
                "more data follow its end mark: joined tar files are read only if each is a file"
            )
