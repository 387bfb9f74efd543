"""Training programs that tests start, kill and start again.

    python train_programs.py ADDRESS CACHE DIRECTORY RESULT SAVE_FREQ

Trains with `BackupAndRestore`, prints each batch, and writes weights and history to RESULT, in which
`{worker}` becomes the number of the worker of a job. With KILLS="1:20,0:50" worker 1 kills itself
after step 20, and after the restart worker 0 after step 50. ORDER is that of the rows.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf

from ignitetf import IgniteDataset
from ignitetf.settings import Settings
from ignitetf.train import BackupAndRestore, data_parallel

WORKER = os.environ.get("IGNITETF_WORKER", "0")
EPOCHS, BATCH = 3, 32


class Say(tf.keras.callbacks.Callback):
    """Prints the number of each batch, slowly enough to be killed at it."""

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        print("batch", step, flush=True)
        for kill in os.environ.get("KILLS", "").split(","):
            worker, _, at = kill.partition(":")
            if worker == WORKER and step >= int(at) and not (mark := Path(f"killed{at}")).exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.03)


def build(fields):
    model = tf.keras.Sequential(
        [
            tf.keras.Input((fields,)),
            tf.keras.layers.Dense(24, activation="relu"),
            tf.keras.layers.Dropout(0.25, seed=5),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


def main(address, cache, directory, result, save_freq):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    group = data_parallel()
    tf.keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    if hasattr(tf.keras.backend, "experimental"):  # Keras 2
        # Else the masks of Dropout come from a generator that no checkpoint can hold.
        tf.keras.backend.experimental.enable_tf_random_generator()
    if directory.startswith("igfs://"):
        from ignitetf.fs import gfile

        gfile.configure(Settings.resolve(address=address), "TRAINED")
    order = os.environ.get("ORDER")
    dataset = IgniteDataset(
        cache, addresses=[address], shuffle=7, as_supervised=True, order=order, even="drop"
    )
    backup = BackupAndRestore(
        directory,
        dataset,
        BATCH,
        save_freq=save_freq if save_freq == "epoch" else int(save_freq),
        prepare=lambda d: d.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y)).prefetch(3),
    )
    with group.scope():
        model = build(16)
    history = model.fit(backup.batches, epochs=EPOCHS, verbose=0, callbacks=[backup, Say()])
    np.savez(
        result.format(worker=WORKER),
        *[v.numpy() for v in (*model.variables, *model.optimizer.variables)],
        history=json.dumps({"epoch": history.epoch, **history.history}),
    )
    print("resumed", json.dumps(backup.resumed), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
