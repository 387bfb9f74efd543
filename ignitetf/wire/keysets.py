"""`KeySet`: a set of keys from one query, used to select the matching entries of other pages.

pages -> **keys** -> pages

Keys are compared by their bytes, which are the same in every answer because a node returns them as
stored. Keys of one length are kept together and sorted, so they need no more memory than their
bytes, and all entries of a page are looked up at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.frames import Page
from ignitetf.wire.objects import bytes_at, find_rows, gather, unwrap

__all__ = ["KeySet", "key_extents"]

_OBJECT_LENGTH_AT: Final = 12


class KeySet:
    """A set of keys."""

    def __init__(self) -> None:
        """Start with an empty set."""
        self._new: dict[int, list[NDArray[Any]]] = {}
        self._sorted: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._settled().values()))

    def add(self, page: Page) -> None:
        """Add the keys of a page whose rows consist of just the key."""
        (at,) = find_rows(page.data, page.count, 1)
        begin, length = key_extents(page.data, at, np.append(at[1:], len(page.data)))
        for size in np.unique(length).tolist():
            same = begin[length == size]
            self._new.setdefault(size, []).append(_items(page.data, same, size))

    def entries(self, page: Page) -> Page:
        """Return the entries of a page whose keys are in the set, in the page's order."""
        key_at, value_at = find_rows(page.data, page.count)
        begin, length = key_extents(page.data, key_at, value_at)
        chosen = np.zeros(page.count, np.bool_)
        known = self._settled()
        for size in np.unique(length).tolist():
            keys = known.get(size)
            if keys is None:
                continue
            rows = np.flatnonzero(length == size)
            wanted = _items(page.data, begin[rows], size)
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            chosen[rows] = keys[place] == wanted
        if chosen.all():
            return page
        nbytes = np.diff(np.append(key_at, len(page.data)))
        return replace(page, count=int(chosen.sum()), data=page.data[np.repeat(chosen, nbytes)])

    def _settled(self) -> dict[int, NDArray[Any]]:
        for size, parts in self._new.items():
            before = [self._sorted[size]] if size in self._sorted else []
            self._sorted[size] = np.unique(np.concatenate([*before, *parts]))
        self._new = {}
        return self._sorted


def key_extents(
    data: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return position and length of each key's own bytes, without a wrapper.

    Args:
        data: A page's bytes.
        at: Where each key begins.
        end: Where whatever follows it begins.
    """
    begin = unwrap(data, at) if len(at) else at
    length = end - begin
    objects = begin != at
    if objects.any():
        length[objects] = gather(data, begin[objects] + _OBJECT_LENGTH_AT, "<i4")
    return begin, length


def _items(data: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[Any]:
    """The keys as void values, which NumPy sorts by their bytes."""
    return np.ascontiguousarray(bytes_at(data, at, size)).view(f"V{size}")[:, 0]
