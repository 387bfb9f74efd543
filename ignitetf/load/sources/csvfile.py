"""CSV files as records, through pyarrow.

file -> blocks of texts -> **types checked, bad rows named** -> Batch

Blocks are read as text and converted here column by column, so that a value of the wrong type is
reported with its row instead of ending the load. Types are inferred from the first block unless
they are declared.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrow import arrow_column, arrow_field
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.load.sources.base import Source, keys_of
from ignitetf.load.sources.csvtypes import (
    NULLS,
    CsvType,
    Spelling,
    declared_type,
    option_types,
    parsed,
    type_of,
    why_not,
    wrong_values,
)
from ignitetf.load.sources.filesets import open_tables
from ignitetf.load.sources.headings import column_of_heading
from ignitetf.load.sources.location import Place, digest, open_plain, reading
from ignitetf.load.sources.tabular import (
    Columns,
    Renames,
    Table,
    TableOptions,
)
from ignitetf.load.sources.texts import HINT_ENCODING, NOT_UTF8, Utf8Stream
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch

__all__ = ["CsvSource", "csv"]

_BLOCK_BYTES = 4 << 20
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_HINT_CSV = "check delimiter, quotes and encoding (UTF-8)"


# Longest text that a hint suggests as the mark of a missing value.
_LONGEST_MARK = 12
_PLAIN = Spelling()


@dataclass(frozen=True)
class CsvForm:
    """Format of a CSV file.

    Attributes:
        delimiter: Between columns.
        header: `row` or `none`; None if it was not given.
        names: Names of the columns, if the file has no headings.
        encoding: Encoding of the text; None to find it.
        spelling: Spelling of numbers and missing values.
    """

    delimiter: str = ","
    header: str | None = None
    names: tuple[str, ...] = ()
    encoding: str | None = None
    spelling: Spelling = _PLAIN

    @property
    def first_row(self) -> int:
        """The row of the first record; the heading is row 1."""
        return 1 if self.header == "none" else 2

    def check(self) -> None:
        """Raise ConfigError for options that do not fit together."""
        if len(self.delimiter) != 1:
            raise ConfigError(f"delimiter {self.delimiter!r}", hint="one character")
        if self.header not in (None, "row", "none"):
            raise ConfigError(f"header {self.header!r}", hint="row or none")
        if self.names and self.header != "none":
            raise ConfigError(
                "names are for files without a heading",
                hint="--header none --names A,B names their columns; --rename OLD=NEW renames others",
            )
        decimal, thousands = self.spelling.decimal, self.spelling.thousands
        if len(decimal) != 1 or len(thousands) > 1 or decimal == thousands or decimal.isalnum():
            raise ConfigError(
                f"decimal {decimal!r} and thousands {thousands!r}", hint="two different characters"
            )

    def headings(self, place: Place, found: list[str]) -> list[str]:
        """Return the headings of a file.

        Args:
            place: The file.
            found: The first row, or pyarrow's names for the columns of a file without headings.

        Raises:
            SourceError: The first row cannot be headings, or the numbers of names and columns
                differ.
        """
        if self.header == "none":
            if self.names and len(self.names) != len(found):
                raise SourceError(
                    f"{place.name}: {len(found)} columns, and {len(self.names)} names",
                    hint=f"name all columns: --names {','.join(column_of_heading('', i) for i in range(len(found)))}",
                )
            return list(self.names) or [column_of_heading("", i) for i in range(len(found))]
        if any(NOT_UTF8 in name for name in found):
            shown = next(name for name in found if NOT_UTF8 in name).replace(NOT_UTF8, "?")
            raise SourceError(
                f"{place.name}: the heading {shown!r} is not UTF-8", hint=HINT_ENCODING
            )
        if odd := next((name for name in found if _CONTROL.search(name)), None):
            raise SourceError(
                f"{place.name}: the heading {odd[:40]!r} is not a text", hint=_HINT_CSV
            )
        if re.fullmatch(r"sep=.?", found[0].strip(), re.IGNORECASE) and not any(found[1:]):
            raise SourceError(
                f"{place.name}: its first line, {found[0][:10]!r}, is a note for Excel",
                hint="remove the first line",
            )
        if found[0].lstrip().startswith(("{", "[{")):
            raise SourceError(
                f"{place.name}: the heading {found[0][:40]!r} looks like JSON",
                hint="ignitetf load jsonl loads JSON files",
            )
        others = [mark for mark in _DELIMITERS if mark in found[0] and mark != self.delimiter]
        if len(found) == 1 and others:
            shown = "$'\\t'" if others[0] == "\t" else repr(others[0])
            raise SourceError(
                f"{place.name}: its only heading is {found[0][:80]!r}",
                hint=f"is another delimiter used? --delimiter {shown}",
            )
        number = next((name for name in found if _NUMBER.fullmatch(name.strip())), None)
        if number is not None and self.header is None:
            raise SourceError(
                f"{place.name}: the heading {number!r} is a number",
                hint="--header none --names A,B takes the first row as a record; --header row takes"
                " it as headings",
            )
        return found


class CsvSource(Table):
    """One CSV file; every column except the key may have nulls."""

    hint_of_types = ", or declare them: --types NAME:double"

    def __init__(
        self,
        place: Place,
        options: TableOptions,
        *,
        form: CsvForm | None = None,
        types: str | Mapping[str, str] | None = None,
    ) -> None:
        """Read the heading and, for the types, the first block."""
        super().__init__(place, options)
        import_pyarrow("CSV files")
        self.nbytes = place.size()
        self.form = form = form or CsvForm()
        with self._reader(None, []) as reader:
            self._headings, arrow_types = (
                form.headings(place, reader.schema.names),
                reader.schema.types,
            )
        chosen = self._choose(self._headings)
        self._names = [f"c{i}" for i in range(len(self._headings))]
        found = self._infer(arrow_types, chosen, option_types(types))
        # The columns of the file to load, and their types.
        self._places = [number for number, _ in chosen]
        self._types = [found[number] for number in self._places]
        fields = [
            arrow_field(name, kind.arrow, nullable=True)
            for (_, name), kind in zip(chosen, self._types, strict=True)
        ]
        self._take_fields(fields)
        for kind in self._types:
            if kind.note is not None:
                self.note(f"{place.name}: {kind.note}")

    def _infer(
        self, arrow_types: list[Any], chosen: list[tuple[int, str]], declared: dict[str, str]
    ) -> list[CsvType]:
        """Return the types of all columns."""
        names = {**dict(enumerate(self._headings)), **dict(chosen)}
        wanted = {}
        for i, heading in enumerate(self._headings):
            for word in (heading.strip().upper(), names[i].upper()):
                if word in declared:
                    wanted[i] = declared.pop(word)
        if declared:
            raise ConfigError(
                f"unknown columns in types: {', '.join(sorted(declared))}",
                hint=f"columns: {', '.join(self._headings)}",
            )
        texts = None
        ragged: list[tuple[int, str]] = []
        if len(wanted) < len(self._headings):
            with self._reader(self._names, ragged) as reader:
                texts = reader.next()
        rows = _numbers(0, 0 if texts is None else len(texts), ragged) + self.form.first_row
        types = []
        for i, arrow_type in enumerate(arrow_types):
            if i in wanted:
                types.append(declared_type(names[i], wanted[i], self.form.spelling))
            elif texts is None:
                types.append(CsvType(arrow_type, spelling=self.form.spelling))
            else:
                with reading(f"{self.place.name}, column {names[i]}"):
                    types.append(
                        type_of(names[i], texts.column(i), rows, arrow_type, self.form.spelling)
                    )
        return types

    def _reader(self, columns: list[str] | None, ragged: list[tuple[int, str]]) -> _CsvReader:
        """Return a reader of blocks: with inferred types, or with plain bytes for these columns."""
        return _CsvReader(self.place, self.form, columns, ragged)

    def fingerprint(self) -> str:
        """A digest of name, size and time of the file, and the reading options."""
        kinds = [(kind.arrow, kind.declared) for kind in self._types]
        return digest("csv", self.place.stamp(), self.form, self.key_name, *kinds, *self._how)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        ragged: list[tuple[int, str]] = []
        number = 0
        with self._reader(self._names, ragged) as reader:
            following = reader.next()
            while (block := following) is not None:
                following = reader.next()
                if following is None and reader.is_open(block):
                    ragged.append((number + len(block) - 1 + len(ragged), "a quote is not closed"))
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
        """Report the ragged rows before `end`, and remove them from the list."""
        for number, reason in [item for item in ragged if item[0] < end]:
            if number >= start:
                self.bad(self._row(number), reason)
        ragged[:] = [item for item in ragged if item[0] >= end]

    def _row(self, number: int) -> str:
        # The line number in a file without blank lines.
        return f"{self.place.name}, row {number + self.form.first_row}"

    def _convert(
        self, block: Any, numbers: NDArray[np.int64], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        first = int(np.searchsorted(numbers, start))
        arrays = [block.column(i).slice(first) for i in self._places]
        numbers = numbers[first:]
        wrong: dict[int, tuple[str, str]] = {}
        values: dict[int, str] = {}
        for i, array in enumerate(arrays):
            for at in wrong_values(array, self._types[i]):
                if at not in wrong:
                    wrong[at] = self._columns[i].name, why_not(array[at], self._types[i])
                    values[at] = array[at].as_py()
            self._note_first_value(i, array)
        for at in sorted(wrong):
            name, reason = wrong[at]
            self.bad(
                self._row(int(numbers[at])),
                f"column {name}: {reason}",
                hint=_hint_of_value(name, reason, values[at]),
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

    def _note_first_value(self, i: int, texts: Any) -> None:
        """Add a note when an empty column, which became text, has its first value."""
        from pyarrow import compute

        if (
            self._types[i].empty
            and compute.any(compute.greater(compute.binary_length(texts), 0)).as_py()
        ):
            self._types[i] = replace(self._types[i], empty=False)
            name = self._columns[i].name
            self.note(
                f"{self.place.name}: column {name} is loaded as text, because its first rows have no"
                f" value; to change that: --types {name}:double"
            )


def _hint_of_value(name: str, reason: str, value: str) -> str:
    """Return the hint for a value that is not of the type of its column."""
    if "UTF-8" in reason:
        return HINT_ENCODING
    word = value.strip()
    is_mark = 0 < len(word) <= _LONGEST_MARK and "," not in word and word.isprintable()
    missing = f" treat it as a missing value with --null {shlex.quote(word)}," if is_mark else ""
    return (
        f"repair it,{missing} keep the column as it is with --types {name}:varchar, or leave the"
        " row out with --bad-records skip"
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
                hint="is a quote not closed?",
            ) from error


class _CsvReader:
    """pyarrow's streaming reader, with its exceptions turned into SourceError."""

    def __init__(
        self,
        place: Place,
        form: CsvForm,
        columns: list[str] | None,
        ragged: list[tuple[int, str]],
    ) -> None:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        def on_ragged(row: Any) -> str:
            shown = row.text[:40].replace(NOT_UTF8, "?")
            ragged.append(
                (
                    (row.number or form.first_row) - form.first_row,
                    f"{row.actual_columns} columns, expected {row.expected_columns}: {shown!r}",
                )
            )
            return "skip"

        convert = arrow_csv.ConvertOptions(null_values=[*NULLS, *form.spelling.nulls])
        if columns is not None:
            convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        self._place = place
        self._stream = Utf8Stream(open_plain(place), place.name, form.encoding)
        try:
            with _parsing(place.name):
                self._reader = arrow_csv.open_csv(
                    self._stream,
                    arrow_csv.ReadOptions(
                        use_threads=False,
                        block_size=_BLOCK_BYTES,
                        column_names=columns,
                        skip_rows=form.first_row - 1 if columns else 0,
                        autogenerate_column_names=columns is None and form.header == "none",
                    ),
                    arrow_csv.ParseOptions(
                        delimiter=form.delimiter,
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
        """True if the last row of the last block has a quote that is never closed in the file."""
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
    columns: Columns = None,
    rename: Renames = None,
    header: str | None = None,
    names: str | Iterable[str] | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    thousands: str = "",
    null: str | Iterable[str] = (),
    split: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open CSV files, compressed or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list; see `parquet`.
        key: Column to use as the key; otherwise a running number.
        types: Types of columns, to replace the types inferred from the first 4 MB: a mapping, or
            `NAME:double,OTHER:decimal(10,2)`. If nine in ten values of a column look like one type,
            the column has it and the others are bad records; a mixed column is text, and so is one
            whose numbers begin with zeros or are integers beyond a long (`source.notes`).
        delimiter: Separator of columns.
        columns: Headings of the columns to load, `A,B`; None for all.
        rename: New names of columns, `OLD=NEW,OLD=NEW`, which `key` then means.
        header: `row` if the first row has the headings, `none` if it is a record; None for `row`,
            which refuses a first row with numbers.
        names: Names of the columns of files without headings, `A,B`.
        encoding: Encoding of the text; None for UTF-8, or as its byte order mark says.
        decimal: Mark before the fraction of a number.
        thousands: Mark between groups of three digits; empty for none.
        null: Spellings of a missing value, in addition to the usual ones; in all columns.
        split: The split to load; None for all.
        bad_records: Handling of ragged rows, wrong types and null keys.

    Raises:
        SourceError: Missing, empty, not CSV, or with headings that are not SQL identifiers.
    """
    nulls = tuple(word.strip() for word in (null.split(",") if isinstance(null, str) else null))
    listed = names.split(",") if isinstance(names, str) else (names or ())
    form = CsvForm(
        delimiter,
        header,
        tuple(name.strip() for name in listed),
        encoding,
        Spelling(nulls, decimal, thousands),
    )
    form.check()

    def opened(place: Place, options: TableOptions) -> Source:
        return CsvSource(place, options, form=form, types=types)

    options = TableOptions(key, columns, rename, bad_records)
    return open_tables("csv", location, (".csv", ".tsv"), split, opened, options)
