"""What is below a directory, for fsspec: walk, find, sizes, globs and their names.

filesystem -> **walking** -> `ls` of the file system

fsspec's own functions take a directory that cannot be listed for an empty one, whatever the reason,
and call themselves for each level. Here only what was removed meanwhile is left out, and a tree may
have any depth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from glob import has_magic
from typing import Any

from fsspec.spec import AbstractFileSystem

__all__ = ["Walking"]

_Names = Any  # a list, or with `detail` a dict from name to info
_Level = tuple[str, _Names, _Names]


class Walking(AbstractFileSystem):  # type: ignore[misc]
    """The functions of a file system that look below a directory."""

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], object] = "omit",
        **kwargs: Any,
    ) -> Iterator[_Level]:
        """Yield path, directories and files of each level, as `os.walk` does.

        Args:
            path: Where to begin.
            maxdepth: Number of levels; None for all.
            topdown: Whether a directory comes before what is in it; its list of directories may
                then be changed by the caller.
            on_error: "raise", a function that is called with the error, or "omit" for what was
                removed meanwhile; a cluster that cannot be reached is always an error then.
            **kwargs: `detail`: dicts from name to info instead of lists of names.

        Raises:
            OSError: A directory could not be listed.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        detail = bool(kwargs.get("detail"))
        above: list[tuple[_Level | None, Iterator[str]]] = [
            (None, iter([self._strip_protocol(path)]))
        ]
        while above:
            level, below = above[-1]
            if (place := next(below, None)) is None:
                above.pop()
                if level is not None and not topdown:
                    yield level
            elif (found := self._level(place, on_error, detail)) is not None:
                if topdown:
                    yield found
                deeper = maxdepth is None or len(above) < maxdepth
                base = place.rstrip("/")
                above.append((found, iter([f"{base}/{n}" for n in found[1] if deeper])))

    def _level(
        self, path: str, on_error: str | Callable[[OSError], object], detail: bool
    ) -> _Level | None:
        try:
            infos = self.ls(path, detail=True)
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            if on_error == "raise" or not (gone or callable(on_error)):
                raise
            if callable(on_error):
                on_error(error)
            return None
        found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for info in infos:
            name = "" if info["name"] == path else info["name"].rpartition("/")[2]
            found[info["type"] != "directory"][name] = info
        directories, files = found
        return (path, directories, files) if detail else (path, list(directories), list(files))

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the paths of all files below a path, sorted; with `detail` a dict to their infos.

        A file is below itself; with `withdirs` so is a directory.
        """
        path = self._strip_protocol(path)
        found: dict[str, Any] = {}
        for _, directories, files in self.walk(path, maxdepth, detail=True):
            for info in (*files.values(), *(directories.values() if withdirs else ())):
                found[info["name"]] = info
        if withdirs and path not in found and self.isdir(path):
            found[path] = self.info(path)
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the bytes of all files below a path; without `total` a dict by path."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def expand_path(
        self,
        path: str | Iterable[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Expand globs, and with `recursive` directories; a path that is there means itself."""
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        names = [self._strip_protocol(one) for one in paths]
        plain = [name for name in names if self.is_there_as_written(name)]
        others = [name for name in names if name not in plain]
        found = set(plain)
        for name in plain if recursive else ():
            found |= set(self.find(name, maxdepth=maxdepth, withdirs=True))
        if others or not plain:
            found |= set(super().expand_path(others, recursive, maxdepth, **kwargs))
        return sorted(found)

    def is_there_as_written(self, path: str) -> bool:
        """Whether a path that could be a glob is a name."""
        return has_magic(path) and bool(self.exists(path))

    def below(
        self, path: str, target: str, into: bool, recursive: bool, maxdepth: int | None
    ) -> tuple[list[str], list[str]]:
        """Return a path with all below it, and where each of them is copied to.

        Args:
            path: A file or directory, never a glob.
            target: Where it goes.
            into: Whether that is a directory to put it into.
            recursive: Whether a directory is taken along.
            maxdepth: Number of levels; None for all.
        """
        source = self._strip_protocol(path)
        if into and not path.endswith("/"):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        found = self.expand_path(source, recursive=recursive, maxdepth=maxdepth)
        if not recursive:
            found = [one for one in found if not self.isdir(one)]
        return found, [target.rstrip("/") + one[len(source) :] for one in found]
