"""What one schema has and another has not, in a few words.

two schemas -> **difference** -> the error of a file, or of rows, that do not fit
"""

from __future__ import annotations

from typing import Final

from ignitetf.wire.schema import Field, Schema

__all__ = ["difference"]

_TOLD: Final = 3


def difference(found: Schema, wanted: Schema) -> str:
    """Return how the fields of a schema differ from those that are wanted; the first ones."""
    mine, theirs = {f.name: f for f in found.fields}, {f.name: f for f in wanted.fields}
    told = [] if found.key == wanted.key else [_other("the key", found.key, wanted.key)]
    told += [f"no {name}" for name in theirs if name not in mine]
    told += [f"{name} more" for name in mine if name not in theirs]
    told += [
        _other(name, field, theirs[name])
        for name, field in mine.items()
        if name in theirs and _form(field) != _form(theirs[name])
    ]
    if not told:
        told = [
            f"nulls in {name}"
            for name, field in mine.items()
            if field.nullable and not theirs[name].nullable
        ] or ["another order of fields"]
    more = f", and {len(told) - _TOLD:,} more" if len(told) > _TOLD else ""
    return ", ".join(told[:_TOLD]) + more


def _other(name: str, found: Field, wanted: Field) -> str:
    return f"{name} is {_form(found)} instead of {_form(wanted)}"


def _form(field: Field) -> str:
    """Return type, dtype where the type does not tell it, and shape."""
    kind = field.type.name.lower()
    if field.dtype.kind == "u":
        kind = f"{kind} of {field.dtype}"
    sizes = ", ".join("?" if n is None else str(n) for n in field.shape)
    return f"{kind} [{sizes}]" if field.shape else kind
