"""Compile Ignite's DDL: tables with WITH options and hidden columns, indexes, types.

types -> **ddl** -> compiler, reflection, dialect

A table of Ignite needs a primary key and at least one other column. A table created here without a
key gets the column `KEY`, which inserts fill with a random UUID for each row. A table with key
columns only gets the column `VALUE`, which stays null. Reflection omits both, so that a reflected
table can be created, and written, again.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Index, Table, exc, util
from sqlalchemy.sql.compiler import DDLCompiler, GenericTypeCompiler

__all__ = [
    "CONSTRUCT_ARGUMENTS",
    "HIDDEN",
    "KEY",
    "IgniteDDLCompiler",
    "IgniteTypeCompiler",
    "has_hidden_key",
]

KEY: Final = "ignitetf_row_key"
VALUE: Final = "ignitetf_row_value"
HIDDEN: Final = frozenset((KEY.upper(), VALUE.upper()))

# Options of CREATE TABLE, as `ignite_NAME` of a Table.
_WITH: Final = (
    "template",
    "backups",
    "atomicity",
    "write_synchronization_mode",
    "affinity_key",
    "cache_name",
    "cache_group",
    "data_region",
    "key_type",
    "value_type",
    "wrap_key",
    "wrap_value",
    "parallelism",
    "encrypted",
    "pk_inline_size",
    "affinity_index_inline_size",
)
CONSTRUCT_ARGUMENTS: Final = [
    (Table, dict.fromkeys(_WITH)),
    (Index, {"inline_size": None, "parallel": None}),
]


def has_hidden_key(table: Any) -> bool:
    """True if a `Table` has no primary key of its own."""
    return not table.primary_key.columns


def has_hidden_value(table: Any) -> bool:
    """True if all columns of a `Table` are in its primary key."""
    return bool(table.columns) and all(column.primary_key for column in table.columns)


class IgniteDDLCompiler(DDLCompiler):  # type: ignore[misc]
    """Compiles statements that create and drop tables, views and indexes."""

    def create_table_constraints(self, table: Any, *args: Any, **kw: Any) -> str:
        """Compile the hidden columns that Ignite needs, then the constraints."""
        parts = [super().create_table_constraints(table, *args, **kw)]
        if has_hidden_key(table):
            name = self.preparer.quote(KEY)
            parts = [f"{name} UUID", *parts, f"PRIMARY KEY ({name})"]
        elif has_hidden_value(table):
            parts = [f"{self.preparer.quote(VALUE)} BOOLEAN", *parts]
        return ", \n\t".join(part for part in parts if part)

    def post_create_table(self, table: Any) -> str:
        """Return the WITH options."""
        given = table.dialect_options["ignite"]
        options = [
            f"{name}={self._option(table, name, given[name])}"
            for name in _WITH
            if given[name] is not None
        ]
        return f' WITH "{",".join(options)}"' if options else ""

    def _option(self, table: Any, name: str, value: Any) -> str:
        if name == "affinity_key":
            column = table.columns.get(value)
            # Ignite does not change a quoted name.
            value = self.dialect.denormalize_name(value if column is None else column.name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if any(mark in text for mark in '",='):
            raise exc.CompileError(f"ignite_{name} of table {table.name} is {text!r}")
        return text

    # Features that Ignite does not have

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> None:
        """Omit a foreign key, with a warning."""
        self._leave_out("foreign keys", constraint)

    def visit_unique_constraint(self, constraint: Any, **kw: Any) -> None:
        """Omit a unique constraint, with a warning."""
        self._leave_out("unique constraints", constraint)

    def visit_check_constraint(self, constraint: Any, **kw: Any) -> None:
        """Omit a check, with a warning."""
        self._leave_out("checks", constraint)

    def visit_column_check_constraint(self, constraint: Any, **kw: Any) -> str:
        """Omit the check of a column, with a warning."""
        self._leave_out("checks", constraint)
        return ""

    def _leave_out(self, what: str, constraint: Any) -> None:
        # The parent of a single column's check is that column.
        parent = getattr(constraint, "parent", None)
        util.warn(f"Apache Ignite has no {what}: one of {parent} is omitted")

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        """Compile an index; a unique one becomes an ordinary one, with a warning."""
        index = create.element
        text: str = super().visit_create_index(create, *args, **kw)
        if index.unique:
            util.warn(f"Apache Ignite has no unique indexes: {index.name} accepts duplicate rows")
            text = text.replace("CREATE UNIQUE INDEX", "CREATE INDEX", 1)
        options = index.dialect_options["ignite"]
        for name in ("parallel", "inline_size"):
            if options[name] is not None:
                text += f" {name.upper()} {int(options[name])}"
        return text


class IgniteTypeCompiler(GenericTypeCompiler):  # type: ignore[misc]
    """Compiles types in DDL and CAST."""

    def visit_TINYINT(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile TINYINT."""
        return "TINYINT"

    def visit_uuid(self, type_: Any, **kw: Any) -> str:
        """Compile a UUID; with `native_uuid=False` a text."""
        return "UUID" if type_.native_uuid else "CHAR(32)"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile FLOAT: REAL has at most 24 binary digits."""
        return "REAL" if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    def visit_DOUBLE(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile DOUBLE."""
        return "DOUBLE"

    def visit_DOUBLE_PRECISION(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile DOUBLE."""
        return "DOUBLE"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile DECIMAL."""
        return self.visit_DECIMAL(type_, **kw)

    def visit_DECIMAL(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile DECIMAL; without a precision it is unlimited."""
        if type_.precision is None:
            return "DECIMAL"
        return f"DECIMAL({type_.precision}, {type_.scale or 0})"

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile a text without a limit; Ignite's own TEXT is a CLOB."""
        return "VARCHAR"

    def visit_CLOB(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile a text without a limit."""
        return "VARCHAR"

    def visit_NVARCHAR(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile VARCHAR, which is Unicode."""
        return self._limited("VARCHAR", type_.length)

    def visit_NCHAR(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile CHAR, which is Unicode."""
        return self._limited("CHAR", type_.length)

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile bytes without a limit."""
        return "VARBINARY"

    def visit_large_binary(self, type_: Any, **kw: Any) -> str:
        """Compile bytes."""
        return self._limited("VARBINARY", type_.length)

    def visit_JSON(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile JSON, which is stored as text."""
        return "VARCHAR"

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile TIMESTAMP."""
        return "TIMESTAMP"

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile TIMESTAMP, which is in UTC."""
        return "TIMESTAMP"

    def visit_TIME(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        """Compile TIME."""
        return "TIME"

    def _limited(self, name: str, length: int | None) -> str:
        return name if length is None else f"{name}({length})"
