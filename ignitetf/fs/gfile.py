"""`igfs://` for TensorFlow's own file operations; importing this module registers it.

TensorFlow -> _gfile.c -> **gfile** (ctypes callbacks) -> handles -> store

    import ignitetf.fs.gfile
    tf.train.Checkpoint(model=model).save("igfs:///run1/ckpt")

After that these can read and write it: `tf.io.gfile`, checkpoints, SavedModels, Keras `.keras` and
`.weights.h5` files, `tf.summary`, TFRecord and text data sets. TensorFlow allows a scheme to be
registered once in a process; `configure` changes which cluster `igfs:///` refers to.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ignitetf.fs import keras_guard
from ignitetf.fs.handles import Code, Handles, code_of
from ignitetf.fs.oserrors import NativeIOUnavailable
from ignitetf.fs.shim import shim_path
from ignitetf.fs.store import DEFAULT_NAME
from ignitetf.native import NotBuilt, tensorflow_library
from ignitetf.settings import Settings

__all__ = ["SCHEME", "NativeIOUnavailable", "configure", "register"]

SCHEME: Final = "igfs"
_EXIT_WAIT_MS: Final = 5000  # for calls that are under way at exit
_LEAVE_S: Final = 0.02

_int = ctypes.c_int
_int_p = ctypes.POINTER(ctypes.c_int)
_i64 = ctypes.c_int64
_i64_p = ctypes.POINTER(ctypes.c_int64)
_size = ctypes.c_size_t
_text = ctypes.c_char_p
_address = ctypes.c_void_p  # a c_char_p argument would arrive as a copy, cut at the first NUL
# Callbacks return nothing: their value is undefined if the Python function raises. See _gfile.c.
_OPEN = ctypes.CFUNCTYPE(None, _text, _text, _i64_p, _address, _size, _int_p)
_READ = ctypes.CFUNCTYPE(
    None, _i64, ctypes.c_uint64, _size, _address, _i64_p, _address, _size, _int_p
)
_WRITE = ctypes.CFUNCTYPE(None, _i64, _address, _size, _address, _size, _int_p)
_CONTROL = ctypes.CFUNCTYPE(None, _i64, _int, _i64_p, _address, _size, _int_p)
_PATH = ctypes.CFUNCTYPE(None, _int, _text, _text, _i64_p, _address, _size, _int_p)
_LIST = ctypes.CFUNCTYPE(
    None, _int, _text, ctypes.POINTER(_address), ctypes.POINTER(_size), _address, _size, _int_p
)
_PYTHON_FUNCTIONS = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyGILState_Check",
    "PyGILState_GetThisThreadState",
    "PyErr_Fetch",
    "PyErr_Restore",
)
_PATH_STAT, _PATH_RENAME, _PATH_COPY = 1, 7, 8
_TELL, _FLUSH, _CLOSE, _FREE = range(4)


class _Callbacks(ctypes.Structure):
    """Mirrors the struct `Callbacks` in _gfile.c, member by member."""

    _fields_ = (
        ("set_status", _address),
        ("open", _OPEN),
        ("read", _READ),
        ("write", _WRITE),
        ("control", _CONTROL),
        ("path", _PATH),
        ("list", _LIST),
        *((name, _address) for name in _PYTHON_FUNCTIONS),
    )


_handles = Handles()
_kept: list[Any] = []


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
    """
    if _kept:
        return
    path = shim_path()
    # Exit handlers run in reverse order: registered before TensorFlow's, ours runs after them.
    atexit.register(_at_exit)
    import tensorflow as tf

    if SCHEME in _schemes(tf):
        atexit.unregister(_at_exit)
        raise NativeIOUnavailable("another plugin has registered igfs:// with TensorFlow")
    library = _load(path)
    try:
        framework = tensorflow_library(tf.sysconfig.get_lib())
    except NotBuilt as error:
        raise NativeIOUnavailable(str(error)) from error
    callbacks = _callbacks(framework, library)
    _kept.extend([library, framework, callbacks])
    if library.igfs_configure(ctypes.byref(callbacks), SCHEME.encode()) != 0:
        raise NativeIOUnavailable("igfs:// was set up before in this process")
    try:
        tf.experimental.register_filesystem_plugin(str(path))
    except tf.errors.OpError as error:
        raise NativeIOUnavailable(
            f"TensorFlow {tf.__version__} does not take the plugin: {error.message}"
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
        if "+" in mode and os.fsdecode(name).startswith(f"{SCHEME}://"):
            raise tf.errors.UnimplementedError(
                None,
                None,
                f"{os.fsdecode(name)}: mode {mode!r}: files of {SCHEME}:// are read, or written "
                "from their beginning, or appended to; open them once for each",
            )
        begin(self, name, mode, *args, **kwargs)

    file_io.FileIO.__init__ = checked


def _schemes(tf: Any) -> list[str]:
    schemes = tf.io.gfile.get_registered_schemes()
    return [s.decode() if isinstance(s, bytes) else str(s) for s in schemes]


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeIOUnavailable(
            f"the native part {path} cannot be loaded: {error}",
            hint="is its folder mounted without execution? set XDG_CACHE_HOME to another",
        ) from error
    library.igfs_allocate.restype = ctypes.c_void_p
    library.igfs_allocate.argtypes = [_size]
    library.igfs_shut.restype = ctypes.c_long
    return library


def _at_exit() -> None:
    """Publish what open files hold, then block calls into the interpreter that is going away."""
    try:
        _handles.flush_all()
    except Exception as error:
        os.write(2, f"igfs: not all files could be written at exit: {error}\n".encode())
    if _kept and (left := _kept[0].igfs_shut(_EXIT_WAIT_MS)):
        os.write(2, f"igfs: {left} calls still under way at exit\n".encode())
    if threading.active_count() > 1:
        time.sleep(_LEAVE_S)  # lets threads whose call has ended leave TensorFlow's C++


def _view(address: int | None, size: int) -> memoryview:
    """Return a view of TensorFlow's memory, valid only during the call."""
    if not address or not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _fail(error: BaseException, buffer: int, size: int, verdict: Any) -> None:
    if isinstance(error, KeyboardInterrupt):
        return  # the verdict stays "interrupted"
    text = (str(error) or type(error).__name__).encode("utf-8", "replace")[: size - 1] + b"\0"
    ctypes.memmove(buffer, text, len(text))
    verdict[0] = code_of(error) + 1


def _callbacks(framework: ctypes.CDLL, library: ctypes.CDLL) -> _Callbacks:
    functions = [getattr(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS]
    return _Callbacks(
        ctypes.cast(framework.TF_SetStatus, ctypes.c_void_p).value,
        _OPEN(_on_open),
        _READ(_on_read),
        _WRITE(_on_write),
        _CONTROL(_on_control),
        _PATH(_on_path),
        _LIST(_on_list(library)),
        *(ctypes.cast(function, ctypes.c_void_p).value for function in functions),
    )


# A callback sets its verdict last, right after the work: until then it reads "interrupted".


def _on_open(path: bytes, mode: bytes, handle: Any, buffer: int, size: int, verdict: Any) -> None:
    try:
        handle[0] = _handles.open(os.fsdecode(path), mode.decode())
        verdict[0] = Code.OK + 1
    except BaseException as error:
        _fail(error, buffer, size, verdict)


def _on_read(
    handle: int,
    offset: int,
    count: int,
    target: int,
    got: Any,
    buffer: int,
    size: int,
    verdict: Any,
) -> None:
    try:
        done = _handles.read(handle, offset, _view(target, count))
        got[0] = done
        verdict[0] = (Code.OK if done == count else Code.OUT_OF_RANGE) + 1
    except BaseException as error:
        _fail(error, buffer, size, verdict)


def _on_write(handle: int, data: int, count: int, buffer: int, size: int, verdict: Any) -> None:
    try:
        _handles.write(handle, _view(data, count))
        verdict[0] = Code.OK + 1
    except BaseException as error:
        _fail(error, buffer, size, verdict)


def _on_control(handle: int, what: int, out: Any, buffer: int, size: int, verdict: Any) -> None:
    try:
        if what == _TELL:
            out[0] = _handles.tell(handle)
        elif what == _FLUSH:
            _handles.flush(handle)
        elif what == _CLOSE:
            _handles.close(handle)
        else:
            _handles.free(handle)
        verdict[0] = Code.OK + 1
    except BaseException as error:
        _fail(error, buffer, size, verdict)


_ON_ONE_PATH: tuple[Callable[[str], None] | None, ...] = (
    _handles.exists,
    None,
    _handles.mkdir,
    _handles.makedirs,
    _handles.unlink,
    _handles.rmdir,
    _handles.rmtree,
)


def _on_path(
    operation: int, a: bytes, b: bytes | None, out: Any, buffer: int, size: int, verdict: Any
) -> None:
    try:
        path = os.fsdecode(a)
        if operation == _PATH_STAT:
            out[0], out[1], out[2] = _handles.stat(path)
        elif operation == _PATH_RENAME:
            _handles.rename(path, os.fsdecode(b or b""))
        elif operation == _PATH_COPY:
            _handles.copy(path, os.fsdecode(b or b""))
        elif (work := _ON_ONE_PATH[operation]) is not None:
            work(path)
        verdict[0] = Code.OK + 1
    except BaseException as error:
        _fail(error, buffer, size, verdict)


def _on_list(library: ctypes.CDLL) -> Callable[..., None]:
    def on_list(
        glob: int, path: bytes, block: Any, length: Any, buffer: int, size: int, verdict: Any
    ) -> None:
        try:
            look = _handles.glob if glob else _handles.children
            data = b"".join(os.fsencode(name) + b"\0" for name in look(os.fsdecode(path)))
            memory = library.igfs_allocate(len(data) + 1)
            if not memory:
                raise MemoryError
            ctypes.memmove(memory, data, len(data))
            block[0], length[0] = memory, len(data)
            verdict[0] = Code.OK + 1
        except BaseException as error:
            _fail(error, buffer, size, verdict)

    return on_list


register()
