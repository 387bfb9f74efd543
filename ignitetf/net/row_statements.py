"""One statement with many rows of parameters, many of them under way at a time.

statements -> **row statements** -> dbapi
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ignitetf.errors import RequestTimeout, ServerError, WireError
from ignitetf.net.channel import Channel
from ignitetf.net.failures import late, of_statement
from ignitetf.net.pool import Pool
from ignitetf.net.statements import statement_request, wait_seconds
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import read_named_sql_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.sql_values import decode_values
from ignitetf.wire.types import TypeRegistry

__all__ = ["run_batch"]

# Statements of a batch that are under way at a time, at most.
_IN_FLIGHT: Final = 128
_IN_FLIGHT_BYTES: Final = 4 << 20
_UPDATED: Final = ["UPDATED"]


def run_batch(
    pool: Pool,
    statement: str,
    rows: Iterable[Sequence[Any]],
    *,
    schema: str,
    timeout_s: float | None,
) -> int:
    """Run a statement with several rows of parameters, many at a time; return the rows changed.

    The first that fails is raised, after the answers to those that were under way have come. They
    may have taken effect, in any order.
    """
    bodies = (statement_request(pool, statement, row, schema, 1, timeout_s) for row in rows)
    changed = 0
    channel = pool.acquire()
    try:
        for part in _windows(bodies):
            numbers = channel.send_all(OpCode.QUERY_SQL_FIELDS, part)
            changed += _count_changes(channel, numbers, statement, wait_seconds(pool, timeout_s))
    except ServerError:
        pool.release(channel)
        raise
    except BaseException:
        channel.close()
        raise
    pool.release(channel)
    return changed


def _windows(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield requests in groups that are bounded in number and, but for the last, in bytes."""
    for first in bodies:
        part, size = [first], len(first)
        while len(part) < _IN_FLIGHT and size < _IN_FLIGHT_BYTES:
            if not (more := list(itertools.islice(bodies, 1))):
                break
            part += more
            size += len(more[0])
        yield part


def _count_changes(channel: Channel, numbers: Sequence[int], statement: str, wait_s: float) -> int:
    changed, failed = 0, None
    for number in numbers:
        try:
            _, columns, page = read_named_sql_page(channel.receive(number, timeout_s=wait_s))
        except ServerError as error:
            failed = failed or error
            continue
        except RequestTimeout as error:
            raise late(error, statement) from error
        if columns != _UPDATED or page.count != 1:
            raise WireError(f"the answer to a change has the columns {columns}")
        (at,) = find_rows(page.data, 1, 1)
        changed += int(decode_values(page.data, at, TypeRegistry()).to_python()[0])
    if failed is not None:
        raise of_statement(failed, statement) from failed
    return changed
