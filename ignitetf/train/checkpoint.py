"""`BackgroundCheckpoint`: checkpoints Keras training without stopping it.

At a save the values are copied out of the model, at the speed of a memory copy; a thread writes
them and keeps the newest few. `on_train_end` waits until the last one is stored, and raises any
error from the background; if `fit` ends with an exception, call `barrier`.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from ignitetf.read.tf.library import tf

__all__ = ["BackgroundCheckpoint", "is_unfinished", "remove_entries", "variables_of"]

# Temporary names under which TensorFlow writes files that it renames when complete.
_UNFINISHED: Final = re.compile(
    r"checkpoint\.tmp[0-9a-f]+|ckpt-\d+_temp|(?:checkpoint|ckpt-\d+).*\.tempstate\d+"
)


class BackgroundCheckpoint(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Writes checkpoints to `igfs://` (or anywhere TensorFlow writes) in the background.

        callback = BackgroundCheckpoint("igfs:///run1", every_steps=500, keep=3)
        model.fit(dataset, shuffle=False, callbacks=[callback])
        BackgroundCheckpoint("igfs:///run1").restore(model)

    Args:
        directory: Folder to write to; a `tf.train.CheckpointManager` directory.
        every_steps: Steps between checkpoints; None saves at the end of each epoch.
        keep: Number of the newest checkpoints to keep.
        restore: Restore the latest checkpoint when training begins.
        barrier_s: Limit in seconds for the last write when training ends.

    A checkpoint that is due while the previous one is still being written is skipped; the final
    state of the training is always saved. The first save removes the unfinished files of a training
    that was interrupted while it wrote here.
    """

    def __init__(
        self,
        directory: str,
        *,
        every_steps: int | None = None,
        keep: int = 3,
        restore: bool = False,
        barrier_s: float = 600.0,
    ) -> None:
        super().__init__()
        if directory.startswith("igfs://"):
            import ignitetf.fs.gfile  # noqa: F401  (registers igfs://)
        self.directory = directory
        self.saved: list[str] = []
        self.skipped = 0
        self.held_s = 0.0  # total seconds for which training was stopped
        self._every = every_steps
        self._keep = keep
        self._restore = restore
        self._barrier_s = barrier_s
        self._work: queue.Queue[tuple[int, list[Any]] | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._step = 0
        self._last = -1

    def restore(self, model: Any) -> str | None:
        """Restore the latest checkpoint into a model; returns its path, or None if none exists."""
        path: str | None = tf.train.latest_checkpoint(self.directory)
        if path is not None:
            copies = self._copies(model)
            # Partial: the saving manager's counter is not restored.
            status = tf.train.Checkpoint(values=copies).read(path)
            status.assert_existing_objects_matched().expect_partial()
            for variable, copy in zip(variables_of(model), copies, strict=True):
                variable.assign(copy)
        return path

    # Called by Keras

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore if requested, and start the thread."""
        if self._restore:
            self.restore(self.model)
        self._step = int(self.model.optimizer.iterations.numpy())
        self._failure = None
        self._thread = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
        self._thread.start()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save after the given number of steps."""
        self._step += 1
        if self._every and self._step % self._every == 0:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save if `every_steps` is None."""
        if self._every is None:
            self.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Wait until the final state is stored."""
        if self._step != self._last:
            self.save(wait=True)
        self.barrier()

    # For custom training loops

    def save(self, *, wait: bool = False) -> bool:
        """Copy the values and queue them for writing; returns False if the writer is busy.

        Args:
            wait: Wait for the writer instead of skipping.
        """
        self._raise()
        begin = time.perf_counter()
        if self.is_busy and not wait:
            self.skipped += 1
            return False
        # A copy on the host, because training continues to change the model.
        self._put((self._step, self._values()))
        self._last = self._step
        self.held_s += time.perf_counter() - begin
        return True

    @property
    def is_busy(self) -> bool:
        """True if a checkpoint is waiting to be written."""
        return self._work.full()

    def barrier(self) -> None:
        """Wait until everything is stored; raises a failed write's error, or TimeoutError."""
        if self._thread is not None:
            self._put(None)
            self._thread.join(self._barrier_s)
            if self._thread.is_alive():
                raise TimeoutError(
                    f"{self.directory}: the last checkpoint was not stored "
                    f"within {self._barrier_s:g} s"
                )
            self._thread = None
        self._raise()

    def _put(self, item: tuple[int, list[Any]] | None) -> None:
        deadline = time.monotonic() + self._barrier_s
        while self._thread is not None and self._thread.is_alive():
            try:
                self._work.put(item, timeout=0.2)
                return
            except queue.Full:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.directory}: the writer makes no progress") from None

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _values(self) -> list[Any]:
        """Return the current values to save."""
        return [_copied(variable) for variable in variables_of(self.model)]

    def _copies(self, model: Any) -> list[Any]:
        """Return variables to restore the values of `_values` into."""
        return [tf.Variable(tf.zeros(v.shape, v.dtype)) for v in variables_of(model)]

    def _write_all(self) -> None:
        try:
            with tf.device("CPU:0"):
                checkpoint = tf.train.Checkpoint()
                manager = tf.train.CheckpointManager(checkpoint, self.directory, self._keep)
                tidy = False
                while (item := self._work.get()) is not None:
                    if not tidy:
                        self._remove_leftovers(manager.checkpoints)
                        tidy = True
                    step, values = item
                    checkpoint.values = [tf.Variable(value) for value in values]
                    self.saved.append(manager.save(checkpoint_number=step))
        except BaseException as error:
            self._failure = error

    def _remove_leftovers(self, kept: Collection[str]) -> None:
        """Remove the files that an interrupted training left here.

        Args:
            kept: Paths of the checkpoints that are recorded as complete.
        """
        remove_entries(self.directory, is_unfinished)


def _copied(variable: Any) -> Any:
    """Return a value that training does not change: `numpy()` is a view or already a copy."""
    value = variable.numpy()
    return value if value.flags.owndata else value.copy()


def is_unfinished(name: str) -> bool:
    """Return whether a file or folder of this name was being written when training stopped."""
    return _UNFINISHED.fullmatch(name) is not None


def remove_entries(directory: str, wanted: Callable[[str], bool]) -> None:
    """Remove the files and folders of a directory whose names match, in order of name."""
    gfile = tf.io.gfile
    if not gfile.isdir(directory):
        return
    for name in sorted(name.rstrip("/") for name in gfile.listdir(directory)):
        if wanted(name):
            path = f"{directory.rstrip('/')}/{name}"
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)


def variables_of(model: Any) -> list[Any]:
    """Return the variables of the model and its optimizer, in the order they were built."""
    optimizer = getattr(model, "optimizer", None)
    own = [*model.variables, *_generator_states(model)]
    if optimizer is None:
        return own
    _build(optimizer, model.trainable_variables)
    others = optimizer.variables
    return [*own, *(others() if callable(others) else others)]


# Differences between versions of Keras


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the optimizer's variables, which otherwise the first step would create."""
    if hasattr(optimizer, "_create_all_weights"):  # those of tf.keras.optimizers.legacy
        optimizer._create_all_weights(variables)
    # Keras 2 has only `_built`, and that only once it is true.
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(variables)


def _generator_states(model: Any) -> list[Any]:
    """Return the random generator states of layers, which Keras 2 keeps out of their variables."""
    layers = getattr(model, "submodules", ())  # not in Keras 3
    found = (getattr(layer, "_random_generator", None) for layer in layers)
    generators = (getattr(holder, "_generator", None) for holder in found)
    return [g.state for g in generators if isinstance(g, tf.random.Generator)]
