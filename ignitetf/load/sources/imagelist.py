"""Lists the image files of a folder, or of the table that names them.

folder or table -> **list of files, labels** -> images
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from pathlib import PurePosixPath

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import did_you_mean
from ignitetf.load.sources.filelist import FileList, readable_name, walk
from ignitetf.load.sources.labels import Labels
from ignitetf.load.sources.location import Place
from ignitetf.load.sources.pictures import picture_suffixes
from ignitetf.tables.storage import OnBadRecord

__all__ = ["listed_in_folder", "listed_in_table"]


def listed_in_folder(folder: Place) -> tuple[FileList, Labels]:
    """List images by class folder; there are labels only if there are class folders."""
    suffixes = picture_suffixes()
    files = FileList(folder)
    entries = [e for e in folder.children() if not e[0].startswith(".")]
    classes = [name for name, is_dir, _, _ in entries if is_dir]
    loose = [e for e in entries if not e[1] and PurePosixPath(e[0]).suffix.lower() in suffixes]
    if classes and loose:
        raise SourceError(
            f"{folder.name}: images beside class folders, such as {loose[0][0]}",
            hint="move them into the folder of their class",
        )
    for name, _, size, version in loose:
        files.add(name, size, version)
    for label, name in enumerate(classes):
        for inner, size, version in walk(folder.child(name), f"{name}/"):
            if PurePosixPath(inner).suffix.lower() in suffixes:
                files.add(inner, size, version, label)
    return files, Labels([], class_names=[readable_name(name) for name in classes] or None)


def listed_in_table(
    labels: Labels, table: Place, folder: Place, listed: bool, bad_records: OnBadRecord
) -> tuple[FileList, tuple[str, ...]]:
    """List the images of a table, and return what is to be told of those it does not fit.

    Args:
        labels: The rows of the table.
        table: The file that they are from.
        folder: The folder that paths are relative to.
        listed: Whether to look for images of the folder that have no row.
        bad_records: Whether rows without an image are an error; else they are when they are read.
    """
    there = _images_in(folder) if listed else {}
    files = FileList(folder)
    numbers = labels.numbers if labels.numbers is not None else [-1] * len(labels.paths)
    named = set()
    missing: list[int] = []
    for row, (path, number) in enumerate(zip(labels.paths, numbers, strict=True)):
        named.add(usual := posixpath.normpath(path))
        found = there.get(usual) or _stat(folder, path)
        if found is None:
            missing.append(row)
        files.add(path, *(found or (0, "")), number)
    if missing and bad_records == "fail":
        raise _missing(labels, table, folder, missing, there)
    unnamed = sorted(there.keys() - named)
    if not unnamed or not named:
        return files, ()
    return files, (
        f"{len(unnamed):,} of {len(there):,} images below {folder.name} have no row in"
        f" {table.name} and are not loaded, such as {readable_name(unnamed[0])!r}",
    )


def _images_in(folder: Place) -> dict[str, tuple[int, str]]:
    """Return size and version of the images below a folder."""
    if not folder.is_dir():
        raise SourceError(f"{folder.name}: no such folder", hint="give the folder of the images")
    suffixes = picture_suffixes()
    return {
        name: (size, version)
        for name, size, version in walk(folder)
        if PurePosixPath(name).suffix.lower() in suffixes
    }


def _missing(
    labels: Labels, table: Place, folder: Place, missing: list[int], there: Collection[str]
) -> SourceError:
    """Return the error for rows whose image is not there, with a hint to where it may be."""
    path = labels.paths[missing[0]]
    base = PurePosixPath(path).name.lower()
    near = [name for name in there if PurePosixPath(name).name.lower() == base]
    near += [name for name in there if PurePosixPath(name).stem.lower() == base]
    hint = f"paths are relative to {folder.name}"
    if near:
        hint += f"; there is {near[0]!r}"
    elif close := did_you_mean(path, there):
        hint += f"; {close}"
    more = f", and {len(missing) - 1:,} more of its {len(labels.paths):,} rows name no image"
    return SourceError(
        f"{folder.child(path).name}: no such file, but entry {missing[0] + 1} of {table.name} names"
        f" it{more if len(missing) > 1 else ''}",
        hint=f"{hint}; or leave such rows out with --bad-records skip",
        name=folder.child(path).name,
    )


def _stat(folder: Place, path: str) -> tuple[int, str] | None:
    """Return size and time of a local file, None if it is not there; remote ones are not asked."""
    local = folder.child(path).local
    if local is None:
        return 0, ""
    try:
        stat = local.stat()
    except (OSError, ValueError):
        return None
    return stat.st_size, str(stat.st_mtime_ns)
