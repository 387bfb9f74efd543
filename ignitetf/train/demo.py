"""The whole path in one function: node, load, train, checkpoint, restore.

The data are the 1,797 handwritten digits that ship inside scikit-learn, so that nothing has to
be downloaded.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from ignitetf.client import Client
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.settings import Settings, ignitetf_home

__all__ = ["run_demo"]

TRAIN, TEST = "DIGITS_TRAIN", "DIGITS_TEST"
_BATCH = 64
_EPOCHS = 12
_PARTITIONS = 8


def run_demo(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Load the digits into the node of `settings`, train from it, save and restore.

    Args:
        settings: Where the node is.
        say: Takes one line for each step.

    Returns:
        `rows`, `test_accuracy`, `restored_accuracy`, `checkpoint`, `load_rows_per_s`,
        `read_rows_per_s`, `address`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
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

    from ignitetf.read.dataset import IgniteDataset

    tf.keras.utils.set_random_seed(1)
    train, test = (
        IgniteDataset(name, settings=settings, as_supervised=True).batch(_BATCH)
        for name in (TRAIN, TEST)
    )
    model = _model()
    model.fit(train, epochs=_EPOCHS, shuffle=False, verbose=0)
    accuracy = float(model.evaluate(test, verbose=0)[1])
    say(f"trained {_EPOCHS} epochs from {TRAIN}: test accuracy {accuracy:.4f}")
    path = _checkpoint_path(settings)
    tf.train.Checkpoint(model=model).write(path)
    restored = _model()
    tf.train.Checkpoint(model=restored).read(path).expect_partial()
    again = float(restored.evaluate(test, verbose=0)[1])
    say(f"restored {path}: test accuracy {again:.4f}")
    return {
        "test_accuracy": round(accuracy, 4),
        "restored_accuracy": round(again, 4),
        "checkpoint": path,
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
    # Builds the variables of the optimizer too, so that a checkpoint restores at once.
    model.optimizer.build(model.trainable_variables)
    return model


def _checkpoint_path(settings: Settings) -> str:
    """A path in the cluster; a local one where TensorFlow cannot have `igfs://`."""
    from ignitetf.fs.oserrors import NativeIOUnavailable

    try:
        from ignitetf.fs import gfile
    except NativeIOUnavailable as error:
        warnings.warn(f"{error.message}; the checkpoint stays local", stacklevel=2)
        folder = ignitetf_home() / "demo"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / "digits")
    gfile.configure(settings)
    return "igfs:///demo/digits"


def _read_rate(dataset: Any) -> float:
    """Rows a second of the second and third epoch, without the cost of the first start."""
    import tensorflow as tf

    def count(rows: Any, item: Any) -> Any:
        return rows + tf.shape(item[1], tf.int64)[0]

    zero = tf.constant(0, tf.int64)
    dataset.reduce(zero, count)
    begin = time.perf_counter()
    rows = int(dataset.repeat(10).reduce(zero, count))
    return rows / (time.perf_counter() - begin)
