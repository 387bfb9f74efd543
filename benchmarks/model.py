"""Draws the plot of docs/performance.md: `python benchmarks/model.py docs/pictures/model.svg`.

The points are medians of `first_epochs.py` on one machine; the lines are the model that the page
describes, with the costs that fit these points.
"""

from __future__ import annotations

import sys
from typing import Final

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt

# Bytes of a row, rows, and milliseconds of an epoch: bare socket, later epochs of `batches`.
MEASURED: Final = (
    (43, 200_000, 56.3, 77.6),
    (784, 600_000, 343.1, 492.7),
    (20_000, 6_000, 57.4, 98.3),
    (1_000_000, 300, 148.9, 180.2),
)
# Seconds for a row and for a byte.
NODE: Final = (0.26e-6, 0.48e-9)
CLIENT: Final = (0.14e-6, 0.27e-9)
INK: Final = "#1c2833"


def rate(size: np.ndarray, *costs: tuple[float, float]) -> np.ndarray:
    """Return MB/s of values for rows of a size, if these costs follow one another."""
    return size / 1e6 / sum(row + byte * size for row, byte in costs)


def main(path: str) -> None:
    """Draw the plot."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ignitetf", "font.size": 11})
    figure, axis = plt.subplots(figsize=(5.6, 4.2))
    size = np.geomspace(30, 2e6, 60)
    axis.plot(size, rate(size, NODE), color="#2e86c1", label="node alone (model)")
    axis.plot(size, rate(size, NODE, CLIENT), "--", color="#ca6f1e", label="node + client (model)")
    sizes, rows, bare, ours = np.array(MEASURED).T
    axis.plot(sizes, sizes * rows / bare / 1e3, "s", color="#2e86c1", label="bare socket")
    axis.plot(sizes, sizes * rows / ours / 1e3, "o", color="#ca6f1e", label="ignitetf")
    axis.set(xscale="log", yscale="log", xlabel="bytes of a row", ylabel="MB/s of values")
    axis.grid(True, which="major", alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
