"""Training data in Apache Ignite, fed to TensorFlow at the speed of the wire.

    ds = IgniteDataset("MNIST_TRAIN", as_supervised=True).batch(128)   # a tf.data.Dataset
    with connect() as client: client.sql("SELECT COUNT(*) FROM MNIST_TRAIN").fetchall()
    rows = open_rows("MNIST_TRAIN")                    # the same rows as NumPy columns
    load_dataset(source, "IMAGES", partitions=16)
    with Node.start() as node: ...

Names are loaded on first use, so that `import ignitetf` is fast and does not need TensorFlow.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = [
    "Client",
    "IgniteDataset",
    "IgniteTFError",
    "Node",
    "connect",
    "drop_dataset",
    "load_dataset",
    "mix_rows",
    "open_rows",
    "own_errors",
]
__version__ = "0.2.0"

if TYPE_CHECKING:
    from ignitetf.errors import IgniteTFError
    from ignitetf.load.loader import load_dataset
    from ignitetf.net.client import Client, connect
    from ignitetf.node import Node
    from ignitetf.read.mixture import mix_rows
    from ignitetf.read.rows import open_rows
    from ignitetf.read.tf.dataset import IgniteDataset
    from ignitetf.read.tf.iteration import own_errors
    from ignitetf.tables.removal import drop_dataset

_HOME = {
    "Client": "ignitetf.net.client",
    "IgniteDataset": "ignitetf.read.tf.dataset",
    "IgniteTFError": "ignitetf.errors",
    "Node": "ignitetf.node",
    "connect": "ignitetf.net.client",
    "drop_dataset": "ignitetf.tables.removal",
    "load_dataset": "ignitetf.load.loader",
    "mix_rows": "ignitetf.read.mixture",
    "open_rows": "ignitetf.read.rows",
    "own_errors": "ignitetf.read.tf.iteration",
}

# The commands are in `cli/` next to this folder in a checkout, and inside it in an installation. A
# folder `cli` without a `pyproject.toml` next to it, as in site-packages, belongs to another
# package.
_CHECKOUT = Path(__file__).parents[1]
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "cli" / "main.py").is_file():
    __path__.append(str(_CHECKOUT))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
