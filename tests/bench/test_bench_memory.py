"""Memory while a large cache is read: `pytest -m "bench and soak" -s tests/bench`.

A cache of 10 GB (`IGNITETF_BENCH_GB`) in rows of 1 MB is read whole by a process of its own for
each way; what it grows by beyond a cache of a twentieth of that must be a matter of pages, not of
the cache. The node keeps the rows on disk, so that it needs little memory itself.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers.ports import free_port

pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.soak, pytest.mark.timeout(1800)]

GB = float(os.environ.get("IGNITETF_BENCH_GB", "10"))
ROW_BYTES, PARTITIONS, READERS, PAGE_BYTES = 1_000_000, 16, 2, 16 << 20
# A reader has a page that comes in, one that is decoded, and a buffer that is kept; rows wait in as
# many bytes as the settings allow; the consumer has two pages in its hands, and TensorFlow the
# tensors of four.
BOUND_BYTES = (3 * READERS + 6) * PAGE_BYTES + (128 << 20)

READ = """
import json, sys, threading, time
import psutil
import tensorflow as tf
from ignitetf import IgniteDataset

process = psutil.Process()
cache, address, way = sys.argv[1:]
host, port = address.split(":")
dataset = IgniteDataset(cache, host, int(port), shard=(0, 1), readers=2)
batches = dataset.batch(16)
zero = tf.constant(0, tf.int64)

def count(rows, item):
    return rows + tf.shape(item["key"], tf.int64)[0]

int(batches.take(1).reduce(zero, count))
before, sizes, done = process.memory_info().rss, [], threading.Event()

def watch():
    while not done.wait(0.02):
        sizes.append(process.memory_info().rss - before)

watcher = threading.Thread(target=watch)
watcher.start()
begin = time.perf_counter()
if way == "numpy":
    rows = sum(len(columns["key"]) for columns in dataset.numpy())
else:
    rows = int(batches.reduce(zero, count))
seconds = time.perf_counter() - begin
done.set()
watcher.join()
step = max(1, -(-len(sizes) // 5))
peaks = [max(sizes[i : i + step]) for i in range(0, len(sizes), step)]
print(json.dumps({"rows": rows, "seconds": seconds, "peaks": peaks}))
"""


@pytest.fixture(scope="module")
def node(node_home):
    import shutil

    from ignitetf.local.state import node_directory
    from ignitetf.node import Node

    with Node.start("large", port=free_port(), memory="1g", persist=True) as found:
        yield found
    shutil.rmtree(node_directory("large"))


def fill(client, name, rows):
    import numpy as np

    from ignitetf import load_dataset
    from ignitetf.load.sources import open_source
    from ignitetf.wire.codes import TypeCode
    from ignitetf.wire.columns import Batch, Dense
    from ignitetf.wire.schema import Field, Schema

    key = Field("key", TypeCode.LONG, np.dtype("<i8"))
    image = Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), (ROW_BYTES,))
    schema = Schema(name, key, (image,))
    pixels = np.random.default_rng(1).integers(0, 256, (20, ROW_BYTES), dtype=np.uint8)

    def batches():
        for first in range(0, rows, len(pixels)):
            keys = np.arange(first, min(first + len(pixels), rows), dtype=np.int64)
            yield Batch(Dense(keys), {"IMAGE": Dense(pixels[: len(keys)])})

    source = open_source("records", batches, schema=schema, rows=rows, fingerprint=name)
    load_dataset(source, name, client=client, partitions=PARTITIONS)


def measured(name, address, way):
    done = subprocess.run(
        [sys.executable, "-c", READ, name, address, way],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_memory_does_not_grow_with_the_cache(node):
    from ignitetf import connect

    sizes = {"SMALL": int(GB * 1e9 / 20 / ROW_BYTES), "LARGE": int(GB * 1e9 / ROW_BYTES)}
    with connect(settings=node.settings) as client:
        for name, rows in sizes.items():
            fill(client, name, rows)
    print()
    for way in ("numpy", "batch"):
        found = {name: measured(name, node.addresses[0], way) for name in sizes}
        for name, rows in sizes.items():
            one = found[name]
            print(
                f"{way:6} {rows * ROW_BYTES / 1e9:5.1f} GB at"
                f" {rows * ROW_BYTES / 1e6 / one['seconds']:,.0f} MB/s: MB more memory in each"
                f" fifth: {', '.join(f'{peak / 1e6:.0f}' for peak in one['peaks'])}"
            )
            assert one["rows"] == rows
            assert max(one["peaks"]) <= BOUND_BYTES
