"""A training loop of one's own on MNIST from Ignite, alone or on several workers of TensorFlow.

Run `ignitetf node start` and `ignitetf load mnist` first. Then

    python loop.py
    ignitetf launch -n 2 loop.py
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
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

# The strategy divides each batch: 64 rows are those of a step over all workers.
train = IgniteDataset("MNIST_TRAIN", as_supervised=True, order="global", shuffle=1)
batches = strategy.experimental_distribute_dataset(train.batch(BATCH))


@tf.function
def step(batch):
    def replica(images, labels):
        with tf.GradientTape() as tape:
            found = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.shape(labels)[0]

    loss, rows = strategy.run(replica, args=batch)
    return strategy.reduce("SUM", loss, axis=None), strategy.reduce("SUM", rows, axis=None)


worker = strategy.cluster_resolver.task_id or 0
for epoch in range(EPOCHS):
    results = [step(batch) for batch in batches]
    rows = sum(int(count) for _, count in results)
    loss = sum(float(loss) for loss, _ in results) / len(results)
    print(f"worker {worker}: epoch {epoch}, {rows} rows in {len(results)} steps, loss {loss:.4f}")
weights = sum(float(abs(w).sum()) for w in model.get_weights())
print(f"worker {worker}: weights {weights!r}")
