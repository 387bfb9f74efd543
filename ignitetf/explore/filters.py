"""Conditions on single columns, written as texts: `LABEL:eq:3`, `SCORE:ge:0.5`.

text -> **filters** -> browse (as SQL with parameters, or on columns)

A value never becomes part of a statement's text, and a name only if the schema has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.selection import quoted
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, runs_of, values_of
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import Field, Schema

__all__ = ["Filter", "can_filter", "masked", "parse_filters"]

Op = Literal["eq", "ge", "gt", "le", "lt"]
_SQL: Final = {"eq": "=", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_SIGNS: Final = {"eq": "=", "ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NUMPY: Final = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
}
_MOST: Final = 16


@dataclass(frozen=True)
class Filter:
    """A condition on a column.

    Attributes:
        field: The column.
        op: The comparison operator.
        value: The value to compare with.
    """

    field: Field
    op: Op
    value: Any

    @property
    def text(self) -> str:
        """The condition as a text that `parse_filters` takes."""
        return f"{self.field.name}:{self.op}:{_text(self.value)}"

    @property
    def shown(self) -> str:
        """The condition for people."""
        value = f"{self.value:.6g}" if isinstance(self.value, float) else _text(self.value)
        return f"{self.field.name} {_SIGNS[self.op]} {value}"

    def sql(self, columns: frozenset[str]) -> str:
        """Return the condition with a `?` for the value.

        Args:
            columns: Names of the table's columns.

        Raises:
            ConfigError: The table does not have this one.
        """
        for name in (self.field.name, self.field.name.upper()):
            if name in columns:
                return f"{quoted(name)} {_SQL[self.op]} ?"
        raise ConfigError(f"the table has no column {self.field.name!r}")

    def mask(self, column: Column) -> NDArray[np.bool_]:
        """Return for each row whether it fits; a null never does."""
        if self.field.type is TypeCode.STRING:
            wanted = str(self.value).encode()
            found = np.array([text == wanted for text in runs_of(column).to_bytes()], bool)
        else:
            found = np.asarray(_NUMPY[self.op](values_of(column), self.value), bool)
        return found if column.valid is None else found & column.valid


def can_filter(field: Field) -> bool:
    """Return True if values of this field can be compared: numbers, booleans and texts."""
    if field.shape or field.fields:
        return False
    # SQL reads an unsigned number as the signed type that stores it.
    return field.type is TypeCode.STRING or (
        family_of(field.type) is Family.NUMBER and field.dtype.kind in "ifb"
    )


def parse_filters(schema: Schema, texts: Sequence[str]) -> tuple[Filter, ...]:
    """Return the conditions in texts.

    Raises:
        ConfigError: One is not usable for this schema.
    """
    if len(texts) > _MOST:
        raise ConfigError(f"{len(texts)} filters are too many", hint=f"{_MOST} at most")
    return tuple(_parse(schema, text) for text in texts)


def masked(filters: Sequence[Filter], batch: Batch) -> NDArray[np.intp]:
    """Return the numbers of the rows of a batch that fit all filters."""
    fits = np.ones(len(batch), bool)
    for one in filters:
        fits &= one.mask(batch.columns[one.field.name])
    return np.flatnonzero(fits)


def _parse(schema: Schema, text: str) -> Filter:
    name, _, rest = text.partition(":")
    op, _, given = rest.partition(":")
    if name not in schema.names:
        raise ConfigError(f"no field {name!r}", hint=f"fields: {', '.join(schema.names)}")
    field = schema[name]
    if op not in get_args(Op) or not can_filter(field):
        raise ConfigError(f"filter {text!r}", hint="click a bar of a histogram to make one")
    return Filter(field, op, _value(field, op, given))  # type: ignore[arg-type]


def _value(field: Field, op: str, given: str) -> Any:
    try:
        if field.type is TypeCode.STRING and op == "eq":
            return given
        if field.dtype.kind == "b" and op == "eq":
            return {"true": True, "false": False}[given]
        if field.dtype.kind == "i" and -(1 << 63) <= (whole := int(given)) < 1 << 63:
            return whole
        if field.dtype.kind == "f" and np.isfinite(real := float(given)):
            return real
    except (KeyError, ValueError):
        pass
    raise ConfigError(f"{field.name}: {given[:40]!r} is not a value to compare with")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
