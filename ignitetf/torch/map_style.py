"""`MapDataset`: the rows of a data set by number, for samplers.

process rows -> tensors -> **map_style**
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from ignitetf.errors import DataChanged
from ignitetf.read.process_rows import ProcessRows, label_name, numbered, with_label
from ignitetf.read.rows import EpochRows
from ignitetf.torch.tensors import records_of, stacked, tensors_of

__all__ = ["MapDataset"]


class MapDataset(Dataset):  # type: ignore[misc]
    """The rows of a data set by number, as a map-style data set of PyTorch.

        images = MapDataset("MNIST_TRAIN", as_supervised=True)
        for image, label in DataLoader(images, batch_size=128, shuffle=True, num_workers=4): ...

    Row i is the i-th in the order of the keys, in every process and for any number of workers. For
    loaded data this is the order of the source. The loader's sampler decides the order of reading.
    A batch is one request. Each process has its own connections, so the loader may fork or spawn
    workers, even after rows were read.

    Values are tensors in the structure of `IgniteDataset`: see `tensors.tensors_of`.

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
        rows = numbered("MapDataset", source, address, arguments)
        self._label = label_name(rows, as_supervised)
        self._count = len(rows)
        self._rows = ProcessRows(rows)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<MapDataset of {self._rows.name}, {len(self)} rows>"

    def __getitem__(self, index: Any) -> Any:
        """Return one row; for a list, an array or a slice of numbers, a batch (see `collate`).

        A loader with `batch_size=None` and a `BatchSampler` as its sampler gives lists.

        Raises:
            OutOfRange: The row does not exist (an IndexError).
            DataChanged: The row is gone, or the data were loaded again.
        """
        if isinstance(index, slice):
            return self.collate(self.__getitems__(range(*index.indices(len(self)))))
        if hasattr(index, "__len__") and getattr(index, "ndim", 1) == 1:
            return self.collate(self.__getitems__(list(index)))
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return several rows in the given order, by one request.

        Raises:
            OutOfRange: A number is beyond the last row (an IndexError).
            DataChanged: A row is gone, or the data were loaded again.
        """
        numbers = [operator.index(index) for index in indices]
        records = records_of(tensors_of(self._rows.get()[numbers]))
        if len(records) != len(numbers):
            missing = len(numbers) - len(records)
            raise DataChanged(f"{self._rows.name}: {missing} of {len(numbers)} rows are gone")
        return [with_label(record, self._label) for record in records]

    def collate(self, records: Sequence[Any]) -> Any:
        """Combine rows into a batch, as `collate_fn` of a loader.

        Tensors of one shape are stacked. Texts and arrays of varying length become lists; PyTorch's
        own function refuses differing lengths. Anything but a list of rows stays as it is: with
        `batch_size=None` it is a row, or a batch already.
        """
        if not isinstance(records, list):
            return records
        rows = self._rows.get()
        values = {n: node for n, node in rows.values.items() if n != self._label}
        if self._label is not None:
            features, labels = zip(*records, strict=True)
            label = stacked(rows.values[self._label], labels)
            if len(values) == 1:
                return stacked(next(iter(values.values())), features), label
            return {n: stacked(node, [f[n] for f in features]) for n, node in values.items()}, label
        key = stacked(rows.key, [r["key"] for r in records])
        if rows.plain:
            return {"key": key, "val": stacked(rows.values["val"], [r["val"] for r in records])}
        found = {n: stacked(node, [r["val"][n] for r in records]) for n, node in values.items()}
        return {"key": key, "val": found}
