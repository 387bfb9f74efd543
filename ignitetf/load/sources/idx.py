"""IDX files (the format of MNIST): one array per file, gzipped or not.

file -> **header, records** -> Batch

An IDX file consists of two zero bytes, a type code, the number of dimensions, each dimension as a
big-endian int32, and the elements in C order, big-endian. Headers are checked against the real
length before anything is read that relies on them.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    Source,
    check_record_size,
    keys_of,
    rows_per_batch,
)
from ignitetf.load.sources.exact import stored_field
from ignitetf.load.sources.location import (
    Location,
    Place,
    digest,
    inspect,
    locate,
    open_plain,
    read_exactly,
    skip_bytes,
)
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column, Dense
from ignitetf.wire.schema import Field, Schema, field_for

__all__ = ["IdxFile", "IdxSource", "idx"]

_DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
_MAX_DIMENSIONS = 8
# A gzipped file up to this size is read completely when it is opened, so that a damaged one is
# refused before the first row is stored.
_CHECK_BYTES = 256 << 20


@dataclass(frozen=True)
class IdxFile:
    """The header of an IDX file: `count` records of `shape` elements each."""

    place: Place
    dtype: np.dtype[Any]
    count: int
    shape: tuple[int, ...]
    header_bytes: int
    sha256: str | None

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    @classmethod
    def open(cls, place: Place) -> IdxFile:
        """Read and check the header, and the length of the file.

        Raises:
            SourceError: Missing, not an IDX file, truncated or longer than the header says.
        """
        with open_plain(place) as stream:
            compressed = isinstance(stream, gzip.GzipFile)
            magic = read_exactly(stream, 4, place.name, "the header of an IDX file")
            dtype = _DTYPES.get(magic[2])
            if magic[:2] != b"\0\0" or dtype is None or not 1 <= magic[3] <= _MAX_DIMENSIONS:
                raise SourceError(
                    f"{place.name}: wrong magic number 0x{magic.hex()}, not an IDX file",
                    hint="IDX files begin with 0x000008 and the number of dimensions",
                )
            raw = read_exactly(stream, 4 * magic[3], place.name, "the header of an IDX file")
        dims = struct.unpack(f">{magic[3]}i", raw)
        if min(dims) < 0 or 0 in dims[1:]:
            raise SourceError(f"{place.name}: impossible dimensions {dims} in the header")
        found = cls(place, dtype, dims[0], tuple(dims[1:]), 4 + len(raw), None)
        check_record_size(place.name, found.record_bytes)
        return found._check_length(compressed)

    def _check_length(self, compressed: bool) -> IdxFile:
        expected = self.header_bytes + self.count * self.record_bytes
        sha256 = None
        if not compressed:
            length = self.place.size()
        elif expected <= _CHECK_BYTES:
            length, sha256 = inspect(self.place, expected)
        else:
            length = None
        if length is not None and length != expected:
            word = "truncated" if length < expected else "too long"
            raise SourceError(
                f"{self.place.name}: {word}: the header promises {self.count:,} records of "
                f"{self.record_bytes:,} bytes = {expected:,} bytes, found "
                f"{'more' if length > expected else f'{length:,}'}",
                hint="fetch or export the file again",
            )
        return IdxFile(self.place, self.dtype, self.count, self.shape, self.header_bytes, sha256)

    def read(self, start: int, rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield arrays `[<= rows, *shape]` in native byte order, from record `start` on."""
        name = self.place.name
        with open_plain(self.place) as stream:
            skip = min(start, self.count) * self.record_bytes
            skip_bytes(stream, self.header_bytes + skip, name)
            for first in range(start, self.count, rows):
                count = min(rows, self.count - first)
                raw = read_exactly(stream, count * self.record_bytes, name)
                values = np.frombuffer(raw, self.dtype).reshape(count, *self.shape)
                yield values.astype(self.dtype.newbyteorder("="), copy=False)


class IdxSource(Source):
    """An IDX file of values, and optionally one of labels.

    Fields: IMAGE in the file's dtype (28 x 28 images get a channel: [28, 28, 1]) and LABEL (int32,
    or float as in the file).
    """

    def __init__(
        self,
        images: Place,
        labels: Place | None = None,
        *,
        type_name: str = "IdxRecord",
        class_names: list[str] | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Open both files and check that they belong together."""
        super().__init__(bad_records=bad_records)
        self.images = IdxFile.open(images)
        self.labels = None if labels is None else IdxFile.open(labels)
        self.class_names = class_names
        self.rows = self.images.count
        self._check_pair()
        self.schema = Schema(type_name, RUNNING_KEY, self._fields())

    def _check_pair(self) -> None:
        labels = self.labels
        if labels is None:
            return
        if labels.shape:
            raise SourceError(
                f"{labels.place.name}: labels of shape {list(labels.shape)}, expected one number a "
                "record",
                hint="are the files of images and labels exchanged?",
            )
        if labels.count != self.images.count:
            raise SourceError(
                f"{self.images.place.name} has {self.images.count:,} records, "
                f"{labels.place.name} has {labels.count:,} labels",
                hint="the two files must be of the same split",
            )

    def _fields(self) -> tuple[Field, ...]:
        shape = self.images.shape
        if len(shape) == 2 and self.images.dtype == np.uint8:
            shape = (*shape, 1)
        fields = [stored_field("IMAGE", self.images.dtype.newbyteorder("="), shape)]
        if self.labels is not None:
            dtype = self.labels.dtype
            kept = dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.int32)
            fields.append(field_for("LABEL", kept))
        return tuple(fields)

    def fingerprint(self) -> str:
        """Made from the content if it was read completely, else from name, size and version."""
        files = [f for f in (self.images, self.labels) if f is not None]
        return digest(
            "idx",
            *(f.sha256 or f.place.stamp() for f in files),
            *(f.name for f in self.schema.fields),
        )

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        rows = rows_per_batch(self.images.record_bytes + 12, max_bytes)
        first = start
        shape = self.schema["IMAGE"].shape
        labels = None if self.labels is None else self.labels.read(start, rows)
        for values in self.images.read(start, rows):
            count = len(values)
            columns: dict[str, Column] = {
                "IMAGE": Dense(values.reshape(count, *(n or 0 for n in shape)))
            }
            batch = Batch(keys_of(np.arange(first, first + count)), columns)
            if labels is not None:
                batch = self._label(batch, next(labels), first)
            first += count
            yield first, batch

    def _label(self, batch: Batch, labels: NDArray[np.generic], first: int) -> Batch:
        """Return the batch with its labels, without records whose label is not a class."""
        numbers = labels.astype(self.schema["LABEL"].dtype)
        batch.columns["LABEL"] = Dense(numbers)
        if self.class_names is None:
            return batch
        good = (numbers >= 0) & (numbers < len(self.class_names))
        if good.all():
            return batch
        assert self.labels is not None
        for i in np.flatnonzero(~good).tolist():
            self.bad(
                f"{self.labels.place.name}, record {first + i}",
                f"label {numbers[i]} is not in 0..{len(self.class_names) - 1}",
            )
        return batch[np.flatnonzero(good)]


def idx(
    location: Location,
    labels: Location | None = None,
    bad_records: OnBadRecord = "fail",
) -> IdxSource:
    """Open IDX files of values and, optionally, labels.

    Args:
        location: The file of values.
        labels: The file of labels.
        bad_records: What to do with a bad record.
    """
    if location is None:
        raise ConfigError("source 'idx' needs a file", hint="idx(IMAGES, labels=LABELS)")
    return IdxSource(
        locate(location), None if labels is None else locate(labels), bad_records=bad_records
    )
