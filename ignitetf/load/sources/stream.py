"""Anything that is an Arrow stream: tables, frames, relations, cursors, rows of our own.

`__arrow_c_stream__` -> record batches -> **columns** -> Batch

What has a length is read again from its beginning where a load goes on; anything else can be read
once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ignitetf.errors import SourceError
from ignitetf.load.sources.arrow import marked_field
from ignitetf.load.sources.arrowplain import import_pyarrow, refusal
from ignitetf.load.sources.arrowtable import ArrowTable
from ignitetf.load.sources.base import keys_of, rows_per_batch
from ignitetf.load.sources.location import Place, digest, reading
from ignitetf.load.sources.producers import unsaid_columns
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch

__all__ = ["StreamSource", "arrow_columns", "stream"]

_MAX_ROWS = 1 << 16
_SAMPLE = 100
_HINT = "is it an Arrow stream of rows with named columns?"


class StreamSource(ArrowTable):
    """The rows of an Arrow stream; any column but the key may have nulls unless the stream says not.

    Its record batches may be of any size: what is converted at a time is about a batch of the load.
    """

    def __init__(
        self, value: Any, *, key: str | None = None, bad_records: OnBadRecord = "fail"
    ) -> None:
        """Open the stream, which tells the types."""
        super().__init__(bad_records=bad_records)
        pa = import_pyarrow("Arrow streams")
        self.place = Place(f"the {type(value).__name__}", "record")
        self._value = value
        self.resumable = hasattr(value, "__len__")
        self.rows = len(value) if self.resumable else None
        for column, what, hint in unsaid_columns(value):
            raise refusal(column, what, hint)
        with reading(self.place.name, _HINT):
            self._reader: Any = pa.RecordBatchReader.from_stream(value)
            self._schema = self._reader.schema
        self._take_fields([marked_field(f) for f in self._schema], key)
        self._id = self._stamp() if self.resumable else uuid.uuid4().hex

    def _stamp(self) -> str:
        """Return a digest of the schema, the number of rows, and the first ones.

        Ends the stream, as some libraries (DuckDB) have one at a time; the load opens another.
        """
        pa = import_pyarrow("Arrow streams")
        with reading(self.place.name, _HINT):
            reader, self._reader = self._reader, None
            first = next(reader, None)
            reader.close()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema) as writer:
                if first is not None:
                    writer.write_batch(first.slice(0, _SAMPLE))
        return digest("stream", sink.getvalue().to_pybytes().hex(), str(self.rows), self.key_name)

    def fingerprint(self) -> str:
        """Made of the number of rows and the first ones; anew for what can be read once."""
        return self._id

    def _open(self) -> Any:
        """Return the reader that told the types, or a new one after it was read."""
        reader, self._reader = self._reader, None
        if reader is None:
            if not self.resumable:
                raise SourceError(
                    f"{self.place.name} was read already, and can be read once",
                    hint="give a new one, or a table: pyarrow.table(...)",
                )
            reader = import_pyarrow("Arrow streams").RecordBatchReader.from_stream(self._value)
        return reader

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        number = 0
        with reading(self.place.name, _HINT):
            reader = self._open()
        while True:
            with reading(self.place.name, _HINT):
                if (found := next(reader, None)) is None:
                    break
            cut = max(0, min(start - number, len(found)))
            number += len(found)
            found = found.slice(cut)
            if not len(found):
                continue
            rows = min(rows_per_batch(found.nbytes // len(found), max_bytes), _MAX_ROWS)
            for at in range(0, len(found), rows):
                first = number - len(found) + at
                yield from self._converted(found.slice(at, rows), first, max_bytes, _HINT)
        self.rows = number
        yield max(number, start), Batch(keys_of([]), {})


def arrow_columns(columns: Mapping[str, Any]) -> Any:
    """Return arrays of Arrow or Polars by name as a table; None unless all are such arrays."""
    libraries = {type(value).__module__.partition(".")[0] for value in columns.values()}
    if not libraries or not libraries <= {"pyarrow", "polars"}:
        return None
    pa = import_pyarrow("arrays of Arrow")
    arrays = {}
    for name, value in columns.items():
        frame = value.to_frame() if hasattr(value, "to_frame") else None
        for _, what, hint in unsaid_columns(frame):
            raise refusal(name, what, hint)
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
        bad_records: What to do with null keys and with values that Ignite cannot store.

    Raises:
        SourceError: It has columns that Ignite cannot store, or is no stream of rows.
    """
    return StreamSource(location, key=key, bad_records=bad_records)
