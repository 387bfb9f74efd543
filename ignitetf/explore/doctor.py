"""List installed packages, and which combinations of them can train on several workers.

metadata of packages, Java, node -> **doctor** -> cli

This imports nothing heavy and trains nothing. Which versions work is known from our tests.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final

import ignitetf
from ignitetf.errors import IgniteTFError
from ignitetf.explore.versions import installed
from ignitetf.net.client import Client
from ignitetf.net.results import only_value
from ignitetf.node.jvm import find_java
from ignitetf.read.tf.cluster import TESTED

__all__ = ["combinations", "versions"]

# Packages by their distribution names, and the extra that installs each.
_PACKAGES: Final = (
    ("TensorFlow", ("tensorflow", "tensorflow-cpu"), "tensorflow-cpu"),
    ("Keras", ("keras",), "keras"),
    ("tf_keras", ("tf-keras",), "legacy"),
    ("JAX", ("jax",), "jax"),
    ("PyTorch", ("torch",), "torch"),
    ("Grain", ("grain",), "grain"),
    ("Ray", ("ray",), "ray"),
    ("pyignite", ("pyignite",), None),
    ("NumPy", ("numpy",), None),
    ("pyarrow", ("pyarrow",), "arrow"),
)
# The tests with several workers have run with these releases.
_TESTED: Final = {"TensorFlow": "2.21", "tf_keras": "2.21", "JAX": "0.10"}


def versions(connect: Callable[[], Client]) -> list[dict[str, Any]]:
    """Return the installed versions: `name`, `version` (None if missing), `note`, `hint`.

    Args:
        connect: Opens a client; an error is reported in the node's row.
    """
    rows = [
        _row("ignitetf", ignitetf.__version__),
        _row("Python", platform.python_version(), platform.platform()),
        *(_package(name, names, extra) for name, names, extra in _PACKAGES),
        _java(),
        _node(connect),
    ]
    return rows


def combinations() -> list[dict[str, Any]]:
    """Return what trains on several workers: `combination`, `works` (yes, no, untested), `note`.

    A combination with a missing package is reported as not working; `note` names the package.
    """
    tensorflow = installed("tensorflow", "tensorflow-cpu")
    keras, legacy, jax = installed("keras"), installed("tf-keras"), installed("jax")
    torch = installed("torch")
    has_keras_3 = keras is not None and not keras.startswith("2.")
    repaired = "yes" if keras in TESTED else "untested"
    how = "ignitetf launch --keras repair, or ignitetf.train.repair_keras()"
    known: list[tuple[str, str, str, dict[str, Any]]] = [
        ("TensorFlow, custom loop", "yes", "", {"TensorFlow": tensorflow}),
        ("TensorFlow, Keras 3 fit, unrepaired", "no" if keras in TESTED else "untested", how,
         {"TensorFlow": tensorflow, "Keras 3": has_keras_3}),
        ("TensorFlow, Keras 3 fit, repaired", repaired, f"tested: {', '.join(sorted(TESTED))}",
         {"TensorFlow": tensorflow, "Keras 3": has_keras_3}),
        ("TensorFlow, tf_keras fit", "yes", "TF_USE_LEGACY_KERAS=1",
         {"TensorFlow": tensorflow, "tf_keras": legacy}),
        ("JAX, Keras 3 fit", "yes", "KERAS_BACKEND=jax, ignitetf.train.data_parallel()",
         {"JAX": jax, "Keras 3": has_keras_3, "TensorFlow": tensorflow}),
        ("PyTorch, ignitetf.torch", "yes", "ranks of torch.distributed", {"PyTorch": torch}),
    ]  # fmt: skip
    return [_combination(*each) for each in known]


def _combination(name: str, works: str, note: str, needs: dict[str, Any]) -> dict[str, Any]:
    missing = [part for part, found in needs.items() if not found]
    if missing:
        return {"combination": name, "works": "no", "note": f"missing: {', '.join(missing)}"}
    for part, found in needs.items():
        tested = _TESTED.get(part)
        if works == "yes" and tested is not None and not str(found).startswith(f"{tested}."):
            return {"combination": name, "works": "untested", "note": f"tested: {part} {tested}"}
    return {"combination": name, "works": works, "note": note}


def _row(name: str, found: str | None, note: str = "", hint: str = "") -> dict[str, Any]:
    return {"name": name, "version": found, "note": note, "hint": hint}


def _package(name: str, names: tuple[str, ...], extra: str | None) -> dict[str, Any]:
    found = installed(*names)
    if found is not None:
        return _row(name, found)
    return _row(name, None, "missing", f"pip install 'ignitetf[{extra}]'" if extra else "")


def _java() -> dict[str, Any]:
    try:
        found = find_java()
    except IgniteTFError as error:
        return _row("Java", None, str(error), error.hint or "")
    return _row("Java", str(found.major), found.origin)


def _node(connect: Callable[[], Client]) -> dict[str, Any]:
    try:
        with connect() as client:
            count = len(client.nodes())
            found = only_value(client.sql("SELECT VERSION FROM SYS.NODES LIMIT 1"))
    except IgniteTFError as error:
        return _row("Ignite", None, str(error), error.hint or "ignitetf node start")
    return _row("Ignite", str(found), f"{count} node{'s' if count > 1 else ''} reachable")
