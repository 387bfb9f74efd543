"""The SQL names of a data set, which are views over the tables of its current caches.

load -> cache, table -> **view** -> SQL

The table of a cache has its own name (`rows_table`), and the data set's name is a view over it. So
a replacement can be loaded into another table, and one statement then switches the view: a query
sees either the old rows or the new ones.

Source: Apache Ignite 2.17.0, by experiment.
- `CREATE OR REPLACE VIEW` keeps the cached plans of earlier statements: the same text still reads
  the old table until plans are discarded, which `ALTER TABLE` and `DROP TABLE` of any table do, on
  every node. Hence the helper table.
- A view whose table is dropped is gone too, but stays listed, and creating it again with the same
  text does nothing. So views are dropped before their tables.
- `CREATE VIEW` with the name of an existing table is accepted but does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ignitetf.errors import CacheExists, IgniteTFError
from ignitetf.net.client import Client
from ignitetf.partitions import REPLICATED_PARTITIONS
from ignitetf.sql import statement
from ignitetf.tables.room import require_room

__all__ = ["drop_views", "publish", "require_free", "rows_table", "sql_kinds", "switch"]

log = logging.getLogger(__name__)
# How long queries that still read the old rows are given to finish after a switch.
READERS_S: Final = 10.0
_POLL_S: Final = 0.02


def rows_table(cache: str) -> str:
    """Return the name of the SQL table of a cache that belongs to a data set."""
    return f"{cache}__ROWS"


def require_free(client: Client, names: Iterable[str], own: Collection[str] = ()) -> None:
    """Raise CacheExists if a SQL name is taken by somebody else's table or view.

    Args:
        client: The connection.
        names: The names.
        own: Caches whose tables and views may have these names.
    """
    for kind, name, found in _taken(client, names):
        if kind == "TABLE" and found in own:
            continue
        if kind == "VIEW" and (found in map(_text, own) or not _works(client, name)):
            # A view that does not work has lost its table.
            if not own:
                client.sql(statement("drop_view", view=name)).close()
            continue
        raise CacheExists(
            f"there is a SQL {kind.lower()} {name!r}"
            f" {'of the cache' if kind == 'TABLE' else 'over'} {found}",
            hint="choose another name, or drop it",
            cache=name,
        )


def sql_kinds(client: Client, names: Iterable[str]) -> dict[str, str]:
    """Return `TABLE` or `VIEW` for each of these names that exists in SQL."""
    return {name: kind for kind, name, _ in _taken(client, names)}


def publish(client: Client, views: Mapping[str, str]) -> None:
    """Create the views of a new data set, given as a mapping of names to tables.

    A cluster without views, which are new in Apache Ignite 2.17, shows the tables alone.
    """
    if views and not client.has_views:
        log.warning("no SQL views before Apache Ignite 2.17: SQL has %s", ", ".join(views.values()))
        return
    for name, table in views.items():
        client.sql(statement("create_view", view=name, table=table)).close()


def switch(client: Client, views: Mapping[str, str | None], helper: str) -> None:
    """Point views at other tables and wait until no query reads the previous ones.

    Args:
        client: The connection.
        views: Tables by the names of the views; None removes the view.
        helper: Name for a table and its cache that are created and dropped here, which discards
            cached plans.
    """
    if not client.has_views:
        publish(client, {name: table for name, table in views.items() if table is not None})
        return
    require_room(client, helper, REPLICATED_PARTITIONS)
    client.sql(statement("create_helper", name=helper)).close()
    for name, table in views.items():
        if table is None:
            client.sql(statement("drop_view", view=name)).close()
        else:
            client.sql(statement("create_view", view=name, table=table)).close()
    client.sql(statement("alter_helper", name=helper)).close()
    _wait_for_readers(client, views)
    # Discards plans made meanwhile.
    client.sql(statement("drop_table", schema="PUBLIC", table=helper)).close()


def drop_views(client: Client, table: str) -> None:
    """Drop the views that show a table."""
    for (name,) in client.about("views_of_table", (table,)):
        client.sql(statement("drop_view", view=name)).close()


def _taken(client: Client, names: Iterable[str]) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for name in names:
        found += client.about("sql_name", (name, name))
    return found


def _text(cache: str) -> str:
    # Only compared with the text of a view; never run.
    return f'SELECT * FROM "{rows_table(cache)}"'  # nosec B608


def _works(client: Client, view: str) -> bool:
    try:
        client.sql(statement("column_order", schema="PUBLIC", table=view)).close()
    except IgniteTFError:
        return False
    return True


def _wait_for_readers(client: Client, names: Iterable[str]) -> None:
    """Wait for running queries, on every node, that may read a view's previous table."""
    names = [name.upper() for name in names]
    deadline = time.monotonic() + READERS_S
    with contextlib.ExitStack() as stack, contextlib.suppress(IgniteTFError):
        nodes = [stack.enter_context(node) for node in _each_node(client)]
        waiting = {node: _queries(node, names) for node in nodes}
        while any(waiting.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            waiting = {n: ids & _queries(n, names) for n, ids in waiting.items() if ids}


def _each_node(client: Client) -> Iterator[contextlib.AbstractContextManager[Client]]:
    """Yield a client for each node, as a node only lists its own queries."""
    nodes = client.nodes()
    if len(nodes) < 2:
        yield contextlib.nullcontext(client)
        return
    for node in nodes:
        with contextlib.suppress(IgniteTFError):
            yield Client(replace(client.settings, addresses=node.addresses))


def _queries(client: Client, names: Iterable[str]) -> set[str]:
    rows = client.sql(statement("running_queries")).fetchall()
    return {query for query, text in rows if any(name in text.upper() for name in names)}
