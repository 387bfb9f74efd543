"""While the answer for one partition is late, a reader keeps a few megabytes of others, not all."""

import numpy as np
import pytest
from helpers.holding import Holding

from ignitetf import load_dataset, open_rows
from ignitetf.net.client import connect
from ignitetf.wire.codes import OpCode

pytestmark = pytest.mark.node

PAGES_OF_4_MB, PAGES_OF_16_MB = (12_800, 5_000), (17_600, 10_000)


@pytest.fixture(
    scope="module",
    params=[(16, PAGES_OF_4_MB), (64, PAGES_OF_4_MB), (256, PAGES_OF_4_MB), (64, PAGES_OF_16_MB)],
    ids=lambda param: f"{param[0]} of {param[1][1]}",
)
def data_set(client, request):
    """Partitions of a page, of a quarter, and so small that many are asked for at a time."""
    partitions, shape = request.param
    rows = np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)
    name = f"LATE_{partitions}_{shape[1]}"
    load_dataset({"A": rows}, name, client=client, partitions=partitions, if_exists="replace")
    yield name, rows
    client.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize(
    "options",
    [
        {"readers": 1},
        {"readers": 2},
        {"where": "_KEY >= 0", "readers": 1},
        {"shuffle": 3, "window_bytes": 8 << 20, "readers": 1},
        {"order": "global"},
        {"order": "keys"},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_what_comes_meanwhile_is_bounded(client, data_set, options):
    name, rows = data_set
    op = OpCode.CACHE_GET_ALL if "order" in options else OpCode.QUERY_SCAN
    if "where" in options:
        op = OpCode.QUERY_SQL_FIELDS
    with Holding(client.settings.addresses[0], op) as relay:
        settings = client.settings.replace(addresses=(relay.address,))
        with connect(settings=settings) as behind:
            found = np.empty_like(rows)
            for batch in open_rows(name, client=behind, shard=(0, 1), **options).batches():
                found[batch["key"]] = batch["val"]["A"]
    assert (found == rows).all()
    assert relay.kept_back
    # 32 MB may land ahead, 8 MB are under way on a connection; and what they end with.
    most = (36 + 8 * options.get("readers", 1)) << 20
    assert relay.passed <= most < rows.nbytes
