"""NumPy arrays as records along the first dimension: from memory, archives, or the digits.

arrays by name, .npz or .npy -> **fields, columns** -> Batch

Members of an archive are read as parallel streams, a batch of records from each, so an archive may
be larger than memory. Pickled objects are never loaded.

The digits ship with scikit-learn: 1,797 real images of 8 x 8, offline. Their split is one fixed
permutation, so every load on every machine has the same rows.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ignitetf.crc import crc32
from ignitetf.errors import ConfigError, MissingExtra, SchemaError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    Source,
    check_record_size,
    column_name,
    keys_of,
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
    one_line,
    read_exactly,
    reading,
    skip_bytes,
)
from ignitetf.load.sources.times import moments_in
from ignitetf.load.sources.values import (
    UNFIT,
    cast_array,
    column_of,
    common_dtype,
    exact_array,
    field_of,
    kinds_of,
    names_of,
    stored_field,
    strings_column,
)
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["ArraySource", "digits", "key_field_of", "npz", "open_digits", "take_key"]

_SAMPLE = 100  # Python objects from which a type is inferred
_HASH_PIECES = 64
_PIECE_BYTES = 1 << 20


class ArraySource(Source):
    """Arrays by name, all of the same length: the first dimension is the record.

    Numbers keep dtype and shape; texts become STRING, `bytes` objects blobs. Arrays are never
    copied as a whole, so memory maps stay on disk.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        type_name: str = "Record",
        class_names: list[str] | None = None,
        key: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Check the lengths, and use the column `key`, if given, as the key."""
        super().__init__(bad_records=bad_records)
        self.arrays = {name: _unmasked(name, a) for name, a in names_of(arrays).items()}
        self.class_names = class_names
        self.rows = self._common_length()
        fields = {name: _array_field(name, array) for name, array in self.arrays.items()}
        self._field_of = dict(fields)
        self.key_name = None if key is None else key.upper()
        key_field = key_field_of(self.key_name, fields)
        self.schema = Schema(type_name, key_field, tuple(fields.values()))
        self.schema.check_identifiers()

    def _common_length(self) -> int:
        if not self.arrays or any(a.ndim == 0 for a in self.arrays.values()):
            raise SourceError(
                "no arrays, or one without a first dimension",
                hint="give a mapping of names to arrays whose first dimension is the record",
            )
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{name} {n:,}" for name, n in lengths.items())
            raise SourceError(
                f"arrays differ in length: {counted}",
                hint="every array needs one entry per record; omit the others",
            )
        return next(iter(lengths.values()))

    def fingerprint(self) -> str:
        """A digest of names, shapes and CRC-32 of the content; for a large array, of 64 pieces."""
        parts = [
            (name, a.shape, a.dtype.str, _content(a)) for name, a in sorted(self.arrays.items())
        ]
        return digest("arrays", self.key_name, *parts)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        total = self.rows or 0
        record = sum(a.nbytes for a in self.arrays.values()) // max(1, total)
        rows = rows_per_batch(record, max_bytes)
        for first in range(start, total, rows):
            last = min(first + rows, total)
            columns = {
                name: self._column(name, array[first:last], first)
                for name, array in self.arrays.items()
            }
            yield last, Batch(take_key(columns, self.key_name, first, last), columns)

    def _column(self, name: str, values: NDArray[Any], first: int) -> Column:
        return _array_column(self._field_of[name], values, f"array {name}, records from {first}")


def _content(array: NDArray[Any]) -> str:
    if array.dtype.kind == "O":
        return digest(*array[:: max(1, len(array) // 4096)].ravel().tolist())
    rows = max(1, _PIECE_BYTES // max(1, array.nbytes // max(1, len(array))))
    starts = range(0, len(array), rows)
    if len(starts) > _HASH_PIECES:
        starts = range(0, len(array), -(-len(array) // _HASH_PIECES))
    return digest(*(crc32(_raw(array[s : s + rows])) for s in starts))


def _raw(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _array_field(name: str, array: NDArray[Any]) -> Field:
    """Return the field of an array whose first dimension is the record."""
    kind = array.dtype.kind
    if kind == "O":
        return field_of(name, array[:_SAMPLE].tolist())
    if kind == "M" and array.ndim == 1:
        return Field(name, TypeCode.TIMESTAMP, np.dtype(np.int64))
    if kind == "S" and array.ndim == 1:
        return Field(name, TypeCode.BYTE_ARRAY, BYTES)
    if kind in "USM" and array.ndim > 2 - (kind == "M"):
        raise SchemaError(
            f"array {name!r}: {'times' if kind == 'M' else 'texts'} of shape {array.shape[1:]}",
            hint="give each record one time, or one list of texts",
        )
    check_record_size(f"array {name}", array.dtype.itemsize * int(np.prod(array.shape[1:])))
    return stored_field(name, array.dtype, array.shape[1:])


def _unmasked(name: str, array: Any) -> NDArray[Any]:
    """Return the array; refuses a mask that hides values, because they would be loaded."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.getmaskarray(array).any():
        raise SourceError(
            f"array {name}: {int(np.ma.getmaskarray(array).sum()):,} values are masked",
            hint="give a list with None in their place, or array.filled(...)",
        )
    if isinstance(array, (list, tuple)):
        return _exactly(name, array)
    if hasattr(array, "isna") and not isinstance(array.dtype, np.dtype):  # pandas' own types
        missing = array.isna()
        pairs = zip(array, missing, strict=True)
        return _objects([None if gone else value for value, gone in pairs])
    found: NDArray[Any] = np.asanyarray(array)
    if found.dtype.kind == "T":  # NumPy's variable-length texts; values may be missing
        gone = getattr(found.dtype, "na_object", None)
        return _objects([_without(row, gone) for row in found.tolist()])
    return found


def _without(value: Any, gone: Any) -> Any:
    """Return texts with the marker of a missing value replaced by None."""
    if isinstance(value, list):
        return [_without(one, gone) for one in value]
    return None if value is gone or value != value else value


def _exactly(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return numbers of one shape as a numeric array, and other values as an object array.

    NumPy would strip trailing zeros from bytes and texts, and turn a 1 next to "a" into a text.
    """
    try:
        kinds = kinds_of(values)
        if all(isinstance(kind, np.dtype) and kind.kind == "M" for kind in kinds):
            return np.asanyarray(values)
        dtype = common_dtype(name, kinds)
        if dtype.kind in "iufb":
            return exact_array(values, dtype)
    except (SchemaError, ValueError):
        pass  # reported with its position during the conversion
    return _objects(values)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _array_column(field: Field, values: NDArray[Any], name: str) -> Column:
    """Return the column of an array `[n, *shape]` that `_array_field` described."""
    kind = values.dtype.kind
    try:
        if kind == "O":
            return column_of(field, values.tolist())
        if kind == "M":
            return _timestamps(values)
        if kind in "US" and field.shape:
            return strings_column(field, values.tolist())
        if kind == "U":
            return Runs.from_bytes([text.encode() for text in values.tolist()])
        if kind == "S":
            return Runs.from_bytes(values.tolist())
        return Dense(cast_array(field.dtype, values))
    except UNFIT as error:
        hint = getattr(error, "hint", None) or "repair or omit the array"
        raise SourceError(f"{name}: {one_line(error)}", hint=hint) from error


def _timestamps(values: NDArray[Any]) -> Column:
    """Return points in time, see `times`; NaT is refused because the field is not nullable."""
    if np.isnat(values).any():
        raise SchemaError("NaT (not a time)")
    for unit in ("s", "ms", "us", "ns"):
        whole = values.astype(f"datetime64[{unit}]")
        if np.array_equal(whole.astype(values.dtype), values) and (whole == values).all():
            return Dense(moments_in(whole.astype(np.int64), unit))
    raise SchemaError("a time outside the range of nanoseconds since 1970")


def key_field_of(name: str | None, fields: dict[str, Field]) -> Field:
    """Remove the key column from the fields and return it: integers become LONG, texts STRING.

    Args:
        name: The column; None for the running key, which is not a column.
        fields: The fields by name.

    Raises:
        ConfigError: The column does not exist, its values cannot be keys, or no other column is left.
    """
    if name is None:
        return RUNNING_KEY
    field = fields.pop(name, None)
    if field is None:
        raise ConfigError(
            f"no column {name!r} to use as the key", hint=f"columns: {', '.join(sorted(fields))}"
        )
    if not fields:
        raise ConfigError(f"the key is the only column: {name!r}")
    if field.type in INTEGERS and field.dtype.kind in "iu":
        return RUNNING_KEY
    if field.type == TypeCode.STRING:
        return Field("key", TypeCode.STRING, BYTES)
    raise ConfigError(
        f"column {name!r} of type {field.type.name} cannot be the key",
        hint="keys are integers or strings; omit --key for a running number",
    )


def take_key(columns: dict[str, Column], name: str | None, first: int, last: int) -> Column:
    """Remove the key column from the columns; return keys of the records `first` to `last`."""
    if name is None:
        return keys_of(np.arange(first, last))
    key = columns.pop(name)
    if not isinstance(key, Dense):
        return key
    if key.values.dtype == np.uint64 and len(key) and key.values.max() > np.iinfo(np.int64).max:
        raise SourceError(f"a key in records {first} to {last - 1} does not fit into a long")
    return Dense(key.values.astype(np.int64), valid=key.valid)


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
                stream.read(1)  # the archive checks the CRC only at the end

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
            f"{label}: a single value, expected one entry per record",
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
            f"{member.label}: damaged: the header promises {content:,} bytes of values, found "
            f"{size - member.header_bytes:,}",
            hint=_HINT_DAMAGED,
        )
    if member.fortran and content > _TURN_BYTES:
        raise SourceError(
            f"{member.label}: stored in Fortran order, which cannot be read record by record",
            hint="save numpy.ascontiguousarray(array)",
        )


class _NpzSource(Source):
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
                f"arrays differ in length: {counted}",
                hint="choose arrays of one length: --arrays NAME,NAME",
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
        """A digest of the archives' checksums, and size and time of plain .npy files."""
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
            name: _array_column(
                self._field_of[name], array, f"{member.label}, records {first} to {last - 1}"
            )
            for (name, member), array in zip(self.members.items(), arrays, strict=True)
        }
        return Batch(take_key(columns, self.key_name, first, last), columns)


def _field(name: str, member: Member) -> Field:
    try:
        return _array_field(name, np.empty((0, *member.shape), member.dtype))
    except SchemaError as error:
        raise SourceError(f"{member.label}: {error.message}", hint=error.hint) from error


def npz(
    location: Location | Sequence[Location],
    labels: Location | None = None,
    arrays: str | Sequence[str] | Mapping[str, str] | None = None,
    key: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> _NpzSource:
    """Open arrays of .npz (or .npy) files as fields; the first dimension is the record.

    A field has the name of its array, in upper case. An array saved without a name (`arr_0`) gets
    the name of its file. The only array of the file `labels` is called LABEL.

    Args:
        location: The file, or several.
        labels: The file with the labels.
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
    return _NpzSource(chosen, type_name=type_name(places[0].stem), key=key, bad_records=bad_records)


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


_SEED = 1797
_TRAIN_SHARE = 0.8


def open_digits(
    location: None = None, split: str = "train", bad_records: OnBadRecord = "fail"
) -> ArraySource:
    """Open `digits` as `open_source` does; the location is ignored, and no record is bad."""
    if location is not None:
        raise ConfigError("source 'digits' has no location: it is part of scikit-learn")
    return digits(split, bad_records)


def digits(split: str = "train", bad_records: OnBadRecord = "fail") -> ArraySource:
    """Return one split of the digits: IMAGE uint8 [8, 8, 1] with values 0..16, LABEL int32.

    Args:
        split: "train" (1,438 rows), "test" (359 rows) or "all".
        bad_records: As for every source; the data have no bad records.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra(
            "the digits data set needs scikit-learn", hint='pip install "ignitetf[all]"'
        ) from error
    data = load_digits()
    count = len(data.target)
    order = np.random.RandomState(_SEED).permutation(count)
    cut = round(count * _TRAIN_SHARE)
    chosen = {"train": order[:cut], "test": order[cut:], "all": np.arange(count)}.get(split)
    if chosen is None:
        raise ConfigError(f"digits has no split {split!r}", hint="use 'train', 'test' or 'all'")
    images = data.images[chosen].astype(np.uint8)[..., np.newaxis]
    return ArraySource(
        {"IMAGE": images, "LABEL": data.target[chosen].astype(np.int32)},
        type_name=f"Digits{split.capitalize()}",
        class_names=[str(name) for name in data.target_names],
        bad_records=bad_records,
    )
