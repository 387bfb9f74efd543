"""Columns on a device of JAX or PyTorch; neither is imported before a device is requested.

NumPy columns -> **devices** -> rows (copies), train/resident (gathers)

Columns are arrays, or dicts of columns for objects and composite keys.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.read.export import DenseNode, Node, RunsNode, StructNode

__all__ = ["Device", "DeviceBatches", "Framework", "Source", "check_dense", "device_of"]


class Source(Protocol):
    """Iterator of batches of NumPy columns that counts the rows it has returned."""

    consumed: int

    def __next__(self) -> dict[str, Any]: ...

    def state(self, rows_consumed: int | None = None) -> dict[str, Any]:
        """Return the state after `rows_consumed` rows."""

    def close(self) -> None:
        """Stop reading."""


class DeviceBatches(Iterator[dict[str, Any]]):
    """Batches of an epoch on a device, with the consumer's position.

    A thread reads and copies as soon as this object is created. It ends after the last batch, after
    an error, on `close`, or when nothing refers to this object any more.

    Attributes:
        consumed: Number of rows in the batches that the consumer has received.
    """

    def __init__(self, source: Source, device: Device, keys: bool, ahead: int) -> None:
        self.consumed = 0
        self._source = source
        self._device = device
        copier = _Copier(source, device, keys, ahead)
        self._next = copier.take
        # Runs also when this object is dropped, and before the interpreter exits.
        self._end = weakref.finalize(self, copier.end)
        copier.start()

    def __next__(self) -> dict[str, Any]:
        consumed, copied = self._next()
        self.consumed = consumed
        return self._device.arrived(copied)  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """Return the state after the last batch that the consumer has, for `EpochRows.resume`."""
        return self._source.state(self.consumed)

    def close(self) -> None:
        """Stop reading, wait for the thread, and drop the batches that were copied ahead."""
        self._end()

    def __enter__(self) -> DeviceBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Copier(threading.Thread):
    """Copies up to `ahead` batches to the device before the consumer requests them."""

    def __init__(self, source: Source, device: Device, keys: bool, ahead: int) -> None:
        super().__init__(name="ignitetf-device", daemon=True)
        self._source = source
        self._device = device
        self._keys = keys
        self._ahead = ahead
        self._changed = threading.Condition()
        # Rows up to the end of the batch, and the batch.
        self._copied: deque[tuple[int, Any]] = deque()
        self._ending = False
        self._ended = False
        self._error: BaseException | None = None

    # The consumer's side

    def take(self) -> tuple[int, Any]:
        """Wait for the next batch and return it.

        If an error ended the thread, raises it once. After that, and after the last batch, raises
        StopIteration.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._copied or self._ended)
            if self._copied:
                self._changed.notify_all()
                return self._copied.popleft()
            error, self._error = self._error, None
        raise StopIteration if error is None else error

    def end(self) -> None:
        """End the thread after the batch that it is reading, and wait for it."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        # The garbage collector may run this in the thread itself, which cannot join itself.
        if threading.current_thread() is not self:
            self.join()
        self._copied.clear()

    # The thread's side

    def run(self) -> None:
        """Read and copy all batches; an error is passed to the consumer."""
        try:
            with contextlib.closing(self._source):
                while self._has_room() and self._copy_next():
                    pass
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ending or len(self._copied) < self._ahead)
            return not self._ending

    # A separate function, so that no variable keeps the batch while the thread waits for room.
    def _copy_next(self) -> bool:
        batch = next(self._source, None)
        if batch is None:
            return False
        if not self._keys:
            del batch["key"]
        copied = self._device.copy(batch)
        with self._changed:
            self._copied.append((self._source.consumed, copied))
            self._changed.notify_all()
        return True


Framework = Literal["jax", "torch"]
_PACKAGES: Final = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}
_X64_HINT: Final = (
    "jax.config.update('jax_enable_x64', True), or leave it out with fields=[...] or keys=False"
)

T = TypeVar("T")


class Device(Protocol):
    """Memory of an accelerator or of the host, which holds a framework's arrays."""

    def copy(self, columns: Any) -> Any:
        """Start to copy NumPy columns, and return the argument for `arrived`."""

    def arrived(self, copied: Any) -> Any:
        """Return copied columns; work that is sent to the device from now on sees their values."""

    def keep(self, columns: Any) -> Any:
        """Copy columns to the device to stay there, and wait until the copy is complete."""

    def part(self, numbers: Any, start: int, stop: int) -> Any:
        """Return `numbers[start:stop]`, where `numbers` are row numbers on the device."""

    def gather(self, columns: Any, numbers: Any) -> Any:
        """Return the rows with these numbers from columns on the device."""

    def free_bytes(self) -> int | None:
        """Return the free memory of an accelerator; None for the host's own, or if unknown."""


def device_of(framework: Framework | None, device: Any) -> Device:
    """Return a device of a framework.

    Args:
        framework: `jax` or `torch`; None uses the framework of the device object.
        device: A device of the framework, or its name such as "cuda:1" or "gpu:1"; for JAX also a
            sharding. None is JAX's default device. For PyTorch, None is the current CUDA device if
            there is one, otherwise PyTorch's default device.

    Raises:
        ConfigError: The framework or the device does not exist.
        MissingExtra: The framework is not installed.
    """
    own = _PACKAGES.get(type(device).__module__.partition(".")[0])
    name = own if framework is None else framework
    if name not in get_args(Framework):
        raise ConfigError(
            f"framework={framework!r}",
            hint="'jax' or 'torch', or pass a device object of one of them",
        )
    if own not in (None, name):
        raise ConfigError(f"framework={framework!r} with a device of {own}")
    return _Jax(device) if name == "jax" else _Torch(device)


def check_dense(cache: str, key: Node | None, values: Mapping[str, Node], plain: bool) -> None:
    """Raise ConfigError for columns that are not arrays.

    Args:
        cache: Name in the error.
        key: Structure of the key; None if it is left out.
        values: Structure of each field.
        plain: True if values are not objects, so that there are no fields to choose from.

    Raises:
        ConfigError: A field, or the key, is text or has lists of different lengths.
    """
    if key is not None and (what := _not_dense(key)):
        raise ConfigError(
            f"{cache}: the key is {what}, which a device cannot hold",
            hint="keys=False leaves the keys out",
        )
    for name, node in values.items():
        if what := _not_dense(node):
            left = [n for n, other in values.items() if not _not_dense(other)]
            hint = "rows.batches(...) returns it on the host"
            if left and not plain:
                hint = f"fields={left!r} reads the others; {hint}"
            raise ConfigError(f"{cache}: {name} is {what}, which a device cannot hold", hint=hint)


def _not_dense(node: Node) -> str | None:
    """Return what a node is if it is not an array; None if it is an array or consists of arrays."""
    if isinstance(node, DenseNode):
        return None
    if isinstance(node, StructNode):
        return next(filter(None, (_not_dense(inner) for _, inner in node.fields)), None)
    return "lists of different lengths" if isinstance(node, RunsNode) else "text"


def _mapped(convert: Callable[[Any], T], columns: Any) -> Any:
    if isinstance(columns, dict):
        return {name: _mapped(convert, column) for name, column in columns.items()}
    return convert(columns)


class _Jax:
    """A device, or a sharding, of JAX.

    A copy may still be running when `copy` returns, and on the host JAX may use the memory of an
    array without a copy. In both cases JAX keeps the array alive as long as it reads from it. A
    pool reuses memory only after all arrays that refer to it are gone.
    """

    def __init__(self, device: Any) -> None:
        try:
            import jax
        except ImportError as error:
            raise MissingExtra.of("arrays of JAX need jax", "jax", error) from error
        self._jax = jax
        # A default device that is set for the caller's thread does not apply to the copying thread.
        chosen = jax.config.jax_default_device if device is None else device
        self._device = _jax_device(jax, chosen) if isinstance(chosen, str) else chosen
        self._take = jax.jit(_taken)
        self._slice = jax.jit(jax.lax.dynamic_slice_in_dim, static_argnums=2)

    def copy(self, columns: Any) -> Any:
        return self._jax.device_put(_mapped(self._stored, columns), self._device)

    def arrived(self, copied: Any) -> Any:
        return copied

    def keep(self, columns: Any) -> Any:
        return self._jax.block_until_ready(self.copy(columns))

    def part(self, numbers: Any, start: int, stop: int) -> Any:
        return self._slice(numbers, start, stop - start)

    def gather(self, columns: Any, numbers: Any) -> Any:
        return self._take(columns, numbers)

    def free_bytes(self) -> int | None:
        first = self._device if self._device is not None else self._jax.local_devices()[0]
        stats = [d.memory_stats() for d in getattr(first, "device_set", (first,))]
        known = [s["bytes_limit"] - s["bytes_in_use"] for s in stats if s and "bytes_limit" in s]
        return min(known, default=None)

    def _stored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array as JAX stores it; refuses integers that do not fit.

        JAX would silently wrap integers of 64 bits around.
        """
        wide = array.dtype.kind in "iu" and array.dtype.itemsize == 8
        if not wide or self._jax.config.jax_enable_x64:
            return np.ascontiguousarray(array)
        narrow = np.dtype(f"{array.dtype.kind}4")
        limits = np.iinfo(narrow)
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise ConfigError(
                f"values from {array.min()} to {array.max()}, and JAX has integers of 32 bits",
                hint=_X64_HINT,
            )
        return array.astype(narrow)


def _jax_device(jax: Any, name: str) -> Any:
    """Return the device with a name such as "gpu" or "gpu:1"."""
    platform, _, number = name.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"JAX has no device {name!r}", hint="see jax.devices()") from error


def _taken(columns: Any, numbers: Any) -> Any:
    # All numbers are known to be valid; the default mode would check them.
    return _mapped(lambda column: column.at[numbers].get(mode="clip"), columns)


class _Torch:
    """A device of PyTorch.

    For CUDA, copies are made from pinned memory on a separate stream. On the host a tensor shares
    the memory of its array and keeps it alive, so that it is not reused.
    """

    def __init__(self, device: Any) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtra.of("tensors of PyTorch need torch", "torch", error) from error
        self._torch = torch
        self._device = _torch_device(torch, device)
        self._is_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if self._is_cuda else None
        # PyTorch can gather only signed numbers.
        self._signed = {
            torch.uint16: torch.int16,
            torch.uint32: torch.int32,
            torch.uint64: torch.int64,
        }

    def copy(self, columns: Any) -> Any:
        if self._stream is None:
            return self.keep(columns), None
        cuda = self._torch.cuda
        with cuda.stream(self._stream):
            # PyTorch itself keeps pinned memory until the copies from it are complete.
            copied = _mapped(self._sent, columns)
            return copied, self._stream.record_event()

    def arrived(self, copied: Any) -> Any:
        columns, event = copied
        if event is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            # The memory belongs to the copying stream, but must stay valid for work on this stream.
            _mapped(lambda tensor: tensor.record_stream(stream), columns)
        return columns

    def keep(self, columns: Any) -> Any:
        return _mapped(lambda array: self._tensor(array).to(self._device), columns)

    def part(self, numbers: Any, start: int, stop: int) -> Any:
        return numbers[start:stop]

    def gather(self, columns: Any, numbers: Any) -> Any:
        return _mapped(lambda column: self._rows(column, numbers), columns)

    def free_bytes(self) -> int | None:
        if not self._is_cuda:
            return None
        cuda = self._torch.cuda
        unused = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return int(cuda.mem_get_info(self._device)[0] + unused)

    def _tensor(self, array: NDArray[Any]) -> Any:
        # PyTorch accepts neither irregular strides nor read-only memory.
        return self._torch.from_numpy(np.require(array, requirements=("C", "A", "W")))

    def _sent(self, array: NDArray[Any]) -> Any:
        dtype = self._torch.from_numpy(np.empty(0, array.dtype)).dtype
        pinned = self._torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
        pinned.numpy()[...] = array
        return pinned.to(self._device, non_blocking=True)

    def _rows(self, column: Any, numbers: Any) -> Any:
        signed = self._signed.get(column.dtype)
        if signed is None:
            return column.index_select(0, numbers)
        return column.view(signed).index_select(0, numbers).view(column.dtype)


def _torch_device(torch: Any, device: Any) -> Any:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else torch.get_default_device()
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"PyTorch has no device {device!r}") from error
    if found.type != "cuda" or found.index is not None:
        return found
    # Each thread has its own current device.
    return torch.device("cuda", torch.cuda.current_device())
