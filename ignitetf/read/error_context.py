"""`RecordContext`: adds the location of a record to errors about it.

**error_context** -> reading, reader
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.schema import Batch, Column

__all__ = ["RecordContext", "key_of"]


class RecordContext:
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
