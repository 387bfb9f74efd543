"""`tensorboard --logdir igfs:///logs` with TensorFlow installed.

TensorBoard then reads through TensorFlow's file operations, which know `igfs://` only after
`gfile` was imported. TensorBoard loads this module by its entry point and calls `fix_flags` before
it opens the log directory. It adds no dashboard, and does nothing for other log directories.
An open file keeps showing the content of the moment it was opened, and TensorBoard keeps event
files open: it is told to open them again when they have grown.
Without TensorFlow, TensorBoard finds `igfs://` through fsspec by itself.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tensorboard.plugins import base_plugin

from ignitetf.fs.oserrors import NativeIOUnavailable

__all__ = ["IgfsLoader"]


class IgfsLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Registers `igfs://` when a log directory is there."""

    def fix_flags(self, flags: Any) -> None:
        """Called with the command line, before anything is opened."""
        places = (getattr(flags, "logdir", ""), getattr(flags, "logdir_spec", ""))
        if not any("igfs://" in (place or "") for place in places):
            return
        try:
            importlib.import_module("ignitetf.fs.gfile")
        except NativeIOUnavailable as error:
            print(f"igfs:// cannot be read: {error.message}", file=sys.stderr)
        except ImportError:
            pass  # no TensorFlow: TensorBoard goes through fsspec
        else:
            if getattr(flags, "detect_file_replacement", None) is None:
                flags.detect_file_replacement = True

    def load(self, context: Any) -> None:
        """There is no dashboard."""
        return
