"""Names that are like one that is not there, for hints.

name, known names -> **spelling** -> whoever tells that there is no such name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most similar to one, ignoring case; those equal but for it first."""
    import difflib

    spelled: dict[str, str] = {}
    for each in known:
        spelled.setdefault(each.upper(), each)
    return [spelled[each] for each in difflib.get_close_matches(name.upper(), spelled, count)]


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str | None = None,
    *,
    count: int = 1,
    form: Callable[[str], str] = str,
) -> str | None:
    """Return the hint that asks for the names most similar to one.

    Args:
        name: The name that is not there.
        known: Those that are.
        otherwise: The hint if none is similar.
        count: How many to name, at most.
        form: How they are written.
    """
    near = nearest(name, known, count)
    return f"did you mean {' or '.join(map(form, near))}?" if near else otherwise
