"""`ignitetf bench fs`: rates of `igfs://` compared with bare requests of the same chunks.

The bare requests are the baseline: chunks of the same size, built before the clock starts, without
computing or copying, several in flight. They are sent as single puts, as puts of several chunks,
and through a data streamer; the fastest counts. All measurements alternate, and each figure is the
median of its rounds.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyignite.utils import cache_id

from ignitetf import Client
from ignitetf.bench.bare import call, send_ahead, sockets
from ignitetf.errors import IgniteTFError
from ignitetf.fs.store import Store
from ignitetf.settings import Settings

__all__ = ["bench_fs"]

_NAME: Final = "IGFS_BENCH"
# The bare requests store into the file system's own cache of chunks, while it contains no file.
_CHUNKS: Final = f"{_NAME}_DATA"
_WINDOW: Final = 4
_STREAM_WINDOW: Final = 3
_IO_BYTES: Final = 8 << 20  # the size of TensorFlow's own writes of large tensors
# In blocks above 1 MiB TensorFlow itself reads at no more than 400-600 MB/s, even from memory.
_GFILE_BYTES: Final = 1 << 20
_PER_REQUEST: Final = 4
_WRITERS: Final = 16
# Keys and values in the bytes of the protocol: UUID (type 10), array of bytes (12).
_KEY: Final = struct.Struct("<bQQ")
_VALUE: Final = struct.Struct("<bi")
_UUID, _BYTE_ARRAY, _NULL = 10, 12, 101
_GET, _PUT, _PUT_ALL, _STREAM_START, _STREAM_DATA = 1000, 1001, 1004, 8000, 8001
_OVERWRITE, _END = 0x01 | 0x04, 0x18  # keeping binary objects; flush and close


def bench_fs(
    settings: Settings,
    *,
    size_bytes: int = 256 << 20,
    rounds: int = 3,
    files: int = 10_000,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure a temporary file system.

    Args:
        settings: Settings of the connection to the cluster.
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
    for name in (f"{_NAME}_META", _CHUNKS):
        with contextlib.suppress(IgniteTFError):
            client.destroy_cache(name)


class _Bench:
    """Sequential writes and reads of one size."""

    def __init__(self, client: Client, store: Store, settings: Settings, size_bytes: int) -> None:
        self._client = client
        self._store = store
        self._chunk = store.chunk_bytes
        self._chunks = size_bytes // self._chunk
        self._size = self._chunks * self._chunk
        self._block = memoryview(secrets.token_bytes(_IO_BYTES))
        self._cache = cache_id(_CHUNKS)
        self._seconds: dict[str, list[float]] = {}
        self._gfile = _gfile(settings)

    def round(self) -> None:
        """Run each measurement once."""
        content = secrets.randbits(63)
        self._time("bare_put", lambda: self._puts(content))
        self._time("bare_get", lambda: self._gets(content))
        self._client.cache(_CHUNKS).clear()
        self._time("write", self._write)
        self._time("read", self._read)
        self._remove()
        for name, bare in (("bare_streamer", self._stream), ("bare_put_all", self._put_alls)):
            self._time(name, bare)
            self._client.cache(_CHUNKS).clear()
        if self._gfile is not None:
            self._time("gfile_write", self._gfile_write)
            self._time("gfile_read", self._gfile_read)
            self._remove()

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

    def _remove(self) -> None:
        """Remove the file and, immediately, its chunks."""
        self._store.remove("/file")
        self._store.reclaimer.run(0)

    def _entry(self, content: int, number: int) -> tuple[bytes, memoryview]:
        at = number * self._chunk % _IO_BYTES
        key = _KEY.pack(_UUID, content, number)
        return key + _VALUE.pack(_BYTE_ARRAY, self._chunk), self._block[at : at + self._chunk]

    def _send(
        self, op: int, requests: Iterator[tuple[Any, ...]], unanswered: int = _WINDOW
    ) -> None:
        with sockets(self._client, self._client.settings.addresses[:1]) as (sock,):
            send_ahead(sock, op, requests, unanswered)

    def _puts(self, content: int) -> None:
        head = struct.pack("<ib", self._cache, 0)
        entries = (self._entry(content, number) for number in range(self._chunks))
        self._send(_PUT, ((head + key, data) for key, data in entries))

    def _gets(self, content: int) -> None:
        head = struct.pack("<ib", self._cache, 0)
        keys = (_KEY.pack(_UUID, content, number) for number in range(self._chunks))
        self._send(_GET, ((head + key,) for key in keys))

    def _put_alls(self) -> None:
        self._send(_PUT_ALL, self._several(lambda n: struct.pack("<ibi", self._cache, 0, n)))

    def _stream(self) -> None:
        entries = (_PER_REQUEST, 4 * _PER_REQUEST)  # buffered for a node, for a thread
        start = struct.pack("<ibiibi", self._cache, _OVERWRITE, *entries, _NULL, 0)
        with sockets(self._client, self._client.settings.addresses[:1]) as (sock,):
            stream = call(sock, _STREAM_START, start)
            requests = self._several(lambda n: struct.pack("<8sbi", stream, _OVERWRITE, n))
            send_ahead(sock, _STREAM_DATA, requests, _STREAM_WINDOW)
            call(sock, _STREAM_DATA, struct.pack("<8sbi", stream, _OVERWRITE | _END, 0))

    def _several(self, head: Callable[[int], bytes]) -> Iterator[tuple[Any, ...]]:
        """Yield the chunks of a file in requests of several."""
        content = secrets.randbits(63)
        for first in range(0, self._chunks, _PER_REQUEST):
            numbers = range(first, min(first + _PER_REQUEST, self._chunks))
            parts = [part for n in numbers for part in self._entry(content, n)]
            yield (head(len(numbers)), *parts)

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
        import tensorflow as tf

        from ignitetf.fs import gfile
    except ImportError:
        return None
    gfile.configure(settings, _NAME)

    return tf.io.gfile


def _metadata(client: Client, store: Store, files: int) -> dict[str, Any]:
    store.make_directory("/many")

    def make(number: int) -> None:
        with store.writing(f"/many/file-{number:06}"):
            pass

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(make, range(files)))
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
        before, begin = other.round_trips, time.perf_counter()
        other.stat(path)
        times.append(time.perf_counter() - begin)
        trips.append(other.round_trips - before)
    other.close()
    return {
        "ls_files": found,
        "ls_s": round(statistics.median(seconds), 3),
        "stat_round_trips": [trips[0], max(trips[1:])],
        "stat_ms": round(statistics.median(times) * 1e3, 2),
    }
