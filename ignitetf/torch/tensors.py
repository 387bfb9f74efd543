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

# PyTorch names uint16, uint32 and uint64 but cannot compute with them, not even add. The first two
# become the next wider type; uint64 stays, because no other type has all its values.
_WIDER: Final[dict[Any, np.dtype[Any]]] = {
    np.dtype("u2"): np.dtype("i4"),
    np.dtype("u4"): np.dtype("i8"),
}


def tensors_of(columns: Any) -> Any:
    """Convert columns, in the structure that `export.columns_of` gives them.

    Returns:
        Numbers: a tensor `[n, *shape]`. It shares the column's memory if that is contiguous and
            writable. uint16 becomes int32 and uint32 int64. Texts: a list of `bytes`. Lists: a list
            with the tensor (or list) of each record. Objects and maps: a dict.
    """
    if isinstance(columns, dict):
        return {name: tensors_of(column) for name, column in columns.items()}
    if isinstance(columns, Ragged):
        return _parts(tensors_of(columns.values), columns.offsets)
    if columns.dtype == object:
        return columns.tolist()
    return torch.from_numpy(_own(columns))


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array if PyTorch can use it as it is, otherwise a copy.

    Columns with gaps are copied, too: a tensor sent to another process includes all memory between
    its first and its last value.
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
    """Split the result of `tensors_of` into one structure for each record, over the same memory."""
    if isinstance(tensors, dict):
        parts = {name: records_of(column) for name, column in tensors.items()}
        rows = zip(*parts.values(), strict=True)
        return [dict(zip(parts, row, strict=True)) for row in rows]
    return tensors if isinstance(tensors, list) else list(tensors.unbind(0))


def stacked(node: Node, records: Iterable[Any]) -> Any:
    """Combine the records' values of one field: the inverse of `records_of`."""
    if isinstance(node, StructNode):
        found = list(records)
        return {name: stacked(inner, [r[name] for r in found]) for name, inner in node.fields}
    return torch.stack(list(records)) if isinstance(node, DenseNode) else list(records)
