"""Selects rows by `where=`, which the nodes evaluate, and by `split=`.

conditions, manifest -> **selection** -> reading -> reader

A condition that depends on single rows is sent to each partition. Any other condition is evaluated
by one statement over the whole table, which returns keys. Each partition is then scanned, and only
entries with these keys are kept. So the order within a partition is the same in both cases. This
module also computes which rows of a page, or which keys, belong to a split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.spelling import did_you_mean
from ignitetf.sql import statement
from ignitetf.sql.tokens import Token, tokens
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.splits import ALL_BUT, Division
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import Feature
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.requests import encode_parameter, sql_request
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.zones import Zone

__all__ = [
    "Condition",
    "Selection",
    "Split",
    "Table",
    "find_selection",
    "find_split",
    "parse_condition",
    "quoted",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS: Final = _words(
    "AND OR NOT IN BETWEEN LIKE ILIKE REGEXP ESCAPE IS NULL TRUE FALSE CASE WHEN THEN ELSE END AS"
)
_MARKS: Final = frozenset("().,+-*/%<>=!|")
_TYPES: Final = _words(
    "INT INTEGER BIGINT SMALLINT TINYINT BOOLEAN DECIMAL NUMERIC DOUBLE PRECISION REAL FLOAT CHAR"
    " VARCHAR BINARY VARBINARY UUID DATE TIME TIMESTAMP"
)
# Words that turn the text after them into a typed literal.
_LITERALS: Final = frozenset(("DATE", "TIME", "TIMESTAMP", "X"))
_FUNCTIONS: Final = _words(
    "ABS ACOS ASCII ASIN ATAN ATAN2 BITAND BITOR BITXOR CAST CEIL CEILING CHAR_LENGTH"
    " CHARACTER_LENGTH COALESCE CONCAT CONVERT COS COT DATEADD DATEDIFF DAY_OF_MONTH DAY_OF_WEEK"
    " DAY_OF_YEAR DAYOFMONTH DAYOFWEEK DAYOFYEAR DECODE DEGREES EXP FLOOR GREATEST HOUR IFNULL"
    " INSTR LCASE LEAST LEFT LENGTH LN LOCATE LOG LOG10 LOWER LPAD LTRIM MINUTE MOD MONTH NULLIF"
    " NVL NVL2 OCTET_LENGTH PI POSITION POWER QUARTER RADIANS REGEXP_LIKE REGEXP_REPLACE REPEAT"
    " REPLACE RIGHT ROUND RPAD RTRIM SECOND SIGN SIN SPACE SQRT SUBSTR SUBSTRING TAN TRIM TRUNC"
    " TRUNCATE UCASE UPPER YEAR"
)
# Functions that return another value on every call or in every session. Those in _UNSTEADY can be
# written without parentheses.
_UNSTEADY: Final = _words(
    "CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP ROWNUM SYSDATE SYSTIME"
    " SYSTIMESTAMP TODAY"
)
_UNSTEADY_CALLS: Final = _words(
    "CURDATE CURTIME CURRVAL GETDATE IDENTITY LAST_INSERT_ID MEMORY_FREE MEMORY_USED NEXTVAL NOW"
    " RAND RANDOM RANDOM_UUID ROW_NUMBER SCOPE_IDENTITY SECURE_RAND SESSION_ID SET TRANSACTION_ID"
    " UUID"
)
_SOME_ROWS: Final = frozenset(("FETCH", "LIMIT", "TOP"))


@dataclass(frozen=True)
class Table:
    """A SQL table of a cache.

    Attributes:
        schema: Its schema.
        name: Its name.
        columns: Names of its columns, including `_KEY` and `_VAL`.
        alias: Name of the data set, which a condition may use for the table; None if they are
            equal.
    """

    schema: str
    name: str
    columns: frozenset[str] = frozenset()
    alias: str | None = None

    @property
    def sql(self) -> str:
        """The table's name in a statement."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def source(self) -> str:
        """The text after FROM."""
        return self.sql if self.alias is None else f"{self.sql} AS {quoted(self.alias)}"


def quoted(name: str) -> str:
    """Return a name as SQL writes it exactly."""
    return '"{}"'.format(name.replace('"', '""'))


@dataclass(frozen=True)
class Condition:
    """A complete condition that can be placed in parentheses in a statement.

    Attributes:
        text: SQL, without comments.
        params: The values for its `?`, as objects.
        by_row: True if it depends only on the current row.
        names: The names in it, without qualifiers: columns, tables, functions.
    """

    text: str
    params: tuple[bytes, ...]
    by_row: bool
    names: frozenset[str]


def parse_condition(
    text: Any, params: Sequence[Any], table: Table, zone: Callable[[], Zone] | None = None
) -> Condition:
    """Parse a condition on the rows of a table.

    Args:
        text: The condition.
        params: The values for its `?`.
        table: The table.
        zone: Returns the time zone of the nodes; None for UTC.

    Raises:
        ConfigError: It is not a single condition, its parameters do not match, or it would select
            other rows each time it is evaluated.
    """
    if not isinstance(text, str):
        raise ConfigError(f"where= is a {type(text).__name__}", hint="write the condition as text")
    found = list(tokens(text))
    _check_whole(found)
    kept = [t for t in found if t.kind not in ("space", "comment")]
    if not kept:
        raise ConfigError("where= has no condition", hint="leave it out to read every row")
    if kept[0].kind == "word" and kept[0].identifier == "WHERE":
        raise ConfigError("where= begins with the word WHERE", hint="leave that word out")
    _check_steady(kept)
    count = sum(t.kind == "param" for t in kept)
    if count != len(params):
        raise ConfigError(
            f"where= takes {count} parameters, where_params has {len(params)}",
            hint="one value for each '?', in their order",
        )
    sql = "".join(" " if t.kind == "comment" else t.text for t in found).strip()
    encoded = tuple(encode_parameter(value, zone) for value in params)
    return Condition(sql, encoded, _is_by_row(kept, table), _names_of(kept))


def _check_whole(found: Sequence[Token]) -> None:
    """Raise ConfigError for text that would close the parentheses put around it."""
    depth = 0
    for token in found:
        if token.kind == "open":
            what = "a comment" if token.text[0] == "/" else f"a quote {token.text[0]}"
            raise _no_condition(f"{what} at character {token.start} is not closed")
        if token.kind == "dollar" or token.text == "\0":
            raise _no_condition(f"{token.text[:2]!r} at character {token.start}")
        if token.kind == "param" and len(token.text) > 1:
            raise _no_condition(f"{token.text!r}: parameters have no numbers, write '?'")
        if token.text == ";":
            raise _no_condition(f"';' at character {token.start}")
        depth += (token.text == "(") - (token.text == ")")
        if depth < 0:
            raise _no_condition(f"')' at character {token.start} closes nothing")
    if depth:
        raise _no_condition(f"{depth} parentheses are not closed")


def _no_condition(reason: str) -> ConfigError:
    return ConfigError(
        f"where= is not a single condition: {reason}",
        hint="pass the text that follows WHERE, and values separately, as where_params",
    )


def _check_steady(kept: Sequence[Token]) -> None:
    """Raise ConfigError for conditions that may select other rows each time."""
    words = {t.identifier for t in kept if t.kind == "word"}
    for at, token in enumerate(kept):
        called = at + 1 < len(kept) and kept[at + 1].text == "("
        qualified = at > 0 and kept[at - 1].text == "."
        name = token.identifier
        bare = token.kind == "word" and not qualified and name in _UNSTEADY
        sequence = name in ("NEXTVAL", "CURRVAL") and qualified
        if token.text == "@" or bare or sequence or (called and name in _UNSTEADY_CALLS):
            raise ConfigError(
                f"where= has {token.text}, which is another value each time it is evaluated",
                hint="every epoch, worker and resumed state has to choose the same rows: pass the"
                " value as where_params"
                + ("" if name not in _UNSTEADY else f'; a column of this name is "{name}"'),
            )
    if (some := words & _SOME_ROWS) and "ORDER" not in words:
        raise ConfigError(
            f"where= has {min(map(str, some))} without ORDER BY, which may choose other rows each"
            " time",
            hint="add ORDER BY, of a column without equal values",
        )


def _is_by_row(kept: Sequence[Token], table: Table) -> bool:
    """Return True if every token is allowed in a condition that depends on a single row."""
    at = 0
    while at < len(kept):
        token, before = kept[at], kept[at - 1].text.upper() if at else ""
        name = token.identifier
        if name is None:
            if token.kind == "mark" and token.text not in _MARKS:
                return False
            at += 1
            continue
        chain, end = _chain(kept, at)
        after = kept[end] if end < len(kept) else None
        called = after is not None and after.text == "("
        if token.kind == "word" and len(chain) == 1:
            literal = name in _LITERALS and after is not None and after.kind == "text"
            kind = name in _TYPES and (before == "AS" or before in _TYPES)
            if literal or kind or name in _OPERATORS or (called and name in _FUNCTIONS):
                at = end
                continue
        if called or not _is_column(chain, table):
            return False
        at = end
    return True


def _is_column(chain: Sequence[str], table: Table) -> bool:
    full = (table.schema, table.alias or table.name)
    return (
        len(chain) <= 3
        and chain[-1] in table.columns
        and tuple(chain[:-1]) == full[len(full) + 1 - len(chain) :]
    )


def _chain(kept: Sequence[Token], at: int) -> tuple[list[str], int]:
    """Return the names of a dotted chain that starts at `at`, and where it ends."""
    chain = [str(kept[at].identifier)]
    at += 1
    while at + 1 < len(kept) and kept[at].text == "." and kept[at + 1].identifier is not None:
        chain.append(str(kept[at + 1].identifier))
        at += 2
    return chain, at


def _names_of(kept: Sequence[Token]) -> frozenset[str]:
    """Return the last name of each dotted chain."""
    names: set[str] = set()
    at = 0
    while at < len(kept):
        if kept[at].identifier is None:
            at += 1
            continue
        chain, at = _chain(kept, at)
        names.add(chain[-1])
    return frozenset(names)


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
        """Return the requests for unfiltered rows: one per partition, and one for the table."""
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
            column: A column whose value follows each key; None for a meaningless value.
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
                    "the cluster does not support SQL by partition, so where= cannot be used",
                    hint="Apache Ignite 2.10 or newer is needed for where=",
                )
        else:
            self.check_whole(client)
        # If the node refuses the condition, raise now and not when the epoch begins.
        sql = self._select("1", self.condition.text) + " LIMIT 0"
        client.sql(sql, params, schema=self.table.schema).close()

    def check_whole(self, client: Client) -> None:
        """Raise ConfigError if a subquery would not read all rows of its table.

        Ignite evaluates a subquery on each node, over only the rows of that node.
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
        ConfigError: The cache has no SQL table, or has several; or the condition cannot be used.
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
            f"cache {cache!r} is not a SQL table, where= cannot be evaluated on the node",
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


@dataclass(frozen=True)
class Split:
    """The rows of one part of a division, or of all its others.

    Attributes:
        name: The name that was passed, such as `train` or `-fold0`.
        division: The parts.
        number: The number of the part.
        all_but: True to read all rows except those of this part.
        by: The field that the division is balanced by.
        counts: Rows in each partition; empty if they were not counted since the data changed.
    """

    name: str
    division: Division
    number: int
    all_but: bool
    by: Field | None
    counts: tuple[int, ...]

    @property
    def identity(self) -> str:
        """Name and checksum of the definition, to store in a state."""
        return f"{self.name}:{self.division.digest}"

    def has(self, marks: NDArray[np.uint64], values: Column | None) -> NDArray[np.bool_]:
        """Return for each row whether it belongs to the split.

        Args:
            marks: Result of `wire.checksum.marks_of` for the keys.
            values: The values of the field `by`.
        """
        parts = self.division.parts(self.division.places(marks), values)
        has: NDArray[np.bool_] = parts == self.number
        return ~has if self.all_but else has

    def scanned(self, schema: Schema) -> Schema:
        """Return the schema extended by the field that decides the split; `rows_of` needs it."""
        if self.by is None or self.by.name in schema.names:
            return schema
        return replace(schema, fields=(*schema.fields, self.by))

    def rows_of(self, schema: Schema, batch: Batch) -> Batch:
        """Return the rows of a batch that belong to the split, with the fields of the schema."""
        if batch.key is None:
            raise ConfigError("rows without keys cannot be split")
        values = None if self.by is None else batch.columns[self.by.name]
        rows = np.flatnonzero(self.has(marks_of(schema, batch.key), values))
        batch = Batch(batch.key, {f.name: batch.columns[f.name] for f in schema.fields})
        return batch if len(rows) == len(batch) else batch[rows]

    def counts_in(self, rows: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the rows of the split in each partition.

        Args:
            rows: The rows of all parts, int64 [parts, partitions].
        """
        own = rows[self.number]
        return tuple((rows.sum(axis=0) - own if self.all_but else own).tolist())


def find_split(cache: str, manifest: Manifest | None, name: Any) -> Split:
    """Return the split of this name.

    Args:
        cache: Name of the data set.
        manifest: Its manifest.
        name: Such as `train`; `-train` for all rows that are not in `train`.

    Raises:
        ConfigError: The split does not exist.
    """
    if not isinstance(name, str):
        raise ConfigError(f"split={name!r}", hint="the name of a split, as 'train' or '-fold0'")
    if manifest is None:
        raise ConfigError(
            f"{cache}: split={name!r}, but splits are kept in the manifest, which only data loaded"
            " by ignitetf have",
            hint="where= selects rows of other caches",
            cache=cache,
        )
    part = name.removeprefix(ALL_BUT)
    for division in manifest.splits:
        if part in division.names:
            return _split(manifest, name, division, division.names.index(part))
    known = [each for division in manifest.splits for each in division.names]
    hint: str | None = f"the splits are {', '.join(known)}"
    if not known:
        hint = f"'ignitetf split {cache} train=0.8 test=0.2' makes splits"
    prefix = name[: len(name) - len(part)]
    hint = did_you_mean(part, known, hint, form=lambda each: f"{prefix}{each}")
    raise ConfigError(f"{cache} has no split {part!r}", hint=hint, cache=cache)


def _split(manifest: Manifest, name: str, division: Division, number: int) -> Split:
    field = next((f for f in manifest.schema.fields if f.name == division.by), None)
    split = Split(name, division, number, name.startswith(ALL_BUT), field, ())
    counts = division.counts(manifest.version)
    if counts is None:
        return split
    return replace(split, counts=split.counts_in(np.array(counts, np.int64)))
