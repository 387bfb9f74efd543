"""tf_keras (Keras 2) `fit` on MNIST from Ignite, alone or on several workers of TensorFlow.

Run `ignitetf node start` and `ignitetf load mnist` first, and `pip install 'ignitetf[legacy]'`. Then

    TF_USE_LEGACY_KERAS=1 python legacy.py
    ignitetf launch -n 2 --keras legacy legacy.py
"""

import os

import tensorflow as tf

from ignitetf import IgniteDataset

BATCH, EPOCHS = 64, int(os.environ.get("EPOCHS", "2"))

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(1e-3),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

train = IgniteDataset("MNIST_TRAIN", as_supervised=True, shuffle=1)
test = IgniteDataset("MNIST_TEST", as_supervised=True)
model.fit(train.batch(BATCH), epochs=EPOCHS, shuffle=False, verbose=2)
worker = strategy.cluster_resolver.task_id or 0
print(f"worker {worker}: {model.evaluate(test.batch(BATCH), verbose=0, return_dict=True)}")
weights = sum(float(abs(w).sum()) for w in model.get_weights())
print(f"worker {worker}: weights {weights!r}")
