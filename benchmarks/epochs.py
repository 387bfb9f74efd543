"""Short epochs by each way to consume them, beside a bare socket in the reader's place.

The bare socket drains the same scans; for each page, its place in the same pipeline gives out the
same arrays anew, which cost nothing to make. So TensorFlow has the same start and the same work.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from beside import columns_of
from history import Figure

from ignitetf import Client, IgniteDataset, connect
from ignitetf.bench.bare import Scans
from ignitetf.bench.read import reduced_rows
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.settings import Settings

_BATCH = 128
_PARTITIONS = 8
_ROWS = 60_000
_OURS, _BARE, _MEMORY = "ignitetf", "bare socket", "arrays in memory"

Run = Callable[[], int]


def epoch_figures(settings: Settings, rounds: int, rows: int | None) -> list[Figure]:
    """Rates by that of the bare socket with the same consumer.

    Args:
        settings: Where the node is.
        rounds: Times each way is run.
        rows: Rows of an epoch; None for 60,000.
    """
    profile = sized(PROFILES["mnist"], rows or _ROWS)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, profile, _PARTITIONS)
            ways = _ways(client, profile)
            runs = {name: rows_a_second(way) for name, way in ways.items()}
            found = in_turn(runs, rounds)
        finally:
            drop_rows(client, profile.cache)
    return [
        Figure(
            "epochs",
            f"mnist, {profile.rows:,} rows",
            way,
            round(statistics.median(mine), 1),
            "rows/s",
            median_ratio(mine, found[f"{way.partition(': ')[0]}: {_BARE}"]),
            rounds,
        )
        for way, mine in found.items()
    ]


def _ways(client: Client, profile: Profile) -> dict[str, Run]:
    columns = columns_of(profile)
    sources = {
        _OURS: IgniteDataset(profile.cache, settings=client.settings, shard=(0, 1)).batch(_BATCH),
        _BARE: _drained(client, profile, columns),
        _MEMORY: tf.data.Dataset.from_tensor_slices(columns).batch(_BATCH),
    }
    consumers: dict[str, Callable[[tf.data.Dataset], Run]] = {
        "reduce": lambda batches: functools.partial(reduced_rows, batches),
        "eager loop": lambda batches: functools.partial(_eager, batches),
        "fit": functools.partial(_fitted, rows=profile.rows),
        "fit, 32 steps an execution": functools.partial(_fitted, rows=profile.rows, steps=32),
    }
    return {
        f"{consumer}: {source}": consumers[consumer](sources[source])
        for consumer, source in itertools.product(consumers, sources)
    }


def _drained(client: Client, profile: Profile, columns: dict[str, Any]) -> tf.data.Dataset:
    scans = Scans(client, profile.cache, profile.row_bytes)

    def pages() -> Iterator[Any]:
        for count in scans.counts(scans.ahead):
            yield _first(columns, count)

    spec = tf.nest.map_structure(
        lambda column: tf.TensorSpec([None, *column.shape[1:]], column.dtype), columns
    )
    dataset = tf.data.Dataset.from_generator(pages, output_signature=spec)
    batches = dataset.rebatch(_BATCH)
    count = -(-profile.rows // _BATCH)
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _first(columns: Any, count: int) -> Any:
    return tf.nest.map_structure(lambda column: column[:count], columns)


def _eager(batches: tf.data.Dataset) -> int:
    return sum(int(batch["key"].shape[0]) for batch in batches)


def _fitted(batches: tf.data.Dataset, rows: int, steps: int = 1) -> Run:
    """A model of one layer, trained on the images."""
    model = tf.keras.Sequential([tf.keras.Input((784,)), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=steps)
    trained = batches.map(_features_and_label).prefetch(2)

    def run() -> int:
        model.fit(trained, verbose=0)
        return rows

    return run


def _features_and_label(batch: Any) -> tuple[Any, Any]:
    return tf.cast(batch["val"]["IMAGE"], tf.float32) / 255, batch["val"]["LABEL"]
