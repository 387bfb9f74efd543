"""`ignitetf bench fs`: rates of `igfs://` beside bare requests with the same chunks, in one run.

The bare requests are the baseline: chunks of the same size, built before the clock starts, nothing
computed or copied, several in flight. They are sent as single puts, as puts of several chunks, and
through a data streamer; the fastest counts. All measurements alternate, and each figure is the
median of its rounds.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from ignitetf.bench.in_flight import send_ahead
from ignitetf.errors import IgniteTFError
from ignitetf.fs.chunks import CHUNK_BYTES
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store
from ignitetf.net.client import Client, cache_id
from ignitetf.settings import Settings
from ignitetf.wire.answers import read_long
from ignitetf.wire.codes import OpCode, StreamerFlag, TypeCode
from ignitetf.wire.requests import (
    batch_head,
    cache_request,
    streamer_head,
    streamer_start_request,
)

__all__ = ["bench_fs"]

_NAME: Final = "IGFS_BENCH"
_WINDOW: Final = 4
_STREAM_WINDOW: Final = 3
_IO_BYTES: Final = 8 << 20  # the size of TensorFlow's own writes of large tensors
# In blocks above 1 MiB TensorFlow itself reads at no more than 400-600 MB/s, even from memory.
_GFILE_BYTES: Final = 1 << 20
_PER_REQUEST: Final = 4
_KEY: Final = struct.Struct("<bQQ")
_FLAGS: Final = StreamerFlag.ALLOW_OVERWRITE | StreamerFlag.KEEP_BINARY


def bench_fs(
    settings: Settings,
    *,
    size_bytes: int = 256 << 20,
    rounds: int = 3,
    files: int = 10_000,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure a file system that is created for this and dropped afterwards.

    Args:
        settings: Where the cluster is.
        size_bytes: Size of the file that is written and read.
        rounds: Number of rounds; figures are medians.
        files: Number of files in the directory that is listed.
        say: Receives one line for each step.

    Returns:
        Rates in MB/s (`bare_put`, `bare_put_all`, `bare_streamer`, `bare_get`, `write`, `read`,
        `gfile_write`, `gfile_read`), ratios to the bare requests, `ls_s`, `stat_round_trips`
        (first, repeated), `stat_ms`. The gfile figures are None without TensorFlow or its native
        part.
    """
    with Client(settings) as client:
        _drop(client)
        store = Store(client, _NAME)
        try:
            bench = _Bench(client, store, settings, size_bytes)
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                bench.round()
            return {**bench.figures(), **_metadata(client, store, files)}
        finally:
            store.close()
            _drop(client)


def _drop(client: Client) -> None:
    for name in (f"{_NAME}_META", f"{_NAME}_DATA"):
        with contextlib.suppress(IgniteTFError):
            client.destroy_cache(name)


class _Bench:
    """Sequential writes and reads of one size."""

    def __init__(self, client: Client, store: Store, settings: Settings, size_bytes: int) -> None:
        self._client = client
        self._store = store
        self._chunks = size_bytes // CHUNK_BYTES
        self._size = self._chunks * CHUNK_BYTES
        self._block = memoryview(secrets.token_bytes(_IO_BYTES))
        self._cache = cache_id(store.chunks.name)
        self._seconds: dict[str, list[float]] = {}
        self._gfile = _gfile(settings)

    def round(self) -> None:
        """Run each measurement once."""
        content = secrets.randbits(63)
        self._time("bare_put", lambda: self._puts(content))
        self._time("bare_get", lambda: self._gets(content))
        self._remove(content)
        self._time("write", self._write)
        self._time("read", self._read)
        self._store.remove("/file")
        self._store.reclaimer.run(0)
        for name, bare in (("bare_streamer", self._stream), ("bare_put_all", self._put_alls)):
            content = secrets.randbits(63)
            self._time(name, functools.partial(bare, content))
            self._remove(content)
        if self._gfile is not None:
            self._time("gfile_write", self._gfile_write)
            self._time("gfile_read", self._gfile_read)
            self._store.remove("/file")
            self._store.reclaimer.run(0)

    def figures(self) -> dict[str, Any]:
        """Return medians and ratios."""
        rates: dict[str, Any] = {
            name: round(self._size / statistics.median(self._seconds[name]) / 1e6)
            if name in self._seconds
            else None
            for name in (
                "bare_put",
                "bare_put_all",
                "bare_streamer",
                "bare_get",
                "write",
                "read",
                "gfile_write",
                "gfile_read",
            )
        }
        limits = {
            "write": max(rates[f"bare_{way}"] for way in ("put", "put_all", "streamer")),
            "read": rates["bare_get"],
        }
        for name, limit in limits.items():
            rates[f"{name}_ratio"] = round(rates[name] / limit, 2)
            own = rates[f"gfile_{name}"]
            # Relative to the same file system without TensorFlow.
            rates[f"gfile_{name}_ratio"] = None if own is None else round(own / rates[name], 2)
        return rates

    def _time(self, name: str, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        work()
        self._seconds.setdefault(name, []).append(time.perf_counter() - begin)

    def _entry(self, content: int, number: int) -> tuple[bytes, memoryview]:
        at = number * CHUNK_BYTES % _IO_BYTES
        key = _KEY.pack(TypeCode.UUID, content, number)
        head = struct.pack("<bi4x", TypeCode.BYTE_ARRAY, CHUNK_BYTES + 4)
        return key + head, self._block[at : at + CHUNK_BYTES]

    def _puts(self, content: int) -> None:
        head = cache_request(self._cache)
        entries = (self._entry(content, number) for number in range(self._chunks))
        with self._client.channel() as channel:
            requests = ((head + key, data) for key, data in entries)
            send_ahead(channel, OpCode.CACHE_PUT, requests, _WINDOW)

    def _put_alls(self, content: int) -> None:
        head = functools.partial(batch_head, self._cache)
        with self._client.channel() as channel:
            send_ahead(channel, OpCode.CACHE_PUT_ALL, self._several(head, content), _WINDOW)

    def _stream(self, content: int) -> None:
        start = streamer_start_request(self._cache, _FLAGS, _PER_REQUEST, 4 * _PER_REQUEST)
        with self._client.channel() as channel:
            streamer = read_long(channel.call(OpCode.DATA_STREAMER_START, start), "a streamer")
            requests = self._several(functools.partial(streamer_head, streamer, _FLAGS), content)
            send_ahead(channel, OpCode.DATA_STREAMER_ADD_DATA, requests, _STREAM_WINDOW)
            flags = _FLAGS | StreamerFlag.FLUSH | StreamerFlag.CLOSE
            channel.call(OpCode.DATA_STREAMER_ADD_DATA, streamer_head(streamer, flags, 0))

    def _several(self, head: Callable[[int], bytes], content: int) -> Iterator[tuple[Any, ...]]:
        """Yield the chunks of a file in requests of several."""
        for first in range(0, self._chunks, _PER_REQUEST):
            numbers = range(first, min(first + _PER_REQUEST, self._chunks))
            parts = [part for n in numbers for part in self._entry(content, n)]
            yield (head(len(numbers)), *parts)

    def _gets(self, content: int) -> None:
        head = cache_request(self._cache)
        keys = (_KEY.pack(TypeCode.UUID, content, number) for number in range(self._chunks))
        with self._client.channel() as channel:
            send_ahead(channel, OpCode.CACHE_GET, ((head + key,) for key in keys), _WINDOW)

    def _remove(self, content: int) -> None:
        self._store.chunks.remove(f"{content:016x}", range(self._chunks))

    def _write(self) -> None:
        with self._store.writing("/file") as file:
            for at in range(0, self._size, _IO_BYTES):
                file.write(self._block[: min(_IO_BYTES, self._size - at)])

    def _read(self) -> None:
        buffer, at = memoryview(bytearray(_IO_BYTES)), 0
        with contextlib.closing(self._store.open_read("/file")) as file:
            while count := file.read_into(at, buffer):
                at += count

    def _gfile_write(self) -> None:
        with self._gfile.GFile("igfs:///file", "wb") as file:
            for at in range(0, self._size, _GFILE_BYTES):
                file.write(bytes(self._block[: min(_GFILE_BYTES, self._size - at)]))

    def _gfile_read(self) -> None:
        with self._gfile.GFile("igfs:///file", "rb") as file:
            while file.read(_GFILE_BYTES):
                pass


def _gfile(settings: Settings) -> Any:
    """Return TensorFlow's gfile on the benchmark's file system; None if not available."""
    try:
        from ignitetf.fs import gfile
    except ImportError:
        return None
    gfile.configure(settings, _NAME)
    import tensorflow as tf

    return tf.io.gfile


def _metadata(client: Client, store: Store, files: int) -> dict[str, Any]:
    store.make_directory("/many")
    directory = store.stat("/many").directory_id
    entry = Entry(None, time.time_ns()).to_bytes()
    for first in range(0, files, 1000):
        numbers = range(first, min(first + 1000, files))
        store.meta.put_all({f"{directory}/file-{n:06}": entry for n in numbers})
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        found = len(store.list("/many"))
        seconds.append(time.perf_counter() - begin)
    path = "/a/b/c/d/file"
    with store.writing(path):
        pass
    other = Store(client, store.name)
    trips, times = [], []
    for _ in range(20):
        before, begin = other.meta.round_trips, time.perf_counter()
        other.stat(path)
        times.append(time.perf_counter() - begin)
        trips.append(other.meta.round_trips - before)
    other.close()
    return {
        "ls_files": found,
        "ls_s": round(statistics.median(seconds), 3),
        "stat_round_trips": [trips[0], max(trips[1:])],
        "stat_ms": round(statistics.median(times) * 1e3, 2),
    }
