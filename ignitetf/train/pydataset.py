"""`PyDataset`: batches by number for Keras' `fit`, on any backend; without TensorFlow.

numbered -> **pydataset**
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ignitetf.errors import MissingExtra
from ignitetf.read.numbered import NumberedBatches
from ignitetf.read.process_rows import label_name, with_label
from ignitetf.read.rows import EpochRows

try:
    import keras
except ImportError as error:
    if isinstance(error, ModuleNotFoundError) and error.name != "keras":
        raise MissingExtra(
            f"Keras cannot be imported: {error}",
            hint="set KERAS_BACKEND to a backend that is installed: jax, torch or tensorflow",
        ) from error
    raise MissingExtra.of("PyDataset needs Keras", "keras", error) from error

if not hasattr(keras.utils, "PyDataset"):
    raise MissingExtra(
        f"PyDataset needs Keras 3, this is {keras.__version__}",
        hint="pip install 'ignitetf[keras]'",
    )

__all__ = ["PyDataset"]


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of a data set by number, as a `keras.utils.PyDataset`.

        train = PyDataset("MNIST_TRAIN", 128, shuffle=7)
        model.fit(train, epochs=10, shuffle=False)

    Batch i is that of `open_rows(..., order=...).batches(batch_size)`, as `(features, label)`. Each
    epoch of `fit` uses the order of the next epoch. With `shuffle=True`, the default of `fit`,
    Keras also permutes the batches, with its own seed.

    `workers` threads, or processes with `use_multiprocessing=True`, read batches ahead. Keras
    (3.15) gives batches that were read ahead before the first epoch, or at the end of an epoch, to
    the next epoch. So epochs are exact only without workers. Each process has its own connections.

    Args:
        source: Name of the data set, or opened rows with an order by key.
        batch_size: Rows of a batch; None for this worker's part of each step of `global_batch`.
        address: Node or nodes, as for `open_rows`.
        drop_last: Skip a last batch with fewer rows.
        as_supervised: Batches are `(features, label)`, where the label is the field LABEL; False
            for the structure of `open_rows`, for a model with its own `train_step`.
        workers: As in Keras.
        use_multiprocessing: As in Keras.
        max_queue_size: As in Keras.
        **arguments: Arguments of `open_rows`. The default `order` is `keys`, or `global` with
            `shuffle` or `global_batch`.

    Attributes:
        epoch: The current epoch; incremented after an epoch was read to its end. May be set, for
            `initial_epoch` of `fit`.

    Raises:
        ConfigError: An argument is unusable; the order is a scan; there is no label.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        source: str | EpochRows,
        batch_size: int | None = None,
        address: str | Sequence[str] | None = None,
        *,
        drop_last: bool = False,
        as_supervised: bool = True,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **arguments: Any,
    ) -> None:
        super().__init__(
            workers=workers, use_multiprocessing=use_multiprocessing, max_queue_size=max_queue_size
        )
        self._batches = NumberedBatches(
            "PyDataset", source, batch_size, address, drop_last, arguments
        )
        rows = self._batches.rows
        self._read = bytearray(len(self._batches.sizes))  # 1 for each batch that was read
        self._label = label_name(rows, as_supervised)
        self.epoch = rows.position.epoch

    def __len__(self) -> int:
        return len(self._batches.sizes)

    def __getitem__(self, index: int) -> Any:
        """Return batch `index` of the epoch.

        Raises:
            OutOfRange: The batch does not exist (an IndexError).
            DataChanged: A row is gone, or the data were loaded again.
        """
        number = operator.index(index)
        columns = self._batches.columns(self.epoch, number)
        self._read[number] = 1
        return with_label(columns, self._label)

    def on_epoch_end(self) -> None:
        """Advance to the next epoch; without workers, only if every batch of this one was read.

        Keras also calls it before the first epoch, after reading a batch or two to learn their
        shapes, and in a `fit` with `steps_per_epoch` in the middle of the data. Workers read ahead
        in both cases.
        """
        if self.workers > 1 or self.use_multiprocessing or all(self._read):
            self.epoch += 1
        self._read = bytearray(len(self))
