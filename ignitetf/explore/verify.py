"""`verify`: check that a cache matches its manifest and its source.

cache -> reader -> **counts, checksum, duplicates, images** -> report

Everything is read once, including the source if one is given. Keys are compared by their hashes, so
a hundred million rows take less than a gigabyte.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError, WireError
from ignitetf.load.sources.base import Source
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import batch_hashes
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct, runs_of, values_of
from ignitetf.wire.datatypes import FIXED_DTYPE
from ignitetf.wire.schema import BYTES, Schema

__all__ = ["Finding", "VerifyReport", "verify"]

_SHOWN: Final = 20
_MASK: Final = (1 << 64) - 1
# First bytes of image files. If half the values of a field begin like this, all should be images.
_MAGIC: Final = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"RIFF",
)


@dataclass(frozen=True)
class Finding:
    """A failed check, and what it found."""

    check: str
    found: str


@dataclass
class VerifyReport:
    """The result of verifying a cache.

    Attributes:
        cache: Name of the data set.
        layout: `rows` or `blocks`.
        rows: Rows read.
        expected_rows: Rows according to the manifest; None without one.
        checksum: Checksum of the rows read.
        expected_checksum: Checksum in the manifest; None if it has none.
        source_checksum: Checksum of the given source; None without one.
        duplicates: Rows whose key another row has.
        misplaced: Rows that are not in the partition of their key.
        images: Encoded images that were decoded.
        undecodable: Images that could not be decoded.
        partitions: Number of partitions.
        partition_min: Rows of the smallest partition.
        partition_max: Rows of the largest partition.
        skew: Rows of the largest partition divided by the mean.
        findings: The failed checks; empty if all passed.
    """

    cache: str
    layout: str = "rows"
    rows: int = 0
    expected_rows: int | None = None
    checksum: str = ""
    expected_checksum: str | None = None
    source_checksum: str | None = None
    duplicates: int = 0
    misplaced: int = 0
    images: int = 0
    undecodable: int = 0
    partitions: int = 0
    partition_min: int = 0
    partition_max: int = 0
    skew: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if all checks passed."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, `ok`, and the findings as texts."""
        out = asdict(self)
        out["findings"] = [f"{f.check}: {f.found}" for f in self.findings]
        return {"ok": self.ok, **out}


def verify(
    client: Client,
    cache: str,
    source: Source | None = None,
    *,
    images: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Read a data set and compare it with its manifest and, if given, its source.

    Args:
        client: The connection.
        cache: Name of the data set.
        source: The source that it was loaded from.
        images: True to decode encoded images.
        on_progress: Called with rows and bytes as they are read.

    Raises:
        CacheNotFound: The cache does not exist.
    """
    reader = CacheReader(client, cache, ReadOptions(raw_nulls=True, on_change="ignore"))
    if reader.manifest is None or reader.manifest.layout == "rows":
        reader.schema = _with_whole_times(reader.schema)
    check = _Check(reader, images)
    check.read(on_progress or (lambda rows, nbytes: None))
    check.compare_manifest()
    if source is not None:
        check.compare_source(source)
    return check.report


def _with_whole_times(schema: Schema) -> Schema:
    """Return the schema with timestamps as stored: nanoseconds cannot express all of them."""
    times = [f for f in schema.fields if f.type is TypeCode.TIMESTAMP and not f.shape]
    return schema.replace_fields(*(replace(f, dtype=FIXED_DTYPE[f.type]) for f in times))


class _Check:
    """One run of `verify`."""

    def __init__(self, reader: CacheReader, images: bool) -> None:
        self.reader, self.schema = reader, reader.schema
        self.report = VerifyReport(reader.name, partitions=reader.partition_count)
        if reader.manifest is not None:
            self.report.layout = reader.manifest.layout
        self.counts = np.zeros(reader.partition_count, np.int64)
        self.total = 0
        self.key_hashes: list[NDArray[np.uint64]] = []
        self.images = _ImageFields(self.schema) if images else None

    def read(self, on_progress: Callable[[int, int], None]) -> None:
        """Read all partitions; an unreadable record ends the reading of its partition."""
        count = self.reader.partition_count
        mapped = self.reader.client.partition_map(self.reader.cache).count > 0
        for partition in range(count):
            try:
                for batch in self._batches(partition):
                    self._take(batch, partition, mapped)
                    on_progress(len(batch), batch.nbytes)
            except (SchemaError, WireError) as error:
                self._find("records", error.message)
        self._summarise()

    def compare_manifest(self) -> None:
        """Report differences from the load: rows, checksum, rows by partition, a slim table."""
        manifest, report = self.reader.manifest, self.report
        if manifest is None:
            return
        report.expected_rows = manifest.rows
        report.expected_checksum = manifest.checksum or None
        if report.rows != manifest.rows:
            self._find("rows", f"{report.rows:,}, the load stored {manifest.rows:,}")
        if manifest.checksum and report.checksum != manifest.checksum:
            self._find("checksum", f"{report.checksum}, that of the load was {manifest.checksum}")
        expected = manifest.partition_rows
        if len(expected) == len(self.counts):
            wrong = np.flatnonzero(self.counts != np.array(expected))
            for partition in wrong[:_SHOWN].tolist():
                found = f"{self.counts[partition]:,} rows in partition {partition}"
                self._find("partitions", f"{found}, the load stored {expected[partition]:,}")
        if manifest.index is not None:
            indexed = self.reader.client.cache_size(manifest.index)
            if indexed != report.rows:
                self._find("index", f"table {manifest.index} has {indexed:,} rows")

    def compare_source(self, source: Source) -> None:
        """Compare the checksum of the source's records with that of the rows."""
        manifest = self.reader.manifest
        limit = None if manifest is None else manifest.options.storage.limit
        source.main_limit = None if manifest is None else manifest.options.storage.main_limit
        source.use_classes(() if manifest is None else manifest.class_names)
        total = rows = 0
        for batch in source.batches():
            if batch.key is None:
                first = source.position - len(batch)
                batch = Batch(Dense(np.arange(first, first + len(batch))), batch.columns)
            if limit is not None:
                batch = batch[: max(0, limit - rows)]
            if missing := [n for n in self.schema.names if n not in batch.columns]:
                self._find("source", f"it has no field {missing[0]}")
                return
            total += int(batch_hashes(self.schema, batch).sum(dtype=np.uint64))
            rows += len(batch)
        self.report.source_checksum = f"{total & _MASK:016x}"
        if rows != self.report.rows:
            self._find("source", f"it has {rows:,} records, the cache {self.report.rows:,}")
        if self.report.source_checksum != self.report.checksum:
            self._find("source", "its records differ from the cache (checksums differ)")

    def _batches(self, partition: int) -> Iterator[Batch]:
        for item in self.reader.batches([partition]):
            if item.batch is not None:
                yield item.batch

    def _take(self, batch: Batch, partition: int, mapped: bool) -> None:
        assert batch.key is not None
        report = self.report
        report.rows += len(batch)
        self.counts[partition] += len(batch)
        self.total += int(batch_hashes(self.schema, batch).sum(dtype=np.uint64))
        only_key = Schema(self.schema.type_name, self.schema.key, ())
        self.key_hashes.append(batch_hashes(only_key, Batch(batch.key)))
        if mapped:
            own = partitions_of(self.schema, batch.key, len(self.counts))
            if own is not None:
                report.misplaced += int((own != partition).sum())
        if self.images is not None:
            for name, key, reason in self.images.bad(batch):
                report.undecodable += 1
                if report.undecodable <= _SHOWN:
                    self._find("images", f"{name} of key {key}: {reason}")
            report.images = self.images.seen

    def _summarise(self) -> None:
        report = self.report
        report.checksum = f"{self.total & _MASK:016x}"
        hashes = np.sort(np.concatenate([*self.key_hashes, np.empty(0, np.uint64)]))
        report.duplicates = int((hashes[1:] == hashes[:-1]).sum())
        if report.duplicates:
            self._find("duplicates", f"{report.duplicates:,} rows share their key with another row")
        if report.misplaced:
            self._find("partitions", f"{report.misplaced:,} rows are in the wrong partition")
        report.partition_min = int(self.counts.min())
        report.partition_max = int(self.counts.max())
        mean = report.rows / max(1, len(self.counts))
        report.skew = round(report.partition_max / mean, 3) if mean else 0.0

    def _find(self, check: str, found: str) -> None:
        self.report.findings.append(Finding(check, found))


class _ImageFields:
    """Decodes the fields that hold encoded images, as determined from their first records."""

    def __init__(self, schema: Schema) -> None:
        blobs = [f for f in schema.fields if f.type is TypeCode.BYTE_ARRAY and f.dtype == BYTES]
        self.undecided = [f.name for f in blobs]
        self.names: list[str] = []
        self.seen = 0

    def bad(self, batch: Batch) -> Iterator[tuple[str, Any, str]]:
        """Yield field, key and reason of each image that cannot be decoded."""
        for name in [*self.names, *self.undecided]:
            column = batch.columns[name]
            items = runs_of(column).to_bytes()
            valid = np.ones(len(column), bool) if column.valid is None else column.valid
            rows = np.flatnonzero(valid).tolist()
            if name in self.undecided and not self._is_image(name, [items[row] for row in rows]):
                continue
            for row in rows:
                self.seen += 1
                if (reason := _undecodable(items[row])) is not None:
                    yield name, _key(batch.key, row), reason

    def _is_image(self, name: str, items: list[bytes]) -> bool:
        """Decide whether a field holds images, once it has records with a value."""
        if not items:
            return False
        self.undecided.remove(name)
        if 2 * sum(item.startswith(_MAGIC) for item in items) < len(items):
            return False
        self.names.append(name)
        return True


def _undecodable(data: bytes) -> str | None:
    """Return why an image cannot be decoded, within the limits of `ignitetf load`; None if it can."""
    from PIL import Image

    from ignitetf.load.sources.pictures import MAX_PIXELS
    from ignitetf.pictures import PictureError, open_picture

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with open_picture(data, MAX_PIXELS) as image:
                image.load()
    except PictureError as error:
        return str(error)
    return None


def _key(column: Column | None, row: int) -> Any:
    if isinstance(column, Runs):
        return column[row : row + 1].to_bytes()[0].decode("utf-8", "replace")
    if isinstance(column, Struct):
        return {name: _key(part, row) for name, part in column.fields.items()}
    return values_of(column)[row].tolist()
