"""WebDataset shards as records: tar files in which the files of a sample follow one another.

tar -> **samples: files of one name** -> fields -> Batch

`0001.jpg`, `0001.cls` and `0001.json` are one sample. Images and other files become blobs, `.cls`
the LABEL, `.txt` a text, `.npy` an array, and the names in `.json` fields of their own. A shard that
`ignitetf export` wrote tells its fields, and rows come back as what they were.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.base import MAX_RECORD_BYTES, Source, column_name, keys_of
from ignitetf.load.sources.chain import ChainSource, files_at
from ignitetf.load.sources.location import Place, digest, reading
from ignitetf.load.sources.pictures import picture_suffixes
from ignitetf.load.sources.records import RecordSource
from ignitetf.load.sources.values import column_of
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema

__all__ = ["FIELDS_FILE", "webdataset"]

# Readers of WebDataset pass over names between double underscores.
FIELDS_FILE: Final = "__ignitetf__/fields.json"
_ROWS: Final = 256
_BATCH_BYTES: Final = 4 << 20
_HINT: Final = "is it a tar file of samples? write it again"

Sample = dict[str, bytes]


def _samples(place: Place) -> Iterator[Sample]:
    """Yield the files of each sample by their suffix, without the dot."""
    name, found = None, Sample()
    with (
        place.open() as stream,
        reading(place.name, _HINT),
        tarfile.open(fileobj=stream, mode="r|*") as tar,
    ):
        for member in tar:
            path = PurePosixPath(member.name)
            if not member.isfile() or (member.name.startswith("__") and "__/" in member.name):
                continue
            stem, _, suffix = path.name.partition(".")
            if member.size > MAX_RECORD_BYTES:
                raise SourceError(f"{place.name}: {member.name} has {member.size:,} bytes")
            sample = f"{path.parent}/{stem}"
            if sample != name and found:
                yield found
                found = Sample()
            name = sample
            found[suffix.lower()] = _content(tar, member)
    if found:
        yield found


def _fields(place: Place) -> dict[str, Any] | None:
    """Return what an export noted at the beginning of a shard; None for others."""
    with (
        place.open() as stream,
        reading(place.name, _HINT),
        tarfile.open(fileobj=stream, mode="r|*") as tar,
    ):
        first = tar.next()
        if first is None or first.name != FIELDS_FILE or first.size > MAX_RECORD_BYTES:
            return None
        noted: dict[str, Any] = json.loads(_content(tar, first))
    return noted


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _record(sample: Sample) -> dict[str, Any]:
    """Return the values of a sample of any origin."""
    out: dict[str, Any] = {}
    for suffix, data in sample.items():
        if suffix == "json":
            inner = json.loads(data)
            out |= inner if isinstance(inner, dict) else {"JSON": data.decode()}
        elif suffix == "cls":
            out["LABEL"] = int(data)
        elif suffix.rpartition(".")[2] == "npy":
            out[column_name(suffix.removesuffix("npy") or suffix)] = _array(data)
        elif suffix == "txt":
            out["TEXT"] = data.decode()
        elif f".{suffix}" in picture_suffixes():
            out["IMAGE"] = data
        else:
            out[column_name(suffix or "file")] = data
    return out


def _array(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _batches(place: Place, fields: list[Field], files: dict[str, str]) -> Iterator[Batch]:
    """Yield the rows of a shard that an export wrote."""
    samples, number = _samples(place), 0
    while True:
        rows: list[Sample] = []
        size = 0
        for sample in itertools.islice(samples, _ROWS):
            rows.append(sample)
            size += sum(map(len, sample.values()))
            if size >= _BATCH_BYTES:
                break
        if not rows:
            return
        beside = [json.loads(sample.get("json", b"{}")) for sample in rows]
        columns = {f.name: _column(f, files, rows, beside) for f in fields}
        numbers = np.arange(number, number + len(rows))
        number += len(rows)
        yield Batch(keys_of(numbers), columns)


def _column(
    field: Field, files: dict[str, str], rows: list[Sample], beside: list[dict[str, Any]]
) -> Column:
    suffix = files.get(field.name)
    if suffix == "npy":
        arrays = [row.get(f"{field.name.lower()}.npy") for row in rows]
        return column_of(field, [None if data is None else _array(data) for data in arrays])
    if suffix is not None:
        found = [_blob(row, suffix) for row in rows]
        if any(data is None for data in found) and not field.nullable:
            raise SourceError(f"a sample has no file of the field {field.name}", hint=_HINT)
        return Column.from_bytes(found)
    values = [inner.get(field.name) for inner in beside]
    if field.dtype == BYTES and field.type is not TypeCode.STRING_ARRAY:
        return Column.from_bytes([None if v is None else str(v).encode() for v in values])
    if field.shape or field.type is TypeCode.BOOL:
        return column_of(field, values)
    present = np.array([v is not None for v in values])
    numbers = np.array([0 if v is None else v for v in values], field.dtype)
    return Column(numbers, valid=None if present.all() else present)


def _blob(sample: Sample, suffix: str) -> bytes | None:
    """Return the file of a field: of this suffix, or, for `*`, the image."""
    if suffix != "*":
        return sample.get(suffix)
    known = (data for name, data in sample.items() if f".{name}" in picture_suffixes())
    return next(known, sample.get("bin"))


def _open(place: Place, key: str | None, bad_records: OnBadRecord) -> Source:
    noted = _fields(place)
    if noted is None:
        if key is not None:
            raise ConfigError("samples of others have no field that is the key", hint="no --key")
        with reading(place.name, _HINT):
            return RecordSource(
                lambda: map(_record, _samples(place)),
                type_name=column_name(place.stem),
                fingerprint=digest("webdataset", place.stamp()),
                bad_records=bad_records,
            )
    try:
        fields = [Field.from_json(field) for field in noted["fields"]]
        files = {str(name): str(suffix) for name, suffix in noted["files"].items()}
        names = [str(name) for name in noted["class_names"]]
    except (KeyError, TypeError, AttributeError, SchemaError) as error:
        raise SourceError(f"{place.name}: damaged list of fields", hint=_HINT) from error
    return _Exported(place, fields, files, names, key, bad_records)


class _Exported(RecordSource):
    """A shard that tells its fields."""

    def __init__(
        self,
        place: Place,
        fields: list[Field],
        files: dict[str, str],
        class_names: list[str],
        key: str | None,
        bad_records: OnBadRecord,
    ) -> None:
        from ignitetf.load.sources.arrays import key_field_of, take_key

        by_name = {field.name: field for field in fields}
        key_name = None if key is None else key.upper()
        key_field = key_field_of(key_name, by_name)

        def batches() -> Iterator[Batch]:
            for batch in _batches(place, fields, files):
                columns = dict(batch.columns)
                taken = batch.key if key_name is None else take_key(columns, key_name, 0, 0)
                yield Batch(taken, columns)

        super().__init__(
            batches,
            schema=Schema(column_name(place.stem), key_field, tuple(by_name.values())),
            class_names=class_names or None,
            fingerprint=digest("webdataset", place.stamp(), key),
            bad_records=bad_records,
        )
        self.key_name = key_name
        self.nbytes = place.size()


def webdataset(location: Any, key: str | None = None, bad_records: OnBadRecord = "fail") -> Source:
    """Open WebDataset shards, packed or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        key: Field to use as the key, of shards that an export wrote; otherwise a running number.
        bad_records: What to do with samples that do not fit.

    Raises:
        SourceError: Missing or damaged.
    """
    if not location:
        raise ConfigError("source 'webdataset' needs a file")
    sources = [_open(place, key, bad_records) for place in files_at(location, (".tar", ".tgz"))]
    return sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
