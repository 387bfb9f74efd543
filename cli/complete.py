"""Complete live names in bash, zsh and fish, quickly or not at all.

the shell's words -> **complete** -> live -> the shell's form of an answer

Typer completes commands and options. For an argument that names something in the cluster, this
module answers instead, before Typer is imported. If the cluster is slow, it returns no names.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

Kind = Literal["data", "table", "job", "file", "node", "profile"]

__all__ = ["ARGUMENTS", "FLAGS", "VARIABLE", "answer", "wanted"]

VARIABLE: Final = "_IGNITETF_COMPLETE"
# Time limit since the start of the process, including the interpreter's start.
_LIMIT_S: Final = 0.15

# Kinds of names of a command's arguments; the last kind also applies to further arguments.
ARGUMENTS: Final[Mapping[tuple[str, ...], tuple[Kind | None, ...]]] = {
    **{
        (name,): ("data", None)
        for name in ("head", "stats", "preview", "verify", "split", "export")
    },
    **{("cache", name): ("data", None) for name in ("describe", "clear", "drop")},
    **{("table", name): ("table", None) for name in ("describe", "drop")},
    **{(name,): ("job", None) for name in ("describe", "attach", "logs", "stop")},
    **{("fs", name): ("file",) for name in ("ls", "cat", "get", "cp", "mv", "rm", "mkdir", "du")},
    ("fs", "stat"): ("file", None),
    ("fs", "put"): (None, "file"),
    ("checkpoint", "ls"): ("file", None),
    ("checkpoint", "prune"): ("file", None),
    ("checkpoint", "pull"): ("file", None),
    ("checkpoint", "push"): (None, "file"),
    ("profile", "rm"): ("profile", None),
}
_OPTIONS: Final[Mapping[str, Kind]] = {"--node": "node", "--profile": "profile", "--data": "data"}
# Options without a value; all others take the next word.
FLAGS: Final = frozenset((
    "--all", "--debug", "--delete", "--epoch", "--follow", "--force", "--help", "--if-exists",
    "--images", "--long", "--no-images", "--no-tls", "--no-wait", "--overwrite", "--parents",
    "--recount", "--recursive", "--remove", "--tls", "--tls-insecure", "--yes", "-a", "-f", "-l", "-p", "-r",
    "-y",
))  # fmt: skip
_CONNECTION: Final = {
    "--address": "address", "--node": "node", "--profile": "profile", "--username": "username",
    "--password-file": "password_file", "--ca": "ca", "--cert": "cert", "--key": "key",
    "--key-password-file": "key_password_file",
}  # fmt: skip


def answer(environment: Mapping[str, str]) -> bool:
    """Answer a completion request of a shell; return False if Typer must answer it.

    If the cluster does not answer in time, or with an error, the answer is empty.
    """
    shell = environment.get(VARIABLE, "").removeprefix("complete_")
    if (asked := _asked(shell, environment)) is None:
        return False
    words, word = asked
    kind = wanted(words, word)
    if kind is None:
        return False
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return True  # fish asks whether to omit the files of this machine
    try:
        found = _names(kind, word, words)
    except Exception:  # a shell cannot show errors while it completes a word
        found = []
    sys.stdout.write(_formatted(shell, found, environment))
    return True


def _names(kind: Kind, word: str, words: Sequence[str]) -> list[str]:
    """Return the names that begin with a word; exit if the cluster takes too long."""
    if kind == "node":
        from ignitetf.local.state import kept_nodes

        return _beginning(word, kept_nodes())
    if kind == "profile":
        from ignitetf.profiles import profile_names

        return _beginning(word, profile_names())
    # At the time limit the process exits: pending answers would arrive too late.
    alarm = threading.Timer(_LIMIT_S, os._exit, (0,))
    alarm.daemon = True
    alarm.start()
    from ignitetf.cli.live import live_names

    found = live_names(kind, word, _settings(words))
    alarm.cancel()
    return found


def _beginning(word: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.upper().startswith(word.upper()))


def wanted(words: Sequence[str], word: str) -> Kind | None:
    """Return the kind of name that a word completes; None if Typer completes it.

    Args:
        words: The words before it, without the program.
        word: Its letters so far.
    """
    if word.startswith("-"):
        return None
    if words and words[-1] in _OPTIONS:
        return _OPTIONS[words[-1]]
    if words and words[-1] == "--name" and words[0] == "node":
        return "node"
    plain = _arguments(words)
    for size in (2, 1):
        kinds = ARGUMENTS.get(tuple(plain[:size]))
        if kinds is not None and len(plain) >= size and not _takes_value(words):
            return kinds[min(len(plain) - size, len(kinds) - 1)]
    return None


def _arguments(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor their values."""
    found, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = _takes_value((word,))
        else:
            found.append(word)
    return found


def _takes_value(words: Sequence[str]) -> bool:
    last = words[-1] if words else ""
    return last.startswith("-") and "=" not in last and last not in FLAGS


def _asked(shell: str, environment: Mapping[str, str]) -> tuple[list[str], str] | None:
    """Return the words before the cursor, without the program, and the word at it."""
    if shell == "bash":
        words = environment.get("COMP_WORDS", "").split()
        at = int(environment.get("COMP_CWORD", "0"))
        words += [""] * (at + 1 - len(words))
        return _joined(words[1:at], words[at])
    if shell not in ("zsh", "fish"):
        return None
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # an open quote
        return None
    if words and not line.endswith((" ", "\n")):
        return words[:-1], words[-1]
    return words, ""


def _joined(words: list[str], word: str) -> tuple[list[str], str]:
    """Join the words again that bash splits at a colon, as in `igfs:///a`."""
    if word == ":" and words:
        return words[:-1], f"{words[-1]}:"
    if len(words) > 1 and words[-1] == ":":
        return words[:-2], f"{words[-2]}:{word}"
    return words, word


def _settings(words: Sequence[str]) -> Any:
    """Return the connection settings from the options on the line."""
    from ignitetf.settings import Settings

    given: dict[str, Any] = {}
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in _CONNECTION and (equals or index + 1 < len(words)):
            given[_CONNECTION[option]] = value if equals else words[index + 1]
    return Settings.resolve(**given)


def _formatted(shell: str, names: Sequence[str], environment: Mapping[str, str]) -> str:
    if shell == "zsh":
        if not names:
            return ""
        # Single quotes end the text that the shell evaluates; colons start a description.
        safe = (
            name.replace("\\", "\\\\").replace('"', '\\"').replace("'", "''").replace(":", "\\\\:")
            for name in names
        )
        items = "\n".join(f'"{name}"' for name in safe)
        return f"_arguments '*: :(({items}))'"
    if shell == "bash":
        # bash treats the text before a colon as a separate word.
        typed = environment.get("COMP_WORDS", "").split()
        if ":" in typed:
            names = [name.partition(":")[2] if ":" in name else name for name in names]
    return "\n".join(names)
