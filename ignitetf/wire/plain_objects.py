"""Values of any type as plain Python objects, for SQL results, which may have non-SQL types.

meaning, columns -> **plain objects** -> net.statements

| stored | Python |
| --- | --- |
| a value of a SQL type | as in `sql_arrays` |
| an enum | the name of the constant; its ordinal if the cluster does not know it |
| an array, a list, a set | list |
| a map | dict; a list of pairs if a key is not hashable |
| an object | dict of its fields |

Values of one type are read together, by the decoder that data sets use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.decode import decode_column
from ignitetf.wire.meaning import described, is_raw, meant, type_code, type_codes
from ignitetf.wire.objects import Bytes, Positions, field_positions, find_elements, gather, headers
from ignitetf.wire.sql_arrays import Kind, Values, readable_field
from ignitetf.wire.types import BinaryType, TypeRegistry

__all__ = ["plain_objects"]

# The same limit as in `objects`.
_MAX_DEPTH: Final = 64


def plain_objects(data: Bytes, at: Positions, registry: TypeRegistry, depth: int = 0) -> list[Any]:
    """Return the values at these positions; None for a null, and for position -1.

    Args:
        data: The page.
        at: Start of the values.
        registry: Binary types.
        depth: Depth at which the values are nested in other objects.

    Raises:
        SchemaError: A value cannot be read.
        UnknownType: The registry lacks a type.
        WireError: A value reaches beyond the page, or objects are nested too deep.
    """
    if depth > _MAX_DEPTH:
        raise WireError(f"objects nested more than {_MAX_DEPTH} deep")
    foreign = type_codes(data, at) == TypeCode.OPTIMIZED
    data, at, codes = meant(data, at)
    out: list[Any] = [None] * len(at)
    # Objects in Java's own serialization are decoded separately, because their dates are days.
    for by_java in (False, True):
        for number in np.unique(codes[foreign == by_java]).tolist():
            rows = np.flatnonzero((codes == number) & (foreign == by_java))
            if number != TypeCode.NULL:
                found = _type_of_code(number, by_java, data, at[rows], registry, depth)
                for row, value in zip(rows.tolist(), found, strict=True):
                    out[row] = value
    return out


def _type_of_code(
    number: int, by_java: bool, data: Bytes, at: Positions, registry: TypeRegistry, depth: int
) -> list[Any]:
    try:
        code = TypeCode(number)
    except ValueError as error:
        raise SchemaError(f"a value is {type_code(number)}") from error
    if (field := readable_field(code)) is not None:
        kind = Kind(code, is_day=by_java and code == TypeCode.DATE)
        return Values(kind, decode_column(data, at, field, registry), len(at)).to_python()
    read = _READERS.get(family_of(code))
    if read is None:
        raise SchemaError(
            f"a value is {described(data, int(at[0]), number, registry)}, which cannot be read",
            hint="select the other columns",
        )
    return read(data, at, registry, depth)


def _enums(data: Bytes, at: Positions, registry: TypeRegistry, depth: int) -> list[Any]:
    types, ordinals = gather(data, at + 1, "<i4"), gather(data, at + 5, "<i4")
    return [
        registry.constant(type_id, ordinal)
        for type_id, ordinal in zip(types.tolist(), ordinals.tolist(), strict=True)
    ]


def _lists(data: Bytes, at: Positions, registry: TypeRegistry, depth: int) -> list[Any]:
    found, counts = find_elements(data, at)
    items = plain_objects(data, found, registry, depth + 1)
    ends = np.cumsum(counts)
    return [items[p:q] for p, q in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


def _maps(data: Bytes, at: Positions, registry: TypeRegistry, depth: int) -> list[Any]:
    return [_map(flat) for flat in _lists(data, at, registry, depth)]


def _map(flat: list[Any]) -> Any:
    pairs = list(zip(flat[0::2], flat[1::2], strict=True))
    try:
        return dict(pairs)
    except TypeError:
        return pairs


def _objects(data: Bytes, at: Positions, registry: TypeRegistry, depth: int) -> list[Any]:
    head = headers(data, at)
    kinds = np.stack([head.type_id, head.schema_id, head.flags.astype(np.int32)], axis=1)
    out: list[Any] = [None] * len(at)
    for kind in np.unique(kinds, axis=0):
        rows = np.flatnonzero((kinds == kind).all(axis=1))
        type_id, schema_id, flags = kind.tolist()
        first = int(at[rows[0]])
        known = registry.find(type_id, schema_id)
        if is_raw(head.flags)[rows[0]] or (known is None and flags & BinaryFlag.HAS_SCHEMA):
            raise SchemaError(
                f"a value is {described(data, first, TypeCode.OBJECT, registry)}, which cannot be"
                " read",
                hint="select the other columns",
            )
        names = [] if known is None else _names(known, schema_id, flags, registry)
        places = field_positions(data, headers(data, at[rows]), registry, names)
        columns = [plain_objects(data, places[name], registry, depth + 1) for name in names]
        for place, row in enumerate(rows.tolist()):
            values = [column[place] for column in columns]
            out[row] = dict(zip(names, values, strict=True))
    return out


def _names(known: BinaryType, schema_id: int, flags: int, registry: TypeRegistry) -> list[str]:
    """Return the names of an object's fields in stored order."""
    if not flags & BinaryFlag.HAS_SCHEMA:
        return []
    compact = flags & BinaryFlag.COMPACT_FOOTER
    order = registry.schema(known.type_id, schema_id) if compact else tuple(known.fields)
    return [known.fields[number][0] for number in order if number in known.fields]


_Read = Callable[[Bytes, Positions, TypeRegistry, int], list[Any]]
_READERS: Final[dict[Family, _Read]] = {
    Family.ENUM: _enums,
    Family.LIST: _lists,
    Family.MAP: _maps,
    Family.OBJECT: _objects,
}
