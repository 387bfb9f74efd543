"""Compile SQLAlchemy's expressions to Ignite's SQL; `merge` inserts or replaces rows by key.

ddl -> **compiler** -> dialect

Source: H2 1.4.197, `Parser`, and Apache Ignite 2.17.0, which refuses `LIKE ... ESCAPE`, recursive
CTEs and `FOR UPDATE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Table, exc, types
from sqlalchemy.sql.compiler import IdentifierPreparer, SQLCompiler
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import BindParameter

from ignitetf.sqlalchemy.ddl import KEY, has_hidden_key
from ignitetf.sqlalchemy.versions import autoincrement_column

__all__ = ["IgniteCompiler", "IgnitePreparer", "Merge", "merge"]


class Merge(Insert):  # type: ignore[misc]
    """An `Insert` that Ignite runs as `MERGE INTO`: a row whose key exists is replaced.

    Omitted columns get their default, or null.
    """

    inherit_cache = True


def merge(table: Any) -> Merge:
    """Return a statement that inserts rows, or replaces those with the same primary key.

    It takes values as `sqlalchemy.insert` does: `connection.execute(merge(items), rows)`.
    """
    return Merge(table)


# Words that H2 1.4.197 does not accept as a name, and the columns that every table has.
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """all and array case check constraint cross current_date current_time current_timestamp
        current_user distinct except exists false fetch for foreign from full group having if
        inner intersect intersects interval is join key left like limit localtime localtimestamp
        minus natural not null offset on or order primary right row rownum select sysdate systime
        systimestamp table today top true union unique using values where window with
        create default delete drop insert set update user value _key _val _ver""",
    )
)

# The sum with the offset must fit into 31 bits.
_ALL_ROWS: Final = 1_000_000_000


class IgnitePreparer(IdentifierPreparer):  # type: ignore[misc]
    """Quotes names; lower-case ones stay unquoted, and Ignite converts them to upper case."""

    reserved_words = _RESERVED


class IgniteCompiler(SQLCompiler):  # type: ignore[misc]
    """Compiles queries and statements that change rows."""

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """Compile an insert; `merge` gives a `MERGE`. Fill a hidden key."""
        text: str = super().visit_insert(insert_stmt, *args, **kw)
        table = insert_stmt.table
        if isinstance(table, Table):
            if has_hidden_key(table):
                text = with_column(text, self.preparer.quote(KEY), "RANDOM_UUID()")
            else:
                self._require_key(table, text)
        return text.replace("INSERT", "MERGE", 1) if isinstance(insert_stmt, Merge) else text

    def _require_key(self, table: Table, text: str) -> None:
        """Raise CompileError if SQLAlchemy expects the database to generate a number."""
        column = autoincrement_column(table)
        if column is None or self.preparer.format_column(column) in columns_of(text):
            return
        raise exc.CompileError(
            f"Apache Ignite has no autoincrement, and a value is missing for"
            f" {table.name}.{column.name}; hint: give one, or a column"
            f' Column("{column.name}", Uuid, primary_key=True, default=uuid.uuid4)'
        )

    # Operators

    def visit_like_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile LIKE."""
        return self._like(binary, "LIKE", kw)

    def visit_not_like_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile NOT LIKE."""
        return self._like(binary, "NOT LIKE", kw)

    def _like(self, binary: Any, operator: str, kw: dict[str, Any]) -> str:
        """Compile LIKE without ESCAPE, which Ignite refuses; a backslash always escapes.

        So the pattern is rewritten: backslashes are doubled, and the escape character becomes one.
        """
        left = binary.left._compiler_dispatch(self, **kw)
        pattern = binary.right._compiler_dispatch(self, **kw)
        escape = binary.modifiers.get("escape")
        if escape is not None and escape != "\\":
            mark = self.render_literal_value(escape, types.String())
            twice = self.render_literal_value(escape * 2, types.String())
            pattern = f"REPLACE({pattern}, '\\', '\\\\')"
            # A doubled escape character is the character itself: replace it by a placeholder first.
            pattern = f"REPLACE(REPLACE({pattern}, {twice}, CHAR(1)), {mark}, '\\')"
            pattern = f"REPLACE({pattern}, CHAR(1), {mark})"
        return f"{left} {operator} {pattern}"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile a match; a regular expression of Java begins with its flags, `(?i)`."""
        return f"{self._side(binary.left, kw)} REGEXP {self._pattern(binary, kw)}"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile the opposite of a match."""
        return f"NOT ({self._side(binary.left, kw)} REGEXP {self._pattern(binary, kw)})"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile a replacement by a regular expression of Java."""
        sides = f"{self._side(binary.left, kw)}, {self._side(binary.right, kw)}"
        if (flags := binary.modifiers["flags"]) is not None:
            sides += f", {self.render_literal_value(flags, types.String())}"
        return f"REGEXP_REPLACE({sides})"

    def _pattern(self, binary: Any, kw: dict[str, Any]) -> str:
        pattern = self._side(binary.right, kw)
        if (flags := binary.modifiers["flags"]) is None:
            return pattern
        return f"{self.render_literal_value(f'(?{flags})', types.String())} || {pattern}"

    def _side(self, element: Any, kw: dict[str, Any]) -> str:
        text: str = element._compiler_dispatch(self, **kw)
        return text

    def visit_floordiv_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Compile an integer division; without types, Ignite would return a fraction."""
        if not isinstance(binary.right.type, types.Integer):
            text: str = super().visit_floordiv_binary(binary, operator, **kw)
            return text
        return " / ".join(
            f"CAST({self._side(side, kw)} AS BIGINT)"
            if isinstance(side, BindParameter) and isinstance(side.type, types.Integer)
            else self._side(side, kw)
            for side in (binary.left, binary.right)
        )

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """Compile LIMIT and OFFSET; Ignite ignores OFFSET without LIMIT in a subquery."""
        if select._limit_clause is None and select._offset_clause is not None:
            return f"\n LIMIT {_ALL_ROWS} OFFSET {self._side(select._offset_clause, kw)}"
        text: str = super().limit_clause(select, **kw)
        return text

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """Compile an empty set."""
        return f"SELECT {', '.join('NULL' for _ in element_types) or 'NULL'} WHERE 1 != 1"


# The text of an INSERT: read its columns, and add one


def columns_of(text: str) -> list[str]:
    """Return the columns of an INSERT, as it spells them."""
    start, end = next(_groups(text), (0, 0))
    return [name.strip() for name in text[start + 1 : end].split(", ")] if end else []


def with_column(text: str, name: str, value: str) -> str:
    """Return an INSERT with one more column, which has the same expression in each row.

    The new column is the first: Ignite turns an INSERT with an expression into a query, and cannot
    parse that query if the first column is called INDEX.

    Args:
        text: `INSERT INTO T (A, B) VALUES (?, ?), (?, ?)`, or the same with a query.
        name: The column's name, quoted if necessary.
        value: The column's expression.
    """
    groups = list(_groups(text))
    if not groups:
        return f"{text.replace('DEFAULT VALUES', '').rstrip()} ({name}) VALUES ({value})"
    start, end = groups[0]
    head = text[:start] + _longer(text[start : end + 1], name)
    if not text[end + 1 :].lstrip().upper().startswith("VALUES"):
        query = f"({text[end + 1 :].strip()}) AS IGNITETF_ROWS"
        return f"{head} SELECT {value}, IGNITETF_ROWS.* FROM {query}"  # nosec B608
    parts, done = [head], end + 1
    for start, end in groups[1:]:
        parts += [text[done:start], _longer(text[start : end + 1], value)]
        done = end + 1
    return "".join(parts) + text[done:]


def _longer(text: str, item: str) -> str:
    """Return a list in parentheses with an item added at the beginning."""
    return f"({item}{', ' if text[1:-1].strip() else ''}{text[1:]}"


def _groups(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each outermost pair of parentheses, ignoring quoted text."""
    depth, start, quote = 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            start = at if depth == 0 else start
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                yield start, at
