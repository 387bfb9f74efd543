"""Images in columns of Hugging Face: a damaged one is a bad record, whatever exported it."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from source_helpers import check_resume, everything

from ignitetf.errors import SourceError
from ignitetf.load.sources import open_source
from ignitetf.wire.arrow import FIELD_METADATA
from ignitetf.wire.schema import field_for

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def written(path, files, field):
    """A file as `datasets` and our exports write it; `field` is the column before an export."""
    noted = {} if field is None else {FIELD_METADATA: json.dumps(field.to_json()).encode()}
    content = pa.field("bytes", pa.binary(), metadata=noted)
    kind = pa.struct([content, pa.field("path", pa.string())])
    notes = {"info": {"features": {"IMAGE": {"_type": "Image"}}}}
    schema = pa.schema(
        [pa.field("IMAGE", kind), pa.field("N", pa.int64())],
        metadata={b"huggingface": json.dumps(notes).encode()},
    )
    rows = [{"bytes": file, "path": None} for file in files]
    table = pa.table({"IMAGE": pa.array(rows, kind), "N": range(len(files))}, schema=schema)
    parquet.write_table(table, path)
    return str(path)


PIXELS = np.random.default_rng(1).integers(0, 256, (6, 5, 4, 3), np.uint8)
DEEP = np.random.default_rng(1).integers(0, 2**16, (6, 5, 4), np.uint16)
BLOB = None
KINDS = {
    "files": (PIXELS, BLOB),
    "pixels": (PIXELS, field_for("IMAGE", np.dtype(np.uint8), (5, 4, 3))),
    "16 bits": (DEEP, field_for("IMAGE", np.dtype(np.uint16), (5, 4))),
}
DAMAGE = {
    "cut": lambda file: file[:-20],
    "empty": lambda file: b"",
    "a bit": lambda file: file[:60] + bytes([file[60] ^ 1]) + file[61:],
    "another format": lambda file: b"<html>",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_image_is_a_bad_record(tmp_path, kind, damage):
    pixels, field = KINDS[kind]
    files = [png(one) for one in pixels]
    whole = everything(open_source("parquet", written(tmp_path / "a.parquet", files, field)))
    shown = files if field is None else [one.ravel() for one in pixels]
    assert all(
        np.array_equal(np.ravel(a), b) if field else a == b
        for a, b in zip(whole["IMAGE"], shown, strict=True)
    )
    files[2] = DAMAGE[damage](files[2])
    path = written(tmp_path / "b.parquet", files, field)
    with pytest.raises(SourceError, match="row 3"):
        everything(open_source("parquet", path))
    source = open_source("parquet", path, bad_records="skip")
    assert everything(source)["N"] == [0, 1, 3, 4, 5]
    assert len(source.skipped) == 1
    check_resume(source)
    plain = open_source("parquet", path, columns="N")
    assert everything(plain)["N"] == list(range(6))


@pytest.mark.parametrize("shape", [(4, 5, 3), (5, 4), (6, 4, 3)])
def test_pixels_of_another_image_are_a_bad_record(tmp_path, shape):
    files = [png(one) for one in PIXELS]
    other = np.zeros(shape, np.uint8)
    files[2] = png(other)
    path = written(tmp_path / "a.parquet", files, KINDS["pixels"][1])
    source = open_source("parquet", path, bad_records="skip")
    got = everything(source)
    assert got["N"] == ([0, 1, 3, 4, 5])
