"""The state of a training as JSON, and the check that it belongs to this way of reading.

plan -> **state** -> rows

A state names a place in an order of rows, and everything that this order depends on. It is refused
if the current way of reading has another order. One estimate, the bytes of a row of a cache without
a manifest, may come out differently; it is taken from the state. No TensorFlow here.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, DataChanged
from ignitetf.read.plan import Order, Position, Shard
from ignitetf.read.reader import CacheReader
from ignitetf.wire.parameters import encode_parameter

__all__ = ["identity_of", "placed"]

_HINT: Final = "pass what state() gave, as it is"
# Entries that may be known in one state and unknown in another of the same order.
_IF_KNOWN: Final = ("rows", "counts")
_OF_DATA: Final = ("version", *_IF_KNOWN)
_MOST_ROW_BYTES: Final = 1 << 40


def identity_of(reader: CacheReader, order: Order) -> dict[str, Any]:
    """Return everything that the order of the rows depends on, except the place in it, as JSON.

    Numbers and short texts are stored as they are, anything that may be long as a checksum.
    """
    options, manifest = reader.options, reader.manifest
    shuffled = order.seed is not None
    counted = order.known or shuffled
    drops = options.nulls == "drop"
    return {
        "cache": reader.name,
        "version": None if manifest is None else manifest.version,
        "partitions": f"{len(order.partitions)}:{_checksum(order.partitions)}",
        "where": options.where,
        "table": options.table,
        "where_params": _digest(options.where_params) if options.where_params else None,
        # Which rows are dropped depends on the fields that are read.
        "drops": _digest([f.name for f in reader.schema.fields]) if drops else None,
        "even": order.even,
        "seed": order.seed,
        "window_bytes": order.window_bytes if shuffled else None,
        "row_bytes": float(order.row_bytes) if shuffled else None,
        "rows": sum(order.counts) if order.known else None,
        "counts": _checksum(order.counts) if counted else None,
    }


def placed(state: Any, reader: CacheReader, order: Order, shard: Shard) -> tuple[Position, Order]:
    """Return the position in a state, and the order that it refers to.

    Raises:
        ConfigError: It is not a state, or not of this dataset.
        DataChanged: The data were loaded again since.
    """
    position = Position.from_state(state)
    mine = identity_of(reader, order)
    _check(state, mine)
    if mine["row_bytes"] is not None:
        order = replace(order, row_bytes=_row_bytes(state["row_bytes"]))
    if order.known:
        order.pieces(position.chain, shard)  # refuses a place beyond the end
        return position, order
    if any(n != shard.count for n, _ in position.chain):
        raise ConfigError(
            "the rows of each partition are not known (where=, nulls='drop', no manifest): a state"
            " fits the same number of workers only"
        )
    consumed = sum(rows for _, rows in position.chain)
    if consumed and consumed > (most := _most_rows(reader, order)):
        raise ConfigError(f"a state after {consumed} rows of at most {most}", hint=_HINT)
    return position, order


def _check(state: dict[str, Any], mine: dict[str, Any]) -> None:
    names = {"epoch", "chain", *mine}
    if wrong := sorted(names ^ set(state), key=str):
        has = "has no" if wrong[0] in names else "has an unknown"
        raise ConfigError(f"not a state of a dataset: it {has} {wrong[0]!r}", hint=_HINT)
    for name, own in mine.items():
        theirs = state[name]
        if name == "row_bytes" and own is not None:
            continue
        if theirs is not None and own is not None and type(theirs) is not type(own):
            raise ConfigError(f"not a state of a dataset: {name} is {theirs!r}", hint=_HINT)
        if theirs == own or (name in _IF_KNOWN and None in (theirs, own)):
            continue
        kind = DataChanged if name in _OF_DATA else ConfigError
        raise kind(
            f"the state is of {name} {theirs!r}, this dataset has {own!r}",
            hint="resume with the arguments, and the data, that the state was taken with",
        )


def _row_bytes(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value) and 0 <= value < _MOST_ROW_BYTES:
        return float(value)
    raise ConfigError(f"not a state of a dataset: row_bytes is {value!r}", hint=_HINT)


def _most_rows(reader: CacheReader, order: Order) -> int:
    manifest = reader.manifest
    if manifest is not None and manifest.partition_rows:
        return sum(order.counts)
    return reader.client.cache_size(reader.cache)


def _checksum(numbers: Sequence[int]) -> str:
    return f"{zlib.crc32(np.asarray(numbers, '<i8').tobytes()):08x}"


def _digest(values: Sequence[Any]) -> str:
    """Return a checksum of values: they may be anything SQL takes, and private."""
    found = hashlib.sha256()
    for value in values:
        encoded = encode_parameter(value)
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.hexdigest()[:16]
