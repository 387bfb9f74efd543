"""Draw the history: ratios over commits, a panel for each profile, a line for each way.

python benchmarks/plot.py rates.png --bench read --profile mnist
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from history import HISTORY, load
from matplotlib import colormaps
from matplotlib.figure import Figure

Panel = tuple[str, str, str]  # bench, profile, machine
Lines = dict[str, dict[str, float]]  # ratio by way and commit

_WIDTH_INCHES = 9.0
_PANEL_INCHES = 3.6
_DPI = 120


def panels_of(entries: Iterable[dict[str, Any]]) -> dict[Panel, Lines]:
    """Ratios by panel, way and commit, in the order of the history.

    Ratios of several runs of one commit become their median; figures without a ratio are left out.
    Machines have panels of their own: their ratios differ, too.
    """
    found: dict[Panel, dict[str, dict[str, list[float]]]] = {}
    for entry in entries:
        if entry["ratio"] is not None:
            panel = (entry["bench"], entry["profile"], entry["machine"])
            line = found.setdefault(panel, {}).setdefault(entry["way"], {})
            line.setdefault(entry["commit"], []).append(entry["ratio"])
    return {
        panel: {
            way: {commit: statistics.median(ratios) for commit, ratios in line.items()}
            for way, line in lines.items()
        }
        for panel, lines in found.items()
    }


def draw(panels: dict[Panel, Lines], commits: Sequence[str], path: Path) -> None:
    """Write the PNG.

    Args:
        panels: As `panels_of` returns them.
        commits: All commits, oldest first.
        path: Where to.
    """
    size = (_WIDTH_INCHES, _PANEL_INCHES * len(panels))
    figure = Figure(figsize=size, layout="constrained", dpi=_DPI)
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    place = {commit: number for number, commit in enumerate(commits)}
    for axis, ((bench, profile, machine), lines) in zip(axes, panels.items(), strict=True):
        # The usual ten colours are fewer than the ways of reading.
        axis.set_prop_cycle(color=colormaps["tab20"].colors)
        for way, line in lines.items():
            at = [place[commit] for commit in line]
            axis.plot(at, list(line.values()), marker="o", markersize=3, label=way)
        axis.set_title(f"{bench}: {profile} ({machine})", fontsize=9, loc="left")
        axis.set_xticks(range(len(commits)), commits, rotation=45, ha="right", fontsize=7)
        axis.set_xlim(-0.5, len(commits) - 0.5)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("ratio", fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def main(words: Sequence[str] | None = None) -> int:
    """Draw what was asked for; the exit code is the result."""
    parser = argparse.ArgumentParser(prog="python benchmarks/plot.py", description=__doc__)
    parser.add_argument("png", type=Path, help="the file to write")
    parser.add_argument("--history", type=Path, default=HISTORY, help="the file to read")
    for name in ("bench", "profile", "way"):
        parser.add_argument(f"--{name}", action="append", help=f"only this {name}; repeatable")
    args = parser.parse_args(words)
    try:
        entries = load(args.history)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in ("bench", "profile", "way"):
        wanted = getattr(args, name)
        entries = [entry for entry in entries if wanted is None or entry[name] in wanted]
    panels = panels_of(entries)
    if not panels:
        print("error: the history has no such ratio", file=sys.stderr)
        return 1
    commits = list(dict.fromkeys(entry["commit"] for entry in entries))
    draw(panels, commits, args.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
