"""`stats`: describe the columns of a data set in one pass, for either layout.

cache -> reader -> **column statistics** -> report

Sums for mean and deviation are taken in float64 around the first value of each column, so that a
mean far from zero does not cancel out the deviation. Numbers are described by their values, arrays
by all their elements, text and blobs by their lengths. Decimals keep their digits as minimum and
maximum.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.explore.head import read_readable_fields
from ignitetf.explore.times import iso_text
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.records import as_times, time_unit
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["ColumnStats", "DatasetStats", "batch_stats", "dataset_stats"]

# Above this number of distinct values, they are not counted individually.
_MOST_VALUES: Final = 1000
_SHOWN_VALUES: Final = 10
# A number, or a time.
Number = float | int | Decimal | np.datetime64 | np.timedelta64
_FLOAT_KINDS: Final = "f"
_MOST_APART: Final = 1 << 62


@dataclass(frozen=True)
class ColumnStats:
    """One column.

    Attributes:
        name: Field, or `key`.
        type: Type on the wire.
        shape: Shape of a value; None is a varying length.
        rows: Values that are not null.
        nulls: Nulls.
        minimum: Smallest number or time, or smallest length of text, blobs and lists; None without
            values. Decimals are Python's, times NumPy's `datetime64` and `timedelta64`.
        maximum: Largest, in the same sense.
        mean: Mean, in the same sense.
        std: Standard deviation of the population, in the same sense; a `timedelta64` for times.
        nan: Count of numbers that are not finite; other figures exclude them.
        distinct: Distinct values of a scalar number, bool or text; None above 1,000.
        top: The most frequent of them with their counts.
    """

    name: str
    type: str
    shape: tuple[int | None, ...]
    rows: int
    nulls: int
    minimum: Number | None
    maximum: Number | None
    mean: Number | None
    std: Number | None
    nan: int
    distinct: int | None
    top: dict[str, int]


@dataclass
class DatasetStats:
    """A data set: its rows, where they are stored, and its columns.

    Attributes:
        cache: Name.
        layout: `rows` or `blocks`.
        rows: Records.
        bytes: Bytes of all values.
        partitions: Number of partitions.
        partition_rows: Records of each partition; for blocks, too, counted in the rows' own
            partition.
        columns: The columns, key first.
        class_names: Names of the values of LABEL; empty if they have none.
        left_out: Fields that cannot be read, and why.
    """

    cache: str
    layout: str
    rows: int = 0
    bytes: int = 0
    partitions: int = 0
    partition_rows: list[int] = field(default_factory=list)
    columns: list[ColumnStats] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """Records of the largest partition divided by the mean."""
        return round(max(self.partition_rows) * self.partitions / self.rows, 2) if self.rows else 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        return {**asdict(self), "skew": self.skew}


def dataset_stats(
    client: Client, cache: str, *, on_progress: Callable[[int], None] = lambda rows: None
) -> DatasetStats:
    """Read a data set once and describe what its columns hold.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        on_progress: Called with the number of rows read since the last call.

    Raises:
        SchemaError: The cache is empty and has no manifest, or its records do not fit a single
            schema.
    """
    read = functools.partial(_stats_of, on_progress=on_progress)
    found, left_out = read_readable_fields(client, cache, ReadOptions(raw_nulls=True), read)
    found.left_out = left_out
    return found


def _stats_of(reader: CacheReader, on_progress: Callable[[int], None]) -> DatasetStats:
    seen = _columns(reader.schema)
    found = DatasetStats(reader.name, "rows" if reader.block_rows == 1.0 else "blocks")
    if reader.manifest is not None:
        found.layout = reader.manifest.layout
        found.class_names = list(reader.manifest.class_names)
    found.partitions = reader.partition_count
    found.partition_rows = [0] * reader.partition_count
    pages = reader.batches(list(range(reader.partition_count)))
    with contextlib.closing(pages):
        for item in pages:
            if item.batch is None:
                continue
            _add(seen, item.batch)
            found.rows += len(item.batch)
            found.bytes += item.batch.nbytes
            found.partition_rows[item.unit] += len(item.batch)
            on_progress(len(item.batch))
    found.columns = [column.stats(name) for name, column in seen.items()]
    return found


def batch_stats(schema: Schema, batches: Iterable[Batch]) -> dict[str, ColumnStats]:
    """Return the statistics of the columns of some rows, by name, `key` first."""
    seen = _columns(schema)
    for batch in batches:
        _add(seen, batch)
    return {name: column.stats(name) for name, column in seen.items()}


def _columns(schema: Schema) -> dict[str, _Column]:
    return {"key": _Column(schema.key), **{f.name: _Column(f) for f in schema.fields}}


def _add(seen: dict[str, _Column], batch: Batch) -> None:
    if batch.key is not None:
        seen["key"].add(batch.key)
    for name, column in batch.columns.items():
        seen[name].add(column)


class _Column:
    """Sums of one column."""

    def __init__(self, kind: Field) -> None:
        self.kind = kind
        # Lists are described by their lengths only.
        self.unit = None if kind.fields else time_unit(kind)
        self.rows = self.nulls = self.count = self.not_finite = 0
        self.low: Any = None
        self.high: Any = None
        self.origin: Any = None
        self.total = self.squares = 0.0
        self.values: Counter[Any] | None = Counter()

    def add(self, column: Column) -> None:
        """Add the values of a page."""
        valid = column.valid
        self.rows += len(column) if valid is None else int(valid.sum())
        self.nulls += 0 if valid is None else int((~valid).sum())
        if valid is not None and not valid.all():
            column = column.present()
        if len(column) == 0 or isinstance(column, Struct):
            return
        self._count_values(column)
        if isinstance(column, Runs):
            if self.kind.type == TypeCode.DECIMAL:
                self._decimals([Decimal(text.decode()) for text in column.to_bytes()])
                return
            if self.kind.dtype == BYTES or self.kind.fields:
                self._numbers(column.lengths)
                return
            column = column.compact()[0]
        if isinstance(column, Dense) and column.values.dtype.kind in "iubf":
            self._numbers(column.values.reshape(-1))

    def _decimals(self, values: list[Decimal]) -> None:
        low, high = min(values), max(values)
        lowest = low if self.low is None else min(low, self.low)
        highest = high if self.high is None else max(high, self.high)
        self._numbers(np.array([float(value) for value in values]))
        self.low, self.high = lowest, highest

    def _numbers(self, values: NDArray[Any]) -> None:
        if values.dtype.kind in _FLOAT_KINDS:
            finite = np.isfinite(values)
            self.not_finite += int((~finite).sum())
            values = values[finite]
        if len(values) == 0:
            return
        low, high = values.min().item(), values.max().item()
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)
        if self.origin is None:
            self.origin = values[0].item()
        moved = _from_origin(values, self.origin, low, high)
        self.count += len(values)
        self.total += float(moved.sum())
        self.squares += float(np.dot(moved, moved))

    def _count_values(self, column: Column) -> None:
        if self.values is None or self.kind.shape:
            return
        if isinstance(column, Runs):
            if self.kind.is_blob or self.kind.fields:
                return
            self.values.update(t.decode("utf-8", "replace") for t in column.to_bytes())
        elif isinstance(column, Dense) and column.values.ndim == 1:
            found, counts = np.unique(column.values, return_counts=True)
            # NumPy returns each NaN as a new object, so each would count as a new value.
            one = [math.nan if value != value else value for value in found.tolist()]
            self.values.update(dict(zip(one, counts.tolist(), strict=True)))
        if len(self.values) > _MOST_VALUES:
            self.values = None

    def stats(self, name: str) -> ColumnStats:
        """Return the column's figures."""
        mean: Number | None = None
        std: Number | None = None
        if self.count and self.origin is not None:
            moved = self.total / self.count
            mean = self.origin + moved
            std = math.sqrt(max(0.0, self.squares / self.count - moved * moved))
            if self.unit is not None:
                mean = self._time(self.origin + round(moved))
                std = np.int64(round(std)).astype(self.unit.replace("M8", "m8"))
        counted = self.values if self.values and not self.kind.shape else None
        top = counted.most_common(_SHOWN_VALUES) if counted else []
        return ColumnStats(
            name, self.kind.type.name, self.kind.shape, self.rows, self.nulls,
            self._time(self.low), self._time(self.high), mean, std,
            self.not_finite, len(counted) if counted else None,
            {_text(self._time(value)): count for value, count in top},
        )  # fmt: skip

    def _time(self, value: Any) -> Any:
        return value if value is None or self.unit is None else as_times(self.kind, value)


def _from_origin(values: NDArray[Any], origin: float, low: float, high: float) -> NDArray[Any]:
    """Return the differences to an origin as floats; integers are subtracted exactly first."""
    if values.dtype.kind == "i" and max(high - origin, origin - low) < _MOST_APART:
        return (values.astype(np.int64) - origin).astype(np.float64)
    return values.astype(np.float64) - origin


def _text(value: Any) -> str:
    return str(iso_text(value) if isinstance(value, (np.datetime64, np.timedelta64)) else value)
