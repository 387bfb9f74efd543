"""Logs of a node's members: their last lines, and why one failed or has ended."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ignitetf.errors import NodeError
from ignitetf.local.state import Member, all_states

__all__ = [
    "cause_of_end",
    "ended_at",
    "failure_cause",
    "follow",
    "last_lines",
    "log_tail",
    "main_log",
    "member_directories",
]

_TAIL_BYTES = 256 << 10
_FOLLOW_POLL_S = 0.2
_FULL_DISK = re.compile(
    r"No space left on device|a fault occurred in an unsafe memory access operation"
)
_CAUSES = tuple(
    re.compile(rf"(?:{pattern})[^\n]*")
    for pattern in (
        "Address already in use|Port is already in use|BindException",
        "Could not reserve enough space|insufficient memory",
        "Could not create the Java Virtual Machine|Unrecognized option",
    )
)
_NOISE = re.compile(r"^\s*(?:at |\.\.\. \d+ more|Caused by: *$|>>>)|^\s*$|^\s*\^--|^Suppressed:")
# Log lines of a node that ends itself, and of one that a signal ends. The log also has errors of
# single requests.
_FATAL = re.compile(r"Critical system error detected|JVM will be halted|A fatal error has been")
_ERROR = re.compile(r"failureCtx=[^\n]*?\berr=(?:class )?[\w.$]+: ([^\n\[\]]+)")
_STOPPED = "Invoking shutdown hook"
_CAUSED_BY = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)


def main_log(directory: Path) -> Path:
    """Return the newest log file that Ignite writes in a member's folder."""
    return directory / "log" / "ignite-0.log"


def log_tail(directory: Path, lines: int = 25) -> str:
    """Return the last lines of a member's output and of its log."""
    return "\n".join(
        "\n".join([f"== {path}", *text.splitlines()[-lines:]])
        for path in (directory / "out.log", main_log(directory))
        if (text := _end(path))
    )


def last_lines(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, from its last 256 KiB at most."""
    return _end(path).splitlines()[-lines:] if lines else []


def member_directories(node: Path) -> list[Path]:
    """Return the folders of the members that were started last.

    Raises:
        NodeError: The node was never started.
    """
    found = sorted(log.parent for log in node.glob("*/out.log"))
    if not found:
        raise NodeError(
            f"node {node.name!r} has no logs, it was never started",
            hint="see 'ignitetf node status --all' for the names",
        )
    return found


def failure_cause(directory: Path) -> str:
    """Return the line that best explains why a start failed; empty if nothing was written."""
    text = _ends(directory)
    if _FULL_DISK.search(text):
        return _full_disk(directory)
    for pattern in _CAUSES:
        if found := pattern.search(text):
            return found[0].strip()
    return _last_cause(text)


def _end_cause(directory: Path) -> str:
    """Return why a started member ended, or that its log gives no reason."""
    text = _ends(directory)
    if _FULL_DISK.search(text):
        return _full_disk(directory)
    if fatal := list(_FATAL.finditer(text)):
        last = text[fatal[-1].start() :]
        return found[1].strip() if (found := _ERROR.search(last)) else _last_cause(last)
    if _STOPPED in text:
        return "it was stopped"
    return "its log gives no reason, so it was killed; Linux does this when memory runs out"


def _ends(directory: Path) -> str:
    return _end(directory / "out.log") + "\n" + _end(main_log(directory))


def _full_disk(directory: Path) -> str:
    # The pattern includes Java's message for a memory-mapped file on a full disk.
    return f"the disk of {directory} was full"


def _last_cause(text: str) -> str:
    if causes := _CAUSED_BY.findall(text):
        return str(causes[-1]).strip()
    meaningful = [line for line in text.splitlines() if not _NOISE.search(line)]
    return meaningful[-1].strip() if meaningful else ""


def follow(path: Path, lines: int) -> Iterator[str]:
    """Yield the last lines of a file, then each new line as it is written, without end.

    After a log rotation this continues with the new file from its beginning.
    """
    yield from last_lines(path, lines)
    position, identity = _position(path)
    rest = b""
    while True:
        time.sleep(_FOLLOW_POLL_S)
        size, current = _position(path)
        if size < position or current != identity:
            position, identity, rest = 0, current, b""
        try:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
        except FileNotFoundError:
            continue
        position += len(data)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")


def _position(path: Path) -> tuple[int, int]:
    """Return size and identity (inode) of the file; zeros if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_ino


def _end(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


# With less free space Ignite cannot continue: it writes 64 MB at once.
_FULL_BYTES = 4 << 20


def ended_at(address: str) -> str | None:
    """Describe the end of the embedded node at this address; None if no ended node is known.

    A stopped node has no state file any more; a node that ended by itself still has one.
    """
    for state in all_states():
        for member in state.members:
            if member.address == address and state.phase == "running" and not member.alive:
                return f"node {state.name!r} has ended: {cause_of_end(member)}"
    return None


def cause_of_end(member: Member) -> str:
    """Return the best explanation of why a member ended."""
    directory = Path(member.directory)
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return f"its folder {directory} was removed"
    # Checked before the log, because the log cannot be written on a full disk.
    if free < _FULL_BYTES:
        return f"the disk of {directory} is full"
    return _end_cause(directory)
