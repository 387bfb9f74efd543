"""Columns of other libraries that reach Arrow as something else, so that Arrow cannot tell.

frame, relation -> **columns whose Arrow values do not mean what they were** -> stream

Polars gives the addresses of Python objects as bytes; DuckDB gives the inner form of BIT as bytes, a
time without its zone, and large unsigned numbers as negative ones. Their own types say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["unsaid_columns"]

# By library: types as it calls them, and how to convert them before.
_UNSAID: Final[Mapping[str, Mapping[str, str]]] = {
    "polars": {
        "Object": "convert it to a type of Polars: map_elements(..., return_dtype=pl.String)",
        "Int128": "convert it before: cast(pl.Decimal(38, 0)), or cast(pl.String)",
        "UInt128": "convert it before: cast(pl.Decimal(38, 0)), or cast(pl.String)",
    },
    "duckdb": {
        "bit": "convert it in the SELECT: CAST(... AS VARCHAR)",
        "time with time zone": "convert it in the SELECT: CAST(... AS VARCHAR), or AS TIME",
        "uhugeint": "convert it in the SELECT: CAST(... AS DECIMAL(38, 0)), or AS VARCHAR",
    },
}


def unsaid_columns(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and a hint for each column whose values Arrow has in another meaning."""
    library = type(value).__module__.partition(".")[0].lstrip("_")
    known = _UNSAID.get(library)
    types = getattr(value, "types" if library == "duckdb" else "dtypes", None)
    if known is None or types is None:
        return
    for name, kind in zip(value.columns, types, strict=True):
        for part in _parts(kind):
            if (word := _name(part)) in known:
                yield name, str(kind), known[word]
                break


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a type and all types inside it."""
    yield kind
    inside: Iterable[Any] = ()
    if hasattr(kind, "base_type"):  # Polars: an inner type, or fields
        inner = getattr(kind, "inner", None)
        inside = [inner] if inner is not None else [f.dtype for f in getattr(kind, "fields", ())]
    elif _name(kind) in ("list", "array", "struct", "map", "union"):
        inside = [part for _, part in kind.children if hasattr(part, "id")]
    for part in inside:
        yield from _parts(part)


def _name(kind: Any) -> str:
    return str(kind.base_type().__name__ if hasattr(kind, "base_type") else kind.id)
