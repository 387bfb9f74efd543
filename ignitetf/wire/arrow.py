"""The parts of a column as Arrow arrays, which share memory with it where it has no gaps.

columns -> **texts, lists, arrays of one shape** -> read.export, dbapi.values, export.parquet

pyarrow is an argument, since only those who make tables need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.schema import Column

__all__ = ["FIELD_METADATA", "bytes_array", "fixed_array", "list_array", "validity"]

# The metadata of an Arrow field in which the field that it was is kept, as JSON.
FIELD_METADATA: Final = b"ignitetf"


def validity(pa: Any, valid: NDArray[np.bool_] | None) -> Any:
    """Return the buffer that marks which values are there; None if all are."""
    return None if valid is None or valid.all() else pa.array(valid).buffers()[1]


def bytes_array(pa: Any, column: Column, kind: Any) -> Any:
    """Return texts or blobs as `kind`: `large_string` or `large_binary`."""
    values, offsets = column.compact()
    assert isinstance(values, np.ndarray)
    data = pa.py_buffer(np.ascontiguousarray(values))
    buffers = [validity(pa, column.valid), pa.py_buffer(offsets), data]
    found = pa.Array.from_buffers(kind, len(column), buffers)
    if kind == pa.large_string():
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise WireError(
                f"a text is not UTF-8, as Arrow wants it: {error}",
                hint="take fetchall() where a text has half of a surrogate pair",
            ) from error
    return found


def list_array(
    pa: Any, items: Any, offsets: NDArray[np.int64], valid: NDArray[np.bool_] | None = None
) -> Any:
    """Return lists as `large_list`: list i is `items[offsets[i] : offsets[i + 1]]`."""
    buffers = [validity(pa, valid), pa.py_buffer(offsets)]
    kind = pa.large_list(items.type)
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[items])


def fixed_array(
    pa: Any,
    values: NDArray[Any],
    shape: Sequence[int],
    valid: NDArray[np.bool_] | None = None,
) -> Any:
    """Return arrays `[n, ...]` as nested lists of fixed sizes `shape`; numbers, if that is ()."""
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in reversed(range(len(shape))):
        kind = pa.list_(array.type, shape[axis])
        count = len(values) * int(np.prod(shape[:axis], dtype=np.int64))
        # `from_arrays` cannot infer the number of lists of length 0.
        buffers = [validity(pa, valid) if axis == 0 else None]
        array = pa.Array.from_buffers(kind, count, buffers, children=[array])
    return array
