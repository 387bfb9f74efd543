"""`Place`: adds the location of a record to errors about it; and the error of a fork.

**error_context** -> reader
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ignitetf.errors import ConfigError, SchemaError, WireError
from ignitetf.wire.schema import Batch, Column

__all__ = ["Place", "forked", "key_of"]


class Place:
    """Adds cache, key and, if it is known, partition to an error about a record."""

    def __init__(self, cache: str, partition: int | None, batch: Batch | None = None) -> None:
        self._where = cache if partition is None else f"{cache}, partition {partition}"
        self._facts: dict[str, Any] = {"cache": cache}
        if partition is not None:
            self._facts["partition"] = partition
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (SchemaError, WireError)):
            return
        record = error.fields.get("record")
        where = self._where if record is None else f"{self._where}, entry {record}"
        facts = dict(self._facts)
        keys = error.fields.pop("keys", None if self._batch is None else self._batch.key)
        if record is not None and keys is not None:
            facts["key"] = key = key_of(keys, record)
            where += f", key {key}"
        raise error.at(where, **facts) from error


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
