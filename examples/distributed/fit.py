"""Keras 3 `fit` on MNIST from Ignite: alone, on several workers of TensorFlow, or with JAX.

Run `ignitetf node start` and `ignitetf load mnist` first. Then

    python fit.py
    ignitetf launch -n 2 fit.py
    KERAS_BACKEND=jax ignitetf launch -n 2 fit.py
"""

import os

import keras

from ignitetf import IgniteDataset
from ignitetf.train import data_parallel

BATCH, EPOCHS = 64, int(os.environ.get("EPOCHS", "2"))

group = data_parallel()
keras.utils.set_random_seed(1)
with group.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# Each worker reads its own rows, and as many as the others.
train = IgniteDataset("MNIST_TRAIN", as_supervised=True, order="global", shuffle=1, even="drop")
test = IgniteDataset("MNIST_TEST", as_supervised=True, even="drop")
# Where workers train alike, one of them is enough to say how.
verbose = 2 if group.worker == 0 else 0
model.fit(train.batch(group.batch(BATCH)), epochs=EPOCHS, shuffle=False, verbose=verbose)
found = model.evaluate(test.batch(group.batch(BATCH)), verbose=0, return_dict=True)
print(f"worker {group.worker} of {group.workers}: {found}")
weights = sum(float(abs(w).sum()) for w in model.get_weights())
print(f"worker {group.worker}: weights {weights!r}")
