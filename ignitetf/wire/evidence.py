"""`Evidence`: what was observed of each field in some pages, from which `infer` makes a schema.

meaning -> **evidence** -> infer -> schema

All records of the pages are examined, never just one. Values that cannot be read are noted with the
location of the first, and do not prevent the other fields from being examined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.datatypes import ARRAY_ELEMENT, Family, types_of
from ignitetf.wire.fields import field_positions, full_fields, headers
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import described, is_raw, meant
from ignitetf.wire.objects import Bytes, Positions, find_elements, find_rows, gather
from ignitetf.wire.types import BinaryType, TypeRegistry, unregistered_name

__all__ = ["Evidence", "Where", "observe_objects", "observe_page"]

_HOLD_OBJECTS: Final = types_of(Family.LIST, Family.MAP)
_FOREIGN: Final = types_of(Family.STAND_IN)
_ENUMS: Final = types_of(Family.ENUM)
_MAX_DEPTH: Final = 64
# More nested fields than this only arise from objects that refer to others over and over.
_MOST_FIELDS: Final = 2048
_MOST_CLASSES: Final = 8
# Position of the tag and the class id of an object in Java's own serialization.
_CLASS_AT: Final = range(5, 10)

# Maps a row number of the current page to the location of that record.
Where = Callable[[int], dict[str, Any]]


@dataclass
class Evidence:
    """What was observed of one field: type codes, nulls, lengths, and the same for nested fields.

    Attributes:
        codes: Type codes of the readable values.
        null: Whether any value was null or missing.
        lengths: Lengths of arrays; more than one means that they differ.
        types: Ids of binary types, those of enums as well.
        inside: Evidence of fields, of the `item` of a list, of `keys` and `values` of a map.
        unreadable: What cannot be read, and where the first such value is.
    """

    codes: set[int] = field(default_factory=set)
    null: bool = False
    lengths: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    inside: dict[str, Evidence] = field(default_factory=dict)
    unreadable: dict[str, dict[str, Any]] = field(default_factory=dict)

    def child(self, name: str) -> Evidence:
        """Return the evidence of a field, of a list's items, or of a map's keys or values."""
        return self.inside.setdefault(name, Evidence())


def observe_page(
    page: Page, key: Evidence, value: Evidence, registry: TypeRegistry, where: Where | None = None
) -> None:
    """Record all entries of a page.

    Raises:
        UnknownType: The registry lacks a type.
        UnknownClass: It lacks the name of an unreadable class.
    """
    rows = np.arange(page.count, dtype=np.int64)
    look = _Look(registry, where or (lambda row: {"record": row}))
    for seen, at in zip((key, value), find_rows(page.data, page.count), strict=True):
        look.observe(seen, page.data, at, rows)


def observe_objects(seen: Evidence, data: Bytes, at: Positions, registry: TypeRegistry) -> None:
    """Record single objects of a page; raises the same errors as `observe_page`."""
    rows = np.arange(len(at), dtype=np.int64)
    _Look(registry, lambda row: {"record": row}).observe(seen, data, at, rows)


class _TooMuch(Exception):
    """A field has too many nested fields or levels."""


@dataclass(frozen=True)
class _Look:
    """The examination of one page."""

    registry: TypeRegistry
    where: Where
    depth: int = 0
    left: list[int] = field(default_factory=lambda: [_MOST_FIELDS])

    def observe(self, seen: Evidence, data: Bytes, at: Positions, rows: Positions) -> None:
        """Record the objects at these positions, of these records; -1 counts as a null."""
        self.left[0] -= 1
        if self.depth > _MAX_DEPTH:
            raise _TooMuch(f"objects nested more than {_MAX_DEPTH} deep")
        if self.left[0] < 0:
            raise _TooMuch(f"objects of more than {_MOST_FIELDS} fields within it")
        data, at, codes = meant(data, at)
        valid = codes != TypeCode.NULL
        seen.null |= not bool(valid.all())
        for code in np.unique(codes[valid]).tolist():
            which = np.flatnonzero(codes == code)
            if code in _FOREIGN:
                for i in which[_one_of_each_class(data, at[which])].tolist():
                    self._note(seen, described(data, int(at[i]), code, self.registry), rows[i])
            else:
                seen.codes.add(code)
                inner = replace(self, depth=self.depth + 1)
                inner._look_inside(seen, code, data, at[which], rows[which])

    def _note(self, seen: Evidence, what: str, row: int) -> None:
        if what not in seen.unreadable:
            seen.unreadable[what] = self.where(int(row))

    def _look_inside(
        self, seen: Evidence, code: int, data: Bytes, at: Positions, rows: Positions
    ) -> None:
        if code in ARRAY_ELEMENT:
            if len(seen.lengths) < 2:
                seen.lengths |= {int(n) for n in np.unique(gather(data, at + 1, "<i4"))[:2]}
        elif code in _ENUMS:
            for type_id in np.unique(gather(data, at + 1, "<i4")).tolist():
                self.registry.find(type_id)
                seen.types.add(type_id)
        elif code == TypeCode.OBJECT:
            self._look_into_fields(seen, data, at, rows)
        elif code in _HOLD_OBJECTS:
            found, counts = find_elements(data, at)
            rows = np.repeat(rows, counts)
            if code == TypeCode.MAP:
                self.observe(seen.child("keys"), data, found[0::2], rows[0::2])
                self.observe(seen.child("values"), data, found[1::2], rows[1::2])
            else:
                self.observe(seen.child("item"), data, found, rows)

    def _look_into_fields(
        self, seen: Evidence, data: Bytes, at: Positions, rows: Positions
    ) -> None:
        found = headers(data, at)
        names: set[str] = set()
        table = np.stack([found.type_id, found.schema_id, found.flags.astype(np.int32)], axis=1)
        kinds, firsts = np.unique(table, axis=0, return_index=True)
        raw = is_raw(found.flags)
        for (type_id, schema_id, flags), first in zip(kinds.tolist(), firsts.tolist(), strict=True):
            known = self.registry.find(type_id, schema_id)
            if raw[first]:
                what = described(data, int(at[first]), TypeCode.OBJECT, self.registry)
                self._note(seen, what, rows[first])
            elif known is not None:
                seen.types.add(type_id)
                names |= _field_names(known, schema_id, flags, self.registry)
            elif not flags & BinaryFlag.COMPACT_FOOTER:
                seen.types.add(type_id)
                if flags & BinaryFlag.HAS_SCHEMA:
                    names |= set(map(unregistered_name, full_fields(data, found, first)))
            elif flags & BinaryFlag.HAS_SCHEMA:
                self._note(seen, f"an object of an unknown type ({type_id})", rows[first])
        if seen.unreadable:
            return
        places = field_positions(data, found, self.registry, names)
        for name in sorted(names):
            inner = seen.child(name)
            if self.depth > 1:
                self.observe(inner, data, places[name], rows)
            elif not inner.unreadable:
                try:
                    part = replace(self, left=[_MOST_FIELDS])
                    part.observe(inner, data, places[name], rows)
                except _TooMuch as found_out:
                    self._note(inner, str(found_out), rows[0])


def _field_names(known: BinaryType, schema_id: int, flags: int, registry: TypeRegistry) -> set[str]:
    """Names of the fields in objects of a type with one schema."""
    if not flags & BinaryFlag.HAS_SCHEMA:
        return set()
    # A full footer lists its own fields, which may be any of the type.
    compact = flags & BinaryFlag.COMPACT_FOOTER
    order = registry.schema(known.type_id, schema_id) if compact else known.fields
    return {known.fields[number][0] for number in order if number in known.fields}


def _one_of_each_class(data: Bytes, at: Positions) -> Positions:
    """Indices of one object of each class."""
    heads = np.stack([data[np.minimum(at + i, len(data) - 1)] for i in _CLASS_AT], axis=1)
    first: Positions = np.unique(heads, axis=0, return_index=True)[1]
    return first[:_MOST_CLASSES]
