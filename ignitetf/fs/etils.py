"""`igfs://` for `etils.epath`, and thus for Orbax; importing this module registers it.

etils.epath -> **etils** -> filesystem (fsspec) -> store

    import ignitetf.fs.etils
    epath.Path("igfs:///runs/1").mkdir(parents=True)

Unlike epath's own back ends, `rename` and `replace` are one transaction each, so a directory appears
under its new name as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, Any, Final

from ignitetf.errors import MissingExtra
from ignitetf.fs.filesystem import IgniteFileSystem, connection_of_url
from ignitetf.fs.path import os_error
from ignitetf.post_import import when_imported

try:
    from etils import epath
except ImportError as missing:
    raise MissingExtra.of("igfs:// in etils.epath needs it", "orbax", missing) from missing

__all__ = ["IgfsPath"]

_PREFIX: Final = "igfs://"
_BUILDER: Final = "build_kvstore_tspec"
_MODES: Final = re.compile(r"[rwxa]b?|b[rwxa]")


def _as_parts(*parts: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return parts in which the URL's scheme and authority are the first folder: `/igfs:HOST`."""
    path = "/".join(os.fspath(part) for part in parts)
    if not path.startswith(_PREFIX):
        return tuple(os.fspath(part) for part in parts)
    authority, _, below = path.removeprefix(_PREFIX).partition("/")
    return (f"/igfs:{authority}", *filter(None, below.split("/")))


def _guard(module: ModuleType) -> None:
    """Stop TensorStore, which takes a URL for a path, from writing into a local folder `igfs:`."""
    build = getattr(module, _BUILDER, None)
    if build is None or hasattr(build, "igfs_guard"):
        return

    @functools.wraps(build)
    def checked(directory: Any, *args: Any, **kwargs: Any) -> Any:
        if os.fspath(directory).startswith("igfs:"):
            raise ValueError(
                f"{directory}: TensorStore cannot write to igfs://; "
                "give Orbax the handler ignitetf.fs.orbax.tree_handler()"
            )
        return build(directory, *args, **kwargs)

    checked.igfs_guard = True  # type: ignore[attr-defined]
    setattr(module, _BUILDER, checked)


when_imported("orbax.checkpoint._src.serialization.tensorstore_utils", _guard)


@epath.register_path_cls(_PREFIX)
class IgfsPath(epath.Path):  # type: ignore[misc]
    """A file or directory in a cluster, with the methods of `pathlib.Path`."""

    if sys.version_info < (3, 12):

        def __new__(cls, *parts: str | os.PathLike[str]) -> IgfsPath:
            """Make a path of a URL or of the parts of another path."""
            made: IgfsPath = super().__new__(cls, *_as_parts(*parts))
            return made

    else:

        def __init__(self, *parts: str | os.PathLike[str]) -> None:
            super().__init__(*_as_parts(*parts))

    def __fspath__(self) -> str:
        if len(self.parts) < 2 or not self.parts[1].startswith("igfs:"):
            return posixpath.join(*self.parts) if self.parts else "."
        authority = self.parts[1].removeprefix("igfs:")
        return f"{_PREFIX}{authority}/{'/'.join(self.parts[2:])}"

    def __str__(self) -> str:
        return self.__fspath__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__fspath__()!r})"

    def as_uri(self) -> str:
        """Return the URL."""
        return self.__fspath__()

    @property
    def system(self) -> IgniteFileSystem:
        """The file system of this path; one per cluster and process."""
        self._require_cluster()
        return IgniteFileSystem(**connection_of_url(self.__fspath__()))

    @property
    def place(self) -> str:
        """The path within its file system."""
        self._require_cluster()
        return "/" + "/".join(self.parts[2:])

    def _require_cluster(self) -> None:
        """Raise ValueError for a relative path, and for what `path / "/absolute"` makes."""
        if len(self.parts) < 2 or self.parts[0] != "/" or not self.parts[1].startswith("igfs:"):
            raise ValueError(f"{self} is not a path in igfs://; begin with the URL of one")

    def exists(self) -> bool:
        """Return whether it exists; a failed request is an error, not False."""
        return self.system.exists(self.place)

    def is_dir(self) -> bool:
        """Return whether it is a directory."""
        return self.system.isdir(self.place)

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self.system.isfile(self.place)

    def iterdir(self) -> Iterator[IgfsPath]:
        """Yield what is in the directory."""
        if self.is_file():
            raise NotADirectoryError(f"{self} is a file")
        for name in self.system.ls(self.place, detail=False):
            yield self / posixpath.basename(name)

    def glob(self, pattern: str) -> Iterator[IgfsPath]:
        """Yield the paths below that match."""
        for name in self.system.glob(posixpath.join(glob.escape(self.place), pattern)):
            yield self._at(name)

    def walk(
        self, *, top_down: bool = True, on_error: Callable[[OSError], object] | None = None
    ) -> Iterator[tuple[IgfsPath, list[str], list[str]]]:
        """Yield path, directories and files of each level, as `os.walk` does."""
        levels = self.system.walk(self.place, topdown=top_down, on_error=on_error or "omit")
        for place, directories, files in levels:
            yield self._at(place), directories, files

    def _at(self, place: str) -> IgfsPath:
        return type(self)(f"/{self.parts[1]}{place}")

    def expanduser(self) -> IgfsPath:
        """Return the same path."""
        return self

    def absolute(self) -> IgfsPath:
        """Return the same path."""
        return self

    def resolve(self, strict: bool = False) -> IgfsPath:
        """Return the path without `..` and `.`."""
        if strict and not self.exists():
            raise FileNotFoundError(self.__fspath__())
        return self._at(posixpath.normpath(self.place))

    def stat(self) -> epath.stat_utils.StatResult:
        """Return size, time and kind."""
        from etils.epath.stat_utils import StatResult

        info = self.system.info(self.place)
        return StatResult(
            is_directory=info["type"] == "directory",
            length=info["size"],
            mtime=int(info["mtime"]),
            owner=None,
            group=None,
            mode=None,
        )

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Create the directory; `mode` is accepted, but a cluster keeps no permissions of files."""
        self.system.store.make_directory(self.place, parents=parents, exist_ok=exist_ok)

    def rmdir(self) -> None:
        """Remove the directory if it is empty."""
        self.system.rmdir(self.place)

    def rmtree(self, missing_ok: bool = False) -> None:
        """Remove the file or directory with everything in it, at one moment."""
        with contextlib.suppress(*[FileNotFoundError] if missing_ok else []):
            self.system.rm_exactly(self.place, recursive=True)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with contextlib.suppress(*[FileNotFoundError] if missing_ok else []):
            self.system.rm_file(self.place)

    def open(
        self,
        mode: str = "r",
        encoding: str | None = None,
        errors: str | None = None,
        **kwargs: Any,
    ) -> IO[Any]:
        """Open the file; what is written appears when it is closed."""
        if not _MODES.fullmatch(mode):
            raise ValueError(f"{self}: mode {mode!r} is not one of r, w, x, a, with or without b")
        text = {} if "b" in mode else {"encoding": encoding or "utf-8", "errors": errors}
        return self.system.open(self.place, mode, **text)  # type: ignore[no-any-return]

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Create the file, or update the time of an existing one."""
        if exist_ok:
            self.system.touch(self.place, truncate=False)
        else:
            self.system.pipe_file(self.place, b"", mode="create")

    def rename(self, target: str | os.PathLike[str]) -> IgfsPath:
        """Move to a name that does not exist, in one transaction."""
        goal = self._target(target)
        if goal.exists():
            raise FileExistsError(f"cannot rename {self}: {goal} exists")
        self.system.store.rename(self.place, goal.place)
        return goal

    def replace(self, target: str | os.PathLike[str]) -> IgfsPath:
        """Move, replacing a file or an empty directory, in one transaction."""
        goal = self._target(target)
        self.system.store.rename(self.place, goal.place)
        return goal

    def copy(self, dst: str | os.PathLike[str], overwrite: bool = False) -> IgfsPath:
        """Copy a file within the cluster."""
        goal = self._target(dst)
        if not overwrite and goal.exists():
            raise FileExistsError(f"cannot copy {self}: {goal} exists")
        self.system.store.copy(self.place, goal.place, parents=False)
        return goal

    def _target(self, target: str | os.PathLike[str]) -> IgfsPath:
        goal = epath.Path(target)
        if not isinstance(goal, IgfsPath) or goal.parts[1] != self.parts[1]:
            raise os_error(errno.EXDEV, str(self), f"{goal} is in another file system")
        return goal
