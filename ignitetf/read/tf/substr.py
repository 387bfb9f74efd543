"""Turns the bytes of a page into strings and blobs inside TensorFlow, with a custom op.

leaves -> **substr** -> tensors

As a Python object each value costs an object, two copies and the GIL. The op copies it once or, in
batches and if TensorFlow's strings can share their bytes (from 2.21 on), not at all, while Python
receives the next page. It is written in C on TensorFlow's C API for kernels (strings.c).
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tensorflow as tf

from ignitetf._core._native import register_strings
from ignitetf._core.tensorflow import library_in

__all__ = ["LONG_TEXT", "Sharing", "strings_can_share", "substr_op"]

_OP: Final = "IgnitetfSubstr"
# Bytes of a text that is shared where strings can: LONG_TEXT of strings.c.
LONG_TEXT: Final = 1024

# Where TensorFlow versions have kept the header that defines the layout of its strings.
_HEADERS: Final = ("tsl/platform", "xla/tsl/platform", "tensorflow/core/platform")

_lock: Final = threading.Lock()


class Sharing(enum.IntEnum):
    """How long texts are stored if TensorFlow's strings can share: the modes of strings.c.

    A page lives as long as any of its texts, so PAGE is for texts that stay together.
    """

    NOTHING = 0
    TEXT = 1
    PAGE = 2


def substr_op() -> Callable[..., tf.Tensor]:
    """Return the op `substr`, for graphs and eager code.

        substr(first, second, starts, lengths, sharing=Sharing.TEXT)

    Args of the op:
        first: uint8 `[n]`.
        second: uint8 `[m]`; positions continue from `first` into it.
        starts: int64 `[k]`, first byte of each text.
        lengths: int64 `[k]`, in bytes; no text crosses from `first` into `second`.
        sharing: A `Sharing`.

    Returns of the op:
        string `[k]`.

    Raises of the op:
        InvalidArgumentError: A text extends beyond the bytes.
    """
    with _lock:  # two threads must not register the op
        return _substr_op()


@functools.cache
def _substr_op() -> Callable[..., tf.Tensor]:
    if code := register_strings(library_in(tf.sysconfig.get_lib())):
        raise RuntimeError(f"TensorFlow {tf.__version__} does not take the op {_OP}: code {code}")
    return functools.partial(_substr, can_share=strings_can_share())


@functools.cache
def strings_can_share() -> bool:
    """Whether strings of this TensorFlow version can be views with an owner."""
    for folder in _HEADERS:
        header = Path(tf.sysconfig.get_include(), folder, "ctstring_internal.h")
        if header.exists() and "owner_ref" in header.read_text():
            return True
    return False


def _substr(
    first: tf.Tensor,
    second: tf.Tensor,
    starts: tf.Tensor,
    lengths: tf.Tensor,
    sharing: Sharing,
    *,
    can_share: bool,
) -> tf.Tensor:
    mode = tf.constant(sharing if can_share else Sharing.NOTHING, tf.int64)
    inputs = [tf.convert_to_tensor(t) for t in (first, second, starts, lengths)]
    return _eager(*inputs, mode) if tf.executing_eagerly() else _in_graph(*inputs, mode)


def _in_graph(*inputs: tf.Tensor) -> tf.Tensor:
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(_OP, list(inputs), [tf.string]).outputs[0]


_eager: Final = tf.function(
    _in_graph,
    input_signature=[
        *(tf.TensorSpec([None], dtype) for dtype in (tf.uint8, tf.uint8, tf.int64, tf.int64)),
        tf.TensorSpec([], tf.int64),
    ],
    autograph=False,
)
