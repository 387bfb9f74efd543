"""NumPy archives and array files as records, along the first dimension of each array.

.npz or .npy -> **members, read side by side** -> Batch

Members are read as streams in step, a batch of records from each, so an archive may be larger than
memory. Pickled objects are never loaded.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.arrays import array_column, array_field, key_field_of, take_key
from ignitetf.load.sources.base import (
    Source,
    check_record_size,
    column_name,
    rows_per_batch,
    type_name,
)
from ignitetf.load.sources.location import (
    Location,
    Place,
    Stream,
    digest,
    locate,
    locate_all,
    read_exactly,
    reading,
    skip_bytes,
)
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch
from ignitetf.wire.schema import Field, Schema

__all__ = ["NpzSource", "npz"]

# An array in Fortran order cannot be cut into records while it streams; up to this size it is
# transposed in memory.
_TURN_BYTES = 64 << 20
_HINT_DAMAGED = "save the file again with numpy.savez"


@dataclass(frozen=True)
class Member:
    """One array of a file: `count` records of `shape` elements each."""

    place: Place
    member: str | None
    dtype: np.dtype[Any]
    count: int
    shape: tuple[int, ...]
    fortran: bool
    header_bytes: int
    stamp: str

    @property
    def label(self) -> str:
        """File and member, for messages."""
        return self.place.name if self.member is None else f"{self.place.name}: {self.member}"

    @property
    def name(self) -> str:
        """Name of the array as saved; the file's name if it was saved without one."""
        name = "arr_0" if self.member is None else self.member.removesuffix(".npy")
        return column_name(self.place.stem) if name == "arr_0" else name

    @property
    def record_bytes(self) -> int:
        """Bytes of one record as stored in the file."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the bytes of the member, header included."""
        with contextlib.ExitStack() as stack:
            with reading(self.label, _HINT_DAMAGED):
                opened = _open_member(stack, self.place, self.member)
            yield opened

    def read(self, start: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield arrays `[<= rows, *shape]` from record `start` on."""
        with self.stream() as stream:
            if self.fortran:
                yield from self._read_turned(stream, start, rows)
                return
            skip = self.header_bytes + min(start, self.count) * self.record_bytes
            skip_bytes(stream, skip, self.label)
            for first in range(start, self.count, rows):
                n = min(rows, self.count - first)
                raw = read_exactly(stream, n * self.record_bytes, self.label)
                yield np.frombuffer(raw, self.dtype).reshape(n, *self.shape)
            with reading(self.label, _HINT_DAMAGED):
                stream.read(1)  # at its end the archive checks its CRC

    def _read_turned(self, stream: Stream, start: int, rows: int) -> Iterator[NDArray[Any]]:
        skip_bytes(stream, self.header_bytes, self.label)
        raw = read_exactly(stream, self.count * self.record_bytes, self.label)
        turned = np.frombuffer(raw, self.dtype).reshape(*self.shape[::-1], self.count).T
        for first in range(start, self.count, rows):
            yield turned[first : first + rows]


def _open_member(stack: contextlib.ExitStack, place: Place, member: str | None) -> Stream:
    raw = stack.enter_context(place.open())
    if member is None:
        return raw
    archive = stack.enter_context(zipfile.ZipFile(cast(Any, raw)))
    return cast(Stream, stack.enter_context(archive.open(member)))


def members_of(place: Place) -> list[Member]:
    """Return the arrays of a .npz or .npy file, from their headers.

    Raises:
        SourceError: Missing or damaged: every length is checked against the file's.
    """
    with reading(place.name, _HINT_DAMAGED), place.open() as raw:
        magic = raw.read(6)
    if magic == b"\x93NUMPY":
        return [_member(place, None, place.size(), place.stamp())]
    if magic[:2] != b"PK":
        raise SourceError(
            f"{place.name}: neither a .npz archive nor a .npy array", hint=_HINT_DAMAGED
        )
    found = []
    with reading(place.name, _HINT_DAMAGED), place.open() as raw:
        with zipfile.ZipFile(cast(Any, raw)) as archive:
            infos = [i for i in archive.infolist() if i.filename.endswith(".npy")]
        for info in infos:
            stamp = f"{info.filename}|{info.file_size}|{info.CRC}"
            found.append(_member(place, info.filename, info.file_size, stamp))
    if not found:
        raise SourceError(f"{place.name}: no array in it", hint=_HINT_DAMAGED)
    return found


def _member(place: Place, member: str | None, size: int | None, stamp: str) -> Member:
    label = place.name if member is None else f"{place.name}: {member}"
    with reading(label, _HINT_DAMAGED), contextlib.ExitStack() as stack:
        stream = _open_member(stack, place, member)
        version = np.lib.format.read_magic(cast(Any, stream))
        if version not in ((1, 0), (2, 0)):
            raise SourceError(f"{label}: .npy version {version} is not supported")
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = header(cast(Any, stream))
        header_bytes = stream.tell()
    if dtype.hasobject or dtype.names or dtype.subdtype or dtype.kind == "V":
        raise SourceError(
            f"{label}: dtype {dtype} is not loaded",
            hint="save plain arrays of numbers, bools or strings; pickled objects are refused",
        )
    if not shape:
        raise SourceError(
            f"{label}: a single value, expected one entry a record",
            hint="choose the arrays to load: --arrays NAME,NAME",
        )
    found = Member(
        place, member, dtype, shape[0], shape[1:], fortran and len(shape) > 1, header_bytes, stamp
    )
    _check_size(found, size)
    return found


def _check_size(member: Member, size: int | None) -> None:
    if min((member.count, *member.shape)) < 0:
        raise SourceError(f"{member.label}: impossible shape in the header")
    check_record_size(member.label, member.record_bytes)
    content = member.count * member.record_bytes
    if size is not None and size != member.header_bytes + content:
        raise SourceError(
            f"{member.label}: damaged: the header promises {content:,} bytes of values, "
            f"{size - member.header_bytes:,} are there",
            hint=_HINT_DAMAGED,
        )
    if member.fortran and content > _TURN_BYTES:
        raise SourceError(
            f"{member.label}: stored in Fortran order, which cannot be read by records",
            hint="save numpy.ascontiguousarray(array)",
        )


class NpzSource(Source):
    """Arrays of one or several files as the fields of one table."""

    def __init__(
        self,
        members: Mapping[str, Member],
        *,
        type_name: str,
        key: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Check that all arrays have one entry per record, and name the fields."""
        super().__init__(bad_records=bad_records)
        self.members = dict(members)
        counts = {m.label: m.count for m in self.members.values()}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{name} has {n:,}" for name, n in counts.items())
            raise SourceError(
                f"arrays of different length: {counted}",
                hint="choose those that belong together: --arrays NAME,NAME",
            )
        self.rows = next(iter(counts.values()))
        fields = {name: _field(name, m) for name, m in self.members.items()}
        self._field_of = dict(fields)
        if key is not None:
            self.key_name = key.upper()
        key_field = key_field_of(self.key_name, fields)
        self.schema = Schema(type_name, key_field, tuple(fields.values()))
        self.schema.check_identifiers()

    def fingerprint(self) -> str:
        """Made from the archives' checksums, and size and time of plain .npy files."""
        parts = [(name, m.stamp) for name, m in sorted(self.members.items())]
        return digest("npz", self.key_name, *parts)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        rows = rows_per_batch(sum(m.record_bytes for m in self.members.values()), max_bytes)
        first = start
        streams = [m.read(start, rows) for m in self.members.values()]
        try:
            for arrays in zip(*streams, strict=True):
                last = first + len(arrays[0])
                yield last, self._batch(arrays, first, last)
                first = last
        finally:
            for stream in streams:
                cast(Any, stream).close()

    def _batch(self, arrays: tuple[NDArray[Any], ...], first: int, last: int) -> Batch:
        columns = {
            name: array_column(
                self._field_of[name], array, f"{member.label}, records {first} to {last - 1}"
            )
            for (name, member), array in zip(self.members.items(), arrays, strict=True)
        }
        return Batch(take_key(columns, self.key_name, first, last), columns)


def _field(name: str, member: Member) -> Field:
    try:
        return array_field(name, np.empty((0, *member.shape), member.dtype))
    except SchemaError as error:
        raise SourceError(f"{member.label}: {error.message}", hint=error.hint) from error


def npz(
    location: Location | Sequence[Location],
    labels: Location | None = None,
    arrays: str | Sequence[str] | Mapping[str, str] | None = None,
    key: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> NpzSource:
    """Open arrays of .npz (or .npy) files as fields; the first dimension is the record.

    A field is named after its array, in upper case; an array saved without a name (`arr_0`) after
    its file; the only array of the file `labels` is called LABEL.

    Args:
        location: The file, or several.
        labels: A file with the labels.
        arrays: Which arrays to load: names (also as comma-separated text), `FIELD=array` or a
            mapping of fields to arrays; None takes all.
        key: Field to use as the key; otherwise a running number.
        bad_records: As for every source; arrays have no bad records, only bad files.
    """
    if not location:
        raise ConfigError("source 'npz' needs a file", hint="npz(FEATURES, labels=LABELS)")
    places = locate_all(location)
    found: dict[str, Member] = {}
    for place in places:
        for member in members_of(place):
            _add(found, member.name, member)
    chosen = _choose(found, arrays)
    if labels is not None:
        extra = members_of(locate(labels))
        for member in extra:
            _add(chosen, "LABEL" if len(extra) == 1 else member.name.upper(), member)
    return NpzSource(chosen, type_name=type_name(places[0].stem), key=key, bad_records=bad_records)


def _add(found: dict[str, Member], name: str, member: Member) -> None:
    if name in found:
        raise SourceError(
            f"two arrays are called {name!r}: {found[name].label}, {member.label}",
            hint="load them as features and --labels, or save them under different names",
        )
    found[name] = member


def _choose(
    found: Mapping[str, Member], arrays: str | Sequence[str] | Mapping[str, str] | None
) -> dict[str, Member]:
    """Return the arrays to load, by field name."""
    chosen: dict[str, Member] = {}
    if arrays is None:
        for name, member in found.items():
            _add(chosen, name.upper(), member)
        return chosen
    if not isinstance(arrays, Mapping):
        names = arrays.split(",") if isinstance(arrays, str) else arrays
        pairs = [name.partition("=") for name in names]
        arrays = {(f if e else f.upper()).strip(): (n if e else f).strip() for f, e, n in pairs}
    missing = [name for name in arrays.values() if name not in found]
    if missing or not arrays:
        raise ConfigError(
            f"no array {', '.join(map(repr, missing))} in the file",
            hint=f"it has: {', '.join(sorted(found))}",
        )
    for field, name in arrays.items():
        _add(chosen, field.upper(), found[name])
    return chosen
