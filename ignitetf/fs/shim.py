"""Where the native part of the TensorFlow plugin comes from.

In this order: beside this file (a wheel built with a compiler), the user's cache folder, a C
compiler on this machine (0.3 s, once for each version of the source). Without any of them
`NativeIOUnavailable` says so; fsspec and `ignitetf checkpoint push` need none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ignitetf.fs.oserrors import NativeIOUnavailable

__all__ = ["SOURCE", "shim_path"]

SOURCE = Path(__file__).with_name("_gfile.c")
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_HINT = "use fsspec (igfs:// URLs), or 'ignitetf checkpoint push' and 'pull'"


def shim_path() -> Path:
    """The shared object for this machine, built when it has to be.

    Raises:
        NativeIOUnavailable: It cannot be had.
    """
    if sys.platform != "linux":
        raise NativeIOUnavailable(
            f"igfs:// inside TensorFlow needs Linux, this is {platform.system()}", hint=_HINT
        )
    if (built := SOURCE.with_suffix(".so")).exists():
        return built
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + platform.machine().encode() + " ".join(_FLAGS).encode())
    cached = _cache_folder() / f"gfile-{key.hexdigest()[:16]}.so"
    if not cached.exists():
        _compile(cached)
    return cached


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ignitetf"


def _compile(target: Path) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise NativeIOUnavailable(
            "igfs:// inside TensorFlow needs a small native part, and there is no C compiler "
            "(cc, gcc or clang) to build it",
            hint=f"install one (for example 'apt install gcc libc6-dev'), or {_HINT}",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise NativeIOUnavailable(
            f"the native part cannot be stored in {target.parent}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    os.close(handle)
    command = [*shlex.split(compiler), *_FLAGS, "-o", temporary, str(SOURCE)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[0]
            raise NativeIOUnavailable(f"the C compiler failed: {reason}", hint=_HINT)
        # Two processes may build at once; each leaves a whole file.
        Path(temporary).replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeIOUnavailable(f"the C compiler failed: {error}", hint=_HINT) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
