"""Converts Python values to columns: types and shapes from a sample, then whole columns at once.

records -> **fields, columns** -> Batch

A value must mean the same after conversion as before: an integer that does not fit, a float among
integers or a text that looks like a number is refused, never truncated or parsed. A dict with a key
unknown to its field is refused too, so no part of a record is lost.

NumPy turns True into 1, integers too large for int64 into floats, and numbers mixed with texts into
texts. Here such mixtures are refused, and so are integers that a float cannot hold exactly.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.load.sources.times import exact_moments
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import DATA_TYPES, LIST_OF
from ignitetf.wire.schema import BYTES, Field, Schema, Shape, field_for, is_identifier

__all__ = [
    "UNFIT",
    "cast_array",
    "column_of",
    "common_dtype",
    "difference",
    "exact_array",
    "field_of",
    "kinds_of",
    "names_of",
    "stored_field",
    "strings_column",
]

Kind = type[Any] | np.dtype[Any]

_PLAIN: Final = frozenset({bool, int, float, str, bytes})
_LETTERS: Final[dict[Kind, str]] = {bool: "b", int: "i", float: "f", str: "U", bytes: "S"}
# Kinds of values that an array of this kind can represent exactly.
_ACCEPTED_KINDS: Final = {"i": "iu", "u": "iu", "f": "fiu", "b": "b"}
_LONG: Final = np.iinfo(np.int64)
HINT_LONG: Final = "keep such numbers as decimals or texts, or their bits: array.view(numpy.int64)"


# Hints for objects of other libraries.
HINTS_OBJECTS: Final[Mapping[str, str]] = {
    "Period": "convert it first: value.to_timestamp(), or str(value)",
    "Interval": "load its ends as two fields: value.left, value.right",
}


def stored_field(
    name: str, dtype: np.dtype[Any], shape: Shape = (), *, nullable: bool = False
) -> Field:
    """Return a field for this dtype; every client sees its values unchanged.

    Ignite has signed integers only, so unsigned ones are stored in the next wider type (uint64 in a
    long, which holds half of its values); the dtype stays that of the source. Arrays of uint8 are
    byte[]. float16 becomes float32.

    Raises:
        SchemaError: No Ignite type has this dtype.
    """
    if dtype.kind == "f" and dtype.itemsize == 2:  # in either byte order
        dtype = np.dtype(np.float32)
    field = field_for(name, dtype, shape, nullable=nullable)
    if dtype.kind != "u" or (shape and dtype.itemsize == 1):
        return field
    signed = np.dtype(f"<i{min(8, 2 * dtype.itemsize)}")
    return replace(field, type=field_for(name, signed, shape).type)


def kinds_of(value: Any) -> set[Kind]:
    """Return all kinds inside a value: Python types, dtypes of arrays and NumPy scalars."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {_kind_of_array(value)}
    if not isinstance(value, (list, tuple)):
        if type(value) in _PLAIN:
            return {type(value)}
        dtype = np.asarray(value).dtype  # of tensors, buffers and similar objects
        return {type(value) if dtype.kind == "O" else dtype}
    kinds: set[Kind] = set(map(type, value))
    if kinds <= _PLAIN:
        return kinds
    if kinds == {np.ndarray}:
        return set(map(_kind_of_array, value))
    if len(kinds) == 1 and issubclass(one := type(value[0]), (np.number, np.bool_)):
        return {np.dtype(one)}
    return set().union(*map(kinds_of, value))


def _kind_of_array(array: np.ndarray[Any, Any] | np.generic) -> Kind:
    # NumPy's texts of any length are Python's.
    return str if array.dtype.kind == "T" else array.dtype


def common_dtype(name: str, kinds: Iterable[Kind]) -> np.dtype[Any]:
    """Return the dtype for these kinds: int64 and float64 for Python's, `U` or `S` for texts.

    Raises:
        SchemaError: The kinds cannot be mixed, or no array can hold them.
    """
    kinds = set(kinds)
    letters = {_letter(kind) for kind in kinds}
    if "O" in letters:
        refused = ", ".join(sorted(map(_type_name, (k for k in kinds if _letter(k) == "O"))))
        if type(None) in kinds:
            raise SchemaError(f"field {name!r}: a null inside a list")
        hint = next((HINTS_OBJECTS[k] for k in refused.split(", ") if k in HINTS_OBJECTS), None)
        raise SchemaError(
            f"field {name!r}: no Ignite type stores {refused}",
            hint=hint or "convert the values to numbers or texts first, or omit the field",
        )
    if len(letters) > 1 and not letters <= set("iuf"):
        raise SchemaError(
            f"field {name!r}: types are mixed: {', '.join(sorted(map(_type_name, kinds)))}",
            hint="convert them to one type, or to strings; None is a null",
        )
    found = np.result_type(
        *(np.dtype("i8" if k is int else k) if isinstance(k, type) else k for k in kinds)
    )
    if (
        letters <= set("iu") and found.kind == "f"
    ):  # int64 and uint64 together: values that fit are stored in a long
        return np.dtype(np.int64)
    return found


def exact_array(values: Sequence[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Convert scalars, lists or arrays of one shape to an array of this dtype.

    Raises:
        SchemaError: A value is of another kind, or does not fit.
        ValueError: The shapes differ.
    """
    kinds = kinds_of(values) if len(values) else set()
    taken = _ACCEPTED_KINDS.get(target.kind, "")
    if wrong := [kind for kind in kinds if _letter(kind) not in taken]:
        raise SchemaError(f"{_type_name(wrong[0])} instead of {target}")
    whole = np.asarray(values)
    if whole.size == 0:
        return whole.astype(target)
    letters = {_letter(kind) for kind in kinds}
    if whole.dtype.kind not in "iufb" or (letters <= set("iu") and whole.dtype.kind == "f"):
        raise SchemaError(f"an integer does not fit into {target}")
    if letters & set("iu") and whole.dtype.kind == "f" and (np.abs(whole) >= _exact(whole)).any():
        for number in _leaves(values):
            if isinstance(number, (int, np.integer)) and int(float(number)) != int(number):
                raise SchemaError(f"{number} does not fit into {target}")
    return cast_array(target, whole)


def cast_array(target: np.dtype[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to this dtype if every value keeps its meaning.

    A float64 may become the nearest float32: the caller accepts that by choosing that dtype.

    Raises:
        SchemaError: A value is of another kind, or does not fit.
    """
    if array.dtype == target and target != np.uint64:
        return array
    same = array.dtype.newbyteorder("=") == target.newbyteorder("=") != np.uint64
    if not array.size or same:
        return array.astype(target)
    if array.dtype.kind not in _ACCEPTED_KINDS.get(target.kind, ""):
        raise SchemaError(f"{array.dtype} instead of {target}")
    if target.kind in "iu":
        limits = np.iinfo(target)
        least, most = int(limits.min), min(int(limits.max), int(_LONG.max))
        low, high = int(array.min()), int(array.max())
        if low < least or high > most:
            wrong = low if low < least else high
            limit = "a long" if most == _LONG.max else str(target)
            raise SchemaError(f"{wrong} does not fit into {limit}", hint=HINT_LONG)
        return array.astype(target, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        out = array.astype(target)
        if array.dtype.kind in "iu":
            lost = out.astype(array.dtype) != array
            # The largest long becomes the float 2^63, which is not equal to any long.
            lost |= out >= float(2 ** (8 * array.itemsize - (array.dtype.kind == "i")))
        else:
            lost = np.isinf(out) & ~np.isinf(array)
    if lost.any():
        raise SchemaError(f"{array[lost][0]} does not fit into {target}")
    return out


def _letter(kind: Kind) -> str:
    """Return NumPy's letter for the kind; `O` unless it is a number or text."""
    if isinstance(kind, np.dtype):
        return kind.kind if kind.kind in "biufUS" else "O"
    return _LETTERS.get(kind, "O")


def _type_name(kind: Kind) -> str:
    return str(kind) if isinstance(kind, np.dtype) else kind.__name__


def _exact(array: NDArray[Any]) -> float:
    """Return the limit below which floats of this array hold every integer."""
    return float(2.0 ** (np.finfo(array.dtype).nmant + 1))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, np.ndarray):
        yield from value.reshape(-1).tolist() if value.dtype.kind in "iu" else ()
    else:
        yield value


# Exceptions that conversions raise for values that do not fit.
UNFIT = (SchemaError, ValueError, TypeError, OverflowError, ArithmeticError)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_MS = 86_400_000
# More digits are an error or an attack: `1E+999999999` would need a gigabyte.
_MAX_DIGITS = 100_000


# Subclasses first: a datetime is a date.
_CLASSES: Final = sorted(
    (row for row in DATA_TYPES.values() if row.python), key=lambda row: -len(row.python[0].__mro__)
)
# Values whose lists have their own type. NumPy treats lists of texts as arrays.
_IN_LISTS: Final = tuple(
    kind for code in LIST_OF if code is not TypeCode.STRING for kind in DATA_TYPES[code].python
)


def field_of(name: str, values: Sequence[Any]) -> Field:
    """Return the field that fits a sample of values; a None among them makes it nullable.

    Integers become int64, floats float64. Lists and arrays get a fixed shape if the whole sample
    has it, otherwise a leading None.

    Raises:
        SchemaError: No Ignite type can store such values, or the sample mixes types.
    """
    present = [v for v in values if v is not None]
    nullable = len(present) < len(values)
    if not present:
        return Field(name, TypeCode.STRING, BYTES, (), nullable=True)
    if (special := _special(name, present, nullable)) is not None:
        return special
    try:
        shapes = [np.shape(v) for v in present]
    except ValueError:
        return _lists_field(name, present, nullable)
    # An empty list or array does not determine the type.
    non_empty = [v for v, s in zip(present, shapes, strict=True) if 0 not in s] or present
    kinds = set().union(*map(kinds_of, non_empty))
    dtype = common_dtype(name, kinds) if kinds else np.dtype(np.float64)
    inner = {shape[1:] for shape in shapes if 0 not in shape}
    nested = len(inner) > 1 or (dtype.kind in "US" and inner - {()})
    if nested and all(isinstance(v, (list, tuple)) for v in present):
        return _lists_field(name, present, nullable)
    shape = _common_shape(name, set(shapes))
    if dtype.kind in "US":
        if len(shape) > 1:
            raise SchemaError(f"field {name!r}: texts in more than one dimension are not stored")
        return Field(name, TypeCode.STRING_ARRAY, BYTES, shape, nullable)
    return stored_field(name, dtype, shape, nullable=nullable)


def names_of(record: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a dict by upper-case name, as SQL compares names.

    Raises:
        SchemaError: A name is not text, or two differ only in case.
    """
    found = {str(name).upper(): value for name, value in record.items()}
    if len(found) != len(record):
        upper = [str(name).upper() for name in record]
        twice = [repr(n) for n, u in zip(record, upper, strict=True) if upper.count(u) > 1]
        raise SchemaError(
            f"{' and '.join(twice[:2])} are the same name: upper and lower case count as equal",
            hint="rename one of them",
        )
    return found


def _special(name: str, present: list[Any], nullable: bool) -> Field | None:
    """Return the field of values that are not arrays of numbers; None for arrays of numbers."""
    for row in _CLASSES:
        if all(isinstance(v, row.python) for v in present):
            return Field(name, row.code, row.value or BYTES, (), nullable)
        if any(isinstance(v, row.python) for v in present):
            raise SchemaError(f"field {name!r}: types are mixed: {_kinds(present)}")
    if all(isinstance(v, Mapping) for v in present):
        return _object_field(name, present, nullable)
    if all(isinstance(v, (list, tuple)) for v in present):
        return _list_field(name, present, nullable)
    return None


def _object_field(name: str, present: list[Mapping[str, Any]], nullable: bool) -> Field:
    """Return a nested object with all names in the sample."""
    names = dict.fromkeys(key for value in present for key in value)
    if not names:
        raise SchemaError(f"field {name!r}: dicts without keys")
    if wrong := [key for key in names if not isinstance(key, str) or not is_identifier(key)]:
        raise SchemaError(
            f"field {name!r}: {wrong[0]!r} is not a valid name of a nested field",
            hint="names have letters, digits and underscores, and do not start with a digit",
        )
    names_of(names)  # a binary object cannot hold two names that differ only in case
    inner = tuple(field_of(key, [value.get(key) for value in present]) for key in names)
    return Field(name, TypeCode.OBJECT, BYTES, (), nullable, inner)


def _list_field(name: str, present: list[Any], nullable: bool) -> Field | None:
    """Return the field of lists that are not numbers to NumPy; None for lists of numbers."""
    items = [item for value in present for item in value]
    if not any(isinstance(item, (*_IN_LISTS, Mapping)) for item in items):
        return None
    item = field_of("item", items)
    code = LIST_OF.get(item.type, TypeCode.COLLECTION)
    return Field(name, code, item.dtype, (None,), nullable, (item,))


def _lists_field(name: str, present: list[Any], nullable: bool) -> Field:
    """Return the field of lists of lists whose lengths differ."""
    items = [item for value in present for item in value]
    if not all(isinstance(item, (list, tuple, np.ndarray)) for item in items):
        raise SchemaError(
            f"field {name!r}: a list of {_kinds(items)}", hint="use parts of one kind"
        )
    item = field_of("item", items)
    return Field(name, TypeCode.COLLECTION, item.dtype, (None,), nullable, (item,))


def _kinds(values: list[Any]) -> str:
    return ", ".join(sorted({type(v).__name__ for v in values}))


def _common_shape(name: str, shapes: set[tuple[int, ...]]) -> Shape:
    """Return the common shape; a leading None if lengths differ or if there are only `[]`."""
    full = shapes - {(0,)}
    if len(shapes) == 1 and full:
        return shapes.pop()
    if not full:
        return (None,)
    if len({s[1:] for s in full}) == 1 and () not in full:
        return (None, *full.pop()[1:])
    raise SchemaError(
        f"field {name!r}: shapes differ in more than their first dimension: {sorted(shapes)[:4]}"
    )


def column_of(field: Field, values: Sequence[Any]) -> Column:
    """Convert values to a column.

    Raises:
        SchemaError: A value does not fit (or another error of `UNFIT`).
    """
    valid = None
    if any(v is None for v in values):
        if not field.nullable:
            raise SchemaError("null, but the field is not nullable")
        valid = np.fromiter((v is not None for v in values), np.bool_, len(values))
    if field.fields:
        return _nested(field, values, valid)
    if field.type == TypeCode.STRING_ARRAY:
        return strings_column(field, [() if v is None else v for v in values], valid)
    if field.dtype == BYTES and (to_bytes := _TO_BYTES.get(field.type)) is not None:
        return Runs.from_bytes([None if v is None else to_bytes(v) for v in values])
    if (to_number := _TO_NUMBER.get(field.type)) is not None:
        numbers = [0 if v is None else to_number(v) for v in values]
        if field.type is TypeCode.TIMESTAMP:
            return Dense(exact_moments(numbers), valid=valid)
        return Dense(np.array(numbers, np.int64), valid=valid)
    if field.ragged:
        return _runs(field, values, valid)
    return _dense(field, values, valid)


def _nested(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    """Convert dicts to nested objects, their lists to lists of objects, and dicts to maps."""
    whole = [({} if v is None else v) for v in values]
    if field.type in (TypeCode.OBJECT, TypeCode.MAP) and not all(
        isinstance(v, Mapping) for v in whole
    ):
        raise SchemaError("not a dict")
    if field.type is TypeCode.OBJECT:
        known = {f.name for f in field.fields}
        if unknown := next((key for v in whole for key in v if key not in known), None):
            raise SchemaError(f"unknown field {unknown!r}; fields: {', '.join(sorted(known))}")
        return Struct({f.name: _object_column(f, values) for f in field.fields}, valid=valid)
    if field.type is TypeCode.MAP:
        keys, items = field.fields
        lists = ([list(v) for v in whole], [list(v.values()) for v in whole])
        columns: dict[str, Column] = {
            f.name: _list(f, v, None) for f, v in zip((keys, items), lists, strict=True)
        }
        return Struct(columns, valid)
    return _list(field.fields[0], whole, valid)


def _object_column(field: Field, values: Sequence[Any]) -> Column:
    """Return one field of nested objects; where an object is missing, the value is arbitrary."""
    present = [v.get(field.name) for v in values if v is not None]
    column = column_of(field, present)
    if len(present) == len(values):
        return column
    rows = np.array([v is not None for v in values])
    if not present:
        return column_of(replace(field, nullable=True), [None] * len(values))
    spread = column[np.maximum(np.cumsum(rows) - 1, 0)]
    marks = rows if spread.valid is None else rows & spread.valid
    return spread.marked(marks if field.nullable else None)


def _list(item: Field, lists: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    if any(isinstance(v, (str, bytes)) for v in lists):
        raise SchemaError("a text instead of a list")
    inner = column_of(item, [one for v in lists for one in v])
    offsets = np.cumsum([0, *(len(v) for v in lists)], dtype=np.int64)
    return Runs.from_offsets(inner, offsets, valid)


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raw = _blob(value, "string")
    raw.decode()
    return raw


def _blob(value: Any, wanted: str = "bytes") -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise SchemaError(f"{type(value).__name__} instead of {wanted}")
    return bytes(value)


def _uuid(value: Any) -> bytes:
    return str(uuid.UUID(str(value))).encode()


def _decimal(value: Any) -> bytes:
    if not isinstance(value, (decimal.Decimal, int)) or isinstance(value, bool):
        raise SchemaError(f"{type(value).__name__} instead of a decimal")
    number = decimal.Decimal(value)
    if not number.is_finite():
        raise SchemaError(f"{number} is not a finite decimal")
    exponent = int(number.as_tuple().exponent)
    if max(number.adjusted(), 0) - min(exponent, 0) >= _MAX_DIGITS:
        raise SchemaError(f"a decimal of more than {_MAX_DIGITS:,} digits")
    return format(number, "f").encode()


def _time_of_day(value: Any) -> int:
    """Return milliseconds since midnight."""
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise SchemaError(f"{type(value).__name__} instead of a time without a zone")
    if value.microsecond % 1000:
        raise SchemaError(f"{value} has microseconds, a time of day only milliseconds")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1000 + value.microsecond // 1000


def _date(value: Any) -> int:
    """Return milliseconds since the epoch."""
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise SchemaError(f"{type(value).__name__} instead of a date")
    return (value.toordinal() - _EPOCH.toordinal()) * _DAY_MS


def _timestamp(value: Any) -> int:
    """Return nanoseconds since the epoch."""
    if not isinstance(value, dt.datetime):
        raise SchemaError(f"{type(value).__name__} instead of a datetime")
    if value != value:  # pandas' NaT
        raise SchemaError("NaT (not a time)")
    # pandas keeps nanoseconds apart from the microseconds.
    nanoseconds = int(getattr(value, "nanosecond", 0))
    whole = value if not nanoseconds else value.replace(nanosecond=0)  # type: ignore[call-arg]
    moment = whole if whole.tzinfo is not None else whole.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND * 1000 + nanoseconds


# Functions that turn a Python value into its bytes, or into the number that represents it.
_TO_BYTES: Final[Mapping[TypeCode, Callable[[Any], bytes]]] = {
    TypeCode.STRING: _text,
    TypeCode.UUID: _uuid,
    TypeCode.DECIMAL: _decimal,
    TypeCode.BYTE_ARRAY: _blob,
}
_TO_NUMBER: Final[Mapping[TypeCode, Callable[[Any], int]]] = {
    TypeCode.DATE: _date,
    TypeCode.TIME: _time_of_day,
    TypeCode.TIMESTAMP: _timestamp,
}


def strings_column(
    field: Field, lists: Sequence[Any], valid: NDArray[np.bool_] | None = None
) -> Column:
    """Return a column of arrays of strings: runs of runs of bytes."""
    flat: list[bytes] = []
    lengths = np.zeros(len(lists), np.int64)
    for i, items in enumerate(lists):
        if isinstance(items, (str, bytes)):
            raise SchemaError(f"{type(items).__name__} instead of a list of strings")
        if wrong := next((item for item in items if not isinstance(item, (str, bytes))), None):
            raise SchemaError(f"{type(wrong).__name__} instead of a text in a list")
        texts = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
        if field.shape[0] not in (None, len(texts)) and (valid is None or valid[i]):
            raise SchemaError(f"{len(texts)} strings, expected {field.shape[0]}")
        for text in texts:
            text.decode()
        flat += texts
        lengths[i] = len(texts)
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[:-1]
    return Runs(Runs.from_bytes(flat), starts, lengths, valid)


def _dense(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Dense:
    shape = tuple(n or 0 for n in field.shape)
    if valid is None:
        if not len(values):
            return Dense(np.empty((0, *shape), field.dtype))
        whole = exact_array(values, field.dtype)
        if whole.shape != (len(values), *shape):
            raise SchemaError(f"shape {list(whole.shape[1:])}, expected {list(shape)}")
        return Dense(whole)
    out = np.zeros((len(values), *shape), field.dtype)
    present = [v for v in values if v is not None]
    if present:
        out[valid] = _dense(field, present, None).values
    return Dense(out, valid=valid)


def _runs(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    trailing = tuple(n or 0 for n in field.shape[1:])
    empty = np.empty((0, *trailing), field.dtype)
    pieces = []
    for value in values:
        if value is None:
            array = empty
        elif isinstance(value, np.ndarray):
            array = cast_array(field.dtype, value)
        else:
            array = exact_array([value], field.dtype)[0]
        if array.size == 0 and array.ndim == 1:
            array = empty
        if array.ndim != len(field.shape) or array.shape[1:] != trailing:
            raise SchemaError(f"shape {list(array.shape)}, expected {list(field.shape)}")
        pieces.append(array.reshape(-1))
    lengths = np.fromiter((len(p) for p in pieces), np.int64, len(pieces))
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[:-1]
    flat = np.concatenate(pieces) if pieces else np.empty(0, field.dtype)
    return Runs(Dense(flat), starts, lengths, valid)


_MAX_SHOWN: Final = 3


def difference(found: Schema, wanted: Schema) -> str:
    """Return a text with the first differences between the fields of a schema and those wanted."""
    mine, theirs = {f.name: f for f in found.fields}, {f.name: f for f in wanted.fields}
    differences = [] if found.key == wanted.key else [_other("the key", found.key, wanted.key)]
    differences += [f"{name} is missing" for name in theirs if name not in mine]
    differences += [f"{name} is new" for name in mine if name not in theirs]
    differences += [
        _other(name, field, theirs[name])
        for name, field in mine.items()
        if name in theirs and _form(field) != _form(theirs[name])
    ]
    if not differences:
        differences = [
            f"nulls in {name}"
            for name, field in mine.items()
            if field.nullable and not theirs[name].nullable
        ] or ["another order of fields"]
    more = f", and {len(differences) - _MAX_SHOWN:,} more" if len(differences) > _MAX_SHOWN else ""
    return ", ".join(differences[:_MAX_SHOWN]) + more


def _other(name: str, found: Field, wanted: Field) -> str:
    return f"{name} is {_form(found)} instead of {_form(wanted)}"


def _form(field: Field) -> str:
    """Return a text with the type, the dtype if the type does not imply it, and the shape."""
    kind = field.type.name.lower()
    if field.dtype.kind == "u":
        kind = f"{kind} of {field.dtype}"
    sizes = ", ".join("?" if n is None else str(n) for n in field.shape)
    return f"{kind} [{sizes}]" if field.shape else kind
