"""Record batches of Arrow as records: Parquet files, and anything that is an Arrow stream.

file, `__arrow_c_stream__` -> record batches -> **columns** -> Batch

Parquet files are read through pyarrow, by row groups. Streams are tables, frames, relations,
cursors, and ignitetf's own rows. A stream with a length is read again from its beginning when a
load resumes; any other can be read only once.
"""

from __future__ import annotations

import contextlib
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SourceError
from ignitetf.load.sources.arrow import arrow_column, marked_field, renamed_parts
from ignitetf.load.sources.arrowplain import (
    import_pyarrow,
    of_table,
    plain_array,
    refusal,
    uuid_field,
)
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch
from ignitetf.load.sources.features import Features
from ignitetf.load.sources.filesets import open_tables
from ignitetf.load.sources.location import Place, digest, one_line, reading
from ignitetf.load.sources.tabular import LEAVE_OUT, Columns, Renames, Table, TableOptions
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column

__all__ = ["ArrowTable", "StreamSource", "arrow_columns", "parquet", "stream"]

_HINT_VALUE = "convert or omit the column, or skip the row with --bad-records skip"
_FAILURES = (SourceError, ValueError)
_MAX_ROWS = 1 << 16


class ArrowTable(Table):
    """A table that reads its rows as record batches with the columns of its schema."""

    def _refusing(self) -> AbstractContextManager[None]:
        """Name the table in the error for a column that no Ignite type can store."""
        return of_table(self.place.name, LEAVE_OUT)

    def _take_schema(self, arrow_schema: Any) -> None:
        """Set the fields of the columns to load; the types of the others are ignored."""
        with reading(self.place.name):
            self._features = Features(arrow_schema)
        flat = self._features.schema
        chosen = self._choose(flat.names)
        # Positions, in the flat schema, of the columns to load.
        self._places = [i for i, _ in chosen]
        with self._refusing():
            fields = [marked_field(flat.field(i), name) for i, name in chosen]
            pairs = [(flat.field(i), f) for i, f in zip(self._places, fields, strict=True)]
            nested = [names for pair in pairs for names in renamed_parts(*pair)]
        self._take_fields(fields, nested)
        names = {name: flat.names[i] for i, name in chosen}
        self.class_names = self._features.class_names(names.get("LABEL"))
        for name, heading in names.items():
            if name != "LABEL" and (classes := self._features.class_names(heading)):
                self.note(
                    f"{self.place.name}: column {name} has the names of {len(classes):,} classes;"
                    " the names are kept if it is the LABEL: --rename"
                    f" {shlex.quote(f'{heading}=label')}"
                )

    def _plain(self, found: Any, numbers: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        """Return the columns to load as plain arrays (see `arrowplain`), without damaged images."""
        pa = import_pyarrow("tables")
        flat, wrong = self._features.flat(found, self._places)
        wrong |= self._features.damaged(flat, self._places)
        for at in sorted(wrong):
            self.bad(self._row(int(numbers[at])), wrong[at])
        arrays = [plain_array(flat.schema.field(i), flat.column(i)) for i in self._places]
        plain = pa.RecordBatch.from_arrays(arrays, [field.name for field in self._columns])
        if not wrong:
            return plain, numbers
        good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
        return plain.take(pa.array(good)), numbers[good]

    def _converted(
        self, found: Any, first: int, max_bytes: int, hint: str
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of a record batch; its first row has the number `first`."""
        numbers = np.arange(first, first + len(found))
        with reading(self.place.name, hint):
            found, numbers = self._plain(found, numbers)
            columns, numbers = self._good(found, numbers)
        if len(numbers):
            yield from self._batches_of(columns, numbers, max_bytes)

    def _good(
        self, found: Any, numbers: NDArray[np.int64]
    ) -> tuple[dict[str, Column], NDArray[np.int64]]:
        """Return columns and numbers of the rows that convert; report the others as bad records."""
        try:
            return self._convert(found), numbers
        except _FAILURES:
            wrong = dict(self._wrong(found))
        for at in sorted(wrong):
            self.bad(self._row(int(numbers[at])), wrong[at], hint=_HINT_VALUE)
        good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
        return self._convert(found.take(good)), numbers[good]

    def _wrong(self, found: Any, first: int = 0) -> Iterator[tuple[int, str]]:
        """Yield positions of rows that do not convert, with the reason; found by halving."""
        try:
            self._convert(found)
        except _FAILURES as error:
            half = len(found) // 2
            if not half:
                reason = error.message if isinstance(error, SourceError) else one_line(error)
                yield first, reason
                return
            yield from self._wrong(found.slice(0, half), first)
            yield from self._wrong(found.slice(half), first + half)

    def _cut(
        self, batches: Iterator[Any], start: int, max_bytes: int, hint: str
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the rows from number `start` on of record batches of any size."""
        number = 0
        while True:
            with reading(self.place.name, hint):
                if (found := next(batches, None)) is None:
                    break
            cut = max(0, min(start - number, len(found)))
            number += len(found)
            found = found.slice(cut)
            if not len(found):
                continue
            rows = min(rows_per_batch(found.nbytes // len(found), max_bytes), _MAX_ROWS)
            for at in range(0, len(found), rows):
                first = number - len(found) + at
                yield from self._converted(found.slice(at, rows), first, max_bytes, hint)
        self.rows = number
        yield max(number, start), Batch(keys_of([]), {})

    def _convert(self, found: Any) -> dict[str, Column]:
        columns = {}
        for i, field in enumerate(self._columns):
            try:
                column = arrow_column(field, found.column(i))
            except SourceError as error:
                raise SourceError(f"column {field.name}: {error.message}") from error
            except ValueError as error:
                raise SourceError(f"column {field.name}: {one_line(error)}") from error
            if column.valid is not None and not field.nullable:
                raise SourceError(f"column {field.name}: must not be null")
            columns[field.name] = column
        return columns


_READ_BYTES = 1 << 20
# Milliseconds before and after 1970 that fit into int64 nanoseconds.
_NS_YEARS_MS = 2**63 // 1_000_000
_NS_PER_MS = 1_000_000
_HINT = "is it a Parquet file? write it again"


class _ParquetSource(ArrowTable):
    """One Parquet file; a column may have nulls unless the file declares that it has none.

    The statistics in the footer are not used, because pyarrow crashes the process if they are
    damaged.
    """

    def __init__(self, place: Place, options: TableOptions) -> None:
        """Read the footer."""
        super().__init__(place, options)
        import_pyarrow("Parquet files")
        with self._open() as file:
            with reading(place.name, _HINT), self._refusing():
                footer, arrow_schema = file.metadata, file.schema_arrow
                self.rows = footer.num_rows
                self._int96 = _int96_columns(file.schema)
                arrow_schema = _meant(file.schema, arrow_schema)
                self._groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
                size = sum(footer.row_group(i).total_byte_size for i in range(len(self._groups)))
            self.nbytes = size
            self._record_bytes = size // max(1, self.rows or 0)
        self._take_schema(arrow_schema)

    def _open(self, **how: Any) -> _ParquetFile:
        return _ParquetFile(self.place, **how)

    def fingerprint(self) -> str:
        """A digest of name, size and time of the file."""
        return digest("parquet", self.place.stamp(), self.key_name, *self._how)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        number, groups = 0, list(range(len(self._groups)))
        while groups and number + self._groups[groups[0]] <= start:
            number += self._groups[groups.pop(0)]
        rows = min(rows_per_batch(self._record_bytes, max_bytes), _MAX_ROWS)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._open())
            how: dict[str, Any] = {
                "batch_size": rows,
                "row_groups": groups,
                "use_threads": False,
            }
            batches = file.iter_batches(**how)
            if self._int96:
                again = stack.enter_context(self._open(coerce_int96_timestamp_unit="ms"))
                batches = _exact(batches, again.iter_batches(columns=self._int96, **how))
            while True:
                with reading(self.place.name, _HINT):
                    if (found := next(batches, None)) is None:
                        break
                    cut = max(0, min(start - number, len(found)))
                    number += len(found)
                    found = found.slice(cut)
                yield from self._converted(found, number - len(found), max_bytes, _HINT)
                yield max(number, start), Batch(keys_of([]), {})
        if number != self.rows:
            raise SourceError(f"{self.place.name}: {number:,} rows, the footer says {self.rows:,}")


def _int96_columns(schema: Any) -> list[str]:
    """Return the names of INT96 columns, an older form of timestamps.

    Raises:
        SchemaError: INT96 is a part of nested values.
    """
    found = [column for column in map(schema.column, range(len(schema))) if _is_int96(column)]
    for column in found:
        if "." in column.path:
            raise refusal(column.path.partition(".")[0], "INT96 timestamps inside a nested column")
    return [column.path for column in found]


def _is_int96(column: Any) -> bool:
    return bool(column.physical_type == "INT96")


def _meant(schema: Any, arrow_schema: Any) -> Any:
    """Return pyarrow's schema, completed with facts of the file's schema that pyarrow leaves out.

    Raises:
        SchemaError: A column has intervals, which pyarrow returns as bytes.
    """
    for column in map(schema.column, range(len(schema))):
        name, _, inner = column.path.partition(".")
        if column.converted_type == "INTERVAL":
            raise refusal(name, "INTERVAL")
        if column.logical_type.type == "UUID" and not inner:
            at = arrow_schema.get_field_index(name)
            arrow_schema = arrow_schema.set(at, uuid_field(arrow_schema.field(at)))
    return arrow_schema


def _exact(batches: Iterator[Any], again: Iterator[Any]) -> Iterator[Any]:
    """Yield record batches whose timestamps of INT96 are exact.

    pyarrow counts their nanoseconds modulo 2^64, so times before 1677 and after 2262 are wrong. The
    columns are read a second time in milliseconds, which determine the right times.

    Args:
        batches: All columns; INT96 columns in nanoseconds.
        again: The INT96 columns in milliseconds; its batches may have other lengths.
    """
    import pyarrow as pa

    held = None
    for found in batches:
        while held is None or len(held) < len(found):
            if (piece := next(again, None)) is None:
                raise SourceError("two passes over the file differ in length")
            more = pa.Table.from_batches([piece])
            held = more if held is None else pa.concat_tables([held, more])
        for name in held.column_names:
            at = found.schema.get_field_index(name)
            ms = held[name].slice(0, len(found)).combine_chunks()
            field = found.schema.field(at)
            exact = _exact_times(pa, found.column(at), ms)
            found = found.set_column(at, field.with_type(exact.type), exact)
        held = held.slice(len(found))
        yield found


def _exact_times(pa: Any, wrapped: Any, ms: Any) -> Any:
    """Return timestamps, or structs of milliseconds and nanoseconds outside int64's range."""
    low, high = (
        one.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for one in (wrapped, ms)
    )
    if (np.abs(high) < _NS_YEARS_MS).all():
        return wrapped
    within = low - high * _NS_PER_MS  # both are modulo 2^64, and so is the result
    high = np.where((within >= 0) & (within < _NS_PER_MS), high, np.iinfo(np.int64).min)
    parts = [pa.array(high), pa.array(within.astype(np.int32))]
    return pa.StructArray.from_arrays(parts, ["ms", "ns"], mask=wrapped.is_null())


class _ParquetFile:
    """A ParquetFile of pyarrow that reads from a place, and closes its stream too."""

    def __init__(self, place: Place, **how: Any) -> None:
        from pyarrow import parquet as arrow_parquet

        self._stream = place.open()
        try:
            with reading(place.name, _HINT):
                self._file = arrow_parquet.ParquetFile(
                    self._stream, pre_buffer=False, buffer_size=_READ_BYTES, **how
                )
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._stream.close()


def parquet(
    location: Any,
    key: str | None = None,
    columns: Columns = None,
    rename: Renames = None,
    split: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open Parquet files.

    Args:
        location: A file, a pattern with `*`, a folder, or a list. `key=value` folders are columns,
            and files or folders called after splits (`train-*.parquet`) make these splits.
        key: Column to use as the key; otherwise a running number.
        columns: Names of the columns to load, `A,B`; None for all.
        rename: New names of columns, `OLD=NEW,OLD=NEW`.
        split: The split to load; None for all.
        bad_records: Handling of null keys, damaged images, and values that Ignite cannot store.

    Raises:
        SourceError: Missing or damaged, or with columns that Ignite cannot store.
    """
    options = TableOptions(key, columns, rename, bad_records)
    return open_tables("parquet", location, (".parquet", ".pq"), split, _ParquetSource, options)


_SAMPLE = 100
_STREAM_HINT = (
    "give an Arrow stream of rows with named columns; a column of mixed or unusual types has to be"
    " converted first"
)


class StreamSource(ArrowTable):
    """The rows of an Arrow stream.

    All columns except the key may have nulls, unless the stream excludes them. The stream's record
    batches may have any size: about one batch of the load is converted at a time.
    """

    def __init__(
        self, value: Any, *, key: str | None = None, bad_records: OnBadRecord = "fail"
    ) -> None:
        """Open the stream and read its types."""
        place = Place(f"the {type(value).__name__}", "record")
        super().__init__(place, TableOptions(key, bad_records=bad_records))
        pa = import_pyarrow("Arrow streams")
        self._value = value
        self.resumable = hasattr(value, "__len__")
        self.rows = len(value) if self.resumable else None
        with self._refusing():
            _refuse_reinterpreted(value)
        with reading(self.place.name, _STREAM_HINT):
            self._reader: Any = pa.RecordBatchReader.from_stream(value)
            self._schema = self._reader.schema
        self._take_schema(self._schema)
        self._id = self._stamp() if self.resumable else uuid.uuid4().hex

    def _refusing(self) -> AbstractContextManager[None]:
        return of_table(self.place.name)

    def _stamp(self) -> str:
        """Return a digest of the schema, the number of rows, and the first ones.

        Ends the stream, because some libraries (DuckDB) allow only one at a time; the load opens
        another.
        """
        pa = import_pyarrow("Arrow streams")
        with reading(self.place.name, _STREAM_HINT):
            reader, self._reader = self._reader, None
            first = next(reader, None)
            reader.close()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema) as writer:
                if first is not None:
                    writer.write_batch(first.slice(0, _SAMPLE))
        return digest("stream", sink.getvalue().to_pybytes().hex(), str(self.rows), self.key_name)

    def fingerprint(self) -> str:
        """A digest of row count and first rows; always new if the stream can be read only once."""
        return self._id

    def _open(self) -> Any:
        """Return the reader that provided the types, or a new one if it was already used."""
        reader, self._reader = self._reader, None
        if reader is None:
            if not self.resumable:
                raise SourceError(
                    f"{self.place.name} was already read; it can be read only once",
                    hint="give a new one, or a table: pyarrow.table(...)",
                )
            reader = import_pyarrow("Arrow streams").RecordBatchReader.from_stream(self._value)
        return reader

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        with reading(self.place.name, _STREAM_HINT):
            reader = self._open()
        yield from self._cut(reader, start, max_bytes, _STREAM_HINT)


def arrow_columns(columns: Mapping[str, Any]) -> Any:
    """Return arrays by name as a table; None unless all are arrays of Arrow or Polars."""
    libraries = {type(value).__module__.partition(".")[0] for value in columns.values()}
    if not libraries or not libraries <= {"pyarrow", "polars"}:
        return None
    pa = import_pyarrow("arrays of Arrow")
    arrays = {}
    for name, value in columns.items():
        frame = value.to_frame() if hasattr(value, "to_frame") else None
        with of_table("the arrays"):
            _refuse_reinterpreted(frame, name)
        if not isinstance(value, (pa.Array, pa.ChunkedArray)):
            value = pa.chunked_array(value)
        arrays[name] = value
    with reading("the arrays", "they must have one length"):
        return pa.table(arrays)


def stream(
    location: Any, key: str | None = None, bad_records: OnBadRecord = "fail"
) -> StreamSource:
    """Open an object with `__arrow_c_stream__`.

    Args:
        location: A table, reader, frame or relation; a cursor, result or rows of ignitetf.
        key: Column to use as the key; otherwise a running number.
        bad_records: Handling of null keys, and of values that Ignite cannot store.

    Raises:
        SourceError: It has columns that Ignite cannot store, or is not a stream of rows.
    """
    return StreamSource(location, key=key, bad_records=bad_records)


# Some libraries export columns to Arrow with another meaning, which Arrow cannot detect. Polars
# exports the addresses of Python objects as bytes. DuckDB exports the inner form of BIT as bytes, a
# time without its zone, and large unsigned numbers as negative ones. Only the libraries' own types
# show this.

# For each library: its names of such types, and the conversion to make first.
_REINTERPRETED: Final[Mapping[str, Mapping[str, str]]] = {
    "polars": {
        "Object": "convert it to a type of Polars: map_elements(..., return_dtype=pl.String)",
        "Int128": "convert it first: cast(pl.Decimal(38, 0)), or cast(pl.String)",
        "UInt128": "convert it first: cast(pl.Decimal(38, 0)), or cast(pl.String)",
    },
    "duckdb": {
        "bit": "convert it in the SELECT: CAST(... AS VARCHAR)",
        "time with time zone": "convert it in the SELECT: CAST(... AS VARCHAR), or AS TIME",
        "uhugeint": "convert it in the SELECT: CAST(... AS DECIMAL(38, 0)), or AS VARCHAR",
    },
}


def _refuse_reinterpreted(value: Any, name: str | None = None) -> None:
    """Refuse a frame or relation with a column whose values have another meaning in Arrow.

    Args:
        value: The frame or relation, or anything else.
        name: Name of its only column; None for its own names.

    Raises:
        SchemaError: It has such a column.
    """
    library = type(value).__module__.partition(".")[0].lstrip("_")
    known = _REINTERPRETED.get(library)
    types = getattr(value, "types" if library == "duckdb" else "dtypes", None)
    if known is None or types is None:
        return
    for column, kind in zip(value.columns, types, strict=True):
        for part in _parts_of_type(kind):
            if (word := _type_word(part)) in known:
                raise refusal(name or column, kind, known[word])


def _parts_of_type(kind: Any) -> Iterator[Any]:
    """Yield a type and all types inside it."""
    yield kind
    inside: Iterable[Any] = ()
    if hasattr(kind, "base_type"):  # Polars: an inner type, or fields
        inner = getattr(kind, "inner", None)
        inside = [inner] if inner is not None else [f.dtype for f in getattr(kind, "fields", ())]
    elif _type_word(kind) in ("list", "array", "struct", "map", "union"):
        inside = [part for _, part in kind.children if hasattr(part, "id")]
    for part in inside:
        yield from _parts_of_type(part)


def _type_word(kind: Any) -> str:
    return str(kind.base_type().__name__ if hasattr(kind, "base_type") else kind.id)
