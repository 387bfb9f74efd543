"""Read a cache by tensorflow-io's op for each line "CACHE PAGE_SIZE BATCH" of the input.

Run by a Python that has tensorflow-io 0.23.1 (TensorFlow 2.7, Python 3.7 to 3.9), which cannot
have ignitetf. BATCH 0 reads single elements. Prints "ROWS NANOSECONDS".
"""

import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from tensorflow_io.ignite import IgniteDataset

SINGLE_ROWS = 10_000


def read(host, port, cache, page_size, batch):
    dataset = IgniteDataset(cache_name=cache, host=host, port=port, page_size=page_size)
    zero = tf.constant(0, tf.int64)
    if batch:
        dataset = dataset.batch(batch)
        count = lambda rows, item: rows + tf.shape(item["key"], tf.int64)[0]  # noqa: E731
    else:
        dataset = dataset.take(SINGLE_ROWS)
        count = lambda rows, item: rows + 1  # noqa: E731
    begin = time.perf_counter_ns()
    rows = int(dataset.reduce(zero, count))
    return rows, time.perf_counter_ns() - begin


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    print("ready", flush=True)
    for line in sys.stdin:
        cache, page_size, batch = line.split()
        print(*read(host, int(port), cache, int(page_size), int(batch)), flush=True)


if __name__ == "__main__":
    main()
