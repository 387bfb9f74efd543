"""Something to do as soon as a module has been imported, by whomever and whenever.

The worker prepares modules without importing them itself, since a script that does not need NumPy
or TensorFlow shall not wait for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["after_import"]


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once the module has been imported."""
    sys.meta_path.insert(0, _After(name, action))


class _After:
    """Finds one module as the finders behind it do, and adds the action to its execution."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module; None for any other."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self._action()

        loader.exec_module = execute_and_act
