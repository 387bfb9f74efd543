"""A command's output: data to stdout, progress and notes to stderr.

Data are rows (a list of mappings, or an SQL result that is read while it is printed) or a single
mapping. JSON and CSV are for programs and contain values in these forms:

    date, time, timestamp   ISO 8601, without trailing zeros in the fraction
    decimal, UUID           their usual text
    bytes                   base64
    array, nested object    JSON array, JSON object (in CSV: as JSON text)
    null                    null (in CSV: nothing)
    NaN, infinity           the strings "NaN", "Infinity", "-Infinity"

Tables are for people: they show the number of bytes instead of bytes, and only the certain digits
of floats (`tables`).
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Annotated, Any, Final, Literal

import typer

from ignitetf.cli.paged import Paged, Rows
from ignitetf.cli.tables import record_lines, table_lines
from ignitetf.cli.values import csv_values, json_texts, jsonable

__all__ = [
    "NESTED",
    "Output",
    "OutputOption",
    "QueryOutput",
    "TextOutput",
    "as_rows",
    "note",
    "progress",
    "say",
    "show",
    "terminal_width",
    "unique",
]

# Format of the data a command prints.
Output = Literal["table", "json", "csv"]
# Formats of a query's rows: also JSON lines, one record each, and the formats for files only.
TextOutput = Literal[Output, "jsonl"]
QueryOutput = Literal[TextOutput, "parquet", "arrow"]
# Formats that print nested objects; others get flat rows.
NESTED: Final[frozenset[str]] = frozenset({"json"})


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format; dates are ISO, bytes base64.")
]


Data = Rows | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def show(
    data: Data,
    output: TextOutput = "table",
    columns: Sequence[str] | None = None,
    file: IO[str] | None = None,
) -> None:
    """Print rows or one record.

    The table of one record omits unknown values. JSON and CSV are written while the rows are read,
    as is a table in a terminal. Other tables need all rows first, for the widths of their columns.

    Args:
        data: Rows, or a mapping for one record.
        output: Format of the output.
        columns: Names of the fields to show, in this order; None for those of the first row.
        file: File to write to; None for stdout.
    """
    out = file or sys.stdout
    if isinstance(data, Mapping):
        record = {name: data.get(name) for name in columns or data}
        if output == "json":
            out.write(json.dumps(jsonable(record), indent=2, ensure_ascii=False) + "\n")
        elif output == "csv":
            _write_csv(list(record), [[[value] for value in record.values()]], out)
        else:
            known = {name: value for name, value in record.items() if value is not None}
            _write_lines(record_lines(known, terminal_width(out)), out)
        return
    names, rows = as_rows(data, columns)
    if output == "json":
        _write_json(names, _by_columns(rows), out)
    elif output == "jsonl":
        for lines in _json_records(names, _by_columns(rows)):
            out.write("\n".join(lines) + "\n")
    elif output == "csv":
        _write_csv(names, _by_columns(rows), out)
    else:
        _write_lines(table_lines(names, rows, terminal_width(out)), out)


def say(message: str, record: Mapping[str, Any], output: Output) -> None:
    """Report the result of a command: a message for people, a record for programs.

    Args:
        message: The message, for stderr.
        record: The same as facts, for stdout.
        output: Format of the output; the message is for tables.
    """
    if output == "table":
        note(message)
    else:
        show(record, output)


def as_rows(
    data: Rows | Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> tuple[list[str], Rows | Iterable[Sequence[Any]]]:
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


def terminal_width(out: IO[str]) -> int | None:
    """Return the width of the terminal of a stream; None if it is not a terminal."""
    return max(1, shutil.get_terminal_size().columns) if out.isatty() else None


def note(message: str) -> None:
    """Print a message for the user to stderr; on a terminal, lines end between words."""
    width = terminal_width(sys.stderr)
    for line in message.split("\n"):
        text = line
        if width is not None and len(line) >= width:
            text = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        print(text, file=sys.stderr)


@contextmanager
def progress(
    label: str, total_rows: int | None = None, *, unit: str = "rows"
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr, if that is a terminal.

    Args:
        label: Name of the work.
        total_rows: Expected number of rows.
        unit: Unit of the rows; "bytes" is shown as MB.

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
        redirect_stdout=False,  # this output is data, for a file or a pipe
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


def _by_columns(rows: Rows | Iterable[Sequence[Any]]) -> Iterator[list[list[Any]]]:
    """Yield rows as lists of values for each column: a page, or one row, at a time."""
    if isinstance(rows, Paged):
        for page in rows.pages():
            yield [values.to_python() for values in page]
        return
    for row in rows:
        yield [[value] for value in row]


def _json_records(
    names: Sequence[str], groups: Iterable[list[list[Any]]]
) -> Iterator[Iterable[str]]:
    """Yield the texts of the records of each group."""
    fields = (json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in names)
    record = "{" + ", ".join(f"{field}: %s" for field in fields) + "}"
    for columns in groups:
        yield map(record.__mod__, zip(*map(json_texts, columns), strict=True))


def _write_json(names: Sequence[str], groups: Iterable[list[list[Any]]], out: IO[str]) -> None:
    out.write("[")
    separator = "\n"
    for records in _json_records(names, groups):
        out.write(separator + ",\n".join(records))
        separator = ",\n"
    out.write("]\n" if separator == "\n" else "\n]\n")


def _write_csv(names: Sequence[str], groups: Iterable[list[list[Any]]], out: IO[str]) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for columns in groups:
        writer.writerows(zip(*map(csv_values, columns), strict=True))


def _write_lines(lines: Iterable[str], out: IO[str]) -> None:
    out.writelines(f"{line}\n" for line in lines)
