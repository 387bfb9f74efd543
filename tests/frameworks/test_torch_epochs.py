"""PyTorch: epochs over ranks and worker processes, and every step of a resume."""

import itertools
import json
import os
import subprocess
import sys

import psutil
import pytest
from helpers.typed_rows import ROWS, record

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'ignitetf[torch]'")
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore::UserWarning")]

from torch.utils.data import DataLoader  # noqa: E402

from ignitetf import load_dataset, open_rows  # noqa: E402
from ignitetf.errors import ConfigError, DataChanged  # noqa: E402
from ignitetf.torch import IterableDataset  # noqa: E402


@pytest.fixture
def messages_say_their_place_once():
    """Not held here: PyTorch puts the traceback of a worker process into the error's message."""


def keys(batches):
    """The keys of each batch, whose values have to be those of their keys."""
    found = []
    for batch in batches:
        numbers = batch["key"].tolist()
        assert batch["val"]["A"].tolist() == [k * k for k in numbers]
        assert batch["val"]["S"] == [record(k)["S"].encode() for k in numbers]
        assert [v.tolist() for v in batch["val"]["V"]] == [record(k)["V"].tolist() for k in numbers]
        found.append(numbers)
    return found


def read(dataset, workers=0, **options):
    return keys(DataLoader(dataset, batch_size=None, num_workers=workers, **options))


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("options", [{"order": "keys"}, {"order": "global", "shuffle": 7}])
def test_batches_by_key_are_those_of_open_rows(address, typed_rows, options, drop_last):
    rows = open_rows(typed_rows, address, **options)
    wanted = [b["key"].tolist() for b in rows.batches(32, drop_remainder=drop_last)]
    made = IterableDataset(typed_rows, address, batch_size=32, drop_last=drop_last, **options)
    assert len(made) == len(wanted)
    for workers in (0, 2, 4):
        assert read(made, workers) == wanted
    assert read(made, 2, multiprocessing_context="spawn") == wanted
    assert read(IterableDataset(rows, batch_size=32, drop_last=drop_last), 2) == wanted


@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize("batch_size", [None, 1, 32])
@pytest.mark.parametrize("order", ["scan", "keys", "global"])
def test_each_row_comes_once(address, typed_rows, order, batch_size, shuffle):
    if order == "keys" and shuffle is not None:
        pytest.skip("not an order")
    made = IterableDataset(typed_rows, address, batch_size=batch_size, order=order, shuffle=shuffle)
    for workers in (0, 2, 4):
        loader = DataLoader(made, batch_size=None, num_workers=workers)
        found = [batch["key"].reshape(-1) for batch in loader]
        assert sorted(torch.cat(found).tolist()) == list(range(ROWS))
        if batch_size is not None:
            assert max(map(len, found)) == batch_size
    if order == "scan" and batch_size is not None:
        with pytest.raises(TypeError):
            len(made)
    else:
        assert len(made) == -(-ROWS // (batch_size or 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_global_steps_do_not_depend_on_ranks_and_workers(address, typed_rows, ranks):
    rows = open_rows(typed_rows, address, shuffle=7, global_batch=50)
    wanted = [b["key"].tolist() for b in rows.batches()]
    for workers in (0, 2):
        parts = []
        for rank in range(ranks):
            made = IterableDataset(
                typed_rows, address, shuffle=7, global_batch=50, shard=(rank, ranks)
            )
            parts.append(read(made, workers))
            assert len(made) == len(parts[-1])
        assert [flat(step) for step in itertools.zip_longest(*parts, fillvalue=())] == wanted
        state = made.state(2)
        for again in (1, 4):
            rests = [
                read(
                    IterableDataset(
                        typed_rows, address, shuffle=7, global_batch=50, shard=(rank, again)
                    ).resume(json.loads(json.dumps(state))),
                    workers,
                )
                for rank in range(again)
            ]
            steps = [flat(step) for step in itertools.zip_longest(*rests, fillvalue=())]
            assert steps == wanted[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_those_that_are_set(address, typed_rows, workers):
    options = {"order": "global", "shuffle": 7}
    made = IterableDataset(typed_rows, address, batch_size=64, **options)
    loader = DataLoader(made, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (0, 1, 1, 5):
        made.set_epoch(epoch)
        rows = open_rows(typed_rows, address, epoch=epoch, **options)
        assert keys(loader) == [b["key"].tolist() for b in rows.batches(64)]
    rest = made.resume(made.state(4))
    assert len(rest) == 2
    rows = open_rows(typed_rows, address, epoch=5, **options)
    assert read(rest, workers) == [b["key"].tolist() for b in rows.batches(64)][4:]
    rest.set_epoch(6)
    assert sorted(flat(read(rest, workers))) == list(range(ROWS))


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize(("order", "size"), [("global", 40), ("scan", 40), ("scan", None)])
def test_a_stateful_loader_resumes_at_every_batch(address, typed_rows, order, size, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    of_loader = None if size else 40

    def make():
        made = IterableDataset(typed_rows, address, batch_size=size, order=order, shuffle=7)
        made.set_epoch(2)
        take = None if size is None else (lambda batch: batch)
        fields = {"collate_fn": lambda rows: [int(r["key"]) for r in rows]} if take is None else {}
        return made, stateful.StatefulDataLoader(
            made, batch_size=of_loader, num_workers=workers, **fields
        )

    def listed(loader):
        return [b if isinstance(b, list) else b["key"].tolist() for b in loader]

    _, loader = make()
    whole = listed(loader)
    assert sorted(flat(whole)) == list(range(ROWS))
    for stop in range(0, len(whole) + 1, 1 if workers == 0 else 4):
        made, loader = make()
        batches = iter(loader)
        first = listed(itertools.islice(batches, stop))
        state = loader.state_dict()
        del batches, loader
        made, loader = make()
        loader.load_state_dict(json.loads(json.dumps(state)) if workers == 0 else state)
        assert first + listed(loader) == whole
        made.set_epoch(3)
        following = listed(loader)
        assert sorted(flat(following)) == list(range(ROWS)) and following != whole


def test_a_stateful_loader_goes_on_after_a_worker_was_killed(address, typed_rows):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def loader(**options):
        made = IterableDataset(typed_rows, address, batch_size=10, order="global", shuffle=7)
        return made, stateful.StatefulDataLoader(made, batch_size=None, num_workers=2, **options)

    whole = keys(loader()[1])
    made, broken = loader()
    first, state = [], {}
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed"):
        for batch in broken:
            first.append(batch)
            if len(first) == 5:
                state = broken.state_dict()
                for child in psutil.Process().children():
                    if "resource_tracker" not in " ".join(child.cmdline()):
                        child.kill()
    first = keys(first)[:5]
    for options in ({}, {"multiprocessing_context": "spawn"}):
        _, again = loader(**options)
        again.load_state_dict(state)
        assert first + keys(again) == whole
    assert first + read(made.resume(made.state(5)), 3) == whole


def test_states_of_other_ways_of_reading_are_refused(address, typed_rows):
    made = IterableDataset(typed_rows, address, batch_size=40, order="global", shuffle=7)
    state = made.state_dict()
    for options in ({"batch_size": 41}, {"shuffle": 8}, {"drop_last": True}, {"order": "scan"}):
        options = {"batch_size": 40, "order": "global", "shuffle": 7, **options}
        with pytest.raises(ConfigError):
            IterableDataset(typed_rows, address, **options).load_state_dict(state)
    for wrong in (
        {},
        None,
        {**state, "process": [0, 2]},
        {**state, "done": -1},
        {"rows": {}},
        {**state, "rows": {}},
    ):
        with pytest.raises(ConfigError):
            made.load_state_dict(wrong)
    with pytest.raises(ConfigError, match="scan"):
        IterableDataset(typed_rows, address, batch_size=40).state(1)
    with pytest.raises(ConfigError):
        IterableDataset(typed_rows, address, drop_last=True)
    for wrong in ({"batch_size": 0}, {"batch_size": 2.5}, {"drop_last": "no"}):
        with pytest.raises(ConfigError):
            IterableDataset(typed_rows, address, **wrong)


@pytest.mark.parametrize("order", ["scan", "global"])
@pytest.mark.parametrize("count", [0, 1])
def test_few_rows(address, client, cache_name, count, order):
    load_dataset([record(i) for i in range(3)], cache_name, client=client, partitions=2)
    for drop_last in (False, True):
        made = IterableDataset(
            cache_name, address, batch_size=2, drop_last=drop_last, order=order, where="A < ?",
            where_params=(count,),
        )  # fmt: skip
        for workers in (0, 2):
            assert flat(read(made, workers)) == ([] if drop_last else list(range(count)))


def test_data_that_are_loaded_again_are_refused(address, client, cache_name):
    def load(first):
        rows = [record(first + i) for i in range(100)]
        load_dataset(rows, cache_name, client=client, partitions=4, if_exists="replace")

    load(0)
    made = IterableDataset(cache_name, address, batch_size=10, order="global")
    state = made.state(3)
    assert len(read(made, 2)) == 10
    load(1000)
    with pytest.raises(DataChanged):
        list(DataLoader(made, batch_size=None, num_workers=2))
    with pytest.raises(DataChanged):
        IterableDataset(cache_name, address, batch_size=10, order="global").resume(state)


RANK = """
import sys
import torch.distributed as dist
from torch.utils.data import DataLoader
from ignitetf.torch import IterableDataset

name, address = sys.argv[1:]
dist.init_process_group("gloo")
made = IterableDataset(name, address, order="global", shuffle=7, batch_size=25)
found = [b["key"].tolist() for b in DataLoader(made, batch_size=None, num_workers=2)]
parts = [None] * dist.get_world_size()
dist.all_gather_object(parts, found)
if dist.get_rank() == 0:
    print(parts)
dist.destroy_process_group()
"""


def test_ranks_of_torch_distributed_divide_the_rows(address, typed_rows, tmp_path):
    from helpers.ports import free_port

    port, program = str(free_port()), tmp_path / "rank.py"
    program.write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), typed_rows, address],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    out = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    parts = json.loads(out[0].splitlines()[-1])
    rows = open_rows(typed_rows, address, order="global", shuffle=7, global_batch=50)
    wanted = [b["key"].tolist() for b in rows.batches()]
    assert [a + b for a, b in itertools.zip_longest(*parts, fillvalue=[])] == wanted
