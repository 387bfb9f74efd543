"""`connect`, `Connection` and `Cursor` of PEP 249: results as rows and as columns.

client, results, sql_arrays -> **cursor** -> users of PEP 249
"""

from __future__ import annotations

import importlib
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ignitetf.dbapi.errors as errors
from ignitetf.dbapi.errors import (
    DataError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    pep_249,
)
from ignitetf.errors import MissingExtra, SqlError
from ignitetf.net.client import Client
from ignitetf.net.client import connect as connect_client
from ignitetf.net.results import Result
from ignitetf.net.statements import run_batch, run_redirected
from ignitetf.sql.tokens import count_parameters, is_query
from ignitetf.tables.names import with_suggestion
from ignitetf.wire.requests import parameter_list
from ignitetf.wire.sql_arrays import Kind, Values, joined_arrow, joined_numpy

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Connection", "Cursor", "connect"]


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
        page_rows: Rows in a page; None requests 1,024 rows first; later pages are large enough to
            keep the connection busy.
        **settings: As for `ignitetf.connect`: `username`, `password`, `ca`, `profile` ...

    Raises:
        OperationalError: No node answered.
    """
    with pep_249():
        client = connect_client(address, **settings)
    return Connection(client, schema=schema, timeout_s=timeout_s, page_rows=page_rows)


class Connection:
    """A connection to a cluster. Threads may share it; each thread uses its own cursors.

    Each statement is applied immediately: Apache Ignite 2 has no SQL transactions.

    Attributes:
        schema: SQL schema for names without one.
        timeout_s: Limit in seconds for the statements of new cursors.
        page_rows: Rows in a page; None requests 1,024 rows first; later pages are large enough to
            keep the connection busy.
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
        """Return the client of this connection; raises InterfaceError once it is closed."""
        if self._client is None:
            raise InterfaceError("the connection is closed")
        return self._client

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self.client()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement in a new cursor, and return the cursor."""
        return self.cursor().execute(operation, parameters)

    def __repr__(self) -> str:
        return "<Connection, closed>" if self._client is None else f"<Connection of {self._client}>"

    def commit(self) -> None:
        """Do nothing: each statement is already applied."""
        self.client()

    def rollback(self) -> None:
        """Raise NotSupportedError: each statement is already applied."""
        self.client()
        raise NotSupportedError(
            "statements cannot be rolled back",
            hint="SQL of Apache Ignite 2 has no transactions over several statements",
        )

    def close(self) -> None:
        """Close the connection and all its cursors."""
        if self._client is None:
            raise InterfaceError("the connection is closed")
        client, self._client = self._client, None
        client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._client is not None:
            self.close()


class Cursor:
    """Runs statements and returns their rows; for use by one thread at a time.

    Attributes:
        connection: The connection that made this cursor.
        arraysize: Number of rows that `fetchmany` returns by default.
        timeout_s: Limit in seconds for a statement, after which the node cancels it; None for none.
        description: A tuple for each column of the latest query: name, type, and five times None.
        rowcount: Rows that the latest statement changed; -1 for a query.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.timeout_s = connection.timeout_s
        self.rowcount = -1
        self.lastrowid = None
        self._result: Result | None = None
        self._pages: Iterator[list[Values]] = iter(())
        self._kinds: Sequence[Kind | None] = ()
        self._rows: deque[tuple[Any, ...]] = deque()
        self._closed = False

    # Statements

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Self:
        """Run one statement, with a value for each `?`.

        Raises:
            ProgrammingError: The node refuses it, or the parameters do not fit.
            DatabaseError: Another error of the database; see `errors` for its classes.
        """
        _check_statement(operation)
        client = self._begin()
        with pep_249():
            self._run(client, operation, _checked(operation, parameters))
        return self

    def _run(self, client: Client, operation: str, values: tuple[Any, ...]) -> None:
        options = {
            "schema": self.connection.schema,
            "page_rows": self.connection.page_rows,
            "timeout_s": self.timeout_s,
        }

        def sql(statement: str, params: Sequence[Any], **given: Any) -> Result:
            # Set before the statement starts, so that `cancel` finds it.
            self._result = result = Result(client, statement)
            result.begin(params, **given)
            return result

        try:
            result = run_redirected(
                sql,
                lambda text, given: client.sql(text, given).fetchall(),
                client.cache_exists,
                operation,
                values,
                options,
            )
        except SqlError as error:
            self._result = None
            if (found := with_suggestion(client, error, operation)) is error:
                raise
            raise found from error
        self.rowcount = -1 if result.update_count is None else result.update_count
        self._pages = result.pages()
        # The first page shows the types of all columns that have values in it.
        first = result.first_page()
        self._kinds = (
            [None] * len(result.columns) if first is None else [values.kind for values in first]
        )

    def executemany(self, operation: str, seq_of_parameters: Iterable[Any]) -> Self:
        """Run one statement that changes data, once for each row of parameters.

        Many requests run at a time. If one fails, others may have been applied. Rows are read only
        when they are sent, so `seq_of_parameters` may be a generator.
        """
        _check_statement(operation)
        if not isinstance(seq_of_parameters, Iterable):
            raise ProgrammingError(
                f"the rows of parameters are a {type(seq_of_parameters).__name__}",
                hint="give a list of rows, or a generator",
            )
        client = self._begin()
        with pep_249():
            if is_query(operation):
                raise ProgrammingError("executemany() with a query", hint="use execute()")
            rows = (_checked(operation, row) for row in seq_of_parameters)
            if (first := next(rows, None)) is None:
                self.rowcount = 0
                return self
            # The first row is sent alone. If the table is the view of a data set, the error is
            # raised before the other rows are sent.
            self._run(client, operation, first)
            assert self._result is not None
            changed = self.rowcount
            self.rowcount = -1
            self.rowcount = max(changed, 0) + run_batch(
                client,
                self._result.statement,
                rows,
                schema=self.connection.schema,
                timeout_s=self.timeout_s,
            )
        return self

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing; PEP 249 allows that."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing; PEP 249 allows that."""

    def cancel(self) -> None:
        """Make a thread that waits for this cursor stop, with OperationalError.

        Another thread calls this; it has no effect on `executemany`. It drops the connection to the
        node. The node may continue with the statement for a while.
        """
        if (result := self._result) is not None:
            result.abort()

    # Rows

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns of the latest query; None if the statement was not a query."""
        if self._result is None or not self._result.columns:
            return None
        return [
            (name, None if kind is None else kind.sql, None, None, None, None, None)
            for name, kind in zip(self._result.columns, self._kinds, strict=True)
        ]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None after the last."""
        self._check_rows()
        with pep_249():
            while not self._rows:
                if (page := next(self._pages, None)) is None:
                    return None
                self._rows.extend(_rows_of(page))
        return self._rows.popleft()

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next `size` rows, fewer at the end."""
        found = []
        for _ in range(_row_count(self.arraysize if size is None else size)):
            if (row := self.fetchone()) is None:
                break
            found.append(row)
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        self._check_rows()
        assert self._result is not None
        found = list(self._rows)
        self._rows.clear()
        with pep_249():
            for page in self._result.pages(ahead=True):
                found.extend(_rows_of(page))
        return found

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    # Columns

    def fetch_numpy(self) -> dict[str, Any]:
        """Return all remaining rows as a NumPy array `[rows]` for each column; see docs/dbapi.md.

        Raises:
            ProgrammingError: Two columns have one name.
            DataError: A column has values of several types.
        """
        names, pages = self._whole()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ProgrammingError(f"two columns have the name {twice}", hint="name them with AS")
        with pep_249():
            return {n: joined_numpy([page[i] for page in pages]) for i, n in enumerate(names)}

    def fetch_arrow_table(self) -> Any:
        """Return all remaining rows as a `pyarrow.Table`; see docs/dbapi.md for the types.

        Raises:
            InterfaceError: pyarrow is not installed, or rows were fetched before.
            DataError: A column has values of several types, or more digits than Arrow holds.
        """
        with pep_249():
            pa = MissingExtra.module("pyarrow", "Arrow tables and frames need pyarrow", "arrow")
        names, pages = self._whole()
        with pep_249():
            columns = [joined_arrow(pa, [p[i] for p in pages]) for i in range(len(names))]
        return pa.table(columns, names=names)

    def fetch_df(self) -> Any:
        """Return all remaining rows as a `pandas.DataFrame`, made from an Arrow table.

        Raises:
            InterfaceError: pandas is not installed; or as for `fetch_arrow_table`.
            DataError: A day is outside the years 1 to 9999; or as for `fetch_arrow_table`.
        """
        try:
            importlib.import_module("pandas")
        except ImportError as error:
            raise InterfaceError(
                f"fetch_df() needs pandas: {error}", hint="pip install pandas"
            ) from error
        table = self.fetch_arrow_table()
        try:
            return table.to_pandas()
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"the result has a value that pandas cannot hold: {error}",
                hint="use fetch_arrow_table() or fetch_numpy()",
            ) from error

    def __arrow_c_schema__(self) -> object:
        """Return the types of the columns as an Arrow schema (PyCapsule)."""
        result = self._columns()
        with pep_249():
            return result.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all remaining rows as an Arrow stream (PyCapsule), a page at a time.

        pyarrow, pandas, Polars, DuckDB and others accept the cursor itself, and read it in bounded
        memory. Decimals have 38 digits and the scale of the first rows.

        Raises:
            InterfaceError: pyarrow is not installed, or rows were fetched before.
        """
        result = self._columns()
        with pep_249():
            return result.__arrow_c_stream__(requested_schema)

    def _whole(self) -> tuple[list[str], list[list[Values]]]:
        """Return the names of the columns, and all remaining pages."""
        result = self._columns()
        with pep_249():
            return result.columns, list(result.pages(ahead=True))

    def _columns(self) -> Result:
        """Return the result; raises InterfaceError if rows of a page were already fetched."""
        self._check_rows()
        if self._rows:
            raise InterfaceError(
                "rows of this page were already fetched one by one",
                hint="fetch columns directly after execute()",
            )
        assert self._result is not None
        return self._result

    def __repr__(self) -> str:
        if self._closed or self._result is None:
            return f"<Cursor, {'closed' if self._closed else 'no statement'}>"
        return repr(self._result).replace("<Result", "<Cursor")

    def _repr_html_(self) -> str | None:
        result = self._result
        return None if self._closed or result is None else result.shown_html(self._rows)

    # The end

    def close(self) -> None:
        """Close the cursor and discard the remaining rows."""
        self._forget()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _forget(self) -> None:
        if self._result is not None:
            self._result.close()
        self._result, self._pages, self._kinds = None, iter(()), ()
        self._rows.clear()
        self.rowcount = -1

    def _begin(self) -> Client:
        """Discard the result of the previous statement, and return the client."""
        if self._closed:
            raise InterfaceError("the cursor is closed")
        client = self.connection.client()
        self._forget()
        return client

    def _check_rows(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        self.connection.client()
        if self._result is None or not self._result.columns:
            raise ProgrammingError(
                "the cursor has no rows to fetch", hint="execute() a query first"
            )


def _rows_of(page: list[Values]) -> Iterator[tuple[Any, ...]]:
    return zip(*(values.to_python() for values in page), strict=True)


def _check_statement(operation: object) -> None:
    if not isinstance(operation, str):
        raise ProgrammingError(f"the statement is a {type(operation).__name__}, not a str")


def _row_count(size: Any) -> int:
    try:
        count = operator.index(size)
    except TypeError as error:
        raise ProgrammingError(f"size={size!r}", hint="a whole number") from error
    if count < 0:
        raise ProgrammingError(f"size={count}", hint="0 or above")
    return count


def _checked(operation: str, parameters: Any) -> tuple[Any, ...]:
    values = parameter_list(parameters, "parameters")
    expected = count_parameters(operation)
    if expected is not None and expected != len(values):
        raise ProgrammingError(
            f"the statement takes {expected} parameters, {len(values)} are given",
            hint="one value for each '?', in their order",
        )
    return values
