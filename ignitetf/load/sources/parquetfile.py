"""Parquet files as records, through pyarrow.

file -> row groups -> **columns** -> Batch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrow import import_pyarrow, marked_field
from ignitetf.load.sources.arrowtable import ArrowTable
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch
from ignitetf.load.sources.chain import ChainSource, files_at
from ignitetf.load.sources.location import Place, digest, reading
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.schema import Batch

__all__ = ["ParquetSource", "parquet"]

_READ_BYTES = 1 << 20
_MAX_ROWS = 1 << 16
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
                self._groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
                size = sum(footer.row_group(i).total_byte_size for i in range(len(self._groups)))
            self.nbytes = size
            self._record_bytes = size // max(1, self.rows or 0)
        fields = [marked_field(f) for f in arrow_schema]
        self._take_fields(fields, key)

    def _open(self) -> _ParquetFile:
        return _ParquetFile(self.place)

    def fingerprint(self) -> str:
        """Made from name, size and time of the file."""
        return digest("parquet", self.place.stamp(), self.key_name)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        number, groups = 0, list(range(len(self._groups)))
        while groups and number + self._groups[groups[0]] <= start:
            number += self._groups[groups.pop(0)]
        rows = min(rows_per_batch(self._record_bytes, max_bytes), _MAX_ROWS)
        with self._open() as file:
            batches = file.iter_batches(batch_size=rows, row_groups=groups, use_threads=False)
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


class _ParquetFile:
    """pyarrow's ParquetFile over a place, closed together with it."""

    def __init__(self, place: Place) -> None:
        from pyarrow import parquet as arrow_parquet

        self._stream = place.open()
        try:
            with reading(place.name, _HINT):
                self._file = arrow_parquet.ParquetFile(
                    self._stream, pre_buffer=False, buffer_size=_READ_BYTES
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
