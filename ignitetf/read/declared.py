"""`schema=`: what the user declares about the fields, joined with what is stored.

A declaration is a mapping of field names to dtypes, `(dtype, shape)` pairs, `tf.TensorSpec`s
(anything with `dtype` and `shape`) or `Field`s; or a whole `Schema`; or such a mapping under
`val`, with the key's under `key`. The fields it names are the ones that are read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.codes import ARRAY_ELEMENT, FIXED_DTYPE, TypeCode
from ignitetf.wire.schema import BYTES, Field, Schema, Shape, field_for

__all__ = ["Declaration", "choose_fields", "declared_schema", "parse_declaration"]

_RAGGED_LISTS = (TypeCode.OBJECT_ARRAY, TypeCode.COLLECTION)


class Declaration:
    """A parsed `schema=`: the key's form and the fields' forms, by name."""

    def __init__(
        self,
        key: tuple[np.dtype[Any], Shape] | None,
        fields: Mapping[str, Field | tuple[np.dtype[Any], Shape]],
        plain: bool,
    ) -> None:
        self.key = key
        self.fields = dict(fields)
        self.plain = plain


def parse_declaration(schema: Any) -> Declaration | Schema:
    """A user's `schema=` in one form; raises ConfigError when it is unusable."""
    if isinstance(schema, Schema):
        return schema
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigError(
            "schema= must map field names to dtypes, (dtype, shape) pairs or tf.TensorSpecs"
        )
    key, fields = None, schema
    if "val" in schema and set(schema) <= {"key", "val"}:
        key = _form("key", schema["key"]) if "key" in schema else None
        fields = schema["val"]
        if not isinstance(fields, Mapping):
            return Declaration(key, {"val": _form("val", fields)}, plain=True)
    parsed = {str(n): s if isinstance(s, Field) else _form(str(n), s) for n, s in fields.items()}
    return Declaration(key, parsed, plain=False)


def declared_schema(declaration: Declaration) -> Schema:
    """The schema of an empty cache, from the declaration alone."""
    fields = tuple(
        item if isinstance(item, Field) else _new_field(name, *item)
        for name, item in sorted(declaration.fields.items())
    )
    key = _new_field("key", *(declaration.key or (np.dtype("<i8"), ())))
    return Schema(None if declaration.plain else "", key, fields)


def merge(declaration: Declaration, found: Schema) -> Schema:
    """The stored fields in the declared form; raises SchemaError where they do not go together."""
    if declaration.plain != (found.type_name is None):
        stored = "plain values" if found.type_name is None else "objects"
        raise SchemaError(f"the cache holds {stored}, which schema= does not describe")
    chosen = choose_fields(found, list(declaration.fields))
    fields = tuple(
        item if isinstance(item, Field) else _reform(stored, *item)
        for stored, item in zip(chosen, declaration.fields.values(), strict=True)
    )
    key = _reform(found.key, *declaration.key) if declaration.key is not None else found.key
    return replace(found, key=key, fields=fields)


def choose_fields(schema: Schema, names: Sequence[str] | None) -> tuple[Field, ...]:
    """The fields of these names; raises SchemaError, with the nearest names, for an unknown one."""
    if names is None:
        return schema.fields
    if isinstance(names, str):
        raise ConfigError("fields= must be a list of names", hint=f"write fields=[{names!r}]")
    return tuple(_find(schema, name) for name in names)


def _find(schema: Schema, name: str) -> Field:
    try:
        return schema[name]
    except KeyError:
        raise unknown_field(name, schema.names) from None


def unknown_field(name: str, names: Iterable[str]) -> SchemaError:
    """The error for a field that does not exist."""
    known = list(names)
    near = difflib.get_close_matches(name.upper(), [n.upper() for n in known], 1)
    meant = [n for n in known if n.upper() in near]
    hint = f"did you mean {meant[0]!r}?" if meant else f"the fields are {', '.join(known)}"
    return SchemaError(f"no field {name!r}", hint=hint, field=name)


def _form(name: str, spec: Any) -> tuple[np.dtype[Any], Shape]:
    shape: Any = ()
    if hasattr(spec, "dtype") and hasattr(spec, "shape") and not isinstance(spec, np.dtype):
        shape = spec.shape.as_list() if hasattr(spec.shape, "as_list") else spec.shape
        spec = spec.dtype
    elif isinstance(spec, tuple) and len(spec) == 2:
        spec, shape = spec
    spec = getattr(spec, "as_numpy_dtype", spec)
    if spec in (bytes, str, object, "string", "bytes"):
        dtype = BYTES
    else:
        try:
            dtype = np.dtype(spec)
        except TypeError as error:
            raise ConfigError(f"schema: field {name!r}: {spec!r} is no dtype") from error
    try:
        dims = tuple(None if n is None else int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"schema: field {name!r}: {shape!r} is no shape") from error
    if None in dims[1:]:
        raise ConfigError(
            f"schema: field {name!r}: only the first dimension may differ between records"
        )
    return (BYTES if dtype.kind in "OSU" else dtype), dims


def _new_field(name: str, dtype: np.dtype[Any], shape: Shape) -> Field:
    return field_for(name, dtype, shape, nullable=True)


def _reform(stored: Field, dtype: np.dtype[Any], shape: Shape) -> Field:
    """The stored field with a declared dtype and shape."""
    stored_dtype = _stored_dtype(stored)
    if stored_dtype is not None and dtype != BYTES and not _same_width(stored_dtype, dtype):
        raise SchemaError(
            f"field {stored.name!r} is stored as {stored.type.name}, schema= says {dtype.name}",
            hint="declare the stored type, and convert with Dataset.map",
            field=stored.name,
        )
    texts = (TypeCode.STRING, TypeCode.BYTE_ARRAY, TypeCode.UUID, TypeCode.DECIMAL)
    if dtype == BYTES and stored_dtype is not None and stored.type not in texts:
        raise SchemaError(
            f"field {stored.name!r} is stored as {stored.type.name}, schema= says string",
            field=stored.name,
        )
    scalar = stored.type not in ARRAY_ELEMENT and not stored.shape
    if scalar and shape and stored.type != TypeCode.UUID:
        raise SchemaError(
            f"field {stored.name!r} is one {stored.type.name}, schema= says shape {list(shape)}",
            field=stored.name,
        )
    return replace(stored, dtype=dtype, shape=shape)


def _stored_dtype(stored: Field) -> np.dtype[Any] | None:
    if stored.type in ARRAY_ELEMENT:
        return ARRAY_ELEMENT[stored.type]
    if stored.type in (TypeCode.DATE, TypeCode.TIME, TypeCode.TIMESTAMP):
        return np.dtype("<i8")
    if stored.type in (TypeCode.ENUM, TypeCode.BINARY_ENUM):
        return np.dtype("<i4")
    if stored.type == TypeCode.UUID:
        return np.dtype("<u8")
    if stored.type == TypeCode.DECIMAL:
        return np.dtype("<f8")
    if stored.type in _RAGGED_LISTS:
        return None
    return FIXED_DTYPE.get(stored.type)


def _same_width(stored: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    kinds = {"i": "iu", "u": "iu", "f": "f", "b": "b"}
    return declared.itemsize == stored.itemsize and declared.kind in kinds.get(stored.kind, "")
