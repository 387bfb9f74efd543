"""The history of measurements: a JSON object a line, appended by `run.py`, drawn by `plot.py`."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

HISTORY = Path(__file__).with_name("history.jsonl")
_ROOT = Path(__file__).parents[1]
_PACKAGES = ("ignitetf", "numpy", "pyignite", "tensorflow", "tensorflow-cpu", "jax", "torch")


@dataclass(frozen=True)
class Figure:
    """What one way came to in one run.

    Attributes:
        bench: The sub-command of `run.py`.
        profile: What was read or written.
        way: How.
        median: Median of the rounds, in `unit`.
        unit: Unit of the median.
        ratio: Median of the ratios of the rounds to the reference of the bench, which is measured
            in the same rounds; None where there is none.
        rounds: Rounds that counted.
    """

    bench: str
    profile: str
    way: str
    median: float
    unit: str
    ratio: float | None
    rounds: int


def surroundings(ignite: str) -> dict[str, Any]:
    """Date, commit, machine and versions of a run that begins.

    Args:
        ignite: Version of the cluster.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "versions": {"ignite": ignite, "python": platform.python_version()} | _installed(),
    }


def peak_mib() -> float | None:
    """Peak memory of this process so far in MiB; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


def append(path: Path, around: dict[str, Any], figures: Iterable[Figure]) -> None:
    """Add a line for each figure; all are written at once."""
    lines = [json.dumps(around | asdict(figure), ensure_ascii=False) for figure in figures]
    with path.open("a", encoding="utf-8") as out:
        out.write("".join(f"{line}\n" for line in lines))


def load(path: Path) -> list[dict[str, Any]]:
    """The lines, oldest first.

    Raises:
        ValueError: A line is no JSON object; the message names it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error
        if not isinstance(entry, dict):
            raise ValueError(f"{path.name}, line {number}: not an object")
        found.append(entry)
    return found


def _commit() -> str:
    """The commit of the checkout, with a `+` where tracked files differ from it."""
    commit = _git("rev-parse", "--short=10", "HEAD").strip()
    # Lines of the runs before this one are no change of the code.
    changed = _git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/history.jsonl")
    return f"{commit}+" if changed else commit


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def _machine() -> str:
    """What decides on rates, without the name of the machine."""
    memory = round(psutil.virtual_memory().total / 2**30)
    return f"{platform.system()} {_processor()}, {os.cpu_count()} cores, {memory} GiB"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    for line in facts.read_text(encoding="utf-8").splitlines() if facts.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
