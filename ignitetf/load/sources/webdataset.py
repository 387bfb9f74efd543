"""WebDataset shards as records: tar files that store the files of each sample consecutively.

tar -> **samples: files of one name** -> fields -> Batch

`0001.jpg`, `0001.cls` and `0001.json` are one sample. Images and other files become blobs, `.cls`
the LABEL, `.txt` a text, `.npy` an array, and the names in `.json` fields of their own. The name of
the sample is `__KEY__`. Images are checked as those of other sources. A shard
that `ignitetf export` wrote lists its fields, so rows are restored with their types.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.base import (
    MAX_RECORD_BYTES,
    BadRecord,
    Source,
    column_name,
    keys_of,
    ordered_map,
)
from ignitetf.load.sources.filelist import readable_name
from ignitetf.load.sources.frames import BoxError, ImageSize
from ignitetf.load.sources.headings import nested_names
from ignitetf.load.sources.jsonvalues import parse_json
from ignitetf.load.sources.location import ChainSource, Place, digest, files_at, one_line, reading
from ignitetf.load.sources.pictures import MAX_PIXELS, check_picture, turned_note
from ignitetf.load.sources.records import RecordSource
from ignitetf.load.sources.tarfiles import members, open_tar
from ignitetf.load.sources.values import column_of
from ignitetf.pictures import PictureError, orientation, picture_suffixes
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["FIELDS_FILE", "webdataset"]

# Readers of WebDataset skip names between double underscores.
FIELDS_FILE: Final = "__ignitetf__/fields.json"
# The name of a sample, as the library webdataset calls it.
_KEY: Final = "__key__"
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_ROWS: Final = 256
_SHOWN: Final = 20  # changed names in a note
_BATCH_BYTES: Final = 4 << 20
_HINT: Final = "check that it is a tar file of samples, and write it again"

Files = dict[str, bytes]


@dataclass
class _Sample:
    """The files of a sample by suffix (without the dot), and its fault."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    wrong: str | None = None

    def add(self, suffix: str, data: bytes) -> None:
        """Add a file; two files with the same suffix make the sample bad."""
        if suffix in self.files:
            self.wrong = f"it has two files *.{suffix}; do two samples have one name?"
        self.files[suffix] = data


def _samples(place: Place) -> Iterator[_Sample]:
    """Yield the samples of a shard, without hidden files, such as macOS adds.

    Raises:
        SourceError: It is damaged, or the files of a sample do not follow one another.
    """
    found = None
    seen: set[bytes] = set()  # digests of the names of samples
    with (
        place.open() as stream,
        reading(place.name, _HINT),
        open_tar(stream, "r|*") as tar,
    ):
        for member in members(tar):
            path = PurePosixPath(member.name)
            is_note = member.name.startswith("__") and "__/" in member.name
            is_link = member.islnk() or member.issym()
            if not (member.isfile() or is_link) or is_note or path.name.startswith("."):
                continue
            stem, _, suffix = path.name.partition(".")
            if member.size > MAX_RECORD_BYTES:
                raise SourceError(f"{place.name}: {member.name} has {member.size:,} bytes")
            name = stem if str(path.parent) == "." else f"{path.parent}/{stem}"
            if found is None or found.name != name:
                if found is not None:
                    yield found
                mark = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16)
                if (key := mark.digest()) in seen:
                    raise SourceError(
                        f"{place.name}: the files of sample {name} do not follow one another, so"
                        " they would become two samples",
                        hint="pack the shard in the order of names: tar --sort=name -cf SHARD.tar ...",
                    )
                seen.add(key)
                found = _Sample(name)
            if is_link:
                found.wrong = f"{path.name} is a link: pack files with tar -h --hard-dereference"
            else:
                found.add(suffix.lower(), _content(tar, member))
    if found is not None:
        yield found


def _fields(place: Place) -> dict[str, Any] | None:
    """Return the notes of an export at the beginning of a shard; None for other shards."""
    with (
        place.open() as stream,
        reading(place.name, _HINT),
        open_tar(stream, "r|*") as tar,
    ):
        first = tar.next()
        if first is None or first.name != FIELDS_FILE or first.size > MAX_RECORD_BYTES:
            return None
        noted: dict[str, Any] = parse_json(_content(tar, first))
    return noted


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


@dataclass(frozen=True)
class _Check:
    """The checks of the images of a sample."""

    max_pixels: int = MAX_PIXELS
    pixels: bool = True

    def turns(self, files: Files) -> bool:
        """Check the images of a sample; returns whether EXIF turns one.

        Raises:
            ValueError: An image is damaged, or the `.json` of the sample states another size.
        """
        turned = False
        for suffix, data in files.items():
            if not _is_picture(suffix):
                continue
            try:
                height, width = check_picture(data, self.max_pixels, pixels=self.pixels)
                turn = orientation(data)
                if suffix.rpartition(".")[0] == "":
                    _size_in(files).check(height, width, turn, has_boxes=False)
            except (PictureError, BoxError) as error:
                raise ValueError(f"*.{suffix}: {error}") from error
            turned = turned or turn != 1
        return turned


def _is_picture(suffix: str) -> bool:
    return f".{suffix.rpartition('.')[2]}" in picture_suffixes()


def _size_in(files: Files) -> ImageSize:
    """Return the size that the `.json` of a sample gives its image, as img2dataset writes it."""
    try:
        noted = parse_json(files.get("json", b"{}"))
    except ValueError:
        return ImageSize(0, 0)  # a bad record anyway
    if not isinstance(noted, dict):
        return ImageSize(0, 0)
    width, height = noted.get("width"), noted.get("height")
    if type(width) is not int or type(height) is not int or min(width, height) < 1:
        return ImageSize(0, 0)
    return ImageSize(width, height)


@dataclass
class _Taken:
    """A sample of a shard without notes of an export.

    Attributes:
        values: Its values, or why it is bad.
        is_turned: Whether EXIF turns an image of it.
        names: New names of the values in `.json`, by their old ones.
    """

    values: dict[str, Any] | BadRecord
    is_turned: bool = False
    names: dict[str, str] = field(default_factory=dict)


def _taken(place: Place, sample: _Sample, check: _Check) -> _Taken:
    name = f"{place.name}: sample {sample.name}"
    if sample.wrong is not None:
        return _Taken(BadRecord(name, sample.wrong))
    names: dict[str, str] = {}
    out: dict[str, Any] = {}
    for suffix, data in sample.files.items():
        try:
            found = _values(suffix, data, names)
        except Exception as error:  # NumPy and JSON raise many kinds of errors on damaged data
            return _Taken(BadRecord(name, f"*.{suffix}: {one_line(error)}"))
        if found.get(_KEY) == sample.name:
            del found[_KEY]
        if twice := sorted({*map(str.upper, out)} & {*map(str.upper, found)}):
            return _Taken(BadRecord(name, f"two of its files give the field {twice[0]}"))
        out |= found
    if _KEY in out:
        reason = f"*.json gives it the other {_KEY} {str(out[_KEY])[:80]!r}"
        return _Taken(BadRecord(name, reason))
    try:
        turned = check.turns(sample.files)
    except ValueError as error:
        return _Taken(BadRecord(name, str(error)))
    return _Taken({**out, _KEY: readable_name(sample.name)}, turned, names)


def _named(value: Any, names: dict[str, str]) -> Any:
    """Return a value of JSON with names of SQL in its objects, and note those that changed."""
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    if not isinstance(value, dict) or not value:
        return value
    new = nested_names(list(value))
    names.update((a, b) for a, b in zip(value, new, strict=True) if a != b)
    return {a: _named(one, names) for a, one in zip(new, value.values(), strict=True)}


def _values(suffix: str, data: bytes, names: dict[str, str]) -> dict[str, Any]:
    """Return the values of one file of a sample, and add to `names` those that changed."""
    if suffix == "json":
        inner = parse_json(data)
        if not isinstance(inner, dict):
            return {"JSON": data.decode()}
        named: dict[str, Any] = _named(inner, names)
        return named
    if suffix == "cls":
        if _INTEGER.fullmatch(data.strip()) is None:  # int() accepts 1_5 as 15
            raise ValueError(f"invalid literal for an integer: {data[:40]!r}")
        return {"LABEL": int(data)}
    if suffix.rpartition(".")[2] == "npy":
        return {column_name(suffix.removesuffix("npy") or suffix): _array(data)}
    if suffix == "txt":
        return {"TEXT": data.decode()}
    if f".{suffix}" in picture_suffixes():
        return {"IMAGE": data}
    return {column_name(suffix or "file"): data}


def _array(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _batches(
    place: Place, fields: list[Field], files: dict[str, str], check: _Check
) -> Iterator[Batch | BadRecord]:
    """Yield the rows of a shard that an export wrote, and those that cannot be read."""
    pictures = any(suffix == "*" for suffix in files.values())

    def checked(sample: _Sample) -> _Sample:
        if pictures and sample.wrong is None:
            try:
                check.turns(
                    {n: d for n, d in sample.files.items() if f".{n}" in picture_suffixes()}
                )
            except ValueError as error:
                sample.wrong = str(error)
        return sample

    samples, number = ordered_map(checked, _samples(place)), 0
    while True:
        rows: list[_Sample] = []
        size = 0
        for sample in itertools.islice(samples, _ROWS):
            rows.append(sample)
            size += sum(map(len, sample.files.values()))
            if size >= _BATCH_BYTES:
                break
        if not rows:
            return
        for is_bad, group in itertools.groupby(rows, lambda one: one.wrong is not None):
            part = list(group)
            if is_bad:
                yield from (
                    BadRecord(f"{place.name}: sample {one.name}", one.wrong or "") for one in part
                )
            else:
                yield _batch(fields, files, [one.files for one in part], number)
            number += len(part)


def _batch(fields: list[Field], files: dict[str, str], rows: list[Files], number: int) -> Batch:
    beside = [parse_json(sample.get("json", b"{}")) for sample in rows]
    columns = {f.name: _column(f, files, rows, beside) for f in fields}
    return Batch(keys_of(np.arange(number, number + len(rows))), columns)


def _column(
    field: Field, files: dict[str, str], rows: list[Files], beside: list[dict[str, Any]]
) -> Column:
    suffix = files.get(field.name)
    if suffix == "npy":
        arrays = [row.get(f"{field.name.lower()}.npy") for row in rows]
        return column_of(field, [None if data is None else _array(data) for data in arrays])
    if suffix is not None:
        found = [_blob(row, suffix) for row in rows]
        if any(data is None for data in found) and not field.nullable:
            raise SourceError(f"a sample has no file of the field {field.name}", hint=_HINT)
        return Runs.from_bytes(found)
    values = [inner.get(field.name) for inner in beside]
    if field.dtype == BYTES and field.type is not TypeCode.STRING_ARRAY:
        return Runs.from_bytes([None if v is None else str(v).encode() for v in values])
    if field.shape or field.type is TypeCode.BOOL:
        return column_of(field, values)
    present = np.array([v is not None for v in values])
    numbers = np.array([0 if v is None else v for v in values], field.dtype)
    return Dense(numbers, valid=None if present.all() else present)


def _blob(sample: Files, suffix: str) -> bytes | None:
    """Return the file with a field's suffix; for `*`, the image."""
    if suffix != "*":
        return sample.get(suffix)
    known = (data for name, data in sample.items() if f".{name}" in picture_suffixes())
    return next(known, sample.get("bin"))


def _open(place: Place, key: str | None, check: _Check, bad_records: OnBadRecord) -> Source:
    noted = _fields(place)
    if noted is None:
        if key is not None:
            raise ConfigError(
                "shards that ignitetf did not write have no key field", hint="omit --key"
            )
        try:
            with reading(place.name, _HINT):
                return _Shard(place, check, bad_records)
        except (SchemaError, ConfigError) as error:
            raise SourceError(f"{place.name}: {error.message}", hint=error.hint) from error
    try:
        fields = [Field.from_json(one) for one in noted["fields"]]
        files = {str(name): str(suffix) for name, suffix in noted["files"].items()}
        names = [str(name) for name in noted["class_names"]]
    except (KeyError, TypeError, AttributeError, SchemaError) as error:
        raise SourceError(f"{place.name}: damaged list of fields", hint=_HINT) from error
    return _Exported(place, fields, files, names, key, check, bad_records)


class _Shard(RecordSource):
    """A shard of another tool."""

    def __init__(self, place: Place, check: _Check, bad_records: OnBadRecord) -> None:
        self.place = place
        self._names: dict[str, str] = {}

        def records() -> Iterator[Any]:
            for one in ordered_map(lambda sample: _taken(place, sample, check), _samples(place)):
                if one.is_turned and isinstance(one.values, dict):
                    text = turned_note(f"{place.name}: {one.values[_KEY]}")
                    self.report("turned", text, once=True)
                if len(self._names) < _SHOWN and one.names.keys() - self._names.keys():
                    self._names |= one.names
                    shown = ", ".join(f"{old!r} is {new}" for old, new in self._names.items())
                    self.report("names", f"names in .json became columns: {shown}")
                yield one.values

        super().__init__(
            records,
            type_name=column_name(place.stem),
            fingerprint=digest("webdataset", place.stamp()),
            bad_records=bad_records,
        )

    def _row(self, number: int) -> str:
        return f"{self.place.name}, sample {number + 1}"


class _Exported(RecordSource):
    """A shard that lists its fields."""

    def __init__(
        self,
        place: Place,
        fields: list[Field],
        files: dict[str, str],
        class_names: list[str],
        key: str | None,
        check: _Check,
        bad_records: OnBadRecord,
    ) -> None:
        from ignitetf.load.sources.arrays import key_field_of, take_key

        by_name = {one.name: one for one in fields}
        key_name = None if key is None else key.upper()
        key_field = key_field_of(key_name, by_name)

        def batches() -> Iterator[Batch | BadRecord]:
            for batch in _batches(place, fields, files, check):
                if isinstance(batch, BadRecord):
                    yield batch
                    continue
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


def webdataset(
    location: Any,
    key: str | None = None,
    max_pixels: int = MAX_PIXELS,
    check_pixels: bool = True,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open WebDataset shards, compressed or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list.
        key: Field to use as the key, only for shards that an export wrote; otherwise a running
            number.
        max_pixels: Images with more are bad records.
        check_pixels: Whether images must decode to their last pixel; see `images.images`.
        bad_records: Handling of samples that do not fit.

    Raises:
        SourceError: Missing or damaged.
    """
    if not location:
        raise ConfigError("source 'webdataset' needs a file")
    check = _Check(max_pixels, check_pixels)
    places = files_at(location, (".tar", ".tgz"))
    sources = [_open(place, key, check, bad_records) for place in places]
    return sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
