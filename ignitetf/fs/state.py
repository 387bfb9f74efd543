"""The state file `checkpoint`: TensorFlow's CheckpointState as text, which lists the checkpoints.

push, pull, checkpoints -> **state**

Prefixes are relative to the copied folder; `base` is the directory of the state file in it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Container
from typing import Final

__all__ = ["base_of", "state_names", "state_of"]

_LINE: Final = re.compile(
    r'(?P<field>model_checkpoint_path|all_model_checkpoint_paths): "(?P<path>(?:[^"\\]|\\.)*)"'
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS: Final = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip
_LATEST: Final = "model_checkpoint_path"
_TIMES: Final = "all_model_checkpoint_timestamps"


def base_of(state: str) -> str:
    """Return the directory of a state file, relative like its name."""
    return state.rpartition("/")[0]


def state_names(text: str, base: str = "") -> tuple[str | None, list[str]]:
    """Return the prefixes of the latest checkpoint and of all that a state names, oldest first."""
    latest, every = None, list[str]()
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            if found["field"] == _LATEST:
                latest = _prefix(found["path"], base)
            else:
                every.append(_prefix(found["path"], base))
    if latest is not None and latest not in every:
        every.append(latest)
    return latest, every


def state_of(text: str, base: str, there: Container[str]) -> str | None:
    """Return the state with only the checkpoints in `there`, by paths relative to its directory.

    If the latest checkpoint is not among them, the newest of them takes its place.

    Returns:
        The text; None if no checkpoint is left.
    """
    lines = text.splitlines()
    latest, every = state_names(text, base)
    kept = [name for name in every if name in there]
    if not kept:
        return None
    if latest not in there:
        latest = kept[-1]
    out, numbers = [], {"": -1, _TIMES: -1}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found and found["field"] == _LATEST:
            line = f'{_LATEST}: "{_relative(latest or "", base)}"'
        elif found:
            numbers[""] += 1
            if _prefix(found["path"], base) not in there:
                continue
            line = f'{found["field"]}: "{_relative(_prefix(found["path"], base), base)}"'
        elif line.startswith(f"{_TIMES}:"):
            # There is one timestamp per path, in the same order.
            numbers[_TIMES] += 1
            number = numbers[_TIMES]
            if number < len(every) and every[number] not in there:
                continue
        out.append(line)
    return "\n".join(out) + "\n"


def _prefix(path: str, base: str) -> str:
    """Resolve a path; an absolute one means a checkpoint beside the state, as folders get moved."""
    plain = _ESCAPE.sub(_meant, path.encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )
    own = plain.rpartition("/")[2] if plain.startswith("/") or "://" in plain else plain
    return posixpath.normpath(posixpath.join(base, own))


def _relative(prefix: str, base: str) -> str:
    plain = posixpath.relpath(prefix, base or ".")
    return "".join(_quoted(byte) for byte in plain.encode("utf-8", "surrogateescape"))


def _meant(escape: re.Match[bytes]) -> bytes:
    """Return the bytes of an escape; one that protobuf does not know stays as it is."""
    octal, hexadecimal, code, letter = escape.groups()
    if octal or hexadecimal:
        return bytes([int(octal or hexadecimal, 8 if octal else 16) & 255])
    if code:
        with contextlib.suppress(ValueError, OverflowError):
            return chr(int(code[1:], 16)).encode()
        return escape[0]
    return _LETTERS.get(letter, escape[0])


def _quoted(byte: int) -> str:
    """Write a byte as protobuf's text format does."""
    if byte in b'"\\':
        return f"\\{chr(byte)}"
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
