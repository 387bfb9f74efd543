"""MNIST: the four IDX files from a folder, or downloaded once and verified.

folder or mirror -> **four files** -> IdxSource

Downloads go into `IGNITETF_HOME/data/mnist` under a temporary name and are renamed only if their
content has the pinned SHA-256. The checksums are those of the decompressed files, because mirrors
compress them differently. Files in a folder that the user names are not compared with them: they
may hold other data of the same layout (Fashion-MNIST).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.idx import IdxSource
from ignitetf.load.sources.location import (
    Location,
    Place,
    inspect,
    locate,
    one_line,
    open_plain,
    public_name,
    read_exactly,
)
from ignitetf.tables.storage import OnBadRecord

__all__ = ["FILES", "MIRRORS", "mnist", "open_mnist"]

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Name -> length and SHA-256 of the decompressed file.
FILES: dict[str, tuple[int, str]] = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
_PREFIX = {"train": "train", "test": "t10k"}
_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_HINT_OFFLINE = "give a folder with the four files (--source DIR), or set IGNITETF_MNIST_URL"


_IMAGES_MAGIC = bytes.fromhex("00000803")
_LABELS_MAGIC = bytes.fromhex("00000801")


def open_mnist(
    location: Location | None = None, split: str = "train", bad_records: OnBadRecord = "fail"
) -> IdxSource:
    """Open `mnist` as `open_source` does, with the folder first."""
    return mnist(split, location, bad_records)


def mnist(
    split: str = "train",
    source_dir: Location | None = None,
    bad_records: OnBadRecord = "fail",
) -> IdxSource:
    """Return one split of MNIST: IMAGE uint8 [28, 28, 1], LABEL int32.

    Args:
        split: "train" or "test".
        source_dir: Folder (or fsspec URL) with the IDX files, gzipped or not; None downloads them,
            from `IGNITETF_MNIST_URL` if that is set.
        bad_records: What to do with a label that is not a digit.

    Raises:
        SourceError: A file is missing or damaged, or the two do not match.
    """
    if (prefix := _PREFIX.get(split)) is None:
        raise ConfigError(f"MNIST has no split {split!r}", hint="take 'train' or 'test'")
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    if source_dir is not None:
        folder = locate(source_dir)
        if not folder.is_dir():
            raise SourceError(f"{folder.name}: no such folder", hint=_HINT_OFFLINE)
        images, labels = (_find(folder, name) for name in names)
    else:
        images, labels = (_fetch(name) for name in names)
    _check_magic(images, _IMAGES_MAGIC)
    _check_magic(labels, _LABELS_MAGIC)
    return IdxSource(
        images,
        labels,
        type_name=f"Mnist{split.capitalize()}",
        class_names=[str(digit) for digit in range(10)],
        bad_records=bad_records,
    )


def _check_magic(place: Place, expected: bytes) -> None:
    """Raise SourceError unless the file has unsigned bytes of the right dimensions."""
    with open_plain(place) as stream:
        magic = read_exactly(stream, 4, place.name, "the header of an IDX file")
    if magic != expected:
        raise SourceError(
            f"{place.name}: wrong magic number 0x{magic.hex()}, expected 0x{expected.hex()}",
            hint="is it the file its name says? 'ignitetf load idx' takes other IDX files",
        )


def _find(folder: Place, name: str) -> Place:
    """Find the file of this name: gzipped or not, or named like `train-images.idx3-ubyte`."""
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
        if (place := folder.child(candidate)).exists():
            return place
    raise SourceError(
        f"{folder.name}: no file {name} or {name}.gz",
        hint="the folder must hold the four MNIST files; without --source they are downloaded",
    )


def _fetch(name: str) -> Place:
    """Return the verified file in the data folder, downloading it if it is not there yet."""
    from ignitetf.home import ignitetf_home

    target = ignitetf_home() / "data" / "mnist" / f"{name}.gz"
    place = Place(str(target), str(target))
    if target.is_file():
        with contextlib.suppress(SourceError):
            _check(place, name)
            return place
    override = os.environ.get("IGNITETF_MNIST_URL")
    failures: list[SourceError] = []
    for mirror in (override,) if override else MIRRORS:
        try:
            _download(f"{mirror.rstrip('/')}/{name}.gz", target, name)
            return place
        except SourceError as error:
            failures.append(error)
    raise SourceError("; ".join(e.message for e in failures), hint=_HINT_OFFLINE) from failures[-1]


def _download(url: str, target: Path, name: str) -> None:
    """Download a file next to its target, verify it, and rename it in one step."""
    shown = public_name(url)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as out:
            temporary = Path(out.name)
            # The URL is one of our mirrors, or the user's own; the content must match known hashes.
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # nosec B310
                _copy(answer, out, limit=FILES[name][0] + _PIECE_BYTES, shown=shown)
        _check(Place(shown, str(temporary)), name)
        temporary.replace(target)
    except (OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"could not download {shown}: {one_line(error)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _copy(answer: IO[bytes], out: IO[bytes], *, limit: int, shown: str) -> None:
    """Copy an answer of at most `limit` bytes."""
    n = 0
    while piece := answer.read(_PIECE_BYTES):
        n += len(piece)
        if n > limit:
            raise SourceError(f"{shown}: longer than an MNIST file can be")
        out.write(piece)


def _check(place: Place, name: str) -> None:
    """Raise SourceError unless the decompressed file has the pinned length and SHA-256."""
    length, sha256 = inspect(place, FILES[name][0])
    if (length, sha256) != FILES[name]:
        raise SourceError(
            f"{place.name}: wrong checksum: SHA-256 of the content is {sha256[:16]}..., expected "
            f"{FILES[name][1][:16]}...",
            hint="the file is not the published one; fetch it from another mirror",
        )
