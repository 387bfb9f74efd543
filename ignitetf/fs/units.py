"""Group the files that are useful only together, and check that each group is complete.

push, pull, checkpoints -> **units** -> bundle, whole, folders

    checkpoint    TensorFlow's: PREFIX.index, PREFIX.data-NNNNN-of-NNNNN, PREFIX.meta
    weights       Keras's in several files: NAME.weights.json and the files it names
    saved model   saved_model.pb, fingerprint.pb, variables/, assets/, assets.extra/
    orbax         a directory with _CHECKPOINT_METADATA
    file          any other; .keras, .h5 and .hdf5 are checked inside
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ignitetf.fs.bundle import Damaged, data_sizes, has_magic
from ignitetf.fs.folders import Folder
from ignitetf.fs.whole import check_archive, check_hdf5, json_object, needs_variables

__all__ = ["STATE_FILE", "Unit", "index_of", "is_known", "units", "what_is_wrong"]

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
        files: Names of the existing files; the one that refers to the others comes last.
    """

    kind: str
    name: str
    files: tuple[str, ...]


def is_known(unit: Unit) -> bool:
    """Whether it is possible to check that this unit is complete."""
    return unit.kind != "file" or unit.name.endswith((*_HDF5, _ARCHIVE))


def index_of(unit: Unit) -> str:
    """Return the name of a checkpoint's index, whether it is there or not."""
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


def _led(names: Iterable[str], lead: str) -> tuple[str, ...]:
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
            _led((n for n in rest if n.startswith(_below(place))), f"{_below(place)}{_ORBAX}"),
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
        found.append(Unit("saved model", base.rstrip("/"), _led(names, lead)))
    return found


def _weights(folder: Folder, rest: set[str]) -> list[Unit]:
    found = []
    for lead in sorted(name for name in rest if name.endswith(_WEIGHTS)):
        try:
            shards = _shards(folder, lead)
        except Damaged:
            shards = set()  # reported when the unit is checked
        found.append(Unit("weights", lead, _led(shards & rest, lead)))
    return found


def _shards(folder: Folder, lead: str) -> set[str]:
    """Return the names of the files that an index of Keras weights refers to."""
    with folder.open(lead) as file:
        places = json_object(file.read()).get("weight_map")
    if not isinstance(places, dict):
        raise Damaged("has no weight_map")
    base = _below(lead.rpartition("/")[0])
    names = set[str]()
    for place in places.values():
        for name in place if isinstance(place, list) else [place]:
            if not isinstance(name, str) or "/" in name:
                raise Damaged(f"names {name!r}, which is not a file beside it")
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
        ordered = _led(names, index) if index in names else tuple(sorted(names))
        found.append(Unit("checkpoint", prefix, ordered))
    return found


def _is_state(name: str) -> bool:
    return name.rpartition("/")[2] == STATE_FILE


def _is_index(folder: Folder, name: str) -> bool:
    with folder.open(name) as file:
        file.seek(max(0, folder.sizes[name] - 8))
        return has_magic(file.read())


# Checks for completeness


def what_is_wrong(folder: Folder, unit: Unit, *, read: bool = False) -> str | None:
    """Return what is wrong or missing in a unit, or None if it is complete.

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
                check_archive(file, read=read)
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
        return f"{prefix}: the state names it, and no file of it is there"
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
        needed = needs_variables(_content(folder, lead))
    except Damaged as error:
        return f"{lead} {error}"
    inside = tuple(name for name in unit.files if name.startswith(f"{base}{_VARIABLES}."))
    if needed or inside:
        return _bundle_fault(folder, f"{base}{_VARIABLES}", inside or (lead,))
    return None


def _orbax_fault(folder: Folder, unit: Unit, read: bool) -> str | None:
    try:
        json_object(_content(folder, unit.files[-1]))
    except Damaged as error:
        return f"{unit.files[-1]} {error}"
    return None


_CHECKS: Final[Mapping[str, Callable[[Folder, Unit, bool], str | None]]] = {
    "checkpoint": _checkpoint_fault,
    "weights": _weights_fault,
    "saved model": _model_fault,
    "orbax": _orbax_fault,
}
