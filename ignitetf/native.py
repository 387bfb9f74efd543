"""Small parts in C: where their shared objects come from.

In this order: beside the source (a wheel built with a compiler), the user's cache folder, a C
compiler on this machine (0.3 s, once for each version of the source). They need no Python header
and link nothing but libc, so one build serves every Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["NotBuilt", "native_library", "shared_object", "tensorflow_library"]

log = logging.getLogger(__name__)

_FLAGS: Final = ("-std=c11", "-fPIC", "-shared", "-fvisibility=hidden")


class NotBuilt(Exception):
    """A native part cannot be had; `hint` tells what would help, where something would."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def shared_object(source: Path, optimize: str) -> Path:
    """The shared object of a C file for this machine, built when it has to be.

    Args:
        source: The C file.
        optimize: Flag for the compiler, such as `-O2`.

    Raises:
        NotBuilt: There is no compiler, it failed, or its work cannot be stored.
    """
    if (built := source.with_suffix(".so")).exists():
        return built
    if sys.platform == "win32" or sys.byteorder == "big":
        raise NotBuilt("native parts are for POSIX systems and little-endian processors")
    words = " ".join((platform.machine(), *_FLAGS, optimize))
    key = hashlib.sha256(source.read_bytes() + words.encode()).hexdigest()[:16]
    cached = _cache_folder() / f"{source.stem.lstrip('_')}-{key}.so"
    if not cached.exists():
        _compile(source, cached, optimize)
    return cached


def native_library(source: Path, optimize: str) -> ctypes.CDLL | None:
    """The loaded shared object of a C file, as `shared_object`; None where it cannot be had."""
    try:
        return ctypes.CDLL(str(shared_object(source, optimize)))
    except (NotBuilt, OSError) as error:
        log.debug("%s is done without: %s", source.name, error)
        return None


def tensorflow_library(folder: str) -> ctypes.CDLL:
    """The library with TensorFlow's C API, which TensorFlow loads without showing its symbols.

    Args:
        folder: `tf.sysconfig.get_lib()`.

    Raises:
        NotBuilt: It is not there.
    """
    for pattern in ("libtensorflow_framework.so*", "libtensorflow_cc.so*"):
        if found := sorted(Path(folder).glob(pattern)):
            return ctypes.CDLL(str(found[0]))
    raise NotBuilt(f"no libtensorflow_framework in {folder}")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ignitetf"


def _compile(source: Path, target: Path, optimize: str) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise NotBuilt(
            "there is no C compiler (cc, gcc or clang) to build it",
            hint="install one (for example 'apt install gcc libc6-dev')",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise NotBuilt(
            f"it cannot be stored in {target.parent}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    os.close(handle)
    command = [*shlex.split(compiler), *_FLAGS, optimize, "-o", temporary, str(source)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[0]
            raise NotBuilt(f"the C compiler failed: {reason}")
        # Two processes may build at once; each leaves a whole file.
        Path(temporary).replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"the C compiler failed: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
