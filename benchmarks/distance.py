"""Reads, loads, files and queries over a link with delay, beside bare requests over the same one.

A proxy in a process of its own delays each direction. The bare requests say what it carries: they
are encoded beforehand, many are on their way at a time, and nobody looks at the answers.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from history import Figure
from pyignite.utils import cache_id

from ignitetf import Client, connect, load_dataset, open_rows
from ignitetf.bench.bare import Scans, call, send_ahead, sockets
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, make_rows, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.errors import IgniteTFError
from ignitetf.fs.store import Store
from ignitetf.settings import Settings
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.frames import read_named_sql_page, read_page
from ignitetf.wire.requests import batch_head, cache_request, cursor_request, sql_request

DELAYS_MS: Final = (10, 50)
_HELPERS: Final = Path(__file__).parents[1] / "tests"
_AHEAD: Final = 120
# Bare puts and gets: of chunks of a file as many as `ahead_bytes` allows us.
_CONNECTIONS, _UNANSWERED = 8, 16
_READ: Final = (
    ("mnist", 60_000, 8),
    ("mnist", 600_000, 8),
    ("mnist", 60_000, 1024),
    ("1mb", 200, 16),
)
_LOADED: Final = (("mnist", 60_000), ("mnist", 600_000), ("1mb", 150), ("1mb", 600))
_FILE_BYTES: Final = (200 << 20, 800 << 20)
_STEP_BYTES: Final = 8 << 20
_QUERIED: Final = 200_000
_QUERY_PAGES: Final = (16_384, 65_536)
_FS: Final = "IGFS_BENCH_DISTANCE"

Ways = dict[str, Callable[[], float]]


def distance_figures(settings: Settings, rounds: int, delays_ms: Sequence[int]) -> list[Figure]:
    """Rates over each link, by those of bare requests.

    Args:
        settings: Where the node is.
        rounds: Times each way is run.
        delays_ms: Milliseconds of each direction.
    """
    found = []
    for delay in delays_ms:
        for what, ways in _all_ways(settings, delay):
            runs = in_turn(ways, rounds)
            bare = [mine for way, mine in runs.items() if way.startswith("bare")]
            best = max(bare, key=statistics.median)
            where = f"{what}, {delay} ms each way"
            found += [
                Figure(
                    "distance", where, way, round(statistics.median(mine), 3), "MB/s",
                    median_ratio(mine, best), rounds,
                )
                for way, mine in runs.items()
            ]  # fmt: skip
    return found


def _all_ways(settings: Settings, delay: int) -> Iterator[tuple[str, Ways]]:
    with connect(settings=settings) as near, _far(near, delay) as far:
        for name, count, partitions in _READ:
            profile = sized(PROFILES[name], count)
            with _rows(near, profile, partitions):
                ways = _reads(near, far, profile)
                yield f"read, {name}, {count:,} rows, {partitions} partitions", ways
        for name, count in _LOADED:
            profile = sized(PROFILES[name], count)
            with _rows(near, profile, 8):
                yield f"load, {name}, {count:,} rows", _loads(near, far, profile)
        for nbytes in _FILE_BYTES:
            with _files(near, far, nbytes) as (writes, reads):
                yield f"igfs, {nbytes >> 20} MB written", writes
                yield f"igfs, {nbytes >> 20} MB read", reads
        profile = sized(PROFILES["sql"], _QUERIED)
        with _rows(near, profile, 8):
            yield f"query, {_QUERIED:,} rows", _queries(far, profile)


@contextlib.contextmanager
def _far(near: Client, delay_ms: int) -> Iterator[Client]:
    """A client whose every byte takes its time."""
    words = [sys.executable, "-m", "helpers.distant", near.settings.addresses[0]]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, str(delay_ms / 1e3)], cwd=_HELPERS, **pipes) as proxy:
        try:
            address = proxy.stdout.readline().strip()
            with connect(settings=near.settings.replace(addresses=(address,))) as far:
                yield far
        finally:
            proxy.stdin.close()


@contextlib.contextmanager
def _rows(near: Client, profile: Profile, partitions: int) -> Iterator[None]:
    try:
        fill_cache(near, profile, partitions)
        yield
    finally:
        drop_rows(near, profile.cache)


def _rate(way: Callable[[], int | tuple[int, float]], row_bytes: float) -> Callable[[], float]:
    rows = rows_a_second(way)
    return lambda: rows() * row_bytes / 1e6


def _reads(near: Client, far: Client, profile: Profile) -> Ways:
    def read() -> int:
        # Opened each time: how far the node is, connections have to find out.
        with connect(settings=far.settings) as client:
            rows = open_rows(profile.cache, client=client, shard=(0, 1))
            return sum(len(batch["key"]) for batch in rows.batches())

    opened = open_rows(profile.cache, client=far, shard=(0, 1))

    def again() -> int:
        return sum(len(batch["key"]) for batch in opened.batches())

    drained = Scans(far, profile.cache, profile.row_bytes).drain
    return {
        "bare": _rate(functools.partial(drained, ahead=_AHEAD), profile.row_bytes),
        "an epoch": _rate(again, profile.row_bytes),
        "connection, open, first epoch": _rate(read, profile.row_bytes),
    }


def _loads(near: Client, far: Client, profile: Profile) -> Ways:
    (columns,) = make_rows(profile, profile.rows * profile.row_bytes)
    pages = Scans(near, profile.cache, profile.row_bytes).by_owner().values()
    head = functools.partial(batch_head, cache_id(profile.cache))
    bodies = [(head(count), entries) for node in pages for count, entries in node]

    def bare() -> tuple[int, float]:
        return profile.rows, _spread(far, OpCode.CACHE_PUT_ALL, bodies)

    def load(count: int, *, anew: bool = True) -> tuple[int, float]:
        if anew:
            drop_rows(near, profile.cache)
        begin = time.perf_counter()
        load_dataset(
            {name: values[:count] for name, values in columns.items()},
            profile.cache,
            client=far,
            partitions=8,
            if_exists="replace",
        )
        return count, time.perf_counter() - begin

    ten_s = [0.0]

    def ten() -> tuple[int, float]:
        _, ten_s[0] = load(10)
        return 10, ten_s[0]

    def beyond() -> tuple[int, float]:
        """Without what a load of ten rows takes."""
        count, took_s = load(profile.rows)
        return count, max(1e-3, took_s - ten_s[0])

    ways: dict[str, Callable[[], int | tuple[int, float]]] = {
        "bare": bare,
        "load of ten rows": ten,
        "load": lambda: load(profile.rows),
        "load, less the time of ten rows": beyond,
        "load that replaces": lambda: load(profile.rows, anew=False),
    }
    return {name: _rate(way, profile.row_bytes) for name, way in ways.items()}


def _spread(client: Client, op: OpCode, bodies: Sequence[tuple[Any, ...]]) -> float:
    """Send requests over several connections, many at a time over each, and return the seconds."""
    addresses = client.settings.addresses[:1] * _CONNECTIONS
    with sockets(client, addresses) as lines, ThreadPoolExecutor(_CONNECTIONS) as pool:

        def send(number: int) -> None:
            send_ahead(lines[number], op, bodies[number::_CONNECTIONS], _UNANSWERED)

        begin = time.perf_counter()
        list(pool.map(send, range(_CONNECTIONS)))
        return time.perf_counter() - begin


@contextlib.contextmanager
def _files(near: Client, far: Client, nbytes: int) -> Iterator[tuple[Ways, Ways]]:
    block = memoryview(secrets.token_bytes(_STEP_BYTES))
    try:
        with contextlib.closing(Store(far, _FS)) as store:
            cache = cache_request(cache_id(store.chunks.name))
            chunk = store.chunk_bytes
            head = struct.pack("<bi4x", TypeCode.BYTE_ARRAY, chunk + 4)
            data = block[:chunk]
            keys = [
                cache + struct.pack("<bQQ", TypeCode.UUID, 1, number)
                for number in range(nbytes // chunk)
            ]

            def put() -> tuple[int, float]:
                requests = [(key + head, data) for key in keys]
                return nbytes, _spread(far, OpCode.CACHE_PUT, requests)

            def get() -> tuple[int, float]:
                return nbytes, _spread(far, OpCode.CACHE_GET, [(key,) for key in keys])

            def write() -> tuple[int, float]:
                if store.exists("/file"):  # else its chunks and the new ones take memory together
                    store.remove("/file")
                    store.reclaimer.run(0)
                begin = time.perf_counter()
                with store.writing("/file") as file:
                    for _ in range(0, nbytes, _STEP_BYTES):
                        file.write(block)
                return nbytes, time.perf_counter() - begin

            def read() -> int:
                buffer, at = memoryview(bytearray(_STEP_BYTES)), 0
                with contextlib.closing(store.open_read("/file")) as file:
                    while count := file.read_into(at, buffer):
                        at += count
                return at

            yield (
                {"bare": _rate(put, 1), "igfs": _rate(write, 1)},
                {"bare": _rate(get, 1), "igfs": _rate(read, 1)},
            )
    finally:
        for name in (f"{_FS}_META", f"{_FS}_DATA"):
            with contextlib.suppress(IgniteTFError):
                near.destroy_cache(name)


def _queries(far: Client, profile: Profile) -> Ways:
    statement = f"SELECT AGE, BALANCE, CITY, NAME, VISITS FROM {profile.cache}"

    def bare(page_rows: int) -> tuple[int, float]:
        request = sql_request("PUBLIC", statement, (), page_rows, names=True)
        with sockets(far, far.settings.addresses[:1]) as (sock,):
            begin = time.perf_counter()
            answer = memoryview(call(sock, OpCode.QUERY_SQL_FIELDS, request))
            cursor, _, page = read_named_sql_page(answer)
            rows = page.count
            while page.more:
                body = call(sock, OpCode.QUERY_SQL_FIELDS_PAGE, cursor_request(cursor))
                page = read_page(memoryview(body))
                rows += page.count
            return rows, time.perf_counter() - begin

    def columns() -> int:
        return len(pa.table(far.sql(statement)))

    def tuples() -> int:
        return len(far.sql(statement).fetchall())

    size = profile.row_bytes
    return {
        **{
            f"bare, {n:,} rows a page": _rate(functools.partial(bare, n), size)
            for n in _QUERY_PAGES
        },
        "Arrow table": _rate(columns, size),
        "fetchall": _rate(tuples, size),
    }
