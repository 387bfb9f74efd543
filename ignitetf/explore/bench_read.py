"""`ignitetf bench read`: rates of the read path beside the limit of the machine and beside others.

Every way reads the same rows of the same cache, in turn, several times over, in both orders; what
is reported is the median of each and its ratio to a bare socket that drains the same scans. The
bare socket parses nothing: it is what the node and the loopback give.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.client import Client, cache_id, connect
from ignitetf.load.caches import drop_cache
from ignitetf.load.journal import drop_journal
from ignitetf.load.loader import load_dataset
from ignitetf.read.reader import CacheReader, ReadOptions
from ignitetf.settings import Settings, split_address
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import cursor_request, scan_request

__all__ = ["PROFILES", "Rate", "bench_read", "drain"]

_CACHE: Final = "IGNITETF_BENCH_READ"
_SEED: Final = 20
# Pyignite and single elements are read for so many rows only; their rate is what counts.
_SLOW_ROWS: Final = 3_000
_BUFFER_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Profile:
    """Rows to read: how many, of how many bytes, in batches of how many."""

    rows: int
    row_bytes: int
    batch: int


PROFILES: Final = {
    "mnist": Profile(60_000, 784, 128),
    "100b": Profile(100_000, 100, 128),
    "1kb": Profile(60_000, 1_000, 128),
    "10kb": Profile(20_000, 10_000, 128),
    "100kb": Profile(4_000, 100_000, 64),
    "1mb": Profile(1_000, 1_000_000, 16),
}


@dataclass(frozen=True)
class Rate:
    """The median rate of one way to read; `ratio` is to the bare socket."""

    profile: str
    way: str
    rows_per_s: float
    mb_per_s: float
    ratio: float


def bench_read(
    settings: Settings,
    profile: str,
    *,
    rounds: int = 5,
    partitions: int = 8,
    ways: set[str] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> list[Rate]:
    """Measure all ways of reading one profile's rows.

    Args:
        settings: Where the node is; the caches of the benchmark are made there and dropped.
        profile: A name in `PROFILES`.
        rounds: Times each way is run.
        partitions: Partitions of the cache.
        ways: Only these; None for all that can run here.
        on_round: Called after each round.
    """
    chosen = PROFILES[profile]
    with connect(settings=settings) as client:
        try:
            _drop(client)
            _fill(client, chosen, partitions)
            runs = {
                name: run
                for name, run in _ways(client, chosen, partitions).items()
                if ways is None or name in ways or name == "bare socket"
            }
            seconds = _interleave(runs, rounds, on_round)
        finally:
            _drop(client)
    return _rates(profile, chosen, seconds)


def _fill(client: Client, profile: Profile, partitions: int) -> None:
    rng = np.random.default_rng(_SEED)
    step = max(1, (16 << 20) // profile.row_bytes)

    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, profile.rows, step):
            count = min(step, profile.rows - start)
            pixels = rng.integers(0, 256, (count, profile.row_bytes), dtype=np.uint8)
            for i in range(count):
                yield {"IMAGE": pixels[i], "LABEL": np.int32((start + i) % 10)}

    load_dataset(batches(), _CACHE, client=client, partitions=partitions)


def _drop(client: Client) -> None:
    """Remove the rows, also of a run that was interrupted while it wrote them."""
    if client.cache_exists(_CACHE):
        drop_cache(client, _CACHE)
    drop_journal(client, _CACHE)


def _ways(client: Client, profile: Profile, partitions: int) -> dict[str, Callable[[], int]]:
    reader = CacheReader(client, _CACHE, ReadOptions())
    every = list(range(partitions))
    cache, page = reader.cache, reader.page_size()

    def columns() -> int:
        return sum(len(item.batch) for item in reader.batches(every) if item.batch is not None)

    return {
        "bare socket": lambda: drain(client.settings, cache, every, page),
        "numpy()": columns,
        **_tensorflow_ways(client.settings, profile),
        "pyignite scan": lambda: _pyignite(client, cache, page),
    }


def _tensorflow_ways(settings: Settings, profile: Profile) -> dict[str, Callable[[], int]]:
    try:
        import tensorflow as tf
    except ImportError:
        return {}
    from ignitetf.read.dataset import IgniteDataset

    dataset = IgniteDataset(_CACHE, settings=settings)
    batches = dataset.batch(profile.batch)
    zero = tf.constant(0, tf.int64)

    def count(rows: Any, item: Any) -> Any:
        return rows + tf.shape(item["key"], tf.int64)[0]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def loop(items: Any) -> Any:
        rows = zero
        for item in items:
            rows = count(rows, item)
        return rows

    def eager() -> int:
        return sum(int(item["key"].shape[0]) for item in batches)

    memory = _in_memory(tf, profile)
    loop(batches)
    loop(memory)
    few = dataset.take(_SLOW_ROWS)
    return {
        f"batch({profile.batch}), reduce": lambda: int(batches.reduce(zero, count)),
        f"batch({profile.batch}), tf.function": lambda: int(loop(batches)),
        f"batch({profile.batch}), eager loop": eager,
        "single elements, reduce": lambda: int(few.reduce(zero, lambda n, _: n + 1)),
        f"in memory, batch({profile.batch})": lambda: int(loop(memory)),
    }


def _in_memory(tf: Any, profile: Profile) -> Any:
    rng = np.random.default_rng(_SEED)
    rows = min(profile.rows, max(1, (256 << 20) // profile.row_bytes))
    columns = {
        "key": np.arange(rows, dtype=np.int64),
        "val": {
            "IMAGE": rng.integers(0, 256, (rows, profile.row_bytes), dtype=np.uint8),
            "LABEL": np.arange(rows, dtype=np.int32) % 10,
        },
    }
    return tf.data.Dataset.from_tensor_slices(columns).batch(profile.batch)


def drain(settings: Settings, cache: str, partitions: list[int], page_size: int) -> int:
    """Scan the partitions over one bare socket and parse nothing but the counts.

    The next page is asked for before the bytes of the current one are looked at, as in the
    read path, and one buffer is used throughout. Plain connections only.

    Returns:
        The number of entries.
    """
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    number, request, rows = cache_id(cache), 0, 0
    with socket.create_connection(split_address(settings.addresses[0]), 10) as sock:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(struct.pack("<ibhhhb", 8, 1, 1, 4, 0, 2))
        _answer(sock, buffer)
        for partition in partitions:
            op, body = OpCode.QUERY_SCAN, scan_request(number, page_size, partition)
            cursor = 0
            while True:
                request += 1
                sock.sendall(struct.pack("<ihq", 10 + len(body), op, request) + body)
                size = _answer(sock, buffer)
                head = 10
                if op == OpCode.QUERY_SCAN:
                    cursor = struct.unpack_from("<q", buffer, head)[0]
                    head += 8
                rows += struct.unpack_from("<i", buffer, head)[0]
                if not buffer[size - 1]:
                    break
                op, body = OpCode.QUERY_SCAN_PAGE, cursor_request(cursor)
    return rows


def _answer(sock: socket.socket, buffer: memoryview) -> int:
    sock.recv_into(buffer, 4, socket.MSG_WAITALL)
    size = int.from_bytes(buffer[:4], "little")
    if size > len(buffer):
        raise ValueError(f"a page of {size} bytes is larger than the buffer")
    at = 0
    while at < size:
        count = sock.recv_into(buffer[at:size], size - at, socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("the node closed the connection")
        at += count
    return size


def _pyignite(client: Client, cache: str, page: int) -> int:
    rows = 0
    with client.cache(cache).scan(page_size=page) as cursor:
        for _ in cursor:
            rows += 1
            if rows >= _SLOW_ROWS:
                break
    return rows


def _interleave(
    runs: dict[str, Callable[[], int]], rounds: int, on_round: Callable[[int], None] | None
) -> dict[str, list[float]]:
    """Rows a second of every run, in turn, forwards and backwards; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        order = list(runs) if number % 2 else list(reversed(runs))
        for name in order:
            begin = time.perf_counter()
            rows = runs[name]()
            if number:
                found[name].append(rows / (time.perf_counter() - begin))
        if on_round is not None:
            on_round(number)
    return found


def _rates(profile: str, chosen: Profile, found: dict[str, list[float]]) -> list[Rate]:
    bare = found["bare socket"]
    out = []
    for name, rates in found.items():
        ratio = statistics.median(r / b for r, b in zip(rates, bare, strict=True))
        median = statistics.median(rates)
        megabytes = median * (chosen.row_bytes + 4 + 8) / 1e6
        out.append(Rate(profile, name, round(median, 1), round(megabytes, 1), round(ratio, 3)))
    return out
