import gzip
import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_helpers import batch_sizes, check_resume, everything, idx_bytes, real_data, same

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.load.sources.arrays import digits
from ignitetf.load.sources.base import BATCH_BYTES
from ignitetf.load.sources.idx import FILES, mnist
from ignitetf.wire.columns import Batch

IMAGES = np.arange(7 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(7, 28, 28)
LABELS = np.array([5, 0, 4, 1, 9, 2, 1], np.uint8)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(LABELS)))
    return tmp_path


def test_real_mnist_is_read_whole_and_in_order():
    folder = real_data("mnist")
    for split, prefix, count in (("train", "train", 60_000), ("test", "t10k", 10_000)):
        source = mnist(split, folder)
        raw = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
        batches = list(source.batches())
        assert b"".join(b.columns["IMAGE"].values.tobytes() for b in batches) == raw
        assert np.concatenate([b.columns["LABEL"].values for b in batches]).tolist() == list(labels)
        keys = np.concatenate([b.key.values for b in batches])
        assert np.array_equal(keys, np.arange(count))
        assert source.rows == count == source.position
        assert max(b.nbytes for b in batches) <= BATCH_BYTES


def test_mnist_fields_are_those_of_the_design(folder):
    source = open_source("mnist", folder, split="train")
    image, label = source.schema.fields
    assert (image.name, image.dtype, image.shape) == ("IMAGE", np.uint8, (28, 28, 1))
    assert (label.name, label.dtype, label.shape) == ("LABEL", np.int32, ())
    assert source.class_names == list("0123456789")
    got = everything(source)
    assert got["key"] == list(range(7))
    assert got["LABEL"] == LABELS.tolist()
    assert np.array_equal(np.stack(got["IMAGE"])[..., 0], IMAGES)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_mnist_file_names(tmp_path, zipped, dotted):
    for name, array in (("t10k-images-idx3-ubyte", IMAGES), ("t10k-labels-idx1-ubyte", LABELS)):
        data = idx_bytes(array)
        name = name.replace("-idx", ".idx") if dotted else name
        if zipped:
            name, data = f"{name}.gz", gzip.compress(data)
        (tmp_path / name).write_bytes(data)
    assert everything(mnist("test", tmp_path))["LABEL"] == LABELS.tolist()


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_resumes_at_every_position(tmp_path, zipped):
    pack = gzip.compress if zipped else bytes
    (tmp_path / "x").write_bytes(pack(idx_bytes(IMAGES[:, :3, :4])))
    (tmp_path / "y").write_bytes(pack(idx_bytes(LABELS)))
    source = open_source("idx", tmp_path / "x", labels=tmp_path / "y")
    check_resume(source)
    assert max(batch_sizes(source, 64)) <= 64
    assert everything(source, start=7)["key"] == everything(source, start=99)["key"] == []


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2, 2)])
def test_idx_types_and_shapes(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (tmp_path / "x").write_bytes(idx_bytes(array))
    source = open_source("idx", str(tmp_path / "x"))
    assert source.schema["IMAGE"].shape == shape[1:]
    got = np.array(everything(source)["IMAGE"])
    assert got.dtype == np.dtype(dtype)
    assert np.array_equal(got, array)


def test_fingerprint_follows_the_content(folder):
    first = mnist("train", folder).fingerprint()
    assert mnist("train", folder).fingerprint() == first
    changed = LABELS.copy()
    changed[0] = 6
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(changed)))
    assert mnist("train", folder).fingerprint() != first


def test_location_may_be_an_fsspec_url():
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe("/idx/train-images-idx3-ubyte", idx_bytes(IMAGES))
    fs.pipe("/idx/train-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(LABELS)))
    source = mnist("train", "memory://idx")
    assert everything(source)["LABEL"] == LABELS.tolist()
    assert source.fingerprint() == mnist("train", "memory://idx").fingerprint()


def damage(folder, name, data):
    (folder / name).write_bytes(data)


BAD = {
    "missing": (None, "no file train-images-idx3-ubyte"),
    "empty": (b"", "truncated"),
    "header cut": (idx_bytes(IMAGES)[:9], "truncated"),
    "truncated": (idx_bytes(IMAGES)[:-1], "truncated"),
    "too long": (idx_bytes(IMAGES) + b"x", "too long"),
    "magic": (b"\x89PNG" + idx_bytes(IMAGES)[4:], "wrong magic number 0x89504e47"),
    "negative": (b"\0\0\x08\x03" + b"\xff" * 12, "impossible dimensions"),
    "huge": (b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3, "one record has"),
    "gzip cut": (gzip.compress(idx_bytes(IMAGES))[:-20], "truncated"),
    "gzip damaged": (gzip.compress(idx_bytes(IMAGES))[:-5] + b"12345", "damaged gzip"),
    "gzip too long": (gzip.compress(idx_bytes(IMAGES) + b"x"), "too long"),
    "labels": (idx_bytes(LABELS), "wrong magic number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_image_file(folder, case):
    data, words = BAD[case]
    path = folder / "train-images-idx3-ubyte"
    if case == "labels":
        path = folder / "train-labels-idx1-ubyte.gz"
        data = gzip.compress(idx_bytes(IMAGES))
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        mnist("train", folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_images_and_labels_of_different_length(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(LABELS[:6])))
    with pytest.raises(SourceError, match=r"7 records.*6 labels") as caught:
        mnist("train", folder)
    assert caught.value.hint


def test_a_label_that_is_no_digit_is_a_bad_record(folder):
    wrong = np.array([5, 0, 77, 1, 9, 2, 1], np.uint8)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(wrong)))
    with pytest.raises(SourceError, match=r"record 2: label 77 is not in 0\.\.9"):
        everything(mnist("train", folder))
    source = mnist("train", folder, bad_records="skip")
    assert everything(source)["key"] == [0, 1, 3, 4, 5, 6]
    assert [(r.name[-8:], r.reason) for r in source.skipped] == [
        ("record 2", "label 77 is not in 0..9")
    ]
    check_resume(source, max_bytes=1000)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), zipped=st.booleans())
def test_damaged_files_raise_source_errors_only(tmp_path, data, zipped):
    raw = bytearray(idx_bytes(IMAGES[:, :2, :2]))
    raw = bytearray(gzip.compress(bytes(raw), mtime=0)) if zipped else raw
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(len(raw) // 2, len(raw))) :]
    (tmp_path / "x").write_bytes(raw)
    try:
        batches = list(open_source("idx", tmp_path / "x").batches())
    except SourceError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(batch, Batch) for batch in batches)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    (tmp_path / "www").mkdir()
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path / "home"))
    handler = partial(Quiet, directory=str(tmp_path / "www"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("IGNITETF_MNIST_URL", f"http://127.0.0.1:{server.server_port}")
        yield tmp_path / "www"
        server.shutdown()
        thread.join()


@pytest.fixture
def small_mnist(monkeypatch):
    files = {
        "t10k-images-idx3-ubyte": idx_bytes(IMAGES),
        "t10k-labels-idx1-ubyte": idx_bytes(LABELS),
    }
    for name, data in files.items():
        pinned = (len(data), hashlib.sha256(data).hexdigest())
        monkeypatch.setitem(FILES, name, pinned)
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()}


def test_real_mnist_has_the_pinned_checksums(mirror, monkeypatch, tmp_path):
    folder = real_data("mnist")
    for file in folder.glob("t10k*.gz"):
        (mirror / file.name).symlink_to(file)
    assert same(everything(mnist("test")), everything(mnist("test", folder)))
    for file in folder.glob("train-*.gz"):
        raw = gzip.decompress(file.read_bytes())
        assert FILES[file.stem] == (len(raw), hashlib.sha256(raw).hexdigest())


def test_downloads_are_kept_and_used_again(mirror, small_mnist, tmp_path):
    for name, data in small_mnist.items():
        (mirror / name).write_bytes(data)
    first = everything(mnist("test"))
    assert first["LABEL"] == LABELS.tolist()
    for name in small_mnist:
        (mirror / name).unlink()
    assert same(everything(mnist("test")), first)
    kept = sorted(p.name for p in (tmp_path / "home" / "data" / "mnist").iterdir())
    assert kept == sorted(small_mnist)


def test_a_damaged_kept_file_is_fetched_again(mirror, small_mnist, tmp_path):
    for name, data in small_mnist.items():
        (mirror / name).write_bytes(data)
    mnist("test")
    kept = tmp_path / "home" / "data" / "mnist" / "t10k-images-idx3-ubyte.gz"
    kept.write_bytes(kept.read_bytes()[:-30])
    assert everything(mnist("test"))["LABEL"] == LABELS.tolist()


@pytest.mark.parametrize("case", ["absent", "wrong content", "no gzip", "cut", "endless"])
def test_a_bad_download_leaves_nothing(mirror, small_mnist, tmp_path, case):
    good = small_mnist["t10k-images-idx3-ubyte.gz"]
    served = {
        "wrong content": gzip.compress(idx_bytes(IMAGES[::-1])),
        "no gzip": b"<html>proxy login</html>",
        "cut": good[:-9],
        "endless": gzip.compress(idx_bytes(IMAGES)) + bytes(3 << 20),
    }
    if case in served:
        (mirror / "t10k-images-idx3-ubyte.gz").write_bytes(served[case])
    with pytest.raises(SourceError) as caught:
        mnist("test")
    assert "http://127.0.0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--source" in caught.value.hint
    assert list((tmp_path / "home" / "data" / "mnist").iterdir()) == []


def test_no_server(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    monkeypatch.setenv("IGNITETF_MNIST_URL", "http://user:secret@127.0.0.1:9/x?sig=secret")
    with pytest.raises(SourceError, match="could not download") as caught:
        mnist("test")
    assert "secret" not in str(caught.value)


def test_digits_split_is_fixed_and_complete():
    from sklearn.datasets import load_digits

    train, test, whole = (everything(digits(split)) for split in ("train", "test", "all"))
    assert (len(train["key"]), len(test["key"])) == (1438, 359)
    assert np.array_equal(np.stack(whole["IMAGE"])[..., 0], load_digits().images)
    rows = sorted(image.tobytes() for image in train["IMAGE"] + test["IMAGE"])
    assert rows == sorted(image.tobytes() for image in whole["IMAGE"])
    assert digits("train").fingerprint() == digits("train").fingerprint()
    assert digits("train").fingerprint() != digits("test").fingerprint()
    assert set(train["LABEL"]) == set(test["LABEL"]) == set(range(10))
    check_resume(digits("test"), max_bytes=5000)


def test_wrong_names_are_told_with_the_right_ones(folder):
    with pytest.raises(ConfigError, match="minst") as caught:
        open_source("minst")
    assert caught.value.hint == "did you mean 'mnist'?"
    with pytest.raises(ConfigError, match="splitt") as caught:
        open_source("mnist", folder, splitt="train")
    assert caught.value.hint == "did you mean 'split'?"
    for wrong in (lambda: mnist("dev", folder), lambda: digits("dev")):
        with pytest.raises(ConfigError, match="dev"):
            wrong()
    with pytest.raises(ConfigError, match="bad_records"):
        mnist("train", folder, bad_records="drop")
    with pytest.raises(SourceError, match="no such folder"):
        mnist("train", folder / "nowhere")
    with pytest.raises(SourceError, match="Protocol not known"):
        open_source("idx", "nonsense://bucket/file")
