"""The error tree of ignitetf.

    IgniteTFError
    +-- ConfigError (ValueError)           a setting, argument or option is wrong
    +-- SourceError (ValueError)           data to be loaded is missing, damaged or inconsistent
    +-- ConnectError (ConnectionError)     no node could be reached, or the connection was lost
    |   +-- TlsError                       the TLS handshake or the check of a certificate failed
    |   +-- AuthenticationError            user name or password refused
    +-- RequestTimeout (TimeoutError)      no answer within the time limit; the connection was dropped
    +-- ServerError                        the server answered with an error status
    |   +-- CacheNotFound (LookupError)
    |   +-- CacheExists
    |   +-- SqlError
    |   |   +-- SqlUnavailable
    |   +-- PartitionLost                  a partition has no owner left
    |   +-- ServerOverloaded               out of memory, heap space or cursors
    |   +-- ClusterInactive                the cluster is not activated
    |   +-- ClusterReadOnly                the cluster takes no changes
    +-- WireError                          bytes that break the protocol
    +-- SchemaError (ValueError, TypeError) an entry does not have the types that are expected
    +-- DataChanged                        keys were added or removed while they were read
    +-- JobNotFound (LookupError)          the training job does not exist
    +-- LoadInterrupted                    a load stopped early; it can be resumed
    +-- DataSetBusy                        another load or removal is working on it
    +-- NodeError                          the embedded node; carries the tail of its log
    +-- MissingExtra (ImportError)         an optional dependency is not installed

Each class needs a different action of the user. Each has a one-line message, a one-line hint, and
fields for programs. No message contains a password or the content of a key file. The hint is also a
note of the exception (PEP 678), so that tracebacks show it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "AuthenticationError",
    "CacheExists",
    "CacheNotFound",
    "ClusterInactive",
    "ClusterReadOnly",
    "ConfigError",
    "ConnectError",
    "DataChanged",
    "DataSetBusy",
    "IgniteTFError",
    "JobNotFound",
    "KeyNotFound",
    "LoadInterrupted",
    "MissingExtra",
    "NodeError",
    "OutOfRange",
    "PartitionLost",
    "RequestTimeout",
    "SchemaError",
    "ServerError",
    "ServerOverloaded",
    "SourceError",
    "SqlError",
    "SqlUnavailable",
    "TlsError",
    "WireError",
]


E = TypeVar("E", bound="IgniteTFError")


class IgniteTFError(Exception):
    """Base class of all errors that ignitetf raises.

    Args:
        message: One line: where, what was found, what was expected.
        hint: One line: the remedy; None without general advice.
        fields: Facts for programs, readable as attributes (`error.cache`, `error.partition`).
    """

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields
        if hint is not None:
            self.__notes__ = [f"hint: {hint}"]

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        # IPython and notebooks call this.
        from ignitetf.notebook import traceback_lines

        return traceback_lines(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, exceptions pickle only their positional arguments, without hint and fields.
        notes = self.__dict__.get("__notes__")
        state = {} if notes is None else {"__notes__": list(notes)}
        return (_rebuild, (type(self), self.message, self.hint, self.fields), state)

    def at(self, place: str, **fields: Any) -> Self:
        """Return the same error with a place before its message; raise it from this one.

        Args:
            place: From the largest part to the smallest, such as "T, partition 3, entry 5". Parts
                that the message already begins with are not repeated.
            fields: More facts for programs.

        Returns:
            A new error that takes over the hint, so that a traceback of both shows it once.
        """
        message = self.message
        if not message.startswith((f"{place}: ", f"{place}, ")):
            parts = place.split(", ")
            heads = (", ".join(parts[:count]) + ": " for count in range(len(parts), 0, -1))
            message = message.removeprefix(next(filter(message.startswith, heads), ""))
            message = f"{place}: {message}"
        self.__dict__.pop("__notes__", None)
        return _rebuild(type(self), message, self.hint, {**self.fields, **fields})

    def hinted(self, hint: str) -> Self:
        """Return the same error with another hint; raise it from this one."""
        self.__dict__.pop("__notes__", None)
        return _rebuild(type(self), self.message, hint, self.fields)


def _rebuild(cls: type[E], message: str, hint: str | None, fields: dict[str, Any]) -> E:
    return cls(message, hint=hint, **fields)


class ConfigError(IgniteTFError, ValueError):
    """A setting, argument or option is wrong."""


class SourceError(IgniteTFError, ValueError):
    """Data to be loaded are missing, damaged or inconsistent."""


class ConnectError(IgniteTFError, ConnectionError):
    """No node could be reached, or the connection to it was lost."""


class TlsError(ConnectError):
    """The TLS handshake, or the check of a certificate, failed."""


class AuthenticationError(ConnectError):
    """The server refused the user name or the password."""


class RequestTimeout(IgniteTFError, TimeoutError):
    """No answer arrived within the time limit; the connection was dropped."""


class ServerError(IgniteTFError):
    """The server answered with an error; `status` and `server_message` are its fields."""


class CacheNotFound(ServerError, LookupError):
    """The cluster has no cache of this name."""


class CacheExists(ServerError):
    """The cluster already has a cache of this name."""


class SqlError(ServerError):
    """The server refused a SQL statement."""


class SqlUnavailable(SqlError):
    """The cluster has no SQL engine, so it cannot run any statement."""


class PartitionLost(ServerError):
    """A partition has no owner left in the cluster."""


class ServerOverloaded(ServerError):
    """The server ran out of memory, heap space or cursors."""


class ClusterInactive(ServerError):
    """The cluster is not active: it neither reads nor writes until it is activated."""


class ClusterReadOnly(ServerError):
    """The cluster is read-only: it answers reads and refuses every change."""


class WireError(IgniteTFError):
    """The bytes of an answer break the protocol."""


class SchemaError(IgniteTFError, ValueError, TypeError):
    """An entry does not have the types that its dataset or table was built for."""


class DataChanged(IgniteTFError):
    """Keys were added to or removed from a cache while it was read."""


class OutOfRange(IgniteTFError, IndexError):
    """A row number beyond the last row of a data set."""


class KeyNotFound(IgniteTFError, KeyError):
    """A requested key is not in the cache."""


class JobNotFound(IgniteTFError, LookupError):
    """The training job does not exist."""


class LoadInterrupted(IgniteTFError):
    """A load stopped early; the stored rows are kept and the load can be resumed."""


class DataSetBusy(IgniteTFError):
    """Another load or removal is working on the data set.

    `host`, `pid`, `since` and `work` describe its holder.
    """


class NodeError(IgniteTFError):
    """An operation of the embedded node failed; `log_tail` has the end of its log."""


class MissingExtra(IgniteTFError, ImportError):
    """An optional dependency is not installed; the hint names the extra that installs it."""

    @classmethod
    def of(cls, what: str, extra: str, error: ImportError) -> MissingExtra:
        """Return the error for an operation that is impossible because an import failed.

        Args:
            what: Feature and package that it needs.
            extra: The extra that installs the package.
            error: Error of the import: the package is missing or incompatible with another one.
        """
        if isinstance(error, ModuleNotFoundError):
            return cls(what, hint=f"pip install 'ignitetf[{extra}]'")
        # The newest pyarrow refuses NumPy 1, which TensorFlow before 2.18 requires.
        hint = f"pip install 'ignitetf[{extra},numpy1]' installs a version for NumPy 1"
        return cls(f"{what}: {error}", hint=hint if "NumPy" in str(error) else None)

    @classmethod
    def module(cls, name: str, what: str, extra: str) -> Any:
        """Import a module that an extra installs.

        Args:
            name: The module.
            what: Feature that needs it, for the message.
            extra: The extra.

        Raises:
            MissingExtra: It is not installed.
        """
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise cls.of(what, extra, error) from error
