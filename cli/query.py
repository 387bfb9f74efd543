"""`ignitetf query`: SQL from an argument, a file, standard input or a prompt."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ignitetf.cli.files import form_of, write_file
from ignitetf.cli.group import UsageError
from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import NESTED, Output, QueryOutput, note, progress, show
from ignitetf.cli.paged import Counted, Limited, ResultPages, Rows
from ignitetf.errors import ConfigError, SqlError

if TYPE_CHECKING:
    from ignitetf.net.client import Client

app = typer.Typer()

_LONG = range(-(1 << 63), 1 << 63)
_CHANGES = ("INSERT", "MERGE", "UPDATE", "DELETE")


@app.command()
@connected
def query(
    connect: Connect,
    sql: Annotated[
        str | None, typer.Argument(help="Statement [default: standard input, or a prompt].")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with statements separated by ';'.")
    ] = None,
    output: Annotated[
        QueryOutput | None,
        typer.Option(
            "--output",
            "-o",
            help="Form of the rows; bytes are base64.  [default: by the suffix of --to, or table]",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="File to write instead of stdout: .csv, .json, .jsonl, .parquet, .arrow, or else a"
            " table.",
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value of the next '?': number, true, false, null or text."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", min=1, help="Stop after this many rows.")
    ] = None,
    statement_timeout: Annotated[
        float | None,
        typer.Option(
            "--statement-timeout",
            help="Seconds until the node cancels a statement, including the time to read its rows."
            "  [default: none; --timeout limits each answer]",
        ),
    ] = None,
) -> None:
    """Run SQL: a statement, a file, or an interactive prompt.

    Example: ignitetf query "SELECT LABEL, COUNT(*) FROM MNIST_TRAIN GROUP BY LABEL"

    Example: ignitetf query "SELECT ID, LABEL FROM MNIST_TRAIN WHERE LABEL = ?" --param 7 --output csv
    """
    if sql is not None and file is not None:
        raise UsageError("give the statement or --file, not both")
    form = form_of(to, output)
    if form in ("parquet", "arrow") and to is None:
        raise UsageError(f"{form} is not a text: give --to FILE")
    if sql is None and file is None and sys.stdin.isatty() and sys.stdout.isatty():
        from ignitetf.cli.prompt import run

        run(connect, statement_timeout)
        return
    from ignitetf.sql import split

    statements = list(split(sql if sql is not None else _read(file)))
    values = [literal(text) for text in param or ()]
    _check(statements, values, form)
    with connect() as client:
        _run(client, statements, values, form, to, max_rows, statement_timeout)


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
        raise UsageError("the SQL statement is missing")
    if values and len(statements) > 1:
        raise UsageError(f"--param needs a single statement, here are {len(statements)}")
    from ignitetf.sql.tokens import is_query

    queries = sum(map(is_query, statements))
    if queries > 1 and output != "table":
        raise UsageError(f"{output} holds the rows of one query, here are {queries}")


def _run(
    client: Client,
    statements: Sequence[str],
    values: Sequence[Any],
    output: QueryOutput,
    to: Path | None,
    max_rows: int | None,
    timeout_s: float | None,
) -> None:
    from ignitetf.sql.tokens import first_word, is_query
    from ignitetf.tables.names import sql_with_suggestions

    whole = max_rows is None and (to is not None or not sys.stdout.isatty())
    changed: int | None = None
    for number, text in enumerate(statements, 1):
        try:
            with sql_with_suggestions(
                client, text, values, timeout_s=timeout_s, whole=whole
            ) as result:
                if result.update_count is None:
                    print_rows(ResultPages(result, whole=whole), output, to, max_rows)
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


def print_rows(
    rows: Rows,
    output: QueryOutput,
    to: Path | None = None,
    max_rows: int | None = None,
) -> None:
    """Print the rows, or write them to the file `to`, which appears only once it is complete."""
    if max_rows is not None:
        rows = Limited(rows, max_rows, _more)
    if to is not None:
        write_file(rows, to, output)
        return
    assert output != "parquet" and output != "arrow"  # refused before the statement runs
    if sys.stdout.isatty():
        show(rows, output)
        return
    with progress("query") as advance:
        show(Counted(rows, advance), output)


def _more(limit: int) -> None:
    note(f"stopped after {limit} rows, there are more")
