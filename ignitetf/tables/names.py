"""The SQL names in a cluster: tables with their columns, and which cache a name stands for.

system views -> **names** -> suggestions, completion, readers
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ignitetf.net.client import Client
from ignitetf.sql.references import Reference

__all__ = ["SqlNames", "SqlTable", "nearest", "quoted", "spelled", "sql_names"]

_PLAIN: Final = re.compile(r"[A-Z_][A-Z0-9_$]*\Z")


class SqlTable(NamedTuple):
    """The name of a table or view."""

    schema: str
    name: str


@dataclass(frozen=True)
class SqlNames:
    """The tables and views of a cluster with the names of their columns."""

    columns: Mapping[SqlTable, tuple[str, ...]] = field(default_factory=dict)

    @property
    def tables(self) -> list[SqlTable]:
        """All tables, those of users first."""
        return sorted(self.columns, key=lambda table: (table.schema == "SYS", table))

    def of(self, reference: Reference) -> tuple[str, ...]:
        """Return the columns of a table as a statement names it; none if there is no such table."""
        schema = reference.schema or "PUBLIC"
        return self.columns.get(SqlTable(schema, reference.table), ())


def sql_names(client: Client) -> SqlNames:
    """Ask the cluster for the names of its tables, views and columns."""
    found: dict[SqlTable, dict[str, None]] = {}
    for schema, table, column in client.about("completion"):
        found.setdefault(SqlTable(schema, table), {})[column] = None
    return SqlNames({table: tuple(columns) for table, columns in found.items()})


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most similar to one, ignoring case; those equal but for it first."""
    spelled: dict[str, str] = {}
    for each in known:
        spelled.setdefault(each.upper(), each)
    near: Sequence[str] = difflib.get_close_matches(name.upper(), spelled, count)
    return [spelled[each] for each in near]


def spelled(name: str) -> str:
    """Return a name as a statement takes it: in quotes where it is no word in capitals."""
    return name if _PLAIN.match(name) else quoted(name)


def quoted(name: str) -> str:
    """Return a name in quotes, as a statement takes any name."""
    return '"{}"'.format(name.replace('"', '""'))
