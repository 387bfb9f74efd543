"""Find known names similar to an unknown one, for hints.

name, known names -> **spelling** -> the hint of an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most similar to one; those that differ only in case first."""
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
    """Return a hint with the names most similar to one.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: The hint if none is similar.
        count: Maximum number of names.
        form: Format of each name.
    """
    near = nearest(name, known, count)
    return f"did you mean {' or '.join(map(form, near))}?" if near else otherwise
