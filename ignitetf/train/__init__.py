"""Training with data from Ignite: a demonstration, callbacks, batches resident on a device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignitetf.train.backup import BackupAndRestore
    from ignitetf.train.checkpoint import BackgroundCheckpoint
    from ignitetf.train.keras_repair import repair_keras
    from ignitetf.train.mapping import map_rows
    from ignitetf.train.packing import pack_sequences
    from ignitetf.train.parallel import DataParallel, data_parallel
    from ignitetf.train.pydataset import PyDataset
    from ignitetf.train.resident import device_resident

__all__ = [
    "BackgroundCheckpoint",
    "BackupAndRestore",
    "DataParallel",
    "PyDataset",
    "data_parallel",
    "device_resident",
    "map_rows",
    "pack_sequences",
    "repair_keras",
]

_PLACES = {
    "BackgroundCheckpoint": "checkpoint",
    "BackupAndRestore": "backup",
    "DataParallel": "parallel",
    "PyDataset": "pydataset",
    "data_parallel": "parallel",
    "device_resident": "resident",
    "map_rows": "mapping",
    "pack_sequences": "packing",
    "repair_keras": "keras_repair",
}


def __getattr__(name: str) -> Any:
    """Import the names above on first use: TensorFlow loads in seconds, and some do not need it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
