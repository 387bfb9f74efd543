"""`igfs://` for TensorFlow's own file operations; importing this module registers it.

**gfile** -> TensorFlow -> igfs.c -> handles -> store

    import ignitetf.fs.gfile
    tf.train.Checkpoint(model=model).save("igfs:///run1/ckpt")

After that these can read and write it: `tf.io.gfile`, checkpoints, SavedModels, Keras `.keras` and
`.weights.h5` files, `tf.summary`, TFRecord and text data sets. TensorFlow allows a scheme to be
registered once in a process; `configure` changes which cluster `igfs:///` refers to.

TensorFlow's plugin is in the native core. `NativeIOUnavailable` is raised if it cannot be used;
fsspec and `ignitetf checkpoint push` do not need it.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from typing import Any, Final

from ignitetf._core import LIBRARY
from ignitetf._core._native import connect_igfs, shut_igfs
from ignitetf._core.tensorflow import library_in
from ignitetf.errors import MissingExtra
from ignitetf.fs import keras_guard
from ignitetf.fs.handles import Handles, require_linux, status_of
from ignitetf.fs.path import NativeIOUnavailable
from ignitetf.fs.store import DEFAULT_NAME
from ignitetf.settings import Settings

__all__ = ["NativeIOUnavailable", "configure", "register"]

_SCHEME: Final = "igfs"
_EXIT_WAIT_MS: Final = 5000  # for calls in progress at exit
_LEAVE_S: Final = 0.02

_handles = Handles()
_registered: list[bool] = []


def configure(settings: Settings | None = None, name: str = DEFAULT_NAME) -> None:
    """Make `igfs:///` refer to another cluster from now on.

    Args:
        settings: Settings of the cluster; None for the default (environment, profile, running
            embedded node).
        name: Name of the file system there.
    """
    _handles.configure(settings, name)


def register() -> None:
    """Register `igfs://` with TensorFlow; importing this module has already done so.

    Raises:
        NativeIOUnavailable: The native part is not available on this machine.
        MissingExtra: TensorFlow is not installed.
    """
    if _registered:
        return
    require_linux()
    # Exit handlers run in reverse order: registered before TensorFlow's, ours runs after them.
    atexit.register(_at_exit)
    try:
        import tensorflow as tf
    except ImportError as error:
        atexit.unregister(_at_exit)
        raise MissingExtra.of("igfs:// in TensorFlow needs it", "tensorflow", error) from error
    if _SCHEME in _schemes(tf):
        atexit.unregister(_at_exit)
        raise NativeIOUnavailable("another plugin has registered igfs:// with TensorFlow")
    try:
        connect_igfs(_handles, status_of, _SCHEME, library_in(tf.sysconfig.get_lib()))
    except ValueError as error:
        raise NativeIOUnavailable(str(error)) from error
    _registered.append(True)
    try:
        tf.experimental.register_filesystem_plugin(str(LIBRARY))
    except tf.errors.OpError as error:
        raise NativeIOUnavailable(
            f"TensorFlow {tf.__version__} rejects the plugin: {error.message}"
        ) from error
    keras_guard.install()
    _refuse_updates()


def _refuse_updates() -> None:
    """Refuse `r+`, `w+` and `a+` when a file is opened, because TensorFlow hides them from us.

    It would truncate for `r+`, and a read before the flush would return the old content.
    """
    import tensorflow as tf
    from tensorflow.python.lib.io import file_io

    begin = file_io.FileIO.__init__

    @functools.wraps(begin)
    def checked(self: Any, name: Any, mode: str, *args: Any, **kwargs: Any) -> None:
        if "+" in mode and os.fsdecode(name).startswith(f"{_SCHEME}://"):
            raise tf.errors.UnimplementedError(
                None,
                None,
                f"{os.fsdecode(name)}: mode {mode!r}: files of {_SCHEME}:// are read, or written "
                "from their beginning, or appended to; open them once for each",
            )
        begin(self, name, mode, *args, **kwargs)

    file_io.FileIO.__init__ = checked


def _schemes(tf: Any) -> list[str]:
    schemes = tf.io.gfile.get_registered_schemes()
    return [s.decode() if isinstance(s, bytes) else str(s) for s in schemes]


def _at_exit() -> None:
    """Publish the content of open files, then block calls into the exiting interpreter."""
    try:
        _handles.flush_all()
    except Exception as error:
        os.write(2, f"igfs: not all files could be written at exit: {error}\n".encode())
    if _registered and (left := shut_igfs(_EXIT_WAIT_MS)):
        os.write(2, f"igfs: {left} calls still running at exit\n".encode())
    if threading.active_count() > 1:
        # Give threads whose call has ended the time to leave the C++ code of TensorFlow.
        time.sleep(_LEAVE_S)


register()
