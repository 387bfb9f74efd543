"""An adapter for harlequin, the SQL editor in a terminal: `harlequin -a ignite HOST:PORT`.

client -> **harlequin** -> harlequin's editor, catalog and tables
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from harlequin import HarlequinAdapter, HarlequinConnection, HarlequinCursor
from harlequin.catalog import Catalog, CatalogItem
from harlequin.exception import HarlequinConnectionError, HarlequinQueryError
from harlequin.options import FlagOption, PathOption, TextOption

from ignitetf import Client, connect, dbapi
from ignitetf.errors import IgniteTFError
from ignitetf.tables.names import SqlNames, spelled, sql_names

__all__ = ["IgniteAdapter"]

_OPTIONS: Final = (
    TextOption("node", "Embedded node of this machine, by its name."),
    TextOption("profile", "Settings from this profile."),
    TextOption("username", "User name."),
    TextOption("password", "Password of the user; a file is better.", secret=True),
    PathOption("password-file", "File with the password.", exists=True, dir_okay=False),
    FlagOption("tls", "Encrypt, and verify the server."),
    PathOption("ca", "Certificates to trust, PEM.", exists=True, dir_okay=False),
    PathOption("cert", "Client certificate, PEM.", exists=True, dir_okay=False),
    PathOption("key", "Key of the client certificate, PEM.", exists=True, dir_okay=False),
)
# Rows in a page of the node: few, because they may have large values.
_PAGE_ROWS: Final = 64
# Short labels, because harlequin shows them next to names.
_LABELS: Final = {
    "BOOLEAN": "t/f",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), "##"),
    **dict.fromkeys(("REAL", "DOUBLE", "DECIMAL"), "#.#"),
    **dict.fromkeys(("CHAR", "VARCHAR"), "s"),
    "VARBINARY": "b",
    "TIMESTAMP": "ts",
    "DATE": "d",
    "TIME": "t",
    "UUID": "id",
}


class IgniteAdapter(HarlequinAdapter):  # type: ignore[misc]
    """Apache Ignite in harlequin."""

    ADAPTER_OPTIONS: ClassVar[list[Any]] = list(_OPTIONS)
    IMPLEMENTS_CANCEL = True
    ADAPTER_DETAILS = "Apache Ignite 2, through the thin client of ignitetf."

    def __init__(self, conn_str: Sequence[str], read_only: bool = False, **options: Any) -> None:
        """Take the addresses, `HOST:PORT` each, and the options of harlequin's command line."""
        known = {option.name.replace("-", "_") for option in _OPTIONS}
        self._given = {name: value for name, value in options.items() if name in known and value}
        if conn_str:
            self._given["addresses"] = tuple(conn_str)

    def connect(self) -> IgniteConnection:
        """Connect; raises HarlequinConnectionError with the reason and what to do."""
        try:
            return IgniteConnection(connect(**self._given))
        except IgniteTFError as error:
            raise HarlequinConnectionError(
                _error_text(error), "Ignite cannot be reached"
            ) from error


class IgniteConnection(HarlequinConnection):  # type: ignore[misc]
    """A client, one statement at a time."""

    def __init__(self, client: Client, init_message: str = "") -> None:
        """Use this client."""
        self.init_message = init_message
        self._client = client
        self._connection = dbapi.Connection(
            client, schema="PUBLIC", timeout_s=None, page_rows=_PAGE_ROWS
        )
        self._running: dbapi.Cursor | None = None
        self._cancelled = threading.Event()

    def execute(self, query: str) -> IgniteCursor | None:
        """Run a statement; None for one without rows."""
        self._cancelled.clear()
        cursor = self._running = self._connection.cursor()
        try:
            cursor.execute(query.strip().rstrip(";"))
        except dbapi.Error as error:
            if self._cancelled.is_set():
                return None
            raise HarlequinQueryError(_error_text(error), "Ignite refused the statement") from error
        return None if cursor.description is None else IgniteCursor(cursor, self._cancelled)

    def cancel(self) -> None:
        """End the statement that runs."""
        self._cancelled.set()
        if (running := self._running) is not None:
            running.cancel()

    def get_catalog(self) -> Catalog:
        """Return schemas, tables and columns."""
        names = sql_names(self._client)
        schemas = dict.fromkeys(table.schema for table in names.tables)
        return Catalog([_schema(names, schema) for schema in schemas])

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class IgniteCursor(HarlequinCursor):  # type: ignore[misc]
    """The rows of a statement, read as far as they are shown."""

    def __init__(self, cursor: dbapi.Cursor, cancelled: threading.Event) -> None:
        """Show the rows of this cursor."""
        self._cursor = cursor
        self._cancelled = cancelled
        self._limit: int | None = None
        # Stored, because harlequin requests them after it has fetched all rows.
        self._columns = [
            (name, _LABELS.get(kind, "?")) for name, kind, *_ in cursor.description or ()
        ]

    def columns(self) -> list[tuple[str, str]]:
        """Return the names of the columns, each with a short label for its type."""
        return self._columns

    def set_limit(self, limit: int) -> IgniteCursor:
        """Read no more rows than this."""
        self._limit = limit
        return self

    def fetchall(self) -> Any:
        """Return the rows as an Arrow table; None if the statement was cancelled."""
        import pyarrow as pa

        found: list[Any] = []
        left = self._limit
        try:
            with self._cursor:
                reader = pa.RecordBatchReader.from_stream(self._cursor)
                while (left is None or left > 0) and (batch := next(reader, None)) is not None:
                    found.append(batch.slice(0, left))
                    left = None if left is None else left - batch.num_rows
        except (dbapi.Error, pa.ArrowException, OSError) as error:
            if self._cancelled.is_set():
                return None
            raise HarlequinQueryError(_error_text(error), "The rows could not be read") from error
        return pa.Table.from_batches(found, reader.schema)


def _schema(names: SqlNames, schema: str) -> CatalogItem:
    tables = [table for table in names.tables if table.schema == schema]
    items = []
    for table in tables:
        own = f"{spelled(schema)}.{spelled(table.name)}"
        columns = [
            CatalogItem(f"{own}.{spelled(column)}", spelled(column), column, "c")
            for column in names.columns[table]
        ]
        query_name = spelled(table.name) if schema == "PUBLIC" else own
        items.append(CatalogItem(own, query_name, table.name, "t", columns))
    return CatalogItem(spelled(schema), spelled(schema), schema, "sch", items)


def _error_text(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}\nhint: {hint}" if hint else str(error)
