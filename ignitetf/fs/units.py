"""Group the files that are useful only together, and check that each group is complete.

push, pull, checkpoints -> **units** -> folders

    checkpoint    TensorFlow's: PREFIX.index, PREFIX.data-NNNNN-of-NNNNN, PREFIX.meta
    weights       Keras's in several files: NAME.weights.json and the files it names
    saved model   saved_model.pb, fingerprint.pb, variables/, assets/, assets.extra/
    orbax         a directory with _CHECKPOINT_METADATA
    file          any other; .keras, .h5 and .hdf5 are checked inside

`.keras` is a zip archive, whose directory is at its end; `.h5` is HDF5, whose first block contains
the length of the file; `saved_model.pb` is one Protocol Buffers message.

The required sizes of TensorFlow's data files are read from the `.index`, without TensorFlow, so
that checkpoints can be pushed from machines that lack it. The index is a table of sorted keys
(LevelDB's format, `tensorflow/core/lib/io/table*.cc`): blocks with a checksum each, one block that
points to the others, and a 48-byte footer that points to that one. The empty key holds a
`BundleHeaderProto`; every other key holds a `BundleEntryProto` that locates one tensor
(`tensorflow/core/protobuf/tensor_bundle.proto`).
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from ignitetf.crc import masked_crc32c
from ignitetf.fs.folders import Folder

__all__ = [
    "STATE_FILE",
    "Damaged",
    "Unit",
    "check_hdf5",
    "data_sizes",
    "find_fault",
    "has_magic",
    "index_of",
    "is_known",
    "units",
]

STATE_FILE: Final = "checkpoint"
_DATA: Final = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-(?P<count>\d{5})", re.DOTALL)
_INDEX: Final = ".index"
_GRAPH: Final = ".meta"
_WEIGHTS: Final = ".weights.json"
_MODEL: Final = ("saved_model.pb", "fingerprint.pb")
_MODEL_FOLDERS: Final = ("variables/", "assets/", "assets.extra/")
_VARIABLES: Final = "variables/variables"
_ORBAX: Final = "_CHECKPOINT_METADATA"
_HDF5: Final = (".h5", ".hdf5")
_ARCHIVE: Final = ".keras"


@dataclass(frozen=True)
class Unit:
    """Files that are useful only together.

    Attributes:
        kind: One of the kinds listed above.
        name: TensorFlow's prefix, the directory, or the single file, relative to the folder.
        files: Names of the existing files; the one that refers to the others is last.
    """

    kind: str
    name: str
    files: tuple[str, ...]


def is_known(unit: Unit) -> bool:
    """True if it is possible to check that this unit is complete."""
    return unit.kind != "file" or unit.name.endswith((*_HDF5, _ARCHIVE))


def index_of(unit: Unit) -> str:
    """Return the name of a checkpoint's index, whether it exists or not."""
    return f"{unit.name}{_INDEX}"


def units(folder: Folder, named: Iterable[str] = ()) -> list[Unit]:
    """Return the units of a folder, sorted by name; they cover every file except the states.

    Args:
        folder: The folder.
        named: Prefixes that a state names: these are checkpoints even if files are missing.
    """
    rest = {name for name in folder.sizes if name.rpartition("/")[2] != STATE_FILE}
    found: list[Unit] = []
    for find in (_orbax, _saved_models, _weights):
        for unit in find(folder, rest):
            found.append(unit)
            rest.difference_update(unit.files)
    found += _checkpoints(folder, rest, set(named))
    rest.difference_update(*(unit.files for unit in found))
    found += [Unit("file", name, (name,)) for name in rest]
    return sorted(found, key=lambda unit: unit.name)


def _below(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _leader_last(names: Iterable[str], lead: str) -> tuple[str, ...]:
    return (*sorted(name for name in names if name != lead), lead)


def _orbax(folder: Folder, rest: set[str]) -> list[Unit]:
    leads = {name for name in rest if name.rpartition("/")[2] == _ORBAX}
    places = {lead.rpartition("/")[0] for lead in leads}
    # If one directory is inside another, the outer one contains it all.
    outer = [p for p in places if not any(p != o and p.startswith(_below(o)) for o in places)]
    return [
        Unit(
            "orbax",
            place,
            _leader_last(
                (n for n in rest if n.startswith(_below(place))), f"{_below(place)}{_ORBAX}"
            ),
        )
        for place in outer
    ]


def _saved_models(folder: Folder, rest: set[str]) -> list[Unit]:
    found = []
    for lead in [name for name in rest if name.rpartition("/")[2] == _MODEL[0]]:
        base = _below(lead.rpartition("/")[0])
        own = {f"{base}{name}" for name in _MODEL}
        inside = tuple(f"{base}{name}" for name in _MODEL_FOLDERS)
        names = [name for name in rest if name in own or name.startswith(inside)]
        found.append(Unit("saved model", base.rstrip("/"), _leader_last(names, lead)))
    return found


def _weights(folder: Folder, rest: set[str]) -> list[Unit]:
    found = []
    for lead in sorted(name for name in rest if name.endswith(_WEIGHTS)):
        try:
            shards = _shards(folder, lead)
        except Damaged:
            shards = set()  # reported when the unit is checked
        found.append(Unit("weights", lead, _leader_last(shards & rest, lead)))
    return found


def _shards(folder: Folder, lead: str) -> set[str]:
    """Return the names of the files that an index of Keras weights refers to."""
    with folder.open(lead) as file:
        places = _json_object(file.read()).get("weight_map")
    if not isinstance(places, dict):
        raise Damaged("has no weight_map")
    base = _below(lead.rpartition("/")[0])
    names = set[str]()
    for place in places.values():
        for name in place if isinstance(place, list) else [place]:
            if not isinstance(name, str) or "/" in name:
                raise Damaged(f"names {name!r}, which is not a file next to it")
            names.add(f"{base}{name}")
    return names


def _checkpoints(folder: Folder, rest: set[str], named: set[str]) -> list[Unit]:
    groups: dict[str, list[str]] = {prefix: [] for prefix in named}
    for name in rest:
        if data := _DATA.fullmatch(name):
            groups.setdefault(data["prefix"], []).append(name)
    with_state = {name.rpartition("/")[0] for name in folder.sizes if _is_state(name)}
    for name in rest:
        if name.endswith(_INDEX):
            prefix = name.removesuffix(_INDEX)
            if prefix in groups or name.rpartition("/")[0] in with_state or _is_index(folder, name):
                groups.setdefault(prefix, []).append(name)
    for prefix, names in groups.items():
        if f"{prefix}{_GRAPH}" in rest:
            names.append(f"{prefix}{_GRAPH}")
    found = []
    for prefix, names in groups.items():
        index = f"{prefix}{_INDEX}"
        ordered = _leader_last(names, index) if index in names else tuple(sorted(names))
        found.append(Unit("checkpoint", prefix, ordered))
    return found


def _is_state(name: str) -> bool:
    return name.rpartition("/")[2] == STATE_FILE


def _is_index(folder: Folder, name: str) -> bool:
    with folder.open(name) as file:
        file.seek(max(0, folder.sizes[name] - 8))
        return has_magic(file.read())


# Checks for completeness


def find_fault(folder: Folder, unit: Unit, *, read: bool = False) -> str | None:
    """Return the fault or the missing part of a unit; None if it is complete.

    Args:
        folder: The folder.
        unit: The unit.
        read: Read archives from end to end, to verify their checksums.

    Raises:
        OSError: A file cannot be read; FileNotFoundError if it was removed in the meantime.
    """
    if unit.kind == "file":
        return _file_fault(folder, unit.name, read)
    return _CHECKS[unit.kind](folder, unit, read)


def _file_fault(folder: Folder, name: str, read: bool) -> str | None:
    try:
        if name.endswith(_ARCHIVE):
            with folder.open(name) as file:
                _check_archive(file, read=read)
        elif name.endswith(_HDF5):
            with folder.open(name) as file:
                check_hdf5(file)
    except Damaged as error:
        return f"{name} {error}"
    return None


def _content(folder: Folder, name: str) -> bytes:
    with folder.open(name) as file:
        return file.read()


def _checkpoint_fault(folder: Folder, unit: Unit, read: bool) -> str | None:
    return _bundle_fault(folder, unit.name, unit.files)


def _bundle_fault(folder: Folder, prefix: str, files: tuple[str, ...]) -> str | None:
    if not files:
        return f"{prefix}: the state names it, but none of its files exist"
    index = f"{prefix}{_INDEX}"
    if index not in files:
        return f"{index} is missing"
    try:
        needed = data_sizes(_content(folder, index))
    except Damaged as error:
        return f"{index} {error}"
    for number, size in enumerate(needed):
        name = f"{prefix}.data-{number:05}-of-{len(needed):05}"
        if name not in files:
            return f"{name} is missing"
        if folder.sizes[name] < size:
            return f"{name} has {folder.sizes[name]:,} of {size:,} bytes"
    return None


def _weights_fault(folder: Folder, unit: Unit, read: bool) -> str | None:
    try:
        needed = _shards(folder, unit.name)
    except Damaged as error:
        return f"{unit.name} {error}"
    for name in sorted(needed):
        if name not in unit.files:
            return f"{name} is missing"
        if fault := _file_fault(folder, name, read):
            return fault
    return None


def _model_fault(folder: Folder, unit: Unit, read: bool) -> str | None:
    lead, base = unit.files[-1], _below(unit.name)
    try:
        needed = _needs_variables(_content(folder, lead))
    except Damaged as error:
        return f"{lead} {error}"
    inside = tuple(name for name in unit.files if name.startswith(f"{base}{_VARIABLES}."))
    if needed or inside:
        return _bundle_fault(folder, f"{base}{_VARIABLES}", inside or (lead,))
    return None


def _orbax_fault(folder: Folder, unit: Unit, read: bool) -> str | None:
    try:
        _json_object(_content(folder, unit.files[-1]))
    except Damaged as error:
        return f"{unit.files[-1]} {error}"
    return None


_CHECKS: Final[Mapping[str, Callable[[Folder, Unit, bool], str | None]]] = {
    "checkpoint": _checkpoint_fault,
    "weights": _weights_fault,
    "saved model": _model_fault,
    "orbax": _orbax_fault,
}


_BLOCK_BYTES: Final = 1 << 20
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_OLD_SUPERBLOCKS: Final = (0, 1)  # superblock versions written by HDF5 1.8 and older
_META_GRAPHS: Final = 2  # SavedModel.meta_graphs
_OBJECT_GRAPH: Final = 7  # MetaGraphDef.object_graph_def


def _check_archive(file: BinaryIO, *, read: bool) -> None:
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
        old = head[8] in _OLD_SUPERBLOCKS
        width = {2: "H", 4: "I", 8: "Q"}[head[13] if old else head[9]]
        first = (24 if head[8] == 0 else 28) if old else 12
        # Base address, one other, end address; all are relative to the original start of file.
        base, _, end = struct.unpack_from(f"<3{width}", head, first)
    except (IndexError, KeyError, struct.error) as error:
        raise Damaged("has a damaged HDF5 superblock") from error
    if (needed := at - base + end) > size:
        raise Damaged(f"has {size:,} of {needed:,} bytes")


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file; raises Damaged if there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is not JSON, or cut short: {error}") from error
    if not isinstance(found, dict):
        raise Damaged("is not a JSON object")
    return found


def _needs_variables(saved_model: bytes) -> bool:
    """True if a `saved_model.pb` has objects, whose values are in `variables/`.

    Raises:
        Damaged: The message is truncated.
    """
    graphs = [v for n, v in _wire_fields(saved_model) if n == _META_GRAPHS and isinstance(v, bytes)]
    if not graphs:
        raise Damaged("holds no graph, or is cut short")
    return any(n == _OBJECT_GRAPH for graph in graphs for n, _ in _wire_fields(graph))


_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES: Final = 48
_TRAILER_BYTES: Final = 5  # compression type (1), CRC-32C (4)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEADER_SHARDS: Final = 1
_ENTRY_SHARD, _ENTRY_OFFSET, _ENTRY_SIZE = 3, 4, 5
_MOST_SHARDS: Final = 100_000  # file names have five digits for the shard


class Damaged(Exception):
    """The bytes are not a valid index; the message says what is wrong."""


def has_magic(tail: bytes) -> bool:
    """True if a file that ends in these bytes can be an index."""
    return tail.endswith(_MAGIC)


def data_sizes(index: bytes) -> list[int]:
    """Return the minimum size in bytes of each data file, by its number.

    Raises:
        Damaged: The index is truncated or corrupt.
    """
    if len(index) < _FOOTER_BYTES or not has_magic(index):
        raise Damaged("is cut short, or not an index of a checkpoint")
    sizes: list[int] | None = None
    try:
        _, at = _handle(index, len(index) - _FOOTER_BYTES)  # skips the metadata block
        root, _ = _handle(index, at)
        for _, place in _entries(_block(index, *root)):
            for key, value in _entries(_block(index, *_handle(place, 0)[0])):
                fields = {n: v for n, v in _wire_fields(value) if isinstance(v, int)}
                if not key:
                    count = fields.get(_HEADER_SHARDS, 0)
                    if not 0 <= count < _MOST_SHARDS:
                        raise Damaged(f"has an invalid number of data files: {count}")
                    sizes = [0] * count
                    continue
                if sizes is None:
                    raise Damaged("has no header")
                end = fields.get(_ENTRY_OFFSET, 0) + fields.get(_ENTRY_SIZE, 0)
                shard = fields.get(_ENTRY_SHARD, 0)
                # A tensor stored in slices has separate keys for them and no bytes of its own.
                if end:
                    sizes[shard] = max(sizes[shard], end)
    except (IndexError, struct.error) as error:
        raise Damaged("is damaged: an offset points outside the file") from error
    if not sizes:
        raise Damaged("names no data files")
    return sizes


def _wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a Protocol Buffers message.

    Raises:
        Damaged: A field extends past the end.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            if kind == _BYTES:
                size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise Damaged(f"has a field of the unknown kind {kind}")
        if at > len(data):
            raise Damaged("is cut short")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Damaged("is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return a block's (offset, size) and the position after the handle."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(index: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(index):
        raise Damaged("is damaged: a block is outside the file")
    kind, stored = struct.unpack_from("<BI", index, end)
    if stored != masked_crc32c(index[offset : end + 1]):
        raise Damaged("is damaged: a block does not match its checksum")
    if kind:
        raise Damaged("is compressed (as by TensorFlow 1.1), so it cannot be checked")
    return index[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; keys share a prefix with the key before."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + size]
        at += size
