"""Write a query's rows to a file: CSV, JSON, Parquet, Arrow or a table, by its suffix.

rows -> **files** -> file

Rows are written while they are read, so that memory stays bounded for any number of rows. The file
appears when it is complete.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ignitetf.cli.output import QueryOutput, progress, show, unique
from ignitetf.cli.paged import Counted, Rows, paged
from ignitetf.errors import ConfigError, MissingExtra

__all__ = ["form_of", "whole", "write_file", "write_parquet"]

PARQUET_ROWS: Final = 8192  # a row group has this many rows, or up to a page more
_GROUP_BYTES: Final = 8 << 20  # and at most about this many bytes
_FORMS: Final[dict[str, QueryOutput]] = {
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "table",
    ".text": "table",
    ".md": "table",
    ".log": "table",
    "": "table",
}


def form_of(path: Path | None, wanted: QueryOutput | None = None) -> QueryOutput:
    """Return the requested form; by default the one for the suffix of the file.

    Raises:
        ConfigError: Files with this suffix cannot be written.
    """
    if wanted is not None or path is None:
        return wanted or "table"
    suffix = path.suffix.lower()
    if (form := _FORMS.get(suffix)) is None:
        raise ConfigError(
            f"{path.name}: cannot write files {suffix}",
            hint=f"name it {', '.join(name for name in _FORMS if name)}, or set the format: --output csv",
        )
    return form


def write_file(rows: Rows, path: Path, form: QueryOutput) -> int:
    """Write rows to a file, with progress on stderr, and return their number."""
    with whole(path) as place, progress(path.name) as advance:
        counted = Counted(rows, advance)
        if form == "parquet":
            write_parquet(counted, place)
        elif form == "arrow":
            _write_arrow(counted, place)
        else:
            with place.open("w", encoding="utf-8", newline="") as file:
                show(counted, form, file=file)
    return counted.count


def write_parquet(rows: Rows, path: Path) -> int:
    """Write the rows to a Parquet file, one row group at a time, and return their number.

    The first rows determine the types, see `sampled`. A column without values in them becomes
    text.

    Raises:
        MissingExtra: pyarrow is not installed.
        SchemaError: Later rows have values of other types.
    """
    pyarrow = MissingExtra.module("pyarrow", "parquet output needs pyarrow", "query")
    from pyarrow import parquet

    schema, batches = _typed(pyarrow, rows)
    total = 0
    # Without Arrow's own schema: other readers do not understand its types of large texts.
    with parquet.ParquetWriter(path, schema, store_schema=False) as writer:
        for group in _groups(pyarrow, batches):
            writer.write_table(group, row_group_size=group.num_rows)
            total += group.num_rows
    return total


def _write_arrow(rows: Rows, path: Path) -> None:
    """Write the rows to a file of Arrow IPC, with the types that `write_parquet` takes."""
    pyarrow = MissingExtra.module("pyarrow", "arrow output needs pyarrow", "query")
    schema, batches = _typed(pyarrow, rows)
    with pyarrow.ipc.new_file(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _typed(pyarrow: Any, rows: Rows) -> tuple[Any, Iterator[Any]]:
    """Return a schema, and the rows as record batches of it."""
    from ignitetf.wire.sql_arrays import ArrowForm, sampled, taken

    pages = paged(rows).pages()
    first, _ = sampled(pages)
    form = ArrowForm(pyarrow, unique(rows.columns), first, pyarrow.string())
    return form.schema, form.batches(chain(taken(first), pages))


def _groups(pyarrow: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the tables of row groups; a group of large rows has fewer."""
    parts: list[Any] = []
    rows = size = 0
    for batch in batches:
        parts.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PARQUET_ROWS or size >= _GROUP_BYTES:
            yield pyarrow.Table.from_batches(parts)
            parts, rows, size = [], 0, 0
    if parts:
        yield pyarrow.Table.from_batches(parts)


# A local file that appears, or is replaced, when it is complete


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield the path to write to, and move the file to `path` at the end.

    An exception removes the partial file. As with a shell's `>`, the target of a link is written, a
    file keeps its permissions, and a pipe or device is written to directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        if error.filename == str(part):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            part.unlink()
