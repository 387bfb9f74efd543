"""Ray Data: the rows of an epoch in their order, and the rows of SQL."""

import numpy as np
import pytest
from helpers.typed_rows import record

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ignitetf[ray]'")
pytest.importorskip("ray.data", reason="needs Ray Data: pip install 'ignitetf[ray]'")
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore")]

from ignitetf import dbapi, load_dataset, open_rows  # noqa: E402
from ignitetf.errors import ConfigError  # noqa: E402
from ignitetf.ray import read_rows  # noqa: E402


@pytest.fixture(scope="module")
def engine():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    yield
    ray.shutdown()


def keys(dataset):
    return [key for batch in dataset.iter_batches(batch_size=32) for key in batch["key"].tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": 7, "epoch": 3},
        {"shuffle": 7, "global_batch": 16, "shard": (1, 3), "even": "pad"},
    ],
)
def test_the_order_is_that_of_open_rows_and_goes_on_anywhere(engine, address, typed_rows, options):
    rows = open_rows(typed_rows, address, order="global" if options else "keys", **options)
    step = None if "global_batch" in options else 100
    parts = [part["key"].tolist() for part in rows.batches(step)]
    wanted = [key for part in parts for key in part]
    done = len(parts[0] + parts[1]) if step is None else 75
    assert keys(read_rows(typed_rows, address, block_rows=70, **options)) == wanted
    assert keys(read_rows(rows.resume(rows.state(done)), block_rows=70)) == wanted[done:]


def test_values_are_those_of_the_rows(engine, address, typed_rows):
    dataset = read_rows(typed_rows, address, block_rows=70, fields=["A", "S", "V"])
    for row in dataset.iter_rows():
        wanted = record(row["key"])
        assert (row["A"], row["S"]) == (row["key"] ** 2, wanted["S"])
        assert np.array_equal(row["V"], wanted["V"])


def test_keys_and_values_that_are_texts_are_str(engine, address, client, cache_name):
    rows = [{"K": f"ż{i}", "S": f"s{i}", "B": b"\xff" * (i % 3)} for i in range(9)]
    load_dataset(rows, cache_name, client=client, key="K")
    found = {row["key"]: (row["S"], row["B"]) for row in read_rows(cache_name, address).iter_rows()}
    assert found == {row["K"]: (row["S"], row["B"]) for row in rows}


def test_rows_of_sql_in_several_tasks(engine, address, client, typed_rows):
    statement = f"SELECT A, S FROM {typed_rows} WHERE A > 100"
    wanted = sorted(client.sql(statement))
    for options in ({}, {"shard_keys": ["A"], "shard_hash_fn": "ABS", "override_num_blocks": 3}):
        found = ray.data.read_sql(statement, lambda: dbapi.connect(address), **options)
        assert sorted((row["A"], row["S"]) for row in found.iter_rows()) == wanted


def test_no_rows_and_what_is_refused(engine, address, typed_rows):
    assert read_rows(typed_rows, address, where="A < 0").count() == 0
    for wrong in ({"order": "scan"}, {"block_rows": 0}):
        with pytest.raises(ConfigError):
            read_rows(typed_rows, address, **wrong)
