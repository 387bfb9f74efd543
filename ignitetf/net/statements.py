"""The request of a SQL statement, how many rows its pages have, and one with many rows of parameters.

pool, objects -> **statements** -> results

A node makes the pages of a cursor one by one: two requests for pages of one cursor at the same time
spoil it. So the longer a round trip takes, the larger pages have to be. The first page shows how
large rows are, but the number of rows of a page is fixed when the statement begins. So a query with
several pages runs again, with pages that fill the link for a round trip each, if the node made the
first page in less time than the saved round trips. The same applies where all rows are wanted at
once: as pages of 1,024 rows they take a node half as long again as in large pages.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ignitetf.errors import ConfigError, RequestTimeout, ServerError, WireError
from ignitetf.net.exchange import Exchange, Repeat
from ignitetf.net.failures import late, of_statement
from ignitetf.net.objects import encode_values
from ignitetf.net.pool import Pool
from ignitetf.sql.deletions import by_value
from ignitetf.sql.row_keys import with_own_keys
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, read_named_sql_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.requests import sql_request
from ignitetf.wire.sql_arrays import decode_values
from ignitetf.wire.types import TypeRegistry

__all__ = ["PAGE_ROWS", "fitting_rows", "run_batch", "statement_request", "wait_seconds"]

# Rows of a page, unless the user has chosen a number.
PAGE_ROWS: Final = 1024
# A query does not run again if its node took longer for the first page than this many round trips, or
# seconds. Where all rows are wanted, _AT_ONCE_S is the least of these limits.
_SOON_TRIPS: Final = 10
_SOON_S: Final = 1.0
_AT_ONCE_S: Final = 0.05
# Bytes per second that a link is expected to carry.
_RATE: Final = 2e9
# Bytes of a page if all of them are wanted.
_WHOLE_BYTES: Final = 1 << 20
_MOST_PAGE_BYTES: Final = 32 << 20
_MOST_PAGE_ROWS: Final = 1 << 17
# The node makes a page in this part of the time limit of a request, by the time of the first one.
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
        seconds: How long it took to arrive.
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
        encode_values(pool, params),
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
