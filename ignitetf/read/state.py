"""The state of a training as JSON, and the check that it belongs to this way of reading.

scan_order -> **state** -> rows

A state names a place in an order of rows, and everything that this order depends on. If the current
way of reading has another order, the state is refused. One value is only an estimate: the bytes of
a row of a cache without a manifest. It may differ each time, so it is taken from the state. This
module does not import TensorFlow.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, DataChanged
from ignitetf.read.blocks import BlockOrder, RowOrder
from ignitetf.read.key_order import KeyOrder, StepOrder
from ignitetf.read.mix_order import MixOrder
from ignitetf.read.reader import CacheReader
from ignitetf.read.scan_order import Position, ScanOrder, Shard
from ignitetf.wire.requests import encode_parameter

__all__ = ["identity_of", "mix_identity_of", "mix_placed", "placed"]

# Incremented whenever the same arguments mean another order of rows than before.
_FORMAT: Final = 3
_HINT: Final = "pass what state() gave, as it is"
_PLACE: Final = ("epoch", "chain")
# Entries that may be known in one state and unknown in another state of the same order.
_IF_KNOWN: Final = ("rows", "counts")
_OF_DATA: Final = ("version", "entries", "keys", "blocks", *_IF_KNOWN)
_MOST_ROW_BYTES: Final = 1 << 40


def identity_of(reader: CacheReader, order: RowOrder) -> dict[str, Any]:
    """Return everything that the order of the rows depends on, except the place in it, as JSON.

    Numbers and short texts are stored directly, longer values as a checksum.
    """
    options, manifest = reader.options, reader.manifest
    drops = options.nulls == "drop"
    return {
        "format": _FORMAT,
        "cache": reader.name,
        "version": None if manifest is None else manifest.version,
        "entries": None if manifest is None else reader.contents.entries,
        "where": options.where,
        "table": options.table,
        "split": None if reader.split is None else reader.split.identity,
        "where_params": _digest(options.where_params) if options.where_params else None,
        # Which rows are dropped depends on the fields that are read.
        "drops": _digest([f.name for f in reader.schema.fields]) if drops else None,
        "order": order.name,
        "even": order.even,
        "seed": order.seed,
        **_identity_of_order(order),
    }


def _identity_of_order(order: RowOrder) -> dict[str, Any]:
    if isinstance(order, KeyOrder):
        return {"rows": order.total, "keys": order.keys.digest}
    if isinstance(order, BlockOrder):
        digest = order.blocks.digest
        return {"rows": order.total, "blocks": digest, "window_bytes": order.window_bytes}
    return _identity_of_scan(order)


def _identity_of_scan(order: ScanOrder) -> dict[str, Any]:
    shuffled = order.seed is not None
    counted = order.known or shuffled
    return {
        "partitions": f"{len(order.partitions)}:{_checksum(order.partitions)}",
        "window_bytes": order.window_bytes if shuffled else None,
        "row_bytes": float(order.row_bytes) if shuffled else None,
        "rows": sum(order.counts) if order.known else None,
        "counts": _checksum(order.counts) if counted else None,
    }


def mix_identity_of(
    order: MixOrder, components: Mapping[str, tuple[CacheReader, KeyOrder]]
) -> dict[str, Any]:
    """Return everything that the order of a mixture depends on, except the place in it, as JSON.

    Weights are stored as the number of rows of each component that they lead to.
    """
    parts = []
    for share, (name, (reader, keys)) in zip(order.shares, components.items(), strict=True):
        parts.append({"name": name, **identity_of(reader, keys), "share": share.rows})
    return {
        "format": _FORMAT,
        "order": "mix",
        "even": order.even,
        "seed": order.seed,
        # Interleaving depends on the size of a step; a permutation does not.
        "step": order.global_batch if order.seed is None else None,
        "components": parts,
    }


def mix_placed(
    state: Any, order: MixOrder, components: Mapping[str, tuple[CacheReader, KeyOrder]]
) -> Position:
    """Return the position in the state of a mixture.

    Raises:
        ConfigError: It is not a state, or not a state of this mixture.
        DataChanged: The data of a component were loaded again since.
    """
    position = Position.from_state(state)
    mine = mix_identity_of(order, components)
    _check_kind(state, mine)
    theirs, own = state.get("components"), mine.pop("components")
    if not isinstance(theirs, list) or not all(isinstance(part, dict) for part in theirs):
        raise ConfigError("not a state of a mixture: it has no list of components", hint=_HINT)
    if (names := [part.get("name") for part in theirs]) != list(components):
        raise ConfigError(
            f"the state is of the components {', '.join(map(str, names))}, this mixture has"
            f" {', '.join(components)}",
            hint="resume with the components, in the order, that the state was taken with",
        )
    for name, part, expected in zip(components, theirs, own, strict=True):
        try:
            _check_entries(part, expected)
        except (ConfigError, DataChanged) as error:
            raise error.at(f"component {name!r}") from error
    _check_entries(_without(state, *_PLACE, "components"), mine)
    return position


def placed(
    state: Any, reader: CacheReader, order: RowOrder, shard: Shard
) -> tuple[Position, RowOrder]:
    """Return the position in a state, and the order that it refers to.

    Raises:
        ConfigError: It is not a state, or not a state of this dataset.
        DataChanged: The data were loaded again since.
    """
    position = Position.from_state(state)
    mine = identity_of(reader, order)
    _check_kind(state, mine)
    _check_entries(_without(state, *_PLACE), mine)
    if isinstance(order, StepOrder):
        order.slices(position, shard)  # refuses a place beyond the end
        return position, order
    if mine["row_bytes"] is not None:
        order = replace(order, row_bytes=_row_bytes(state["row_bytes"]))
    has_other_workers = any(n != shard.count for n, _ in position.chain)
    if has_other_workers and not order.known and reader.counts_are_exact:
        counts = tuple(reader.partition_counts(order.partitions))
        order = replace(order, counts=counts, known=True)
    if order.known:
        order.pieces(position.chain, shard)  # refuses a place beyond the end
        return position, order
    if has_other_workers:
        raise ConfigError(
            "the rows of each partition are not known (where=, nulls='drop'): a state fits the same"
            " number of workers only",
            hint="order='keys' and 'global' fit any number",
        )
    consumed = sum(rows for _, rows in position.chain)
    if consumed and consumed > (most := _row_limit(reader, order)):
        raise ConfigError(
            f"the state is after {consumed} rows, but there are at most {most}", hint=_HINT
        )
    return position, order


def _check_kind(state: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise ConfigError unless a state has this format and kind of order."""
    if (found := state.get("format")) != _FORMAT:
        raise ConfigError(
            "the state was taken by another version of ignitetf"
            f" ({'without a format' if found is None else f'format {found!r}'}, this one has"
            f" {_FORMAT}), whose orders differ",
            hint="begin the epoch again, or continue with that version",
        )
    if state.get("order") != mine["order"]:
        raise ConfigError(
            f"the state is of order {state.get('order')!r}, this dataset has {mine['order']!r}",
            hint="resume with the arguments that the state was taken with",
        )


def _check_entries(state: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise an error unless a state agrees with the current way of reading."""
    if wrong := sorted(set(mine) ^ set(state), key=str):
        has = "has no" if wrong[0] in mine else "has an unknown"
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


def _without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}


def _row_bytes(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value) and 0 <= value < _MOST_ROW_BYTES:
        return float(value)
    raise ConfigError(f"not a state of a dataset: row_bytes is {value!r}", hint=_HINT)


def _row_limit(reader: CacheReader, order: ScanOrder) -> int:
    return sum(order.counts) if reader.has_counts else reader.contents.rows


def _checksum(numbers: Sequence[int]) -> str:
    return f"{zlib.crc32(np.asarray(numbers, '<i8').tobytes()):08x}"


def _digest(values: Sequence[Any]) -> str:
    """Return a checksum of values; they may have any SQL type, and may be private."""
    found = hashlib.sha256()
    for value in values:
        encoded = encode_parameter(value)
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.hexdigest()[:16]
