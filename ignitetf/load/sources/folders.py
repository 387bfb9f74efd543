"""Folders of images: class folders, folders of splits with class folders, or images alone.

folder or archive -> **list of files, each with its class and split** -> images

A folder without an image is not a class, and neither is what operating systems add. If all folders
are called after splits (`train`, `val`, `test`), they are splits, whose folders are the classes.
"""

from __future__ import annotations

import lzma
import posixpath
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.archives import ArchiveFiles
from ignitetf.load.sources.compressed import HEAD_BYTES, compression_of
from ignitetf.load.sources.filelist import FileList, is_hidden, readable_name, walk
from ignitetf.load.sources.filesets import is_split_word
from ignitetf.load.sources.location import Location, Place, locate, open_plain, reading
from ignitetf.load.sources.tarfiles import open_tar
from ignitetf.pictures import picture_suffixes
from ignitetf.spelling import did_you_mean

__all__ = ["Found", "folder_at", "is_picture", "listed", "names_in_file"]

_ARCHIVE_HINT: Final = "is it a whole zip or tar file? pack it again"
_USTAR: Final = slice(257, 262)  # where a tar file has its mark
_PIECE: Final = 1 << 20
_MAX_NAMES_BYTES: Final = 64 << 20
_SHOWN: Final = 3


@dataclass
class Found:
    """The images of a folder.

    Attributes:
        files: The images, each with the numbers of its class and split.
        class_names: Names of the classes; None for images without classes.
        splits: Names of the splits; empty if there are none.
        notes: What users should know about how the folder was interpreted.
    """

    files: FileList
    class_names: list[str] | None = None
    splits: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def is_picture(name: str) -> bool:
    """Whether a name has the suffix of an image."""
    return PurePosixPath(name).suffix.lower() in picture_suffixes()


def listed(
    folder: Place, split_folders: bool | None = None, classes: Sequence[str] | None = None
) -> Found:
    """Return the images of a folder.

    Args:
        folder: The folder, or the root of an archive.
        split_folders: True if its folders are splits; None decides by their names.
        classes: Names of the classes in the order of their numbers; None sorts the folders.

    Raises:
        SourceError: Images lie next to class folders, or a folder is not one of the classes.
        ConfigError: Folders of splits, or an order of classes, are requested, and do not exist.
    """
    found = Found(FileList(folder))
    groups = _groups(folder, found)
    tops = list(dict.fromkeys(group[0] for group in groups if group))
    if split_folders and not tops:
        raise ConfigError(
            f"{folder.name}: no folders with images, so no splits",
            hint="omit --split-folders, or give the folder that has train, val and test",
        )
    if _are_splits(folder, tops, split_folders, found):
        if () in groups:
            raise _mixed(folder, "split", found)
        found.splits = tuple(map(readable_name, tops))
        parts = {group: (tops.index(group[0]), group[1:]) for group in groups}
    else:
        parts = {group: (-1, group[:1]) for group in groups}
    _require_one_kind(folder, tops, parts, found)
    numbers = _numbers(folder, sorted({c[0] for _, c in parts.values() if c}), classes, found)
    found.files.sort_into([(numbers[c[0]] if c else -1, split) for split, c in parts.values()])
    _report_empty(folder, tops, parts, found)
    return found


# The first two folders above an image, below the folder that is loaded.
_Group = tuple[str, ...]
# For each group: its split, and the folder of its class (empty without classes).
_Parts = dict[_Group, tuple[int, _Group]]


def _groups(folder: Place, found: Found) -> list[_Group]:
    """List the images, each with the number of its group as its label; returns the groups."""
    groups: dict[_Group, int] = {}
    others: list[str] = []
    count = 0
    for name, size, version in walk(folder):
        if not is_picture(name):
            count += 1
            others = others or [name]
            continue
        group = tuple(name.split("/")[:-1][:2])
        found.files.add(name, size, version, groups.setdefault(group, len(groups)))
    if count and groups:
        found.notes.append(
            f"{folder.name}: {count:,} files are not loaded, because their names are not those of"
            f" images, such as {readable_name(others[0])}"
        )
    return list(groups)


def _are_splits(folder: Place, tops: list[str], asked: bool | None, found: Found) -> bool:
    """Return `asked`; if it is None, whether the names of the folders are those of splits."""
    if asked is not None:
        return asked
    words = [name for name in tops if is_split_word(name)]
    if len(words) < 2:
        return False
    shown = ", ".join(map(readable_name, words))
    if len(words) < len(tops):
        found.notes.append(
            f"{folder.name}: the folders {shown} are read as classes, because other folders do not"
            " have the name of a split; --split-folders reads all of them as splits"
        )
        return False
    found.notes.append(
        f"{folder.name}: the folders {shown} are splits; --no-split-folders makes classes of them"
    )
    return True


def _require_one_kind(folder: Place, tops: list[str], parts: _Parts, found: Found) -> None:
    """Raise SourceError if some images of a folder are in class folders and others are not."""
    classed = {split for split, kind in parts.values() if kind}
    flat = {split for split, kind in parts.values() if not kind}
    if both := classed & flat:
        at = min(both)
        raise _mixed(folder if at < 0 else folder.child(tops[at]), "class", found)
    if classed and flat:
        raise SourceError(
            f"{folder.child(tops[min(flat)]).name}: its images are not in class folders, while"
            f" those of {tops[min(classed)]} are",
            hint="load each of the two folders by itself",
        )


def _mixed(place: Place, what: str, found: Found) -> SourceError:
    names = (name for name, is_dir, _, _ in place.children() if not is_dir and is_picture(name))
    first = next(name for name in names if not is_hidden(name))
    return SourceError(
        f"{place.name}: images next to {what} folders, such as {readable_name(first)}",
        hint=f"move them into the folder of their {what}",
    )


def _numbers(
    folder: Place, names: list[str], classes: Sequence[str] | None, found: Found
) -> dict[str, int]:
    """Return the number of the class of each folder."""
    if classes is None:
        found.class_names = list(map(readable_name, names)) or None
        return {name: number for number, name in enumerate(names)}
    if not names:
        raise ConfigError(
            f"{folder.name}: no class folders, so the images have no classes",
            hint="omit --classes, or name the class of each image in a table: --labels CSV",
        )
    known = {name: number for number, name in enumerate(classes)}
    for name in map(readable_name, names):
        if name not in known:
            raise SourceError(
                f"{folder.name}: the folder {name!r} is not one of the {len(known):,} classes",
                hint=did_you_mean(name, classes, "add it to the file of --classes", form=repr),
            )
    found.class_names = list(classes)
    if unused := sorted(known.keys() - set(map(readable_name, names))):
        found.notes.append(f"{folder.name}: {_some(unused)} of the classes have no folder")
    return {name: known[readable_name(name)] for name in names}


def _report_empty(folder: Place, tops: list[str], parts: _Parts, found: Found) -> None:
    """Note folders that would be classes, but have no images, and a class that hides others."""
    levels = (
        {"": tops}
        if not found.splits
        else {
            top: [kind[0] for split, kind in parts.values() if kind and split == at]
            for at, top in enumerate(tops)
        }
    )
    empty = [
        posixpath.join(above, name)
        for above, names in levels.items()
        if names
        for name, is_dir, _, _ in folder.child(above).children()
        if is_dir and not is_hidden(name) and name not in names
    ]
    if empty:
        found.notes.append(f"{folder.name}: folders without images are not classes: {_some(empty)}")
    if len(tops) == 1 and not found.splits and all(len(group) > 1 for group in parts):
        found.notes.append(
            f"{folder.name}: {readable_name(tops[0])} is the only class; load"
            f" {folder.child(tops[0]).name} to make classes of the folders in it"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(readable_name, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"


def names_in_file(location: Location) -> list[str]:
    """Return the names of classes in a file, a line each; the last lines may be empty.

    Raises:
        SourceError: It is missing or empty, or has a name twice.
    """
    place = locate(location)
    with reading(place.name, "names of classes in UTF-8, a line each"):
        text = place.read(_MAX_NAMES_BYTES).decode("utf-8-sig")
    names = [line.strip() for line in text.rstrip().splitlines()]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or "" in names or twice:
        what = (
            "no names" if not names else "an empty line" if "" in names else f"{twice[0]!r} twice"
        )
        raise SourceError(f"{place.name}: {what} in it", hint="one name of a class in each line")
    return names


def folder_at(location: Location) -> Place:
    """Return the place of a folder, of the files in an archive, or of another file.

    An archive that has one folder and nothing else was packed from outside of this folder: it is
    the place, if it has folders itself.
    """
    place = locate(location)
    if place.is_dir() or not place.exists():
        return place
    opened = _archive(place)
    return place if opened is None else _packed(opened)


def _packed(place: Place) -> Place:
    while True:
        shown = [entry for entry in place.children() if not is_hidden(entry[0])]
        if len(shown) != 1 or not shown[0][1]:
            return place
        inner = place.child(shown[0][0])
        if not any(is_dir and not is_hidden(name) for name, is_dir, _, _ in inner.children()):
            return place
        place = inner


def _archive(place: Place) -> Place | None:
    """Return the root of an archive; None if a file is not an archive."""
    with reading(place.name), place.open() as stream:
        how = compression_of(stream.read(HEAD_BYTES))
    if how == "zip":
        with reading(place.name, _ARCHIVE_HINT):
            raw: Any = place.open()
            files = ArchiveFiles(zipfile.ZipFile(raw), place.name, place.stamp())
        return Place(place.name, "", files)
    with reading(place.name), open_plain(place) as plain:
        try:
            head = plain.read(512)
        except (OSError, EOFError, zlib.error, lzma.LZMAError):
            return None  # the source that reads the file reports the error
        if head[_USTAR] != b"ustar":
            return None
        with reading(place.name, _ARCHIVE_HINT):
            stream = place.open() if how is None else _unpacked(plain, head)
            files = ArchiveFiles(open_tar(stream, "r:"), place.name, place.stamp())
    return Place(place.name, "", files)


def _unpacked(plain: Any, head: bytes) -> Any:
    """Return the plain bytes of a compressed tar file in a temporary file, to read them anywhere."""
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115 (open as long as the archive is)
    file.write(head)
    while piece := plain.read(_PIECE):
        file.write(piece)
    file.seek(0)
    return file
