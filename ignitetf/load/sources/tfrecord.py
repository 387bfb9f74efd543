"""TFRecord files of `tf.train.Example`, read without TensorFlow.

file -> frames, CRCs checked -> **features -> columns** -> Batch

A frame is the length (uint64), the masked CRC-32C of the length, the record and the masked CRC-32C
of the record. Frames are read in pieces of about a megabyte; records of a piece that agree outside
their values are read as one matrix.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.crc import masked_crc32c
from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.arrays import key_field_of, take_key
from ignitetf.load.sources.base import (
    MAX_RECORD_BYTES,
    SAMPLE_BYTES,
    Source,
    keys_of,
    rows_per_batch,
    type_name,
)
from ignitetf.load.sources.example import (
    BYTES_LIST,
    ExampleError,
    FeatureSpec,
    declared_specs,
    has_steps,
    inferred_specs,
    parse_example,
    varints,
)
from ignitetf.load.sources.filesets import data_files, open_files
from ignitetf.load.sources.location import (
    Place,
    Stream,
    digest,
    open_plain,
    reading,
)
from ignitetf.load.sources.tfds import Described, described
from ignitetf.load.sources.values import column_of
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.schema import BYTES, Schema

__all__ = ["TfRecordSource", "tfrecord"]

_HEAD = struct.Struct("<QI")
_HEAD_BYTES = 12
_CRC = struct.Struct("<I")
_FRAME_BYTES = 16  # a frame without its record
_PIECE_BYTES = 1 << 20
_SAMPLE = 100
_MIN_SAMPLE = 2
_MATRIX_ROWS = 8  # fewer records are read one by one
_FAILURES = (SchemaError, ExampleError, ValueError, TypeError, OverflowError)


@dataclass
class Frames:
    """Records of a piece of a file: their positions in `data`, and whether their CRCs are right."""

    data: bytes
    first: int
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    good: NDArray[np.bool_]


def read_frames(stream: Stream, name: str, start: int, piece: int) -> Iterator[Frames]:
    """Yield the records from number `start` on, in pieces of about `piece` bytes.

    Raises:
        SourceError: A frame is cut off, or the CRC of a length is wrong, so the rest cannot be
            read.
    """
    number = 0
    buffer = b""
    wanted = piece
    while True:
        with reading(name, "write the file again"):
            while len(buffer) < wanted and (more := stream.read(wanted - len(buffer))):
                buffer += more
        if not buffer:
            return
        starts, lengths, end, missing = _find_frames(buffer, name, number)
        if not starts:
            if len(buffer) < wanted:
                raise SourceError(
                    f"{name}: truncated in record {number}",
                    hint="write the file again",
                )
            wanted = missing
            continue
        skip = min(max(0, start - number), len(starts))
        if skip < len(starts):
            yield _checked(buffer, number + skip, starts[skip:], lengths[skip:])
        number += len(starts)
        buffer = buffer[end:]
        wanted = piece


def _find_frames(buffer: bytes, name: str, number: int) -> tuple[list[int], list[int], int, int]:
    """Return starts and lengths of complete records, their end, and bytes the next one needs."""
    starts: list[int] = []
    lengths: list[int] = []
    pos, size = 0, len(buffer)
    while size - pos >= _HEAD_BYTES:
        length, crc = _HEAD.unpack_from(buffer, pos)
        # Check the length before using it, and before reading more because of it.
        if length > MAX_RECORD_BYTES or masked_crc32c(buffer[pos : pos + 8]) != crc:
            raise _lost(name, number + len(starts))
        if pos + length + _FRAME_BYTES > size:
            return starts, lengths, pos, length + _FRAME_BYTES
        starts.append(pos + _HEAD_BYTES)
        lengths.append(length)
        pos += length + _FRAME_BYTES
    return starts, lengths, pos, _FRAME_BYTES


def _lost(name: str, number: int) -> SourceError:
    return SourceError(
        f"{name}: record {number}: the CRC of its length is wrong; this is not a TFRecord file, or "
        "a damaged one",
        hint="the records after it cannot be found; write the file again",
    )


def _checked(buffer: bytes, first: int, starts: list[int], lengths: list[int]) -> Frames:
    good = [
        masked_crc32c(buffer[at : at + length]) == _CRC.unpack_from(buffer, at + length)[0]
        for at, length in zip(starts, lengths, strict=True)
    ]
    return Frames(
        buffer, first, np.array(starts, np.int64), np.array(lengths, np.int64), np.array(good)
    )


class TfRecordSource(Source):
    """One TFRecord file; one field per feature, named after it in upper case."""

    def __init__(
        self,
        place: Place,
        features: str | Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        like: TfRecordSource | None = None,
        notes: Described | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Read the first records to infer types, unless they are declared.

        Without declared features, a record with a feature unknown to the first records is bad.

        Args:
            place: The file.
            features: Declared features: the ones to load.
            key: Column to use as the key.
            like: The first file of the table, whose features this one must have.
            notes: Metadata of its folder about the features.
            bad_records: See `tfrecord`.
        """
        super().__init__(bad_records=bad_records)
        self.place = place
        self.nbytes = place.size()
        sample = [] if like is not None else self._sample()
        try:
            if like is not None:
                specs = like.specs
            else:
                specs = (
                    declared_specs(features)
                    if features is not None
                    else _found_specs(sample, notes)
                )
        except SourceError as error:
            raise error.at(place.name) from error
        self.specs: list[FeatureSpec] = specs
        self._known = None if features is not None else {spec.feature for spec in specs}
        self.key_name = None if key is None else key.upper()
        self.class_names = None if notes is None else notes.class_names
        fields = {}
        for spec in specs:
            if spec.field.name in fields:
                raise SourceError(
                    f"{place.name}: two features have the column name {spec.field.name}"
                )
            fields[spec.field.name] = spec.field
        key_field = key_field_of(self.key_name, fields)
        self.schema = Schema(type_name(place.stem), key_field, tuple(fields.values()))

    def _open(self) -> Stream:
        """Open the frames: the file itself if its first length is valid, otherwise as gzip."""
        stream = self.place.open()
        with reading(self.place.name):
            head = stream.read(_HEAD_BYTES)
            stream.seek(0)
        if len(head) == _HEAD_BYTES and masked_crc32c(head[:8]) == _HEAD.unpack(head)[1]:
            return stream
        stream.close()
        return open_plain(self.place)

    def _sample(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the first records with a right CRC that are Examples."""
        sample: list[tuple[dict[str, Any], bytes]] = []
        size = 0
        with self._open() as stream:
            for frames in read_frames(stream, self.place.name, 0, _PIECE_BYTES):
                spans = zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
                for i, (at, n) in enumerate(itertools.islice(spans, _SAMPLE - len(sample))):
                    record = frames.data[at : at + n]
                    try:
                        if frames.good[i]:
                            sample.append((parse_example(record), record))
                    except ExampleError:
                        continue  # reported when the records are read
                size += len(frames.data)
                enough = size >= SAMPLE_BYTES and len(sample) >= _MIN_SAMPLE
                if enough or len(sample) >= _SAMPLE or frames.first > _SAMPLE:
                    break
        return sample

    def fingerprint(self) -> str:
        """A digest of name, size and time of the file, and the fields."""
        fields = [(spec.feature, spec.field) for spec in self.specs]
        return digest("tfrecord", self.place.stamp(), self.key_name, *fields)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        number = 0
        with self._open() as stream:
            piece = min(max_bytes, _PIECE_BYTES)
            for frames in read_frames(stream, self.place.name, start, piece):
                number = frames.first + len(frames.starts)
                for batch, end in self._convert(frames):
                    yield from self._sliced(batch, end, max_bytes)
                yield number, Batch(keys_of([]), {})
        if number >= start:
            self.rows = number or self.rows
        yield max(number, start), Batch(keys_of([]), {})

    @staticmethod
    def _sliced(batch: Batch, end: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        count = len(batch)
        rows = rows_per_batch(batch.nbytes // max(1, count), max_bytes)
        for first in range(0, count, rows):
            last = min(first + rows, count)
            yield end - (count - last), batch[first:last]

    def _convert(self, frames: Frames) -> Iterator[tuple[Batch, int]]:
        """Yield batches of consecutive good records, and the number after each."""
        count = len(frames.starts)
        if frames.good.all():
            columns = self._matrix(frames)
            if columns is None:
                columns = self._one_by_one(frames, range(count))
            if columns is not None:
                yield self._batch(columns, frames.first, frames.first + count), frames.first + count
                return
        run: list[int] = []
        for i in range(count):
            reason = self._reason(frames, i)
            if reason is None:
                run.append(i)
                continue
            self.bad(f"{self.place.name}, record {frames.first + i}", reason)
            if run:
                yield self._run(frames, run)
                run = []
        if run:
            yield self._run(frames, run)

    def _run(self, frames: Frames, run: list[int]) -> tuple[Batch, int]:
        columns = self._one_by_one(frames, run)
        assert columns is not None
        first, end = frames.first + run[0], frames.first + run[-1] + 1
        return self._batch(columns, first, end), end

    def _batch(self, columns: dict[str, Column], first: int, end: int) -> Batch:
        return Batch(take_key(columns, self.key_name, first, end), columns)

    def _values(self, frames: Frames, i: int) -> list[Any]:
        at = int(frames.starts[i])
        record = frames.data[at : at + int(frames.lengths[i])]
        features = parse_example(record)
        self._require_known(features, record)
        out = []
        for spec in self.specs:
            try:
                out.append(spec.value(features.get(spec.feature), record))
            except _FAILURES as error:
                raise SchemaError(f"feature {spec.feature!r}: {error}") from error
        return out

    def _require_known(self, features: Mapping[str, Any], record: bytes) -> None:
        """Raise SchemaError for values that would be lost silently."""
        if self._known is None:
            return
        if has_steps(record):
            raise SchemaError(
                "it is a tf.train.SequenceExample, whose feature_lists are not loaded;"
                " --features name:type,... loads features of its context"
            )
        if features.keys() <= self._known:
            return
        for name, feature in features.items():
            if name not in self._known and feature.spans:
                raise SchemaError(
                    f"feature {name!r} is in none of the first records; declare the features to"
                    " load: --features name:type,..."
                )

    def _one_by_one(self, frames: Frames, chosen: Sequence[int]) -> dict[str, Column] | None:
        """Return the columns of these records; None if one of them is bad."""
        try:
            rows = [self._values(frames, i) for i in chosen]
            return {
                spec.field.name: column_of(spec.field, [row[k] for row in rows])
                for k, spec in enumerate(self.specs)
            }
        except _FAILURES:
            return None

    def _reason(self, frames: Frames, i: int) -> str | None:
        """Return the reason why a record is bad; None if it is good."""
        if not frames.good[i]:
            return "wrong CRC: the record is damaged"
        try:
            values = self._values(frames, i)
            for spec, value in zip(self.specs, values, strict=True):
                try:
                    column_of(spec.field, [value])
                except _FAILURES as error:
                    return f"feature {spec.feature!r}: {error}"
        except _FAILURES as error:
            return str(error)
        return None

    def _matrix(self, frames: Frames) -> dict[str, Column] | None:
        """Return the columns if all records share the first's layout, checked on every byte."""
        n, size = len(frames.starts), int(frames.lengths[0])
        if n < _MATRIX_ROWS or (frames.lengths != size).any():
            return None
        flat = np.frombuffer(frames.data, np.uint8)
        first = int(frames.starts[0])
        stride = size + _FRAME_BYTES
        # Records of equal length lie at equal distances.
        rows = np.lib.stride_tricks.as_strided(
            flat[first : first + (n - 1) * stride + size], (n, size), (stride, 1), writeable=False
        )
        try:
            record = rows[0].tobytes()
            features = parse_example(record)
            self._require_known(features, record)
            spans = [(f.kind, s) for f in features.values() for s in f.spans]
            if not _same_layout(rows, spans):
                return None
            return {
                spec.field.name: self._matrix_column(rows, flat, frames, spec, features)
                for spec in self.specs
            }
        except _FAILURES:
            return None

    @staticmethod
    def _matrix_column(
        rows: NDArray[np.uint8],
        flat: NDArray[np.uint8],
        frames: Frames,
        spec: FeatureSpec,
        features: Mapping[str, Any],
    ) -> Column:
        found = features.get(spec.feature)
        if found is None or len(found.spans) != 1:
            raise SchemaError("read one by one")
        a, b = found.spans[0]
        part = np.ascontiguousarray(rows[:, a:b])
        if found.kind != BYTES_LIST:
            numbers = part.view("<f4") if found.kind == 2 else varints(part.reshape(-1))
            return spec.column(numbers.reshape(len(rows), -1))
        if spec.field.dtype != BYTES:
            if not spec.field.shape:
                raise SchemaError("bytes instead of a number")
            return spec.column(part.view(spec.field.dtype))
        if spec.field.shape or spec.field.type.name == "STRING":
            raise SchemaError("read one by one")
        return Runs(Dense(flat), frames.starts + a, np.full(len(rows), b - a, np.int64))


def _found_specs(
    sample: Sequence[tuple[dict[str, Any], bytes]], notes: Described | None
) -> list[FeatureSpec]:
    """Return the features: as in the folder's metadata, otherwise as in the first records."""
    if notes is None:
        return inferred_specs(sample)
    from_metadata = (
        {spec.feature: spec for spec in declared_specs(notes.types)} if notes.types else {}
    )
    seen = {name for features, _ in sample for name in features}
    found = (
        {spec.feature: spec for spec in inferred_specs(sample)}
        if seen - from_metadata.keys()
        else {}
    )
    return [spec for _, spec in sorted({**found, **from_metadata}.items())]


def _same_layout(rows: NDArray[np.uint8], spans: Sequence[tuple[int, tuple[int, int]]]) -> bool:
    """True if all rows agree outside the spans, and varints in them end at the same bytes."""
    fixed = np.ones(rows.shape[1], np.bool_)
    for kind, (a, b) in spans:
        fixed[a:b] = False
        if kind == 3 and ((rows[:, a:b] ^ rows[0, a:b]) & 0x80).any():
            return False
    return bool((rows[:, fixed] == rows[0, fixed]).all())


def tfrecord(
    location: Any,
    features: str | Mapping[str, Any] | None = None,
    key: str | None = None,
    split: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open TFRecord files of tf.train.Example, gzipped or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        features: Features to load: `name:type,name:type` or a mapping of names to types (see
            `featurespec`); None takes all features of the first records.
        key: Column to use as the key; otherwise a running number.
        split: The split to load, as the files are called (`NAME-train.tfrecord-00000-of-00001`);
            None for all.
        bad_records: Handling of records that are damaged or do not fit.

    Raises:
        SourceError: Missing or damaged.
        ConfigError: The features cannot be parsed.
    """
    if not location:
        raise ConfigError("source 'tfrecord' needs a file")
    files = data_files(
        location, (".tfrecord", ".tfrecords", ".tfrec", ".record", ".records"), split
    )
    notes = described(files[0].place.parent) if features is None else None
    first: list[TfRecordSource] = []

    def opened(place: Place) -> Source:
        like = first[0] if features is None and first else None  # all files are one table
        source = TfRecordSource(
            place, features, key=key, like=like, notes=notes, bad_records=bad_records
        )
        first.append(source)
        return source

    return open_files(files, opened, bad_records)
