"""Versions of installed packages, Java and jars, from metadata; no package is imported.

metadata of packages, Java, jars -> **versions** -> doctor, cli
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import ignitetf
from ignitetf.errors import IgniteTFError
from ignitetf.home import ignitetf_home
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.node.jvm import find_java

__all__ = ["installed", "versions"]

_PACKAGES: Final = (
    ("TensorFlow", ("tensorflow", "tensorflow-cpu")),
    ("Keras", ("keras",)),
    ("NumPy", ("numpy",)),
    ("pyignite", ("pyignite",)),
    ("pyarrow", ("pyarrow",)),
)


def installed(*names: str) -> str | None:
    """Return the version of the first of the distributions that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def versions() -> dict[str, str | None]:
    """Return the versions by name, beginning with our own; None for what is not installed."""
    found: dict[str, str | None] = {
        "ignitetf": ignitetf.__version__,
        "Python": platform.python_version(),
    }
    found |= {name: installed(*names) for name, names in _PACKAGES}
    return {**found, "Java": _java(), "Ignite jars": _jars()}


def _java() -> str | None:
    try:
        java = find_java()
    except IgniteTFError:
        return None
    return f"{java.major} ({java.origin})"


def _jars() -> str | None:
    there = (ignitetf_home() / "jars" / IGNITE_VERSION).is_dir()
    return IGNITE_VERSION if there else f"{IGNITE_VERSION} (fetched by the first start of a node)"
