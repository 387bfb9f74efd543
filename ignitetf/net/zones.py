"""The time zone of a cluster: by which its nodes tell a moment from a time on the calendar.

wire.zones -> **zones** -> pool

Each node tells the zone of its JVM as an attribute. Where an administrator has left that out, the
node is asked what it makes of a few moments; those that all are as in UTC tell the zone.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from ignitetf.errors import ConfigError, IgniteTFError, SqlUnavailable
from ignitetf.net.question import Question
from ignitetf.net.retry import is_retryable
from ignitetf.sql import statement
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import read_named_sql_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.parameters import encode_parameter
from ignitetf.wire.requests import sql_request
from ignitetf.wire.sql_arrays import decode_values
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.zones import UTC, Zone, zone_of

__all__ = ["cluster_zone"]

Rows = list[tuple[Any, ...]]
Ask = Callable[[Question[Rows]], Rows]

_MOST_NODES: Final = 1 << 14
_MOST_NAMED: Final = 8
_SET_IT: Final = "or say in which one times are, with IGNITETF_TIME_ZONE (time_zone= of connect)"
# Winter and summer, of times in which no zone but those that are UTC had its clocks like UTC.
_PROBED: Final = tuple(
    datetime.datetime(year, month, 1, 12)
    for year in (1905, 1942, 1970, 2000, 2024)
    for month in (1, 7)
)


def cluster_zone(ask: Ask) -> Zone:
    """Return the time zone of a cluster's nodes.

    Args:
        ask: Returns the rows of a query; raises SqlUnavailable if the cluster has no SQL engine.

    Raises:
        ConfigError: The zones of the nodes differ, or are not known.
    """
    try:
        rows = ask(_query(statement("time_zones")))
    except SqlUnavailable:
        return UTC  # without SQL nothing shows a time but a client
    except IgniteTFError as error:
        if is_retryable(error):
            raise
        rows = []  # this user may not read the views
    names = [name for name, _ in rows]
    if not names or None in names:
        return _probed(ask)
    zones = {name: zone_of(name) for name in set(names)}
    if len(set(zones.values())) > 1:
        raise _different(rows)
    return zones[names[0]]


def _probed(ask: Ask) -> Zone:
    texts = ", ".join("CAST(? AS VARCHAR)" for _ in _PROBED)
    (shown,) = ask(_query(f"SELECT {texts}", _PROBED))
    if [str(moment) for moment in _PROBED] == list(shown):
        return UTC
    raise ConfigError(
        "the cluster does not tell the time zone of its nodes",
        hint=f"let them have the attribute user.timezone (includeProperties), {_SET_IT}",
    )


def _query(text: str, params: Sequence[Any] = ()) -> Question[Rows]:
    encoded = [encode_parameter(value) for value in params]
    body = sql_request("PUBLIC", text, encoded, _MOST_NODES, names=True)
    return Question(OpCode.QUERY_SQL_FIELDS, body, _read)


def _read(body: memoryview) -> Rows:
    _, columns, page = read_named_sql_page(body)
    places = find_rows(page.data, page.count, len(columns))
    values = [decode_values(page.data, at, TypeRegistry()).to_python() for at in places]
    return list(zip(*values, strict=True))


def _different(rows: Rows) -> ConfigError:
    counts = Counter(name for name, _ in rows)
    shown = [f"{name} on {node}" for name, node in rows[:_MOST_NAMED]]
    more = len(rows) - len(shown)
    return ConfigError(
        "the nodes of the cluster have different time zones, so a DATE, TIME or TIMESTAMP is"
        f" another on each: {', '.join(shown)}{f' and {more} more' if more else ''}",
        hint=f"start all nodes with -Duser.timezone={counts.most_common(1)[0][0]}, {_SET_IT}",
    )
