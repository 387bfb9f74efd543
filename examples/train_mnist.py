"""Train on MNIST from Ignite, stop anywhere, go on with the next unseen batch.

Run `ignitetf node start` and `ignitetf load mnist` first.
"""

import tensorflow as tf

from ignitetf import IgniteDataset

BATCH = 128

train = IgniteDataset("MNIST_TRAIN", as_supervised=True, shuffle=1)
test = IgniteDataset("MNIST_TEST", as_supervised=True).batch(1000)

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
    tf.keras.optimizers.Adam(3e-3),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

rows = 0
for images, labels in train.batch(BATCH).take(100):
    model.train_on_batch(images, labels)
    rows += len(labels)
state = train.state(rows_consumed=rows)
print("stopped at", state)

model.fit(train.resume(state).batch(BATCH).repeat(3), epochs=1, shuffle=False)
print("test:", model.evaluate(test, verbose=0, return_dict=True))
