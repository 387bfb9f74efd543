"""IDX files, one array per file, gzipped or not; and MNIST, which consists of four such files.

file -> **header, records** -> Batch

An IDX file consists of two zero bytes, a type code, the number of dimensions, each dimension as a
big-endian int32, and the elements in C order, big-endian. The header is checked against the file's
length before the elements are read.

MNIST is read from a folder, or downloaded once and verified. Downloads are stored in
`IGNITETF_HOME/data/mnist` under a temporary name and are renamed only if their content has the
pinned SHA-256. The checksums are those of the decompressed files, because mirrors compress them
differently. Files in a folder that the user names are not compared with them: they may hold other
data of the same layout (Fashion-MNIST).
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
from ignitetf.load.sources.compressed import Decompressed
from ignitetf.load.sources.location import (
    Location,
    Place,
    digest,
    inspect,
    locate,
    one_line,
    open_plain,
    public_name,
    read_exactly,
    skip_bytes,
)
from ignitetf.load.sources.values import stored_field
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column, Dense
from ignitetf.wire.schema import Field, Schema, field_for

__all__ = ["FILES", "idx", "mnist", "open_mnist"]

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
class _IdxFile:
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
    def open(cls, place: Place) -> _IdxFile:
        """Read and check the header, and the length of the file.

        Raises:
            SourceError: Missing, not an IDX file, truncated or longer than the header says.
        """
        with open_plain(place) as stream:
            compressed = isinstance(stream, Decompressed)
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

    def _check_length(self, compressed: bool) -> _IdxFile:
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
        return _IdxFile(self.place, self.dtype, self.count, self.shape, self.header_bytes, sha256)

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


class _IdxSource(Source):
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
        self.images = _IdxFile.open(images)
        self.labels = None if labels is None else _IdxFile.open(labels)
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
                hint="are the files of images and labels swapped?",
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
        """A digest of the content if all of it was read, otherwise from name, size and version."""
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
        """Return the batch with its labels; skips records whose label is not a class."""
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
) -> _IdxSource:
    """Open IDX files of values and, optionally, labels.

    Args:
        location: The file of values.
        labels: The file of labels.
        bad_records: Handling of a bad record.
    """
    if location is None:
        raise ConfigError("source 'idx' needs a file", hint="idx(IMAGES, labels=LABELS)")
    return _IdxSource(
        locate(location), None if labels is None else locate(labels), bad_records=bad_records
    )


_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Name -> length and SHA-256 of the decompressed file.
FILES: dict[str, tuple[int, str]] = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
_PREFIX = {"train": "train", "test": "t10k"}
_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_HINT_OFFLINE = "give a folder with the four files (--source DIR), or set IGNITETF_MNIST_URL"


_IMAGES_MAGIC = bytes.fromhex("00000803")
_LABELS_MAGIC = bytes.fromhex("00000801")


def open_mnist(
    location: Location | None = None, split: str = "train", bad_records: OnBadRecord = "fail"
) -> _IdxSource:
    """Open `mnist` as `open_source` does, with the folder first."""
    return mnist(split, location, bad_records)


def mnist(
    split: str = "train",
    source_dir: Location | None = None,
    bad_records: OnBadRecord = "fail",
) -> _IdxSource:
    """Return one split of MNIST: IMAGE uint8 [28, 28, 1], LABEL int32.

    Args:
        split: "train" or "test".
        source_dir: Folder (or fsspec URL) with the IDX files, gzipped or not; None downloads them,
            from `IGNITETF_MNIST_URL` if that is set.
        bad_records: Handling of a label that is not a digit.

    Raises:
        SourceError: A file is missing or damaged, or the two do not match.
    """
    if (prefix := _PREFIX.get(split)) is None:
        raise ConfigError(f"MNIST has no split {split!r}", hint="use 'train' or 'test'")
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    if source_dir is not None:
        folder = locate(source_dir)
        if not folder.is_dir():
            raise SourceError(f"{folder.name}: no such folder", hint=_HINT_OFFLINE)
        images, labels = (_find(folder, name) for name in names)
    else:
        images, labels = (_fetch(name) for name in names)
    _check_magic(images, _IMAGES_MAGIC)
    _check_magic(labels, _LABELS_MAGIC)
    return _IdxSource(
        images,
        labels,
        type_name=f"Mnist{split.capitalize()}",
        class_names=[str(digit) for digit in range(10)],
        bad_records=bad_records,
    )


def _check_magic(place: Place, expected: bytes) -> None:
    """Raise SourceError unless the file has unsigned bytes of the right dimensions."""
    with open_plain(place) as stream:
        magic = read_exactly(stream, 4, place.name, "the header of an IDX file")
    if magic != expected:
        raise SourceError(
            f"{place.name}: wrong magic number 0x{magic.hex()}, expected 0x{expected.hex()}",
            hint="is it the right file? 'ignitetf load idx' loads other IDX files",
        )


def _find(folder: Place, name: str) -> Place:
    """Find the file of this name: gzipped or not, or named like `train-images.idx3-ubyte`."""
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
        if (place := folder.child(candidate)).exists():
            return place
    raise SourceError(
        f"{folder.name}: no file {name} or {name}.gz",
        hint="the folder must hold the four MNIST files; without --source they are downloaded",
    )


def _fetch(name: str) -> Place:
    """Return the verified file in the data folder, after a download if it is missing."""
    from ignitetf.home import ignitetf_home

    target = ignitetf_home() / "data" / "mnist" / f"{name}.gz"
    place = Place(str(target), str(target))
    if target.is_file():
        with contextlib.suppress(SourceError):
            _check(place, name)
            return place
    override = os.environ.get("IGNITETF_MNIST_URL")
    failures: list[SourceError] = []
    for mirror in (override,) if override else _MIRRORS:
        try:
            _download(f"{mirror.rstrip('/')}/{name}.gz", target, name)
            return place
        except SourceError as error:
            failures.append(error)
    raise SourceError("; ".join(e.message for e in failures), hint=_HINT_OFFLINE) from failures[-1]


def _download(url: str, target: Path, name: str) -> None:
    """Download a file next to its target, verify it, and rename it in one step."""
    shown = public_name(url)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as out:
            temporary = Path(out.name)
            # The URL is one of our mirrors, or the user's own; the content must match known hashes.
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # nosec B310
                _copy(answer, out, limit=FILES[name][0] + _PIECE_BYTES, shown=shown)
        _check(Place(shown, str(temporary)), name)
        temporary.replace(target)
    except (OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"could not download {shown}: {one_line(error)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _copy(answer: IO[bytes], out: IO[bytes], *, limit: int, shown: str) -> None:
    """Copy an answer of at most `limit` bytes."""
    n = 0
    while piece := answer.read(_PIECE_BYTES):
        n += len(piece)
        if n > limit:
            raise SourceError(f"{shown}: longer than an MNIST file can be")
        out.write(piece)


def _check(place: Place, name: str) -> None:
    """Raise SourceError unless the decompressed file has the pinned length and SHA-256."""
    length, sha256 = inspect(place, FILES[name][0])
    if (length, sha256) != FILES[name]:
        raise SourceError(
            f"{place.name}: wrong checksum: SHA-256 of the content is {sha256[:16]}..., expected "
            f"{FILES[name][1][:16]}...",
            hint="the file is not the published one; fetch it from another mirror",
        )
