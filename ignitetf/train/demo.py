"""The whole path in one function: node, load, train, checkpoint, restore.

The data are the 1,797 handwritten digits that ship with scikit-learn, so nothing has to be
downloaded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.net.client import Client
from ignitetf.settings import Settings

__all__ = ["run_demo"]

TRAIN, TEST = "DIGITS_TRAIN", "DIGITS_TEST"
CHECKPOINT = "igfs:///demo/digits"
_BATCH = 64
_EPOCHS = 12
_PARTITIONS = 8


def run_demo(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Load the digits into the node of `settings`, train on them, save and restore.

    Args:
        settings: Where the node is.
        say: Receives one line for each step.

    Returns:
        `rows`, `test_accuracy`, `restored_accuracy`, `checkpoint`, `load_rows_per_s`,
        `read_rows_per_s`, `address`.
    """
    with Client(settings) as client:
        reports = [
            load_dataset(
                open_source("digits", None, split=split),
                name,
                client=client,
                partitions=_PARTITIONS,
                if_exists="replace",
            )
            for name, split in ((TRAIN, "train"), (TEST, "test"))
        ]
    rows = sum(r.rows for r in reports)
    seconds = sum(r.seconds for r in reports)
    say(f"loaded {rows} images into {TRAIN} and {TEST}")
    result = _train(settings, say)
    return {
        "rows": rows,
        **result,
        "load_rows_per_s": round(rows / seconds) if seconds else 0,
        "address": ",".join(settings.addresses),
    }


def _train(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    import tensorflow as tf

    from ignitetf.read.tf.dataset import IgniteDataset

    tf.keras.utils.set_random_seed(1)
    train, test = (
        IgniteDataset(name, settings=settings, as_supervised=True).batch(_BATCH)
        for name in (TRAIN, TEST)
    )
    model = _model()
    model.fit(train, epochs=_EPOCHS, shuffle=False, verbose=0)
    accuracy = float(model.evaluate(test, verbose=0)[1])
    say(f"trained {_EPOCHS} epochs from {TRAIN}: test accuracy {accuracy:.4f}")
    restored = _model()
    _save_and_restore(settings, model, restored, say)
    again = float(restored.evaluate(test, verbose=0)[1])
    say(f"restored {CHECKPOINT}: test accuracy {again:.4f}")
    return {
        "test_accuracy": round(accuracy, 4),
        "restored_accuracy": round(again, 4),
        "checkpoint": CHECKPOINT,
        "read_rows_per_s": round(_read_rate(train)),
    }


def _model() -> Any:
    import tensorflow as tf

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


def _save_and_restore(
    settings: Settings, model: Any, restored: Any, say: Callable[[str], None]
) -> None:
    """Write a checkpoint to `igfs://` and read it into another model."""
    import tensorflow as tf

    from ignitetf.fs.oserrors import NativeIOUnavailable

    try:
        from ignitetf.fs import gfile
    except NativeIOUnavailable as error:
        say(f"{error}; copying the checkpoint instead\nhint: {error.hint}")
        _copy_and_restore(settings, model, restored)
        return
    gfile.configure(settings)
    tf.train.Checkpoint(model=model).write(CHECKPOINT)
    tf.train.Checkpoint(model=restored).read(CHECKPOINT).expect_partial()


def _copy_and_restore(settings: Settings, model: Any, restored: Any) -> None:
    """As `_save_and_restore`, through local folders if TensorFlow cannot use `igfs://`."""
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
