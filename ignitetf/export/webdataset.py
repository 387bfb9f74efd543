"""WebDataset shards: a tar file in which the files of a row follow one another.

columns -> **NUMBER.jpg, NUMBER.cls, NUMBER.json ...** -> tar

The image keeps its suffix, LABEL is in `.cls`, arrays are in `.npy`, other blobs in `.bin`, and all
other fields in `.json`. The first file lists the fields, for `load.sources.webdataset`.
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import IO, Any

import numpy as np

from ignitetf.export.base import COLUMNS, Format, Sink, python_values, utf8_text
from ignitetf.export.images import suffix_of
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.load.sources.webdataset import FIELDS_FILE
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.datatypes import INTEGERS, Family, family_of
from ignitetf.wire.schema import BYTES, Field

__all__ = ["WebDatasetFormat"]


class WebDatasetFormat(Format):
    """WebDataset shards."""

    kind = "webdataset"
    suffix = ".tar"

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self.require("webdataset", COLUMNS)
        self.files = {field.name: suffix for field in self.fields if (suffix := _suffix(field))}
        noted = {
            "fields": [field.to_json() for field in self.fields],
            "files": self.files,
            "class_names": rows.class_names,
        }
        self.noted = json.dumps(noted, ensure_ascii=False).encode()
        self.written = 0

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer of one shard; row numbers continue from shard to shard."""
        return _TarSink(self, target.open(name))


class _TarSink(Sink):
    def __init__(self, form: WebDatasetFormat, file: IO[bytes]) -> None:
        self._form, self._file = form, file
        tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._tar = tar
        self._add(FIELDS_FILE, form.noted)

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        self._tar.addfile(info, io.BytesIO(data))

    def write(self, batch: Batch) -> None:
        """Write the files of each row."""
        form = self._form
        values = [python_values(f, batch.columns[f.name]) for f in form.fields]
        for row in zip(*values, strict=True):
            number = f"{form.written:010}"
            form.written += 1
            beside: dict[str, Any] = {}
            for field, value in zip(form.fields, row, strict=True):
                suffix = form.files.get(field.name)
                if value is None:
                    continue
                if suffix is None:
                    beside[field.name] = _plain(field, value)
                    if field.name == "LABEL" and field.type in INTEGERS:
                        self._add(f"{number}.cls", str(value).encode())
                elif suffix == "npy":
                    self._add(f"{number}.{field.name.lower()}.npy", _npy(value))
                else:
                    self._add(
                        f"{number}{suffix_of(value) if suffix == '*' else '.' + suffix}", value
                    )
            self._add(f"{number}.json", json.dumps(beside, ensure_ascii=False).encode())

    def close(self) -> None:
        """Write the end of the archive, and close the file."""
        self._tar.close()
        self._file.close()


def _suffix(field: Field) -> str | None:
    """Return the suffix of a field's files, `*` for the image's; None if it has no own file."""
    if field.type is TypeCode.BYTE_ARRAY and field.dtype == BYTES:
        return "*" if field.name == "IMAGE" else f"{field.name.lower()}.bin"
    return "npy" if family_of(field.type) is Family.ARRAY else None


def _plain(field: Field, value: Any) -> Any:
    if field.type is TypeCode.STRING_ARRAY:
        return [utf8_text(field, text) for text in value]
    return utf8_text(field, value) if isinstance(value, bytes) else value


def _npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=False)
    return out.getvalue()
