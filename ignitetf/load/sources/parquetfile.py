"""Parquet files as records, through pyarrow.

file -> row groups -> **columns** -> Batch
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrow import marked_field
from ignitetf.load.sources.arrowplain import import_pyarrow, refusal, uuid_field
from ignitetf.load.sources.arrowtable import ArrowTable
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch
from ignitetf.load.sources.chain import ChainSource, files_at
from ignitetf.load.sources.location import Place, digest, reading
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch

__all__ = ["ParquetSource", "parquet"]

_READ_BYTES = 1 << 20
_MAX_ROWS = 1 << 16
# Milliseconds that int64 nanoseconds can count, on either side of 1970.
_NS_YEARS_MS = 2**63 // 1_000_000
_NS_PER_MS = 1_000_000
_HINT = "is it a Parquet file? write it again"


class ParquetSource(ArrowTable):
    """One Parquet file; a column may have nulls unless the file declares that it has none.

    The statistics in the footer are not used, because pyarrow crashes the process if they are
    damaged.
    """

    def __init__(
        self, place: Place, *, key: str | None = None, bad_records: OnBadRecord = "fail"
    ) -> None:
        """Read the footer."""
        super().__init__(bad_records=bad_records)
        import_pyarrow("Parquet files")
        self.place = place
        with self._open() as file:
            with reading(place.name, _HINT):
                footer, arrow_schema = file.metadata, file.schema_arrow
                self.rows = footer.num_rows
                self._int96 = _int96_columns(file.schema)
                arrow_schema = _meant(file.schema, arrow_schema)
                self._groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
                size = sum(footer.row_group(i).total_byte_size for i in range(len(self._groups)))
            self.nbytes = size
            self._record_bytes = size // max(1, self.rows or 0)
        fields = [marked_field(f) for f in arrow_schema]
        self._take_fields(fields, key)

    def _open(self, **how: Any) -> _ParquetFile:
        return _ParquetFile(self.place, **how)

    def fingerprint(self) -> str:
        """Made from name, size and time of the file."""
        return digest("parquet", self.place.stamp(), self.key_name)

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
    """Return the columns of INT96, an older form of timestamps.

    Raises:
        SourceError: It is a part of nested values.
    """
    found = [column for column in map(schema.column, range(len(schema))) if _is_int96(column)]
    for column in found:
        if "." in column.path:
            raise refusal(column.path.partition(".")[0], "timestamps of INT96 inside others")
    return [column.path for column in found]


def _is_int96(column: Any) -> bool:
    return bool(column.physical_type == "INT96")


def _meant(schema: Any, arrow_schema: Any) -> Any:
    """Return pyarrow's schema with what it leaves out of that of the file.

    Raises:
        SourceError: A column has intervals, which pyarrow gives as their bytes.
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

    pyarrow counts their nanoseconds modulo 2^64, which are those of other times before 1677 and
    after 2262. Read again, their milliseconds tell which these are.

    Args:
        batches: All columns; those of INT96 in nanoseconds.
        again: The columns of INT96 in milliseconds; its batches may have other lengths.
    """
    import pyarrow as pa

    held = None
    for found in batches:
        while held is None or len(held) < len(found):
            if (piece := next(again, None)) is None:
                raise SourceError("two readings of the file differ in length")
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
    """Return timestamps, or structs of milliseconds and nanoseconds if int64 cannot count them."""
    low, high = (
        one.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for one in (wrapped, ms)
    )
    if (np.abs(high) < _NS_YEARS_MS).all():
        return wrapped
    within = low - high * _NS_PER_MS  # modulo 2^64, as both are
    high = np.where((within >= 0) & (within < _NS_PER_MS), high, np.iinfo(np.int64).min)
    parts = [pa.array(high), pa.array(within.astype(np.int32))]
    return pa.StructArray.from_arrays(parts, ["ms", "ns"], mask=wrapped.is_null())


class _ParquetFile:
    """pyarrow's ParquetFile over a place, closed together with it."""

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


def parquet(location: Any, key: str | None = None, bad_records: OnBadRecord = "fail") -> Source:
    """Open Parquet files.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        key: Column to use as the key; otherwise a running number.
        bad_records: What to do with null keys and with values that Ignite cannot store.

    Raises:
        SourceError: Missing or damaged, or with columns that Ignite cannot store.
    """
    if not location:
        raise ConfigError("source 'parquet' needs a file")
    sources = [
        ParquetSource(place, key=key, bad_records=bad_records)
        for place in files_at(location, (".parquet", ".pq"))
    ]
    return sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
