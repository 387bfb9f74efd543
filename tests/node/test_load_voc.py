"""VOC pairs as a user has them: into Ignite, through the input pipeline, into a model."""

import itertools

import numpy as np
import pytest

from ignitetf.errors import CacheExists, ConfigError
from ignitetf.explore.verify import verify
from ignitetf.load import fill
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.sources.vocxml import parse_voc
from ignitetf.tables.catalog import read_manifest

pytestmark = pytest.mark.node
HEIGHT, WIDTH = 482, 415


def objects_of(folder, names):
    """(image name, number of the object, class) of the pairs, by the second way: their files."""
    found = []
    for name in names:
        items = parse_voc((folder / "Annotations" / f"{name}.xml").read_bytes())
        found += [(name, n, item.name) for n, item in enumerate(items)]
    return found


def stems(folder):
    return sorted(path.stem for path in (folder / "JPEGImages").glob("*.jpg"))


def joined(client, name):
    """(image, object, class) by a join of both tables, which finds only what lies together."""
    query = (
        f"SELECT I.NAME, A.N, A.CLASS, I.ID FROM {name} I"
        f" JOIN {name}_ANNOTATIONS A ON I.ID = A.IMAGE_ID ORDER BY I.ID, A.N"
    )
    return [tuple(row) for row in client.sql(query)]


def test_a_limit_counts_images_and_takes_all_their_objects(client, cache_name, voc_dir):
    source = open_source("voc", str(voc_dir))
    report = load_dataset(source, cache_name, client=client, partitions=8, limit=20)
    expected = objects_of(voc_dir, stems(voc_dir)[:20])
    assert (report.rows, report.parts[0].rows) == (20, len(expected))
    assert [row[:3] for row in joined(client, cache_name)] == expected
    for name, part in (("images", source), ("annotations", source.parts["annotations"])):
        table = cache_name if name == "images" else f"{cache_name}_ANNOTATIONS"
        assert verify(client, table, part).findings == []
    with pytest.raises(ConfigError, match="limit = 20"):
        load_dataset(
            open_source("voc", str(voc_dir)), cache_name, client=client, if_exists="resume"
        )


def test_appended_annotations_belong_to_the_appended_images(client, cache_name, voc_dir):
    def voc():
        return open_source("voc", str(voc_dir))

    first = load_dataset(voc(), cache_name, client=client, partitions=8, limit=7)
    second = load_dataset(voc(), cache_name, client=client, if_exists="append", limit=12)
    names = stems(voc_dir)[:7] + stems(voc_dir)[:12]
    expected = [
        (name, n, label, number)
        for number, name in enumerate(names)
        for _, n, label in objects_of(voc_dir, [name])
    ]
    assert joined(client, cache_name) == expected
    assert first.parts[0].rows + second.parts[0].rows == len(expected)
    for table in (cache_name, f"{cache_name}_ANNOTATIONS"):
        assert verify(client, table).findings == []


@pytest.mark.parametrize("table", [0, 1])
def test_an_append_stopped_in_either_table_is_resumed_in_both(
    client, cache_name, voc_dir, monkeypatch, table
):
    """The annotations of an append are not forgotten when it is killed before their turn."""

    def voc():
        return open_source("voc", str(voc_dir))

    load_dataset(voc(), cache_name, client=client, partitions=8, limit=7)
    real = fill.Filler.run
    calls = itertools.count()

    def run(self, **how):
        if next(calls) == table:
            raise KeyboardInterrupt
        real(self, **how)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fill.Filler, "run", run)
        load_dataset(voc(), cache_name, client=client, if_exists="append", limit=7)
    with pytest.raises(CacheExists, match="unfinished"):
        load_dataset(voc(), cache_name, client=client, if_exists="append", limit=7)
    load_dataset(voc(), cache_name, client=client, if_exists="resume", limit=7)
    found = joined(client, cache_name)
    assert [row[:3] for row in found] == 2 * objects_of(voc_dir, stems(voc_dir)[:7])
    assert {row[3] for row in found} == set(range(14))
    assert read_manifest(client, f"{cache_name}_ANNOTATIONS").version == 2


def test_a_table_that_is_in_the_way_is_seen_before_the_first_row(client, cache_name, voc_dir):
    load_dataset({"X": np.arange(3)}, f"{cache_name}_ANNOTATIONS", client=client)
    for mode in ("error", "append"):
        with pytest.raises(CacheExists, match="ANNOTATIONS"):
            load_dataset(
                open_source("voc", str(voc_dir)), cache_name, client=client, if_exists=mode
            )
        assert not client.cache_exists(cache_name)


def test_an_index_is_made_in_the_tables_that_have_the_column(client, cache_name, voc_dir):
    source = open_source("voc", str(voc_dir))
    load_dataset(source, cache_name, client=client, limit=3, index=("WIDTH", "CLASS"))
    for table, column in ((cache_name, "WIDTH"), (f"{cache_name}_ANNOTATIONS", "CLASS")):
        plan = client.sql(f"EXPLAIN SELECT * FROM {table} WHERE {column} = '1'").fetchall()
        assert f"{table}_{column}_IDX" in plan[0][0]
    with pytest.raises(ConfigError, match="NOTHING"):
        load_dataset(source, f"{cache_name}_2", client=client, index=("WIDTH", "NOTHING"))
    assert not client.cache_exists(f"{cache_name}_2")


def test_a_later_append_goes_on_behind_the_limit(client, cache_name):
    arrays = {"X": np.arange(5000)}
    load_dataset(arrays, cache_name, client=client, limit=100)
    load_dataset({"X": np.arange(3)}, cache_name, client=client, if_exists="append")
    assert client.sql(f"SELECT MAX(ID), COUNT(*) FROM {cache_name}").fetchall() == [(102, 103)]


def test_running_keys_are_not_appended_to_keys_of_a_column(client, cache_name):
    load_dataset([{"id": 7, "x": 1}], cache_name, client=client, key="id")
    with pytest.raises(ConfigError, match="are not running numbers"):
        load_dataset([{"x": 2}], cache_name, client=client, if_exists="append")
    assert client.cache_size(cache_name) == 1


def test_the_pipeline_trains_two_steps(client, address, cache_name, voc_dir):
    tf = pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    load_dataset(open_source("voc", str(voc_dir)), cache_name, client=client, partitions=8)
    classes = read_manifest(client, cache_name).class_names
    assert classes == ("background", "Platelets", "RBC", "WBC")

    def prepared(row):
        image = tf.io.decode_jpeg(row["val"]["IMAGE"], channels=3)
        image = tf.image.resize_with_crop_or_pad(image, HEIGHT, WIDTH)
        return tf.image.per_image_standardization(image), row["val"]["LABEL"]

    dataset = IgniteDataset(cache_name, fields=["IMAGE", "LABEL"], addresses=[address])
    batches = dataset.map(prepared, num_parallel_calls=2).batch(4).prefetch(1)
    images, labels = next(iter(batches))
    assert images.shape == (4, HEIGHT, WIDTH, 3) and labels.dtype == tf.int32
    assert np.allclose(tf.reduce_mean(images, axis=(1, 2, 3)), 0, atol=1e-4)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 7, strides=4, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(len(classes)),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    history = model.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0]) and model.optimizer.iterations == 2


def test_every_image_comes_back_byte_for_byte(client, address, cache_name, voc_dir):
    """Through IgniteDataset, SQL and pyignite."""
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    load_dataset(open_source("voc", str(voc_dir)), cache_name, client=client, partitions=8)
    files = {path.stem: path.read_bytes() for path in (voc_dir / "JPEGImages").glob("*.jpg")}
    found = {}
    for page in IgniteDataset(cache_name, addresses=[address]).numpy():
        names = [name.decode() for name in page["val"]["NAME"]]
        found.update(zip(names, page["val"]["IMAGE"], strict=True))
    assert found == files
    assert dict(client.sql(f"SELECT NAME, IMAGE FROM {cache_name}")) == files
    rows = client.cache(cache_name).get_all(list(range(len(files)))).values()
    assert {row.NAME: row.IMAGE for row in rows} == files
