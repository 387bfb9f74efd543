"""Fail where a ratio has fallen: the newest run of each way against the median of those before.

python benchmarks/check_history.py --bench read

For every night, not for the test suite: what counts is a machine that does nothing else. Runs are
compared on the same machine only. The exit code is 1 where a ratio has fallen by a tenth or more,
or where there is nothing to compare.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from history import HISTORY, load

_FALL = 0.1


@dataclass(frozen=True)
class Change:
    """The newest ratio of a way, beside those before.

    Attributes:
        place: Bench, profile, way and machine.
        ratio: That of the newest run.
        before: Median of the earlier ones.
        runs: Number of earlier runs.
        peak_mib: Peak memory of the newest run; None if it is not known.
    """

    place: tuple[str, str, str, str]
    ratio: float
    before: float
    runs: int
    peak_mib: float | None

    def has_fallen(self, fall: float) -> bool:
        """Whether the ratio is lower than before by this share or more."""
        return self.ratio <= self.before * (1 - fall)

    def __str__(self) -> str:
        """Describe the change in a line."""
        peak = "" if self.peak_mib is None else f", peak {self.peak_mib:,.0f} MiB"
        return (
            f"{': '.join(self.place[:3])}: {self.ratio:g}, before {self.before:g}"
            f" ({self.runs} runs){peak}"
        )


def changes_of(entries: Iterable[dict[str, Any]]) -> list[Change]:
    """Compare the newest run of each way with the earlier ones on the same machine.

    Args:
        entries: Lines of the history, oldest first; those without a ratio are left out.
    """
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["ratio"] is not None:
            place = (entry["bench"], entry["profile"], entry["way"], entry["machine"])
            found.setdefault(place, []).append(entry)
    return [
        Change(
            place,
            newest["ratio"],
            statistics.median(entry["ratio"] for entry in earlier),
            len(earlier),
            newest.get("peak_mib"),
        )
        for place, (*earlier, newest) in found.items()
        if earlier
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Compare, and say what has fallen; the exit code is the result."""
    parser = argparse.ArgumentParser(prog="python benchmarks/check_history.py", description=__doc__)
    parser.add_argument("--history", type=Path, default=HISTORY, help="the file to read")
    parser.add_argument("--bench", action="append", help="only this bench; repeatable")
    parser.add_argument("--fall", type=float, default=_FALL, help="share that is too much")
    args = parser.parse_args(words)
    try:
        entries = load(args.history)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    entries = [entry for entry in entries if args.bench is None or entry["bench"] in args.bench]
    changes = changes_of(entries)
    if not changes:
        print("error: the history has no ratio of two runs on one machine", file=sys.stderr)
        return 1
    fallen = [change for change in changes if change.has_fallen(args.fall)]
    for change in changes:
        print(f"{'FALLEN' if change in fallen else 'ok':6} {change}")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
