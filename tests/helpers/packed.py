"""Files packed as others do it."""

import io
import zipfile

import pyarrow as pa


def zipped(files):
    """A zip archive of files, by their names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as whole:
        for name, data in files.items():
            whole.writestr(name, data)
    return out.getvalue()


def zstandard(data):
    """The bytes compressed by Zstandard."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()
