"""Converts Arrow values to plain types, whose values need no further interpretation.

stream, Parquet -> **plain types, plain arrays** -> fields, columns -> Batch

All Arrow values pass through this module. Views, dictionaries and run-end encoded arrays become
plain values. An extension type is converted by its meaning. If the meaning is unknown, the type is
refused with an error that names it. The same applies to each part of a nested type.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ignitetf.errors import MissingExtra, SchemaError, SourceError

__all__ = [
    "import_pyarrow",
    "is_uuid",
    "of_table",
    "plain_array",
    "plain_field",
    "refusal",
    "uuid_field",
]

_NAME: Final = b"ARROW:extension:name"
_METADATA: Final = b"ARROW:extension:metadata"
_UUID: Final = "arrow.uuid"
# Extension types that store the value itself.
_AS_STORED: Final = frozenset({"arrow.json", "geoarrow.wkb", "geoarrow.wkt", "ogc.wkb"})
# Arrays of Hugging Face's `datasets`, stored as lists of lists; the metadata have the shape.
_ARRAYS: Final = frozenset(
    f"datasets.features.features.Array{n}DExtensionType" for n in range(2, 6)
)
_LISTS: Final = ("list", "large_list", "list_view", "large_list_view")
# Hints for refused types that have a better alternative than their storage.
_HINTS: Final[Mapping[str, str]] = {
    "pandas.period": "convert it first: column.dt.to_timestamp(), or column.astype(str)",
    "pandas.interval": "load its ends as two columns: column.array.left, column.array.right",
}
_HINT: Final = "omit the column, or convert it first"
_HINT_STORAGE: Final = (
    "omit the column, or convert it first, for example by a cast to its storage type"
)


def import_pyarrow(what: str) -> Any:
    """Import pyarrow.

    Raises:
        MissingExtra: It is not installed.
    """
    return MissingExtra.module("pyarrow", f"{what} need pyarrow", "arrow")


def refusal(name: str, what: object, hint: str | None = None) -> SchemaError:
    """Return the error for a column that no Ignite type can store; `of_table` names the table."""
    return SchemaError(f"column {name!r}: no Ignite type stores {what}", hint=hint or _HINT)


@contextlib.contextmanager
def of_table(name: str, way_out: str | None = None) -> Iterator[None]:
    """Convert the error of a column to a SourceError that names its table.

    Args:
        name: Name of the file or table.
        way_out: Another remedy, in addition to the hint of the error.
    """
    try:
        yield
    except SchemaError as error:
        hint = "; ".join(filter(None, [error.hint, way_out]))
        raise SourceError(f"{name}: {error.message}", hint=hint or None) from error


def plain_field(field: Any, column: str | None = None) -> Any:
    """Return a pyarrow field with the type that `plain_array` converts to, or its large form.

    Args:
        field: The original field; its extension type may be unknown to pyarrow.
        column: The column it is a part of, for messages.

    Raises:
        SchemaError: The meaning of an extension type is unknown.
    """
    pa = import_pyarrow("tables")
    types, kind = pa.types, field.type
    column = column or field.name
    if (name := _extension(pa, field)) is not None:
        return _without_extension(pa, field, name, column)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_field(field.with_type(kind.value_type), column)
    if types.is_map(kind):
        inner = (plain_field(part, column) for part in (kind.key_field, kind.item_field))
        return field.with_type(pa.map_(*inner))
    if _is(types, kind, _LISTS):
        return field.with_type(pa.list_(plain_field(kind.value_field, column)))
    if types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(plain_field(kind.value_field, column), kind.list_size))
    if types.is_struct(kind):
        return field.with_type(pa.struct([plain_field(part, column) for part in _parts(kind)]))
    if _is(types, kind, ("string_view",)):
        return field.with_type(pa.string())
    if _is(types, kind, ("binary_view",)):
        return field.with_type(pa.binary())
    return field


def is_uuid(field: Any) -> bool:
    """True if a plain field has UUIDs: 16 bytes; only they keep their extension's name."""
    return bool((field.metadata or {}).get(_NAME) == _UUID.encode())


def uuid_field(field: Any) -> Any:
    """Return a field of 16 bytes, or of UUIDs, marked for `is_uuid`."""
    if isinstance(field.type, import_pyarrow("tables").BaseExtensionType):
        field = field.with_type(field.type.storage_type)
    return field.with_metadata({**(field.metadata or {}), _NAME: _UUID.encode()})


def plain_array(field: Any, array: Any) -> Any:
    """Convert an array of a field to its plain type; nulls stay."""
    pa = import_pyarrow("tables")
    types, kind = pa.types, array.type
    if (name := _extension(pa, field.with_type(kind))) is not None:
        stored = array.storage if isinstance(kind, pa.BaseExtensionType) else array
        return _EXTENSIONS.get(name, _as_stored)(pa, field.with_type(kind), stored)
    if types.is_dictionary(kind):
        values = plain_array(pa.field(field.name, kind.value_type), array.dictionary)
        return values.take(array.indices)
    if types.is_run_end_encoded(kind):
        return _decoded_runs(pa, field, array)
    if types.is_map(kind) or _is(types, kind, _LISTS):
        return _plain_lists(pa, array)
    if types.is_fixed_size_list(kind):
        return _plain_fixed_lists(pa, array)
    if types.is_struct(kind):
        parts = [plain_array(*p) for p in zip(_parts(kind), array.flatten(), strict=True)]
        names = [part.name for part in _parts(kind)]
        return pa.StructArray.from_arrays(parts, names, mask=array.is_null()) if parts else array
    if _is(types, kind, ("string_view",)):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if _is(types, kind, ("binary_view",)) else array


def _is(types: Any, kind: Any, names: tuple[str, ...]) -> bool:
    """True if a type is one of these types; an older pyarrow lacks some of them."""
    tests = (getattr(types, f"is_{name}", None) for name in names)
    return any(test is not None and test(kind) for test in tests)


def _parts(kind: Any) -> list[Any]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _extension(pa: Any, field: Any) -> str | None:
    """Return the name of an extension type, even if pyarrow does not know the type."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name = (field.metadata or {}).get(_NAME)
    return None if name is None else name.decode("utf-8", "replace")


def _stored_type(pa: Any, field: Any) -> Any:
    kind = field.type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _without_extension(pa: Any, field: Any, name: str, column: str) -> Any:
    """Return the field with the plain type that its extension type means."""
    noted = {k: v for k, v in (field.metadata or {}).items() if k not in (_NAME, _METADATA)}
    stored = field.with_type(_stored_type(pa, field)).with_metadata(noted or None)
    if name == _UUID:
        return uuid_field(stored)
    if name == "arrow.bool8":
        return stored.with_type(pa.bool_())
    if name == "arrow.fixed_shape_tensor":
        kind = stored.type.value_field
        for size in reversed(_tensor_form(field)[0]):
            kind = pa.list_(kind, size)
        return plain_field(stored.with_type(kind), column)
    if name in _ARRAYS and (sizes := _sizes_of_array(field)) is not None:
        kind = stored.type
        for _ in sizes:
            kind = kind.value_type
        for size in reversed(sizes):
            kind = pa.list_(kind, size)
        return stored.with_type(kind)
    if name in _AS_STORED or name in _ARRAYS:
        return plain_field(stored, column)
    shown = field.type if name == "arrow.opaque" else name
    raise refusal(column, f"the extension type {shown}", _HINTS.get(name, _HINT_STORAGE))


def _tensor_form(field: Any) -> tuple[list[int], list[int]]:
    """Return the shape of a tensor, and the position in memory of each dimension."""
    noted = json.loads((field.metadata or {}).get(_METADATA) or b"{}")
    shape = list(getattr(field.type, "shape", None) or noted.get("shape") or [])
    order = getattr(field.type, "permutation", None) or noted.get("permutation")
    order = list(range(len(shape))) if order is None else list(order)
    return [shape[axis] for axis in order], order


def _sizes_of_array(field: Any) -> list[int] | None:
    """Return the shape of an array of `datasets`; None if its first dimension may differ."""
    noted = json.loads((field.metadata or {}).get(_METADATA) or b"[[]]")
    sizes = noted[0] if isinstance(noted, list) and noted else []
    known = bool(sizes) and all(isinstance(size, int) for size in sizes)
    return list(sizes) if known else None


def _arrays(pa: Any, field: Any, stored: Any) -> Any:
    """Return arrays of `datasets` as lists of fixed sizes.

    Raises:
        ValueError: An array has another shape.
    """
    from pyarrow import compute

    if (sizes := _sizes_of_array(field)) is None:
        return _as_stored(pa, field, stored)
    values, counts = stored, []
    for size in sizes:
        there = values.drop_null() if values is stored else values
        lengths = compute.list_value_length(there).to_numpy(zero_copy_only=False)
        if there.null_count or (lengths != size).any():
            raise ValueError(f"an array of {field.name!r} is not of the shape {sizes}")
        counts.append(len(there))
        values = there.flatten()
    for size, count in zip(reversed(sizes), reversed(counts), strict=True):
        kind = pa.list_(values.type, size)
        values = pa.Array.from_buffers(kind, count, [None], children=[values])
    if not stored.null_count:
        return values
    valid = stored.is_valid().to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _as_stored(pa: Any, field: Any, stored: Any) -> Any:
    return plain_array(pa.field(field.name, stored.type), stored)


def _truths(pa: Any, field: Any, stored: Any) -> Any:
    from pyarrow import compute

    return compute.not_equal(stored, pa.scalar(0, stored.type))


def _tensors(pa: Any, field: Any, stored: Any) -> Any:
    """Return tensors as nested lists in the order of their dimensions, not of memory."""
    shape, order = _tensor_form(field)
    size, n = stored.type.list_size, len(stored)
    values = stored.values.slice(stored.offset * size, n * size)
    if order != sorted(order):
        in_memory = [shape[order.index(axis)] for axis in range(len(shape))]
        one = np.arange(size).reshape(in_memory).transpose(order).reshape(-1)
        values = values.take(pa.array((np.arange(n)[:, None] * size + one).reshape(-1)))
    for axis in reversed(range(len(shape))):
        count = n * int(np.prod(shape[:axis], dtype=np.int64))
        valid = _marks(pa, stored) if axis == 0 else None
        kind = pa.list_(values.type, shape[axis])
        values = pa.Array.from_buffers(kind, count, [valid], children=[values])
    return plain_array(pa.field(field.name, values.type), values)


_EXTENSIONS: Final[Mapping[str, Callable[[Any, Any, Any], Any]]] = {
    _UUID: lambda _, __, stored: stored,
    "arrow.bool8": _truths,
    "arrow.fixed_shape_tensor": _tensors,
    **dict.fromkeys(_ARRAYS, _arrays),
}


def _marks(pa: Any, array: Any) -> Any:
    """Return the validity buffer of an array; None if it has no nulls."""
    return array.is_valid().buffers()[1] if array.null_count else None


def _decoded_runs(pa: Any, field: Any, array: Any) -> Any:
    ends = array.run_ends.to_numpy()
    at = np.arange(array.offset, array.offset + len(array))
    values = plain_array(pa.field(field.name, array.type.value_type), array.values)
    return values.take(pa.array(np.searchsorted(ends, at, side="right")))


def _plain_lists(pa: Any, array: Any) -> Any:
    """Return lists, also of the entries of maps, as large lists of plain values."""
    if pa.types.is_map(array.type):
        lengths, values = _map_entries(pa, array)
    else:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = plain_array(
            array.type.value_field, array.flatten()
        )  # without the values in null lists
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    buffers = [_marks(pa, array), pa.py_buffer(offsets)]
    kind = pa.large_list(values.type)
    return pa.Array.from_buffers(kind, len(array), buffers, children=[values])


def _map_entries(pa: Any, array: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """Return the number of entries of each map, and all entries as structs of key and value."""
    n, kind = len(array), array.type
    bounds = (
        np.frombuffer(array.buffers()[1], np.int32, n + 1, array.offset * 4)
        if n
        else np.zeros(1, np.int32)
    )
    lengths = np.diff(bounds).astype(np.int64)
    lengths[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    before = np.cumsum(lengths) - lengths
    at = pa.array(np.arange(int(lengths.sum())) + np.repeat(bounds[:-1] - before, lengths))
    pairs = ((kind.key_field, array.keys), (kind.item_field, array.items))
    parts = [plain_array(field, values).take(at) for field, values in pairs]
    return lengths, pa.StructArray.from_arrays(parts, ["keys", "values"])


def _plain_fixed_lists(pa: Any, array: Any) -> Any:
    size, n = array.type.list_size, len(array)
    values = array.values.slice(array.offset * size, n * size)
    values = plain_array(array.type.value_field, values)
    kind = pa.list_(values.type, size)
    return pa.Array.from_buffers(kind, n, [_marks(pa, array)], children=[values])
