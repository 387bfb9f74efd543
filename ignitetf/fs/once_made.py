"""Repeat an operation that found no caches, once they are made anew.

store -> **once_made**

A node may have kept them in memory only, and been started again while a process that uses them ran
on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ignitetf.errors import CacheNotFound

__all__ = ["once_made"]

F = TypeVar("F", bound=Callable[..., Any])


def once_made(operation: F) -> F:
    """Let a method of an object with a method `make` run again after it, if a cache was missing."""

    @functools.wraps(operation)
    def repeated(store: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return operation(store, *args, **kwargs)
        except OSError as error:
            if not isinstance(error.__cause__, CacheNotFound):
                raise
        store.make()
        return operation(store, *args, **kwargs)

    return cast(F, repeated)
