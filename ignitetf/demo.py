"""All steps in a minute: load, inspect, train, lose a node, resume, checkpoint, TensorBoard.

node, load -> **demo** -> cli

The data are the 1,797 handwritten digits that ship with scikit-learn, so nothing has to be
downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ignitetf.explore.preview import contact_sheet
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.net.client import Client
from ignitetf.node import Node
from ignitetf.settings import Settings

__all__ = ["run_demo"]

TRAIN: Final = "DIGITS_TRAIN"
TEST: Final = "DIGITS_TEST"
CHECKPOINT: Final = "igfs:///demo/digits"
LOGS: Final = "igfs:///demo/logs"
_BATCH: Final = 64
_EPOCHS: Final = 12
# The data are shuffled while they are read.
_FIT: Final[dict[str, Any]] = {"epochs": _EPOCHS, "shuffle": False, "verbose": 0}
_PARTITIONS: Final = 8
# A node is killed in one epoch, and the second training is ended in the middle of another one.
_KILLED_IN: Final = 4
_ENDED_IN: Final = 7
_BATCHES_BEFORE_END: Final = 13


def run_demo(
    settings: Settings, say: Callable[[str], None], node: Node | None, columns: int | None
) -> dict[str, Any]:
    """Load the digits, show some, train, save and restore; a node is killed during the training.

    Args:
        settings: Connection settings of the cluster.
        say: Receives a line for each step, and the images.
        node: A node of several members, started for the demo. Its last member is killed during the
            training, and restarted. With None nothing is killed.
        columns: Width of the terminal that shows what `say` receives; None draws no images.

    Returns:
        `rows`, `test_accuracy`, `restored_accuracy`, `killed` (members), `resumed_equal` (None if
        `igfs://` does not work in TensorFlow here), `checkpoint`, `logs`, `load_rows_per_s`,
        `read_rows_per_s`, `address`.
    """
    rows, rate = _load(settings, say, copies=None if node is None else 1)
    if columns is not None:
        say(_show_digits(settings, columns))
    training = _Training(settings, say)
    result = training.run(node)
    return {
        "rows": rows,
        **result,
        "load_rows_per_s": rate,
        "address": ",".join(settings.addresses),
    }


def _load(settings: Settings, say: Callable[[str], None], copies: int | None) -> tuple[int, int]:
    with Client(settings) as client:
        reports = [
            load_dataset(
                open_source("digits", None, split=split),
                name,
                client=client,
                partitions=_PARTITIONS,
                backups=copies,
                if_exists="replace",
            )
            for name, split in ((TRAIN, "train"), (TEST, "test"))
        ]
    rows, seconds = sum(r.rows for r in reports), sum(r.seconds for r in reports)
    each = ", each row on two nodes" if copies else ""
    say(f"loaded {rows} images into {TRAIN} and {TEST}{each}")
    return rows, round(rows / seconds) if seconds else 0


def _show_digits(settings: Settings, columns: int) -> str:
    """Return a digit of each class with its label, as text for a terminal."""
    with Client(settings) as client:
        return contact_sheet(client, TEST, count=10, columns=10).text(columns)


class _Training:
    """Trains the same model twice, the second time in two parts."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        import tensorflow as tf

        from ignitetf.read.tf.dataset import IgniteDataset

        tf.config.experimental.enable_op_determinism()
        self._settings, self._say = settings, say
        self._train = IgniteDataset(TRAIN, settings=settings, as_supervised=True, shuffle=1)
        self._test = IgniteDataset(TEST, settings=settings, as_supervised=True).batch(_BATCH)
        self._native = self._has_native_io()

    def run(self, node: Node | None) -> dict[str, Any]:
        """Train, and return the results."""
        killer = _NodeKiller(node, self._say)
        model, _ = self._fitted("first", _at(_KILLED_IN, 0, killer.kill), *self._tensorboard())
        killer.restart()
        accuracy = float(model.evaluate(self._test, verbose=0)[1])
        self._say(f"trained {_EPOCHS} epochs from {TRAIN}: test accuracy {accuracy:.4f}")
        equal = self._resume(model) if self._native else None
        restored = _model()
        self._save_and_restore(model, restored)
        again = float(restored.evaluate(self._test, verbose=0)[1])
        self._say(f"restored {CHECKPOINT}: test accuracy {again:.4f}")
        return {
            "test_accuracy": round(accuracy, 4),
            "restored_accuracy": round(again, 4),
            "killed": killer.killed,
            "resumed_equal": equal,
            "checkpoint": CHECKPOINT,
            "logs": LOGS if self._has_tensorboard else None,
            "read_rows_per_s": round(_read_rate(self._train.batch(_BATCH))),
        }

    def _has_native_io(self) -> bool:
        from ignitetf.fs.path import NativeIOUnavailable

        try:
            from ignitetf.fs import gfile
        except NativeIOUnavailable as error:
            self._say(f"{error}; copying the checkpoint instead\nhint: {error.hint}")
            return False
        gfile.configure(self._settings)
        return True

    @property
    def _has_tensorboard(self) -> bool:
        return self._native and importlib.util.find_spec("tensorboard") is not None

    def _tensorboard(self) -> list[Any]:
        import tensorflow as tf

        if not self._has_tensorboard:
            return []
        self._say(f"curves: tensorboard --logdir {LOGS}")
        return [tf.keras.callbacks.TensorBoard(LOGS, profile_batch=0)]

    def _fitted(self, name: str, *callbacks: Any) -> tuple[Any, dict[str, Any] | None]:
        """Train a new model, or continue an interrupted training of this name.

        Returns:
            The model, and the position in the data from which the training continued.
        """
        model = _model()
        if not self._native:
            batches = self._train.batch(_BATCH)
            model.fit(batches, **_FIT, callbacks=callbacks)
            return model, None
        from ignitetf.train.backup import BackupAndRestore

        backup = BackupAndRestore(f"igfs:///demo/{name}", self._train, _BATCH, save_freq=5)
        model.fit(backup.batches, **_FIT, callbacks=[backup, *callbacks])
        return model, backup.resumed

    def _resume(self, wanted: Any) -> bool:
        """End a training in the middle of an epoch, resume it, and compare the weights."""

        def end() -> None:
            raise _EndedError

        try:
            self._fitted("second", _at(_ENDED_IN, _BATCHES_BEFORE_END, end))
        except _EndedError:
            self._say(f"ended a second training in the middle of epoch {_ENDED_IN}")
        model, resumed = self._fitted("second")
        equal = [w.tobytes() for w in model.get_weights()] == [
            w.tobytes() for w in wanted.get_weights()
        ]
        row = sum(rows for _, rows in resumed["chain"]) if resumed else 0
        self._say(
            f"resumed it after row {row} of that epoch: the weights are"
            f" {'equal to the last bit' if equal else 'NOT those of the first training'}"
        )
        return equal

    def _save_and_restore(self, model: Any, restored: Any) -> None:
        """Write a checkpoint to `igfs://` and read it into another model."""
        import tensorflow as tf

        if not self._native:
            _copy_and_restore(self._settings, model, restored)
            return
        tf.train.Checkpoint(model=model).write(CHECKPOINT)
        tf.train.Checkpoint(model=restored).read(CHECKPOINT).expect_partial()


class _EndedError(Exception):
    """Ends a training, as Ctrl-C would."""


def _at(epoch: int, batch: int, action: Callable[[], None]) -> Any:
    """Return a Keras callback that acts after a batch, from 1, of an epoch; 0 is its start."""
    import tensorflow as tf

    now = 0

    def begin(number: int, logs: Any = None) -> None:
        nonlocal now
        now = number + 1
        if not batch and now == epoch:
            action()

    def done(number: int, logs: Any = None) -> None:
        if (now, number + 1) == (epoch, batch):
            action()

    return tf.keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=done)


class _NodeKiller:
    """Kills the last member of a node while a model trains, and starts it again.

    Args:
        node: The node; nothing is killed if it is None or has a single member.
        say: Receives a line.

    Attributes:
        killed: Number of killed members.
    """

    def __init__(self, node: Node | None, say: Callable[[str], None]) -> None:
        self._node, self._say = node, say
        self.killed = 0

    def kill(self) -> None:
        """Kill the member without warning."""
        if self._node is None or len(self._node.pids) < 2:
            return
        pid = self._node.pids[-1]
        os.kill(pid, signal.SIGKILL)
        self.killed += 1
        self._say(f"killed a node (process {pid}) in epoch {_KILLED_IN}; the training continues")

    def restart(self) -> None:
        """Restart the member."""
        if self.killed and self._node is not None:
            Node.start(self._node.name)
            self._say("started the killed node again")


def _model() -> Any:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Rescaling(1 / 16),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    # Also builds the variables of the optimizer, so that a checkpoint restores right away.
    model.optimizer.build(model.trainable_variables)
    return model


def _copy_and_restore(settings: Settings, model: Any, restored: Any) -> None:
    """Save and restore through local folders, if TensorFlow cannot use `igfs://`."""
    import tensorflow as tf

    from ignitetf.fs.pull import pull
    from ignitetf.fs.push import push
    from ignitetf.fs.store import open_store

    folder, _, name = CHECKPOINT.removeprefix("igfs://").rpartition("/")
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        tf.train.Checkpoint(model=model).write(str(Path(here) / name))
        store = open_store(settings)
        push(store, Path(here), folder)
        pull(store, folder, Path(there))
        tf.train.Checkpoint(model=restored).read(str(Path(there) / name)).expect_partial()


def _read_rate(dataset: Any) -> float:
    """Return rows per second of the second and third epoch, without the cost of the first start."""
    import tensorflow as tf

    def count(rows: Any, item: Any) -> Any:
        return rows + tf.shape(item[1], tf.int64)[0]

    zero = tf.constant(0, tf.int64)
    dataset.reduce(zero, count)
    begin = time.perf_counter()
    rows = int(dataset.repeat(10).reduce(zero, count))
    return rows / (time.perf_counter() - begin)
