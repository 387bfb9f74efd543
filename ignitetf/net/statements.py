"""The request of a SQL statement, and how many rows its pages have.

pool, objects -> **statements** -> results

A node fetches the pages of a cursor one by one: two requests for pages of one cursor at the same
time spoil it. So on a distant link pages have to be large. How large is not known before the first
one came, and the number of rows is fixed when the statement begins. So a query whose first page
came soon and is not the only one begins again, with pages that fit the link. The same where all rows
are wanted at once: a page of 1,024 rows takes a node half as long again as a part of a large one.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.net.distance import bytes_ahead
from ignitetf.net.objects import encode_values
from ignitetf.net.pool import Pool
from ignitetf.sql.deletions import by_value
from ignitetf.sql.row_keys import with_own_keys
from ignitetf.wire.frames import Page
from ignitetf.wire.requests import sql_request

__all__ = ["PAGE_ROWS", "fitting_rows", "statement_request", "wait_seconds"]

# Rows of a page, unless the user has chosen a number.
PAGE_ROWS: Final = 1024
# A query that took longer than this until its first page is not begun again.
_SOON_S: Final = 1.0
# The same on a near link, where there is less to gain.
_AT_ONCE_S: Final = 0.05
# Bytes of a page if all of them are wanted.
_WHOLE_BYTES: Final = 1 << 20
_MOST_PAGE_BYTES: Final = 32 << 20
_MOST_PAGE_ROWS: Final = 1 << 17
# The node makes a page in this part of the time limit of a request, by the time of the first one.
_SHARE: Final = 1 / 8
_WORTH_IT: Final = 4
_MOST_INT: Final = (1 << 31) - 1
# The node takes the limit as milliseconds in a Java int.
_LONGEST_STATEMENT_S: Final = _MOST_INT // 1000


def fitting_rows(pool: Pool, page: Page, seconds: float, *, whole: bool = False) -> int | None:
    """Return how many rows a page should rather have; None if it is not worth beginning again.

    Args:
        pool: The connections, which know the distance.
        page: The first page, which is not the last.
        seconds: How long it took to come.
        whole: All rows are wanted.
    """
    ahead = min(bytes_ahead(pool), _MOST_PAGE_BYTES)
    limit_s = _SOON_S if ahead else _AT_ONCE_S
    ahead = max(ahead, _WHOLE_BYTES if whole else 0)
    if not ahead or seconds > limit_s or not page.count:
        return None
    rate = page.count / max(1e-3, seconds - pool.quickest_s)
    by_time = int(rate * pool.settings.request_timeout_s * _SHARE)
    by_bytes = ahead * page.count // max(1, page.data.nbytes)
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
        only_query: Let the node refuse what is no query.
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
