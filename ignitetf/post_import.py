"""Functions that run as soon as a module is imported; they import nothing themselves.

For changes to other packages, which most users of ignitetf never import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]

_Action = Callable[[ModuleType], None]
_actions: dict[str, list[_Action]] = {}


def when_imported(name: str, action: _Action) -> None:
    """Call `action(module)` now, or after the module of that name has been imported."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    waiting = _actions.setdefault(name, [])
    if action not in waiting:
        waiting.append(action)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds only the modules that have actions, with the usual finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that has actions; None for any other."""
        if fullname not in _actions:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Executes a module as its own loader does, then the actions."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for action in _actions.pop(module.__name__, ()):
            action(module)
