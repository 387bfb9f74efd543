"""`export_dataset`: writes a data set to files, from the first check to the report.

rows -> format -> target -> **report**
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal, get_args

from ignitetf.errors import ConfigError
from ignitetf.export.base import Format, Sink
from ignitetf.export.folder import TABLE
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.net.client import Client, connect
from ignitetf.spelling import did_you_mean
from ignitetf.wire.columns import Batch

__all__ = ["ExportFormat", "ExportReport", "export_dataset"]

ExportFormat = Literal["folder", "tfrecord", "parquet", "webdataset", "huggingface"]

_FORMATS: Final[dict[str, tuple[str, str]]] = {
    "folder": ("folder", "FolderFormat"),
    "tfrecord": ("tfrecord", "TfRecordFormat"),
    "parquet": ("parquet", "ParquetFormat"),
    "webdataset": ("webdataset", "WebDatasetFormat"),
    "huggingface": ("huggingface", "HuggingFaceFormat"),
}
_SUFFIXES: Final = {
    ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
    ".parquet": "parquet", ".pq": "parquet", ".tar": "webdataset",
}  # fmt: skip

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        cache: Name of the cache or data set.
        target: The file or folder.
        format: Format of the files.
        files: Number of files.
        rows: Rows in the files.
        bytes: Bytes of the values.
        seconds: Duration.
        load: The command that loads the files again with their original types.
    """

    cache: str
    target: str
    format: str
    files: int
    rows: int
    bytes: int
    seconds: float
    load: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as commands print it."""
        return asdict(self)


def export_dataset(
    cache: str,
    target: str,
    *,
    client: Client | None = None,
    format: ExportFormat | None = None,
    fields: Sequence[str] | None = None,
    where: str | None = None,
    split: str | None = None,
    shards: int = 1,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ExportReport:
    """Write a data set to a file or folder, which appears complete or not at all.

    Args:
        cache: Name of the cache, data set or SQL table.
        target: Local path or fsspec URL: a file, or with `shards` and for `folder` a folder.
        client: The connection; None connects with the current settings.
        format: `folder` (image files by class, and a CSV), `tfrecord`, `parquet`, `webdataset` or
            `huggingface` (Parquet whose images and classes `datasets` shows); None derives it from
            the suffix of the target; without a suffix it is `folder`.
        fields: Fields to write; None for all.
        where: SQL condition on the rows.
        split: Name of a split.
        shards: Number of files; several files are written to a folder.
        overwrite: True to replace a file, or a folder that an export made.
        on_progress: Called with rows and bytes as they are written.

    Raises:
        SchemaError: The format cannot hold a field or a value. Nothing is left.
        ConfigError: The target exists, or an argument is unusable.
    """
    began = time.perf_counter()
    chosen = _format_of(target, format)
    if shards < 1:
        raise ConfigError(f"shards={shards}", hint="one or more")
    if shards > 1 and chosen == "folder":
        raise ConfigError("a folder of images has no shards", hint="omit --shards")
    with contextlib.nullcontext(client) if client is not None else connect() as connected:
        rows = ExportRows(connected, cache, fields=fields, where=where, split=split)
        module, name = _FORMATS[chosen]
        form: Format = getattr(importlib.import_module(f"ignitetf.export.{module}"), name)(rows)
        if shards > 1 and rows.length is None:
            raise ConfigError(
                f"{cache}: the number of rows is not known before they are read, so they cannot be"
                " distributed to shards",
                hint="omit --shards or --where",
            )
        is_folder = chosen == "folder" or shards > 1
        with Target(target, folder=is_folder, overwrite=overwrite) as place:
            written = _write(rows, form, place, shards, on_progress or (lambda rows, size: None))
    return ExportReport(
        cache, target, chosen, place.files, *written,
        round(time.perf_counter() - began, 3), _load_command(cache, target, chosen, form),
    )  # fmt: skip


def _format_of(target: str, wanted: str | None) -> str:
    known = get_args(ExportFormat)
    if wanted is not None:
        if wanted not in known:
            hint = did_you_mean(wanted, known, ", ".join(known), form=repr)
            raise ConfigError(f"no format {wanted!r}", hint=hint)
        return wanted
    suffix = PurePosixPath(target.rstrip("/")).suffix.lower()
    if not suffix:
        return "folder"
    if suffix not in _SUFFIXES:
        choose = f"choose one with --format: {', '.join(known)}"
        raise ConfigError(
            f"{target}: no format has the suffix {suffix}",
            hint=did_you_mean(suffix, _SUFFIXES, choose, form=repr),
        )
    return _SUFFIXES[suffix]


def _write(
    rows: ExportRows, form: Format, target: Target, shards: int, on_progress: Progress
) -> tuple[int, int]:
    """Write all rows; returns their number and the bytes of their values."""
    total = size = 0
    with contextlib.ExitStack() as stack:
        batches = stack.enter_context(contextlib.closing(rows.batches()))
        shard = stack.enter_context(_Shards(form, target, shards, rows.length or 0))
        for batch in batches:
            shard.write(batch)
            nbytes = sum(column.nbytes for column in batch.columns.values())
            total, size = total + len(batch), size + nbytes
            on_progress(len(batch), nbytes)
    return total, size


class _Shards:
    """The files of an export, each with about as many consecutive rows."""

    def __init__(self, form: Format, target: Target, count: int, rows: int) -> None:
        self._form, self._target, self._count, self._rows = form, target, count, rows
        self._number = 0
        self._done = 0
        self._sink = self._open()

    def _open(self) -> Sink:
        name = f"{self._number:05}-of-{self._count:05}{self._form.suffix}"
        return self._form.open(self._target, "" if self._count == 1 else name)

    def _end(self) -> int:
        """Return the number of the first row after the current file."""
        return -(-self._rows * (self._number + 1) // self._count)

    def write(self, batch: Batch) -> None:
        """Write rows; opens the next file when the current one has its share."""
        first = 0
        while self._number < self._count - 1 and self._done + len(batch) - first >= self._end():
            last = first + self._end() - self._done
            self._put(batch[first:last])
            first = last
            self._sink.close()
            self._number += 1
            self._sink = self._open()
        self._put(batch[first : len(batch)])

    def _put(self, batch: Batch) -> None:
        if len(batch):
            self._sink.write(batch)
            self._done += len(batch)

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._sink.close()
            return
        # The file is removed, but a writer that is left open would report an error then.
        with contextlib.suppress(Exception):
            self._sink.close()


def _load_command(cache: str, target: str, chosen: str, form: Format) -> str:
    where = f"{target.rstrip('/')}/{TABLE}" if chosen == "folder" else target
    words = ["ignitetf", "load", form.kind, where, "--cache", cache, *form.options()]
    return shlex.join(words)
