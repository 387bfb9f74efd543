"""Whether components have the same fields, so that their rows make one batch.

schemas of the components -> **mix fields** -> mixture
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any, Final

from ignitetf.errors import SchemaError
from ignitetf.read.leaves import Node, Text
from ignitetf.read.rows import EpochRows
from ignitetf.wire.datatypes import family_of
from ignitetf.wire.schema import BYTES, Field

__all__ = ["check_fields", "tell_classes"]

_LABEL: Final = "LABEL"


def check_fields(components: Mapping[str, EpochRows], with_keys: bool) -> None:
    """Raise SchemaError unless all components have the same fields.

    Args:
        components: Rows by name.
        with_keys: Whether keys have to be of one type, too.
    """
    (first, rows), *others = components.items()
    for name, other in others:
        if rows.plain != other.plain:
            objects, plain = (first, name) if other.plain else (name, first)
            raise SchemaError(
                f"component {objects!r} has objects with fields, {plain!r} plain values",
                hint="mix data sets of one kind",
            )
        if with_keys and _form(rows.key, rows.reader.schema.key) != _form(
            other.key, other.reader.schema.key
        ):
            raise SchemaError(
                f"keys are {_text(rows.reader.schema.key)} in component {first!r},"
                f" {_text(other.reader.schema.key)} in {name!r}",
                hint="keys=False leaves the keys out",
            )
        _check_values(components, first, name)


def tell_classes(components: Mapping[str, EpochRows]) -> None:
    """Warn if a number of a class means different ones in two components."""
    named = {
        name: rows.class_names
        for name, rows in components.items()
        if rows.class_names and _LABEL in rows.values
    }
    for (one, names), (other, others) in itertools.combinations(named.items(), 2):
        for number, (mine, theirs) in enumerate(zip(names, others, strict=False)):
            if mine != theirs:
                warnings.warn(
                    f"{_LABEL} {number} is {mine!r} in component {one!r}, {theirs!r} in {other!r};"
                    " loading them into one data set with if_exists='append' numbers classes alike",
                    stacklevel=3,
                )
                return


def _check_values(components: Mapping[str, EpochRows], first: str, second: str) -> None:
    one, two = _fields(components[first]), _fields(components[second])
    for name in sorted(one.keys() ^ two.keys()):
        has, lacks = (first, second) if name in one else (second, first)
        raise SchemaError(
            f"component {has!r} has the field {name!r}, {lacks!r} does not",
            hint=_shared(components),
            field=name,
        )
    for name, (form, text) in one.items():
        if form != two[name][0]:
            raise SchemaError(
                f"field {name!r} is {text} in component {first!r}, {two[name][1]} in {second!r}",
                hint=_shared(components),
                field=name,
            )


def _shared(components: Mapping[str, EpochRows]) -> str:
    """Return the hint which fields all components share."""
    first, *others = map(_fields, components.values())
    names = [
        name
        for name, (form, _) in first.items()
        if all(name in other and other[name][0] == form for other in others)
    ]
    if not names:
        return "they share no field"
    return f"open the components with fields={names!r}, which they share"


def _fields(rows: EpochRows) -> dict[str, tuple[Any, str]]:
    """Return the form of each value field, and how an error tells it."""
    stored = {field.name: field for field in rows.reader.schema.fields}
    return {
        name: (_form(node, stored[name]), _text(stored[name]))
        if name in stored
        else (node, "a mask of nulls")
        for name, node in rows.values.items()
    }


def _form(node: Node, field: Field) -> Any:
    """Return what has to be equal for columns to be joined."""
    if isinstance(node, Text):
        return node
    inner = tuple((part.name, part.dtype) for part in field.fields)
    return node, field.dtype, family_of(field.type), inner


def _text(field: Field) -> str:
    """Return type and shape of a field for an error."""
    if field.fields:
        return f"an object with {', '.join(part.name for part in field.fields)}"
    kind = "bytes" if field.dtype == BYTES else str(field.dtype)
    shape = ", ".join("?" if size is None else str(size) for size in field.shape)
    found = f"{field.type.name.lower()} of {kind}"
    return f"{found} [{shape}]" if field.shape else found
