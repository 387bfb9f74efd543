"""What order, shuffle and state cost beside a plain read: `pytest -m bench -s tests/bench`.

60,000 rows of 784 bytes in batches of 128, each way in turn; nothing about time is asserted.
"""

import statistics
import time

import psutil
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.timeout(900)]

ROUNDS, BATCH = 7, 128
# All of them are one window of a shuffle.
ROWS = 60_000


@pytest.fixture(scope="module")
def table(client):
    from ignitetf.bench.rows import PROFILES, drop_rows, fill_cache, sized

    profile = sized(PROFILES["mnist"], ROWS)
    fill_cache(client, profile, 8)
    yield profile.cache
    drop_rows(client, profile.cache)


def ways(table, settings):
    from ignitetf import IgniteDataset

    def count(rows, item):
        return rows + tf.shape(item["key"], tf.int64)[0]

    def reduced(**options):
        batches = IgniteDataset(table, settings=settings, **options).batch(BATCH)
        return lambda: int(batches.reduce(tf.constant(0, tf.int64), count))

    def looped(keep_state, **options):
        dataset = IgniteDataset(table, settings=settings, **options)
        batches = dataset.batch(BATCH)

        def run():
            rows = 0
            for item in batches:
                rows += int(item["key"].shape[0])
                if keep_state:
                    dataset.state(rows, 0)
            return rows

        return run

    return {
        "plain": reduced(),
        "one of one shards": reduced(shard=(0, 1), even="pad"),
        "shuffle, whole set": reduced(shuffle=7),
        "shuffle, windows of 8 MB": reduced(shuffle=7, window_bytes=8 << 20),
        "eager loop": looped(False),
        "eager loop, state each batch": looped(True),
        "eager loop, shuffle, state each batch": looped(True, shuffle=7, window_bytes=8 << 20),
    }


def test_cost_of_order_shuffle_and_state(client, table):
    runs = ways(table, client.settings)
    seconds = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name in list(runs) if number % 2 else reversed(runs):
            begin = time.perf_counter()
            assert runs[name]() == ROWS
            if number:
                seconds[name].append(time.perf_counter() - begin)
    for name, found in seconds.items():
        base = seconds["eager loop" if name.startswith("eager") else "plain"]
        ratio = statistics.median(b / s for b, s in zip(base, found, strict=True))
        print(f"{name:38} {ROWS / statistics.median(found):10,.0f} rows/s  {ratio:.3f} of plain")


def test_memory_is_bounded_by_the_window(client, table):
    from ignitetf import open_rows
    from ignitetf.read.plan import Position

    process = psutil.Process()
    for window_mb in (4, 16, 64):
        first = open_rows(
            table, client=client, shuffle=7, shard=(0, 1), window_bytes=window_mb << 20
        )
        before, most, rows = process.memory_info().rss, 0, 0
        for epoch in range(3):
            for batch in first.at(Position(epoch)).column_batches():
                most = max(most, process.memory_info().rss)
                rows += len(batch)
        largest = max(w.rows for e in range(3) for w in first.order.windows(first.shard, e))
        assert rows == 3 * ROWS
        print(
            f"window of {window_mb} MB, the largest {largest * 788 / 1e6:.0f} MB of rows:"
            f" {(most - before) / 1e6:.0f} MB more memory"
        )
