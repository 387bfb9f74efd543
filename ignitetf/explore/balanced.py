"""A few records of every class, for people to look at.

cache -> reader -> **records, as many of each class** -> preview
"""

from __future__ import annotations

from typing import Any, Final

from ignitetf.explore.head import batches_of, read_what_can_be, record_at, value_at
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

__all__ = ["LABEL", "balanced_rows"]

LABEL: Final = "LABEL"
_PAGE_ENTRIES: Final = 64
# So much is read to find records of rare classes, once there are enough records.
_MOST_BYTES: Final = 64 << 20
_MOST_ROWS: Final = 20_000


def balanced_rows(
    client: Client, cache: str, count: int, *, where: str | None = None
) -> list[dict[str, Any]]:
    """Return records of a data set, as many of each class as there are, sorted by class.

    Without a field LABEL they are the first ones. Classes that are rarer than one in some thousands
    of rows may be missing, as a large data set is not read to its end.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        count: Maximum number of records.
        where: SQL condition on the rows.

    Returns:
        One mapping per record, as `head.first_rows`.
    """
    options = ReadOptions(where=where, raw_nulls=True, page_size=max(1, min(count, _PAGE_ENTRIES)))

    def read(reader: CacheReader) -> list[dict[str, Any]]:
        classes = 0
        if where is None and reader.manifest is not None:
            classes = len(reader.manifest.class_names)
        return _chosen(reader, _Choice(count, classes))

    return read_what_can_be(client, cache, options, read)[0]


def _chosen(reader: CacheReader, choice: _Choice) -> list[dict[str, Any]]:
    schema = reader.schema
    label = schema[LABEL] if LABEL in schema.names and not schema[LABEL].shape else None
    rows = size = 0
    for batch in batches_of(reader):
        for index in range(len(batch)):
            kind = None if label is None else value_at(label, batch.columns[LABEL], index)
            if choice.wants(kind):
                choice.add(kind, record_at(schema, batch, index))
        rows, size = rows + len(batch), size + batch.nbytes
        enough = label is None or rows >= _MOST_ROWS or size >= _MOST_BYTES
        if choice.is_even or (choice.is_full and enough):
            break
    return choice.rows()


class _Choice:
    """Records by class; when there are enough, one of a rare class replaces one of a common one."""

    def __init__(self, count: int, classes: int) -> None:
        self._count = count
        self._classes = classes  # 0 if unknown
        self._of: dict[Any, list[dict[str, Any]]] = {}
        self._total = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many records as wanted."""
        return self._total == self._count

    @property
    def is_even(self) -> bool:
        """Whether no further record would be taken, whatever its class."""
        if not self.is_full or not self._classes:
            return False
        share = self._count // self._classes
        known = len(self._of) == min(self._classes, self._count)
        return known and all(len(rows) >= share for rows in self._of.values())

    def wants(self, label: Any) -> bool:
        """Whether a record of this class makes the choice fuller, or more even."""
        if not self.is_full:
            return True
        return len(self._of.get(label, ())) + 1 < max(map(len, self._of.values()))

    def add(self, label: Any, record: dict[str, Any]) -> None:
        """Take a record, in place of one of the most frequent class if there are enough."""
        if self.is_full:
            max(self._of.values(), key=len).pop()
            self._total -= 1
        self._of.setdefault(label, []).append(record)
        self._total += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return the records, sorted by class; those without one are last."""
        kinds = sorted(self._of, key=lambda kind: (kind is None, str(type(kind)), kind))
        return [record for kind in kinds for record in self._of[kind]]
