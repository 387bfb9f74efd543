"""Arrow files: IPC files (Feather), IPC streams, and what Hugging Face's `save_to_disk` writes.

file -> record batches, checked -> **columns** -> Batch

Arrow itself trusts the offsets in a file, and damaged ones can end the process, so each record
batch is checked before it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, cast

from ignitetf.errors import SourceError
from ignitetf.load.sources.arrowplain import import_pyarrow
from ignitetf.load.sources.base import Source
from ignitetf.load.sources.filesets import open_tables
from ignitetf.load.sources.location import Place, digest, open_plain, reading
from ignitetf.load.sources.recordbatches import ArrowTable
from ignitetf.load.sources.tabular import Columns, Renames, TableOptions
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch

__all__ = ["arrow"]

_FILE: Final = b"ARROW1"
_FEATHER_1: Final = b"FEA1"
_HINT: Final = "is it an Arrow file? write it again with pyarrow.ipc or to_feather"


class _ArrowSource(ArrowTable):
    """One Arrow file; a column may have nulls unless the file declares that it has none."""

    def __init__(self, place: Place, options: TableOptions) -> None:
        """Read the schema."""
        super().__init__(place, options)
        import_pyarrow("Arrow files")
        self.nbytes = place.size()
        self._rest: _Joined | None = None
        with self._open() as reader:
            self._take_schema(reader.schema)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        """Open a reader of the file's record batches."""
        pa = import_pyarrow("Arrow files")
        name = self.place.name
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(open_plain(self.place))
            with reading(name, _HINT):
                head = stream.read(len(_FILE))
                if head.startswith(_FEATHER_1):
                    raise SourceError(
                        f"{name}: Feather of version 1, which Arrow no longer supports",
                        hint="write it again: pyarrow.feather.write_feather(table, FILE)",
                    )
                if head == _FILE and stream.seekable():
                    reader = stack.enter_context(pa.ipc.open_file(stream))
                else:
                    # The rest of such a file is also a stream.
                    rest = self._rest = _Joined(b"" if head == _FILE else head, stream)
                    if head == _FILE:
                        stream.read(2)
                    reader = stack.enter_context(pa.ipc.open_stream(pa.PythonFile(rest, "r")))
            yield reader

    def fingerprint(self) -> str:
        """A digest of name, size and time of the file."""
        return digest("arrow", self.place.stamp(), self.key_name, *self._how)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        with self._open() as reader:
            yield from self._cut(_checked(reader), start, max_bytes, _HINT)
        if self._rest is not None and self._rest.ended:
            self.note(f"{self.place.name}: the stream has no end mark, so it may have been cut")


class _Joined:
    """A stream whose first bytes were read before.

    Attributes:
        ended: True if the end of the stream was read; an Arrow stream has a mark at its end.
    """

    closed = False
    ended = False

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or all."""
        if self._head:
            head, self._head = self._head[:size], self._head[len(self._head[:size]) :]
            more = size - len(head) if size >= 0 else -1
            return head + (cast(bytes, self._stream.read(more)) if more else b"")
        data = cast(bytes, self._stream.read(size))
        self.ended = self.ended or not data
        return data

    def close(self) -> None:
        """Do nothing; the opener of the stream closes it."""


def _checked(reader: Any) -> Iterator[Any]:
    """Yield the record batches of a file or stream whose offsets and texts are valid."""
    if hasattr(reader, "num_record_batches"):
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for number, batch in enumerate(batches):
        try:
            batch.validate(full=True)
        except ValueError as error:
            raise ValueError(f"record batch {number} is damaged") from error
        yield batch


def arrow(
    location: Any,
    key: str | None = None,
    columns: Columns = None,
    rename: Renames = None,
    split: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open Arrow files: IPC files, which are called Feather too, and IPC streams, compressed or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list; see `parquet`.
        key: Column to use as the key; otherwise a running number.
        columns: Names of the columns to load, `A,B`; None for all.
        rename: New names of columns, `OLD=NEW,OLD=NEW`.
        split: The split to load; None for all.
        bad_records: Handling of null keys, damaged images, and values that Ignite cannot store.

    Raises:
        SourceError: Missing or damaged, or with columns that Ignite cannot store.
    """
    options = TableOptions(key, columns, rename, bad_records)
    suffixes = (".arrow", ".arrows", ".feather", ".ipc")
    return open_tables("arrow", location, suffixes, split, _ArrowSource, options)
