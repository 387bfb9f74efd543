"""Finds or builds the shared objects of ignitetf's small parts in C.

They come from the first of: beside the source (in a wheel that setup.py built with a compiler), the
user's cache folder, a C compiler (0.3 s, once per version of the source), which is either this
machine's or Zig's, available as a wheel (the extra `native`). They need no Python headers and link
only libc, so one build serves every Python. A cache folder that another user could change is not
used: each process then builds in a private folder. setup.py loads this module by its path, so it
imports nothing from the package, except where it loads parts.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import importlib.util
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

__all__ = [
    "PARTS",
    "NotBuilt",
    "build",
    "compiler",
    "native_library",
    "shared_object",
    "tensorflow_library",
]

log = logging.getLogger(__name__)

# Every part, relative to the package, with its flag: the loops of the hashes gain from
# vectorization.
PARTS: Final = {
    "wire/_hash.c": "-O3",
    "wire/_rows.c": "-O3",
    "wire/_receive.c": "-O2",
    "wire/_bytes.c": "-O2",
    "read/tf/_substr.c": "-O2",
    "fs/_gfile.c": "-O2",
}
_FLAGS: Final = ("-std=c11", "-fPIC", "-shared", "-fvisibility=hidden")
# Zig targets this exact processor by default, but a cache folder may be on a shared disk.
_ZIG: Final = (sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline", "-fno-sanitize=undefined")


class NotBuilt(Exception):
    """A native part is not available; `hint` says what would help, if anything."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def shared_object(source: Path) -> Path:
    """Return the shared object of a C file for this machine, building it if necessary.

    Args:
        source: The C file, one of `PARTS`.

    Raises:
        NotBuilt: There is no compiler, it failed, or its output cannot be stored.
    """
    from ignitetf.trust import distrust

    if (built := source.with_suffix(".so")).exists():
        return built
    words = " ".join((platform.machine(), *_FLAGS, _optimize(source)))
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    key = hashlib.sha256(b"".join(texts) + words.encode()).hexdigest()[:16]
    folder = _trusted_folder()
    cached = folder / f"{source.stem.lstrip('_')}-{key}.so"
    if distrust(cached):  # somebody put it there before the folder was private
        cached.unlink(missing_ok=True)
    if not cached.exists():
        build(source, cached, folder / "zig")
    return cached


def compiler() -> list[str]:
    """Return the beginning of the command that compiles C: `CC`, cc, gcc, clang, or Zig's.

    Raises:
        NotBuilt: There is none, or this system is not supported.
    """
    if sys.platform == "win32" or sys.byteorder == "big":
        raise NotBuilt("native parts are for POSIX systems and little-endian processors")
    if given := os.environ.get("CC"):
        return shlex.split(given)
    if found := next(filter(shutil.which, ("cc", "gcc", "clang")), None):
        return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return list(_ZIG)
    raise NotBuilt(
        "there is no C compiler (cc, gcc or clang) to build it",
        hint="install one (for example 'apt install gcc libc6-dev'), "
        "or the one that is a wheel: pip install 'ignitetf[native]'",
    )


def native_library(source: Path) -> ctypes.CDLL | None:
    """Load the shared object of a C file (see `shared_object`); None if it is not available."""
    try:
        return ctypes.CDLL(str(shared_object(source)))
    except (NotBuilt, OSError) as error:
        log.debug("%s is done without: %s", source.name, error)
        return None


def tensorflow_library(folder: str) -> ctypes.CDLL:
    """Load the library with TensorFlow's C API, whose symbols TensorFlow's own loading hides.

    Args:
        folder: `tf.sysconfig.get_lib()`.

    Raises:
        NotBuilt: It is missing.
    """
    for pattern in ("libtensorflow_framework.so*", "libtensorflow_cc.so*"):
        if found := sorted(Path(folder).glob(pattern)):
            return ctypes.CDLL(str(found[0]))
    raise NotBuilt(f"no libtensorflow_framework in {folder}")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ignitetf"


def _trusted_folder() -> Path:
    """Return the cache folder, or a private one if another user could change that."""
    from ignitetf.trust import distrust

    folder = _cache_folder()
    return folder if (reason := distrust(folder)) is None else _private_folder(reason)


@functools.cache
def _private_folder(reason: str) -> Path:
    """Make a folder for the parts of this process, in place of a cache folder."""
    from ignitetf.trust import distrust

    log.warning(
        "parts in C in %s are not used, because another user could change them: %s; each process "
        "builds its own; hint: set XDG_CACHE_HOME to a folder of yours", _cache_folder(), reason,
    )  # fmt: skip
    try:
        folder = Path(tempfile.mkdtemp(prefix="ignitetf-"))
    except OSError as error:
        raise NotBuilt(f"there is no folder to build it in: {error.strerror}") from error
    if reason := distrust(folder) or "":
        folder.rmdir()
        raise NotBuilt(f"there is no private folder to build it in: {reason}", hint="set TMPDIR")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a process that was forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _optimize(source: Path) -> str:
    return next(flag for part, flag in PARTS.items() if source.as_posix().endswith(f"/{part}"))


def build(source: Path, target: Path, zig_cache: Path | None = None) -> None:
    """Compile a C file of `PARTS`; the target appears complete or not at all.

    Args:
        source: The C file.
        target: The shared object; its folder is created.
        zig_cache: Where Zig keeps its C library; None for the user's cache folder.

    Raises:
        NotBuilt: There is no compiler, it failed, or its output cannot be stored.
    """
    command = [*compiler(), *_FLAGS, _optimize(source)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise NotBuilt(
            f"it cannot be stored in {target.parent}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    os.close(handle)
    # Zig caches its compiled C library (50 MB); its default folder may not be writable.
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache or _cache_folder() / "zig"), **os.environ}
    try:
        result = subprocess.run(
            [*command, "-o", temporary, str(source)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[0]
            raise NotBuilt(f"the C compiler failed: {reason}")
        # Two processes may build at once; each replaces the target with a complete file.
        Path(temporary).replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"the C compiler failed: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
