"""Paths of the file system, parsed to checked names; and conversion of errors to OSErrors.

A path is absolute whether or not it begins with a slash. Empty parts and `.` are dropped; `..`
drops the part before it and stays at the root, as the kernel does. A name is any Unicode text of
1 to 255 bytes of UTF-8 without slash and NUL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from ignitetf.errors import (
    AuthenticationError,
    ClusterReadOnly,
    ConfigError,
    ConnectError,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerOverloaded,
    TlsError,
)
from ignitetf.net.failures import is_full

__all__ = [
    "MAX_NAME_BYTES",
    "NativeIOUnavailable",
    "as_os_error",
    "join",
    "os_error",
    "os_errors",
    "parts",
    "path_of_url",
    "relative_to",
    "split_url",
]

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


# The first matching class decides.
_TABLE: tuple[tuple[type[IgniteTFError], int], ...] = (
    (AuthenticationError, errno.EACCES),
    (TlsError, errno.EPROTO),
    (ConnectError, errno.ECONNREFUSED),
    (RequestTimeout, errno.ETIMEDOUT),
    (ServerOverloaded, errno.ENOSPC),
    (PartitionLost, errno.EIO),
    (ClusterReadOnly, errno.EROFS),
    (ConfigError, errno.EINVAL),
    (IgniteTFError, errno.EIO),
)


class NativeIOUnavailable(IgniteTFError, ImportError):
    """TensorFlow's own file operations are unavailable; fsspec and `checkpoint push` still work."""


def as_os_error(error: IgniteTFError, path: str | None = None) -> OSError:
    """Return the OSError, of the subclass for its errno, that corresponds to an error."""
    code = next(code for kind, code in _TABLE if isinstance(error, kind))
    message = error.message
    if is_full(error):
        code = errno.ENOSPC
        message = f"no space left in the data region, or a node refused to store: {message}"
    if isinstance(error, ConnectError) and "lost" in error.message and code == errno.ECONNREFUSED:
        code = errno.ECONNRESET
    if error.hint is not None:
        message = f"{message} ({error.hint})"
    return OSError(code, message, path) if path is not None else OSError(code, message)


@contextlib.contextmanager
def os_errors(path: str | None = None) -> Iterator[None]:
    """Raise errors of this project as OSError with an errno."""
    try:
        yield
    except OSError as error:
        # ConnectError and RequestTimeout are already OSErrors, but without an errno.
        if isinstance(error, IgniteTFError):
            raise as_os_error(error, path) from error
        raise
    except IgniteTFError as error:
        raise as_os_error(error, path) from error
