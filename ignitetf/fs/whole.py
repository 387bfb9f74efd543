"""Check whether a single file of Keras or TensorFlow is complete, by its content.

units -> **whole** -> bundle

`.keras` is a zip archive, whose directory is at its end; `.h5` is HDF5, whose first block contains
the length of the file; `saved_model.pb` is one Protocol Buffers message.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Final

from ignitetf.fs.bundle import Damaged, wire_fields

__all__ = ["check_archive", "check_hdf5", "json_object", "needs_variables"]

_BLOCK_BYTES: Final = 1 << 20
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_GROUPS_AS_BEFORE: Final = (0, 1)  # superblock versions written by HDF5 1.8 and older
_META_GRAPHS: Final = 2  # SavedModel.meta_graphs
_OBJECT_GRAPH: Final = 7  # MetaGraphDef.object_graph_def


def check_archive(file: BinaryIO, *, read: bool) -> None:
    """Raise Damaged for a truncated or corrupt zip archive.

    Args:
        file: The archive.
        read: Read all of it, to verify checksums.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist() if read else ():
                with archive.open(member) as content:
                    while content.read(_BLOCK_BYTES):
                        pass
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise Damaged(f"is not a whole zip archive: {error}") from error


def check_hdf5(file: BinaryIO) -> None:
    """Raise Damaged for an HDF5 file that is shorter than its header says."""
    size = file.seek(0, os.SEEK_END)
    at = 0
    # A user block may precede the superblock; its size is a power of two.
    while True:
        file.seek(at)
        head = file.read(64)
        if head.startswith(_SIGNATURE):
            break
        at = 2 * at or 512
        if at >= size:
            raise Damaged("is not an HDF5 file, or not written to its end")
    try:
        old = head[8] in _GROUPS_AS_BEFORE
        width = {2: "H", 4: "I", 8: "Q"}[head[13] if old else head[9]]
        first = (24 if head[8] == 0 else 28) if old else 12
        # Base address, one other, end address; all are relative to the original start of file.
        base, _, end = struct.unpack_from(f"<3{width}", head, first)
    except (IndexError, KeyError, struct.error) as error:
        raise Damaged("has a damaged HDF5 superblock") from error
    if (needed := at - base + end) > size:
        raise Damaged(f"has {size:,} of {needed:,} bytes")


def json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file; raises Damaged if there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is not JSON, or cut short: {error}") from error
    if not isinstance(found, dict):
        raise Damaged("is not a JSON object")
    return found


def needs_variables(saved_model: bytes) -> bool:
    """Whether a `saved_model.pb` has objects, whose values are in `variables/`.

    Raises:
        Damaged: The message is truncated.
    """
    graphs = [v for n, v in wire_fields(saved_model) if n == _META_GRAPHS and isinstance(v, bytes)]
    if not graphs:
        raise Damaged("holds no graph, or is cut short")
    return any(n == _OBJECT_GRAPH for graph in graphs for n, _ in wire_fields(graph))
