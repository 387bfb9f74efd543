"""The lengths of the documents of a data set, by number of the row.

keys, one pass over a field -> **lengths** -> packing
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.read.divide import survey
from ignitetf.read.export import DenseNode, RunsNode
from ignitetf.read.keys import Keys
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import EpochRows
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.columns import Column, Dense, Runs

__all__ = ["check_tokens", "lengths_of"]

Marks = NDArray[np.uint64]
_MOST: Final = np.iinfo(np.int32).max


def check_tokens(rows: EpochRows, field: str) -> None:
    """Raise SchemaError unless a field has lists of whole numbers."""
    node = rows.values.get(field)
    item = node.item if isinstance(node, RunsNode) else node
    fits = isinstance(item, DenseNode) and item.dtype.kind in "iu"
    if fits and isinstance(item, DenseNode):
        fits = item.shape == () if isinstance(node, RunsNode) else len(item.shape) == 1
    if not fits:
        raise SchemaError(
            f"{rows.name}: {'no field' if node is None else 'the field'} {field!r}"
            + ("" if node is None else " does not have lists of whole numbers"),
            hint="packing needs a field with the tokens of each document, such as int32 arrays",
            field=field,
        )


def lengths_of(rows: EpochRows, keys: Keys, field: str, given: Any) -> NDArray[np.int32]:
    """Return the number of tokens of each document, in the order of the row numbers.

    Args:
        rows: The documents.
        keys: Their keys.
        field: The field with the tokens.
        given: The lengths; or the name of a field that has them; None reads all tokens once.

    Raises:
        ConfigError: `given` does not fit the documents.
        DataChanged: Documents were added or removed since their keys were read.
    """
    if given is None or isinstance(given, str):
        parts = _counted(rows, field) if given is None else _stated(rows, given)
        return _by_number(rows.name, keys, parts)
    found = np.asarray(given)
    if found.dtype.kind not in "iu" or found.shape != (len(keys),):
        raise ConfigError(
            f"lengths of {found.dtype} {list(found.shape)} for {len(keys)} documents",
            hint="a whole number for each row, in the order of rows[0], rows[1], ...",
        )
    return _checked(rows.name, found)


def _checked(name: str, lengths: NDArray[Any]) -> NDArray[np.int32]:
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _MOST:
        raise ConfigError(
            f"{name}: lengths from {lengths.min()} to {lengths.max()}",
            hint="a length is a number of tokens",
        )
    return lengths.astype(np.int32)


def _by_number(
    name: str, keys: Keys, parts: Iterator[tuple[Marks, NDArray[Any]]]
) -> NDArray[np.int32]:
    """Return values sorted by their keys; `marks` identify the keys."""
    marks = keys.marks(np.arange(len(keys)))
    order = np.argsort(marks)
    ordered = marks[order]
    found = np.full(len(keys), -1, np.int64)
    for some, values in parts:
        at = np.minimum(np.searchsorted(ordered, some), max(0, len(ordered) - 1))
        # A row that `where=` or `split=` leaves out does not have a number.
        own = ordered[at] == some if len(ordered) else np.zeros(len(some), np.bool_)
        found[order[at[own]]] = _checked(name, values[own])
    if (found < 0).any():
        raise DataChanged(
            f"{name}: {int((found < 0).sum())} rows are gone since the keys were read",
            hint="open the rows again",
        )
    return found.astype(np.int32)


def _stated(rows: EpochRows, by: str) -> Iterator[tuple[Marks, NDArray[Any]]]:
    """Yield the values of a field of whole numbers; with a table, only this field is read."""
    for some in survey(rows.reader.client, rows.name, by, rows.reader.options):
        values = some.values
        if not isinstance(values, Dense) or values.values.dtype.kind not in "iu":
            raise ConfigError(
                f"{rows.name}: lengths={by!r}, which does not have whole numbers",
                hint="a field with the number of tokens of each document",
            )
        if values.valid is not None and not values.valid.all():
            raise ConfigError(
                f"{rows.name}: lengths={by!r} has nulls", hint="lengths=None counts the tokens"
            )
        yield some.marks, values.values.reshape(-1)


def _counted(rows: EpochRows, field: str) -> Iterator[tuple[Marks, NDArray[Any]]]:
    """Yield the numbers of tokens; reads every document once."""
    fields = None if rows.plain else (field,)
    options = replace(rows.reader.options, fields=fields, split=None)
    reader = CacheReader(rows.reader.client, rows.name, options)
    with contextlib.closing(reader.batches(list(range(reader.partition_count)))) as batches:
        for item in batches:
            if item.batch is not None and len(item.batch):
                assert item.batch.key is not None
                marks = marks_of(reader.schema, item.batch.key)
                yield marks, _tokens_in(item.batch.columns[field])


def _tokens_in(column: Column) -> NDArray[np.int64]:
    """Return the number of items of each record."""
    if isinstance(column, Runs):
        return column.lengths
    assert isinstance(column, Dense)
    return np.full(len(column), column.values.shape[1], np.int64)
