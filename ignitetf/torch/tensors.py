"""NumPy columns as PyTorch tensors.

export -> **tensors** -> map_style, iterable
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ignitetf.read.export import DenseNode, Node, Ragged, StructNode

__all__ = ["records_of", "stacked", "tensors_of"]

# PyTorch has uint16, uint32 and uint64 in name only: it cannot even add them. The first two fit
# into the next wider type; uint64 stays, because no other type has all its values.
_WIDER: Final[dict[Any, np.dtype[Any]]] = {
    np.dtype("u2"): np.dtype("i4"),
    np.dtype("u4"): np.dtype("i8"),
}


def tensors_of(columns: Any) -> Any:
    """Convert columns, in the structure that `export.columns_of` gives them.

    Returns:
        Numbers: a tensor `[n, *shape]` that shares the memory of the column if that is without gaps
            and may be written to; uint16 becomes int32 and uint32 int64. Texts: a list of `bytes`.
            Lists: a list with the tensor (or list) of each record. Objects and maps: a dict.
    """
    if isinstance(columns, dict):
        return {name: tensors_of(column) for name, column in columns.items()}
    if isinstance(columns, Ragged):
        return _parts(tensors_of(columns.values), columns.offsets)
    if columns.dtype == object:
        return columns.tolist()
    return torch.from_numpy(_own(columns))


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array if PyTorch can take it as it is, else a copy.

    Columns with gaps are copied, too: sent to another process, a tensor takes all the memory
    between its first and its last value with it.
    """
    wider = _WIDER.get(array.dtype)
    if wider is not None:
        return array.astype(wider)
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned and flags.writeable else array.copy()


def _parts(values: Any, offsets: NDArray[np.int64]) -> list[Any]:
    bounds = offsets.tolist()
    return [_between(values, *pair) for pair in itertools.pairwise(bounds)]


def _between(values: Any, start: int, stop: int) -> Any:
    if isinstance(values, dict):
        return {name: _between(part, start, stop) for name, part in values.items()}
    return values[start:stop]


def records_of(tensors: Any) -> list[Any]:
    """Take apart what `tensors_of` returned: one structure for each record, over the same memory."""
    if isinstance(tensors, dict):
        parts = {name: records_of(column) for name, column in tensors.items()}
        rows = zip(*parts.values(), strict=True)
        return [dict(zip(parts, row, strict=True)) for row in rows]
    return tensors if isinstance(tensors, list) else list(tensors.unbind(0))


def stacked(node: Node, records: Iterable[Any]) -> Any:
    """Put the values that records have of one field together: the inverse of `records_of`."""
    if isinstance(node, StructNode):
        found = list(records)
        return {name: stacked(inner, [r[name] for r in found]) for name, inner in node.fields}
    return torch.stack(list(records)) if isinstance(node, DenseNode) else list(records)
