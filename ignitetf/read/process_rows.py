"""Rows that can be sent to the worker processes of a loader; each process opens its own connection.

rows -> **process rows** -> torch, grain, train

Connections, and the threads that read from them, belong to one process. A pickle, and a forked
process, only have the description of how the rows were opened: settings, options, order and
position. The other process connects when it first reads. It raises an error if the data were loaded
again in the meantime.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.access import check_keyed, read_keys
from ignitetf.read.arguments import flag, label_of
from ignitetf.read.blocks import RowOrder
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import EpochRows, open_rows
from ignitetf.read.scan_order import Position, Shard
from ignitetf.settings import Settings

__all__ = ["ProcessRows", "label_name", "numbered", "opened", "with_label"]


def label_name(rows: EpochRows, as_supervised: Any) -> str | None:
    """Return the name of the label field; None unless `as_supervised`.

    Raises:
        ConfigError: There is not exactly one label, or there are no other fields.
    """
    if not flag("as_supervised", as_supervised):
        return None
    return label_of(list(rows.values), rows.reader.name)


def with_label(columns: dict[str, Any], label: str | None) -> Any:
    """Return columns, or a record, as `(features, label)`; unchanged if `label` is None.

    Features are a dict of the other fields, or the field itself if there is only one.
    """
    if label is None:
        return columns
    features = {name: column for name, column in columns["val"].items() if name != label}
    return (next(iter(features.values())) if len(features) == 1 else features), columns["val"][
        label
    ]


_OF_AN_ORDER: Final = (
    "order",
    "shuffle",
    "epoch",
    "shard",
    "even",
    "global_batch",
    "part",
    "local",
)


def opened(
    source: str | EpochRows, address: str | Sequence[str] | None, arguments: dict[str, Any]
) -> EpochRows:
    """Return opened rows unchanged, or open the rows of the data set with this name.

    Raises:
        ConfigError: Arguments are given for rows that are already open.
    """
    if isinstance(source, str):
        return open_rows(source, address, **arguments)
    if not isinstance(source, EpochRows):
        raise ConfigError(
            f"{type(source).__name__} is not a data set", hint="pass a name, or open_rows()"
        )
    given = [name for name, value in arguments.items() if value is not None]
    if address is not None or given:
        raise ConfigError(
            f"opened rows cannot be combined with {', '.join(given) or 'an address'}",
            hint="pass the arguments to open_rows, or the name of the data set",
        )
    return source


def numbered(
    what: str,
    source: str | EpochRows,
    address: str | Sequence[str] | None,
    arguments: dict[str, Any],
) -> EpochRows:
    """Return all rows in the order of their keys, independent of order and shard of opened rows.

    Args:
        what: The class that reads the rows by number, for errors.
        source: The name of a data set, or opened rows.
        address: Address of the cluster; None for opened rows.
        arguments: The arguments of `open_rows` that select rows and fields.

    Raises:
        ConfigError: An argument sets an order, although the loader decides the order; or the rows
            cannot be read by key.
    """
    if wrong := [name for name in _OF_AN_ORDER if arguments.get(name) is not None]:
        raise ConfigError(
            f"{what} does not take {wrong[0]}=",
            hint="its rows have numbers; the loader's sampler picks them",
        )
    if isinstance(source, str):
        return opened(source, address, {**arguments, "order": "keys", "shard": (0, 1)})
    reader = opened(source, address, arguments).reader
    check_keyed(reader, what)
    return EpochRows(reader, KeyOrder(read_keys(reader, "keys")), Shard(), Position(0))


@dataclass(frozen=True)
class _Opening:
    """Description of how rows were opened; can be pickled."""

    settings: Settings
    name: str
    options: ReadOptions
    order: RowOrder
    shard: Shard
    position: Position

    def rows(self) -> EpochRows:
        """Connect, and return the rows."""
        reader = CacheReader(Client(self.settings), self.name, self.options)
        return EpochRows(reader, self.order, self.shard, self.position)


class ProcessRows:
    """The same rows in every process.

    A pickle of it contains the settings of the connection, including a password if one is set.

    Args:
        rows: The rows, as opened by this process.
    """

    def __init__(self, rows: EpochRows) -> None:
        reader = rows.reader
        options = reader.options
        if reader.manifest is not None:
            # Every process must read the same version of the data, or fail.
            options = replace(options, version=reader.manifest.version)
        settings = reader.client.settings
        self._opening = _Opening(
            settings, reader.name, options, rows.order, rows.shard, rows.position
        )
        self._rows: EpochRows | None = rows
        self._process = os.getpid()

    def __getstate__(self) -> _Opening:
        return self._opening

    def __setstate__(self, opening: _Opening) -> None:
        self._opening = opening
        self._rows = None
        self._process = os.getpid()

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self._opening.name

    def get(self) -> EpochRows:
        """Return the rows of this process.

        Raises:
            DataChanged: The data were loaded again since they were opened.
            ConnectError: No node answered.
        """
        rows = self._rows if self._process == os.getpid() else None
        if rows is None:
            # Two threads may reach this line; the rows of one of them are then dropped.
            rows = self._opening.rows()
            self._rows, self._process = rows, os.getpid()
        return rows
