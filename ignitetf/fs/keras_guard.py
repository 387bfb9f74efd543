"""Refuse Keras's legacy `.h5` files on `igfs://`.

h5py opens paths itself: Keras would write to a local folder named `igfs:` without a word. The
functions that do it are wrapped when their module is imported, so that nothing is imported for
those who do not use Keras.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]

_MODULES = frozenset(
    {
        "keras.src.legacy.saving.legacy_h5_format",
        "keras.src.saving.legacy.hdf5_format",
        "tf_keras.src.saving.legacy.hdf5_format",
    }
)
_FUNCTIONS = ("save_model_to_hdf5", "load_model_from_hdf5")


def install() -> None:
    """Wrap the functions, now or when their module is imported."""
    for name in _MODULES & set(sys.modules):
        _wrap(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _wrap(module: ModuleType) -> None:
    for name in _FUNCTIONS:
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "igfs_guard"):
            setattr(module, name, _refusing(function))


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, str) and value.startswith("igfs://"):
                raise ValueError(
                    f"{value}: legacy .h5 files cannot be kept in igfs://; "
                    "save as .keras, or the weights as .weights.h5"
                )
        return function(*args, **kwargs)

    checked.igfs_guard = True  # type: ignore[attr-defined]
    return checked


class _Finder(importlib.abc.MetaPathFinder):
    """Finds only the modules above, by the other finders, and wraps after their execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module to be wrapped; None for every other."""
        if fullname not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module)
