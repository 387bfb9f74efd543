"""`ReadOptions`: what to read from a cache, and how; also the policies for nulls.

**options** -> reader -> rows

The policy for records with nulls is `error`, `default`, `mask` or `drop`. If the schema version of
a record does not have a field, that field counts as null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.schema import Schema

__all__ = ["MASK_SUFFIX", "PAGE_BYTES", "NullPolicy", "ReadOptions", "apply_nulls", "check_masks"]

NullPolicy = Literal["error", "default", "mask", "drop"]
MASK_SUFFIX: Final = "_valid"


def _check_policy(policy: str) -> NullPolicy:
    """Return the checked name of a policy; raises ConfigError for an unknown one."""
    for known in get_args(NullPolicy):
        if policy == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"nulls={policy!r}", hint=f"one of {', '.join(get_args(NullPolicy))}")


def check_masks(schema: Schema) -> None:
    """Raise ConfigError if a mask would take the name of a field."""
    for where, fields in (("", schema.fields), ("the key's ", schema.key.fields)):
        names = {f.name for f in fields}
        for name in sorted(names):
            if name + MASK_SUFFIX in names:
                raise ConfigError(
                    f"nulls='mask' adds {name + MASK_SUFFIX!r} to mark the nulls of {where}"
                    f"{name!r}, but there is a field of that name",
                    hint="take one of the two with fields=[...], or another nulls=",
                )


def apply_nulls(batch: Batch, policy: NullPolicy) -> tuple[Batch, int]:
    """Return the batch without nulls, and how many records were dropped.

    - `error` raises SchemaError for the first null (its `record` and `field`);
    - `default` leaves zeros, empty strings and empty runs;
    - `mask` does the same and adds a bool column `FIELD_valid` for every field;
    - `drop` leaves out the record.

    Fields of composite keys are treated like fields of values.
    """
    masks = _masks(batch.columns)
    key_masks: dict[str, NDArray[np.bool_]] = {}
    if isinstance(batch.key, Struct):
        key_masks = _masks(batch.key.fields)
    if policy == "mask":
        key = batch.key
        if isinstance(key, Struct):
            key = Struct(_masked(key.fields, key_masks, len(batch)))
        return Batch(key, _masked(batch.columns, masks, len(batch))), 0
    if not masks and not key_masks:
        return batch, 0
    if policy == "error":
        _refuse(masks, key_masks)
    key = _filled(batch.key) if isinstance(batch.key, Struct) else batch.key
    whole = Batch(key, {name: _filled(column) for name, column in batch.columns.items()})
    if policy == "default":
        return whole, 0
    keep = np.logical_and.reduce([*masks.values(), *key_masks.values()])
    return whole[np.flatnonzero(keep)], int(len(batch) - keep.sum())


def _masks(columns: Mapping[str, Column]) -> dict[str, NDArray[np.bool_]]:
    """Return by column which records are without nulls, for the columns that contain any."""
    found = {name: _record_valid(column) for name, column in columns.items()}
    return {name: valid for name, valid in found.items() if valid is not None}


def _filled(column: Column) -> Column:
    """Return a column without null marks.

    Objects without fields keep the marks, because only these show the number of records.
    """
    if isinstance(column, Struct):
        fields = {name: _filled(inner) for name, inner in column.fields.items()}
        return Struct(fields, None if fields else np.ones(len(column), np.bool_))
    if isinstance(column, Runs):
        return Runs(_filled(column.items), column.starts, column.lengths)
    return column if column.valid is None else column.marked(None)


def _masked(
    columns: Mapping[str, Column], masks: dict[str, NDArray[np.bool_]], rows: int
) -> dict[str, Column]:
    every = np.ones(rows, np.bool_)
    valid = {name + MASK_SUFFIX: Dense(masks.get(name, every)) for name in columns}
    return {**{name: _filled(column) for name, column in columns.items()}, **valid}


def _refuse(
    masks: dict[str, NDArray[np.bool_]], key_masks: dict[str, NDArray[np.bool_]]
) -> NoReturn:
    """Raise SchemaError for the first null."""
    found = [(int(np.argmin(valid)), "key." + name) for name, valid in key_masks.items()]
    found += [(int(np.argmin(valid)), name) for name, valid in masks.items()]
    record, name = min(found, key=lambda item: item[0])
    ways = "read it with nulls='mask', 'default' or 'drop'"
    if name in masks:
        ways += ", or leave it out with fields=[...]"
    hint = "'mask' adds a column that marks nulls, 'default' reads 0 or empty, 'drop' skips the row"
    raise SchemaError(f"field {name!r} is null; {ways}", hint=hint, field=name, record=record)


def _record_valid(column: Column) -> NDArray[np.bool_] | None:
    """Return which records have no null in this field, including lists and nested objects.

    Returns:
        Bool [n], or None if the field does not contain nulls.
    """
    parts = [] if column.valid is None else [column.valid]
    if isinstance(column, Struct):
        parts += [v for c in column.fields.values() if (v := _record_valid(c)) is not None]
    elif isinstance(column, Runs) and (inner := _record_valid(column.items)) is not None:
        nulls = np.concatenate(([0], np.cumsum(~inner)))
        parts.append(nulls[column.starts + column.lengths] == nulls[column.starts])
    if not parts:
        return None
    whole: NDArray[np.bool_] = np.logical_and.reduce(parts)
    return None if whole.all() else whole


# Approximate size of a batch that is passed on at once.
PAGE_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class ReadOptions:
    """The rows and fields to read from a cache, and the order.

    Attributes:
        fields: Names of value fields, None for all.
        where: SQL condition that the node evaluates, None for all entries.
        where_params: Values for the `?` in it.
        table: The SQL table to read if the cache has several; None for its only one.
        split: Name of the split to read, see `selection.find_split`; None for all rows.
        schema: Declared schema, see the module `fields`.
        nulls: Policy for nulls.
        raw_nulls: Leave nulls in the columns, marked by `valid`; no policy is applied.
        skip_unreadable: Leave out fields that cannot be read, instead of raising.
        page_size: Entries in a page; None derives it from the speed of the connection.
        readers: Connections at once, at least one to each node.
        retry_s: Seconds allowed for replacing a lost connection, None for the `idle_timeout_s` of
            the settings.
        version: Required version of the manifest.
        on_change: `error`, `warn` or `ignore`, for a partition whose number of entries differs from
            the manifest.
    """

    fields: Sequence[str] | None = None
    where: str | None = None
    where_params: tuple[Any, ...] = ()
    table: str | None = None
    split: str | None = None
    schema: Any = None
    nulls: NullPolicy = "error"
    raw_nulls: bool = False
    skip_unreadable: bool = False
    page_size: int | None = None
    readers: int = 1
    retry_s: float | None = None
    version: int | None = None
    on_change: str = "error"

    @property
    def selects(self) -> bool:
        """True if only some entries are read."""
        return self.where is not None or self.table is not None

    def check(self) -> None:
        """Raise ConfigError for an unusable value."""
        _check_policy(self.nulls)
        if self.page_size is not None and not 0 < self.page_size < 1 << 31:
            raise ConfigError(f"page_size must be above zero, not {self.page_size}")
        if self.readers < 1:
            raise ConfigError(f"readers must be 1 or more, not {self.readers}")
        if self.on_change not in ("error", "warn", "ignore"):
            raise ConfigError(f"on_change={self.on_change!r}", hint="one of error, warn, ignore")
        if self.where_params and self.where is None:
            raise ConfigError("where_params= needs where=", hint="pass where=")
