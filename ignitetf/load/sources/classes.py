"""One number for each class: rows that are appended take the numbers of the rows that are there.

names of both, Batch -> **labels renumbered** -> Batch

A source numbers its classes from 0 by itself, so two folders with other classes use one number for
different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ignitetf.errors import ConfigError, SourceError
from ignitetf.wire.columns import Batch, Column, Dense, Runs

__all__ = ["Numbering"]

# Fields whose values are numbers of classes.
_FIELDS: Final = ("LABEL", "BOX_LABELS")


class Numbering:
    """The numbers that the classes of a source have among those of a data set.

    Attributes:
        names: All classes: those of the data set, then new ones.
        own: Those of the source.
    """

    def __init__(self, own: Sequence[str], known: Sequence[str]) -> None:
        """Number the classes.

        Args:
            own: Names of the source, in the order of its labels.
            known: Names of the data set, in the order of its labels.

        Raises:
            ConfigError: Two classes have one name, so the name does not tell the number.
        """
        number_of = {name: number for number, name in enumerate(known)}
        if len(number_of) < len(known) or len(set(own)) < len(own):
            twice = next(n for names in (known, own) for n in names if list(names).count(n) > 1)
            raise ConfigError(
                f"two classes are called {twice!r}", hint="load the rows into a cache of their own"
            )
        for name in own:
            number_of.setdefault(name, len(number_of))
        self.names = list(number_of)
        self.own = list(own)
        self._numbers = np.array([number_of[name] for name in own], np.int64)

    def changes(self) -> str | None:
        """Return what users should know: a class that gets another number; None if none does."""
        moved = np.flatnonzero(self._numbers != np.arange(len(self.own)))
        if not moved.size:
            return None
        name, new = self.own[moved[0]], self._numbers[moved[0]]
        more = f", and {len(moved) - 1:,} more" if len(moved) > 1 else ""
        return (
            "classes keep the numbers of the rows before them, new ones follow:"
            f" {name!r} is {new}, not {moved[0]}{more}"
        )

    def apply(self, batch: Batch) -> Batch:
        """Return a batch of the source with the labels of the data set.

        Raises:
            SourceError: A label is the number of no class, or does not fit into its type.
        """
        columns = {
            name: self._column(name, column) if name in _FIELDS else column
            for name, column in batch.columns.items()
        }
        return replace(batch, columns=columns)

    def _column(self, name: str, column: Column) -> Column:
        if isinstance(column, Runs):
            return replace(column, items=self._column(name, column.items))
        if not isinstance(column, Dense) or column.values.dtype.kind not in "iu":
            return column
        labels = column.values
        if labels.size and int(labels.max()) >= len(self.own):
            raise SourceError(
                f"{name} {int(labels.max())} is none of the {len(self.own):,} classes",
                hint="name all classes, or load the rows into a cache of their own",
            )
        if len(self.names) - 1 > np.iinfo(labels.dtype).max:
            raise SourceError(
                f"{name}: {len(self.names):,} classes do not fit into {labels.dtype}",
                hint="load the rows into a cache of their own",
            )
        # Negative labels, of rows without a class, stay.
        moved = self._numbers.astype(labels.dtype)[np.maximum(labels, 0)]
        return Dense(np.where(labels < 0, labels, moved), column.valid)
