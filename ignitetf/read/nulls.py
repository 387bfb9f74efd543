"""What becomes of records with a null: `error`, `default`, `mask` or `drop`.

A field that a record's schema version does not have counts as null.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.schema import Batch, Column

__all__ = ["MASK_SUFFIX", "NullPolicy", "apply_nulls", "check_policy", "record_valid"]

NullPolicy = Literal["error", "default", "mask", "drop"]
MASK_SUFFIX: Final = "_valid"


def check_policy(policy: str) -> NullPolicy:
    """The policy of this name; raises ConfigError for another word."""
    for known in get_args(NullPolicy):
        if policy == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"nulls={policy!r}", hint=f"one of {', '.join(get_args(NullPolicy))}")


def apply_nulls(batch: Batch, policy: NullPolicy) -> tuple[Batch, int]:
    """The batch without nulls, and how many records were dropped.

    - `error` raises SchemaError for the first null (its `record` and `field`);
    - `default` leaves zeros, empty strings and empty runs;
    - `mask` does too, and adds a bool column `FIELD_valid` for every field;
    - `drop` leaves the record out.
    """
    found = {name: record_valid(column) for name, column in batch.columns.items()}
    masks = {name: valid for name, valid in found.items() if valid is not None}
    if policy == "mask":
        every = np.ones(len(batch), np.bool_)
        columns = {name: Column(c.values, c.starts, c.lengths) for name, c in batch.columns.items()}
        for name in batch.columns:
            columns[name + MASK_SUFFIX] = Column(masks.get(name, every))
        return Batch(batch.key, columns), 0
    if not masks:
        return batch, 0
    if policy == "error":
        name, valid = min(masks.items(), key=lambda item: int(np.argmin(item[1])))
        raise SchemaError(
            f"field {name!r} is null",
            hint="nulls='default', 'mask' or 'drop' reads such records; fields=[...] leaves the"
            " field out",
            field=name,
            record=int(np.argmin(valid)),
        )
    columns = {name: Column(c.values, c.starts, c.lengths) for name, c in batch.columns.items()}
    whole = Batch(batch.key, columns)
    if policy == "default":
        return whole, 0
    keep = np.logical_and.reduce(list(masks.values()))
    return whole[np.flatnonzero(keep)], int(len(batch) - keep.sum())


def record_valid(column: Column) -> NDArray[np.bool_] | None:
    """Which records have no null in this field, inside lists and nested objects too.

    Returns:
        Bool [n], or None where no record has a null.
    """
    parts = [] if column.valid is None else [column.valid]
    if isinstance(column.values, dict):
        parts += [v for c in column.values.values() if (v := record_valid(c)) is not None]
    elif isinstance(column.values, Column) and (inner := record_valid(column.values)) is not None:
        assert column.starts is not None and column.lengths is not None
        nulls = np.concatenate(([0], np.cumsum(~inner)))
        parts.append(nulls[column.starts + column.lengths] == nulls[column.starts])
    if not parts:
        return None
    whole: NDArray[np.bool_] = np.logical_and.reduce(parts)
    return None if whole.all() else whole
