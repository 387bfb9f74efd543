"""Paths of the file system: text in, checked names out.

A path is absolute whether or not it begins with a slash. Empty parts and `.` are dropped; `..`
drops the part before it and stays at the root, as the kernel does. A name is any Unicode text of
1 to 255 bytes of UTF-8 without slash and NUL.
"""

from __future__ import annotations

import errno
import os
import re

__all__ = ["MAX_NAME_BYTES", "join", "os_error", "parts", "path_of_url", "relative_to", "split_url"]

MAX_NAME_BYTES = 255
_URL = re.compile(r"igfs://(?P<authority>[^/]*)(?P<path>.*)", re.DOTALL)


def os_error(code: int, path: str, message: str | None = None) -> OSError:
    """Return the OSError, of the subclass for its errno, with the usual text and the path."""
    return OSError(code, message or os.strerror(code), path)


def parts(path: str) -> tuple[str, ...]:
    """Return the names along the path; empty for the root.

    Raises:
        OSError: ENAMETOOLONG, EINVAL for a NUL, EILSEQ for text that is not valid Unicode.
    """
    names: list[str] = []
    for name in path.split("/"):
        if name in ("", "."):
            continue
        if name == "..":
            del names[-1:]
            continue
        names.append(name)
    for name in names:
        _check(name, path)
    return tuple(names)


def split_url(url: str) -> tuple[str, str]:
    """Split an `igfs://` URL into authority and path; a plain path has an empty authority."""
    found = _URL.fullmatch(url)
    return (found["authority"], found["path"]) if found else ("", url)


def path_of_url(url: str) -> str:
    """Return the normalized path of an `igfs://` URL or a path: `/a/b`, or `/` for the root."""
    names: list[str] = []
    for name in split_url(url)[1].split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return join(tuple(names))


def join(names: tuple[str, ...]) -> str:
    """Return the path of these names, with a leading slash."""
    return "/" + "/".join(names)


def relative_to(path: str, base: str) -> str:
    """Return the part of a path below its prefix `base`, without a leading slash."""
    return path[len(base.rstrip("/")) :].lstrip("/")


def _check(name: str, path: str) -> None:
    if "\0" in name:
        raise os_error(errno.EINVAL, path, "a name contains a NUL character")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise os_error(errno.EILSEQ, path, "a name is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise os_error(errno.ENAMETOOLONG, path)
