"""Real images, byte for byte, through every way of reading them."""

import gzip

import numpy as np
import pytest

from ignitetf.errors import SqlError
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source

pytestmark = pytest.mark.node
tf = pytest.importorskip("tensorflow")


def idx(path, offset, shape):
    with gzip.open(path, "rb") as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset).reshape(shape)


@pytest.fixture(scope="module")
def images(mnist_dir):
    return {
        "train": (
            idx(mnist_dir / "train-images-idx3-ubyte.gz", 16, (-1, 28, 28, 1)),
            idx(mnist_dir / "train-labels-idx1-ubyte.gz", 8, (-1,)),
        ),
        "test": (
            idx(mnist_dir / "t10k-images-idx3-ubyte.gz", 16, (-1, 28, 28, 1)),
            idx(mnist_dir / "t10k-labels-idx1-ubyte.gz", 8, (-1,)),
        ),
    }


def collect(dataset):
    keys, pixels, labels = [], [], []
    for item in dataset:
        keys.append(item["key"].numpy())
        pixels.append(item["val"]["IMAGE"].numpy())
        labels.append(item["val"]["LABEL"].numpy())
    return np.concatenate(keys), np.concatenate(pixels), np.concatenate(labels)


@pytest.mark.parametrize("partitions", [1, 8, 1024])
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_image_comes_back_under_its_key(
    client, address, cache_name, mnist_dir, images, split, partitions
):
    from ignitetf import IgniteDataset

    source = open_source("mnist", str(mnist_dir), split=split)
    report = load_dataset(source, cache_name, client=client, partitions=partitions)
    expected, classes = images[split]
    assert report.rows == len(expected)
    assert client.partition_count(cache_name) == partitions
    dataset = IgniteDataset(cache_name, addresses=[address])
    assert dataset.element_spec["val"]["IMAGE"] == tf.TensorSpec((28, 28, 1), tf.uint8)
    assert int(dataset.cardinality()) == len(expected)
    keys, pixels, labels = collect(dataset.batch(1000))
    order = np.argsort(keys)
    assert np.array_equal(keys[order], np.arange(len(expected)))
    assert np.array_equal(pixels[order], expected)
    assert np.array_equal(labels[order], classes)
    counted = client.sql(f'SELECT COUNT(*) FROM "{cache_name}"').fetchall()
    assert counted == [(len(expected),)]


@pytest.mark.core
def test_pyignite_and_sql_read_the_same_rows(client, cache_name, mnist_dir, images):
    source = open_source("mnist", str(mnist_dir), split="test")
    load_dataset(source, cache_name, client=client, partitions=4, limit=500)
    expected, classes = images["test"]
    rows = client.sql(f'SELECT ID, LABEL, IMAGE FROM "{cache_name}" ORDER BY ID').fetchall()
    assert [r[0] for r in rows] == list(range(500))
    with pytest.raises(SqlError) as caught:
        client.sql(f'SELECT _KEY FROM "{cache_name}"')
    assert "table describe" in caught.value.hint and caught.value.__notes__ == [
        f"hint: {caught.value.hint}"
    ]
    keys = client.sql(f'SELECT _KEY FROM "{cache_name}__ROWS" ORDER BY _KEY').fetchall()
    assert keys == [(r[0],) for r in rows]
    assert [r[1] for r in rows] == classes[:500].tolist()
    assert all(bytes(r[2]) == expected[r[0]].tobytes() for r in rows)
    cache = client.cache(cache_name)
    for key in (0, 1, 250, 499):
        value = cache.get(key)
        assert classes[key] == value.LABEL
        assert bytes(value.IMAGE) == expected[key].tobytes()


def test_training_reaches_97_percent(client, address, cache_name, mnist_dir):
    from ignitetf import IgniteDataset

    for split in ("train", "test"):
        source = open_source("mnist", str(mnist_dir), split=split)
        load_dataset(source, f"{cache_name}_{split.upper()}", client=client, partitions=8)
    train, test = (
        IgniteDataset(f"{cache_name}_{s}", addresses=[address], as_supervised=True).batch(128)
        for s in ("TRAIN", "TEST")
    )
    tf.keras.utils.set_random_seed(7)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    adam = tf.keras.optimizers.Adam(3e-3)
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(train, epochs=3, shuffle=False, verbose=0)
    assert model.evaluate(test, verbose=0)[1] >= 0.97
