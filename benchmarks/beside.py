"""The same rows without Ignite: arrays in memory, and a TFRecord file of `tf.train.Example`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ignitetf.bench.rows import Profile, make_rows, sized
from ignitetf.bench.ways import reduced_rows
from ignitetf.wire.schema import Batch, Column

# Files and arrays have no more than this; their rate does not depend on it.
_MOST_BYTES = 256 << 20
_MOST_ROWS = 300_000

Ways = dict[str, Callable[[str], tuple[int, float]]]


def ways_beside(profile: Profile, folder: Path) -> Ways:
    """Further ways of `bench_read`: each takes a cache, which it does without.

    Args:
        profile: The rows.
        folder: Where the file is written.
    """
    few = sized(profile, min(profile.rows, _MOST_ROWS, max(1, _MOST_BYTES // profile.row_bytes)))
    # Made by the round that warms up.
    memory = functools.cache(lambda: _in_memory(few))
    records = functools.cache(lambda: _records(few, folder / "rows.tfrecord"))
    return {
        f"from_tensor_slices, batch({profile.batch})": lambda cache: _timed(memory()),
        f"TFRecord, batch({profile.batch}), parse_example": lambda cache: _timed(records()),
    }


def _timed(batches: tf.data.Dataset) -> tuple[int, float]:
    """Rows and seconds."""
    begin = time.perf_counter()
    rows = reduced_rows(batches)
    return rows, time.perf_counter() - begin


def _in_memory(profile: Profile) -> tf.data.Dataset:
    """The columns as arrays, cut in the batches of the profile."""
    return tf.data.Dataset.from_tensor_slices(columns_of(profile)).batch(profile.batch)


def columns_of(profile: Profile) -> dict[str, Any]:
    """All rows of a profile as arrays, in the structure of an element of `IgniteDataset`."""
    parts = list(make_rows(profile))
    columns = {
        name: np.concatenate([_array(part.columns[name]) for part in parts])
        for name in parts[0].columns
    }
    return {"key": np.concatenate([part.key.values for part in parts]), "val": columns}


def _array(column: Column) -> Any:
    if column.lengths is None:
        return column.values
    return column.to_objects()


def _records(profile: Profile, path: Path) -> tf.data.Dataset:
    """The rows as a file, parsed by the batch."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for batch in make_rows(profile):
            for example in _examples(batch):
                writer.write(example)
    parse = _parser(next(make_rows(sized(profile, 1))))
    records = tf.data.TFRecordDataset(str(path)).batch(profile.batch)
    return records.map(parse, num_parallel_calls=2)


def _parser(first: Batch) -> Callable[[Any], Any]:
    """A function that parses a batch of serialized examples into columns like these."""
    features = {"key": tf.io.FixedLenFeature([], tf.int64)}
    dense, narrow = [], {}
    for name, column in first.columns.items():
        kind = tf.string if column.lengths is not None or column.values.ndim > 1 else tf.int64
        if column.values.dtype.kind == "f":
            kind = tf.float32
        features[name] = tf.io.FixedLenFeature([], kind)
        if column.values.ndim > 1:
            dense.append(name)
        elif column.lengths is None:
            narrow[name] = column.values.dtype

    def parse(texts: Any) -> Any:
        found = tf.io.parse_example(texts, features)
        for name in dense:
            found[name] = tf.io.decode_raw(found[name], tf.uint8)
        for name, dtype in narrow.items():
            found[name] = tf.cast(found[name], dtype)
        return {"key": found.pop("key"), "val": found}

    return parse


def _examples(batch: Batch) -> Iterator[bytes]:
    columns = {name: _array(column) for name, column in batch.columns.items()}
    columns["key"] = batch.key.values
    for i in range(len(batch)):
        features = {name: _feature(values[i]) for name, values in columns.items()}
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _feature(value: Any) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if value.ndim:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
