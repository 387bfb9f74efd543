"""Trainings with Keras, each in a process of its own: the backend is chosen when it is imported."""

import json
import random
import sys

import numpy as np


def fit(train, test, address):
    """Train MNIST by each kind of worker; print the accuracies, and the order of every epoch."""
    import keras

    from ignitetf import open_rows
    from ignitetf.train import PyDataset

    seen = []

    class Recorded(PyDataset):
        def __getitem__(self, index):
            features, label = super().__getitem__(index)
            seen.append((self.epoch, index, int(features.sum())))
            return features, label

    found = []
    for options in ({}, {"workers": 3}, {"workers": 2, "use_multiprocessing": True}):
        # `keras.utils.set_random_seed` imports TensorFlow where it is installed.
        random.seed(7)
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
        seen.clear()
        batches = Recorded(train, 64, address, shuffle=7, **options)
        history = model.fit(
            batches, epochs=3, shuffle=False, verbose=0,
            validation_data=PyDataset(test, 64, address, **options),
        ).history  # fmt: skip
        assert len(batches) == -(-len(open_rows(train, address)) // 64)
        assert batches.epoch >= 3
        if not options:  # with workers Keras itself reads ahead over the end of an epoch
            assert batches.epoch == 3
            for epoch in range(3):
                rows = open_rows(train, address, order="global", shuffle=7, epoch=epoch)
                sums = [int(b["val"]["IMAGE"].sum()) for b in rows.batches(64)]
                asked = {index: s for e, index, s in seen if e == epoch}
                assert [asked[i] for i in range(len(batches))] == sums
        found.append({"accuracy": history["val_accuracy"], "loss": history["loss"]})
    print(json.dumps({"runs": found, "tensorflow": "tensorflow" in sys.modules}))


def by_number(table, address):
    """Read batches of `PyDataset` beside those of `open_rows`."""
    import pickle

    import pytest

    from ignitetf import open_rows
    from ignitetf.errors import ConfigError
    from ignitetf.train import PyDataset

    cases = (
        {},
        {"shuffle": 7},
        {"shuffle": 7, "drop_last": True},
        {"shuffle": 7, "shard": (1, 3)},
        {"order": "keys", "epoch": 4},
    )
    for options in cases:
        batches = PyDataset(table, 32, address, fields=["A", "LABEL"], **options)
        drop = options.pop("drop_last", False)
        order = {"order": "global" if "shuffle" in options else "keys", **options}
        for _ in range(3):
            rows = open_rows(table, address, **{**order, "epoch": batches.epoch})
            wanted = list(rows.batches(32, drop))
            assert len(batches) == len(wanted)
            for (features, label), batch in zip(batches, wanted, strict=True):
                assert np.array_equal(features, batch["val"]["A"])
                assert np.array_equal(label, batch["val"]["LABEL"])
            copy = pickle.loads(pickle.dumps(batches))
            assert np.array_equal(copy[1][0], batches[1][0])
            batches.on_epoch_end()
            assert copy.epoch == batches.epoch - 1
            batches[0]
            batches.on_epoch_end()  # as Keras does after the batch that tells it the shapes
            assert copy.epoch == batches.epoch - 1
        for wrong in (-1, len(batches)):
            with pytest.raises(IndexError):
                batches[wrong]
    (steps,) = [PyDataset(table, None, address, global_batch=50, shard=(0, 3), shuffle=1)]
    assert len(steps[0][1]) == 17 and len(steps) == 7
    for wrong in ({"order": "scan"}, {"batch_size": None}, {"drop_last": "no"}, {"fields": ["A"]}):
        given = {"batch_size": 32, **wrong}
        with pytest.raises(ConfigError):
            PyDataset(table, given.pop("batch_size"), address, **given)
    for count in (0, 1):
        few = PyDataset(table, 32, address, fields=["A", "LABEL"], where=f"A < {count}")
        assert [len(label) for _, label in few] == [count] * count
        few.on_epoch_end()
    print(json.dumps("done"))


if __name__ == "__main__":
    {"fit": fit, "by_number": by_number}[sys.argv[1]](*sys.argv[2:])
