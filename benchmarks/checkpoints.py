# ruff: noqa: D102 (the protocols Place and Tool say what the methods do)
"""What a checkpoint costs: Keras, tf.train.Checkpoint, Orbax and torch DCP on `igfs://` and on disk.

python benchmarks/checkpoints.py                              # 100 MB on the running node and a disk
python benchmarks/checkpoints.py --gb 0.1 --gb 1 --rounds 5
python benchmarks/checkpoints.py --tool orbax --disk checkpoints --place memory=127.0.0.1:10800

One process for each tool holds a model of random float32 weights. In each round it takes the places
in turn, in both orders, after a round that does not count. At each place it first writes and reads
the same number of bytes without any tool: bare requests with the same chunks, or one plain file.
Ratios are taken within a round, so trust those.

| figure | meaning |
| --- | --- |
| blocking | until the trainer can go on; with a background save only a part of the total |
| total | until the checkpoint can be restored; with `disk+fsync` until it is on the disk |
| restore | until all weights are in memory again |
| ratio | rate of the bare write or read at this place and time, divided into that of the tool |
| peak | most memory of the process above what it held before, in sizes of the model |

`copy` is one copy of the weights into fresh memory, the least that a background save can cost.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import os
import secrets
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is imported
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
from history import HISTORY, Figure, append, surroundings

_NAME: Final = "IGFS_CHECKPOINTS"
_LAYER: Final = 2048  # a layer is a square matrix of this size and a vector
_BLOCK: Final = 8 << 20
_WINDOW: Final = 4
_WARM_S: Final = 3.0
_GET, _PUT = 1000, 1001
_KEY: Final = struct.Struct("<bQQ")  # a UUID
_VALUE: Final = struct.Struct("<bi")  # an array of bytes
_UUID, _BYTE_ARRAY = 10, 12
Weights = dict[str, np.ndarray[Any, Any]]
Wait = Callable[[], object]


# Places


class Place(Protocol):
    """Where checkpoints are written."""

    def url(self, name: str) -> str:
        """Return the path of a checkpoint."""

    def write(self, data: Sequence[memoryview]) -> None:
        """Write bytes without a tool."""

    def read(self) -> None:
        """Read these bytes without a tool."""

    def settle(self) -> None:
        """Wait until what was written survives what this place survives."""

    def clear(self) -> None:
        """Remove everything."""


class Cluster:
    """A file system in a cluster; bare requests go to its own cache of chunks."""

    def __init__(self, address: str) -> None:
        from pyignite.utils import cache_id

        from ignitetf.fs.store import open_store
        from ignitetf.settings import Settings

        self.address = address
        self._store = open_store(Settings.resolve(address=address))
        self._cache = struct.pack("<ib", cache_id(self._store.chunks.name), 0)
        self._content = self._count = 0
        self._root = f"/{_NAME}-{os.getpid()}"

    def url(self, name: str) -> str:
        return f"igfs://{self.address}{self._root}/{name}"

    def write(self, data: Sequence[memoryview]) -> None:
        chunk, self._content = self._store.chunk_bytes, secrets.randbits(63)
        parts = [view[at : at + chunk] for view in data for at in range(0, len(view), chunk)]
        self._count = len(parts)
        heads = (self._key(n) + _VALUE.pack(_BYTE_ARRAY, len(p)) for n, p in enumerate(parts))
        self._send(_PUT, zip(heads, parts, strict=True))

    def read(self) -> None:
        self._send(_GET, ((self._key(number),) for number in range(self._count)))

    def _key(self, number: int) -> bytes:
        return self._cache + _KEY.pack(_UUID, self._content, number)

    def _send(self, op: int, requests: Iterator[tuple[Any, ...]]) -> None:
        from ignitetf.bench.bare import send_ahead, sockets

        with sockets(self._store.client, [self.address]) as (sock,):
            send_ahead(sock, op, requests, _WINDOW)

    def settle(self) -> None:
        pass

    def clear(self) -> None:
        self._store.chunks.remove(f"{self._content:016x}", range(self._count))
        with contextlib.suppress(FileNotFoundError):
            self._store.remove_directory(self._root, recursive=True)
        self._store.reclaimer.run(0)


class Disk:
    """A local directory."""

    def __init__(self, folder: str, *, fsync: bool) -> None:
        self._root = Path(folder, f"ignitetf-checkpoints-{os.getpid()}{'-fsync' * fsync}")
        self.fsync = fsync
        self._root.mkdir(parents=True, exist_ok=True)

    def url(self, name: str) -> str:
        return str(self._root / name)

    def write(self, data: Sequence[memoryview]) -> None:
        with (self._root / "bare").open("wb", buffering=0) as file:
            for view in data:
                for at in range(0, len(view), _BLOCK):
                    file.write(view[at : at + _BLOCK])
            if self.fsync:
                os.fsync(file.fileno())

    def read(self) -> None:
        buffer = memoryview(bytearray(_BLOCK))
        with (self._root / "bare").open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def settle(self) -> None:
        for path in self._root.rglob("*") if self.fsync else ():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    def clear(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True, exist_ok=True)


# Tools: each saves to a path and restores from it


class Tool(Protocol):
    """A way of saving weights."""

    def save(self, path: str) -> Wait:
        """Return as soon as the trainer can go on, with a function that waits for the rest."""

    def restore(self, path: str) -> Weights | None:
        """Read all weights; return some of them for a comparison."""


def _no_wait() -> None:
    pass


class Keras:
    """`model.save` and `load_model` of a `.keras` file."""

    def __init__(self, weights: Weights) -> None:
        import keras

        import ignitetf.fs.gfile  # noqa: F401

        layers = [
            keras.layers.Dense(_LAYER, name=name.replace("/w", ""))
            for name in weights
            if name.endswith("/w")
        ]
        self.model = keras.Sequential([keras.Input((_LAYER,)), *layers])
        self.model.compile("sgd")
        self.model.set_weights(list(weights.values()))
        self._load = keras.models.load_model

    def save(self, path: str) -> Wait:
        self.model.save(f"{path}.keras")
        return _no_wait

    def restore(self, path: str) -> Weights | None:
        found = self._load(f"{path}.keras", compile=False)
        return {"0/w": found.get_weights()[0]}


class Background(Keras):
    """`ignitetf.train.checkpoint.BackgroundCheckpoint` of the same model."""

    def save(self, path: str) -> Wait:
        from ignitetf.train.checkpoint import BackgroundCheckpoint

        callback = BackgroundCheckpoint(path)
        callback.set_model(self.model)
        callback.on_train_begin()
        callback.save()
        return callback.barrier

    def restore(self, path: str) -> Weights | None:
        from ignitetf.train.checkpoint import BackgroundCheckpoint

        BackgroundCheckpoint(path).restore(self.model)
        return {"0/w": self.model.layers[0].kernel.numpy()}


class TensorFlow:
    """`tf.train.Checkpoint.write` and `read`."""

    def __init__(self, weights: Weights) -> None:
        import tensorflow as tf

        import ignitetf.fs.gfile  # noqa: F401

        self._tf = tf
        self._variables = {name.replace("/", "_"): tf.Variable(w) for name, w in weights.items()}

    def save(self, path: str) -> Wait:
        self._tf.train.Checkpoint(**self._variables).write(path)
        return _no_wait

    def restore(self, path: str) -> Weights | None:
        tf = self._tf
        fresh = {n: tf.Variable(tf.zeros(v.shape)) for n, v in self._variables.items()}
        tf.train.Checkpoint(**fresh).read(path).assert_consumed()
        return {"0/w": fresh["0_w"].numpy()}


class Orbax:
    """A `Checkpointer` of a tree of `jax.Array`."""

    asynchronous = False

    def __init__(self, weights: Weights) -> None:
        import jax
        import orbax.checkpoint as ocp

        from ignitetf.fs.orbax import tree_handler

        self._ocp = ocp
        self._tree = {name.replace("/", "_"): jax.numpy.asarray(w) for name, w in weights.items()}
        jax.block_until_ready(self._tree)
        make = ocp.AsyncCheckpointer if self.asynchronous else ocp.Checkpointer
        self._checkpointers = {
            True: make(tree_handler()),
            False: make(ocp.PyTreeCheckpointHandler()),
        }

    def save(self, path: str) -> Wait:
        checkpointer = self._checkpointers[path.startswith("igfs:")]
        checkpointer.save(path, args=self._ocp.args.PyTreeSave(self._tree))
        return checkpointer.wait_until_finished if self.asynchronous else _no_wait

    def restore(self, path: str) -> Weights | None:
        args = self._ocp.checkpoint_utils.construct_restore_args(self._tree)
        found = self._checkpointers[path.startswith("igfs:")].restore(
            path, args=self._ocp.args.PyTreeRestore(self._tree, restore_args=args)
        )
        return {"0/w": np.asarray(found["0_w"])}


class OrbaxAsync(Orbax):
    """An `AsyncCheckpointer`."""

    asynchronous = True


class Dcp:
    """`torch.distributed.checkpoint.save` and `load` in one process."""

    asynchronous = False

    def __init__(self, weights: Weights) -> None:
        import warnings

        import torch
        import torch.distributed.checkpoint as dcp

        warnings.simplefilter("ignore")
        self._torch, self._dcp = torch, dcp
        self._state = {name: torch.from_numpy(w) for name, w in weights.items()}

    def save(self, path: str) -> Wait:
        make = self._dcp.FsspecWriter if path.startswith("igfs:") else self._dcp.FileSystemWriter
        # The benchmark itself waits for the disk, where that is measured.
        writer = make(path, sync_files=False)
        if self.asynchronous:
            return self._dcp.async_save(self._state, storage_writer=writer).result
        self._dcp.save(self._state, storage_writer=writer)
        return _no_wait

    def restore(self, path: str) -> Weights | None:
        make = self._dcp.FsspecReader if path.startswith("igfs:") else self._dcp.FileSystemReader
        fresh = {name: self._torch.empty_like(t) for name, t in self._state.items()}
        self._dcp.load(fresh, storage_reader=make(path))
        return {"0/w": fresh["0/w"].numpy()}


class DcpAsync(Dcp):
    """`torch.distributed.checkpoint.async_save`."""

    asynchronous = True


TOOLS: Final[Mapping[str, Callable[[Weights], Tool]]] = {
    "keras": Keras,
    "keras, BackgroundCheckpoint": Background,
    "tf.train.Checkpoint": TensorFlow,
    "orbax": Orbax,
    "orbax, async": OrbaxAsync,
    "dcp": Dcp,
    "dcp, async": DcpAsync,
}


# One tool in its process


@dataclass(frozen=True)
class Figures:
    """One save and restore, in seconds; memory in sizes of the model."""

    place: str
    blocking: float
    total: float
    restore: float
    bare_write: float
    bare_read: float
    copy: float
    peak_save: float
    peak_restore: float


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    return 0


class _Peak:
    """The most memory above what was held at the beginning."""

    def __enter__(self) -> _Peak:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # memory that is free, but not given back
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # resets the peak
        self._before = _memory("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.nbytes = _memory("VmHWM") - self._before


def _weights(nbytes: int) -> Weights:
    rng, layers = np.random.default_rng(1), max(1, round(nbytes / (4 * _LAYER * (_LAYER + 1))))
    found: Weights = {}
    for number in range(layers):
        found[f"{number}/w"] = rng.random((_LAYER, _LAYER), np.float32)
        found[f"{number}/b"] = rng.random(_LAYER, np.float32)
    return found


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _measure(tool: Tool, name: str, place: Place, weights: Weights) -> Figures:
    nbytes = sum(w.nbytes for w in weights.values())
    views = [memoryview(w).cast("B") for w in weights.values() if w.nbytes > _BLOCK]
    bare_write, bare_read = _timed(lambda: place.write(views)), _timed(place.read)
    place.clear()
    copies: list[Any] = []
    copy = _timed(lambda: copies.extend(w.copy() for w in weights.values()))
    copies.clear()
    path = place.url("checkpoint")
    with _Peak() as saving:
        begin = time.perf_counter()
        wait = tool.save(path)
        blocking = time.perf_counter() - begin
        wait()
        place.settle()
        total = time.perf_counter() - begin
    with _Peak() as restoring:
        begin = time.perf_counter()
        found = tool.restore(path)
        restore = time.perf_counter() - begin
    assert found is None or all((found[n] == weights[n]).all() for n in found), name
    del found, wait
    place.clear()
    peaks = (saving.nbytes / nbytes, restoring.nbytes / nbytes)
    return Figures(name, blocking, total, restore, bare_write, bare_read, copy, *peaks)


def child(asked: Mapping[str, Any]) -> None:
    """Measure one tool, and print a line for each save and restore that counts."""
    weights = _weights(asked["nbytes"])
    tool = TOOLS[asked["tool"]](weights)
    places: dict[str, Place] = {name: Cluster(target) for name, target in asked["clusters"].items()}
    for folder in asked["disks"]:
        places["disk"] = Disk(folder, fsync=False)
        places["disk+fsync"] = Disk(folder, fsync=True)
    views = [memoryview(w).cast("B") for w in weights.values()]
    try:
        for place in places.values():  # a node compiles what it runs often
            until = time.monotonic() + _WARM_S
            while time.monotonic() < until:
                place.write(views)
                place.read()
                place.clear()
        for number in range(asked["rounds"] + 1):
            for name in list(places) if number % 2 else reversed(list(places)):
                figures = _measure(tool, name, places[name], weights)
                if number:
                    print(json.dumps(vars(figures)), flush=True)
    finally:
        for place in places.values():
            place.clear()


# All tools


def measure(tool: str, nbytes: int, args: argparse.Namespace) -> list[Figures]:
    """Run a tool in its own process."""
    asked = {
        "tool": tool,
        "nbytes": nbytes,
        "rounds": args.rounds,
        "clusters": dict(one.split("=", 1) for one in args.place),
        "disks": [args.disk] if args.disk else [],
    }
    command = [sys.executable, __file__, "--child", json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} failed with exit code {done.returncode}")
    return [Figures(**json.loads(line)) for line in done.stdout.splitlines() if line[0] == "{"]


def table(tool: str, nbytes: int, found: Sequence[Figures]) -> list[list[str]]:
    """Return a row for each place, with medians."""
    rows = []
    for place, group in itertools.groupby(sorted(found, key=lambda f: f.place), lambda f: f.place):
        some = list(group)

        def median(value: Callable[[Figures], float], some: list[Figures] = some) -> float:
            return statistics.median(map(value, some))

        rows.append(
            [
                f"{nbytes / 1e9:g} GB",
                tool,
                place,
                f"{median(lambda f: f.blocking):.3f}",
                f"{median(lambda f: f.copy):.3f}",
                f"{median(lambda f: f.total):.3f}",
                f"{median(lambda f: f.bare_write / f.total):.2f}",
                f"{median(lambda f: f.restore):.3f}",
                f"{median(lambda f: f.bare_read / f.restore):.2f}",
                f"{median(lambda f: f.peak_save):.2f}",
                f"{median(lambda f: f.peak_restore):.2f}",
            ]
        )
    return rows


HEADS: Final = (
    "model",
    "tool",
    "place",
    "blocking s",
    "copy s",
    "total s",
    "ratio",
    "restore s",
    "ratio",
    "peak save",
    "peak restore",
)


def figures(tool: str, nbytes: int, found: Sequence[Figures], rounds: int) -> list[Figure]:
    """Return what the history keeps: save and restore of each place."""
    kept = []
    for place in sorted({f.place for f in found}):
        some = [f for f in found if f.place == place]
        for what, bare in (("total", "bare_write"), ("restore", "bare_read")):
            times = [getattr(f, what) for f in some]
            ratios = [getattr(f, bare) / getattr(f, what) for f in some]
            kept.append(
                Figure(
                    "checkpoints",
                    f"{nbytes / 1e9:g} GB, {place}",
                    f"{tool}: {'save' if what == 'total' else what}",
                    round(nbytes / statistics.median(times) / 1e6, 1),
                    "MB/s",
                    round(statistics.median(ratios), 3),
                    rounds,
                )
            )
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gb", type=float, action="append", help="size of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tool", action="append", choices=list(TOOLS))
    parser.add_argument(
        "--place", action="append", metavar="NAME=HOST:PORT", help="a cluster, under a name"
    )
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a local folder; '' for none")
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--no-history", action="store_true")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = _parser().parse_args(given)
    if not args.place:
        from ignitetf.settings import Settings

        args.place = [f"igfs={Settings.resolve().addresses[0]}"]
    from ignitetf.node.jars import IGNITE_VERSION

    around = surroundings(IGNITE_VERSION)
    print(f"{around['machine']}\n| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    for gb in args.gb or [0.1]:
        for tool in args.tool or TOOLS:
            nbytes = int(gb * 1e9)
            found = measure(tool, nbytes, args)
            for row in table(tool, nbytes, found):
                print(f"| {' | '.join(row)} |", flush=True)
            if not args.no_history:
                append(args.history, around, figures(tool, nbytes, found, args.rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    else:
        main()
