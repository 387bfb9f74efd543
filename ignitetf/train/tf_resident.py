"""`DeviceResident`: a `tf.data.Dataset` of batches gathered from columns in memory.

row numbers -> columns in tensors, a dataset of row numbers -> **gather** -> training
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.scan_order import Position
from ignitetf.read.tf.dataset import IgniteDataset
from ignitetf.read.tf.library import tf
from ignitetf.read.tf.tensors import counted, rebatched
from ignitetf.train.row_numbers import RowNumbers, check_size
from ignitetf.wire.buffers import BufferPool

__all__ = ["DeviceResident"]


class DeviceResident(tf.data.Dataset):  # type: ignore[misc]
    """Batches gathered from columns in memory; see `device_resident`.

    As a dataset it gathers within `tf.data`, so on the host's processor. A custom training step can
    gather on the device: iterate `indices` and call `gather` in it.

    Attributes:
        columns: All rows, in the structure of a batch.
        indices: A dataset of the row numbers of each batch, reshuffled in each epoch.
        nbytes: Bytes of the columns, without those of strings that are separate objects.
    """

    def __init__(
        self,
        dataset: IgniteDataset,
        batch_size: int | None,
        seed: int | None,
        drop_remainder: bool,
        device: str | None,
        limit_bytes: int | None,
    ) -> None:
        if dataset.rows.position.chain:
            raise ConfigError(
                "the dataset is the rest of an epoch",
                hint="pass the one that resume() was called on",
            )
        rows = dataset.rows.shuffled(seed)
        self._numbers = RowNumbers(rows, batch_size)
        self._epoch = rows.position.epoch
        check_size(rows, limit_bytes)
        leaves = dataset.form.pack(self._numbers.read(), BufferPool())
        with tf.device(device):
            self.columns = dataset.form.assemble(*map(tf.constant, leaves))
        self.nbytes = sum(len(x) if isinstance(x, bytes) else x.nbytes for x in leaves)
        self.indices = self._indices(batch_size, drop_remainder)
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

    def _indices(self, batch_size: int | None, drop_remainder: bool) -> tf.data.Dataset:
        numbers = self._numbers

        def generate() -> Iterator[NDArray[np.int64]]:
            position = Position(self._epoch)
            self._epoch += 1
            found = numbers.numbers(position)
            if not numbers.cut_by_step:
                yield found
                return
            for start, stop in numbers.cuts(position, len(found), drop_remainder):
                yield found[start:stop]

        spec = tf.TensorSpec([None], tf.int64)
        batches = tf.data.Dataset.from_generator(generate, output_signature=spec)
        if batch_size is not None and not numbers.cut_by_step:
            batches = rebatched(batches, batch_size, drop_remainder)
        first = Position(self._epoch)
        count = len(numbers.cuts(first, len(numbers.numbers(first)), drop_remainder))
        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
        batches = batches.with_options(options)
        return counted(batches, count, sharded=numbers.rows.shard.count > 1)
