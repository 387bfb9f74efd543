"""`SqlResult`: the rows of one statement, fetched and decoded in pages as they are consumed.

results -> **sql_result** -> client
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ignitetf.errors import ConfigError, SchemaError, SqlError, WireError
from ignitetf.net.pool import Pool
from ignitetf.net.results import Result
from ignitetf.net.retry import QUERY, retry
from ignitetf.sql.tokens import count_parameters, is_query
from ignitetf.wire.parameters import parameter_list
from ignitetf.wire.sql_arrays import ArrowForm

__all__ = ["SqlResult", "execute", "only_value"]

_MIDNIGHT = datetime.time()


def execute(
    pool: Pool,
    statement: str,
    params: Sequence[Any],
    *,
    schema: str = "PUBLIC",
    page_size: int | None = None,
    timeout_s: float | None = None,
    only_query: bool = False,
) -> SqlResult:
    """Run one SQL statement; `Client.sql` says what the arguments are and which errors come."""
    values = parameter_list(params)
    expected = count_parameters(statement)
    if expected is not None and expected != len(values):
        raise ConfigError(
            f"the statement takes {expected} parameters, {len(values)} are given",
            hint="one value for each '?', in their order",
        )

    def begun(_: object) -> SqlResult:
        result = SqlResult(pool, statement)
        result.begin(
            values,
            schema=schema,
            page_rows=page_size,
            timeout_s=timeout_s,
            only_query=only_query,
        )
        return result

    # Until its first page is here, a query may begin anew on another connection.
    return retry(pool.settings, begun, QUERY) if is_query(statement) else begun(None)


class SqlResult(Result):
    """The rows of one statement, fetched page by page during iteration.

    A DATE is a datetime at midnight, a TIME a timedelta; `pages` has the values as they are. What
    the statement holds on the node is closed after the last row, by `close`, or when the result is
    garbage collected.
    """

    def __init__(self, pool: Pool, statement: str) -> None:
        super().__init__(pool, statement)
        self._rows: deque[tuple[Any, ...]] = deque()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while True:
            while self._rows:
                yield self._rows.popleft()
            if (page := next(self.pages(), None)) is None:
                return
            try:
                columns = [_moments(values.to_python()) for values in page]
            except SchemaError as error:
                raise SqlError(error.message, hint=error.hint, statement=self.statement) from error
            self._rows.extend(zip(*columns, strict=True))

    def arrow_form(self, pa: Any) -> ArrowForm:
        """Return the Arrow types of the columns; raises ConfigError amid the rows of a page."""
        if self._rows:
            raise ConfigError(
                "rows of a page were read one by one before", hint="take columns right away"
            )
        return super().arrow_form(pa)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        with self:
            return list(self)


def only_value(result: SqlResult) -> Any:
    """Return the value of a statement that answers with one row of one column, such as a count.

    Raises:
        WireError: The answer has other rows or columns.
    """
    rows = result.fetchall()
    if len(rows) != 1 or len(rows[0]) != 1:
        raise WireError(
            f"damaged answer: {len(rows)} rows of {len(result.columns)} columns instead of one value"
        )
    return rows[0][0]


def _moments(values: list[Any]) -> list[Any]:
    """Return days as datetimes, and times of day as timedeltas."""
    kinds = set(map(type, values))
    if datetime.date in kinds:
        combine = datetime.datetime.combine
        return [combine(v, _MIDNIGHT) if type(v) is datetime.date else v for v in values]
    if datetime.time in kinds:
        return [
            datetime.datetime.combine(datetime.date.min, v) - datetime.datetime.min
            if type(v) is datetime.time
            else v
            for v in values
        ]
    return values
