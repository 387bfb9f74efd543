"""`tensorboard --logdir igfs:///logs` with TensorFlow installed.

TensorBoard then reads through TensorFlow's file operations, which know `igfs://` only after
`gfile` was imported. TensorBoard loads this module by its entry point and calls `fix_flags` before
it opens the log directory. It adds no dashboard, and does nothing for other log directories.
Without TensorFlow, TensorBoard finds `igfs://` through fsspec by itself.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from tensorboard.plugins import base_plugin

__all__ = ["IgfsLoader"]


class IgfsLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Registers `igfs://` when a log directory is there."""

    def fix_flags(self, flags: Any) -> None:
        """Called with the command line, before anything is opened."""
        places = (getattr(flags, "logdir", ""), getattr(flags, "logdir_spec", ""))
        if not any("igfs://" in (place or "") for place in places):
            return
        if importlib.util.find_spec("tensorflow") is not None:
            importlib.import_module("ignitetf.fs.gfile")

    def load(self, context: Any) -> None:
        """There is no dashboard."""
        return
