"""`EagerElements`: the elements of a loop in Python, many of them for each call into TensorFlow.

tensors -> **eager** -> iteration

TensorFlow's own iterators take about 100 microseconds for each element, and 12 ms to begin. Here the
reader's pages are taken in the thread of the loop. One call of a function, which is traced once,
makes tensors of a page, and one operation for each component cuts them into elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import tensorflow as tf

from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.tf.substr import Sharing
from ignitetf.read.tf.tensors import Form

__all__ = ["EagerElements", "Packed"]

# The rows of a page and its leaves, of one page after another.
Packed = Generator[tuple[int, tuple[Any, ...]], None, None]

# So many elements are made at once: a tensor takes half a kilobyte.
_ELEMENTS: Final = 256
# TensorFlow may let slices of a multiple of so many bytes share the memory of their page.
_ALIGNED_BYTES: Final = 16
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
        self._form, self._packed, self._sharing = form, packed, sharing
        self._single = batch_size is None and not whole
        self._size = _ELEMENTS if batch_size is None else batch_size
        self._whole, self._drop_remainder = whole, drop_remainder
        self._element = _builder(spec)
        self._specs = form.flat_spec(None)
        # Leaves on their way into TensorFlow, by the number of the call.
        self._leaves: dict[int, tuple[Any, ...]] = {}
        self._calls = itertools.count()
        number = tf.TensorSpec([], tf.int64)
        made = self._tensors if whole else self._cut
        self._function = tf.function(made, input_signature=[number] * 2, autograph=False)

    def __call__(self) -> Generator[Any, None, None]:
        """Yield the elements of an epoch."""
        packed = self._packed()
        try:
            if self._whole:
                yield from (self._call(leaves, 0) for _, leaves in packed)
                return
            for batch in self._batches(packed):
                if not self._single:
                    yield self._element(iter(batch))
                    continue
                for leaves in zip(*map(_single, batch), strict=True):
                    yield self._element(iter(leaves))
        finally:
            packed.close()

    def _batches(self, packed: Packed) -> Iterator[list[tf.Tensor]]:
        """Yield the components of each batch."""
        size, begun, held = self._size, list[list[tf.Tensor]](), 0
        for rows, leaves in packed:
            need = min(rows, size - held) if held else 0
            heads, middles, rests = self._call(leaves, need)
            if need:
                begun.append(heads)
                held += need
            if held == size:
                yield _joined(begun)
                begun, held = [], 0
            for start in range(0, (rows - need) // size, _ELEMENTS):
                some = [_unpacked(middle, start) for middle in middles]
                yield from map(list, zip(*some, strict=True))
            if rest := (rows - need) % size:
                begun, held = [rests], rest
        if held and not self._drop_remainder:
            yield _joined(begun)

    def _call(self, leaves: tuple[Any, ...], need: int) -> Any:
        """Return what the function makes of the leaves of a page."""
        call = next(self._calls)
        self._leaves[call] = leaves
        try:
            with tf.device(_DEVICE):
                return self._function(tf.constant(call, tf.int64), tf.constant(need, tf.int64))
        finally:
            self._leaves.pop(call, None)

    def _tensors(self, call: tf.Tensor, need: tf.Tensor) -> Any:
        """Return the page in the structure of the elements; its leaves are not copied."""
        dtypes = [spec.dtype for spec in self._specs]
        leaves = tf.numpy_function(lambda n: self._leaves.pop(int(n)), [call], dtypes)
        for leaf, spec in zip(leaves, self._specs, strict=True):
            leaf.set_shape(spec.shape)
        if self._form.assembles:
            return self._form.assemble(*leaves, sharing=self._sharing)
        return self._form.assemble(*leaves)

    def _cut(self, call: tf.Tensor, need: tf.Tensor) -> tuple[list[tf.Tensor], ...]:
        """Return the components' first `need` rows, the batches that follow, and the rest."""
        flat = tf.nest.flatten(self._tensors(call, need))
        full = (tf.shape(flat[0], tf.int64)[0] - need) // self._size
        end = need + full * self._size
        middles = [
            tf.reshape(t[need:end], tf.concat([[full, self._size], tf.shape(t, tf.int64)[1:]], 0))
            for t in flat
        ]
        return [t[:need] for t in flat], middles, [t[end:] for t in flat]


def _unpacked(tensor: tf.Tensor, start: int = 0) -> list[tf.Tensor]:
    """Return some slices of a tensor; they share its memory where they are aligned."""
    with tf.device(_DEVICE):
        if len(tensor) > _ELEMENTS:
            tensor = tensor[start : start + _ELEMENTS]
        return tf.raw_ops.Unpack(value=tensor, num=len(tensor))  # type: ignore[no-any-return]


def _single(batch: tf.Tensor) -> Iterator[tf.Tensor]:
    """Yield the slices of a tensor for single elements, which may be kept without the others."""
    found = _unpacked(batch)
    item_bytes = batch.dtype.size * math.prod(batch.shape[1:])
    if item_bytes % _ALIGNED_BYTES or not 0 < item_bytes < _SHARING_BYTES:
        yield from found
        return
    for item in found:
        with tf.device(_DEVICE):
            own = tf.raw_ops.DeepCopy(x=item)
        yield own


def _joined(parts: list[list[tf.Tensor]]) -> list[tf.Tensor]:
    """Return the components of a batch that is made of rows of several pages."""
    if len(parts) == 1:
        return parts[0]
    with tf.device(_DEVICE):
        return [tf.concat(tensors, 0) for tensors in zip(*parts, strict=True)]


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
