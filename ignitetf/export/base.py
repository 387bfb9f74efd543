"""Base classes of formats. A format checks the fields, then writes batches to files.

rows -> **format** -> target
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, runs_of, values_of
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import BYTES, Field

__all__ = ["COLUMNS", "Format", "Sink", "cannot_hold", "python_values", "utf8_text"]

# Types that fit into a column: all but objects, maps, and lists of them.
COLUMNS: Final = frozenset(
    {
        Family.NUMBER,
        Family.MILLISECONDS,
        Family.TIMESTAMP,
        Family.UUID,
        Family.TEXT,
        Family.DECIMAL,
        Family.ARRAY,
        Family.STORED,
    }
)


class Sink(ABC):
    """A file that rows are written to."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Append rows; raises SchemaError for a value that the format cannot hold."""

    @abstractmethod
    def close(self) -> None:
        """Write the remaining rows, and close the file."""


class Format(ABC):
    """The form of rows in files; chosen before the first row is read.

    Attributes:
        kind: The kind of source that loads the files again.
        suffix: Suffix of the files.
    """

    kind: str
    suffix: str

    def __init__(self, rows: ExportRows) -> None:
        """Check the fields; raises SchemaError for one that the format cannot hold."""
        self.rows = rows
        self.fields: tuple[Field, ...] = rows.fields

    @abstractmethod
    def open(self, target: Target, name: str) -> Sink:
        """Open a new file of a target; `name` is empty if it is the target itself."""

    def options(self) -> list[str]:
        """Return the options of `ignitetf load` that restore the original types."""
        return [] if self.rows.key_name is None else ["--key", self.rows.key_name]

    def require(
        self, format_name: str, families: Collection[Family], refused: Collection[TypeCode] = ()
    ) -> None:
        """Raise SchemaError unless all fields are of the families, or lists of texts."""
        for field in self.fields:
            held = family_of(field.type) in families or field.type is TypeCode.STRING_ARRAY
            if not held or field.type in refused:
                raise cannot_hold(format_name, field)


def cannot_hold(format_name: str, field: Field, what: str = "") -> SchemaError:
    """Return the error for a field, or a value in it, that a format cannot hold."""
    kind = field.type.name.lower()
    other = "parquet" if format_name != "parquet" else "another format"
    return SchemaError(
        f"field {field.name}: {format_name} cannot hold {what or f'values of the type {kind}'}",
        hint=f"export to {other}, or choose other fields with --fields, or rows with --where",
        field=field.name,
    )


def utf8_text(field: Field, value: bytes) -> str:
    """Return a text of a field; raises SchemaError if it is not UTF-8 (Java allows such texts)."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        what = "a text with half of a surrogate pair"
        raise cannot_hold("a file of texts in UTF-8", field, what) from error


def python_values(field: Field, column: Column) -> list[Any]:
    """Return the values of numbers, texts, blobs and arrays; None for a null.

    Texts and blobs are `bytes`. Arrays are NumPy arrays of the field's shape. Lists of texts are
    lists of `bytes`.
    """
    values: list[Any]
    if isinstance(column, Dense):
        shape = tuple(n for n in field.shape if n is not None)
        dense = column.values
        values = list(dense.reshape(len(dense), *shape)) if shape else dense.tolist()
    elif field.dtype == BYTES and not field.shape:
        values = runs_of(column).to_bytes()
    else:
        runs = runs_of(column)
        items: Any = runs.items
        items = items.to_bytes() if isinstance(items, Runs) else values_of(items)
        spans = zip(runs.starts.tolist(), (runs.starts + runs.lengths).tolist(), strict=True)
        values = [items[a:b] for a, b in spans]
        if isinstance(items, np.ndarray):
            rest = tuple(n for n in field.shape[1:] if n is not None)
            values = [part.reshape(-1, *rest) for part in values]
    if column.valid is None:
        return values
    return [v if valid else None for v, valid in zip(values, column.valid.tolist(), strict=True)]
