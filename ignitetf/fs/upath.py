"""`IgnitePath`: paths of `igfs://` for universal_pathlib, which finds it by an entry point.

fsspec -> filesystem -> **upath**
"""

from __future__ import annotations

import fsspec

from ignitetf.errors import MissingExtra
from ignitetf.fs.filesystem import IgniteFileSystem

try:
    from upath import UPath
except ImportError as error:
    raise MissingExtra.of("ignitetf.fs.upath needs universal_pathlib", "upath", error) from error

__all__ = ["IgnitePath"]

# universal_pathlib takes the way in which URLs are read from the class, if that is loaded.
fsspec.get_filesystem_class("igfs")


class IgnitePath(UPath):  # type: ignore[misc]
    """A path on `igfs://`, as those of `pathlib`.

        UPath("igfs:///runs/a.txt").write_text("done")

    A path whose URL names a node keeps it, also as a text.
    """

    __slots__ = ()

    def __str__(self) -> str:
        if not self.is_absolute():
            return str(super().__str__())
        # `self.fs` needs this text.
        return IgniteFileSystem(**self.storage_options).unstrip_protocol(self.path)
