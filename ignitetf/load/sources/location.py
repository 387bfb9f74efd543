"""Access to source bytes: local paths and fsspec URLs, one (`Place`) or several read as one.

**place** -> stream -> records -> Batch

A local path is read with plain file calls; other locations are read through fsspec. Whatever a file
system or decompressor raises becomes a `SourceError` that names the file, without the user name,
password or signature that a URL can carry.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ignitetf.errors import IgniteTFError, MissingExtra, SourceError
from ignitetf.load.sources.archives import ARCHIVES, ArchiveFiles
from ignitetf.load.sources.base import Source, keys_of
from ignitetf.load.sources.compressed import HEAD_BYTES, compression_of, decompressed
from ignitetf.load.sources.tarfiles import open_tar
from ignitetf.load.sources.values import difference
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Dense, values_of

__all__ = [
    "ChainSource",
    "Location",
    "Place",
    "Stream",
    "digest",
    "files_at",
    "has_suffix",
    "inspect",
    "locate",
    "locate_all",
    "one_line",
    "open_plain",
    "public_name",
    "read_exactly",
    "reading",
    "skip_bytes",
]

Location = str | Path
Stream = io.BufferedIOBase

_PIECE_BYTES = 1 << 20
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+(://|::)")
_PACKED = r"(\.(gz|gzip|bz2|xz|zst|zstd|zip|lz4|snappy))?"
# What may follow the suffix of a file that is loaded.
_AFTER_SUFFIX = re.compile(rf"{_PACKED}([-._][0-9]+)*(-of-[0-9]+)?{_PACKED}")
# Attributes that change with the content of a URL; the most reliable is first.
_VERSION_KEYS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


def public_name(location: object) -> str:
    """Return a location for use in messages: without login and signature."""
    text = re.sub(r"//[^/@]*@", "//", str(location))
    return text.partition("?")[0] if "://" in text else text


def digest(*parts: object) -> str:
    """Return a short, stable text for these values: equal values give equal texts.

    Bytes and buffers of bytes are hashed directly, other values as their text.
    """
    whole = hashlib.sha256()
    for part in parts:
        is_raw = isinstance(part, (bytes, memoryview))
        raw = memoryview(part if is_raw else str(part).encode("utf-8", "surrogatepass"))  # type: ignore[arg-type]
        whole.update(struct.pack("<?q", is_raw, raw.nbytes))
        whole.update(raw)
    return whole.hexdigest()[:32]


@contextlib.contextmanager
def reading(name: str, hint: str | None = None) -> Iterator[None]:
    """Convert any error of reading or decoding to a SourceError that names the file.

    Libraries raise many kinds of errors on damaged data, and remote file systems their own. So
    every Exception is caught.
    """
    try:
        yield
    except IgniteTFError:
        raise
    except FileNotFoundError as error:
        raise SourceError(
            f"{name}: no such file or folder", hint=hint or "check the path", name=name
        ) from error
    except MemoryError as error:
        raise SourceError(f"{name}: does not fit into memory", hint=hint, name=name) from error
    except ImportError as error:
        if name.startswith(("http://", "https://")):
            raise MissingExtra(
                f"{name}: HTTP needs aiohttp, which is not installed",
                hint="pip install 'ignitetf[http]'",
            ) from error
        raise MissingExtra(
            f"{name}: {one_line(error)}",
            hint="this kind of URL needs one more package; fsspec's documentation names it",
        ) from error
    except Exception as error:
        raise SourceError(f"{name}: {one_line(error)}", hint=hint, name=name) from error


def one_line(error: BaseException) -> str:
    """Return an exception's message on one line, of limited length."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Arrow adds where the error was as another argument.
    parts = error.args if all(isinstance(arg, str) for arg in error.args) else [error]
    text = public_name(" ".join("; ".join(map(str, parts)).split())) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


@dataclass(frozen=True)
class Place:
    """A file or folder, local or in an fsspec file system.

    Attributes:
        name: The location as given (plus the path below it), for messages.
        path: Path in the file system.
        fs: The fsspec file system; None for a local path.
    """

    name: str
    path: str
    fs: Any = None

    @property
    def base(self) -> str:
        """The last part of the path."""
        path = PurePosixPath(self.path.rstrip("/"))
        return path.name or PurePosixPath(self.name).name or self.path

    @property
    def stem(self) -> str:
        """The last part of the path without its suffixes."""
        return self.base.partition(".")[0]

    @property
    def local(self) -> Path | None:
        """The local path, None for a remote place."""
        return Path(self.path) if self.fs is None else None

    def child(self, relative: str) -> Place:
        """Return a place below this folder."""
        if self.fs is None:
            return Place(os.path.join(self.name, relative), os.path.join(self.path, relative))  # noqa: PTH118 (faster)
        return Place(
            f"{self.name.rstrip('/')}/{relative}", f"{self.path.rstrip('/')}/{relative}", self.fs
        )

    @property
    def parent(self) -> Place:
        """Return the folder of this place."""
        if self.fs is None:
            return Place(str(Path(self.name).parent), str(Path(self.path).parent))
        return Place(self.name.rpartition("/")[0], self.path.rpartition("/")[0], self.fs)

    def exists(self) -> bool:
        """True if a file or folder exists here."""
        with reading(self.name):
            return Path(self.path).exists() if self.fs is None else bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        """True if a folder exists here."""
        with reading(self.name):
            return Path(self.path).is_dir() if self.fs is None else bool(self.fs.isdir(self.path))

    def size(self) -> int | None:
        """Return the size of the file in bytes; None if it is unknown."""
        with reading(self.name):
            if self.fs is None:
                return Path(self.path).stat().st_size
            size = self.fs.info(self.path).get("size")
            return None if size is None else int(size)

    def stamp(self) -> str:
        """Return name, size and version of the file, which changes with its content."""
        with reading(self.name):
            if self.fs is None:
                stat = Path(self.path).stat()
                return f"{self.base}|{stat.st_size}|{stat.st_mtime_ns}"
            info = self.fs.info(self.path)
            version = next((str(info[k]) for k in _VERSION_KEYS if info.get(k)), "")
            return f"{self.base}|{info.get('size')}|{version}"

    def open(self) -> Stream:
        """Open the file for reading from its beginning; the caller closes it."""
        with reading(self.name):
            if self.fs is None:
                return Path(self.path).open("rb")
            return cast(Stream, self.fs.open(self.path, "rb"))

    def read(self, max_bytes: int) -> bytes:
        """Read the whole file.

        Raises:
            SourceError: It cannot be read, or is longer than `max_bytes`.
        """
        with reading(self.name):
            data = self._read(max_bytes)
        if data is None:
            raise SourceError(
                f"{self.name}: longer than {max_bytes >> 20} MiB",
                hint="split it, or omit it",
                name=self.name,
            )
        return data

    def _read(self, max_bytes: int) -> bytes | None:
        """Read the whole file, None if it is longer."""
        if self.fs is None:
            with io.FileIO(self.path) as file:
                return file.readall() if os.fstat(file.fileno()).st_size <= max_bytes else None
        with self.open() as stream:
            data = stream.read(max_bytes + 1)
        return data if len(data) <= max_bytes else None

    def children(self) -> list[tuple[str, bool, int, str]]:
        """Return name, whether it is a folder, size and version of each entry, sorted."""
        with reading(self.name):
            return sorted(self._children())

    def _children(self) -> Iterator[tuple[str, bool, int, str]]:
        if self.fs is None:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if not ((is_dir := entry.is_dir()) or entry.is_file()):
                        if not entry.is_symlink() or Path(entry.path).exists():
                            continue  # a pipe or socket would never end
                        yield entry.name, False, 0, ""  # a dead link: reported when it is read
                        continue
                    stat = entry.stat()
                    yield entry.name, is_dir, stat.st_size, str(stat.st_mtime_ns)
            return
        for info in self.fs.ls(self.path, detail=True):
            name = PurePosixPath(str(info["name"]).rstrip("/")).name
            version = next((str(info[k]) for k in _VERSION_KEYS if info.get(k)), "")
            yield name, info.get("type") == "directory", int(info.get("size") or 0), version


def locate(location: Location) -> Place:
    """Return the place of a path or URL.

    Raises:
        SourceError: The URL's protocol is unknown, or its file system cannot be opened.
        MissingExtra: The package for this protocol is not installed.
    """
    text = str(location)
    if isinstance(location, Path) or not _URL.match(text):
        return Place(text, str(Path(text).expanduser()))
    name = public_name(text)
    import fsspec

    with reading(name, "protocols: those of fsspec, such as s3://, gs://, https://, igfs://"):
        fs, path = fsspec.core.url_to_fs(text)
    if getattr(fs, "protocol", None) in ("file", ("file", "local")):
        return Place(name, str(path))
    if fs.protocol in ARCHIVES:
        with reading(name):
            if fs.protocol == "tar":
                fs.fo.seek(0)
            archive = fs.zip if fs.protocol == "zip" else open_tar(fs.fo, "r:")
            fs = ArchiveFiles(archive, name, owner=fs)
    return Place(name, str(path), fs)


def locate_all(locations: Location | Sequence[Location]) -> list[Place]:
    """Return the places of one location or several."""
    if isinstance(locations, (str, Path)):
        return [locate(locations)]
    return [locate(one) for one in locations]


def open_plain(place: Place) -> Stream:
    """Open a file; decompress it if its first bytes are those of a compressed file."""
    raw = place.open()
    try:
        with reading(place.name):
            if not raw.seekable():
                raise SourceError(
                    f"{place.name}: it can be read only forward, and a load reads it more than once",
                    hint="save it to a file first",
                    name=place.name,
                )
            head = raw.read(HEAD_BYTES)
            raw.seek(0)
            how = compression_of(head)
            return raw if how is None else decompressed(raw, place.name, how)
    except BaseException:
        raw.close()
        raise


def read_exactly(stream: Stream, n: int, name: str, what: str = "data") -> bytearray:
    """Read the next `n` bytes; memory grows with the data that arrive, not with `n`.

    Raises:
        SourceError: The stream ends earlier or is damaged.
    """
    out = bytearray()
    with reading(name):
        while len(out) < n:
            piece = stream.read(min(n - len(out), _PIECE_BYTES))
            if not piece:
                raise SourceError(
                    f"{name}: truncated: {what} needs {n:,} bytes, found {len(out):,}",
                    hint="fetch or export the file again",
                    name=name,
                )
            out += piece
    return out


def skip_bytes(stream: Stream, n: int, name: str) -> None:
    """Skip `n` bytes: with a seek if that costs nothing, otherwise by reading in pieces."""
    if n <= 0:
        return
    with reading(name):
        if stream.seekable():
            stream.seek(n, io.SEEK_CUR)
            return
    while n > 0:
        n -= len(read_exactly(stream, min(n, _PIECE_BYTES), name))


def inspect(place: Place, limit: int) -> tuple[int, str]:
    """Return length and SHA-256 of a file's decompressed bytes, in bounded memory.

    Reads at most `limit` + 1 bytes, which bounds the work for a malicious file.
    """
    whole = hashlib.sha256()
    n = 0
    with reading(place.name, "fetch or export the file again"), open_plain(place) as stream:
        try:
            while n <= limit and (piece := stream.read(min(_PIECE_BYTES, limit + 1 - n))):
                whole.update(piece)
                n += len(piece)
        except EOFError as error:
            raise SourceError(
                f"{place.name}: truncated: the gzip stream stops after {n:,} bytes",
                hint="fetch or export the file again",
                name=place.name,
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise SourceError(
                f"{place.name}: damaged gzip stream: {one_line(error)}",
                hint="fetch or export the file again",
                name=place.name,
            ) from error
    return n, whole.hexdigest()


def has_suffix(name: str, suffixes: Sequence[str]) -> bool:
    """Whether a name ends with one of these suffixes (lower case).

    A compression and numbers may follow: `a.csv.gz`, `a.tfrecord-00000-of-00002`. Copies of editors
    and unfinished files, such as `a.csv~` and `a.csv.part`, are not data.
    """
    lower = name.lower()
    ends = (lower[lower.rindex(one) + len(one) :] for one in suffixes if one in lower)
    return any(_AFTER_SUFFIX.fullmatch(end) for end in ends)


def files_at(locations: object, suffixes: tuple[str, ...]) -> list[Place]:
    """Return the files of a path, a pattern with `*`, a folder, or a list of them, sorted by name.

    Args:
        locations: One location or several.
        suffixes: Which files of a folder to take, by the end of their name (lower case).

    Raises:
        SourceError: No file is found.
    """
    if isinstance(locations, (list, tuple)):
        found = [place for one in locations for place in files_at(one, suffixes)]
    else:
        found = _files_of(locate(str(locations)), suffixes)
    if not found:
        raise SourceError("no files are given", hint="give a file, a folder, or a pattern")
    return found


def _files_of(place: Place, suffixes: tuple[str, ...]) -> list[Place]:
    if "*" in place.base:
        return _matching(place)
    if not place.is_dir():
        return [place]
    names = [
        n for n, is_dir, _, _ in place.children() if not is_dir and not n.startswith((".", "_"))
    ]
    found = [place.child(n) for n in names if has_suffix(n, suffixes)]
    if not found:
        raise SourceError(
            f"{place.name}: no {' or '.join(suffixes)} file in it", hint="give a file or a pattern"
        )
    return found


def _matching(place: Place) -> list[Place]:
    folder = place.parent
    with reading(place.name):
        if place.local is not None:
            names = sorted(p.name for p in place.local.parent.glob(place.base))
        else:
            names = sorted(str(p).rpartition("/")[2] for p in place.fs.glob(place.path))
    if not names:
        raise SourceError(f"{place.name}: no file matches", hint="check the pattern")
    return [folder.child(name) for name in names]


class ChainSource(Source):
    """Several sources of one schema as one; running keys continue from file to file."""

    def __init__(self, sources: Sequence[Source], *, bad_records: OnBadRecord = "fail") -> None:
        """Check that all have the schema of the first, except for nulls."""
        super().__init__(bad_records=bad_records)
        first = sources[0]
        self.sources = list(sources)
        self.class_names = first.class_names
        for source in self.sources[1:]:
            # Each file may have its own numbers of classes.
            source.use_classes(self.class_names or ())
            self.class_names = source.class_names or self.class_names
        self.key_name = first.key_name
        self.schema = first.schema
        for source in self.sources[1:]:
            self._take_schema(source)
        for source in self.sources:
            for text in source.notes:
                self.note(text)
        known = [source.rows for source in self.sources]
        self.rows = None if None in known else sum(n or 0 for n in known)
        sizes = [source.nbytes for source in self.sources]
        self.nbytes = None if None in sizes else sum(n or 0 for n in sizes)

    def _take_schema(self, source: Source) -> None:
        theirs = {field.name: field for field in source.schema.fields}
        fields = [
            replace(mine, nullable=mine.nullable or other.nullable)
            for mine in self.schema.fields
            if (other := theirs.get(mine.name)) and replace(mine, nullable=other.nullable) == other
        ]
        same = len(fields) == len(self.schema.fields) == len(theirs)
        if not same or source.schema.key != self.schema.key:
            place = getattr(source, "place", None)
            raise SourceError(
                f"file {self.sources.index(source) + 1} of {len(self.sources)} differs in columns "
                f"or types from the first: {difference(source.schema, self.schema)}"
                + ("" if place is None else f" ({place.name})"),
                hint="load files of different tables one by one, or write them with the same"
                f" columns and types{self.sources[0].hint_of_types}",
            )
        self.schema = replace(self.schema, fields=tuple(fields))

    def fingerprint(self) -> str:
        """A digest of the fingerprints of all files, in order."""
        return digest("chain", *(source.fingerprint() for source in self.sources))

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        base = 0
        for source in self.sources:
            if source.rows is None or base + source.rows > start:
                taken = 0
                for batch in source.batches(max(0, start - base), max_bytes=max_bytes):
                    self.skipped += source.skipped[taken:]
                    taken = len(source.skipped)
                    yield base + source.position, self._moved(batch, base)
                self.skipped += source.skipped[taken:]
                for text in source.notes:
                    self.note(text)
            base += source.rows or 0
            yield max(base, start), Batch(keys_of([]), {})
        self.rows = base

    def _moved(self, batch: Batch, base: int) -> Batch:
        # A file's columns may be in another order.
        columns = {name: batch.columns[name] for name in self.schema.names}
        if self.key_name is not None or batch.key is None:
            return Batch(batch.key, columns)
        return Batch(Dense(values_of(batch.key) + base), columns)
