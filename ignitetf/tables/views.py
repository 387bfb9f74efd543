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
- A node that joins a cluster in memory lists the views, but has none of them. `net/statements`
  creates them again when a statement needs one.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ignitetf.errors import CacheExists, IgniteTFError
from ignitetf.net.client import Client
from ignitetf.partitions import REPLICATED_PARTITIONS
from ignitetf.sql import statement
from ignitetf.tables.nodes import each_node
from ignitetf.tables.room import require_room
from ignitetf.tables.storage import rows_table
from ignitetf.wire.answers import NodeEndpoint

__all__ = [
    "Switch",
    "Taken",
    "drop_views",
    "publish",
    "require_free",
    "shown_cache",
    "taken_names",
]

# `TABLE` or `VIEW`, its name, and its cache or its statement.
Taken = tuple[str, str, str]

log = logging.getLogger(__name__)
# Time limit of a switch for queries that still read the old rows.
READERS_S: Final = 10.0
_POLL_S: Final = 0.02
_NAMES_PER_STATEMENT: Final = 4  # names per statement
_SHOWN: Final = re.compile(r'SELECT \* FROM "(.+)__ROWS" ?\Z')


def taken_names(client: Client, names: Iterable[str]) -> list[Taken]:
    """Return the tables and views that have one of these names in SQL."""
    left, found = list(dict.fromkeys(names)), list[Taken]()
    while left:
        asked, left = left[:_NAMES_PER_STATEMENT], left[_NAMES_PER_STATEMENT:]
        asked += asked[:1] * (_NAMES_PER_STATEMENT - len(asked))
        found += client.about("sql_name", (*asked, *asked))
    return found


def require_free(client: Client, taken: Iterable[Taken], own: Collection[str] = ()) -> None:
    """Raise CacheExists if the table or view of another cache has one of the SQL names.

    Args:
        client: The connection.
        taken: The tables and views that have the names.
        own: Caches whose tables and views may have these names.
    """
    for kind, name, found in taken:
        if kind == "TABLE" and found in own:
            continue
        if kind == "VIEW" and (found.rstrip() in map(_text, own) or not _works(client, name)):
            # A view that cannot be read has lost its table.
            if not own:
                client.sql(statement("drop_view", view=name)).close()
            continue
        raise CacheExists(
            f"there is a SQL {kind.lower()} {name!r}"
            f" {'of the cache' if kind == 'TABLE' else 'over'} {found}",
            hint="choose another name, or drop it",
            cache=name,
        )


def publish(client: Client, views: Mapping[str, str]) -> None:
    """Create the views of a new data set, given as a mapping of names to tables.

    A cluster without views, which are new in Apache Ignite 2.17, shows the tables alone.
    """
    if views and not client.has_views:
        log.warning("no SQL views before Apache Ignite 2.17: SQL has %s", ", ".join(views.values()))
        return
    for name, table in views.items():
        client.sql(statement("create_view", view=name, table=table)).close()


class Switch:
    """Points the SQL names of a data set at other tables.

    The constructor reads the present views and changes nothing. `run` changes the views and waits
    until no query reads the previous tables; `end` cleans up. Both accept calls to run meanwhile.

    Attributes:
        blocked: True if a table has one of the names, so that no view can have it.
    """

    def __init__(
        self, client: Client, shown: Mapping[str, str], names: Iterable[str], helper: str
    ) -> None:
        """Prepare a switch.

        Args:
            client: The connection.
            shown: The new tables by their SQL names.
            names: Names that the data set may have had; remaining views of these names are removed.
            helper: Name for a table and its cache that are created and dropped here, which
                discards cached plans.

        Raises:
            ServerOverloaded: The node has no room for the helper.
        """
        self._client, self._shown, self._helper = client, shown, helper
        self._nodes: Sequence[NodeEndpoint] = ()
        # The views to create are known here; the views to remove are not.
        first = [self._look] if shown else []
        taken, *_ = client.at_once(lambda: taken_names(client, {*names, *shown}), *first)
        kinds = {name: kind for kind, name, _ in taken}
        self.blocked = "TABLE" in kinds.values()
        self._gone = [n for n, kind in kinds.items() if kind == "VIEW" and n not in shown]
        if self._gone and not shown:
            self._look()

    def run(self, *calls: Callable[[], Any]) -> list[Any]:
        """Change the views, wait until no query reads old tables; return the calls' results."""
        if not self._has_helper:
            _, *found = self._client.at_once(self._publish, *calls)
            return found
        _, _, *found = self._client.at_once(self._make_helper, self._change, *calls)
        self._client.sql(statement("alter_helper", name=self._helper)).close()
        _wait_for_readers(self._client, self._nodes, [*self._shown, *self._gone])
        return found

    def end(self, *calls: Callable[[], Any]) -> list[Any]:
        """Discard the plans made meanwhile; returns the results of the calls."""
        repaired, _, *found = self._client.at_once(self._overwritten, self._drop_helper, *calls)
        if repaired:
            self._change()
            self._make_helper()
            self._drop_helper()
        return found

    def _overwritten(self) -> bool:
        """True if another client repaired a view meanwhile, with the previous table."""
        if not self._shown or not self._has_helper:
            return False
        texts = {name: text for kind, name, text in taken_names(self._client, self._shown)}
        return any(
            texts[name].rstrip() != _text_of(table)
            for name, table in self._shown.items()
            if name in texts
        )

    @property
    def _has_helper(self) -> bool:
        return bool(self._shown or self._gone) and self._client.has_views

    def _look(self) -> None:
        if not self._client.has_views:
            return
        self._nodes, _ = self._client.at_once(
            self._client.nodes,
            lambda: require_room(self._client, self._helper, REPLICATED_PARTITIONS),
        )

    def _publish(self) -> None:
        publish(self._client, self._shown)

    def _make_helper(self) -> None:
        self._client.sql(statement("create_helper", name=self._helper)).close()

    def _change(self) -> None:
        for name, table in self._shown.items():
            self._client.sql(statement("create_view", view=name, table=table)).close()
        for name in self._gone:
            self._client.sql(statement("drop_view", view=name)).close()

    def _drop_helper(self) -> None:
        if self._has_helper:
            text = statement("drop_table", schema="PUBLIC", table=self._helper)
            self._client.sql(text).close()


def drop_views(client: Client, table: str) -> None:
    """Drop the views that show a table."""
    for (name,) in client.about("views_of_table", (table,)):
        client.sql(statement("drop_view", view=name)).close()


def _text(cache: str) -> str:
    return _text_of(rows_table(cache))


def _text_of(table: str) -> str:
    # Only compared with the text of a view; never run.
    return f'SELECT * FROM "{table}"'  # nosec B608


def shown_cache(text: str) -> str | None:
    """Return the cache of a view with this text; None for a view that no load made."""
    found = _SHOWN.match(text)
    return None if found is None else found[1]


def _works(client: Client, view: str) -> bool:
    try:
        client.sql(statement("column_order", schema="PUBLIC", table=view)).close()
    except IgniteTFError:
        return False
    return True


def _wait_for_readers(client: Client, nodes: Sequence[NodeEndpoint], names: Iterable[str]) -> None:
    """Wait for running queries, on every node, that may read a view's previous table."""
    names = [name.upper() for name in names]
    deadline = time.monotonic() + READERS_S
    with contextlib.ExitStack() as stack, contextlib.suppress(IgniteTFError):
        clients = [stack.enter_context(each) for each in each_node(client, nodes)]
        waiting = {each: _queries(each, names) for each in clients}
        while any(waiting.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            waiting = {n: ids & _queries(n, names) for n, ids in waiting.items() if ids}


def _queries(client: Client, names: Iterable[str]) -> set[str]:
    rows = client.sql(statement("running_queries")).fetchall()
    return {query for query, text in rows if any(name in text.upper() for name in names)}
