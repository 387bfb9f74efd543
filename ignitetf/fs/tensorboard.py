"""Make `tensorboard --logdir igfs:///logs` work if TensorFlow is installed.

With TensorFlow, TensorBoard reads through TensorFlow's file operations, which know `igfs://` only
once `gfile` is imported. TensorBoard loads this module through its entry point and calls
`fix_flags` before it opens the log directory. It adds no dashboard, and does nothing for other log
directories. An open file keeps showing the content of the moment it was opened, and TensorBoard
keeps event files open. So this module makes TensorBoard reopen them when they have grown. Without
TensorFlow, TensorBoard finds `igfs://` through fsspec by itself.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tensorboard.plugins import base_plugin

from ignitetf.fs.path import NativeIOUnavailable

__all__ = ["IgfsLoader"]


class IgfsLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Registers `igfs://` if a log directory uses it."""

    def fix_flags(self, flags: Any) -> None:
        """Register `igfs://`; TensorBoard passes its flags before it opens anything."""
        places = (getattr(flags, "logdir", ""), getattr(flags, "logdir_spec", ""))
        if not any("igfs://" in (place or "") for place in places):
            return
        try:
            importlib.import_module("ignitetf.fs.gfile")
        except NativeIOUnavailable as error:
            print(f"igfs:// cannot be read: {error.message}", file=sys.stderr)
        except ImportError:
            pass  # without TensorFlow, TensorBoard uses fsspec
        else:
            if getattr(flags, "detect_file_replacement", None) is None:
                flags.detect_file_replacement = True

    def load(self, context: Any) -> None:
        """Return None: this loader has no dashboard."""
        return
