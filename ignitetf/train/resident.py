"""`device_resident`: reads a data set that fits into memory once, and gathers batches there.

reader -> columns on the device;  plan -> shuffled row numbers -> **gather** -> training

The order is that of `IgniteDataset` with the same seed: the same windows and permutations number
the rows of an epoch, but here rows are looked up instead of read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.batches import batch_count
from ignitetf.read.plan import Window, whole_argument
from ignitetf.read.rows import EpochRows
from ignitetf.read.tf.dataset import IgniteDataset
from ignitetf.read.tf.tensors import Form, rebatched
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.schema import Batch

__all__ = ["DeviceResident", "device_resident"]


def device_resident(
    dataset: IgniteDataset,
    batch_size: int,
    seed: int | None = None,
    *,
    drop_remainder: bool = False,
    device: str | None = None,
    limit_bytes: int | None = None,
) -> DeviceResident:
    """Read a dataset into the memory of a device, and return batches gathered there.

        batches = device_resident(IgniteDataset("MNIST_TRAIN", as_supervised=True), 128, seed=7)
        model.fit(batches, epochs=10)

    Batches have the rows, in the order, of `IgniteDataset(..., shuffle=seed).batch(batch_size)`,
    reshuffled in each epoch. `epoch`, `shard`, `even`, `window_bytes` and everything that selects
    rows are those of `dataset`.

    Args:
        dataset: What to read.
        batch_size: Rows in a batch.
        seed: Seed of the shuffle; None takes that of the dataset, which may be None too.
        drop_remainder: Leave out an incomplete last batch.
        device: Where to keep the columns, such as "GPU:0"; None for the default device.
        limit_bytes: Refuse more than this; None limits it to the machine's free memory.

    Raises:
        ConfigError: The data are too big.
        DataChanged: As when `dataset` is iterated.
    """
    if dataset.rows.position.chain:
        raise ConfigError(
            "the dataset is the rest of an epoch", hint="pass the one that resume() was called on"
        )
    batch_size = whole_argument("batch_size", batch_size, 1)
    return DeviceResident(dataset, batch_size, seed, drop_remainder, device, limit_bytes)


class DeviceResident(tf.data.Dataset):  # type: ignore[misc]
    """Batches gathered from columns in memory; see `device_resident`.

    As a dataset it gathers within `tf.data`, that is, on the host's processor. A custom training
    step can gather on the device: iterate `indices` and call `gather` in it.

    Attributes:
        columns: All rows, in the structure of a batch.
        indices: A dataset of the row numbers of each batch, reshuffled in each epoch.
        nbytes: Bytes of the columns, without those of strings that are separate objects.
    """

    def __init__(
        self,
        dataset: IgniteDataset,
        batch_size: int,
        seed: int | None,
        drop_remainder: bool,
        device: str | None,
        limit_bytes: int | None,
    ) -> None:
        rows = dataset.rows.shuffled(seed)
        self._shard, self._order = rows.shard, rows.order
        self._epoch = rows.position.epoch
        _check_size(rows, limit_bytes)
        self._counts, leaves = _read(rows, dataset.form)
        with tf.device(device):
            self.columns = dataset.form.assemble(*map(tf.constant, leaves))
        self.nbytes = sum(len(x) if isinstance(x, bytes) else x.nbytes for x in leaves)
        count = len(self._row_numbers(self._epoch))
        self.indices = self._indices(count, batch_size, drop_remainder)
        self._batches = self.indices.map(self.gather)
        super().__init__(self._batches._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._batches]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""
        return self._batches.element_spec

    def gather(self, index: tf.Tensor) -> Any:
        """Return the rows with these numbers, in the structure of a batch."""
        return tf.nest.map_structure(lambda column: tf.gather(column, index), self.columns)

    def _indices(self, rows: int, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
        def generate() -> Iterator[NDArray[np.int64]]:
            epoch, self._epoch = self._epoch, self._epoch + 1
            yield self._row_numbers(epoch)

        spec = tf.TensorSpec([None], tf.int64)
        whole = tf.data.Dataset.from_generator(generate, output_signature=spec)
        batches = rebatched(whole, batch_size, drop_remainder)
        count = batch_count(rows, batch_size, drop_remainder)
        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
        return batches.apply(tf.data.experimental.assert_cardinality(count)).with_options(options)

    def _row_numbers(self, epoch: int) -> NDArray[np.int64]:
        """Return the rows of an epoch in order, as row numbers in the unshuffled order."""
        ends = np.cumsum(list(self._counts.values()))
        first = {p: int(end) - n for (p, n), end in zip(self._counts.items(), ends, strict=True)}
        parts = [np.empty(0, np.int64)]
        for window in self._order.windows(self._shard, epoch):
            spans = [np.arange(first[p], first[p] + self._counts[p]) for p in window.partitions]
            numbers = np.concatenate(spans)
            if self._order.seed is not None:
                actual = Window(window.partitions, window.first, len(numbers))
                numbers = numbers[self._order.permutation(actual, epoch)]
            parts.append(numbers)
        numbers = np.concatenate(parts)
        if not self._order.known or not len(numbers):
            return numbers
        # A padded shard starts over with its own first rows; a shortened one ends early.
        return np.resize(numbers, self._order.rows(self._shard))


def _check_size(rows: EpochRows, limit_bytes: int | None) -> None:
    count = rows.order.own_rows(rows.shard)
    needed = int(count * rows.reader.entry_bytes)
    limit = limit_bytes
    if limit is None:
        # While the columns are being put together, they exist twice.
        limit = psutil.virtual_memory().available // 2
    if needed > limit:
        raise ConfigError(
            f"{rows.reader.name}: {count} rows are about {needed >> 20} MB, the limit is"
            f" {limit >> 20} MB",
            hint="read fewer fields, take a shard, or iterate the dataset itself",
        )


def _read(rows: EpochRows, form: Form) -> tuple[dict[int, int], tuple[Any, ...]]:
    """Return the rows of each partition after the policy for nulls, and the leaves of all rows."""
    share = rows.order.share(rows.shard)
    counts = dict.fromkeys(share, 0)
    batches: list[Batch] = []
    for item in rows.reader.batches(share):
        if item.batch is not None:
            counts[share[item.unit]] += len(item.batch)
            batches.append(item.batch)
    rows.reader.client.release_idle()
    return counts, form.pack(batches, BufferPool())
