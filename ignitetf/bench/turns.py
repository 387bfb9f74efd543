"""Runs several ways in turn, so that changes over time affect all of them equally.

ways by name -> **rounds, forwards and backwards** -> results of each -> medians, ratios
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = ["in_turn", "median_ratio", "rows_a_second"]

T = TypeVar("T")


def in_turn(
    ways: Mapping[str, Callable[[], T]],
    rounds: int,
    on_round: Callable[[int], None] = lambda number: None,
) -> dict[str, list[T]]:
    """Run every way in each round, alternating the order; the first round only warms up.

    Garbage is collected before each way. pyignite creates thousands of classes, which otherwise
    would cost the next way up to half its rate.

    Args:
        ways: The ways to run, by name.
        rounds: Rounds that count; one more is run before them.
        on_round: Called after each round with its number; 0 is the warm-up.

    Returns:
        The results of each way in the rounds that count.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            gc.collect()
            given = ways[name]()
            if number:
                found[name].append(given)
        on_round(number)
    return found


def rows_a_second(way: Callable[[], int | tuple[int, float]]) -> Callable[[], float]:
    """Return a way that returns a rate, from one that returns rows and optionally seconds."""

    def timed() -> float:
        begin = time.perf_counter()
        rows = way()
        took_s = time.perf_counter() - begin
        if isinstance(rows, tuple):
            rows, took_s = rows
        return rows / took_s

    return timed


def median_ratio(mine: Sequence[float], theirs: Sequence[float] | None) -> float | None:
    """Return the median of the ratios of the rounds; None if there is nothing to compare with."""
    if theirs is None:
        return None
    return round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 3)
