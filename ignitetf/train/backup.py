"""`BackupAndRestore`: an interrupted `model.fit` continues with the next unseen batch.

One checkpoint holds the variables of model and optimizer, the sums of the metrics, and the position
in the data (`IgniteDataset.state`), so they always belong to the same moment. It is written in the
background under a new name, and becomes the latest only when it is complete. So a process killed at
any moment leaves a complete checkpoint.

`fit` knows epochs, but not positions within them. So this callback also makes the batches: before
each epoch it moves them to the epoch's start, and it ends the rest of an interrupted epoch after
its last batch. It cannot wait for the batches to run out: the step without a batch would still
advance the optimizer's iterations and draw from random generators.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, Literal

from ignitetf.errors import ConfigError
from ignitetf.read.tf.cluster import in_cluster
from ignitetf.read.tf.dataset import IgniteDataset
from ignitetf.read.tf.iteration import Steps
from ignitetf.read.tf.library import tf
from ignitetf.train.checkpoint import (
    BackgroundCheckpoint,
    is_unfinished,
    remove_entries,
    variables_of,
)
from ignitetf.train.step_rows import StepRows

__all__ = ["BackupAndRestore"]

_NOTE_KEY: Final = "values/0/.ATTRIBUTES/VARIABLE_VALUE"
_KEPT: Final = 2
# Files of a backup; the first group is the backup's name.
_BACKUP: Final = re.compile(r"(ckpt-\d+)\.(?:index|data-\d+-of-\d+)")


class BackupAndRestore(BackgroundCheckpoint):
    """Backs up the training; when `fit` is called again, continues from the latest backup.

        dataset = IgniteDataset("MNIST_TRAIN", shuffle=7, as_supervised=True)
        backup = BackupAndRestore("igfs:///run1/backup", dataset, 128, save_freq=500)
        model.fit(backup.batches, epochs=10, shuffle=False, callbacks=[backup])

    The same program, restarted after it was killed, trains the remaining batches of the interrupted
    epoch and the remaining epochs. With deterministic ops it ends with the same weights as an
    uninterrupted run. Metrics of an interrupted epoch cover all of it. Epoch `n` of `fit` is epoch
    `n` of the dataset, counted from the dataset's `epoch`.

    A backup holds the variables of the model (including random seeds of layers) and of the
    optimizer, but neither the state of other callbacks nor TensorFlow's global random generators.

    With several workers the first one writes and all restore, so all must see the directory, as
    with `igfs://`. The position is also valid for another number of workers. Under a strategy over
    several workers a step trains a part of a batch, and `save_freq` counts these steps.

    Args:
        directory: Folder to write to, for this training only. Local, `igfs://`, or wherever TensorFlow
            writes.
        dataset: The data, with a known number of rows. Shuffle with its `shuffle` argument.
        batch_size: Rows in a batch.
        save_freq: "epoch", or the number of steps between backups. A backup that is due while the
            previous one is still being written waits for a later step; under a strategy over
            several workers, for the next one that is due.
        prepare: Takes the dataset of batches and returns the one to train on, with the same number
            of batches, such as `lambda batches: batches.map(augment).prefetch(2)`.
        drop_remainder: Skip an incomplete last batch.
        delete_checkpoint: Remove the backups when training ends successfully.
        barrier_s: Limit in seconds for the last write when training ends.

    Attributes:
        batches: The dataset to pass to `fit` unchanged, without `steps_per_epoch`.
        resumed: Position from which the latest `fit` continued; None if it started fresh.

    Raises:
        ConfigError: An argument is unusable; or, from `fit`, the backup belongs to another model or
            dataset, or `fit` was not called with `batches`.
        DataChanged: From `fit`: the data were loaded again since the backup.
    """

    def __init__(
        self,
        directory: str,
        dataset: IgniteDataset,
        batch_size: int,
        *,
        save_freq: int | Literal["epoch"] = "epoch",
        prepare: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
        drop_remainder: bool = False,
        delete_checkpoint: bool = True,
        barrier_s: float = 600.0,
    ) -> None:
        """Build the batches; nothing is read or restored before `fit`."""
        whole_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
        if save_freq != "epoch" and not (whole_number and save_freq > 0):
            raise ConfigError(f"save_freq={save_freq!r}", hint='"epoch" or a number of batches')
        every = None if save_freq == "epoch" else int(save_freq)
        super().__init__(directory, every_steps=every, keep=_KEPT, barrier_s=barrier_s)
        rows = dataset.rows
        if rows.length is None or rows.position.chain:
            raise ConfigError(
                "the number of rows is not known, or it is the rest of an epoch",
                hint="not with where=, nulls='drop' or what resume() gave; the backup resumes",
            )
        self._divided = rows.shard.count > 1 and in_cluster()
        if self._divided and rows.order.even is None:
            raise ConfigError(
                "under a strategy over several workers, all have to make the same number of steps",
                hint="even='drop' or even='pad' gives them the same number of rows",
            )
        parts = rows.shard.count if self._divided else 1
        self._step_rows = StepRows(int(batch_size), parts, drop_remainder)
        self._dataset = dataset
        # A resumed dataset has no fixed length, so `seek` can move it.
        self._source = dataset.resume(dataset.state(0))
        self._at = self._source.rows  # where the next iteration begins
        batches = self._source.batch(batch_size, drop_remainder=drop_remainder)
        self._steps = self._step_rows.count(rows.length)
        self.batches = _Counted(batches if prepare is None else prepare(batches), self._steps)
        self.resumed: dict[str, Any] | None = None
        self._delete = delete_checkpoint
        self._fit_epoch = 0
        self._pending: dict[str, Any] | None = None  # where the next epoch continues
        self._note: dict[str, Any] = {}  # note of the restored backup
        self._metrics: list[Any] = []  # its metric sums, until they are added
        self._first_step = -1  # number that fit gave the first step of this iteration
        self._left = 0  # steps of this iteration, in all
        self._done = 0  # those already made
        self._unsaved = 0  # steps since the latest backup

    # Called by Keras

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the latest backup, if there is one."""
        self.barrier()  # of a fit ended by an exception
        self._check_fit()
        path = self.restore(self.model)
        self._check_workers(path)
        self._pending = note = self._note if path is not None else None
        self.resumed = None if note is None else note["position"]
        if note is not None:
            # Raises now, rather than at the first batch, if the data have changed.
            self._source.rows.resume(note["position"])
        self._set_first_epoch(note)
        super().on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Move the batches to the position where this epoch begins or continues."""
        pending, self._pending = self._pending, None
        self._fit_epoch = epoch
        if pending is None:
            self._move_to_epoch(epoch)
            return
        if epoch != pending["fit_epoch"]:
            raise ConfigError(
                f"{self.directory}: the backup is of epoch {pending['fit_epoch']}, and fit began"
                f" with epoch {epoch}",
                hint=f"pass initial_epoch={pending['fit_epoch']} to fit",
            )
        self._seek(pending["position"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the number from which `fit` counts steps."""
        if self._first_step < 0:
            self._first_step = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save after the given number of steps; end the rest of an interrupted epoch."""
        done = batch + 1 - self._first_step
        self._step += done - self._done
        self._unsaved += done - self._done
        self._done = done
        self._add_metrics()
        if done >= self._left:
            if not self.model.stop_training:
                self.model.stop_training = _END_OF_EPOCH
        elif self._every and self._unsaved >= self._every and not done % self._step_rows.parts:
            # Saved between batches, so that the rest of the epoch has the same batches.
            self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save if `save_freq` is "epoch", or if a backup was due at the last step."""
        if self.model.stop_training is _END_OF_EPOCH:
            self.model.stop_training = False
        self._move_to_epoch(epoch + 1)
        if self._every is None:
            self.save(wait=True)
        elif self._unsaved >= self._every:
            self.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for the writer, then remove the backups unless they should be kept."""
        self.barrier()
        self._set_first_epoch(None)
        if self._delete and self._is_writer:
            self._remove()

    # Saving and restoring

    def save(self, *, wait: bool = False) -> bool:
        """Back up now; returns False if the writer is busy or another worker does it.

        Under a strategy over several workers all of them call it after the same step.
        """
        if self._divided:
            # All workers must count from the same step, whether or not this one writes.
            self._unsaved = 0
            if not self._is_writer or (self.is_busy and not wait):
                # Reading a metric involves all workers.
                self._values()
                return False
        if not self._is_writer or not super().save(wait=wait):
            return False
        self._unsaved = 0
        return True

    def restore(self, model: Any) -> str | None:
        """Restore the latest backup into a model and return its path, or None if there is none.

        Raises:
            ConfigError: It belongs to another model.
        """
        path: str | None = tf.train.latest_checkpoint(self.directory)
        if path is None:
            return None
        note = json.loads(tf.train.load_checkpoint(path).get_tensor(_NOTE_KEY))
        variables = variables_of(model)
        if note["variables"] != _kinds(variables):
            raise ConfigError(
                f"{path}: the backup is of another model or optimizer",
                hint="remove it to begin anew, or give this training a directory of its own",
            )
        kinds = [*note["variables"], *note["metrics"]]
        copies = [tf.Variable(tf.zeros(shape, dtype)) for shape, dtype in kinds]
        saved = tf.train.Checkpoint(values=[tf.Variable(""), *copies])
        # Partial: the saving manager's counter is not restored.
        saved.read(path).assert_existing_objects_matched().expect_partial()
        for variable, copy in zip(variables, copies, strict=False):
            variable.assign(copy)
        self._metrics = [copy.numpy() for copy in copies[len(variables) :]]
        self._note = note
        return path

    def _values(self) -> list[Any]:
        sums = [v.numpy().copy() for v in self._sums_so_far()]
        return [json.dumps(self._checkpoint_state()), *super()._values(), *sums]

    def _move_to_epoch(self, epoch: int) -> None:
        """Move the batches to the beginning of an epoch of `fit`."""
        self._fit_epoch = epoch
        rows = self._dataset.rows
        self._seek(rows.state(0, rows.position.epoch + epoch))

    def _seek(self, position: dict[str, Any]) -> None:
        self._source.seek(position)
        self._at = self._source.rows.resume(position)
        self._first_step, self._done, self._left = -1, 0, self._steps_left()

    def _steps_left(self) -> int:
        """Return the steps of the epoch after the current position of the source."""
        return self._step_rows.count(self._at.length or 0)

    def _add_metrics(self) -> None:
        """Add the sums of the interrupted epoch, once the first batch has created the variables."""
        values, self._metrics = self._metrics, []
        if values and _kinds(_sums(self.model)) == self._note["metrics"]:
            for variable, value in zip(_sums(self.model), values, strict=True):
                variable.assign(variable + value)

    def _checkpoint_state(self) -> dict[str, Any]:
        rows = self._step_rows.trained(self._done, self._at.length or 0)
        return {
            "fit_epoch": self._fit_epoch,
            "position": self._at.state(rows),
            "variables": _kinds(variables_of(self.model)),
            "metrics": _kinds(self._sums_so_far()),
        }

    def _sums_so_far(self) -> list[Any]:
        """Return the variables of the metrics; none between epochs, when they are reset."""
        return _sums(self.model) if self._done else []

    @property
    def _is_writer(self) -> bool:
        return self._dataset.rows.shard.index == 0

    def _remove_leftovers(self, kept: Collection[str]) -> None:
        # The directory is for this training only. A backup that was not recorded is not resumed.
        complete = {path.rstrip("/").rpartition("/")[2] for path in kept}

        def wanted(name: str) -> bool:
            found = _BACKUP.fullmatch(name)
            return is_unfinished(name) or (found is not None and found[1] not in complete)

        remove_entries(self.directory, wanted)

    def _remove(self) -> None:
        """Remove the backups, first the pointer to the latest; and the directory if empty."""
        remove_entries(
            self.directory,
            lambda name: name == "checkpoint" or name.startswith("ckpt-") or is_unfinished(name),
        )
        gfile = tf.io.gfile
        if gfile.isdir(self.directory) and not gfile.listdir(self.directory):
            gfile.rmtree(self.directory)

    # Differences between versions of Keras

    def _check_fit(self) -> None:
        """Raise ConfigError unless `fit` iterates over `batches` once in each epoch."""
        steps = (self.params or {}).get("steps")
        if steps == self._steps or (steps is None and _is_keras_2(self.model)):
            return
        raise ConfigError(
            f"fit makes {'an unknown number of' if steps is None else steps} steps in an epoch,"
            f" the data are {self._steps}",
            hint="give fit the callback's batches as they are, without steps_per_epoch",
        )

    def _check_workers(self, path: str | None) -> None:
        """Raise ConfigError unless all workers of a strategy have restored the same backup."""
        if not self._divided:
            return
        strategy, workers = self.model.distribute_strategy, self._step_rows.parts
        if strategy.num_replicas_in_sync != workers:
            raise ConfigError(
                f"there are {strategy.num_replicas_in_sync} replicas on {workers} workers",
                hint="a backup needs one replica (one GPU) on each worker",
            )
        number = -1 if path is None else int(path.rpartition("-")[2])

        @tf.function  # type: ignore[untyped-decorator]
        def total() -> Any:
            numbers = strategy.run(lambda: tf.constant(number, tf.int64))
            return strategy.reduce("SUM", numbers, axis=None)

        if int(total()) != workers * number:
            found = "no backup" if path is None else path
            raise ConfigError(
                f"{self.directory}: other workers found another backup than this one, {found}",
                hint="all workers have to see the same directory, such as one in igfs://",
            )

    def _set_first_epoch(self, note: dict[str, Any] | None) -> None:
        """Set the epoch that `fit` begins with; None keeps the one it was called with."""
        if not _is_keras_2(self.model):
            self.model._initial_epoch = None if note is None else note["fit_epoch"]
            return
        self.model._training_state = None
        if note is not None:
            step = max(0, self._steps - self._steps_left())
            self.model._training_state = _Counters(note["fit_epoch"], step)


class _EndOfEpoch:
    """Ends the loop over batches like `stop_training = True`, but can be distinguished from it."""

    def __bool__(self) -> bool:
        return True


_END_OF_EPOCH: Final = _EndOfEpoch()


class _Counted(Steps):
    """A dataset that reports a fixed number of elements, though an iteration may have fewer.

    `fit` uses this number as the steps of every epoch. Otherwise it would use the steps of the
    first epoch, which may be the rest of one. A strategy that divides batches reads it as well.
    """

    def __init__(self, dataset: tf.data.Dataset, count: int) -> None:
        self._count = count
        super().__init__(dataset)

    def __copy__(self) -> _Counted:
        return _Counted(self._dataset, self._count)

    def cardinality(self) -> tf.Tensor:
        return tf.constant(self._count, tf.int64)


class _Counters:
    """Provides the initial epoch and step where Keras 2 looks for them."""

    def __init__(self, epoch: int, step: int) -> None:
        self._start = epoch, step

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return the initial epoch and step."""
        return self._start


def _is_keras_2(model: Any) -> bool:
    return hasattr(model, "_training_state")


def _sums(model: Any) -> list[Any]:
    return [v for metric in model.metrics for v in metric.variables]


def _kinds(variables: list[Any]) -> list[Any]:
    """Return the shape and dtype of each variable, in their JSON form."""
    return [[list(v.shape), tf.as_dtype(v.dtype).name] for v in variables]
