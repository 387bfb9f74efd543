"""Training data in Apache Ignite, fed to TensorFlow at the speed of the wire.

    ds = IgniteDataset("MNIST_TRAIN", as_supervised=True).batch(128)   # a tf.data.Dataset
    with connect() as client: client.sql("SELECT COUNT(*) FROM MNIST_TRAIN").fetchall()
    load_dataset(source, "IMAGES", partitions=16)
    with Node.start() as node: ...

Names load on first use, so that `import ignitetf` costs nothing and needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "Client",
    "IgniteDataset",
    "IgniteTFError",
    "Node",
    "connect",
    "load_dataset",
    "own_errors",
]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from ignitetf.client import Client, connect
    from ignitetf.errors import IgniteTFError
    from ignitetf.load.loader import load_dataset
    from ignitetf.node import Node
    from ignitetf.read.causes import own_errors
    from ignitetf.read.dataset import IgniteDataset

_HOME = {
    "Client": "ignitetf.client",
    "IgniteDataset": "ignitetf.read.dataset",
    "IgniteTFError": "ignitetf.errors",
    "Node": "ignitetf.node",
    "connect": "ignitetf.client",
    "load_dataset": "ignitetf.load.loader",
    "own_errors": "ignitetf.read.causes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
