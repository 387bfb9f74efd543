"""Rows of a query into a file: CSV, JSON, Parquet or a table, as its suffix says.

rows -> **files** -> file

Rows are written while they are read, so that memory stays bounded whatever their number, and the
file appears only when it is whole.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ignitetf.cli.output import QueryOutput, Rows, note, progress, show, unique
from ignitetf.errors import MissingExtra, SchemaError

__all__ = ["Counted", "Limited", "arrow_table", "form_of", "write_file", "write_parquet"]

PARQUET_ROWS: Final = 8192  # rows per row group, as long as they have
_GROUP_BYTES: Final = 8 << 20  # no more bytes of text and blobs than these
_TYPED_GROUPS: Final = 16
_COUNTED_ROWS: Final = 1024
_FORMS: Final[dict[str, QueryOutput]] = {
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def form_of(path: Path | None, wanted: QueryOutput | None = None) -> QueryOutput:
    """Return the form that was asked for, else the one that the file's suffix says, else a table."""
    if wanted is not None or path is None:
        return wanted or "table"
    return _FORMS.get(path.suffix.lower(), "table")


class Limited:
    """The first rows of a result; prints a note if there are more."""

    def __init__(self, rows: Rows, limit: int) -> None:
        """Take at most `limit` rows."""
        self.columns = rows.columns
        self._rows = iter(rows)
        self._limit = limit

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self._rows, self._limit)
        if next(self._rows, None) is not None:
            note(f"stopped after {self._limit} rows, there are more")


class Counted:
    """Rows that are counted while they are read."""

    def __init__(self, rows: Rows, advance: Callable[[int], None] = lambda rows: None) -> None:
        """Call `advance` with the number of rows since its last call, now and then."""
        self.columns = rows.columns
        self.count = 0
        self._rows = rows
        self._advance = advance

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.count += 1
            if self.count % _COUNTED_ROWS == 0:
                self._advance(_COUNTED_ROWS)
            yield row


def write_file(rows: Rows, path: Path, form: QueryOutput) -> int:
    """Write rows to a file, with progress on stderr, and return their number."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with progress(path.name) as advance:
            counted = Counted(rows, advance)
            if form == "parquet":
                write_parquet(counted, part)
            else:
                with part.open("w", encoding="utf-8", newline="") as file:
                    show(counted, form, file=file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return counted.count


def write_parquet(rows: Rows, path: Path) -> int:
    """Write the rows to a Parquet file, one row group at a time, and return their number.

    The first row groups determine the types: one, or up to 16 where a column begins with nulls. A
    column without values in them becomes text.

    Raises:
        MissingExtra: pyarrow is not installed.
        SchemaError: Later rows have values of other types.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra.of("parquet output needs pyarrow", "query", error) from error
    names = unique(rows.columns)
    source = iter(rows)
    group = _first_group(source, len(names))
    writer: Any = None
    total = 0
    try:
        while group or writer is None:
            columns = [[_arrow(row[i]) for row in group] for i in range(len(names))]
            schema = None if writer is None else writer.schema
            table = _arrow_table(pyarrow, names, columns, schema, total)
            if writer is None:
                writer = pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=PARQUET_ROWS)
            total += len(group)
            group = _group(source)
        return total
    finally:
        if writer is not None:
            writer.close()


def _group(source: Iterator[Any], bytes_left: int = _GROUP_BYTES) -> list[Any]:
    """Return the next rows of a row group: so many, or fewer that are large."""
    group: list[Any] = []
    for row in islice(source, PARQUET_ROWS):
        group.append(row)
        bytes_left -= sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if bytes_left <= 0:
            break
    return group


def _first_group(source: Iterator[Any], width: int) -> list[Any]:
    """Return the rows that tell the types: some groups more where a column begins with nulls."""
    group: list[Any] = []
    for _ in range(_TYPED_GROUPS):
        more = _group(source, _GROUP_BYTES // _TYPED_GROUPS if group else _GROUP_BYTES)
        group += more
        if not more or all(any(row[i] is not None for row in group) for i in range(width)):
            break
    return group


def arrow_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """Return rows as an Arrow table, whose types are those of the values.

    Raises:
        SchemaError: A column has values of several types.
    """
    import pyarrow

    columns = [[_arrow(row[i]) for row in rows] for i in range(len(names))]
    return _arrow_table(pyarrow, unique(names), columns, None, 0)


def _arrow_table(
    pyarrow: Any, names: Sequence[str], columns: Sequence[list[Any]], schema: Any, start: int
) -> Any:
    arrays = []
    for index, name in enumerate(names):
        try:
            if schema is not None:
                arrays.append(pyarrow.array(columns[index], schema.field(index).type))
                continue
            array = pyarrow.array(columns[index])
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"column {name}: row {start} or one after it has a value of another type",
                hint="CAST the column in the statement",
            ) from error
        kind = array.type
        if pyarrow.types.is_null(kind):
            kind = pyarrow.string()
        elif pyarrow.types.is_decimal(kind):
            kind = pyarrow.decimal128(38, max(kind.scale, 0))
        arrays.append(array if kind == array.type else array.cast(kind))
    return pyarrow.table(arrays, names=list(names))


def _arrow(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return (datetime.datetime.min + value).time()
    return value
