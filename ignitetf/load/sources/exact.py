"""Converts numbers into arrays of one dtype without changing their values.

records -> **dtypes, arrays** -> fields, columns -> Batch

NumPy turns True into 1, integers too large for int64 into floats, and numbers beside texts into
texts. Here such mixtures are refused, and so are integers that a float cannot hold exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.schema import Field, Shape, field_for

__all__ = [
    "cast_array",
    "common_dtype",
    "exact_array",
    "kinds_of",
    "stored_field",
]

Kind = type[Any] | np.dtype[Any]

_PLAIN: Final = frozenset({bool, int, float, str, bytes})
_LETTERS: Final[dict[Kind, str]] = {bool: "b", int: "i", float: "f", str: "U", bytes: "S"}
# Kinds of values that an array of this kind can represent exactly.
_TAKEN: Final = {"i": "iu", "u": "iu", "f": "fiu", "b": "b"}
_LONG: Final = np.iinfo(np.int64)
HINT_LONG: Final = "keep such numbers as decimals or texts, or their bits: array.view(numpy.int64)"


def stored_field(
    name: str, dtype: np.dtype[Any], shape: Shape = (), *, nullable: bool = False
) -> Field:
    """Return the field whose stored type shows values of this dtype unchanged to every client.

    Ignite has signed integers only, so unsigned ones are stored in the next wider type (uint64 in a
    long, which holds half of its values); the dtype stays that of the source. Arrays of uint8 are
    byte[]. float16 becomes float32.

    Raises:
        SchemaError: No Ignite type has this dtype.
    """
    if dtype.kind == "f" and dtype.itemsize == 2:  # of either byte order
        dtype = np.dtype(np.float32)
    field = field_for(name, dtype, shape, nullable=nullable)
    if dtype.kind != "u" or (shape and dtype.itemsize == 1):
        return field
    signed = np.dtype(f"<i{min(8, 2 * dtype.itemsize)}")
    return replace(field, type=field_for(name, signed, shape).type)


def kinds_of(value: Any) -> set[Kind]:
    """Return all kinds inside a value: Python types, dtypes of arrays and NumPy scalars."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {value.dtype}
    if not isinstance(value, (list, tuple)):
        if type(value) in _PLAIN:
            return {type(value)}
        dtype = np.asarray(value).dtype  # of tensors, buffers and similar objects
        return {type(value) if dtype.kind == "O" else dtype}
    kinds: set[Kind] = set(map(type, value))
    if kinds <= _PLAIN:
        return kinds
    if kinds == {np.ndarray}:
        return {array.dtype for array in value}
    if len(kinds) == 1 and issubclass(one := type(value[0]), (np.number, np.bool_)):
        return {np.dtype(one)}
    return set().union(*map(kinds_of, value))


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
        raise SchemaError(f"field {name!r}: no Ignite type stores {refused}")
    if len(letters) > 1 and not letters <= set("iuf"):
        raise SchemaError(
            f"field {name!r}: types are mixed: {', '.join(sorted(map(_type_name, kinds)))}",
            hint="make them one type, or texts; None is a null",
        )
    found = np.result_type(
        *(np.dtype("i8" if k is int else k) if isinstance(k, type) else k for k in kinds)
    )
    if letters <= set("iu") and found.kind == "f":  # int64 and uint64: a long holds what fits
        return np.dtype(np.int64)
    return found


def exact_array(values: Sequence[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Convert scalars, lists or arrays of one shape to an array of this dtype.

    Raises:
        SchemaError: A value is of another kind, or does not fit.
        ValueError: The shapes differ.
    """
    kinds = kinds_of(values) if len(values) else set()
    taken = _TAKEN.get(target.kind, "")
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

    A float64 may become the nearest float32: choosing that dtype asks for it.

    Raises:
        SchemaError: A value is of another kind, or does not fit.
    """
    if array.dtype == target and target != np.uint64:
        return array
    same = array.dtype.newbyteorder("=") == target.newbyteorder("=") != np.uint64
    if not array.size or same:
        return array.astype(target)
    if array.dtype.kind not in _TAKEN.get(target.kind, ""):
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
            # The largest long becomes 2^63, which no long equals.
            lost |= out >= float(2 ** (8 * array.itemsize - (array.dtype.kind == "i")))
        else:
            lost = np.isinf(out) & ~np.isinf(array)
    if lost.any():
        raise SchemaError(f"{array[lost][0]} does not fit into {target}")
    return out


def _letter(kind: Kind) -> str:
    """Return NumPy's letter for the kind, `O` for anything but numbers and texts."""
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
