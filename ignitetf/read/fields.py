"""The fields of a cache: declared by the user, or inferred from sampled rows and its SQL table.

selection, system views -> **fields** -> schema -> reader

Without a manifest, the fields are inferred from the first pages of some partitions. If the cache
has a SQL table, the table's columns are the fields. Stored objects alone are not enough: they keep
the values of a dropped column, and lack a column that was added or has been NULL so far.

A declaration (`schema=`) is a mapping of field names to dtypes, `(dtype, shape)` pairs,
`tf.TensorSpec`s (anything with `dtype` and `shape`) or `Field`s; `datetime64[us]` or `[ms]` sets the
unit of a timestamp. It can also be a whole `Schema`. Or it is a mapping with such a declaration of
the values under `val` and the declaration of the key under `key`. `stored` under `key` reads the
stored bytes of keys of any type. Only the declared fields are read. With None under `val`, all
fields are read as they are stored.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError, SchemaError, ServerError, SqlUnavailable
from ignitetf.net.binary_types import with_types
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.failures import READ, Backoff
from ignitetf.read.keys import key_of
from ignitetf.read.options import ReadOptions
from ignitetf.read.selection import Selection
from ignitetf.spelling import did_you_mean
from ignitetf.sql import statement
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.datatypes import (
    ARRAY_ELEMENT,
    DATA_TYPES,
    LIST_ELEMENT,
    TIME_UNIT,
    Family,
    family_of,
    types_of,
)
from ignitetf.wire.frames import Page, read_first_page, read_first_sql_page
from ignitetf.wire.infer import (
    STORED_KEY,
    Evidence,
    Where,
    field_of,
    infer_schema,
    key_column,
    observe_page,
)
from ignitetf.wire.requests import cursor_request, scan_request, scan_requests
from ignitetf.wire.schema import BYTES, Field, Schema, Shape, field_for
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "KEY_AS_STORED",
    "Sample",
    "Sampler",
    "check_names",
    "choose_fields",
    "merge",
    "parse_declaration",
]

log = logging.getLogger(__name__)

_PARTITIONS: Final = 64
_ENTRIES: Final = 64  # of a page
_ROWS: Final = 4096
_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Sample:
    """The result of sampling a cache.

    Attributes:
        schema: Schema of the records. With a declaration: only the declared fields that were seen.
        entry_bytes: Average stored bytes of a record; 0 for an empty cache.
        left_out: Fields that cannot be read, and why; empty unless `skip_unreadable` is set.
    """

    schema: Schema
    entry_bytes: float = 0.0
    left_out: dict[str, SchemaError] = field(default_factory=dict)


class Sampler:
    """Reads records of a cache to learn its schema.

    Args:
        client: The connection.
        name: Name of the data set, for messages.
        cache: Name of the cache.
        options: The options of reading.
        registry: Receives the binary types that the records have.
        selection: The SQL table and condition, if there are any.
        retry_s: Time limit in seconds for replacing a lost connection.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        cache: str,
        options: ReadOptions,
        registry: TypeRegistry,
        selection: Selection | None,
        retry_s: float,
    ) -> None:
        self._client = client
        self._name = name
        self._cache = cache
        self._options = options
        self._registry = registry
        self._selection = selection
        self._retry_s = retry_s
        self._bytes = self._rows = 0

    def sample(self, partition_count: int, declared: _Declaration | None) -> Sample:
        """Return the schema seen in the first pages of some partitions.

        If these partitions have very few entries, the whole cache is scanned afterwards.

        Raises:
            SchemaError: The cache is empty or ambiguous and nothing is declared.
        """
        if declared is not None and declared.every:
            declared = None
        key, value = Evidence(), Evidence()
        partitions = _spread_out(partition_count, _PARTITIONS)
        parts, whole = self._requests(self._options.page_size or _ENTRIES, partitions)
        self._observe(parts, partitions, key, value)
        if self._rows < _ROWS // 4 and len(partitions) < partition_count:
            self._observe([whole], [-1], key, value)
        only: Sequence[str] | None = self._options.fields
        if declared is not None:
            only = None if declared.plain else list(declared.fields)
        table = _table_fields(self._client, self._cache, self._selection)
        if self._rows == 0:
            return Sample(self._empty(declared, table))
        if table is not None:
            table.complete(key, value, only or ())
        if only is not None and not isinstance(only, str):
            columns = None if table is None else table.names
            check_names(only, value, self._registry, columns)
        if declared is not None:
            only = _seen_names(declared, value)
        left_out: dict[str, SchemaError] = {}
        ignored = left_out if self._options.skip_unreadable else None
        try:
            found = infer_schema(key, value, self._registry, only, ignored)
        except SchemaError as error:
            raise error.at(self._name, cache=self._name) from error
        if declared is not None:
            found = _with_unseen(declared, found, value)
        return Sample(found, self._bytes / self._rows, left_out)

    def _requests(self, page: int, partitions: Sequence[int]) -> tuple[list[bytes], bytes]:
        """Return the requests for some partitions, and the request for the whole cache."""
        if self._selection is not None:
            return self._selection.sample(page, partitions)
        cache = cache_id(self._cache)
        parts = [bytes(body) for body in scan_requests(cache, page, partitions)]
        return parts, scan_request(cache, page)

    def _observe(
        self, requests: Sequence[bytes], partitions: Sequence[int], key: Evidence, value: Evidence
    ) -> None:
        """Add first pages to the evidence until there are enough rows or bytes."""
        client, registry = self._client, self._registry
        self._bytes = self._rows = 0
        done, count = 0, 1
        while done < len(requests):
            part = requests[done : done + count]
            for number, page in enumerate(self._pages(part), done):
                if page.count == 0:
                    continue
                where = self._where(page, partitions[number])
                with_types(client, registry, observe_page, page, key, value, registry, where)
                self._rows += page.count
                self._bytes += page.data.nbytes
            if self._bytes > _BYTES or self._rows >= _ROWS:
                return
            done += len(part)
            each = max(1, self._bytes // done)
            count = int(max(1, min(4 * count, (_BYTES - self._bytes) // each)))

    def _pages(self, requests: Sequence[bytes]) -> list[Page]:
        """Return the first page of each request, and close the cursors."""
        op = OpCode.QUERY_SCAN if self._selection is None else OpCode.QUERY_SQL_FIELDS

        backoff = Backoff(READ)
        while True:
            try:
                with self._client.channel() as channel:
                    return _first_pages(channel, op, requests)
            except IgniteTFError as error:
                if (wait := backoff.wait_s(error, self._retry_s)) is None:
                    raise
                log.warning("%s: %s; retrying in %.1f s", self._name, error, wait)
                time.sleep(wait)

    def _where(self, page: Page, partition: int) -> Where:
        """Return a function that locates a record of this page, for an error about it."""

        def where(row: int) -> dict[str, Any]:
            facts: dict[str, Any] = {"cache": self._name}
            if partition >= 0:
                facts["partition"] = partition
            key = key_column(page, row, self._registry)
            return facts if key is None else {**facts, "key": key_of(key, 0)}

        return where

    def _empty(self, declared: _Declaration | None, table: _TableFields | None) -> Schema:
        if table is not None and (schema := table.schema()) is not None:
            return schema
        if declared is None:
            raise SchemaError(
                f"cache {self._name!r} is empty, so its fields are unknown",
                hint="pass schema={'FIELD': (dtype, shape), ...}, or load data first",
                cache=self._name,
            )
        return _declared_schema(declared)


def _first_pages(channel: Channel, op: OpCode, requests: Sequence[bytes]) -> list[Page]:
    """Return the first page of each query, and close the open cursors."""
    found: list[Page] = []
    errors: list[ServerError] = []
    cursors: list[bytes] = []
    for number in channel.send_all(op, requests):
        try:
            body = channel.receive(number)
        except ServerError as error:
            errors.append(error)
            continue
        if op == OpCode.QUERY_SCAN:
            cursor, page = read_first_page(body)
        else:
            cursor, _, page = read_first_sql_page(body)
        found.append(page)
        if page.more:
            cursors.append(cursor_request(cursor))
    for number in channel.send_all(OpCode.RESOURCE_CLOSE, cursors) if cursors else ():
        channel.receive(number)
    if errors:
        raise errors[0]
    return found


def _spread_out(count: int, most: int) -> list[int]:
    """Return at most `most` partitions, evenly spread."""
    if count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]


# Type code by Java class of a column. A SQL DATE has the same milliseconds as a java.util.Date.
_CODES: Final[Mapping[str, TypeCode]] = {
    **{row.java: row.code for row in DATA_TYPES.values() if row.java},
    "java.sql.Date": TypeCode.DATE,
}
# The end of a type name that CREATE TABLE has generated; only SQL writes objects of such a type.
_MADE_UP: Final = re.compile("(_[0-9a-f]{4,12}){5}$")


@dataclass(frozen=True)
class _TableFields:
    """The columns of a table.

    Attributes:
        values: Types of the value columns by name; None for a column of an unknown type.
        keys: Types of the key columns by name; None for a column of an unknown type.
        is_exact: True if CREATE TABLE made the table; then columns and fields have the same names.
            If a program made the table from its classes, column names are capitalized or different,
            and some fields may have no column.
        has_class: True if the objects may belong to a program's class (VALUE_TYPE), with fields
            that are not columns. Such fields are read only if they are named.
        key_is_plain: True if the key is not an object but the value of its only column.
        value_is_plain: True if the value is not an object but the value of its only column.
    """

    values: Mapping[str, TypeCode | None]
    keys: Mapping[str, TypeCode | None]
    is_exact: bool
    has_class: bool
    key_is_plain: bool
    value_is_plain: bool

    @property
    def names(self) -> Collection[str] | None:
        """The names of all fields of the values; None if there may be more fields."""
        return self.values if self.is_exact and not self.has_class else None

    def complete(self, key: Evidence, seen: Evidence, named: Collection[str]) -> None:
        """Make the fields in the evidence of objects match the columns: add missing, remove others.

        Args:
            key: Evidence of the keys. Before 2.17 a cluster does not report the key's columns.
            seen: Evidence of the values.
            named: Fields that the caller requested.
        """
        if seen.unreadable or seen.codes != {int(TypeCode.OBJECT)}:
            return
        if self.is_exact:
            kept = {*self.values, *(named if self.has_class else ())}
            for name in seen.inside.keys() - kept:
                del seen.inside[name]
        spelled = {name.upper(): name for name in seen.inside}
        for column, code in self.values.items():
            is_same = self.is_exact or column in seen.inside
            if (own := column if is_same else spelled.get(column)) is None or column in key.inside:
                continue
            found = seen.child(own)
            if not found.codes and not found.unreadable:
                found.null = True
                if code is not None:
                    found.codes.add(int(code))

    def schema(self) -> Schema | None:
        """Return the schema of an empty table; None if the columns do not determine it."""
        columns = {**self.keys, **self.values}
        if not self.is_exact or not self.keys or None in columns.values():
            return None
        keys = _fields(self.keys, nullable=False)
        key = Field("key", TypeCode.OBJECT, BYTES, (), False, tuple(keys))
        if self.key_is_plain:
            key = _fields({"key": self.keys[keys[0].name]}, nullable=False)[0]
        if self.value_is_plain:
            (code,) = self.values.values()
            return Schema(None, key, tuple(_fields({"val": code}, nullable=False)))
        return Schema("", key, tuple(_fields(self.values, nullable=True)))


def _fields(columns: Mapping[str, TypeCode | None], *, nullable: bool) -> list[Field]:
    return [
        field_of(name, code, nullable=nullable)
        for name, code in sorted(columns.items())
        if code is not None
    ]


def _table_fields(client: Client, cache: str, selection: Selection | None) -> _TableFields | None:
    """Return the columns of the table of a cache.

    Args:
        client: The connection.
        cache: Name of the cache.
        selection: Names the selected table; None if no table is selected.

    Returns:
        None if the cache has no table, or if it has several and none is selected.
    """
    try:
        rows = client.sql(statement("table_fields"), (cache,)).fetchall()
    except SqlUnavailable:
        return None
    if selection is not None:
        rows = [row for row in rows if row[:2] == (selection.table.schema, selection.table.name)]
    if len({row[:2] for row in rows}) != 1:
        return None
    _, _, key_alias, value_alias, value_type, is_exact = rows[0][:6]
    found: dict[bool, dict[str, TypeCode | None]] = {True: {}, False: {}}
    for name, java, is_key in (row[6:] for row in rows):
        found[bool(is_key)][name] = _CODES.get(java)
    return _TableFields(
        found[False],
        found[True],
        bool(is_exact),
        _MADE_UP.search(value_type) is None,
        key_alias is not None,
        value_alias is not None,
    )


# The declaration of a field: the field itself, or its dtype and shape.
Form = Field | tuple[np.dtype[Any], Shape]

_ENUMS = types_of(Family.ENUM)
# The declaration of a key that is read as its stored bytes, and a `schema=` with only this.
_STORED: Final = "stored"
KEY_AS_STORED: Final = {"key": _STORED, "val": None}


class _Declaration:
    """A parsed `schema=`.

    Attributes:
        key: The declared key; None reads it as it is stored.
        fields: The declared fields by name.
        plain: True if values are not objects; there is then one field.
        every: True if the values have no declaration, so that all fields are read as stored.
    """

    def __init__(self, key: Form | None, fields: Mapping[str, Form] | None, plain: bool) -> None:
        self.key = key
        self.fields = dict(fields or {})
        self.plain = plain
        self.every = fields is None


def parse_declaration(schema: Any) -> _Declaration:
    """Return the parsed `schema=` of a user; raises ConfigError if it is unusable."""
    if isinstance(schema, Schema):
        plain = schema.type_name is None
        return _Declaration(schema.key, {f.name: f for f in schema.fields}, plain)
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigError(
            "schema= must map field names to dtypes, (dtype, shape) pairs or tf.TensorSpecs"
        )
    key, fields = None, schema
    if "val" in schema and set(schema) <= {"key", "val"}:
        key = _key_form(schema["key"]) if "key" in schema else None
        fields = schema["val"]
        if fields is None:
            return _Declaration(key, None, plain=False)
        if not isinstance(fields, Mapping):
            return _Declaration(key, {"val": _form("val", fields)}, plain=True)
    return _Declaration(key, {str(n): _form(str(n), s) for n, s in fields.items()}, plain=False)


def _declared_schema(declaration: _Declaration) -> Schema:
    """Return the schema of an empty cache, from the declaration alone."""
    fields = tuple(_declared_field(n, form) for n, form in sorted(declaration.fields.items()))
    key = _declared_field("key", declaration.key or (np.dtype("<i8"), ()))
    return Schema(None if declaration.plain else "", key, fields)


def merge(declaration: _Declaration, found: Schema) -> Schema:
    """Return the stored fields in their declared form; raises SchemaError if the two conflict."""
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
    """Raise SchemaError, with similar names, for a name that no type of the values has.

    If the columns of a table are given, these are the only valid names.
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
        # The type has this field, but no sampled record does.
        value.child(name).null = True


def _with_unseen(declaration: _Declaration, found: Schema, value: Evidence) -> Schema:
    """Return the schema extended by the declared fields that had only nulls in the sample."""
    if declaration.plain or not value.types:
        return found
    names = sorted(set(declaration.fields) - set(_seen_names(declaration, value) or ()))
    fields = tuple(_declared_field(n, declaration.fields[n]) for n in names)
    return replace(found, fields=(*found.fields, *fields))


def _seen_names(declaration: _Declaration, value: Evidence) -> list[str] | None:
    """Return the declared fields that had a value in the sample; None for plain values."""
    if declaration.plain:
        return None
    nothing = {n for n, seen in value.inside.items() if not (seen.codes or seen.unreadable)}
    return [name for name in declaration.fields if name not in nothing]


def choose_fields(schema: Schema, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the named fields; raises SchemaError, with similar names, for an unknown one."""
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
    hint = did_you_mean(name, known, f"the fields are {', '.join(known)}", form=repr)
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
    """Return the field for a declaration when no stored value shows its type."""
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
        # A unit equal to the type's own time unit is read as plain int64.
        plain = np.datetime_data(dtype)[0] == TIME_UNIT[stored.type]
        dtype = np.dtype("<i8") if plain else dtype
    return replace(stored, dtype=dtype, shape=())


def _scalar_fits(code: TypeCode, dtype: np.dtype[Any]) -> bool:
    """Return True if scalars of a type can be read as a dtype without changing their bits."""
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
