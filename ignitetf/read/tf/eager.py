"""`EagerElements`: the elements of a loop in Python, many of them for each call into TensorFlow.

tensors -> **eager** -> iteration

TensorFlow's own iterators take about 100 microseconds for each element, and 12 ms to begin. Here the
reader's pages are taken in the thread of the loop. Arrays are cut by NumPy, and become tensors of the
same memory; an operation of TensorFlow takes 20 to 50 times as long. Texts become tensors for a whole
page at a time, which one operation cuts.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.tf.substr import Sharing
from ignitetf.read.tf.tensors import Form
from ignitetf.wire.buffers import ALIGNMENT, address_of

__all__ = ["EagerElements", "Packed", "as_tensor"]

# Values of a component: those of a leaf, or texts.
_Values = Any
# The rows of a page and its leaves, of one page after another.
Packed = Generator[tuple[int, tuple[Any, ...]], None, None]

# So many elements are made at once: a tensor takes half a kilobyte.
_ELEMENTS: Final = 256
# Who keeps a single element keeps its page, too, if they share it. From so many bytes on, about a
# sixteenth of a page, it may.
_SHARING_BYTES: Final = PAGE_BYTES // 16
# Where a pipeline of TensorFlow has its elements, whatever other devices there are.
_DEVICE: Final = "/CPU:0"


class EagerElements:
    """Makes the elements of a dataset in eager mode; each call begins an iteration.

    Args:
        form: How leaves become tensors.
        packed: Begins an epoch.
        spec: The structure of an element.
        batch_size: Rows of a batch; None for single elements, or if each page is one batch.
        sharing: What strings share with their page.
        whole: Whether each page is one batch, as it is.
        drop_remainder: Whether to leave out an incomplete last batch.
    """

    def __init__(
        self,
        form: Form,
        packed: Callable[[], Packed],
        spec: Any,
        batch_size: int | None,
        sharing: Sharing,
        *,
        whole: bool = False,
        drop_remainder: bool = False,
    ) -> None:
        self._packed, self._form, self._sharing = packed, form, sharing
        self._single = batch_size is None and not whole
        self._size = batch_size or 1
        self._whole, self._drop_remainder = whole, drop_remainder
        self._element = _builder(spec)
        self._dtypes = [leaf.dtype for leaf in form.flat_spec(None)]
        # Of each component its leaf, if it is one; else it is among what `_texts` returns.
        self._leaf_of: list[int | None] = []

    def __call__(self) -> Generator[Any, None, None]:
        """Yield the elements of an epoch."""
        with contextlib.closing(self._packed()) as packed:
            if self._whole:
                yield from (self._page(leaves) for _, leaves in packed)
                return
            for components in self._singles(packed) if self._single else self._batches(packed):
                yield self._element(iter(components))

    def _singles(self, packed: Packed) -> Iterator[tuple[tf.Tensor, ...]]:
        """Yield the components of each row. No page waits for another one: rows may be large."""
        for rows, leaves in packed:
            page = self._components(leaves)
            for start in range(0, rows, _ELEMENTS):
                count = min(_ELEMENTS, rows - start)
                cut = [_single(as_tensor(_rows(values, start, count))) for values in page]
                yield from zip(*cut, strict=True)

    def _batches(self, packed: Packed) -> Iterator[list[tf.Tensor]]:
        """Yield the components of each batch."""
        size, begun, held = self._size, list[list[_Values]](), 0
        for rows, leaves in packed:
            page = self._components(leaves)
            need = min(rows, size - held) if held else 0
            if need:
                begun.append([_rows(values, 0, need) for values in page])
                held += need
            if held == size:
                yield _joined(begun)
                begun, held = [], 0
            for start in range(need, rows - size + 1, size * _ELEMENTS):
                count = min(_ELEMENTS, (rows - start) // size)
                cut = [_cut(values, start, count, size) for values in page]
                yield from map(list, zip(*cut, strict=True))
            if rest := (rows - need) % size:
                begun, held = [[_rows(values, rows - rest, rest) for values in page]], rest
        if held and not self._drop_remainder:
            yield _joined(begun)

    def _page(self, leaves: tuple[Any, ...]) -> Any:
        """Return a page as an element."""
        tensors = map(as_tensor, leaves, self._dtypes)
        if not self._form.assembles:
            return self._form.assemble(*tensors)
        with tf.device(_DEVICE):
            return self._assemble(*tensors)

    def _components(self, leaves: tuple[Any, ...]) -> list[_Values]:
        """Return the components of a page: leaves as they are, and texts."""
        if not self._form.assembles:
            return tf.nest.flatten(self._form.assemble(*leaves))  # type: ignore[no-any-return]
        with tf.device(_DEVICE):
            texts = iter(self._assemble(*map(as_tensor, leaves, self._dtypes)))
        return [next(texts) if at is None else leaves[at] for at in self._leaf_of]

    @functools.cached_property
    def _assemble(self) -> Any:
        """Assembles a page. One trace for each dataset: TensorFlow warns of many if it sees them."""

        def assembled(*leaves: tf.Tensor) -> Any:
            found = self._form.assemble(*leaves, sharing=self._sharing)
            return found if self._whole else self._without_leaves(found, leaves)

        signature = self._form.flat_spec(None)
        function = tf.function(assembled, input_signature=signature, autograph=False)
        return function.get_concrete_function()

    def _without_leaves(self, found: Any, leaves: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        places = {id(leaf): at for at, leaf in enumerate(leaves)}
        flat = tf.nest.flatten(found)
        self._leaf_of = [places.get(id(tensor)) for tensor in flat]
        return [tensor for tensor in flat if id(tensor) not in places]


def as_tensor(values: _Values, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return values as a tensor, which shares the memory of an array if TensorFlow can take it.

    TensorFlow ends the process where it computes with memory that is not aligned.
    """
    if isinstance(values, tf.Tensor):
        return values
    if (
        isinstance(values, np.ndarray)
        and values.nbytes
        and values.flags.c_contiguous
        and address_of(values) % ALIGNMENT == 0
    ):
        with contextlib.suppress(BufferError, RuntimeError, TypeError, tf.errors.OpError):
            return tf.experimental.dlpack.from_dlpack(values.__dlpack__())
        # It is read-only, or this version does not take the dtype.
    with tf.device(_DEVICE):
        return tf.constant(values, dtype)


def _rows(values: _Values, start: int, count: int) -> _Values:
    """Return `count` rows."""
    if not isinstance(values, tf.Tensor):
        return values[start : start + count]
    with tf.device(_DEVICE):
        return tf.raw_ops.Slice(input=values, begin=[start], size=[count])


def _cut(values: _Values, start: int, count: int, size: int) -> list[tf.Tensor]:
    """Return `count` batches of the rows from `start` on."""
    if not isinstance(values, tf.Tensor):
        return [
            as_tensor(values[at : at + size]) for at in range(start, start + count * size, size)
        ]
    with tf.device(_DEVICE):
        part = tf.reshape(_rows(values, start, count * size), [count, size])
        return _unpacked(part)


def _joined(parts: list[list[_Values]]) -> list[tf.Tensor]:
    """Return the components of a batch that is made of rows of several pages."""
    found = []
    for values in zip(*parts, strict=True):
        if len(values) == 1:
            found.append(as_tensor(values[0]))
        elif isinstance(values[0], tf.Tensor):
            with tf.device(_DEVICE):
                found.append(tf.concat(values, 0))
        else:
            found.append(as_tensor(np.concatenate(values)))
    return found


def _unpacked(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Return the slices of a tensor; they share its memory where they are aligned."""
    with tf.device(_DEVICE):
        return tf.raw_ops.Unpack(value=tensor, num=len(tensor))  # type: ignore[no-any-return]


def _single(batch: tf.Tensor) -> Iterator[tf.Tensor]:
    """Yield the slices of a tensor for single elements, which may be kept without the others."""
    found = _unpacked(batch)
    if not _share(found, batch):
        yield from found
        return
    for item in found:
        with tf.device(_DEVICE):
            own = tf.raw_ops.DeepCopy(x=item)
        yield own


def _share(found: list[tf.Tensor], batch: tf.Tensor) -> bool:
    """Whether slices that are small beside a page share its memory; which do depends on the build."""
    item_bytes = batch.dtype.size * math.prod(batch.shape[1:])
    if batch.dtype == tf.string or not 0 < item_bytes < _SHARING_BYTES:
        return False
    first, whole = (np.asarray(memoryview(tensor)) for tensor in (found[0], batch))
    return np.may_share_memory(first, whole)


def _builder(spec: Any) -> Callable[[Iterator[tf.Tensor]], Any]:
    """Return what makes an element of its components, ten times as fast as `tf.nest`."""
    if isinstance(spec, dict):
        # In the order of tf.nest; the element has the order of the structure.
        parts = {name: _builder(spec[name]) for name in sorted(spec)}
        if list(parts) == list(spec):
            return lambda found: {name: part(found) for name, part in parts.items()}

        def build(found: Iterator[tf.Tensor]) -> dict[str, Any]:
            made = {name: part(found) for name, part in parts.items()}
            return {name: made[name] for name in spec}

        return build
    if isinstance(spec, tuple):
        items = [_builder(item) for item in spec]
        return lambda found: tuple(item(found) for item in items)
    return next
