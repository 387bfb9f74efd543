"""`Source`: the rows of a data set by number, for Grain; imports neither TensorFlow nor Grain.

process rows -> **grain**
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from ignitetf.errors import DataChanged
from ignitetf.read.export import count_of, record_of
from ignitetf.read.process_rows import ProcessRows, label_name, numbered, with_label
from ignitetf.read.rows import EpochRows
from ignitetf.read.state import identity_of

__all__ = ["Source"]

# Arguments that decide the number of a row; not the address, nor the order, which Grain decides.
_IDENTITY = ("cache", "version", "rows", "keys", "split", "where", "where_params", "table")


class Source:
    """The rows of a data set by number, as a random access data source of Grain.

        source = Source("MNIST_TRAIN", as_supervised=True)
        images = grain.MapDataset.source(source).seed(7).shuffle().batch(128)

    Row i is the i-th in the order of the keys, in every process. For loaded data this is the order
    of the source. Rows are in the structure of `EpochRows[i]`: NumPy values, texts as `bytes`.
    Threads and worker processes may share a source; each process has its own connections.

    Its `repr`, by which Grain's checkpoints recognise it, names the data set, its version, the
    number and a checksum of its keys, and the selection of rows and fields.

    Args:
        source: Name of the data set, or opened rows.
        address: Node or nodes, as for `open_rows`.
        as_supervised: Rows are `(features, label)`, where the label is the field LABEL.
        **arguments: Arguments of `open_rows` that choose rows and fields: `fields`, `where`,
            `nulls`, `settings`, ...

    Raises:
        ConfigError: The rows cannot be read by key, or an argument is about their order.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        source: str | EpochRows,
        address: str | Sequence[str] | None = None,
        *,
        as_supervised: bool = False,
        **arguments: Any,
    ) -> None:
        rows = numbered("Source", source, address, arguments)
        self._label = label_name(rows, as_supervised)
        self._count = len(rows)
        self._text = _described(rows, self._label)
        self._rows = ProcessRows(rows)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return self._text

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        """Return one row.

        Raises:
            OutOfRange: The row does not exist (an IndexError).
            DataChanged: The row is gone, or the data were loaded again.
        """
        return self._getitems([record_key])[0]

    def _getitems(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return several rows in the given order, by one request; Grain calls this method."""
        numbers = [operator.index(index) for index in indices]
        columns = self._rows.get()[numbers]
        found = count_of(columns)
        if found != len(numbers):
            raise DataChanged(
                f"{self._rows.name}: {len(numbers) - found} of {len(numbers)} rows are gone"
            )
        return [with_label(record_of(columns, i), self._label) for i in range(found)]


def _described(rows: EpochRows, label: str | None) -> str:
    identity = identity_of(rows.reader, rows.order)
    facts = {name: identity[name] for name in _IDENTITY if identity[name] is not None}
    facts |= {"fields": sorted(rows.values), "nulls": rows.reader.options.nulls}
    if label is not None:
        facts["label"] = label
    return f"ignitetf.grain.Source({json.dumps(facts, sort_keys=True)})"
