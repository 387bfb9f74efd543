"""The same rows without Ignite: arrays in memory, and a TFRecord file of `tf.train.Example`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ignitetf.bench.read import reduced_rows
from ignitetf.bench.rows import Columns, Profile, make_rows, sized

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
    (columns,) = make_rows(profile, profile.rows * profile.row_bytes)
    return {"key": np.arange(profile.rows), "val": {n: _plain(v) for n, v in columns.items()}}


def _plain(values: Any) -> Any:
    """Texts as bytes, which is how they are stored; other arrays as they are."""
    return (
        np.array([t.encode() for t in values.tolist()], object)
        if values.dtype.kind == "U"
        else values
    )


def _records(profile: Profile, path: Path) -> tf.data.Dataset:
    """The rows as a file, parsed by the batch."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in _examples(columns_of(profile)):
            writer.write(example)
    (first,) = make_rows(sized(profile, 1))
    records = tf.data.TFRecordDataset(str(path)).batch(profile.batch)
    return records.map(_parser(first), num_parallel_calls=2)


def _parser(first: Columns) -> Callable[[Any], Any]:
    """A function that parses a batch of serialized examples into columns like these."""
    features = {"key": tf.io.FixedLenFeature([], tf.int64)}
    dense, narrow = [], {}
    for name, values in first.items():
        is_text = values.dtype.kind in "OU"
        kind = tf.string if is_text or values.ndim > 1 else tf.int64
        if values.dtype.kind == "f":
            kind = tf.float32
        features[name] = tf.io.FixedLenFeature([], kind)
        if values.ndim > 1:
            dense.append(name)
        elif not is_text:
            narrow[name] = values.dtype

    def parse(texts: Any) -> Any:
        found = tf.io.parse_example(texts, features)
        for name in dense:
            found[name] = tf.io.decode_raw(found[name], tf.uint8)
        for name, dtype in narrow.items():
            found[name] = tf.cast(found[name], dtype)
        return {"key": found.pop("key"), "val": found}

    return parse


def _examples(columns: dict[str, Any]) -> Iterator[bytes]:
    for i, key in enumerate(columns["key"]):
        features = {name: _feature(values[i]) for name, values in columns["val"].items()}
        features["key"] = _feature(key)
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _feature(value: Any) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if value.ndim:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
