"""Convert errors of this project to the OSErrors that users of a file system expect."""

from __future__ import annotations

import contextlib
import errno
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

__all__ = ["NativeIOUnavailable", "as_os_error", "os_errors"]

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
