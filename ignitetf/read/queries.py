"""The queries that read a cache's partitions: scans, or SQL if `where=` is given.

conditions -> **queries** -> scan -> reader

A condition that depends on single rows is sent to each partition. Any other is evaluated by one
statement over the whole table, which returns keys; each partition is then scanned, and only entries
with these keys are kept. So the order within a partition is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.conditions import Condition, Table, parse_condition, quoted
from ignitetf.read.options import ReadOptions
from ignitetf.sql import statement
from ignitetf.sql.tokens import tokens
from ignitetf.wire.codes import Feature
from ignitetf.wire.requests import sql_request

__all__ = ["Selection", "find_selection"]


@dataclass(frozen=True)
class Selection:
    """The entries of a cache that a condition selects.

    Attributes:
        cache: Its name.
        table: The SQL table to read.
        condition: The condition.
    """

    cache: str
    table: Table
    condition: Condition

    def requests(self, page_size: int, partitions: Sequence[int]) -> list[bytes]:
        """Return the requests for the matching entries of partitions; only if `by_row`."""
        condition = self.condition
        return self._entries(page_size, partitions, condition.text, condition.params)

    def sample(self, page_size: int, partitions: Sequence[int]) -> tuple[list[bytes], bytes]:
        """Return the requests for any rows of the table: of partitions, and of all of them."""
        found = self._entries(page_size, partitions, "TRUE", ())
        whole = self._select("_KEY, _VAL", "TRUE")
        return found, sql_request(self.table.schema, whole, (), page_size)

    def _entries(
        self, page_size: int, partitions: Sequence[int], condition: str, params: Sequence[bytes]
    ) -> list[bytes]:
        schema, sql = self.table.schema, self._select("_KEY, _VAL", condition)
        return [
            sql_request(schema, sql, params, page_size, partitions=[partition])
            for partition in partitions
        ]

    def _select(self, what: str, condition: str) -> str:
        # The condition is the user's own SQL, checked to be a single condition; values are sent as
        # parameters.
        return f"SELECT {what} FROM {self.table.source} WHERE ({condition})"  # nosec B608

    def key_query(self, page_size: int, column: str | None = None) -> bytes:
        """Return the request for the keys of the matching rows, by one statement over all of them.

        Args:
            page_size: Rows in a page.
            column: A column whose value follows each key; None for a value that says nothing.
        """
        what = f"_KEY, {'TRUE' if column is None else quoted(column)}"
        sql = self._select(what, self.condition.text)
        return sql_request(self.table.schema, sql, self.condition.params, page_size)

    def check(self, client: Client, params: Sequence[Any]) -> None:
        """Raise ConfigError or SqlError if the cluster cannot evaluate the condition."""
        if self.condition.by_row:
            with client.channel() as channel:
                can = channel.features & Feature.QUERY_PARTITIONS_BATCH_SIZE
            if not can:
                raise ConfigError(
                    "the cluster does not take SQL by partition, where= cannot be used",
                    hint="Apache Ignite 2.13 or newer is needed for where=",
                )
        else:
            self.check_whole(client)
        # Better to learn now that the node refuses a condition than when the epoch begins.
        sql = self._select("1", self.condition.text) + " LIMIT 0"
        client.sql(sql, params, schema=self.table.schema).close()

    def check_whole(self, client: Client) -> None:
        """Raise ConfigError if a subquery would not see the whole table that it reads.

        Ignite evaluates a subquery on each node, over the rows which that node holds.
        """
        spread = {name for (name,) in client.sql(statement("spread"))}
        if names := sorted(spread & self.condition.names):
            raise ConfigError(
                f"where= compares with rows of {', '.join(names)}, and the rows are spread over"
                " the cluster: each node would compare with its own",
                hint="run the subquery first and pass its values as where_params, or keep that"
                " table in a REPLICATED cache",
            )


def find_selection(
    client: Client, cache: str, options: ReadOptions, data_set: str | None = None
) -> Selection:
    """Return the entries that `where=` and `table=` select.

    Args:
        client: The connection.
        cache: Name of the cache.
        options: The condition, its parameters and the table.
        data_set: Name of the data set in the cache, which a condition may use for its table.

    Raises:
        ConfigError: The cache has no SQL table, or several; or the condition cannot be used.
        SqlError: The node refuses the condition.
    """
    table = _find_table(client, cache, options.table, data_set)
    rows = client.sql(statement("columns"), (table.schema, table.name))
    columns = frozenset(str(row[0]) for row in rows) | {"_KEY", "_VAL"}
    table = replace(table, columns=columns)
    text: Any = "TRUE" if options.where is None else options.where
    found = Selection(cache, table, parse_condition(text, options.where_params, table, client.zone))
    found.check(client, options.where_params)
    return found


def _find_table(client: Client, cache: str, wanted: str | None, data_set: str | None) -> Table:
    rows = client.sql(statement("row_tables"), (cache,)).fetchall()
    tables = [Table(str(schema), str(name)) for schema, name in rows]
    if len(tables) == 1 and data_set is not None and tables[0].name != data_set:
        tables = [replace(tables[0], alias=data_set)]
    if not tables:
        raise ConfigError(
            f"cache {cache!r} is no SQL table, where= cannot be evaluated on the node",
            hint="load it with a table (the default of 'ignitetf load'), or use Dataset.filter",
            cache=cache,
        )
    fitting = tables if wanted is None else [t for t in tables if wanted in _spellings(t)]
    if wanted is not None and not fitting:
        name = [t.identifier for t in tokens(wanted) if t.identifier is not None]
        fitting = [t for t in tables if name in ([t.name], [t.schema, t.name])]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(t.sql for t in fitting or tables)
    if not fitting:
        raise ConfigError(f"cache {cache!r} has no table {wanted!r}", hint=f"it has {names}")
    raise ConfigError(
        f"cache {cache!r} has {len(fitting)} SQL tables: which one does where= mean?",
        hint=f"pass table=, one of {names}",
        cache=cache,
    )


def _spellings(table: Table) -> Sequence[str | None]:
    return table.alias, table.name, f"{table.schema}.{table.name}", table.sql
