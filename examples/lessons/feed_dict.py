"""The same TensorFlow 1 training fed by feed_dict and by an iterator over Ignite.

python examples/lessons/feed_dict.py [--npz FILE with x_train, y_train, x_test, y_test]
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from ignitetf import IgniteDataset, load_dataset

v1 = tf.compat.v1
TRAIN, TEST, BATCH = "LESSON_TRAIN", "LESSON_TEST", 128


def arrays(path):
    """x_train, y_train, x_test, y_test: images as float32 [n, pixels], labels as int32."""
    if path:
        with np.load(path) as file:
            x_train, y_train, x_test, y_test = (
                file[name] for name in ("x_train", "y_train", "x_test", "y_test")
            )
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = digits.images.astype("uint8"), digits.target
        x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]
    flat = [x.reshape(len(x), -1) for x in (x_train, x_test)]
    return flat[0], y_train.astype("int32"), flat[1], y_test.astype("int32")


def model(images, labels, peak):
    """A training step and the number of right answers, as TensorFlow 1 has them."""
    pixels = images.shape[1]
    hidden = v1.get_variable("hidden", [pixels, 128])
    out = v1.get_variable("out", [128, 10])
    logits = tf.nn.relu(tf.cast(images, tf.float32) / peak @ hidden) @ out
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    step = v1.train.GradientDescentOptimizer(0.3).minimize(loss)
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), labels), tf.int32))
    return step, right


def by_feed_dict(data, epochs):
    """Seconds of each epoch, and the accuracy on the test part."""
    x_train, y_train, x_test, y_test = data
    order = np.random.default_rng(1)
    seconds = []
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.uint8, [None, x_train.shape[1]])
        labels = v1.placeholder(tf.int32, [None])
        step, right = model(images, labels, int(x_train.max()))
        session.run(v1.global_variables_initializer())
        for _ in range(epochs):
            began = time.perf_counter()
            rows = order.permutation(len(x_train))
            for first in range(0, len(rows), BATCH):
                chosen = rows[first : first + BATCH]
                session.run(step, {images: x_train[chosen], labels: y_train[chosen]})
            seconds.append(time.perf_counter() - began)
        found = session.run(right, {images: x_test, labels: y_test})
    return seconds, found / len(x_test)


def by_iterator(data, epochs):
    """The same from Ignite: one iterator, which begins anew on either data set."""
    seconds, right_ones = [], 0
    with tf.Graph().as_default(), v1.Session() as session:
        train = IgniteDataset(TRAIN, as_supervised=True, shuffle=1).batch(BATCH).prefetch(2)
        test = IgniteDataset(TEST, as_supervised=True).batch(1000)
        iterator = v1.data.Iterator.from_structure(
            v1.data.get_output_types(train), v1.data.get_output_shapes(train)
        )
        on_train, on_test = iterator.make_initializer(train), iterator.make_initializer(test)
        step, right = model(*iterator.get_next(), int(data[0].max()))
        session.run(v1.global_variables_initializer())
        for _ in range(epochs):
            began = time.perf_counter()
            session.run(on_train)
            for _ in range(0, len(data[0]), BATCH):
                session.run(step)
            seconds.append(time.perf_counter() - began)
        session.run(on_test)
        for _ in range(0, len(data[2]), 1000):
            right_ones += session.run(right)
    return seconds, right_ones / len(data[2])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--npz")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    data = arrays(given.npz)
    for name, (x, y) in {TRAIN: data[:2], TEST: data[2:]}.items():
        table = {"IMAGE": x, "LABEL": y}
        load_dataset(table, name, partitions=8, if_exists="replace")
    ways = {"feed_dict": by_feed_dict, "iterator": by_iterator}
    medians = {name: [] for name in ways}
    for number in range(given.rounds):
        # Both orders in turn: the second of two may find the machine warmer, or busier.
        for name in sorted(ways, reverse=number % 2):
            seconds, accuracy = ways[name](data, given.epochs)
            medians[name].append(statistics.median(seconds))
            print(f"{name}: {medians[name][-1]:.3f} s an epoch, accuracy {accuracy:.3f}")
    ratios = [a / b for a, b in zip(medians["feed_dict"], medians["iterator"], strict=True)]
    print(f"feed_dict takes {statistics.median(ratios):.2f} times as long")


if __name__ == "__main__":
    main()
