"""Draws the rates of `ignitetf bench read`.

rates -> **plot** -> PNG

Each kind of rows (`Profile`) has a panel with a bar for each way to read them, the fastest on top.
Rates against the number of partitions are drawn as lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ignitetf.bench.read import Rate
from ignitetf.bench.sweep import SWEEP
from ignitetf.errors import ConfigError, MissingExtra

__all__ = ["check_plot", "plot_rates"]

_OURS: Final = "#1f6fb4"
_LIMIT: Final = "#7a7a7a"
_OTHERS: Final = "#d98b2b"
_OUR_WAYS: Final = ("numpy()", "batch(", "single elements")
_WIDTH_INCHES: Final = 8.0
_BAR_INCHES: Final = 0.27
_LINES_INCHES: Final = 4.8
_DPI: Final = 120


def check_plot(path: Path) -> None:
    """Raise an error, before measuring, if the result could not be drawn.

    Raises:
        MissingExtra: matplotlib is not installed.
        ConfigError: The folder does not exist.
    """
    _matplotlib()
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path.parent}: the folder does not exist")


def plot_rates(rates: Sequence[Rate], path: str | Path) -> None:
    """Draw the rates, one panel for each profile, the fastest way on top.

    Args:
        rates: As returned by `bench_read` and `bench_partitions`.
        path: The picture to write: vector graphics for `.svg`, otherwise a PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    new_figure = _matplotlib()
    panels: dict[str, list[Rate]] = {}
    for rate in rates:
        panels.setdefault(rate.profile, []).append(rate)
    heights = [_height(name, panel) for name, panel in panels.items()]
    figure = new_figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained", dpi=_DPI)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axis, (name, panel) in zip(axes[:, 0], panels.items(), strict=True):
        (_lines if name == SWEEP else _bars)(axis, panel)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg" if Path(path).suffix == ".svg" else "png")


def _matplotlib() -> Any:
    """Return the Figure class, used directly because it draws PNG files without a display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib", hint="pip install 'ignitetf[plot]'") from error
    return Figure


def _height(name: str, panel: Sequence[Rate]) -> float:
    return _LINES_INCHES if name == SWEEP else 1.0 + _BAR_INCHES * len(panel)


def _bars(axis: Any, panel: Sequence[Rate]) -> None:
    """Draw rows per second of each way, with the ratio to the bare socket."""
    panel = sorted(panel, key=lambda rate: rate.rows_per_s)
    names = [rate.way for rate in panel]
    bars = axis.barh(names, [r.rows_per_s for r in panel], color=[_colour(r) for r in panel])
    axis.bar_label(bars, [_label(rate) for rate in panel], padding=3, fontsize=7.5)
    axis.tick_params(axis="y", labelsize=8, length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.locator_params(axis="x", nbins=5)
    axis.set_xlim(right=max(r.rows_per_s for r in panel) * 1.35)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    first = panel[0]
    title = f"{first.profile}: {first.rows:,} rows of {first.row_bytes:,} bytes, rows/s (by that of the bare socket)"
    axis.set_title(title, fontsize=9, loc="left")


def _label(rate: Rate) -> str:
    speed = f"{rate.rows_per_s:,.0f}  {rate.mb_per_s:,.0f} MB/s"
    return speed if rate.ratio is None else f"{speed}  ({rate.ratio:.2f})"


def _colour(rate: Rate) -> str:
    if rate.way.startswith("bare socket"):
        return _LIMIT
    return _OURS if rate.way.startswith(_OUR_WAYS) else _OTHERS


def _lines(axis: Any, panel: Sequence[Rate]) -> None:
    """Draw MB/s against the number of partitions, a line for each way and number of nodes."""
    styles = {1: "-", 2: "--", 3: ":"}
    ways = list(dict.fromkeys(rate.way for rate in panel))
    for nodes in sorted({rate.nodes for rate in panel}):
        for number, way in enumerate(ways):
            line = [r for r in panel if r.nodes == nodes and r.way == way]
            axis.plot(
                [r.partitions for r in line],
                [r.mb_per_s for r in line],
                styles.get(nodes, "-."),
                color=f"C{number}",
                marker="o",
                markersize=3,
                label=f"{way}, {nodes} node{'s' if nodes > 1 else ''}",
            )
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("partitions", fontsize=8)
    axis.set_ylabel("MB/s", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    # Below the axis, where it hides no line.
    columns = len({rate.nodes for rate in panel})
    axis.legend(
        fontsize=7, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False
    )
    title = f"{panel[0].rows:,} rows of 1 MB in pages of 20 MB"
    axis.set_title(title, fontsize=9, loc="left")
