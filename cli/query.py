"""`ignitetf query`: SQL from an argument, a file, standard input or a prompt."""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ignitetf.cli.group import UsageError
from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import NESTED, Output, QueryOutput, Rows, note, show, unique
from ignitetf.errors import ConfigError, MissingExtra, SchemaError, SqlError

if TYPE_CHECKING:
    from ignitetf.net.sql_result import SqlResult

app = typer.Typer()

PARQUET_ROWS = 8192  # rows per row group
_LONG = range(-(1 << 63), 1 << 63)
_CHANGES = ("INSERT", "MERGE", "UPDATE", "DELETE")


@app.command()
@connected
def query(
    connect: Connect,
    sql: Annotated[
        str | None, typer.Argument(help="The statement; standard input or a prompt when left out.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with statements that ';' separates.")
    ] = None,
    output: Annotated[
        QueryOutput, typer.Option("--output", "-o", help="Form of the rows; bytes are base64.")
    ] = "table",
    to: Annotated[
        Path | None,
        typer.Option("--to", help="File to write instead of stdout; parquet needs one."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value of the next '?': number, true, false, null, else text."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", min=1, help="Stop after so many rows.")
    ] = None,
    statement_timeout: Annotated[
        float | None,
        typer.Option(
            "--statement-timeout",
            help="Seconds after which the node cancels a statement, with the reading of its rows."
            "  [default: none; each answer has the limit of --timeout]",
        ),
    ] = None,
) -> None:
    """Run SQL: one statement, a file, standard input, or an interactive prompt.

    Example: ignitetf query "SELECT LABEL, COUNT(*) FROM MNIST_TRAIN GROUP BY LABEL"

    Example: ignitetf query "SELECT ID, LABEL FROM MNIST_TRAIN WHERE LABEL = ?" --param 7 --output csv
    """
    if sql is not None and file is not None:
        raise UsageError("give the statement or --file, not both")
    if output == "parquet" and to is None:
        raise UsageError("parquet is no text: give --to FILE")
    if sql is None and file is None and sys.stdin.isatty() and sys.stdout.isatty():
        from ignitetf.cli.prompt import run

        run(connect, statement_timeout)
        return
    from ignitetf.sql import split

    statements = list(split(sql if sql is not None else _read(file)))
    values = [literal(text) for text in param or ()]
    _check(statements, values, output)
    with connect() as client:
        _run(
            partial(client.sql, timeout_s=statement_timeout),
            statements, values, output, to, max_rows,
        )  # fmt: skip


def literal(text: str) -> Any:
    """Parse `--param`: a JSON number, boolean, null or string; any other text stays as it is."""
    try:
        value = json.loads(text, parse_float=_float, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, (list, dict)):
        return text
    if isinstance(value, int) and not isinstance(value, bool) and value not in _LONG:
        return Decimal(value)
    return value


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _read(file: Path | None) -> str:
    where = "standard input" if file is None else str(file)
    try:
        return sys.stdin.read() if file is None else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text") from error


def _check(statements: Sequence[str], values: Sequence[Any], output: QueryOutput) -> None:
    if not statements:
        raise UsageError("there is no SQL statement")
    if values and len(statements) > 1:
        raise UsageError(f"--param goes with one statement, here are {len(statements)}")
    from ignitetf.sql.tokens import is_query

    queries = sum(map(is_query, statements))
    if queries > 1 and output != "table":
        raise UsageError(f"{output} holds the rows of one query, here are {queries}")


def _run(
    sql: Callable[[str, Sequence[Any]], SqlResult],
    statements: Sequence[str],
    values: Sequence[Any],
    output: QueryOutput,
    to: Path | None,
    max_rows: int | None,
) -> None:
    from ignitetf.sql.tokens import first_word, is_query

    changed: int | None = None
    for number, text in enumerate(statements, 1):
        try:
            with sql(text, values) as result:
                if result.update_count is None:
                    print_rows(result, output, to, max_rows)
                else:
                    changed = (changed or 0) + result.update_count
        except SqlError as error:
            if len(statements) == 1:
                raise
            raise SqlError(
                f"statement {number} of {len(statements)}: {error.message}",
                hint=error.hint,
                **error.fields,
            ) from error
    if changed is None:
        return
    if output in NESTED and not any(map(is_query, statements)):
        show({"updated": changed}, cast(Output, output))
    elif changed or any(first_word(s) in _CHANGES for s in statements):
        note(f"{changed} rows changed")
    else:
        note("done")


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


def print_rows(
    result: SqlResult | Rows,
    output: QueryOutput,
    to: Path | None = None,
    max_rows: int | None = None,
) -> None:
    """Print the rows, or write them to the file `to`, which appears only once it is complete."""
    rows: Rows = result if max_rows is None else Limited(result, max_rows)
    if to is None:
        assert output != "parquet"  # refused before the statement runs
        show(rows, output)
        return
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        if output == "parquet":
            write_parquet(rows, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                show(rows, output, file=file)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def write_parquet(rows: Rows, path: Path) -> int:
    """Write the rows to a Parquet file, one row group at a time, and return their number.

    The first row group determines the types; a column without values in it becomes text.

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
    writer: Any = None
    total = 0
    try:
        while True:
            group = list(islice(source, PARQUET_ROWS))
            if not group and writer is not None:
                return total
            columns = [[_arrow(row[i]) for row in group] for i in range(len(names))]
            schema = None if writer is None else writer.schema
            table = _arrow_table(pyarrow, names, columns, schema, total)
            if writer is None:
                writer = pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            total += len(group)
            if len(group) < PARQUET_ROWS:
                return total
    finally:
        if writer is not None:
            writer.close()


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
