"""The ways to read that `ignitetf bench read` compares, all over the same rows.

rows of a profile -> **a function for each way** -> rows that were read, and where the time went
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ignitetf.explore.bench_bare import can_drain, draining
from ignitetf.explore.bench_rows import Profile, make_rows
from ignitetf.net.client import Client
from ignitetf.read.cursor import Times
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows
from ignitetf.read.scan import pipeline_depth
from ignitetf.wire.schema import Batch, Column

__all__ = ["BARE", "BARE_AHEAD", "Setup", "Way", "make_ways", "reduced_rows"]

BARE: Final = "bare socket"
BARE_AHEAD: Final = "bare socket, asks ahead"
# Pyignite and single elements are read for so many rows only; their rate is what counts.
_PYIGNITE_ROWS: Final = 3_000
_PYIGNITE_PAGE: Final = 500
_SINGLE_ROWS: Final = 10_000
# Files and arrays beside the cache have no more than this; their rate does not depend on it.
_BESIDE_BYTES: Final = 256 << 20
_BESIDE_ROWS: Final = 300_000


@dataclass(frozen=True)
class Way:
    """One way to read.

    Attributes:
        run: Reads once; gives the number of rows, or with it the seconds, where the way has
            a clock of its own.
        times: Where the reader's time went so far; None where it is none of ours.
    """

    run: Callable[[], int | tuple[int, float]]
    times: Times | None = None


@dataclass(frozen=True)
class Setup:
    """What is read.

    Attributes:
        client: The cluster.
        profile: The rows.
        partitions: Partitions of the cache.
        page_size: Entries in a page; None leaves it to the reader.
        beside: Folder for files of the same rows; None does without them.
        more: Further ways by name; each is called with the name of the cache.
    """

    client: Client
    profile: Profile
    partitions: int
    page_size: int | None = None
    beside: Path | None = None
    more: dict[str, Callable[[str], tuple[int, float]]] = field(default_factory=dict)

    @property
    def few(self) -> Profile:
        """The rows that files and arrays beside the cache have."""
        rows = min(self.profile.rows, _BESIDE_ROWS, max(1, _BESIDE_BYTES // self.profile.row_bytes))
        return Profile(rows, self.profile.row_bytes, self.profile.batch, self.profile.kind)


def make_ways(setup: Setup) -> dict[str, Way]:
    """All ways that can run here, the bare sockets first."""
    client = setup.client
    reader = CacheReader(client, setup.profile.cache, ReadOptions(page_size=setup.page_size))
    page = reader.page_size()
    ways: dict[str, Way] = {}
    if can_drain(client):
        ways |= _bare(setup, reader)
    ways["numpy()"] = _numpy(setup)
    with contextlib.suppress(ImportError):
        import tensorflow

        ways |= _tensorflow(setup, tensorflow)
    ways["pyignite scan"] = Way(lambda: _pyignite(setup, min(page, _PYIGNITE_PAGE)))
    for name, run in setup.more.items():
        ways[name] = Way(lambda run=run: run(setup.profile.cache))  # type: ignore[misc]
    return ways


def _bare(setup: Setup, reader: CacheReader) -> dict[str, Way]:
    drained, entry_bytes = draining(reader), reader.entry_bytes
    unit_bytes = entry_bytes * setup.profile.rows / setup.partitions
    ahead = pipeline_depth(unit_bytes, int(reader.page_size() * entry_bytes))
    return {BARE: Way(drained), BARE_AHEAD: Way(functools.partial(drained, ahead=ahead))}


def _numpy(setup: Setup) -> Way:
    """What `IgniteDataset.numpy()` gives, also where TensorFlow is not installed."""
    rows = open_rows(
        setup.profile.cache, client=setup.client, page_size=setup.page_size, shard=(0, 1)
    )

    def read() -> int:
        return sum(len(batch["key"]) for batch in rows.batches())

    return Way(read, rows.reader.times)


def _tensorflow(setup: Setup, tf: Any) -> dict[str, Way]:
    from ignitetf.read.tf.dataset import IgniteDataset

    size = setup.profile.batch
    dataset = IgniteDataset(
        setup.profile.cache, settings=setup.client.settings, page_size=setup.page_size, shard=(0, 1)
    )
    batches, times = dataset.batch(size), dataset.rows.reader.times
    zero = tf.constant(0, tf.int64)
    # TensorFlow's tuning thread may sleep through the end of an epoch, which ends at its next turn.
    calm = tf.data.Options()
    calm.autotune.enabled = False
    untuned = batches.with_options(calm)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def loop(items: Any) -> Any:
        rows = zero
        for item in items:
            rows = _count(rows, item)
        return rows

    def eager() -> int:
        return sum(int(item["key"].shape[0]) for item in batches)

    def single() -> int:
        return int(
            dataset.take(min(_SINGLE_ROWS, setup.few.rows)).reduce(zero, lambda rows, _: rows + 1)
        )

    # Made when they are read first, in the round that warms up.
    memory = functools.cache(lambda: _in_memory(setup, tf))
    records = functools.cache(lambda folder: _records(setup, tf, folder))
    ways = {
        f"batch({size}), reduce": Way(lambda: reduced_rows(batches), times),
        f"batch({size}), reduce, no autotune": Way(lambda: reduced_rows(untuned), times),
        f"batch({size}), tf.function": Way(lambda: int(loop(batches)), times),
        f"batch({size}), eager loop": Way(eager, times),
        "single elements, reduce": Way(single),
        f"from_tensor_slices, batch({size})": Way(lambda: reduced_rows(memory())),
    }
    if setup.beside is not None:
        ways[f"TFRecord, batch({size}), parse_example"] = Way(
            lambda: reduced_rows(records(setup.beside))
        )
    return ways


def reduced_rows(batches: Any) -> int:
    """The rows of batches of a `tf.data.Dataset`, counted within TensorFlow."""
    import tensorflow as tf

    return int(batches.reduce(tf.constant(0, tf.int64), _count))


def _count(rows: Any, item: Any) -> Any:
    import tensorflow as tf

    return rows + tf.shape(item["key"], tf.int64)[0]


def _in_memory(setup: Setup, tf: Any) -> Any:
    """The same columns as arrays, cut in the same batches."""
    parts = list(make_rows(setup.few))
    columns: dict[str, Any] = {
        name: np.concatenate([_array(part.columns[name]) for part in parts])
        for name in parts[0].columns
    }
    keys = np.concatenate([part.key.values for part in parts])  # type: ignore[union-attr]
    dataset = tf.data.Dataset.from_tensor_slices({"key": keys, "val": columns})
    return dataset.batch(setup.profile.batch)


def _array(column: Column) -> Any:
    if column.lengths is None:
        return column.values
    out = np.empty(len(column), object)
    out[:] = column.to_bytes()
    return out


def _records(setup: Setup, tf: Any, folder: Path) -> Any:
    """The same rows as a TFRecord file of `tf.train.Example`, parsed by the batch."""
    path = folder / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for batch in make_rows(setup.few):
            for example in _examples(tf, batch):
                writer.write(example)
    first = next(make_rows(Profile(1, setup.profile.row_bytes, 1, setup.profile.kind)))
    features = {"key": tf.io.FixedLenFeature([], tf.int64)}
    dense, narrow = [], {}
    for name, column in first.columns.items():
        values = column.values
        assert isinstance(values, np.ndarray)
        kind = tf.string if column.lengths is not None or values.ndim > 1 else tf.int64
        if values.dtype.kind == "f":
            kind = tf.float32
        features[name] = tf.io.FixedLenFeature([], kind)
        if values.ndim > 1:
            dense.append(name)
        elif column.lengths is None:
            narrow[name] = values.dtype

    def parse(texts: Any) -> Any:
        found = tf.io.parse_example(texts, features)
        for name in dense:
            found[name] = tf.io.decode_raw(found[name], tf.uint8)
        for name, dtype in narrow.items():
            found[name] = tf.cast(found[name], dtype)
        return {"key": found.pop("key"), "val": found}

    records = tf.data.TFRecordDataset(str(path)).batch(setup.profile.batch)
    return records.map(parse, num_parallel_calls=2)


def _examples(tf: Any, batch: Batch) -> Iterator[bytes]:
    assert batch.key is not None
    columns = {name: _array(column) for name, column in batch.columns.items()}
    columns["key"] = batch.key.values
    for i in range(len(batch)):
        features = {name: _feature(tf, values[i]) for name, values in columns.items()}
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _feature(tf: Any, value: Any) -> Any:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if value.ndim:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _pyignite(setup: Setup, page: int) -> int:
    rows, most = 0, min(_PYIGNITE_ROWS, setup.few.rows)
    with setup.client.cache(setup.profile.cache).scan(page_size=page) as cursor:
        for _ in cursor:
            rows += 1
            if rows >= most:
                break
    return rows
