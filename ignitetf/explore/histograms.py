"""Histograms of the columns over a sample of fixed size, however large the data set is.

view -> some rows -> **bars** -> heads of the columns

Rows with keys 0, 1, 2 ... are drawn at random by key. For other keys, the sample is the first rows
of partitions spread over the cache. The hash of a row's key decides its partition.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.explore.browse import View
from ignitetf.explore.filters import Filter, can_filter
from ignitetf.explore.stats import ColumnStats, batch_stats
from ignitetf.explore.times import time_text
from ignitetf.read.key_order import Permutation
from ignitetf.read.records import as_times, time_unit
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Runs, concat, runs_of, values_of
from ignitetf.wire.schema import BYTES, Field

__all__ = ["Bar", "Head", "Sample", "sample_of", "type_name"]

_ROWS: Final = 4096
_FEWEST_ROWS: Final = 32
_PARTITIONS: Final = 16
_BARS: Final = 20
_VALUES: Final = 12


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        shown: The value or range that it counts, for people.
        count: Rows of the sample.
        height: Height relative to the highest bar, 0 to 1.
        filters: Filter texts that select its rows; empty if no filter can.
    """

    shown: str
    count: int
    height: float
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """The head of a column.

    Attributes:
        name: Field.
        type: Type of its values, for people.
        caption: Its range, or how many values there are.
        nulls: Share of nulls in the sample.
        bars: Its histogram; empty if there is nothing to show.
    """

    name: str
    type: str
    caption: str
    nulls: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Sample:
    """The heads of all columns.

    Attributes:
        rows: Number of rows in the sample.
        whole: True if the sample is the whole data set.
        heads: Head by field.
    """

    rows: int
    whole: bool
    heads: dict[str, Head]


def sample_of(data: View) -> Sample:
    """Return the histograms of a sample of the rows."""
    batches = list(_batches(data))
    if not batches:
        return Sample(0, True, {})
    batch = concat(batches)
    schema = data.reader.schema
    stats = batch_stats(schema, [batch])
    heads = {
        f.name: _head(data, f, batch.columns[f.name], stats[f.name], len(batch))
        for f in schema.fields
    }
    return Sample(len(batch), len(batch) >= data.rows, heads)


def type_name(field: Field) -> str:
    """Return the type of a field for people: `int32`, `text`, `uint8 [28, 28, 1]`."""
    if field.dtype == BYTES:
        name = "blob" if field.is_blob else "text"
    elif field.fields:
        name = "object"
    elif time_unit(field) is not None:
        name = field.type.name.lower()
    else:
        name = field.dtype.name
    shape = ", ".join("…" if n is None else str(n) for n in field.shape)
    return f"{name} [{shape}]" if field.shape else name


def _batches(data: View) -> Iterator[Batch]:
    count = data.page_rows(_ROWS, _FEWEST_ROWS)
    dense = data.numbered
    if dense:
        numbers = np.arange(min(count, dense), dtype=np.int64)
        keys = numbers if dense <= count else Permutation(dense, 0, 0)(numbers)
        yield data.by_key(keys.tolist())
        return
    every = data.reader.partition_count
    if data.rows <= count:
        yield from _first(data, list(range(every)), count)
        return
    chosen = np.unique(np.linspace(0, every - 1, min(every, _PARTITIONS)).astype(int)).tolist()
    for partition in chosen:
        yield from _first(data, [partition], math.ceil(count / len(chosen)))


def _first(data: View, partitions: list[int], count: int) -> Iterator[Batch]:
    """Yield the first rows of some partitions."""
    pages = data.reader.batches(partitions)
    with contextlib.closing(pages):
        for item in pages:
            if item.batch is None:
                continue
            part = item.batch[:count]
            count -= len(part)
            if len(part):
                yield part
            if count <= 0:
                break


def _head(data: View, field: Field, column: Column, stats: ColumnStats, rows: int) -> Head:
    nulls = stats.nulls / rows if rows else 0.0
    bars: Sequence[Bar] = ()
    caption = ""
    if stats.minimum is not None and stats.maximum is not None:
        caption = _range(stats.minimum, stats.maximum)
        if field.dtype == BYTES:
            caption += " bytes"
    counted = stats.distinct is not None and not field.shape and field.dtype.kind != "f"
    if field.name == data.picture:
        caption = "image"
    elif counted and (stats.distinct or 0) <= _VALUES and can_filter(field):
        bars = _value_bars(data, field, column)
        caption = f"{stats.distinct} value{'' if stats.distinct == 1 else 's'}"
    elif field.dtype.kind in "iuf":
        bars = _number_bars(field, column)
    elif stats.distinct is not None and field.type is TypeCode.STRING:
        bars, caption = (), f"{stats.distinct:,} values"
    elif field.type is TypeCode.STRING:
        caption = "mostly distinct"
    return Head(field.name, type_name(field), caption, nulls, tuple(bars))


def _value_bars(data: View, field: Field, column: Column) -> list[Bar]:
    column = column.present()
    if field.type is TypeCode.STRING:
        texts = [t.decode("utf-8", "replace") for t in runs_of(column).to_bytes()]
        found, counts = np.unique(np.array(texts, object), return_counts=True)
    else:
        found, counts = np.unique(values_of(column), return_counts=True)
    highest = counts.max()
    bars = []
    for value, count in zip(found.tolist(), counts.tolist(), strict=True):
        shown = data.class_name(value) if field.name == data.label else str(value)
        bars.append(Bar(shown, count, float(count / highest), (Filter(field, "eq", value).text,)))
    return bars


def _number_bars(field: Field, column: Column) -> list[Bar]:
    values = _numbers(column)
    if not len(values):
        return []
    low, high = values.min().item(), values.max().item()
    whole = field.dtype.kind in "iu"
    edges = _edges(low, high, whole)
    counts, _ = np.histogram(values, np.array(edges, np.float64))
    links = can_filter(field)
    bars = []
    for i, count in enumerate(counts.tolist()):
        left, right = edges[i], edges[i + 1]
        filters: tuple[str, ...] = ()
        if links and count:
            below: Any = "le" if i == len(counts) - 1 and not whole else "lt"
            filters = (Filter(field, "ge", left).text, Filter(field, below, right).text)
        last = right - 1 if whole else right
        shown = _range(as_times(field, left), as_times(field, last))
        bars.append(Bar(shown, count, float(count / counts.max()), filters))
    return bars


def _edges(low: Any, high: Any, whole: bool) -> list[Any]:
    if whole:
        width = max(1, -(-(high - low + 1) // _BARS))
        return [low + width * i for i in range(-(-(high - low + 1) // width) + 1)]
    if low == high:
        return [low, high]
    return [*(low + (high - low) * i / _BARS for i in range(_BARS)), high]


def _numbers(column: Column) -> NDArray[Any]:
    """Return the finite numbers of a column; arrays contribute all their elements."""
    column = column.present()
    found = values_of(column.compact()[0] if isinstance(column, Runs) else column).reshape(-1)
    return found[np.isfinite(found)] if found.dtype.kind == "f" else found


def _range(low: Any, high: Any) -> str:
    return _short(low) if low == high else f"{_short(low)} – {_short(high)}"


def _short(value: Any) -> str:
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return time_text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
