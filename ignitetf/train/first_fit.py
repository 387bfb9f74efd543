"""First-fit packing: which pieces of which documents go into which packed row; pure arithmetic.

lengths of documents -> pieces -> **first fit** -> packing

The result depends on the lengths alone, so every worker computes the same rows without reading a
document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError

__all__ = ["Long", "PackedWindow", "Packing", "first_fit"]

Numbers = NDArray[np.int64]
Long = Literal["split", "truncate", "error"]


@dataclass(frozen=True)
class Packing:
    """The rule that makes rows of equal length of documents.

    Attributes:
        field: The field with the tokens of a document.
        length: Tokens of a packed row.
        eos: Token after each document; None for none.
        pad: Token where a row has no document.
        window: Documents that are packed together.
        long: Treatment of a document that does not fit into a row.
    """

    field: str
    length: int
    eos: int | None
    pad: int
    window: int
    long: Long

    def pack(self, documents: Numbers, lengths: Numbers) -> PackedWindow:
        """Pack the documents of a window, in their order.

        Args:
            documents: The number of each document.
            lengths: Its number of tokens, without `eos`.

        Raises:
            ConfigError: A document is too long, and `long` is `error`.
        """
        sizes = np.where(lengths > 0, lengths + (self.eos is not None), 0)
        if self.long == "error" and (sizes > self.length).any():
            at = int(np.argmax(sizes > self.length))
            raise ConfigError(
                f"row {documents[at]} has {lengths[at]} tokens, a packed row has {self.length}"
                + ("" if self.eos is None else " with eos"),
                hint="long='split' cuts such a document into several pieces, 'truncate' cuts off its end",
            )
        if self.long == "truncate":
            sizes = np.minimum(sizes, self.length)
        counts = -(-sizes // self.length)
        of = np.repeat(np.arange(len(sizes)), counts)
        starts = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * self.length
        pieces = np.minimum(sizes[of] - starts, self.length)
        rows = first_fit(pieces, self.length)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], np.arange(int(rows.max(initial=-1)) + 2))
        return PackedWindow(documents[of[order]], starts[order], pieces[order], bounds)


@dataclass(frozen=True)
class PackedWindow:
    """The packed rows of a window: row i has the pieces `bounds[i]` to `bounds[i + 1]`.

    Attributes:
        documents: The number of the document of each piece.
        starts: The first token of the piece in its document.
        sizes: Tokens of the piece; `eos` counts as the last token of its document.
        bounds: Start of the pieces of each row, and the end of the last row.
    """

    documents: Numbers
    starts: Numbers
    sizes: Numbers
    bounds: Numbers

    def __len__(self) -> int:
        return len(self.bounds) - 1


def first_fit(sizes: Numbers, length: int) -> Numbers:
    """Return the row of each piece: the first row that still has room for it.

    Args:
        sizes: Size of each piece, from 1 to `length`.
        length: Room of a row.
    """
    # A tree over all rows: each node has the most room that a row below it has.
    leaves = 1 << max(0, len(sizes) - 1).bit_length()
    room = [length] * (2 * leaves)
    found = []
    for size in sizes.tolist():
        at = 1
        while at < leaves:
            at *= 2
            at += room[at] < size
        found.append(at - leaves)
        most = room[at] - size
        room[at] = most
        while at > 1:
            most = max(most, room[at ^ 1])
            at //= 2
            if room[at] == most:
                break
            room[at] = most
    return np.array(found, np.int64)
