"""CSV files as records, through pyarrow.

file -> blocks of texts -> **types checked, bad rows named** -> Batch

Blocks are read as text and converted here column by column, so that a value of the wrong type
names its row instead of ending the load. The types come from the first block unless they are
declared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrow import arrow_column, arrow_field, import_pyarrow
from ignitetf.load.sources.base import OnBadRecord, Source, keys_of
from ignitetf.load.sources.chain import ChainSource, files_at
from ignitetf.load.sources.places import Place, digest, open_plain, reading
from ignitetf.load.sources.tables import Table
from ignitetf.load.sources.utf8 import NOT_UTF8, Utf8Stream
from ignitetf.wire.schema import Batch

__all__ = ["CsvSource", "csv"]

_BLOCK_BYTES = 4 << 20
_HINT_CSV = "check delimiter, quotes and encoding (UTF-8)"
# What stands for a missing value in a column that is not text.
_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan"]
# Declared types, in SQL's words and in NumPy's.
_TYPES = {
    "bool": "bool_", "boolean": "bool_",
    "tinyint": "int8", "int8": "int8",
    "smallint": "int16", "int16": "int16",
    "int": "int32", "integer": "int32", "int32": "int32",
    "bigint": "int64", "long": "int64", "int64": "int64",
    "real": "float32", "float": "float32", "float32": "float32",
    "double": "float64", "float64": "float64",
    "varchar": "string", "string": "string", "text": "string",
    "date": "date32",
}  # fmt: skip


class CsvSource(Table):
    """One CSV file with a heading; every column may have nulls, but for the key."""

    def __init__(
        self,
        place: Place,
        *,
        delimiter: str = ",",
        types: Mapping[str, str] | None = None,
        key: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Read the heading and, for the types, the first block."""
        super().__init__(bad_records=bad_records)
        import_pyarrow("CSV files")
        if len(delimiter) != 1:
            raise ConfigError(f"delimiter {delimiter!r}", hint="one character")
        self.place = place
        self.delimiter = delimiter
        self._names, self._types = self._infer({k.upper(): v for k, v in (types or {}).items()})
        fields = [
            arrow_field(name.upper(), self._types[i], nullable=True)
            for i, name in enumerate(self._names)
        ]
        self._take_fields(fields, key)

    def _infer(self, declared: dict[str, str]) -> tuple[list[str], list[Any]]:
        """Headings and Arrow types."""
        import pyarrow as pa

        with self._reader(None, []) as reader:
            found = reader.schema
        types = []
        for name, arrow_type in zip(found.names, found.types, strict=True):
            if (wanted := declared.pop(name.upper(), None)) is not None:
                types.append(_declared_type(pa, name, wanted))
            else:
                types.append(pa.string() if pa.types.is_null(arrow_type) else arrow_type)
        if declared:
            raise ConfigError(
                f"types for columns that are not there: {', '.join(sorted(declared))}",
                hint=f"columns: {', '.join(found.names)}",
            )
        return found.names, types

    def _reader(self, columns: list[str] | None, ragged: list[tuple[int, str]]) -> _CsvReader:
        """A reader of blocks: of the inferred types, or of bare bytes for these columns."""
        return _CsvReader(self.place, self.delimiter, columns, ragged)

    def fingerprint(self) -> str:
        """From name, size and time of the file, and how it is read."""
        return digest("csv", self.place.stamp(), self.delimiter, self.key_name, *self._types)

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
                # Blocks hold the rows that are not ragged; their numbers go around those.
                odd = [n for n, _ in ragged]
                numbers = np.setdiff1d(np.arange(number, number + rows + len(odd)), odd)[:rows]
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
        # The heading is row 1, so that this is the line in a file without blank lines.
        return f"{self.place.name}, row {number + 2}"

    def _convert(
        self, block: Any, numbers: NDArray[np.int64], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        first = int(np.searchsorted(numbers, start))
        arrays = [block.column(i).slice(first) for i in range(block.num_columns)]
        numbers = numbers[first:]
        wrong: dict[int, str] = {}
        for i, array in enumerate(arrays):
            for at in _wrong_values(array, self._types[i]):
                wrong.setdefault(
                    at, f"column {self._columns[i].name}: {_told(array[at], self._types[i])}"
                )
        for at in sorted(wrong):
            self.bad(
                self._row(int(numbers[at])),
                wrong[at],
                hint="repair it, declare another type (types), or take --bad-records skip",
            )
        if wrong:
            import pyarrow as pa

            good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
            arrays = [array.take(pa.array(good)) for array in arrays]
            numbers = numbers[good]
        columns = {}
        for field, array, arrow_type in zip(self._columns, arrays, self._types, strict=True):
            with reading(f"{self.place.name}, column {field.name}"):
                columns[field.name] = arrow_column(field, _parsed(array, arrow_type))
        yield from self._batches_of(columns, numbers, max_bytes)


@contextlib.contextmanager
def _parsing(name: str) -> Iterator[None]:
    """As `reading`; what pyarrow says of a row that is longer than a block means nothing to users."""
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
    """pyarrow's streaming reader with its exceptions turned into SourceError."""

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

        convert = arrow_csv.ConvertOptions(null_values=_NULLS)
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
        """The next block as a RecordBatch, None at the end."""
        with _parsing(self._place.name):
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                return None

    def is_open(self, block: Any) -> bool:
        """Whether the last row of the last block has a quote that goes on to the file's end."""
        value = block.column(block.num_columns - 1)[-1].as_py() if len(block) else None
        return value is not None and "\n" in value and self._stream.last != b'"'

    def __enter__(self) -> _CsvReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._stream.close()


def _declared_type(pa: Any, name: str, text: str) -> Any:
    """The Arrow type of a declared one: `int`, `double`, `decimal(10,2)`, `timestamp`."""
    word = text.strip().lower().replace(" ", "")
    if word in _TYPES:
        return getattr(pa, _TYPES[word])()
    if word == "timestamp":
        return pa.timestamp("ns")
    if word.startswith("decimal"):
        digits = word.removeprefix("decimal").strip("()").split(",")
        try:
            precision, scale = (int(digits[0]), int(digits[1])) if digits != [""] else (38, 10)
            return pa.decimal128(precision, scale)
        except (ValueError, IndexError):
            pass
    raise ConfigError(
        f"column {name!r}: no type {text!r}",
        hint="bool, int, bigint, real, double, varchar, date, timestamp, decimal(10,2)",
    )


def _parsed(array: Any, arrow_type: Any) -> Any:
    """Texts as values of a type; the spellings of a missing value become null.

    Raises:
        ArrowInvalid: One of them is no such value.
    """
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_string(arrow_type):
        if compute.any(compute.match_substring(array, NOT_UTF8)).as_py():
            raise ValueError("not UTF-8")
        return array
    text = compute.utf8_trim_whitespace(array)
    missing = compute.is_in(text, value_set=pa.array(_NULLS))
    return compute.if_else(missing, pa.scalar(None, pa.string()), text).cast(arrow_type)


def _told(value: Any, arrow_type: Any) -> str:
    """Why a text does not convert."""
    text = value.as_py()[:40]
    if NOT_UTF8 in text:
        return f"{text.replace(NOT_UTF8, '?')!r} is not UTF-8"
    return f"{text!r} is no {arrow_type}"


def _wrong_values(array: Any, arrow_type: Any, first: int = 0) -> Iterator[int]:
    """Where the values stand that do not convert: halves of halves are tried."""
    import pyarrow as pa

    try:
        _parsed(array, arrow_type)
    except (pa.ArrowException, ValueError):
        n = len(array)
        if n == 1:
            yield first
            return
        yield from _wrong_values(array.slice(0, n // 2), arrow_type, first)
        yield from _wrong_values(array.slice(n // 2), arrow_type, first + n // 2)


def _option_types(types: str | Mapping[str, str] | None) -> dict[str, str]:
    """Declared types from a mapping or from `NAME:type,NAME:type`."""
    if types is None or isinstance(types, Mapping):
        return dict(types or {})
    declared: dict[str, str] = {}
    for part in types.replace("(", "\0").split(","):
        name, colon, word = part.partition(":")
        if not colon and declared:  # the scale of decimal(10,2)
            declared[next(reversed(declared))] += f",{part}"
            continue
        if not colon:
            raise ConfigError(f"types {types!r}", hint="NAME:type,NAME:type")
        declared[name.strip()] = word.strip()
    return {name: word.replace("\0", "(") for name, word in declared.items()}


def csv(
    location: Any,
    key: str | None = None,
    types: str | Mapping[str, str] | None = None,
    delimiter: str = ",",
    bad_records: OnBadRecord = "fail",
) -> Source:
    """CSV files with a heading, gzipped or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        key: Column that is the key; else a running number.
        types: Types of columns, where the first block should not decide: a mapping, or
            `NAME:double,OTHER:decimal(10,2)`.
        delimiter: Between columns.
        bad_records: What to do with ragged rows, wrong types and null keys.

    Raises:
        SourceError: Missing, empty, no CSV, or with headings that are no SQL identifiers.
    """
    if not location:
        raise ConfigError("source 'csv' needs a file")
    declared = _option_types(types)
    sources = [
        CsvSource(place, delimiter=delimiter, types=declared, key=key, bad_records=bad_records)
        for place in files_at(location, (".csv", ".tsv"))
    ]
    return sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
