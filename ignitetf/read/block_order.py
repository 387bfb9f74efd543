"""The global order of rows that are stored in blocks: which row of which block is at which place.

manifest, permutation -> **block order** -> block lookup -> rows

Each epoch the blocks are permuted. Consecutive ones make a window of a limited number of bytes, and
the rows of each window are permuted. Both permutations are computed from seed and epoch, so that
any place can be looked up: only the number of rows in each block is kept, nothing for each row.

No sockets and no TensorFlow here.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.key_order import KeyOrder, StepOrder
from ignitetf.read.keys import IntegerKeys
from ignitetf.read.permutation import Permutation
from ignitetf.read.plan import OrderName, ScanOrder
from ignitetf.tables.catalog import Manifest
from ignitetf.wire.blocks import BLOCK_KEY, BlockKeys
from ignitetf.wire.schema import Schema

__all__ = ["BlockOrder", "EpochBlocks", "RowOrder", "StoredBlocks"]


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """The blocks of a data set, numbered partition after partition.

    Attributes:
        keys: Their keys.
        rows: Rows in each, int64 [blocks].
        row_bytes: Bytes of a row.
    """

    keys: IntegerKeys
    rows: NDArray[np.int64]
    row_bytes: float

    @classmethod
    def of(cls, manifest: Manifest) -> StoredBlocks:
        """Return the blocks of a data set in the block layout.

        Raises:
            ConfigError: The manifest does not say how many rows each block has.
        """
        facts = manifest.options
        rows = np.array(facts.block_rows, np.int64)
        if len(rows) != sum(facts.blocks) or int(rows.sum()) != manifest.rows:
            raise ConfigError(
                f"{manifest.name}: the rows of each block are not known, since it was loaded by an"
                " earlier version of ignitetf",
                hint="load it again with --if-exists replace, or take order='scan'",
                cache=manifest.name,
            )
        keys = BlockKeys(len(facts.blocks), facts.blocks).handed_out()
        schema = Schema(None, BLOCK_KEY, ())
        row_bytes = manifest.nbytes / max(1, manifest.rows)
        return cls(IntegerKeys(schema, len(rows), keys), rows, row_bytes)

    @functools.cached_property
    def firsts(self) -> NDArray[np.int64]:
        """Number of the first row of each block."""
        return np.cumsum(self.rows) - self.rows

    @functools.cached_property
    def digest(self) -> str:
        """A checksum of the rows of all blocks, in order."""
        return f"{zlib.crc32(self.rows.astype('<i8').tobytes()):08x}"


@dataclass(frozen=True, eq=False)
class EpochBlocks:
    """The blocks of an epoch, laid end to end.

    Attributes:
        order: Their numbers in the order of the epoch.
        ends: Rows up to the end of each.
        windows: Rows before each window, and at last all rows.
    """

    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    windows: NDArray[np.int64]


@dataclass(frozen=True)
class BlockOrder(StepOrder):
    """The order of rows that are stored in blocks; without a seed, that in which they are stored.

    Attributes:
        blocks: The blocks.
        window_bytes: Upper limit for a window of more than one block.
        seed: Seed of the permutations.
    """

    blocks: StoredBlocks
    window_bytes: int
    seed: int | None = None

    @property
    def name(self) -> OrderName:
        """`global`."""
        return "global"

    @property
    def total(self) -> int:
        """The number of rows."""
        return int(self.blocks.rows.sum())

    def layout(self, epoch: int) -> EpochBlocks:
        """Return the blocks of an epoch in their order."""
        limit = int(self.window_bytes / max(1.0, self.blocks.row_bytes))
        return _layout(self.blocks, self.seed, epoch, limit)

    def stands_at(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the row of each place stands among the rows of `layout`."""
        if self.seed is None:
            return places
        windows = self.layout(epoch).windows
        window = np.searchsorted(windows, places, side="right") - 1
        # Places rise but for rows that are repeated, so this costs hardly more than a pass.
        by_window = np.argsort(window, kind="stable")
        cuts = np.flatnonzero(np.diff(window[by_window])) + 1
        found = np.empty_like(places)
        for at in np.split(by_window, cuts):
            if not len(at):
                continue
            number = int(window[at[0]])
            first, rows = int(windows[number]), int(windows[number + 1] - windows[number])
            permutation = _permutation(rows, self.seed, epoch, number)
            found[at] = first + permutation(places[at] - first)
        return found

    def numbers(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the row at each place; rows are numbered as they are stored."""
        if self.seed is None:
            return places
        layout = self.layout(epoch)
        at = self.stands_at(epoch, places)
        of = np.searchsorted(layout.ends, at, side="right")
        block = layout.order[of]
        return self.blocks.firsts[block] + self.blocks.rows[block] + at - layout.ends[of]


# Any order of the rows of a data set.
RowOrder = ScanOrder | KeyOrder | BlockOrder


@functools.lru_cache(maxsize=4)
def _layout(blocks: StoredBlocks, seed: int | None, epoch: int, limit: int) -> EpochBlocks:
    count = len(blocks.rows)
    order = np.arange(count, dtype=np.int64)
    if seed is not None:
        order = Permutation(count, seed, epoch)(order)
    sizes = blocks.rows[order]
    ends = np.cumsum(sizes)
    windows, at = [0], 0
    while at < count:
        fitting = int(np.searchsorted(ends, windows[-1] + limit, side="right"))
        at = max(at + 1, fitting)
        windows.append(int(ends[at - 1]))
    return EpochBlocks(order, ends, np.array(windows, np.int64))


@functools.lru_cache(maxsize=8)
def _permutation(count: int, seed: int, epoch: int, window: int) -> Permutation:
    return Permutation(count, seed, epoch, window)
