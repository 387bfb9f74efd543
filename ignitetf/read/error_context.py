"""`Place`: adds the location of a record to errors about it; and the error of a fork.

**error_context** -> page decoder, reader
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError, WireError
from ignitetf.wire.schema import Batch, Column

__all__ = ["Place", "RowPlaces", "forked", "key_of"]


class Place:
    """Adds cache, key and, if it is known, partition to an error about a record.

    Args:
        cache: The data set.
        partition: The partition; None if it is not known.
        batch: The records, if the error does not have their keys.
        first: Number of the first of these records.
    """

    def __init__(
        self, cache: str, partition: int | None, batch: Batch | None = None, first: int = 0
    ) -> None:
        self._where = cache if partition is None else f"{cache}, partition {partition}"
        self._facts: dict[str, Any] = {"cache": cache}
        if partition is not None:
            self._facts["partition"] = partition
        self._batch = batch
        self._first = first

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (SchemaError, WireError)):
            return
        record = error.fields.get("record")
        where, facts = self._where, dict(self._facts)
        if record is not None:
            facts["record"] = self._first + record
            where += f", entry {self._first + record}"
        keys = error.fields.pop("keys", None if self._batch is None else self._batch.key)
        if record is not None and keys is not None:
            facts["key"] = key = key_of(keys, record)
            where += f", key {key}"
        raise error.at(where, **facts) from error


class RowPlaces:
    """Which partition each of some rows is from, in their order."""

    def __init__(self) -> None:
        # Rows in all; of each partition among them its number, that of its first row, and rows.
        self._runs: deque[tuple[int, NDArray[np.int64], int, NDArray[np.int64]]] = deque()
        self._dropped = 0  # rows of the first run

    @property
    def has_rows(self) -> bool:
        """Whether there are any rows."""
        return bool(self._runs)

    def add(self, partition: int, first: int, rows: int) -> None:
        """Add rows of a partition, of which the first is number `first`."""
        self._runs.append((rows, np.array([partition]), first, np.array([rows])))

    def add_all(self, partitions: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Add all rows of several partitions."""
        self._runs.append((int(rows.sum()), partitions, 0, rows))

    def drop(self, rows: int) -> None:
        """Drop the first rows."""
        self._dropped += rows
        while self._runs and self._dropped >= self._runs[0][0]:
            self._dropped -= self._runs.popleft()[0]

    def of(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Yield partition, number there and count of each partition's part of the first rows."""
        skip = self._dropped
        for _, partitions, first, counts in self._runs:
            for partition, count in zip(partitions.tolist(), counts.tolist(), strict=True):
                if rows <= 0:
                    return
                if (here := min(max(0, count - skip), rows)) > 0:
                    yield partition, first + skip, here
                    rows -= here
                skip = max(0, skip - count)

    def find(self, row: int) -> tuple[int, int] | None:
        """Return partition of a row, and its number there; None for rows of no known partition."""
        last = None
        for partition, first, count in self.of(row + 1):
            last = partition, first + count - 1
        return last


def forked(name: str) -> ConfigError:
    """Return the error of a data set whose reading was begun before a fork."""
    return ConfigError(
        f"{name}: the process was forked while it read, and the threads that receive are its"
        " parent's",
        hint="begin to read in the process that goes on to do so",
    )


def key_of(key: Column, record: int) -> Any:
    """Return the key of a record, for messages and for programs."""
    if key.starts is not None and key.lengths is not None and isinstance(key.values, np.ndarray):
        first = int(key.starts[record])
        text = bytes(key.values[first : first + int(key.lengths[record])])
        return repr(text.decode("utf-8", "backslashreplace"))
    if isinstance(key.values, np.ndarray):
        return key.values[record].tolist()
    return (
        {n: key_of(c, record) for n, c in key.values.items()}
        if isinstance(key.values, dict)
        else "?"
    )
