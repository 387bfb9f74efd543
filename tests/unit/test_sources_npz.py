import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_helpers import batch_sizes, check_resume, everything

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.wire.codes import TypeCode

X = np.arange(9 * 4 * 3, dtype=np.float32).reshape(9, 4, 3)
Y = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5], np.int64)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_fields(tmp_path, save):
    path = tmp_path / "train.npz"
    save(path, image=X.astype(np.uint8), label=Y, name=np.array(["a", "é", "ccc"] * 3))
    source = open_source("npz", path)
    assert source.schema.names == ("IMAGE", "LABEL", "NAME")
    assert source.schema["IMAGE"].shape == (4, 3)
    assert source.schema["LABEL"].type == TypeCode.LONG
    assert source.schema.type_name == "Train"
    got = everything(source)
    assert np.array_equal(np.stack(got["IMAGE"]), X.astype(np.uint8))
    assert got["LABEL"] == Y.tolist()
    assert got["NAME"] == [b"a", "é".encode(), b"ccc"] * 3
    assert got["key"] == list(range(9))
    assert source.rows == 9
    check_resume(source)
    check_resume(source, max_bytes=1)
    assert max(batch_sizes(source, 200)) <= 200


def test_features_and_labels_in_two_files(tmp_path):
    np.savez(tmp_path / "train_x.npz", X)
    np.savez(tmp_path / "train_y.npz", Y)
    source = open_source("npz", tmp_path / "train_x.npz", labels=tmp_path / "train_y.npz")
    assert source.schema.names == ("TRAIN_X", "LABEL")
    assert everything(source)["LABEL"] == Y.tolist()
    both = open_source("npz", [tmp_path / "train_x.npz", tmp_path / "train_y.npz"])
    assert both.schema.names == ("TRAIN_X", "TRAIN_Y")
    np.save(tmp_path / "z.npy", X)
    plain = open_source("npz", tmp_path / "z.npy", labels=tmp_path / "train_y.npz")
    assert np.array_equal(np.stack(everything(plain)["Z"]), X)


def test_arrays_are_chosen_renamed_and_made_key(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, x_train=X, y_train=Y, x_test=X[:2], id=Y[::-1].astype(np.int16) * 100)
    with pytest.raises(SourceError, match="differ in length") as caught:
        open_source("npz", path)
    assert "--arrays" in caught.value.hint
    source = open_source("npz", path, arrays="IMAGE=x_train,LABEL=y_train,id", key="id")
    assert source.schema.names == ("IMAGE", "LABEL")
    assert source.key_name == "ID"
    got = everything(source)
    assert got["key"] == (Y[::-1] * 100).tolist()
    assert next(source.batches()).key.values.dtype == np.int64
    with pytest.raises(ConfigError, match="x_dev") as caught:
        open_source("npz", path, arrays=["x_dev"])
    assert "x_train" in caught.value.hint


@pytest.mark.parametrize(
    "array",
    [
        X.astype(">f8"),
        X[:, 0, 0] > 3,
        Y.astype(np.uint16),
        np.asfortranarray(X),
        np.array([b"ab", b"c"] * 4 + [b""]),
        X.astype(np.float16),
        X.astype(">f2"),
    ],
    ids=["big endian", "bool", "uint16", "fortran", "bytes", "float16", "big endian float16"],
)
def test_dtypes(tmp_path, array):
    np.savez(tmp_path / "a.npz", v=array)
    source = open_source("npz", tmp_path / "a.npz")
    assert np.array_equal(np.array(everything(source)["V"]), array)
    check_resume(source)


def test_times_are_nanoseconds(tmp_path):
    times = np.array(["2024-02-29T12:00:00", "1969-12-31T23:59:59"], "datetime64[s]")
    np.savez(tmp_path / "a.npz", t=times)
    source = open_source("npz", tmp_path / "a.npz")
    assert source.schema["T"].type == TypeCode.TIMESTAMP
    assert everything(source)["T"] == [1_709_208_000_000_000_000, -1_000_000_000]
    np.savez(tmp_path / "b.npz", t=np.array(["NaT"], "datetime64[s]"))
    with pytest.raises(SourceError, match="NaT"):
        everything(open_source("npz", tmp_path / "b.npz"))


def test_fingerprint_is_that_of_the_content(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    np.savez_compressed(tmp_path / "b.npz", x=X)
    np.savez(tmp_path / "c.npz", x=X + 1)
    a, b, c = (open_source("npz", tmp_path / f"{n}.npz").fingerprint() for n in "abc")
    assert a == b != c


def test_refused_files(tmp_path):
    def refused(words, **arrays):
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(SourceError, match=words) as caught:
            open_source("npz", tmp_path / "bad.npz")
        assert caught.value.hint

    refused("dtype object is not loaded", x=np.array([{}, 1], object))
    refused("a single value", x=np.float32(3))
    refused("no Ignite type stores complex", x=np.zeros(3, np.complex64))
    refused("is not loaded", x=np.zeros(3, [("a", "i4")]))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(SourceError, match="neither"):
        open_source("npz", tmp_path / "text.npz")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(SourceError, match="no array"):
        open_source("npz", tmp_path / "empty.npz")
    with pytest.raises(SourceError, match="no such file"):
        open_source("npz", tmp_path / "absent.npz")
    np.savez(tmp_path / "name.npz", **{"a b": X})
    with pytest.raises(ConfigError, match="not a SQL identifier"):
        open_source("npz", tmp_path / "name.npz")
    np.savez(tmp_path / "case.npz", a=X, A=X)
    with pytest.raises(SourceError, match="two arrays are called 'A'"):
        open_source("npz", tmp_path / "case.npz")


def test_a_header_that_promises_too_much_is_refused_at_once(tmp_path):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 4)}
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", out.getvalue() + bytes(64))
    with pytest.raises(SourceError, match="damaged"):
        open_source("npz", tmp_path / "huge.npz")


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), packed=st.booleans())
def test_damaged_archives_raise_source_errors_only(tmp_path, data, packed):
    out = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(out, x=X, y=Y)
    raw = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    (tmp_path / "x.npz").write_bytes(raw)
    try:
        got = everything(open_source("npz", tmp_path / "x.npz"))
    except (SourceError, ConfigError) as error:
        assert "\n" not in str(error)
    else:
        assert len(got["key"]) == 9


def test_location_may_be_a_url():
    import fsspec

    out = io.BytesIO()
    np.savez(out, x=X, y=Y)
    fsspec.filesystem("memory").pipe("/data/set.npz", out.getvalue())
    assert everything(open_source("npz", "memory://data/set.npz"))["Y"] == Y.tolist()
