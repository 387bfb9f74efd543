"""`schema=`: combines what the user declares about the fields with what is stored.

A declaration is a mapping of field names to dtypes, `(dtype, shape)` pairs, `tf.TensorSpec`s
(anything with `dtype` and `shape`) or `Field`s; `datetime64[us]` or `[ms]` sets the unit of a
timestamp. It can also be a whole `Schema`, or such a mapping under `val`, with the declaration of
the key under `key`, where `stored` takes the bytes that are stored, whatever they mean. Only the
fields it names are read; with None under `val`, all are, as they are stored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import (
    ARRAY_ELEMENT,
    DATA_TYPES,
    LIST_ELEMENT,
    TIME_UNIT,
    Family,
    family_of,
    types_of,
)
from ignitetf.wire.infer import STORED_KEY, Evidence
from ignitetf.wire.schema import BYTES, Field, Schema, Shape, field_for
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "KEY_AS_STORED",
    "Declaration",
    "check_names",
    "choose_fields",
    "declared_schema",
    "merge",
    "parse_declaration",
    "seen_names",
    "with_unseen",
]

# What is declared of a field: the field itself, or its dtype and shape.
Form = Field | tuple[np.dtype[Any], Shape]

_ENUMS = types_of(Family.ENUM)
# What is declared of a key that is read as the bytes that are stored; and that alone.
_STORED: Final = "stored"
KEY_AS_STORED: Final = {"key": _STORED, "val": None}


class Declaration:
    """A parsed `schema=`.

    Attributes:
        key: The declared key; None leaves it as it is stored.
        fields: The declared fields by name.
        plain: Whether values are no objects; there is one field then.
        every: Whether nothing is declared of the values: all fields are as they are stored.
    """

    def __init__(self, key: Form | None, fields: Mapping[str, Form] | None, plain: bool) -> None:
        self.key = key
        self.fields = dict(fields or {})
        self.plain = plain
        self.every = fields is None


def parse_declaration(schema: Any) -> Declaration:
    """Parse a user's `schema=`; raises ConfigError if it is unusable."""
    if isinstance(schema, Schema):
        plain = schema.type_name is None
        return Declaration(schema.key, {f.name: f for f in schema.fields}, plain)
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigError(
            "schema= must map field names to dtypes, (dtype, shape) pairs or tf.TensorSpecs"
        )
    key, fields = None, schema
    if "val" in schema and set(schema) <= {"key", "val"}:
        key = _key_form(schema["key"]) if "key" in schema else None
        fields = schema["val"]
        if fields is None:
            return Declaration(key, None, plain=False)
        if not isinstance(fields, Mapping):
            return Declaration(key, {"val": _form("val", fields)}, plain=True)
    return Declaration(key, {str(n): _form(str(n), s) for n, s in fields.items()}, plain=False)


def declared_schema(declaration: Declaration) -> Schema:
    """Return the schema of an empty cache, from the declaration alone."""
    fields = tuple(_declared_field(n, form) for n, form in sorted(declaration.fields.items()))
    key = _declared_field("key", declaration.key or (np.dtype("<i8"), ()))
    return Schema(None if declaration.plain else "", key, fields)


def merge(declaration: Declaration, found: Schema) -> Schema:
    """Return the stored fields in their declared form; raises SchemaError if these conflict."""
    key = found.key if declaration.key is None else _key_in_form(found.key, declaration.key)
    if declaration.every:
        return replace(found, key=key)
    if declaration.plain != (found.type_name is None):
        stored = "plain values" if found.type_name is None else "objects"
        raise SchemaError(f"the cache holds {stored}, which schema= does not describe")
    chosen = choose_fields(found, list(declaration.fields))
    fields = tuple(
        _in_form(stored, form)
        for stored, form in zip(chosen, declaration.fields.values(), strict=True)
    )
    return replace(found, key=key, fields=fields)


def check_names(
    names: Sequence[str],
    value: Evidence,
    registry: TypeRegistry,
    columns: Iterable[str] | None = None,
) -> None:
    """Raise SchemaError, with the nearest names, for a name that no type of the values has.

    Where the columns of a table are given, these are all the names.
    """
    if not value.types:
        return
    known = set(value.inside if columns is None else columns)
    for type_id in value.types if columns is None else ():
        kind = registry.find(type_id)
        known |= set() if kind is None else set(kind.ids)
    for name in names:
        if name not in known:
            raise unknown_field(name, sorted(known))
        # The type has this field, but none of the sampled records do.
        value.child(name).null = True


def with_unseen(declaration: Declaration, found: Schema, value: Evidence) -> Schema:
    """Return the schema extended by declared fields of which only nulls were seen."""
    if declaration.plain or not value.types:
        return found
    names = sorted(set(declaration.fields) - set(seen_names(declaration, value) or ()))
    fields = tuple(_declared_field(n, declaration.fields[n]) for n in names)
    return replace(found, fields=(*found.fields, *fields))


def seen_names(declaration: Declaration, value: Evidence) -> list[str] | None:
    """Return the declared fields of which any value was seen; None for plain values."""
    if declaration.plain:
        return None
    nothing = {n for n, seen in value.inside.items() if not (seen.codes or seen.unreadable)}
    return [name for name in declaration.fields if name not in nothing]


def choose_fields(schema: Schema, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the named fields; raises SchemaError, with the nearest names, for an unknown one."""
    if names is None:
        return schema.fields
    if isinstance(names, str):
        raise ConfigError("fields= must be a list of names", hint=f"write fields=[{names!r}]")
    return tuple(_find(schema, name) for name in names)


def _key_in_form(stored: Field, form: Form) -> Field:
    """Return the stored key in a declared form; any key can be read as it is stored."""
    as_it_is = isinstance(form, Field) and form.type is TypeCode.WRAPPED
    return STORED_KEY if as_it_is else _in_form(stored, form)


def _find(schema: Schema, name: str) -> Field:
    try:
        return schema[name]
    except KeyError:
        raise unknown_field(name, schema.names) from None


def unknown_field(name: str, names: Iterable[str]) -> SchemaError:
    """Return the error for a field that does not exist."""
    known = list(names)
    near = difflib.get_close_matches(name.upper(), [n.upper() for n in known], 1)
    meant = [n for n in known if n.upper() in near]
    hint = f"did you mean {meant[0]!r}?" if meant else f"the fields are {', '.join(known)}"
    return SchemaError(f"no field {name!r}", hint=hint, field=name)


def _key_form(spec: Any) -> Form:
    return STORED_KEY if isinstance(spec, str) and spec == _STORED else _form("key", spec)


def _form(name: str, spec: Any) -> Form:
    if isinstance(spec, Field):
        return spec
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
            raise ConfigError(f"schema: field {name!r}: {spec!r} is not a dtype") from error
    try:
        dims = tuple(None if n is None else int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"schema: field {name!r}: {shape!r} is not a shape") from error
    if None in dims[1:]:
        raise ConfigError(
            f"schema: field {name!r}: only the first dimension may differ between records"
        )
    if any(n is not None and n < 0 for n in dims) or (None in dims and 0 in dims):
        raise ConfigError(f"schema: field {name!r}: {list(dims)} is not a shape")
    return (BYTES if dtype.kind in "OSU" else dtype), dims


def _declared_field(name: str, form: Form) -> Field:
    """Return the field of a declaration if nothing stored tells its type."""
    if isinstance(form, Field):
        return _in_form(form, form)
    dtype, shape = form
    if dtype.kind == "M":
        stored = Field(name, TypeCode.TIMESTAMP, np.dtype("<i8"), (), True)
        return _reform(stored, dtype, shape)
    return field_for(name, dtype, shape, nullable=True)


def _in_form(stored: Field, form: Form) -> Field:
    """Return the stored field as declared; raises SchemaError if the two do not match."""
    if not isinstance(form, Field):
        return _reform(stored, *form)
    if form.type != stored.type and not {form.type, stored.type} <= _ENUMS:
        raise _contradiction(stored, form.type.name)
    if form.fields and stored.fields:
        inner = {f.name: f for f in stored.fields}
        if missing := [f.name for f in form.fields if f.name not in inner]:
            raise unknown_field(missing[0], list(inner))
        return replace(form, fields=tuple(_in_form(inner[f.name], f) for f in form.fields))
    if stored.fields:
        return stored
    return replace(_reform(stored, form.dtype, form.shape), nullable=form.nullable)


def _reform(stored: Field, dtype: np.dtype[Any], shape: Shape) -> Field:
    """Return the stored field with a declared dtype and shape."""
    declared = "string" if dtype == BYTES else dtype.name
    if shape:
        declared += f" {list(shape)}"
    if stored.type in ARRAY_ELEMENT:
        blob = stored.type == TypeCode.BYTE_ARRAY and dtype == BYTES and not shape
        if not blob and not (shape and _same_width(ARRAY_ELEMENT[stored.type], dtype)):
            raise _contradiction(stored, declared)
        return replace(stored, dtype=dtype, shape=shape)
    if family_of(stored.type) in (Family.OBJECT, Family.MAP):
        raise _contradiction(
            stored, declared, "leave schema= out to read it as it is stored, or pass a Field"
        )
    if (element := _element_of(stored)) is not None:
        if len(shape) != 1:
            raise _contradiction(stored, declared)
        try:
            item = _reform(element, dtype, ())
        except SchemaError as error:
            raise _contradiction(stored, declared) from error
        return replace(stored, dtype=item.dtype, shape=shape, fields=(item,))
    if stored.type == TypeCode.UUID and shape == (2,) and dtype == np.dtype("u8"):
        return replace(stored, dtype=dtype, shape=shape)
    if shape or not _scalar_fits(stored.type, dtype):
        raise _contradiction(stored, declared)
    if dtype.kind == "M":
        # int64 stands for the type's own time unit.
        plain = np.datetime_data(dtype)[0] == TIME_UNIT[stored.type]
        dtype = np.dtype("<i8") if plain else dtype
    return replace(stored, dtype=dtype, shape=())


def _scalar_fits(code: TypeCode, dtype: np.dtype[Any]) -> bool:
    """Whether scalars of a type can be read as a dtype without changing their bits."""
    row = DATA_TYPES[code]
    if dtype.kind == "M":
        return np.datetime_data(dtype) in [(unit, 1) for unit in row.units]
    if row.value is None or dtype == row.value:
        return row.value is not None
    if row.family is Family.DECIMAL:
        return dtype == np.dtype("f8")
    return row.family is not Family.TIMESTAMP and _same_width(row.value, dtype)


def _element_of(stored: Field) -> Field | None:
    """Return the field of a list's elements; None if it is not a list."""
    if stored.fields:
        return stored.fields[0]
    if (code := LIST_ELEMENT.get(stored.type)) is not None:
        return Field("item", code, stored.dtype, (), True)
    if family_of(stored.type) is Family.LIST:
        raise SchemaError(
            f"field {stored.name!r}: schema= does not say what its elements are",
            hint="pass a Field with the field of the elements",
            field=stored.name,
        )
    return None


def _same_width(stored: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    kinds = {"i": "iu", "u": "iu", "f": "f", "b": "b"}
    return declared.itemsize == stored.itemsize and declared.kind in kinds.get(stored.kind, "")


def _contradiction(stored: Field, declared: str, hint: str | None = None) -> SchemaError:
    own = stored.type.name + (f" {list(stored.shape)}" if stored.shape else "")
    return SchemaError(
        f"field {stored.name!r} is stored as {own}, schema= says {declared}",
        hint=hint or "declare the stored type, and convert with Dataset.map",
        field=stored.name,
    )
