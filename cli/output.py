"""What a command prints: data to stdout, progress and notes to stderr.

Data are rows (a list of mappings, or an SQL result that is read while it is printed) or a single
mapping. JSON and CSV are for programs and contain values in these forms:

    date, time, timestamp   ISO 8601, without trailing zeros in the fraction
    decimal, UUID           their usual text
    bytes                   base64
    array, nested object    JSON array, JSON object (in CSV: as JSON text)
    null                    null (in CSV: nothing)
    NaN, infinity           the strings "NaN", "Infinity", "-Infinity"

Tables are for people: instead of bytes they show how many there are.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Annotated, Any, Final, Literal, Protocol, runtime_checkable

import typer

__all__ = [
    "NESTED",
    "Output",
    "OutputOption",
    "QueryOutput",
    "Rows",
    "as_rows",
    "jsonable",
    "note",
    "progress",
    "show",
    "text",
    "unique",
]

PIPED_WIDTH = 1_000_000  # keeps lines of a table unbroken unless it goes to a terminal


# Format of the data a command prints.
Output = Literal["table", "json", "csv"]
# Of the rows of a query, which may also go to a file of this kind.
QueryOutput = Literal[Output, "parquet"]
# Formats that print objects inside objects; others get flat rows.
NESTED: Final[frozenset[str]] = frozenset({"json"})


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Form of the data; dates are ISO, bytes base64.")
]


@runtime_checkable
class Rows(Protocol):
    """Rows as tuples with named columns, such as an SQL result."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows, each a sequence of values."""


Data = Rows | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def show(
    data: Data,
    output: Output = "table",
    columns: Sequence[str] | None = None,
    file: IO[str] | None = None,
) -> None:
    """Print rows or one record.

    JSON and CSV are written while the rows are read; a table needs all of them first.

    Args:
        data: Rows, or a mapping for one record.
        output: Format of the output.
        columns: Names of the fields to show, in this order; None for those of the first row.
        file: Where to write; None for stdout.
    """
    out = file or sys.stdout
    if isinstance(data, Mapping):
        record = {name: data.get(name) for name in columns or data}
        if output == "json":
            out.write(json.dumps(jsonable(record), indent=2, ensure_ascii=False) + "\n")
        elif output == "csv":
            _write_csv(list(record), [list(record.values())], out)
        else:
            _write_record(record, out)
        return
    names, rows = as_rows(data, columns)
    if output == "json":
        _write_json(names, rows, out)
    elif output == "csv":
        _write_csv(names, rows, out)
    else:
        _write_table(names, rows, out)


def as_rows(
    data: Rows | Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """Return the column names, made unique, and the rows as sequences of values."""
    if isinstance(data, Rows):
        return unique(data.columns), data
    records = list(data)
    names = list(columns or (records[0] if records else ()))
    return names, ([record.get(name) for name in names] for record in records)


def unique(names: Sequence[str]) -> list[str]:
    """Make names unique by appending `_2`, `_3`... to repeated ones."""
    out: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in out:
            number += 1
            candidate = f"{name}_{number}"
        out.append(candidate)
    return out


def jsonable(value: Any) -> Any:
    """Convert a value to what JSON can hold; see the module docstring."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return (datetime.datetime.min + value).time().isoformat()
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # NumPy
        return jsonable(value.tolist())
    if hasattr(value, "schema") and hasattr(value, "type_name"):  # pyignite's binary object
        return {name: jsonable(getattr(value, name)) for name in value.schema}
    if isinstance(value, Iterable):
        return [jsonable(v) for v in value]
    return str(value)


def text(value: Any, *, brief: bool = False) -> str:
    """Convert a value to text for CSV, or with `brief` for a table."""
    if value is None:
        return "NULL" if brief else ""
    if brief and isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    plain = jsonable(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def note(message: str) -> None:
    """Print a message for the user to stderr."""
    print(message, file=sys.stderr)


@contextmanager
def progress(
    label: str, total_rows: int | None = None, *, unit: str = "rows"
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr, if that is a terminal.

    Args:
        label: What is being done.
        total_rows: Expected number of rows.
        unit: What is counted; "bytes" is shown as MB.

    Yields:
        `advance(rows, nbytes=0)`, to call as the work proceeds.
    """
    if not sys.stderr.isatty():
        yield lambda rows, nbytes=0: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=total_rows, rate="")
        size = 0

        def advance(rows: int, nbytes: int = 0) -> None:
            nonlocal size
            size += nbytes
            current = bar.tasks[0]
            seconds = max(current.elapsed or 0.0, 1e-3)
            done = current.completed + rows
            if unit == "bytes":
                rate = f"{done / 1e6:,.1f} MB  {done / seconds / 1e6:,.1f} MB/s"
            else:
                rate = f"{done:,.0f} {unit}  {done / seconds:,.0f} {unit}/s"
            if size:
                rate += f"  {size / seconds / 1e6:,.1f} MB/s"
            bar.update(task, advance=rows, rate=rate)

        yield advance


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _write_json(names: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> None:
    out.write("[")
    separator = "\n"
    for row in rows:
        record = {name: jsonable(value) for name, value in zip(names, row, strict=True)}
        out.write(separator + json.dumps(record, ensure_ascii=False))
        separator = ",\n"
    out.write("]\n" if separator == "\n" else "\n]\n")


def _write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([text(value) for value in row])


def _write_table(names: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = list(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        numeric = any(row[index] is not None for row in cells) and all(
            row[index] is None or _is_number(row[index]) for row in cells
        )
        right = "right" if numeric else "left"
        table.add_column(Text(name), justify=right, overflow="fold")  # type: ignore[arg-type]
    for row in cells:
        table.add_row(*(Text(text(value, brief=True)) for value in row))
    _print(table, out)


def _write_record(record: Mapping[str, Any], out: IO[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in record.items():
        table.add_row(Text(name), Text(text(value, brief=True)))
    _print(table, out)


def _print(table: Any, out: IO[str]) -> None:
    from rich.console import Console

    terminal = out.isatty()
    console = Console(file=out, no_color=not terminal, width=None if terminal else PIPED_WIDTH)
    if terminal:
        console.print(table)
        return
    # Rich pads each line to the table's width, which is useless in a file.
    with console.capture() as captured:
        console.print(table)
    out.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool)
