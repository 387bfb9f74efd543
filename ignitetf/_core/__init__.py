"""The native core: parses answers as they arrive, and writes each row to its place.

`Layout` describes how rows become columns. `Landing` has the units of a plan and the groups of rows
that they fill. `Lane` sends the requests of one connection and lands their answers. None of them
connects, retries or explains errors: `net.flow` does that. `read.landing` makes batches of the
groups.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final

import numpy as np

try:
    from ignitetf._core._native import Landing, Lane, Layout
    from ignitetf._core._native import __file__ as _file
except ModuleNotFoundError as error:
    raise ImportError(
        "the native core of ignitetf is not compiled; hint: in a checkout, run "
        "'python _build/compiling.py' or 'pip install -e .'"
    ) from error

__all__ = ["LIBRARY", "UNIT", "Event", "Kind", "Landing", "Lane", "Layout", "UnitState"]

# The file of the core; TensorFlow loads its plugin from this file.
LIBRARY: Final = Path(_file)

# A unit of a plan; the struct `Unit` of core.h.
UNIT: Final[np.dtype[Any]] = np.dtype(
    [
        ("base", "<i8"),
        ("rows", "<i8"),
        ("done", "<i8"),
        ("first", "<i8"),
        ("expected", "<i8"),
        ("nbytes", "<i8"),
        ("mark", "<i8"),
        ("cursor", "<i8"),
        ("replay", "<i8"),
        ("replay_mark", "<i8"),
        ("state", "<i4"),
        ("lane", "<i4"),
    ]
)


class Kind(enum.IntEnum):
    """The layout of the values of a column; see core.h."""

    DENSE = 1
    NARROW = 2
    ARRAY = 3
    RUN = 4
    MOMENT = 5
    UUID_TEXT = 6


class UnitState(enum.IntEnum):
    """The progress of a unit; see core.h."""

    QUEUED = 0
    ASKED = 1
    HALF = 2
    ENDED = 3
    KEPT = 4


class Event(enum.IntEnum):
    """The reason why `Lane.run` returns; see lane.h."""

    DONE = 0
    STOPPED = 1
    UNKNOWN = 2
    LEFT = 3
    FAILED = 4
    LOST = 5
    DAMAGED = 6
    COUNT = 7
    REPLAYED = 8
    RESTART = 9
