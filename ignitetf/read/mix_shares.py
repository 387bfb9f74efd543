"""How many rows an epoch of a mixture has of each component.

weights, or repeat and choose -> **shares** -> mixture

Weights are taken as exact fractions, so that every machine comes to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.read.interleave import MOST_PLACES
from ignitetf.read.plan import whole_argument

__all__ = ["rows_of"]

_HALF: Final = Fraction(1, 2)


def rows_of(
    has: Mapping[str, int],
    weights: Any,
    epoch_size: Any,
    repeat: Any,
    choose: Any,
) -> dict[str, int]:
    """Return the rows that an epoch has of each component; see `mix_rows`.

    Args:
        has: Rows that each component has.
        weights: Share of each, or None.
        epoch_size: Rows of an epoch by weights, or None.
        repeat: How often the rows of a component come, or None.
        choose: How many rows of a component come, or None.

    Raises:
        ConfigError: An argument is unusable, or an epoch has no row or too many.
    """
    if weights is not None:
        if repeat is not None or choose is not None:
            raise ConfigError("weights with repeat= or choose=", hint="pass the one or the other")
        rows = _by_weight(has, weights, epoch_size)
    elif epoch_size is not None:
        raise ConfigError("epoch_size= without weights", hint="repeat and choose tell the size")
    else:
        rows = _by_rows(has, _named("repeat", repeat, has), _named("choose", choose, has))
    if not 0 < (total := sum(rows.values())) <= MOST_PLACES:
        limit = f"{MOST_PLACES} at the most" if total else "at least one"
        raise ConfigError(f"a mixture with an epoch of {total} rows", hint=limit)
    return rows


def _by_weight(has: Mapping[str, int], weights: Any, epoch_size: Any) -> dict[str, int]:
    """Divide the rows of an epoch by weight; what is left over goes to the largest remainders."""
    given = _named("weights", weights, has)
    if missing := [name for name in has if name not in given]:
        raise ConfigError(f"no weight for {', '.join(missing)}", hint="0 leaves a component out")
    exact = {name: _fraction("weights", name, given[name]) for name in has}
    for name, weight in exact.items():
        if weight and not has[name]:
            raise ConfigError(
                f"weights[{name!r}]={given[name]!r}, but the component has no rows",
                hint="its weight can only be 0",
            )
    if not (whole := sum(exact.values())):
        raise ConfigError("all weights are zero", hint="at least one is above zero")
    size = sum(has[name] for name, weight in exact.items() if weight)
    if epoch_size is not None:
        size = whole_argument("epoch_size", epoch_size, 1, MOST_PLACES)
    quotas = {name: weight * size / whole for name, weight in exact.items()}
    rows = {name: math.floor(quota) for name, quota in quotas.items()}
    left = size - sum(rows.values())
    for name in sorted(has, key=lambda name: rows[name] - quotas[name])[:left]:
        rows[name] += 1
    return rows


def _by_rows(
    has: Mapping[str, int], repeat: Mapping[str, Any], choose: Mapping[str, Any]
) -> dict[str, int]:
    """Return the rows that `repeat` and `choose` ask for; all rows once where they do not."""
    if both := sorted(set(repeat) & set(choose)):
        raise ConfigError(f"repeat and choose for {', '.join(both)}", hint="one of them")
    rows = dict(has)
    for name, times in repeat.items():
        rows[name] = math.floor(_fraction("repeat", name, times) * has[name] + _HALF)
    for name, number in choose.items():
        rows[name] = whole_argument(f"choose[{name!r}]", number, 0, MOST_PLACES)
        if rows[name] and not has[name]:
            raise ConfigError(
                f"choose[{name!r}]={number}, but the component has no rows", hint="only 0 fits"
            )
    return rows


def _named(argument: str, given: Any, has: Mapping[str, int]) -> dict[str, Any]:
    """Check that an argument has values by the names of components; None has none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{argument}={given!r}", hint="a dict with the names of components")
    if unknown := [name for name in given if name not in has]:
        raise ConfigError(
            f"{argument} for {', '.join(map(repr, unknown))}",
            hint=f"the components are {', '.join(has)}",
        )
    return dict(given)


def _fraction(argument: str, name: str, value: Any) -> Fraction:
    """Return a number from 0 on, exactly."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError("no number")
        found = Fraction(value) if isinstance(value, Fraction) else Fraction(float(value))
        if found < 0:
            raise ValueError("below zero")
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{argument}[{name!r}]={value!r}", hint="a finite number, 0 or above"
        ) from error
    return found
