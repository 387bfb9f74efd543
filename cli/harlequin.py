"""An adapter for harlequin, the SQL editor in a terminal: `harlequin -a ignite HOST:PORT`.

client -> **harlequin** -> harlequin's editor, catalog and tables
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain, islice
from typing import Any, ClassVar, Final
from uuid import UUID

from harlequin import HarlequinAdapter, HarlequinConnection, HarlequinCursor
from harlequin.catalog import Catalog, CatalogItem
from harlequin.exception import HarlequinConnectionError, HarlequinQueryError
from harlequin.options import FlagOption, PathOption, TextOption

from ignitetf.cli.files import arrow_table
from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client, connect
from ignitetf.net.sql_result import SqlResult
from ignitetf.tables.names import SqlNames, spelled, sql_names
from ignitetf.tables.suggest import sql_with_suggestions

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
# Short labels, as harlequin shows them beside names.
_LABELS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "t/f"),
    (int, "##"),
    ((float, Decimal), "#.#"),
    (str, "s"),
    ((bytes, bytearray), "b"),
    (datetime.datetime, "ts"),
    (datetime.date, "d"),
    ((datetime.time, datetime.timedelta), "t"),
    (UUID, "id"),
)


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
            raise HarlequinConnectionError(_told(error), "Ignite cannot be reached") from error


class IgniteConnection(HarlequinConnection):  # type: ignore[misc]
    """A client, one statement at a time."""

    def __init__(self, client: Client, init_message: str = "") -> None:
        """Use this client."""
        self.init_message = init_message
        self._client = client
        self._cancelled = threading.Event()

    def execute(self, query: str) -> IgniteCursor | None:
        """Run a statement; None for one without rows."""
        self._cancelled.clear()
        try:
            result = sql_with_suggestions(self._client, query.strip().rstrip(";"))
            if result.update_count is not None:
                result.close()
                return None
            return IgniteCursor(result, self._cancelled)
        except IgniteTFError as error:
            if self._cancelled.is_set():
                return None
            raise HarlequinQueryError(_told(error), "Ignite refused the statement") from error

    def cancel(self) -> None:
        """End the statement that runs: the node drops those of a connection that is gone."""
        self._cancelled.set()
        self._client.close_idle()

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

    def __init__(self, result: SqlResult, cancelled: threading.Event) -> None:
        """Read the first row, which tells the types."""
        self._result = result
        self._cancelled = cancelled
        self._limit: int | None = None
        rows = iter(result)
        self._first = next(rows, None)
        self._rows = chain(() if self._first is None else (self._first,), rows)

    def columns(self) -> list[tuple[str, str]]:
        """Return the names of the columns, each with a short label for its type."""
        first = self._first or (None,) * len(self._result.columns)
        return [
            (name, _label(value)) for name, value in zip(self._result.columns, first, strict=True)
        ]

    def set_limit(self, limit: int) -> IgniteCursor:
        """Read no more rows than this."""
        self._limit = limit
        return self

    def fetchall(self) -> Any:
        """Return the rows as an Arrow table; None if the statement was cancelled."""
        try:
            with self._result:
                rows = list(islice(self._rows, self._limit))
            return arrow_table(self._result.columns, rows)
        except IgniteTFError as error:
            if self._cancelled.is_set():
                return None
            raise HarlequinQueryError(_told(error), "The rows could not be read") from error


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


def _label(value: Any) -> str:
    return next((label for kinds, label in _LABELS if isinstance(value, kinds)), "?")


def _told(error: IgniteTFError) -> str:
    return error.message + (f"\nhint: {error.hint}" if error.hint else "")
