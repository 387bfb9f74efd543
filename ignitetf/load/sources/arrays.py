"""NumPy arrays as records, along their first dimension.

arrays by name -> **fields, columns** -> Batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.crc import crc32
from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    Source,
    check_record_size,
    keys_of,
    rows_per_batch,
)
from ignitetf.load.sources.exact import (
    cast_array,
    common_dtype,
    exact_array,
    kinds_of,
    stored_field,
)
from ignitetf.load.sources.location import digest, one_line
from ignitetf.load.sources.times import moments_in
from ignitetf.load.sources.values import UNFIT, column_of, field_of, names_of, strings_column
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["ArraySource", "array_column", "array_field", "key_field_of", "take_key"]

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
        fields = {name: array_field(name, array) for name, array in self.arrays.items()}
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
                f"arrays of different length: {counted}",
                hint="all must have one entry a record; leave others out",
            )
        return next(iter(lengths.values()))

    def fingerprint(self) -> str:
        """Made from names, shapes and CRC-32 of the content; of large arrays, of 64 pieces."""
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
        return array_column(self._field_of[name], values, f"array {name}, records from {first}")


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


def array_field(name: str, array: NDArray[Any]) -> Field:
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
    """Return the array; a mask that hides values is refused, because they would be loaded."""
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
    if found.dtype.kind == "T":  # NumPy's texts of any length, which may be missing
        gone = getattr(found.dtype, "na_object", None)
        return _objects([_without(row, gone) for row in found.tolist()])
    return found


def _without(value: Any, gone: Any) -> Any:
    """Return texts in which what stands for a missing one is None."""
    if isinstance(value, list):
        return [_without(one, gone) for one in value]
    return None if value is gone or value != value else value


def _exactly(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return numbers of one shape as an array of them, and anything else as objects.

    NumPy would cut zeros off the end of bytes and texts, and turn 1 beside "a" into a text.
    """
    try:
        kinds = kinds_of(values)
        if all(isinstance(kind, np.dtype) and kind.kind == "M" for kind in kinds):
            return np.asanyarray(values)
        dtype = common_dtype(name, kinds)
        if dtype.kind in "iufb":
            return exact_array(values, dtype)
    except (SchemaError, ValueError):
        pass  # told with its place when it is converted
    return _objects(values)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def array_column(field: Field, values: NDArray[Any], name: str) -> Column:
    """Return the column of an array `[n, *shape]` that `array_field` described."""
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
        hint = getattr(error, "hint", None) or "repair or leave out the array"
        raise SourceError(f"{name}: {one_line(error)}", hint=hint) from error


def _timestamps(values: NDArray[Any]) -> Column:
    """Return points in time, see `times`; NaT is refused because the field is not nullable."""
    if np.isnat(values).any():
        raise SchemaError("NaT (not a time)")
    for unit in ("s", "ms", "us", "ns"):
        whole = values.astype(f"datetime64[{unit}]")
        if np.array_equal(whole.astype(values.dtype), values) and (whole == values).all():
            return Dense(moments_in(whole.astype(np.int64), unit))
    raise SchemaError("a time that nanoseconds since 1970 cannot count")


def key_field_of(name: str | None, fields: dict[str, Field]) -> Field:
    """Remove the key column from the fields and return it: integers become LONG, texts STRING.

    Args:
        name: The column; None for the running key, which is not a column.
        fields: The fields by name.

    Raises:
        ConfigError: There is no such column, its values cannot be keys, or no other column is left.
    """
    if name is None:
        return RUNNING_KEY
    field = fields.pop(name, None)
    if field is None:
        raise ConfigError(
            f"no column {name!r} to be the key", hint=f"columns: {', '.join(sorted(fields))}"
        )
    if not fields:
        raise ConfigError(f"no column is left beside the key {name!r}")
    if field.type in INTEGERS and field.dtype.kind in "iu":
        return RUNNING_KEY
    if field.type == TypeCode.STRING:
        return Field("key", TypeCode.STRING, BYTES)
    raise ConfigError(
        f"column {name!r} of type {field.type.name} cannot be the key",
        hint="keys are integers or strings; leave --key out for a running number",
    )


def take_key(columns: dict[str, Column], name: str | None, first: int, last: int) -> Column:
    """Remove the keys of the records from `first` up to `last` from the columns and return them."""
    if name is None:
        return keys_of(np.arange(first, last))
    key = columns.pop(name)
    if not isinstance(key, Dense):
        return key
    if key.values.dtype == np.uint64 and len(key) and key.values.max() > np.iinfo(np.int64).max:
        raise SourceError(f"a key in records {first} to {last - 1} does not fit into a long")
    return Dense(key.values.astype(np.int64), valid=key.valid)
