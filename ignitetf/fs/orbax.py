"""Orbax checkpoints in `igfs://`.

Orbax -> **orbax** -> etils (paths, markers, renames), store (content of arrays)

    from ignitetf.fs.orbax import tree_handler

    manager = ocp.CheckpointManager("igfs:///run1", item_handlers=tree_handler())
    manager.save(step, args=ocp.args.PyTreeSave(state))
    manager.restore(step, args=ocp.args.PyTreeRestore(state))

Orbax hands arrays to TensorStore, whose stores are fixed in C++ and do not include this one. So the
handler writes the arrays itself: each array is a folder in the layout of Zarr 2 without compression,
each shard one file. This is what Orbax itself writes without OCDBT. A checkpoint that is copied to a
local disk (`ignitetf checkpoint pull`) can be restored by plain Orbax.

Saving copies the arrays once while the caller waits. Everything else happens in Orbax's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from ignitetf.errors import MissingExtra
from ignitetf.fs.files import FileWriter, close_together
from ignitetf.fs.store import Store

try:
    import jax
    import orbax.checkpoint as ocp
    from orbax.checkpoint import type_handlers
except ImportError as missing:
    raise MissingExtra.of("Orbax checkpoints need it", "orbax", missing) from missing

from ignitetf.fs.etils import IgfsPath

__all__ = ["tree_handler"]

T = TypeVar("T")
R = TypeVar("R")
Slices = tuple[slice, ...]

_Writers = list[FileWriter]

_WORKERS: Final = 4
_FILES_AT_ONCE: Final = 64
_STRINGS: Final = "_strings.json"
_ARRAY: Final = ".zarray"


def tree_handler(**options: Any) -> ocp.PyTreeCheckpointHandler:
    """Return a handler that saves and restores trees of arrays in `igfs://`.

    Pass `ocp.args.PyTreeSave` and `PyTreeRestore` to it. Shapes and dtypes are kept. Arrays are
    restored with the sharding that the restore arguments name, otherwise on the default device.

    Args:
        **options: Options of `orbax.checkpoint.PyTreeCheckpointHandler`.

    A save raises ValueError, before it writes, for a path outside `igfs://`, for two values of one
    name, and for dtypes that Zarr cannot name; a restore for arrays that another handler saved.
    """
    scalars = _Scalars()
    registry = type_handlers.create_type_handler_registry(
        (int, scalars),
        (float, scalars),
        (np.number, scalars),
        (np.ndarray, _Arrays()),
        (jax.Array, _JaxArrays()),
        (str, _Strings()),
    )
    options = {"use_ocdbt": False, "type_handler_registry": registry, **options}
    handler = ocp.PyTreeCheckpointHandler(**options)
    # Not in a subclass: Orbax finds the arguments of a handler by its exact class.
    handler.save = _checked(handler.save)
    handler.async_save = _checked(handler.async_save)
    return handler


def _checked(save: Callable[..., R]) -> Callable[..., R]:
    """Return a method of Orbax's handler that refuses trees whose values have no place each."""

    @functools.wraps(save)
    def checked(directory: Any, item: Any = None, *more: Any, **given: Any) -> R:
        args = given.get("args")
        _check_names(item if args is None else args.item)
        return save(directory, item, *more, **given)

    return checked


def _check_names(tree: Any) -> None:
    """Raise ValueError unless each array of a tree has a folder of its own within the checkpoint.

    Orbax makes one name of the keys on the way to an array, with dots between them.
    """
    seen = set[str]()
    for name in jax.tree.leaves(ocp.tree.get_param_names(tree, include_empty_nodes=False)):
        if name and {"", ".", ".."} & set(name.split("/")):
            raise ValueError(f"{name!r} cannot be the name of a folder; rename this key")
        if name in seen:
            raise ValueError(f"two values have the name {name!r}; rename a key that has a dot")
        seen.add(name)


@dataclass(frozen=True)
class _Box:
    """A shard of an array: its number along each axis, and its data."""

    number: tuple[int, ...]
    data: np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Layout:
    """The layout of a stored array: the fields of `.zarray`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]

    def to_json(self) -> bytes:
        kind = self.dtype.str if self.dtype.kind in "biufc" else self.dtype.name
        return json.dumps(
            {
                "zarr_format": 2,
                "shape": self.shape,
                "chunks": self.chunks,
                "dtype": kind,
                "order": "C",
                "dimension_separator": ".",
                "fill_value": None,
                "filters": None,
                "compressor": None,
            }
        ).encode()

    @staticmethod
    def from_json(text: bytes, where: str) -> _Layout:
        found = json.loads(text)
        plain = (found["zarr_format"], found["order"], found.get("compressor"), found["filters"])
        if plain != (2, "C", None, None) or found.get("dimension_separator", ".") != ".":
            raise ValueError(
                f"{where}: arrays in igfs:// are read only without compression; copy the "
                "checkpoint to a local disk (ignitetf checkpoint pull) and restore it from there"
            )
        name = found["dtype"]
        return _Layout(
            tuple(found["shape"]), np.dtype(jax.numpy.dtype(name)), tuple(found["chunks"])
        )

    def file(self, number: tuple[int, ...]) -> str:
        """Return the name of the file of a shard."""
        return ".".join(map(str, number)) or "0"

    def overlapping(self, wanted: Slices) -> Iterable[tuple[tuple[int, ...], Slices, Slices]]:
        """Yield each shard in a part of the array: number, its own slices, those of the part."""
        ranges = [
            range(s.start // c, -(-s.stop // c)) for s, c in zip(wanted, self.chunks, strict=True)
        ]
        for number in itertools.product(*ranges):
            own, part = [], []
            for n, c, s in zip(number, self.chunks, wanted, strict=True):
                low, high = max(s.start, n * c), min(s.stop, n * c + c)
                own.append(slice(low - n * c, high - n * c))
                part.append(slice(low - s.start, high - s.start))
            yield number, tuple(own), tuple(part)


def _named(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return a dtype that `.zarray` can name; raises ValueError for any other."""
    if dtype.kind in "biufc" or (dtype.kind == "V" and hasattr(jax.numpy, dtype.name)):
        return dtype
    raise ValueError(f"{name}: arrays of {dtype} cannot be saved")


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a contiguous array as bytes; also for dtypes without a buffer format."""
    return array.reshape(-1).view(np.uint8).data


def _write_array(store: Store, folder: str, layout: _Layout, boxes: Sequence[_Box]) -> _Writers:
    """Store the content of an array's files; they appear when the writers are closed."""
    store.make_directory(folder, parents=True, exist_ok=True)
    contents = {_ARRAY: memoryview(layout.to_json())}
    for box in boxes:
        data = box.data
        if data.shape != layout.chunks:  # the last shard of an axis fills its whole chunk
            padded = np.zeros(layout.chunks, layout.dtype)
            padded[tuple(map(slice, data.shape))] = data
            data = padded
        contents[layout.file(box.number)] = _bytes_of(data)
    writers: _Writers = []
    try:
        for name, content in contents.items():
            writers.append(store.open_write(f"{folder}/{name}", parents=False))
            writers[-1].write(content)
            writers[-1].store_all()
    except BaseException:
        _discard(writers)
        raise
    return writers


def _close(store: Store, writers: _Writers) -> None:
    """Close files in transactions of several, each of which takes as long as that of one file."""
    try:
        while writers:
            close_together(store, [(writer, {}) for writer in writers[:_FILES_AT_ONCE]])
            del writers[:_FILES_AT_ONCE]
    finally:
        _discard(writers)


def _discard(writers: _Writers) -> None:
    for writer in writers:
        writer.discard()


def _layout_of(info: Any) -> tuple[Store, str, _Layout]:
    """Return the store, the folder and the layout of a parameter."""
    store, folder = _place(info)
    try:
        with contextlib.closing(store.open_read(f"{folder}/{_ARRAY}")) as file:
            return store, folder, _Layout.from_json(file.read(0, file.size), folder)
    except FileNotFoundError as error:
        if not info.parent_dir.exists():
            raise  # A saver that keeps only the newest steps has removed this one.
        raise ValueError(
            f"{folder} is not an array that ignitetf saved; arrays in OCDBT files are restored "
            "from a local disk (ignitetf checkpoint pull)"
        ) from error


def _read_part(store: Store, folder: str, layout: _Layout, part: Slices) -> np.ndarray[Any, Any]:
    """Read a part of an array; a part that is one shard is read in place."""
    out = np.empty([s.stop - s.start for s in part], layout.dtype)
    if not out.size:
        return out
    for number, own, place in layout.overlapping(part):
        whole = out.shape == layout.chunks and own == place
        chunk = out if whole else np.empty(layout.chunks, layout.dtype)
        path = f"{folder}/{layout.file(number)}"
        with contextlib.closing(store.open_read(path)) as file:
            if file.read_into(0, _bytes_of(chunk)) != chunk.nbytes:
                raise ValueError(f"{path} has {file.size} bytes, the array needs {chunk.nbytes}")
        if not whole:
            out[place] = chunk[own]
    return out


def _whole(shape: Sequence[int]) -> Slices:
    return tuple(slice(0, size) for size in shape)


def _place(info: Any) -> tuple[Store, str]:
    """Return the store and the folder of a parameter."""
    parent = info.parent_dir
    if not isinstance(parent, IgfsPath):
        raise ValueError(
            f"{parent} is not in igfs://: tree_handler() is for igfs:// only; "
            "use Orbax's own handlers there"
        )
    return parent.system.store, f"{parent.place}/{info.name}".rstrip("/")


async def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run work for each item on a few threads."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(_WORKERS, "igfs-orbax") as pool:
        tasks: list[Awaitable[R]] = [loop.run_in_executor(pool, work, item) for item in items]
        return list(await asyncio.gather(*tasks))


def _committing(infos: Sequence[Any], work: Callable[[], Awaitable[object]]) -> list[Any]:
    """Return Orbax's future of work in its thread, once the folder of the checkpoint exists."""

    async def commit() -> None:
        for info in infos:
            await info.await_path_creation()
        await work()

    return [ocp.future.CommitFutureAwaitingContractedSignals(commit(), name="igfs")]


class _Arrays(type_handlers.TypeHandler):  # type: ignore[misc]
    """NumPy arrays; the first process writes them."""

    def typestr(self) -> str:
        return "np.ndarray"

    async def metadata(self, infos: Sequence[Any]) -> Sequence[Any]:
        found = await _each(_layout_of, infos)
        return [self._facts(info, one) for info, (_, _, one) in zip(infos, found, strict=True)]

    def _facts(self, info: Any, layout: _Layout) -> Any:
        return ocp.metadata.ArrayMetadata(
            name=info.name,
            directory=info.parent_dir,
            shape=layout.shape,
            dtype=layout.dtype,
            sharding=None,
        )

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        given = args or [ocp.SaveArgs()] * len(values)
        copies = [self._copied(v, i, a) for v, i, a in zip(values, infos, given, strict=True)]
        pending = list(zip(infos, copies, strict=True))

        writers: _Writers = []

        def write(one: tuple[Any, tuple[_Layout, list[_Box]]]) -> None:
            info, (layout, boxes) = one
            if boxes:
                writers.extend(_write_array(*_place(info), layout, boxes))

        async def work() -> None:
            try:
                await _each(write, pending)
            except BaseException:
                _discard(writers)
                raise
            pending.clear()
            await asyncio.to_thread(_close, _place(infos[0])[0], writers)

        return _committing(infos, work)

    def _copied(self, value: Any, info: Any, args: Any) -> tuple[_Layout, list[_Box]]:
        """Copy the shards that this process writes."""
        copy = np.array(value, args.dtype, order="C")
        layout = _Layout(
            copy.shape, _named(copy.dtype, info.name), tuple(max(1, n) for n in copy.shape)
        )
        first = jax.process_index() == 0
        return layout, [_Box((0,) * copy.ndim, copy)] if first else []

    async def deserialize(
        self, infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        given = args or [ocp.RestoreArgs()] * len(infos)
        return await _each(lambda one: self._restored(*one), list(zip(infos, given, strict=True)))

    def _restored(self, info: Any, args: Any) -> Any:
        store, folder, layout = _layout_of(info)
        found = _read_part(store, folder, layout, _whole(layout.shape))
        return found if args.dtype is None else found.astype(args.dtype, copy=False)


class _Scalars(_Arrays):
    """Numbers of Python and NumPy, stored as arrays without axes."""

    def typestr(self) -> str:
        return "scalar"

    def _facts(self, info: Any, layout: _Layout) -> Any:
        return ocp.metadata.ScalarMetadata(
            name=info.name, directory=info.parent_dir, dtype=layout.dtype
        )

    def _restored(self, info: Any, args: Any) -> Any:
        found = super()._restored(info, args).item()
        return args.restore_type(found) if args.restore_type else found


class _JaxArrays(_Arrays):
    """Arrays of JAX; each process writes the shards that are its own, once."""

    def typestr(self) -> str:
        return "jax.Array"

    def _copied(self, value: Any, info: Any, args: Any) -> tuple[_Layout, list[_Box]]:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"{info.name} is a random key: save jax.random.key_data(key), and make the key "
                "of it again with jax.random.wrap_key_data"
            )
        dtype = np.dtype(args.dtype or value.dtype)
        chunks = value.sharding.shard_shape(value.shape)
        layout = _Layout(value.shape, dtype, tuple(max(1, n) for n in chunks))
        # A host copy, because the next step may reuse the buffers of the arrays.
        boxes = [
            _Box(_number(shard.index, layout), np.array(shard.data, dtype, order="C"))
            for shard in value.addressable_shards
            if shard.replica_id == 0
        ]
        return layout, boxes

    def _restored(self, info: Any, args: Any) -> Any:
        store, folder, layout = _layout_of(info)
        shape = getattr(args, "global_shape", None) or layout.shape
        if tuple(shape) != layout.shape:
            raise ValueError(
                f"{info.name} has shape {layout.shape} in the checkpoint, not {tuple(shape)}"
            )
        dtype = args.dtype or layout.dtype

        def part(index: Slices) -> np.ndarray[Any, Any]:
            bounds = zip(index, layout.shape, strict=True)
            wanted = tuple(slice(*s.indices(size)[:2]) for s, size in bounds)
            return _read_part(store, folder, layout, wanted).astype(dtype, copy=False)

        sharding = _sharding(args)
        if sharding is None:
            return jax.device_put(part(_whole(layout.shape)))
        return jax.make_array_from_callback(layout.shape, sharding, part)


def _number(index: Slices, layout: _Layout) -> tuple[int, ...]:
    """Return the number of a shard along each axis."""
    bounds = zip(index, layout.shape, layout.chunks, strict=True)
    return tuple(s.indices(size)[0] // chunk for s, size, chunk in bounds)


def _sharding(args: Any) -> Any:
    """Return the sharding that restore arguments name, or None."""
    mesh, axes = getattr(args, "mesh", None), getattr(args, "mesh_axes", None)
    if mesh is not None and axes is not None:
        return jax.sharding.NamedSharding(mesh, axes)
    found: Any = getattr(args, "sharding", None)
    return found.to_jax_sharding() if hasattr(found, "to_jax_sharding") else found


class _Strings(type_handlers.TypeHandler):  # type: ignore[misc]
    """Texts, all in one file."""

    def typestr(self) -> str:
        return "string"

    async def metadata(self, infos: Sequence[Any]) -> Sequence[Any]:
        return [
            ocp.metadata.StringMetadata(name=info.name, directory=info.parent_dir) for info in infos
        ]

    async def serialize(
        self, values: Sequence[str], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        texts = {info.name: value for info, value in zip(infos, values, strict=True)}

        async def work() -> None:
            if jax.process_index() == 0:
                path = infos[0].parent_dir / _STRINGS
                await asyncio.to_thread(path.write_text, json.dumps(texts))

        return _committing(infos, work)

    async def deserialize(
        self, infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[str]:
        path = infos[0].parent_dir / _STRINGS
        texts: Mapping[str, str] = json.loads(await asyncio.to_thread(path.read_text))
        return [texts[info.name] for info in infos]
