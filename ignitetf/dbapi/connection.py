"""`connect` and `Connection`: a cluster as PEP 249 sees a database.

net client -> **connection** -> users of PEP 249
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ignitetf.dbapi.errors as errors
from ignitetf.dbapi.cursor import Cursor
from ignitetf.dbapi.errors import InterfaceError, NotSupportedError, pep_249
from ignitetf.net.client import Client
from ignitetf.net.client import connect as connect_client

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Connection", "connect"]


def connect(
    address: str | Sequence[str] | None = None,
    *,
    schema: str = "PUBLIC",
    timeout_s: float | None = None,
    page_rows: int | None = None,
    **settings: Any,
) -> Connection:
    """Connect to a cluster.

    Args:
        address: `HOST:PORT`, or several; None for the profile, the environment or the running node.
        schema: SQL schema for names without one.
        timeout_s: Limit in seconds for each statement; None for none.
        page_rows: Rows that the node sends at once; None takes 1,024, and then as many as
            fill the link for a round trip.
        **settings: As of `ignitetf.connect`: `username`, `password`, `ca`, `profile` ...

    Raises:
        OperationalError: No node answered.
    """
    with pep_249():
        client = connect_client(address, **settings)
    return Connection(client, schema=schema, timeout_s=timeout_s, page_rows=page_rows)


class Connection:
    """A connection to a cluster, which threads may share; each takes cursors of its own.

    Each statement takes effect at once: SQL of Apache Ignite 2 has no transactions over several.

    Attributes:
        schema: SQL schema for names without one.
        timeout_s: Limit in seconds for the statements of new cursors.
        page_rows: Rows that the node sends at once; None takes 1,024, and then as many as fill the
            link for a round trip.
        autocommit: Always True.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError
    autocommit = True

    def __init__(
        self, client: Client, *, schema: str, timeout_s: float | None, page_rows: int | None
    ) -> None:
        self._client: Client | None = client
        self.schema = schema
        self.timeout_s = timeout_s
        self.page_rows = page_rows

    def client(self) -> Client:
        """Return the client below; raises InterfaceError once it is closed."""
        if self._client is None:
            raise InterfaceError("the connection is closed")
        return self._client

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self.client()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement in a new cursor, and return that."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Do nothing: each statement has taken effect already."""
        self.client()

    def rollback(self) -> None:
        """Raise NotSupportedError: each statement has taken effect already."""
        self.client()
        raise NotSupportedError(
            "statements cannot be taken back",
            hint="SQL of Apache Ignite 2 has no transactions over several statements",
        )

    def close(self) -> None:
        """Close it, and with it all cursors."""
        if self._client is None:
            raise InterfaceError("the connection is closed")
        client, self._client = self._client, None
        client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._client is not None:
            self.close()
