"""Structured rows: objects inside objects, and lists of different lengths, made flat by map.

python examples/lessons/nested.py [--rows N]
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from ignitetf import IgniteDataset, load_dataset


def visit(number):
    """A row as an application has it: a patient, and as many measurements as there were."""
    return {
        "PATIENT": {"AGE": number % 90, "ADDRESS": {"CITY": f"city {number % 7}"}},
        "PULSE": np.arange(number % 5 + 1, dtype=np.float32) + 60,
        "ILL": number % 3 == 0,
    }


def features(row):
    """One flat tensor [age, mean pulse, measurements] and the label."""
    value = row["val"]
    pulse = value["PULSE"]
    flat = [
        tf.cast(value["PATIENT"]["AGE"], tf.float32),
        tf.reduce_mean(pulse, axis=-1),
        tf.cast(pulse.row_lengths(), tf.float32)
        if isinstance(pulse, tf.RaggedTensor)
        else tf.cast(tf.size(pulse), tf.float32),
    ]
    return tf.stack(flat, axis=-1), value["ILL"]


def row_by_row(name):
    """The map sees one row at a time: easy to write."""
    return IgniteDataset(name).map(features).batch(256)


def by_batch(name):
    """The map sees a batch, in which lists are ragged: one call for 256 rows."""
    return IgniteDataset(name).batch(256).map(features)


def total(batches):
    """Sums of the features, and the seconds that it took."""
    began = time.perf_counter()
    zero = tf.zeros([3])
    found = batches.reduce(zero, lambda sums, x: sums + tf.reduce_sum(x[0], axis=0))
    return found.numpy(), time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows = (visit(number) for number in range(given.rows))
    load_dataset(rows, "LESSON_VISITS", partitions=8, if_exists="replace")
    print(IgniteDataset("LESSON_VISITS").element_spec["val"]["PATIENT"])
    ways = {"rows": row_by_row, "batches": by_batch}
    seconds, sums = {name: [] for name in ways}, []
    for number in range(given.rounds + 1):
        for name in sorted(ways, reverse=number % 2):
            found, took = total(ways[name]("LESSON_VISITS"))
            sums.append(found)
            seconds[name].append(took)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s")
    print(f"row by row takes {medians['rows'] / medians['batches']:.1f} times as long")
    print("same sums:", all(np.allclose(sums[0], found, rtol=1e-3) for found in sums))


if __name__ == "__main__":
    main()
