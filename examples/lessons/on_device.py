"""The same epochs read from Ignite each time, and gathered from columns in device memory.

python examples/lessons/on_device.py [--rows N]     after `ignitetf load mnist`
"""

import argparse
import statistics
import time

import tensorflow as tf

from ignitetf import IgniteDataset
from ignitetf.train import device_resident

BATCH = 128


def trainer():
    """A step of softmax regression, to be called inside a tf.function."""
    weights = tf.Variable(tf.zeros([784, 10]))

    def step(images, labels):
        flat = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 784])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, flat @ weights)
            )
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    return step, weights


def read_each_time(dataset):
    """An epoch that reads all rows from Ignite."""
    step, weights = trainer()
    batches = dataset.batch(BATCH)

    @tf.function
    def epoch():
        for images, labels in batches:
            step(images, labels)

    return epoch, weights


def gathered(dataset):
    """An epoch that sends row numbers only; images and labels are on the device already."""
    step, weights = trainer()
    resident = device_resident(dataset, BATCH, seed=1)

    @tf.function
    def epoch():
        for index in resident.indices:
            step(*resident.gather(index))

    return epoch, weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="MNIST_TRAIN")
    parser.add_argument("--rows", type=int, help="the first rows only")
    parser.add_argument("--epochs", type=int, default=7)
    given = parser.parse_args()
    choice = {} if given.rows is None else {"where": "ID < ?", "where_params": (given.rows,)}
    dataset = IgniteDataset(given.cache, as_supervised=True, shuffle=1, **choice)
    began = time.perf_counter()
    on_device, kept = gathered(dataset)
    print(f"read into the device once: {time.perf_counter() - began:.2f} s")
    read, plain = read_each_time(dataset)
    seconds = {"read": [], "gathered": []}
    ways = {"read": read, "gathered": on_device}
    for number in range(given.epochs + 1):
        for name in sorted(ways, reverse=number % 2):
            began = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - began)
    # The first epoch traces the function.
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s an epoch")
    print(f"reading takes {medians['read'] / medians['gathered']:.2f} times as long")
    print("same weights:", bool(tf.reduce_max(tf.abs(plain - kept)) < 1e-3))


if __name__ == "__main__":
    main()
