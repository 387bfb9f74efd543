"""Compiles the native core, with a C compiler of this machine or with Zig's, which is a wheel.

The core needs a C library, and no headers of Python: `ignitetf/_core/abi3.h` stands for them. One
command makes it, and one file serves every Python from 3.11 on.

    python _build/compiling.py

builds it anew beside the sources of a checkout, after a change of a C file.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError

__all__ = [
    "CORE",
    "NAME",
    "ZIG",
    "BuildCore",
    "CannotCompile",
    "build",
    "command",
    "compiler",
    "headers",
    "refresh",
    "sources",
]

ROOT: Final = Path(__file__).parents[1]
CORE: Final = Path("ignitetf", "_core")
NAME: Final = "ignitetf._core._native"
# The package that brings a compiler.
ZIG: Final = "ziglang>=0.13"
_FLAGS: Final = (
    "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-Werror=implicit-function-declaration",
)  # fmt: skip
_OPTIMIZED: Final = ("-O3", "-DNDEBUG")
# Zig makes code for this exact processor by default, but a wheel may go to another.
_ZIG: Final = (sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline", "-fno-sanitize=undefined")
_TRIAL: Final = "#include <pthread.h>\n#include <stdlib.h>\nvoid *ignitetf(void) { return malloc(1); }\n"
_LIMIT_S: Final = 600


class CannotCompile(BaseError):  # setuptools prints such errors without a traceback
    """The native core cannot be compiled here; the message says what to do."""


def sources() -> list[str]:
    """Return the C files of the core, relative to the root of the project."""
    found = [(CORE / path.name).as_posix() for path in (ROOT / CORE).glob("*.c")]
    return sorted(found)


def headers() -> list[str]:
    """Return the C files that others include."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("ignitetf/*/*.h"))


def compiler() -> list[str] | None:
    """Return the beginning of the command that compiles C: `CC`, cc, gcc, clang, or Zig's.

    `CC` is taken as it is. Of the others, the first that finds the headers of a C library: on macOS
    `cc` may be there only to say what to install, and on Debian gcc comes without those headers.
    """
    if given := os.environ.get("CC"):
        return shlex.split(given)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) is not None and _works([name]):
            return [name]
    return list(_ZIG) if importlib.util.find_spec("ziglang") is not None else None


def command(*words: str | Path) -> list[str]:
    """Return a command that makes a shared object.

    Args:
        words: What is of this one: flags, `-o` and the target, C files.

    Raises:
        CannotCompile: There is no compiler, or this is not a system for which there is a core.
    """
    if sys.platform == "win32" or sys.byteorder == "big":
        raise CannotCompile(
            "ignitetf is for Linux and macOS on little-endian processors; hint: on Windows, use "
            "the Windows Subsystem for Linux"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotCompile(
            "ignitetf needs a Python with the global interpreter lock: one without it has no "
            "stable ABI; hint: use the usual build of this version"
        )
    if (found := compiler()) is None:
        raise CannotCompile(
            "there is no C compiler (cc, gcc or clang) with the headers of a C library; hint: "
            f"install one (for example 'apt install gcc libc6-dev'), or pip install '{ZIG}'"
        )
    ours = [*found, *_FLAGS, "-shared"]
    if sys.platform == "darwin":  # Python's functions are those of the process
        ours += ["-undefined", "dynamic_lookup", *shlex.split(os.environ.get("ARCHFLAGS", ""))]
    given = [word for name in ("CFLAGS", "LDFLAGS") for word in os.environ.get(name, "").split()]
    return [*ours, *given, *map(str, words), "-lpthread", "-ldl"]


def build(target: Path) -> None:
    """Compile the core; the target appears complete or not at all.

    Raises:
        CannotCompile: See `command`, or the compiler failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".core-") as folder:
        made = Path(folder, target.name)
        files = [ROOT / source for source in sources()]
        _run(command(*_OPTIMIZED, "-o", made, *files), Path(folder, "zig"))
        made.replace(target)


def beside_the_sources() -> Path:
    """Return where the core of a checkout is."""
    return ROOT / CORE / f"{NAME.rpartition('.')[2]}.abi3.so"


def refresh() -> None:
    """Compile the core of a checkout anew if it is older than one of its files."""
    target = beside_the_sources()
    files = [ROOT / name for name in (*sources(), *headers())]
    if target.exists() and target.stat().st_mtime < max(file.stat().st_mtime for file in files):
        build(target)


class BuildCore(build_ext):
    """Compile the core in one way, whatever flags this Python was compiled with."""

    def build_extension(self, ext):  # noqa: D102
        build(Path(self.get_ext_fullpath(ext.name)).resolve())


def _run(words: list[str], cache: Path) -> None:
    environment = {
        **os.environ,
        # Zig caches the C library that it compiles (50 MB).
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
    }
    said = shlex.join(words)
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(f"the C compiler does not run: {error}; command: {said}") from error
    if done.returncode:
        raise CannotCompile(f"the C compiler failed: {done.stderr.strip()}; command: {said}")


def _works(beginning: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, "trial.c")
        trial.write_text(_TRIAL, encoding="ascii")
        words = [*beginning, "-shared", "-fPIC", "-o", str(trial.with_suffix(".so")), str(trial)]
        try:
            _run(words, Path(folder, "zig"))
        except CannotCompile:
            return False
    return True


if __name__ == "__main__":
    build(beside_the_sources())
