"""Splits: divide the rows of a data set into training, validation and test, or folds.

key, seed -> place -> **part** -> manifest, reader

Each key has a place: a 63-bit hash of the key and a seed. Each part of a division has a range of
    places. So the part of a row depends on its key alone, and on one field if the division is
    balanced by it. It does not depend on the cluster, the layout, the order, or rows that are
    appended later.

A division that is balanced by a field has ranges of its own for each value of that field, chosen so
that the rows present then are divided as exactly as whole rows allow. Rows with a new value are
divided by the fractions alone.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.wire.checksum import mix
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, Runs
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import Field

__all__ = [
    "ALL_BUT",
    "Division",
    "balanced",
    "by_values",
    "can_balance",
    "divided",
    "fold_fractions",
]

ALL_BUT: Final = "-"
_NAME: Final = re.compile(r"[^\W\d][\w.-]*")
# Places are 0 ... 2^63 - 1, so that the end of the last range is a 64-bit number too.
_PLACES: Final = 1 << 63
_TOLERANCE: Final = Fraction(1, 10**9)
_MOST_PARTS: Final = 1000
# Limit for all values of a field together; about 1 MB in the manifest.
_MOST_BOUNDS: Final = 50_000
_SALTS_FOR: Final = "ignitetf split"

Value = int | str | None
Places = NDArray[np.uint64]
Parts = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """A division of a data set into parts; each row is in exactly one part.

    Attributes:
        names: Names of the parts.
        fractions: Share of the rows in each; they add up to 1.
        bounds: First place of each part, without the first part.
        seed: Seed of the hash.
        by: The field by whose values the parts are balanced; None if they are not.
        values: The values that this field had, each with `bounds` of its own.
        rows: Rows of each part in each partition.
        version: Version of the manifest for which these were counted.
    """

    names: tuple[str, ...]
    fractions: tuple[Fraction, ...]
    bounds: tuple[int, ...]
    seed: int = 0
    by: str | None = None
    values: tuple[tuple[Value, tuple[int, ...]], ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    version: int = 0

    @functools.cached_property
    def digest(self) -> str:
        """Checksum of everything that determines the part of a row."""
        decides = (self.seed, self.by, self.names, self.bounds, self.values)
        return hashlib.sha256(repr(decides).encode()).hexdigest()[:16]

    @functools.cached_property
    def _bounds_of(self) -> dict[Value, tuple[int, ...]]:
        return dict(self.values)

    @functools.cached_property
    def _salts(self) -> tuple[int, int]:
        digest = hashlib.blake2b(f"{_SALTS_FOR}:{self.seed}".encode(), digest_size=16).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")

    def places(self, marks: NDArray[np.uint64]) -> Places:
        """Return the place of each key, given as `wire.checksum.marks_of`."""
        first, second = self._salts
        return mix(mix(marks, first), second) >> np.uint64(1)

    def parts(self, places: Places, column: Column | None) -> Parts:
        """Return the number of the part of each row.

        Args:
            places: Result of `places` for the keys.
            column: The values of the field `by`.
        """
        if self.by is None:
            bounds = np.array(self.bounds, np.uint64)
            return np.searchsorted(bounds, places, side="right").astype(np.int64, copy=False)
        if column is None:
            raise ConfigError(f"a split by {self.by} needs the values of that field")
        distinct, codes = _distinct(column)
        found = [self._bounds_of.get(value, self.bounds) for value in distinct]
        bounds = np.array(found, np.uint64).reshape(len(distinct), len(self.bounds))
        parts = np.zeros(len(places), np.int64)
        for number in range(len(self.bounds)):
            parts += places >= bounds[codes, number]
        return parts

    def counted(self, rows: NDArray[np.int64], version: int) -> Division:
        """Return the division with the rows of each part in each partition, int64 [parts, p]."""
        return replace(self, rows=tuple(map(tuple, rows.tolist())), version=version)

    def counts(self, version: int) -> tuple[tuple[int, ...], ...] | None:
        """Return `rows`, or None if they are of another version of the data."""
        return self.rows if self.rows and self.version == version else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal division."""
        return {
            "names": list(self.names),
            "fractions": list(map(str, self.fractions)),
            "bounds": _to_hex(self.bounds),
            "seed": self.seed,
            "by": self.by,
            "values": [[value, _to_hex(bounds)] for value, bounds in self.values],
            "rows": [list(rows) for rows in self.rows],
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Division:
        """Restore a value from the JSON object of `to_json`."""
        return cls(
            tuple(data["names"]),
            tuple(map(Fraction, data["fractions"])),
            _from_hex(data["bounds"]),
            data["seed"],
            data["by"],
            tuple((value, _from_hex(bounds)) for value, bounds in data["values"]),
            tuple(map(tuple, data["rows"])),
            data["version"],
        )


def divided(fractions: Mapping[str, Any], seed: int = 0, by: str | None = None) -> Division:
    """Return the division into parts of these fractions, not yet balanced.

    Args:
        fractions: Fraction of each part by its name: a number, or a text as `0.8` or `4/5`.
        seed: Seed of the hash.
        by: Field by whose values the division is balanced.

    Raises:
        ConfigError: A name or a fraction is unusable, or the fractions do not add up to 1.
    """
    for name in fractions:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"split name {name!r}", hint="letters, digits, _ . and -, beginning with a letter"
            )
    if not 1 <= len(fractions) <= _MOST_PARTS:
        raise ConfigError(f"{len(fractions)} splits", hint=f"1 to {_MOST_PARTS}")
    exact = [_fraction(name, given) for name, given in fractions.items()]
    total = sum(exact, Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        raise ConfigError(
            f"the fractions add up to {float(total):.12g}, not 1",
            hint="every row is in exactly one split, so the fractions must add up to 1",
        )
    exact = [part / total for part in exact]
    bounds = tuple(int(end * _PLACES) for end in itertools.accumulate(exact[:-1]))
    return Division(tuple(fractions), tuple(exact), bounds, seed, by)


def by_values(names: Sequence[str], by: str) -> Division:
    """Return the division in which each part has the rows with its name in a field.

    Rows with another value of the field, such as appended ones, are divided in equal shares.
    """
    whole = divided({name: Fraction(1, len(names)) for name in names}, by=by)
    last = len(names) - 1
    values = tuple(
        (name, (0,) * number + (_PLACES,) * (last - number)) for number, name in enumerate(names)
    )
    return replace(whole, values=values)


def fold_fractions(count: int) -> dict[str, Fraction]:
    """Return the names and fractions of `count` folds."""
    if not 2 <= count <= _MOST_PARTS:
        raise ConfigError(f"{count} folds", hint=f"2 to {_MOST_PARTS}")
    return {f"fold{number}": Fraction(1, count) for number in range(count)}


def _fraction(name: str, given: Any) -> Fraction:
    try:
        found = Fraction(given if isinstance(given, Fraction) else str(given))
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{name}={given}", hint="a fraction, as 0.8 or 4/5") from error
    if not 0 < found <= 1:
        raise ConfigError(f"{name}={given}", hint="a fraction above 0, and 1 at most")
    return found


def can_balance(field: Field) -> bool:
    """True if a division can be balanced by this field: whole numbers, booleans and texts."""
    kinds = {*INTEGERS, TypeCode.BOOL, TypeCode.STRING}
    return field.type in kinds and field.shape == ()


def balanced(division: Division, places: Places, column: Column) -> Division:
    """Return the division with ranges for each value of its field.

    If n rows have a value, a part of fraction f gets f*n of them, rounded down or up. A part that
    loses rows by rounding for one value gains them with the next values.

    Raises:
        ConfigError: The field has too many values.
    """
    distinct, codes = _distinct(column)
    if len(distinct) * len(division.bounds) > _MOST_BOUNDS:
        raise ConfigError(
            f"{division.by} has {len(distinct):,} values",
            hint=f"a split can be balanced by at most {_MOST_BOUNDS // len(division.bounds):,}",
        )
    order = np.lexsort((places, codes))
    sizes = np.bincount(codes, minlength=len(distinct))
    ends = np.cumsum(sizes)
    owed = [Fraction(0)] * len(division.fractions)
    found: dict[Value, tuple[int, ...]] = {}
    for value, code in sorted(zip(distinct, range(len(distinct)), strict=True), key=_sort_key):
        size, end = int(sizes[code]), int(ends[code])
        if not size:
            continue  # the placeholder of a null
        own = places[order[end - size : end]]
        counts = _rounded([part * size for part in division.fractions], owed)
        found[value] = _between(own, np.cumsum(counts)[:-1].tolist(), division.bounds)
    return replace(division, values=tuple(found.items()))


def _sort_key(item: tuple[Value, int]) -> tuple[bool, Any]:
    return item[0] is None, 0 if item[0] is None else item[0]


def _rounded(exact: list[Fraction], owed: list[Fraction]) -> list[int]:
    """Round to whole numbers of the same sum; update `owed`, the loss of each part so far."""
    counts = [int(size) for size in exact]
    rests = [size - count for size, count in zip(exact, counts, strict=True)]
    split = [number for number, rest in enumerate(rests) if rest]
    split.sort(key=lambda number: (-(rests[number] + owed[number]), number))
    for number in split[: int(sum(rests))]:
        counts[number] += 1
    for number, size in enumerate(exact):
        owed[number] += size - counts[number]
    return counts


def _between(places: Places, ends: list[int], bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return bounds that separate ascending places at these ends, each near its given bound.

    Each result is as close as possible to the bound that the fractions give. So rows with this
    value that are added later are divided by the fractions.
    """
    found = []
    for end, wanted in zip(ends, bounds, strict=True):
        least = int(places[end - 1]) + 1 if end else 0
        most = int(places[end]) if end < len(places) else _PLACES
        found.append(min(max(wanted, least), most))
    return tuple(found)


def _distinct(column: Column) -> tuple[list[Value], NDArray[np.int64]]:
    """Return the different values of a column, and for each row the number of its value."""
    found: list[Value]
    if isinstance(column, Dense):
        numbers, codes = np.unique(column.values, return_inverse=True)
        found, codes = [int(n) for n in numbers.tolist()], codes.astype(np.int64, copy=False)
    else:
        assert isinstance(column, Runs)
        index: dict[bytes, int] = {}
        texts = column.to_bytes()
        codes = np.fromiter((index.setdefault(t, len(index)) for t in texts), np.int64, len(texts))
        found = [text.decode("utf-8", "backslashreplace") for text in index]
    if column.valid is not None and not column.valid.all():
        codes = np.where(column.valid, codes, len(found))
        found.append(None)
    return found, codes


def _to_hex(bounds: Sequence[int]) -> list[str]:
    # Some JSON readers do not keep all 64 bits of a number.
    return [f"{bound:016x}" for bound in bounds]


def _from_hex(bounds: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(bound, 16) for bound in bounds)
