"""PyTorch: rows by number, in any number of worker processes."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.typed_rows import ROWS, record

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'ignitetf[torch]'")
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore::UserWarning")]

from torch.utils.data import BatchSampler, DataLoader, Subset  # noqa: E402

from ignitetf import load_dataset, open_rows  # noqa: E402
from ignitetf.errors import ConfigError, DataChanged  # noqa: E402
from ignitetf.torch import MapDataset  # noqa: E402

WORKERS = [(0, None), (2, "fork"), (4, "fork"), (2, "spawn"), (2, "forkserver")]


@pytest.fixture
def messages_say_their_place_once():
    """Not held here: PyTorch puts the traceback of a worker process into the error's message."""


def same(row, number):
    """Whether a row of tensors is `record(number)`, key and all."""
    wanted = record(number)
    value = row["val"]
    assert int(row["key"]) == number
    assert int(value["A"]) == wanted["A"] and value["A"].dtype == torch.int64
    assert value["S"] == wanted["S"].encode()
    assert value["V"].tolist() == wanted["V"].tolist() and value["V"].dtype == torch.float32
    assert int(value["U2"]) == wanted["U2"] and value["U2"].dtype == torch.int32
    assert int(value["U4"]) == wanted["U4"] and value["U4"].dtype == torch.int64
    return int(value["LABEL"]) == wanted["LABEL"]


def test_each_row_is_what_was_loaded(address, typed_rows):
    rows = MapDataset(typed_rows, address)
    assert len(rows) == ROWS
    assert all(same(rows[i], i) for i in (0, 1, 7, ROWS - 1))
    assert same(rows[-1], ROWS - 1) and same(rows[np.int64(3)], 3)
    numbers = [5, 5, 0, ROWS - 1]
    assert all(map(same, rows.__getitems__(numbers), numbers))
    for wrong in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError):
            rows[wrong]
    with pytest.raises(TypeError):
        rows["A"]
    assert rows.__getitems__([]) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("supervised", [False, True])
def test_a_sampler_of_batches_reads_the_batches_that_a_loader_makes(
    address, typed_rows, workers, supervised
):
    """`BatchSampler` with `batch_size=None`: the sampler gives lists of numbers."""
    rows = MapDataset(typed_rows, address, as_supervised=supervised)
    sampler = BatchSampler(range(20), 7, drop_last=False)
    wanted = list(DataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate))
    for how in ({}, {"collate_fn": rows.collate}):
        found = list(DataLoader(rows, None, sampler=sampler, num_workers=workers, **how))
        # PyTorch's own function makes lists of tuples.
        assert repr([tuple(one) if supervised else one for one in found]) == repr(wanted)
    assert repr(rows[[2, 3]]) == repr(rows[np.array([2, 3])]) == repr(rows[2:4])
    assert repr(rows[torch.tensor([2, 3])]) == repr(rows[(2, 3)]) == repr(rows[2:4])
    assert repr(rows[[2]]) != repr(rows[2]) == repr(rows.collate(rows[2]))
    with pytest.raises(IndexError):
        rows[[0, ROWS]]


def test_opened_rows_give_all_rows_whatever_their_order_and_shard(address, typed_rows):
    opened = open_rows(
        typed_rows, address, shuffle=3, shard=(1, 2), where="A < ?", where_params=(100,)
    )
    rows = MapDataset(opened)
    assert [int(rows[i]["key"]) for i in range(len(rows))] == list(range(10))
    again = pickle.loads(pickle.dumps(rows))
    assert len(again) == 10 and same(again[9], 9)
    with pytest.raises(ConfigError):
        MapDataset(opened, address)
    for wrong in ({"order": "keys"}, {"shuffle": 0}, {"shard": (0, 2)}, {"part": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            MapDataset(typed_rows, address, **wrong)


@pytest.mark.parametrize(("workers", "start"), WORKERS)
def test_batches_do_not_depend_on_the_workers(address, typed_rows, workers, start):
    rows = MapDataset(typed_rows, address)
    assert same(rows[1], 1)  # workers are forked from a process that has read
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3)).tolist()
    loader = DataLoader(
        rows, 32, sampler=order, num_workers=workers, multiprocessing_context=start,
        persistent_workers=start == "spawn",
        collate_fn=rows.collate,
    )  # fmt: skip
    for _ in range(2):
        found = []
        for batch in loader:
            keys, values = batch["key"].tolist(), batch["val"]
            assert values["A"].tolist() == [k * k for k in keys]
            assert values["S"] == [record(k)["S"].encode() for k in keys]
            assert [v.tolist() for v in values["V"]] == [record(k)["V"].tolist() for k in keys]
            found += keys
        assert found == order
    assert same(rows[2], 2)


def test_parts_of_it_are_read_by_one_request_too(address, mnist_parts):
    rows = MapDataset(mnist_parts[0], address, as_supervised=True)
    part = Subset(rows, range(10, 100, 3))
    (images, labels), *_ = DataLoader(part, 30)
    assert images.shape == (30, 28, 28, 1) and images.dtype == torch.uint8
    wanted = open_rows(mnist_parts[0], address)[10:100:3]["val"]
    assert np.array_equal(images.numpy(), wanted["IMAGE"])
    assert np.array_equal(labels.numpy(), wanted["LABEL"])


def test_training_mnist(address, mnist_parts):
    torch.manual_seed(7)
    train, test = (MapDataset(name, address, as_supervised=True) for name in mnist_parts)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = DataLoader(train, 64, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images / 255), labels.long())
            loss.backward()
            optimizer.step()
    images, labels = next(iter(DataLoader(test, len(test))))
    assert float((model(images / 255).argmax(1) == labels).float().mean()) > 0.85


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows(address, client, cache_name, count):
    load_dataset([record(i) for i in range(3)], cache_name, client=client, partitions=2)
    rows = MapDataset(cache_name, address, where="A < ?", where_params=(count,))
    assert len(rows) == count
    for workers in (0, 2):
        for drop_last in (False, True):
            loader = DataLoader(
                rows, 2, num_workers=workers, drop_last=drop_last, collate_fn=rows.collate
            )
            found = [key for batch in loader for key in batch["key"].tolist()]
            assert found == ([] if drop_last else list(range(count)))
    with pytest.raises(IndexError):
        rows[count]


def test_data_that_are_loaded_again_are_refused(address, client, cache_name):
    def load(first):
        rows = [record(first + i) for i in range(100)]
        load_dataset(rows, cache_name, client=client, partitions=4, if_exists="replace")

    load(0)
    rows = MapDataset(cache_name, address)
    assert len(list(DataLoader(rows, 10, num_workers=2, collate_fn=rows.collate))) == 10
    load(1000)
    with pytest.raises(DataChanged):
        list(DataLoader(rows, 10, num_workers=2, collate_fn=rows.collate))
    with pytest.raises(DataChanged):
        pickle.loads(pickle.dumps(rows))[0]
    assert int(MapDataset(cache_name, address)[0]["val"]["A"]) == 1000 * 1000


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_killed_worker_is_an_error_and_the_next_epoch_is_whole(address, typed_rows, kind):
    program = Path(__file__).with_name("torch_programs.py")
    done = subprocess.run(
        [sys.executable, str(program), kind, typed_rows, address], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"]
    assert found["keys"] == list(range(ROWS))


def test_a_missing_pytorch_is_named():
    code = "import sys; sys.modules['torch'] = None; import ignitetf.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra" in done.stderr and "ignitetf[torch]" in done.stderr
