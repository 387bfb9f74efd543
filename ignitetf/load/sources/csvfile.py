"""CSV files as records, through pyarrow.

file -> blocks of texts -> **types checked, bad rows named** -> Batch

Blocks are read as text and converted here column by column, so that a value of the wrong type is
reported with its row instead of ending the load. Types are inferred from the first block unless
they are declared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrow import arrow_column, arrow_field
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.load.sources.base import Source, keys_of
from ignitetf.load.sources.csvtypes import (
    NOT_UTF8,
    NULLS,
    CsvType,
    Utf8Stream,
    declared_type,
    option_types,
    parsed,
    type_of,
    why_not,
    wrong_values,
)
from ignitetf.load.sources.location import ChainSource, Place, digest, files_at, open_plain, reading
from ignitetf.load.sources.tabular import Table, chosen_columns
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch

__all__ = ["CsvSource", "csv"]

_BLOCK_BYTES = 4 << 20
_DELIMITERS = ",;\t|"
_HINT_CSV = "check delimiter, quotes and encoding (UTF-8)"


class CsvSource(Table):
    """One CSV file with a heading; every column except the key may have nulls."""

    def __init__(
        self,
        place: Place,
        *,
        delimiter: str = ",",
        types: str | Mapping[str, str] | None = None,
        columns: str | Iterable[str] | None = None,
        rename: str | Mapping[str, str] | None = None,
        key: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Read the heading and, for the types, the first block."""
        super().__init__(bad_records=bad_records)
        import_pyarrow("CSV files")
        if len(delimiter) != 1:
            raise ConfigError(f"delimiter {delimiter!r}", hint="one character")
        self.place = place
        self.nbytes = place.size()
        self.delimiter = delimiter
        self._names, found = self._infer(option_types(types))
        chosen = chosen_columns(place.name, self._names, columns, rename)
        # The columns of the file to load, and their types.
        self._places = [number for number, _ in chosen]
        self._types = [found[number] for number in self._places]
        fields = [
            arrow_field(name.upper(), kind.arrow, nullable=True)
            for (_, name), kind in zip(chosen, self._types, strict=True)
        ]
        self._take_fields(fields, key)
        self._how = (chosen,) if columns is not None or rename is not None else ()
        for kind in self._types:
            if kind.note is not None:
                self.note(f"{place.name}: {kind.note}")

    def _infer(self, declared: dict[str, str]) -> tuple[list[str], list[CsvType]]:
        """Return headings and types."""
        with self._reader(None, []) as reader:
            found = reader.schema
        # Duplicate headings are refused later, by name.
        alike = len(set(found.names)) < len(found.names)
        texts = None
        ragged: list[tuple[int, str]] = []
        if not alike and any(name.upper() not in declared for name in found.names):
            with self._reader(found.names, ragged) as reader:
                texts = reader.next()
        numbers = _numbers(0, 0 if texts is None else len(texts), ragged)
        types = []
        for i, (name, arrow_type) in enumerate(zip(found.names, found.types, strict=True)):
            if (wanted := declared.pop(name.upper(), None)) is not None:
                types.append(declared_type(name, wanted))
            elif texts is None:
                types.append(CsvType(arrow_type))
            else:
                with reading(f"{self.place.name}, column {name}"):
                    types.append(type_of(name, texts.column(i), numbers, arrow_type))
        if declared:
            raise ConfigError(
                f"types for columns that are not there: {', '.join(sorted(declared))}",
                hint=f"columns: {', '.join(found.names)}",
            )
        return found.names, types

    def _heading_hint(self, names: list[str]) -> str:
        others = [mark for mark in _DELIMITERS if mark in names[0] and mark != self.delimiter]
        if len(names) == 1 and others:
            shown = "$'\\t'" if others[0] == "\t" else repr(others[0])
            return f"are the columns separated otherwise? --delimiter {shown}"
        return (
            "letters, digits and underscores, not starting with a digit: --rename OLD=NEW renames it"
            ", --columns A,B takes other columns only; the first line has the headings"
        )

    def _reader(self, columns: list[str] | None, ragged: list[tuple[int, str]]) -> _CsvReader:
        """Return a reader of blocks: with inferred types, or with plain bytes for these columns."""
        return _CsvReader(self.place, self.delimiter, columns, ragged)

    def fingerprint(self) -> str:
        """Made from name, size and time of the file, and the reading options."""
        kinds = [(kind.arrow, kind.declared) for kind in self._types]
        return digest("csv", self.place.stamp(), self.delimiter, self.key_name, *kinds, *self._how)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        ragged: list[tuple[int, str]] = []
        number = 0
        with self._reader(self._names, ragged) as reader:
            following = reader.next()
            while (block := following) is not None:
                following = reader.next()
                if following is None and reader.is_open(block):
                    ragged.append((number + len(block) - 1 + len(ragged), "its quote never ends"))
                    block = block.slice(0, len(block) - 1)
                rows = len(block)
                numbers = _numbers(number, rows, ragged)
                end = int(numbers[-1]) + 1 if rows else number
                self._note_ragged(ragged, start, end)
                number = end
                if end > start:
                    yield from self._convert(block, numbers, start, max_bytes)
                yield max(end, start), Batch(keys_of([]), {})
            number = max([number, *(n + 1 for n, _ in ragged)])
            self._note_ragged(ragged, start, number)
        self.rows = number
        yield max(number, start), Batch(keys_of([]), {})

    def _note_ragged(self, ragged: list[tuple[int, str]], start: int, end: int) -> None:
        """Report the ragged rows before `end` and forget them."""
        for number, reason in [item for item in ragged if item[0] < end]:
            if number >= start:
                self.bad(self._row(number), reason)
        ragged[:] = [item for item in ragged if item[0] >= end]

    def _row(self, number: int) -> str:
        # The heading is row 1, so this is the line number in a file without blank lines.
        return f"{self.place.name}, row {number + 2}"

    def _convert(
        self, block: Any, numbers: NDArray[np.int64], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        first = int(np.searchsorted(numbers, start))
        arrays = [block.column(i).slice(first) for i in self._places]
        numbers = numbers[first:]
        wrong: dict[int, tuple[str, str]] = {}
        for i, array in enumerate(arrays):
            for at in wrong_values(array, self._types[i]):
                wrong.setdefault(at, (self._columns[i].name, why_not(array[at], self._types[i])))
            self._look_for_values(i, array)
        for at in sorted(wrong):
            name, reason = wrong[at]
            self.bad(
                self._row(int(numbers[at])),
                f"column {name}: {reason}",
                hint=f"repair it, keep the column as it is with --types {name}:varchar, or leave"
                " the row out with --bad-records skip",
            )
        if wrong:
            import pyarrow as pa

            good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
            arrays = [array.take(pa.array(good)) for array in arrays]
            numbers = numbers[good]
        columns = {}
        for field, array, kind in zip(self._columns, arrays, self._types, strict=True):
            with reading(f"{self.place.name}, column {field.name}"):
                columns[field.name] = arrow_column(field, parsed(array, kind))
        yield from self._batches_of(columns, numbers, max_bytes)

    def _look_for_values(self, i: int, texts: Any) -> None:
        """Add a note when an empty column, which became text, has its first value."""
        from pyarrow import compute

        if (
            self._types[i].empty
            and compute.any(compute.greater(compute.binary_length(texts), 0)).as_py()
        ):
            self._types[i] = replace(self._types[i], empty=False)
            name = self._columns[i].name
            self.note(
                f"{self.place.name}: column {name} is text, as it begins without a value; to have"
                f" it otherwise: --types {name}:double"
            )


def _numbers(first: int, rows: int, ragged: list[tuple[int, str]]) -> NDArray[np.int64]:
    """Return the row numbers of a block; a block contains no ragged rows."""
    odd = [number for number, _ in ragged]
    numbers: NDArray[np.int64] = np.setdiff1d(np.arange(first, first + rows + len(odd)), odd)[:rows]
    return numbers


@contextlib.contextmanager
def _parsing(name: str) -> Iterator[None]:
    """Convert errors as `reading` does; explains pyarrow's error on a row longer than a block."""
    with reading(name, _HINT_CSV):
        try:
            yield
        except ValueError as error:
            if "straddl" not in str(error):
                raise
            raise SourceError(
                f"{name}: a row of more than {_BLOCK_BYTES >> 20} MB",
                hint="does a quote never end?",
            ) from error


class _CsvReader:
    """pyarrow's streaming reader, with its exceptions turned into SourceError."""

    def __init__(
        self,
        place: Place,
        delimiter: str,
        columns: list[str] | None,
        ragged: list[tuple[int, str]],
    ) -> None:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        def on_ragged(row: Any) -> str:
            shown = row.text[:40].replace(NOT_UTF8, "?")
            ragged.append(
                (
                    (row.number or 2) - 2,
                    f"{row.actual_columns} columns, expected {row.expected_columns}: {shown!r}",
                )
            )
            return "skip"

        convert = arrow_csv.ConvertOptions(null_values=NULLS)
        if columns is not None:
            convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        self._place = place
        self._stream = Utf8Stream(open_plain(place), place.name)
        try:
            with _parsing(place.name):
                self._reader = arrow_csv.open_csv(
                    self._stream,
                    arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                    arrow_csv.ParseOptions(
                        delimiter=delimiter,
                        newlines_in_values=True,
                        invalid_row_handler=on_ragged,
                    ),
                    convert,
                )
        except BaseException:
            self._stream.close()
            raise

    @property
    def schema(self) -> Any:
        """Headings and types of the first block."""
        return self._reader.schema

    def next(self) -> Any:
        """Return the next block as a RecordBatch, None at the end."""
        with _parsing(self._place.name):
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                return None

    def is_open(self, block: Any) -> bool:
        """Whether the last row of the last block has a quote that is never closed in the file."""
        value = block.column(block.num_columns - 1)[-1].as_py() if len(block) else None
        return value is not None and "\n" in value and self._stream.last != b'"'

    def __enter__(self) -> _CsvReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._stream.close()


def csv(
    location: Any,
    key: str | None = None,
    types: str | Mapping[str, str] | None = None,
    delimiter: str = ",",
    columns: str | Iterable[str] | None = None,
    rename: str | Mapping[str, str] | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open CSV files with a heading, gzipped or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        key: Column to use as the key; otherwise a running number.
        types: Types of columns, if the first 4 MB should not decide: a mapping, or
            `NAME:double,OTHER:decimal(10,2)`. If nine in ten values of a column look like one type,
            the column has it and the others are bad records; a mixed column is text, and so is one
            whose numbers begin with zeros or are integers beyond a long (`source.notes`).
        delimiter: Separator of columns.
        columns: Headings of the columns to load, `A,B`; None for all.
        rename: New names of columns, `OLD=NEW,OLD=NEW`, which `key` then means.
        bad_records: What to do with ragged rows, wrong types and null keys.

    Raises:
        SourceError: Missing, empty, not CSV, or with headings that are not SQL identifiers.
    """
    if not location:
        raise ConfigError("source 'csv' needs a file")
    sources = [
        CsvSource(
            place,
            delimiter=delimiter,
            types=types,
            columns=columns,
            rename=rename,
            key=key,
            bad_records=bad_records,
        )
        for place in files_at(location, (".csv", ".tsv"))
    ]
    return sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
