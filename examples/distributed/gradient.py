"""The gradient of a loss over a whole data set: each worker sums its rows, then all sum theirs.

Run `ignitetf node start` and `ignitetf load mnist` first. Then

    python gradient.py
    ignitetf launch -n 2 gradient.py

print the same, but for the order in which floats are added.
"""

import tensorflow as tf

from ignitetf import IgniteDataset

strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id or 0
weights = tf.random.stateless_normal((784, 10), seed=(1, 2)) / 100


@tf.function
def gradient(images, labels):
    """Return the sum over the rows of a batch, in float64, as there are many."""
    features = tf.reshape(tf.cast(images, tf.float32), (-1, 784)) / 255
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, features @ weights)
        loss = tf.reduce_sum(losses)
    return tf.cast(tape.gradient(loss, weights), tf.float64)


@tf.function
def over_all_workers(value):
    """Return the sum of what the workers have."""
    return strategy.reduce("SUM", strategy.run(tf.identity, args=(value,)), axis=None)


total, rows = tf.zeros((784, 10), tf.float64), tf.constant(0, tf.int64)
# The rows of this worker are whole partitions, which it reads once, in any order.
for images, labels in IgniteDataset("MNIST_TRAIN", as_supervised=True).batch(1024):
    total += gradient(images, labels)
    rows += len(labels)
found, count = over_all_workers(total), over_all_workers(rows)
print(f"worker {worker}: {int(rows)} rows of {int(count)}")
print(f"worker {worker}: gradient {float(tf.norm(found))!r} {float(found[400, 3])!r}")
