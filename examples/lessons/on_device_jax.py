"""Three ways to the same weights in JAX: copied, copied ahead, and gathered on the device.

python examples/lessons/on_device_jax.py [--rows N]     after `ignitetf load mnist`
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

from ignitetf import open_rows
from ignitetf.train import device_resident

BATCH = 128


def loss(weights, images, labels):
    scores = images.reshape(-1, 784).astype(jnp.float32) / 255 @ weights
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1).mean()


@jax.jit
def step(weights, images, labels):
    """A step of softmax regression."""
    return weights - 0.1 * jax.grad(loss)(weights, images, labels.astype(jnp.int32))


@jax.jit
def gathered_step(weights, images, labels, index):
    """The same with row numbers: the rows are on the device."""
    return step(weights, images[index], labels[index])


def read_each_time(rows, weights):
    """An epoch that reads from Ignite, and copies each batch as it comes."""
    for batch in rows.batches(BATCH, True):
        weights = step(weights, batch["val"]["IMAGE"], batch["val"]["LABEL"])
    return weights


def read_ahead(rows, weights):
    """An epoch that reads and copies in a thread, ahead of the steps."""
    with rows.to_device(framework="jax", batch_size=BATCH, drop_remainder=True) as batches:
        for batch in batches:
            weights = step(weights, batch["val"]["IMAGE"], batch["val"]["LABEL"])
    return weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="MNIST_TRAIN")
    parser.add_argument("--rows", type=int, help="the first rows only")
    parser.add_argument("--epochs", type=int, default=7)
    given = parser.parse_args()
    choice = {} if given.rows is None else {"where": "ID < ?", "where_params": (given.rows,)}
    rows = open_rows(given.cache, shuffle=1, shard=(0, 1), **choice)
    began = time.perf_counter()
    resident = device_resident(rows, BATCH, drop_remainder=True, framework="jax")
    columns = resident.columns["val"]
    jax.block_until_ready(columns)
    print(f"{jax.devices()[0].platform}: read into the device once: "
          f"{time.perf_counter() - began:.2f} s")  # fmt: skip

    def gather(_, weights):
        for index in resident.indices():  # of the next epoch
            weights = gathered_step(weights, columns["IMAGE"], columns["LABEL"], index)
        return weights

    ways = {
        "read": read_each_time,
        "read ahead": read_ahead,
        "gathered": gather,
    }
    weights = {name: jnp.zeros((784, 10)) for name in ways}
    seconds = {name: [] for name in ways}
    for number in range(given.epochs + 1):
        for name in sorted(ways, reverse=number % 2):
            began = time.perf_counter()
            weights[name] = jax.block_until_ready(ways[name](rows, weights[name]))
            seconds[name].append(time.perf_counter() - began)
        rows = rows.next_epoch()
    # The first epoch compiles the step.
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s an epoch, {median / medians['gathered']:.2f} of gathered")
    same = all(bool(jnp.abs(found - weights["read"]).max() < 1e-4) for found in weights.values())
    print("same weights:", same)


if __name__ == "__main__":
    main()
