"""`DataModule`: epochs of a data set for Lightning, whose Trainer resumes amid an epoch.

    data = DataModule("MNIST_TRAIN", batch_size=128, shuffle=7, validation="MNIST_TEST",
                      as_supervised=True, loader={"num_workers": 4})
    trainer.fit(model, datamodule=data, ckpt_path="last")

torch -> **lightning**

The Trainer decides which epoch is read and how many of its batches are done. The state in a
checkpoint is that of the rows after these batches, so it does not depend on what a loader has read
ahead, nor on its number of worker processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.read.rows import EpochRows, open_rows

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingExtra.of("ignitetf.lightning needs Lightning", "lightning", error) from error

from torch.utils.data import DataLoader

from ignitetf.torch.iterable import IterableDataset

__all__ = ["DataModule"]

# Arguments that are about the order of training.
_OF_TRAINING = ("order", "shuffle", "even", "global_batch")


class DataModule(LightningDataModule):  # type: ignore[misc]
    """The rows of a data set, for training and validation with Lightning.

    Each epoch of the Trainer is that epoch of `open_rows`, and its batches are those of
    `ignitetf.torch.IterableDataset`, for any number of worker processes. A Trainer that is given a
    checkpoint (`ckpt_path`) continues with exactly the rows that the model was not trained on. The
    number of worker processes may differ. So may the number of ranks if the steps stay the same
    (`global_batch`).

    Args:
        source: Name of the data set.
        address: Node or nodes, as for `open_rows`.
        batch_size: Rows of a batch of each rank.
        validation: Rows to validate with: the name of a data set, or arguments that replace those
            for training, such as `{"split": "test"}`. It is read by key, without a shuffle.
        drop_last: Leave out the last batch of an epoch of training if it has fewer rows.
        as_supervised: Batches are `(features, label)`, where the label is the field LABEL.
        loader: Options of PyTorch's `DataLoader`: `num_workers`, `pin_memory`, ...
        **arguments: Arguments of `open_rows`. The default `order` is `keys`, or `global` with
            `shuffle` or `global_batch`; `global_batch` may replace `batch_size`.

    Raises:
        ConfigError: There is neither `batch_size` nor `global_batch`; the order is a scan, which
            cannot continue on another number of processes.
    """

    def __init__(
        self,
        source: str,
        address: Any = None,
        *,
        batch_size: int | None = None,
        validation: str | Mapping[str, Any] | None = None,
        drop_last: bool = False,
        as_supervised: bool = False,
        loader: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        seeded = arguments.get("shuffle") is not None or arguments.get("global_batch") is not None
        if batch_size is None and arguments.get("global_batch") is None:
            raise ConfigError(
                f"{source}: batch_size= or global_batch= is missing",
                hint="DataModule(NAME, batch_size=128)",
            )
        if arguments.get("shard") is not None or arguments.get("epoch") is not None:
            raise ConfigError(
                f"{source}: shard= or epoch= of a DataModule", hint="the Trainer decides both"
            )
        if arguments.get("order") is None:
            arguments["order"] = "global" if seeded else "keys"
        if arguments["order"] == "scan":
            raise ConfigError(
                f"{source}: a DataModule in the order of a scan",
                hint="order='keys', or 'global' with shuffle=",
            )
        self._arguments = {"cache": source, "address": address, **arguments}
        self._validation = {"cache": validation} if isinstance(validation, str) else validation
        self._batch_size, self._drop_last = batch_size, drop_last
        self._as_supervised, self._options = as_supervised, dict(loader or {})
        self._state: dict[str, Any] = {}
        self._epochs: _Epochs | None = None

    def train_dataloader(self) -> Any:
        """Return the batches of training, from the loaded state on."""
        shard = self._rank()
        rows = open_rows(shard=shard, **self._arguments)
        train = self._dataset(rows, self._batch_size, drop_last=self._drop_last)
        if shard is not None and self._uneven(rows):
            raise ConfigError(
                f"{rows.name}: the {shard[1]} ranks have different numbers of batches",
                hint="drop_last=True, or even='pad' or 'drop'",
            )
        rest = functools.partial(self._rest_of, train, rows)
        rest()  # Raises now, rather than at the first batch, if the state does not fit.
        self._epochs = _Epochs(train, rest, self._options, self._place)
        return self._epochs

    def val_dataloader(self) -> Any:
        """Return the batches of validation; an empty list if there are none."""
        if self._validation is None:
            return []
        shard, size = self._rank(), self._batch_size
        if size is None:
            size = max(1, self._arguments["global_batch"] // (1 if shard is None else shard[1]))
        arguments = {n: v for n, v in self._arguments.items() if n not in _OF_TRAINING}
        arguments = {"order": "keys", **arguments, **self._validation}
        rows = open_rows(shard=shard, **arguments)
        return _loader(self._dataset(rows, size, drop_last=False), self._options)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rows after the last batch that the model was trained on."""
        if self._epochs is None or self._epochs.epoch is None:
            return self._state
        _, batches = self._place()
        return {"step": self._step, "rows": self._epochs.state(batches)}

    def setup(self, stage: str) -> None:
        """Forget the state of an earlier training; the Trainer loads that of its checkpoint next."""
        if stage == "fit":
            self._state = {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make `train_dataloader` continue from a `state_dict`."""
        self._state = state_dict

    def _rest_of(self, train: IterableDataset, rows: EpochRows) -> IterableDataset:
        """Return the data set from the loaded state on."""
        if not self._state:
            return train
        if self._state["step"] != self._step:
            raise ConfigError(
                f"{rows.name}: the state is of steps of {self._state['step']} rows,"
                f" these are of {self._step}",
                hint="global_batch= keeps the steps for any number of ranks",
            )
        return train.resume(self._state["rows"])

    @property
    def _step(self) -> int:
        """Rows of a step over all ranks."""
        shard = self._rank()
        given: int | None = self._arguments.get("global_batch")
        if given is not None:
            return given
        return (self._batch_size or 1) * (1 if shard is None else shard[1])

    def _uneven(self, rows: EpochRows) -> bool:
        sizes = {
            len(
                self._dataset(
                    rows.of_shard((rank, rows.shard.count)),
                    self._batch_size,
                    drop_last=self._drop_last,
                )
            )
            for rank in (0, rows.shard.count - 1)
        }
        return len(sizes) > 1

    def _dataset(self, rows: EpochRows, size: int | None, *, drop_last: bool) -> IterableDataset:
        return IterableDataset(
            rows, batch_size=size, drop_last=drop_last, as_supervised=self._as_supervised
        )

    def _rank(self) -> tuple[int, int] | None:
        trainer = self.trainer
        return None if trainer is None else (trainer.global_rank, trainer.world_size)

    def _place(self) -> tuple[int, int]:
        """Return the Trainer's epoch, and the number of its batches that the model was trained on."""
        trainer = self.trainer
        if trainer is None:
            return 0, 0
        return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.processed


class _Epochs:
    """The batches of an epoch of the Trainer each time it iterates.

    Args:
        train: The rows of whole epochs.
        rest: Returns the same, from the loaded state on.
        options: Options of the DataLoader.
        place: Returns the epoch of the Trainer, and the number of its batches that are done.

    Attributes:
        epoch: The epoch that was begun last; None before the first.
    """

    def __init__(
        self,
        train: IterableDataset,
        rest: Callable[[], IterableDataset],
        options: Mapping[str, Any],
        place: Callable[[], tuple[int, int]],
    ) -> None:
        self._train, self._rest, self._place = train, rest, place
        self._options = options
        self._read: IterableDataset | None = None
        self._loader: DataLoader[Any] | None = None
        self.epoch: int | None = None

    def __len__(self) -> int:
        return len(self._train)

    def __iter__(self) -> Iterator[Any]:
        # The Trainer makes an iterator before it knows the epoch, and reads from it afterwards.
        self.epoch, batches = self._place()
        # The state is of one epoch of one training; the same epoch of a later training is whole.
        read = self._rest() if batches else self._train
        if self._loader is None or read is not self._read:
            self._read, self._loader = read, _loader(read, self._options)
        read.set_epoch(self.epoch)
        yield from self._loader

    def state(self, batches: int) -> dict[str, Any]:
        """Return the state of the rows after some batches of the epoch."""
        self._train.set_epoch(self.epoch or 0)
        return self._train.state(batches)

    # The Trainer warns of a loader without these; the state is in that of the DataModule.

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take an empty state."""


def _loader(dataset: IterableDataset, options: Mapping[str, Any]) -> DataLoader[Any]:
    return DataLoader(dataset, **{**options, "batch_size": None})
