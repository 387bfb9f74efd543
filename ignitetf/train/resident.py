"""`device_resident`: reads a data set into memory once, and gathers batches there.

row numbers -> columns on the device, row numbers of an epoch -> **gather** -> training

For JAX and PyTorch here, for TensorFlow in `tf_resident`, which is imported only for its datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ignitetf.errors import ConfigError
from ignitetf.read.arguments import flag
from ignitetf.read.devices import Device, Framework, check_dense, device_of
from ignitetf.read.export import Node, StructNode
from ignitetf.read.key_order import StepOrder
from ignitetf.read.rows import EpochRows, Epochs
from ignitetf.read.scan_order import whole_argument
from ignitetf.train.row_numbers import RowNumbers, check_size
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.columns import Batch, Column

if TYPE_CHECKING:
    from ignitetf.read.tf.dataset import IgniteDataset
    from ignitetf.train.tf_resident import DeviceResident

__all__ = ["GatheredBatches", "ResidentRows", "device_resident"]


@overload
def device_resident(
    dataset: IgniteDataset,
    batch_size: int | None,
    seed: int | None = ...,
    *,
    drop_remainder: bool = ...,
    device: str | None = ...,
    limit_bytes: int | None = ...,
) -> DeviceResident: ...


@overload
def device_resident(
    dataset: EpochRows,
    batch_size: int | None,
    seed: int | None = ...,
    *,
    drop_remainder: bool = ...,
    device: Any = ...,
    limit_bytes: int | None = ...,
    framework: Framework | None = ...,
    keys: bool = ...,
) -> ResidentRows: ...


def device_resident(
    dataset: Any,
    batch_size: int | None,
    seed: int | None = None,
    *,
    drop_remainder: bool = False,
    device: Any = None,
    limit_bytes: int | None = None,
    framework: Framework | None = None,
    keys: bool = True,
) -> Any:
    """Read a data set into the memory of a device, and return batches gathered there.

        batches = device_resident(IgniteDataset("MNIST_TRAIN", as_supervised=True), 128, seed=7)
        model.fit(batches, epochs=10, shuffle=False)

        batches = device_resident(open_rows("MNIST_TRAIN"), 128, seed=7, framework="jax")
        for epoch in range(10):
            for batch in batches:
                step(batch["val"]["IMAGE"], batch["val"]["LABEL"])

    Batches have the rows, in the order, of `IgniteDataset(..., shuffle=seed).batch(batch_size)` or
    `open_rows(..., shuffle=seed).batches(batch_size)`, reshuffled in each epoch. `epoch`, `shard`,
    `even`, `window_bytes` and the selection of rows are those of `dataset`.

    Args:
        dataset: An `IgniteDataset`, or what `open_rows` returned.
        batch_size: Rows in a batch; with `global_batch`, None for this worker's part of each step.
        seed: Seed of the shuffle; None uses that of `dataset`, which may be None too.
        drop_remainder: Skip an incomplete last batch.
        device: Device for the columns, such as "GPU:0"; None for the default device. For rows, as
            in `EpochRows.to_device`.
        limit_bytes: Largest size in bytes; None is the free memory of machine and device.
        framework: For rows, `jax` or `torch`; None uses the framework of a device object.
        keys: For rows, whether batches have the entry `key`.

    Raises:
        ConfigError: The data are too big, or cannot be on such a device.
        DataChanged: As when `dataset` is iterated.
        MissingExtra: The framework is not installed.
    """
    if batch_size is not None:
        batch_size = whole_argument("batch_size", batch_size, 1)
    if isinstance(dataset, EpochRows):
        return ResidentRows(
            dataset.shuffled(seed),
            batch_size,
            device_of(framework, device),
            drop_remainder=drop_remainder,
            keys=flag("keys", keys),
            limit_bytes=limit_bytes,
        )
    from ignitetf.train.tf_resident import DeviceResident

    if framework is not None or not keys:
        raise ConfigError(
            "framework= and keys= are for rows", hint="pass what open_rows() or dataset.rows is"
        )
    return DeviceResident(dataset, batch_size, seed, drop_remainder, device, limit_bytes)


class ResidentRows:
    """Batches of JAX or PyTorch, gathered from columns on a device; see `device_resident`.

    Each iteration reads the next epoch. An epoch sends its row numbers to the device, at most 8
    bytes a row; a step sends nothing.

    Attributes:
        columns: All rows, in the structure of a batch.
        nbytes: Bytes of the columns.
    """

    def __init__(
        self,
        rows: EpochRows,
        batch_size: int | None,
        device: Device,
        *,
        drop_remainder: bool,
        keys: bool,
        limit_bytes: int | None,
    ) -> None:
        check_dense(rows.reader.name, rows.key if keys else None, rows.values, rows.plain)
        if rows.position.chain and not isinstance(rows.order, StepOrder):
            raise ConfigError(
                "the rows are the rest of an epoch",
                hint="pass the rows from before resume(), or open them with order='keys'",
            )
        self._numbers = RowNumbers(rows, batch_size)
        self._device = device
        self._drop_remainder = drop_remainder
        check_size(rows, limit_bytes, device.free_bytes())
        columns = _columns(rows, self._numbers.read(), keys)
        self.nbytes = _nbytes(columns)
        self.columns = device.keep(columns)
        self._epochs = Epochs(self._numbers.rows)

    def __iter__(self) -> GatheredBatches:
        return self._batches(self.gather)

    def indices(self) -> GatheredBatches:
        """Return an iterator of the row numbers of each batch of the next epoch, on the device.

        A compiled training step can then call `gather` itself, or index `columns`.
        """
        return self._batches(lambda numbers: numbers)

    def gather(self, numbers: Any) -> Any:
        """Return the rows with these numbers, in the structure of a batch."""
        return self._device.gather(self.columns, numbers)

    def _batches(self, found: Callable[[Any], Any]) -> GatheredBatches:
        rows = self._epochs.take()
        numbers = self._numbers.numbers(rows.position)
        cuts = self._numbers.cuts(rows.position, len(numbers), self._drop_remainder)
        kept = self._device.keep(numbers)
        parts = ((stop, found(self._device.part(kept, start, stop))) for start, stop in cuts)
        return GatheredBatches(rows, parts)


class GatheredBatches(Iterator[Any]):
    """The batches of an epoch, or their row numbers, and the position in it.

    Attributes:
        consumed: Rows returned so far.
    """

    def __init__(self, rows: EpochRows, parts: Iterator[tuple[int, Any]]) -> None:
        self.consumed = 0
        self._rows = rows
        self._parts = parts

    def __next__(self) -> Any:
        self.consumed, found = next(self._parts)
        return found

    def state(self) -> dict[str, Any]:
        """Return the state after the last returned batch, for `EpochRows.resume`."""
        return self._rows.state(self.consumed)


def _columns(rows: EpochRows, batches: list[Batch], keys: bool) -> dict[str, Any]:
    pool = BufferPool()
    of_key = [b.key for b in batches if b.key is not None]
    found = {
        name: _packed(node, [b.columns[name] for b in batches], pool)
        for name, node in rows.values.items()
    }
    columns = {"key": _packed(rows.key, of_key, pool)} if keys else {}
    return columns | {"val": found["val"] if rows.plain else found}


def _packed(node: Node, columns: list[Column], pool: BufferPool) -> Any:
    """Return the columns of all batches as one array, or as a dict of them."""
    leaves = node.pack(columns, pool, None)

    def column(node: Node) -> Any:
        if isinstance(node, StructNode):
            return {name: column(inner) for name, inner in node.fields}
        return next(leaves)

    return column(node)


def _nbytes(columns: Any) -> int:
    if isinstance(columns, dict):
        return sum(_nbytes(column) for column in columns.values())
    assert isinstance(columns, np.ndarray)
    return columns.nbytes
