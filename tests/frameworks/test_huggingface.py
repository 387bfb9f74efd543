"""Hugging Face's `datasets`: rows of SQL, an iterable with state, and files that show images."""

import io

import numpy as np
import pytest
from PIL import Image

datasets = pytest.importorskip(
    "datasets", reason="needs datasets: pip install 'ignitetf[huggingface]'"
)
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore")]

from ignitetf import load_dataset, open_rows  # noqa: E402
from ignitetf.errors import ConfigError  # noqa: E402
from ignitetf.export.export import export_dataset  # noqa: E402
from ignitetf.huggingface import iterable_dataset  # noqa: E402
from ignitetf.load.sources import open_source  # noqa: E402


def png(number):
    out = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def photos(client, cache_name, tmp_path):
    for number in range(30):
        path = tmp_path / "photos" / ("cat", "dog", "eel")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    load_dataset(open_source("images", tmp_path / "photos"), cache_name, client=client)
    return cache_name


def test_from_sql_gives_the_rows_of_sql(client, address, photos, tmp_path):
    statement = f"SELECT NAME, LABEL FROM {photos} WHERE LABEL > 0 ORDER BY NAME"
    found = datasets.Dataset.from_sql(
        statement, f"ignite://{address}/PUBLIC", cache_dir=str(tmp_path / "cache")
    )
    names, labels = zip(*client.sql(statement), strict=True)
    assert found.column_names == ["name", "label"] and len(found) == 20
    assert (tuple(found["name"]), tuple(found["label"])) == (names, labels)


@pytest.mark.parametrize("pixels", [False, True])
def test_an_export_shows_images_and_names_of_classes(client, photos, tmp_path, pixels):
    name = photos
    if pixels:
        source = open_source("images", tmp_path / "photos", decode=True)
        load_dataset(source, name, client=client, if_exists="replace")
    target = tmp_path / "out.parquet"
    export_dataset(name, str(target), client=client, format="huggingface")
    found = datasets.load_dataset(
        "parquet", data_files=str(target), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert isinstance(found.features["IMAGE"], datasets.Image)
    assert found.features["LABEL"] == datasets.ClassLabel(names=["cat", "dog", "eel"])
    rows = open_rows(name, client=client, order="keys")[:]["val"]
    assert found["LABEL"] == rows["LABEL"].tolist()
    for number, picture in enumerate(found["IMAGE"]):
        stored = rows["IMAGE"][number]
        wanted = stored if pixels else np.asarray(Image.open(io.BytesIO(stored)))
        assert np.array_equal(np.asarray(picture), wanted)


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 7, "epoch": 3}, {"global_batch": 16, "shard": (1, 3)}]
)
def test_a_state_goes_on_at_every_row(address, typed_rows, options):
    order = "global" if options else "keys"
    parts = open_rows(typed_rows, address, order=order, **options)
    parts = parts.batches(None if "global_batch" in options else 100)
    wanted = [key for part in parts for key in part["key"].tolist()]

    def made():
        return iterable_dataset(typed_rows, address, shard_rows=50, fields=["A", "S"], **options)

    train, states = made(), []
    keys = []
    for row in train:
        assert row["A"] == row["key"] ** 2 and isinstance(row["S"], str)
        keys.append(row["key"])
        states.append(train.state_dict())
    assert keys == wanted
    for done in (1, 49, 50, 51, 77, len(wanted) - 1):
        again = made()
        again.load_state_dict(states[done - 1])
        assert [row["key"] for row in again] == wanted[done:]


def test_worker_processes_and_ranks_divide_the_rows(address, typed_rows):
    data = pytest.importorskip("torch.utils.data")
    from datasets.distributed import split_dataset_by_node

    wanted = sorted(open_rows(typed_rows, address, order="keys")[:]["key"].tolist())
    train = iterable_dataset(typed_rows, address, shard_rows=20, fields=["A"])
    loader = data.DataLoader(train, batch_size=8, num_workers=2)
    assert sorted(k for batch in loader for k in batch["key"].tolist()) == wanted
    ranks = [split_dataset_by_node(train, rank, 2) for rank in range(2)]
    assert sorted(row["key"] for rank in ranks for row in rank) == wanted


def test_a_scan_is_refused(address, typed_rows):
    with pytest.raises(ConfigError, match="has no shards by number"):
        iterable_dataset(typed_rows, address, order="scan")
