"""Sends SQL statements: requests, page sizes, rows of parameters, and the table of a name.

pool, binary types -> **statements** -> results, client

A node makes the pages of a cursor one after the other, and two requests for pages of one cursor at the
same time spoil it. So the longer a round trip takes, the larger the pages have to be. The first page
shows how large the rows are, but a statement fixes the number of rows of a page when it begins. So a
query with several pages runs again with larger pages, if the node made the first page in less time
than this saves. A caller that wants all rows gets larger pages as well: with pages of 1,024 rows a
node takes half as long again.

The SQL name of a data set is a view, and a view cannot be written to. The user means the table behind
it, whose name changes whenever the data set is replaced. So a statement that writes to the name runs
on the table (`run_redirected`). A node that joined a cluster after a view was made may lack the view;
then it is made again.

Objects, lists and maps as parameters are encoded as pyignite encodes them.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pyignite.datatypes import AnyDataObject
from pyignite.stream import BinaryStream
from pyignite.utils import is_binary, is_hinted

from ignitetf.errors import (
    ConfigError,
    RequestTimeout,
    SchemaError,
    ServerError,
    SqlError,
    WireError,
)
from ignitetf.net.binary_types import with_types
from ignitetf.net.exchange import Exchange, Repeat
from ignitetf.net.failures import late, of_statement
from ignitetf.net.pool import Pool
from ignitetf.net.pyclient import translated
from ignitetf.sql.rewriting import by_value, with_own_keys
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, read_named_sql_page
from ignitetf.wire.objects import Bytes, Positions, find_rows
from ignitetf.wire.plain_objects import plain_objects
from ignitetf.wire.requests import encode_parameter, sql_request
from ignitetf.wire.sql_arrays import decode_values
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "NO_VIEWS",
    "PAGE_ROWS",
    "fitting_rows",
    "read_objects",
    "run_batch",
    "run_redirected",
    "statement_request",
    "wait_seconds",
]

# Rows of a page, unless the user has chosen a number.
PAGE_ROWS: Final = 1024
# A query does not run again if the node took longer than this for the first page, in round trips or
# seconds. For a caller that wants all rows, the limit is at least _AT_ONCE_S.
_SOON_TRIPS: Final = 10
_SOON_S: Final = 1.0
_AT_ONCE_S: Final = 0.05
# Bytes per second that a link is expected to carry.
_RATE: Final = 2e9
# Least bytes of a page for a caller that wants all rows.
_WHOLE_BYTES: Final = 1 << 20
_MOST_PAGE_BYTES: Final = 32 << 20
_MOST_PAGE_ROWS: Final = 1 << 17
# A page is to take at most this part of a request's time limit, judged by the first page.
_SHARE: Final = 1 / 8
_WORTH_IT: Final = 4
_UPDATED: Final = ["UPDATED"]
_MOST_INT: Final = (1 << 31) - 1
# The node takes the limit as milliseconds in a Java int.
_LONGEST_STATEMENT_S: Final = _MOST_INT // 1000


def fitting_rows(pool: Pool, page: Page, seconds: float, *, whole: bool = False) -> int | None:
    """Return how many rows a page should have; None if running the query again does not pay.

    Args:
        pool: The connections, which have the shortest delay.
        page: The first page, which is not the last.
        seconds: Time until it arrived.
        whole: All rows are wanted.
    """
    delay = pool.delay.seconds
    made_s = max(0.0, seconds - delay)
    soon_s = min(_SOON_S, _SOON_TRIPS * delay)
    wanted = min(_MOST_PAGE_BYTES, pool.settings.ahead_bytes, int(_RATE * delay))
    if whole:
        soon_s, wanted = max(soon_s, _AT_ONCE_S), max(wanted, _WHOLE_BYTES)
    if made_s > soon_s or not page.count:
        return None
    rate = page.count / max(1e-3, made_s)
    by_time = int(rate * pool.settings.request_timeout_s * _SHARE)
    by_bytes = wanted * page.count // max(1, page.data.nbytes)
    rows = min(by_time, by_bytes, _MOST_PAGE_ROWS)
    return rows if rows >= _WORTH_IT * page.count else None


def statement_request(
    pool: Pool,
    statement: str,
    params: Sequence[Any],
    schema: str,
    page_rows: int,
    timeout_s: float | None,
    only_query: bool = False,
) -> bytes:
    """Return the request that runs a statement; raises ConfigError for what cannot be sent.

    Args:
        pool: Knows the types of objects among the values.
        statement: The statement.
        params: Values for its parameters.
        schema: SQL schema for names without one.
        page_rows: Rows that the node sends at once.
        timeout_s: Limit after which the node cancels it; None for none.
        only_query: Let the node refuse what is not a query.
    """
    if not (timeout_s is None or _is_limit(timeout_s)):
        raise ConfigError(
            f"timeout_s={timeout_s!r}",
            hint=f"a number above 0, up to {_LONGEST_STATEMENT_S} seconds",
        )
    if not _is_page(page_rows):
        raise ConfigError(f"page_rows={page_rows!r}", hint=f"a whole number, 1 to {_MOST_INT}")
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the statement has half of a surrogate pair, no character, at {error.start}"
        ) from error
    statement, params = with_own_keys(statement, params)
    return sql_request(
        schema,
        by_value(statement, params),
        _encode_values(pool, params),
        page_rows,
        timeout_ms=0 if timeout_s is None else max(1, int(timeout_s * 1000)),
        any_statement=not only_query,
        names=True,
    )


def _is_limit(timeout_s: Any) -> bool:
    return isinstance(timeout_s, numbers.Real) and 0 < float(timeout_s) <= _LONGEST_STATEMENT_S


def _is_page(rows: Any) -> bool:
    return isinstance(rows, numbers.Integral) and 0 < int(rows) <= _MOST_INT


def wait_seconds(pool: Pool, timeout_s: float | None) -> float:
    """Return how long to wait: longer than the node, so that it can report the cancellation."""
    return pool.settings.request_timeout_s + (timeout_s or 0.0)


def run_batch(
    pool: Pool,
    statement: str,
    rows: Iterable[Sequence[Any]],
    *,
    schema: str,
    timeout_s: float | None,
) -> int:
    """Run a statement with several rows of parameters, many at a time; return the rows changed.

    The error of the first that fails is raised, once all statements under way are answered. These may
    have taken effect, in any order. None is sent twice.
    """
    changed = 0
    failed: dict[int, ServerError] = {}

    def count(_: int, answer: memoryview) -> None:
        nonlocal changed
        changed += _changes(answer)

    statements = Exchange(
        pool,
        count,
        repeat=Repeat.NEVER,
        refused=failed.__setitem__,
        limit_s=wait_seconds(pool, timeout_s),
        connections=1,
    )
    try:
        for number, row in enumerate(rows):
            request = statement_request(pool, statement, row, schema, 1, timeout_s)
            statements.send(number, OpCode.QUERY_SQL_FIELDS, request)
            if failed:
                break
        statements.finish()
    except RequestTimeout as error:
        raise late(error, statement) from error
    finally:
        statements.close()
    if failed:
        first = failed[min(failed)]
        raise of_statement(first, statement) from first
    return changed


def _changes(answer: memoryview) -> int:
    """Return how many rows a statement changed, by its answer."""
    _, columns, page = read_named_sql_page(answer)
    if columns != _UPDATED or page.count != 1:
        raise WireError(f"the answer to a change has the columns {columns}")
    (at,) = find_rows(page.data, 1, 1)
    return int(decode_values(page.data, at, TypeRegistry()).to_python()[0])


def read_objects(
    pool: Pool, data: Bytes, at: Positions, registry: TypeRegistry, statement: str
) -> list[Any]:
    """Return the objects at these positions of a page, None for a null.

    Raises:
        SqlError: One of them cannot be read.
        WireError: An object reaches beyond the page.
    """
    try:
        return with_types(pool, registry, plain_objects, data, at, registry)
    except SchemaError as error:
        raise SqlError(error.message, hint=error.hint, statement=statement) from error


def _encode_values(pool: Pool, values: Sequence[Any]) -> list[bytes]:
    """Encode parameters; lists, objects and values with a type of pyignite as pyignite does.

    Raises:
        ConfigError: SQL has no type for a value.
    """
    return [
        _encoded(pool, value)
        if isinstance(value, (list, tuple)) or is_binary(value)
        else encode_parameter(value, pool.zone)
        for value in values
    ]


def _encoded(pool: Pool, value: Any) -> bytes:
    """Return a parameter's bytes, for a column of arrays or objects."""
    client = pool.pyignite
    with BinaryStream(client) as stream:
        if is_hinted(value):
            value[1].from_python(stream, value[0])
            return bytes(stream.getvalue())
        try:
            AnyDataObject.map_python_type(value)
        except (TypeError, IndexError) as error:
            raise ConfigError(
                f"a SQL parameter cannot be this {type(value).__name__}: {error}",
                hint="an array has values of one type; of a list for IN each value has a '?' of"
                " its own",
            ) from error
        with translated():
            AnyDataObject.from_python(stream, value)
        return bytes(stream.getvalue())


R = TypeVar("R")
# Returns the rows of a statement of ours, with its parameters.
Ask = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

# The form that `create_view.sql` gives to a view over a data set's table.
_VIEW: Final = re.compile(r'SELECT \* FROM "([^"]+__ROWS)" ?')
_OWN_TABLE: Final = re.compile(r"__ROWS\b")
_NAME: Final = r'(?P<name>"[^"]+"|\w+)(?![\w.])'
# The error of a cluster before Apache Ignite 2.17, whose SYS.VIEWS has no column with the statements.
NO_VIEWS = re.compile(r'Column "(\w+\.)?SQL" not found')
_WRITES: Final = re.compile(
    r"""\s*(?:INSERT\s+INTO|MERGE\s+INTO|UPDATE|DELETE\s+FROM
    |(?P<drop>DROP\s+TABLE(?P<if>\s+IF\s+EXISTS)?)
    |ALTER\s+TABLE(?:\s+IF\s+EXISTS)?
    |CREATE\s+INDEX(?:\s+IF\s+NOT\s+EXISTS)?(?:\s+(?!ON\b)(?:"[^"]+"|\w+))?\s+ON
    )\s+(?:"?PUBLIC"?\.)?"""
    + _NAME,
    re.IGNORECASE | re.VERBOSE,
)

_NO_TABLE: Final = re.compile(r'Table "([^"]+)" not found')
_NO_COLUMN: Final = re.compile(r'Column "(?:[^"]+\.)?_(?:KEY|VAL)" not found')


def run_redirected(
    sql: Callable[..., R],
    ask: Ask,
    is_cache: Callable[[str], bool],
    statement: str,
    params: Sequence[Any],
    options: Mapping[str, Any],
) -> R:
    """Run a statement, on the data set's table if it writes to a data set by its name.

    Views that it reads and that only this node lacks are created again.

    Args:
        sql: Runs a statement with parameters and options.
        ask: Returns the rows of a statement of ours.
        is_cache: True if a cache of the given name exists.
        statement: The statement.
        params: Values for its parameters.
        options: Options of `sql`.

    Raises:
        SqlError: The node refused the statement.
    """
    found = _WRITES.match(statement)
    if found is not None and found["if"] is not None:
        # With IF EXISTS the node would silently do nothing for the name of a view.
        statement = _data_set_statement(ask, statement) or statement
    tried: set[str] = set()
    while True:
        try:
            return sql(statement, params, **options)
        except SqlError as error:
            if (meant := _data_set_statement(ask, statement)) is not None:
                break
            if _repair_view(ask, error.message, tried):
                continue  # a statement may read several such views, of which a node names one
            if (hint := _hint(is_cache, error.message)) is not None:
                raise error.hinted(hint) from error
            raise
    try:
        return sql(meant, params, **options)
    except SqlError as error:
        # The user wrote the name of the data set, not that of its table.
        message = _OWN_TABLE.sub("", error.message)
        raise type(error)(message, hint=error.hint, **error.fields) from error


def _repair_view(ask: Ask, message: str, tried: set[str]) -> bool:
    """Create a view again that the node lists but does not have; return whether it was created.

    A node that joins a cluster in memory reads the list of views before it has their tables, so none
    of the views works on it (Apache Ignite 2.17.0, by experiment). Creating a view with the same text
    does nothing, so the text gets a blank at its end first.

    Args:
        ask: Returns the rows of a statement of ours.
        message: The node's error for the refused statement.
        tried: Views that were tried already; this one is added.
    """
    missing = _NO_TABLE.match(message)
    if missing is None or missing[1] in tried:
        return False
    tried.add(missing[1])
    # Views of the system have no text.
    query = "SELECT SCHEMA, SQL FROM SYS.VIEWS WHERE NAME = ? AND SQL IS NOT NULL"
    try:
        views = ask(query, (missing[1],))
        for schema, text in views:
            _repair_base(ask, text, tried)
            for again in (f"{text.rstrip()} ", text.rstrip()):
                ask(f'CREATE OR REPLACE VIEW "{schema}"."{missing[1]}" AS {again}', ())
    except ServerError:
        # The cluster is read-only, or the user may not change it: the first error says more.
        return False
    return bool(views)


def _repair_base(ask: Ask, text: str, tried: set[str]) -> None:
    """Repair the views that a view of this text reads."""
    while True:
        try:
            ask(f"SELECT 1 FROM ({text}) WHERE FALSE", ())  # nosec B608
        except SqlError as error:
            if _repair_view(ask, error.message, tried):
                continue
        return


def _hint(is_cache: Callable[[str], bool], message: str) -> str | None:
    """Return a hint for a statement that used a data set's name as a table; None if it did not."""
    if _NO_COLUMN.match(message):
        return (
            "the SQL name of a data set is a view, which has no _KEY and _VAL: 'ignitetf table"
            " describe NAME' shows the column of the key"
        )
    missing = _NO_TABLE.match(message)
    if missing is None or not is_cache(missing[1]):
        return None
    return (
        f"cache {missing[1]!r} has no SQL table: blocks get one of the columns of --index, and"
        " other caches by CREATE TABLE"
    )


def _data_set_statement(ask: Ask, statement: str) -> str | None:
    """Return the statement on the data set's table; None if it does not write to a data set.

    Drops the view first if the statement drops the table.
    """
    if (found := _WRITES.match(statement)) is None:
        return None
    name = found["name"]
    name = name[1:-1] if name.startswith('"') else name.upper()
    query = "SELECT SQL FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC' AND NAME = ?"
    try:
        views = ask(query, (name,))
    except SqlError as error:
        if NO_VIEWS.search(error.message):
            return None
        raise
    shown = [view[1] for (text,) in views if (view := _VIEW.fullmatch(text)) is not None]
    if not shown:
        return None
    if found["drop"]:
        ask(f'DROP VIEW IF EXISTS "{name}"', ())
    return f'{statement[: found.start("name")]}"{shown[0]}"{statement[found.end("name") :]}'
