"""Bad input by each way in: the errno of a local file system, the error class of TensorFlow."""

import errno
import itertools
import os
import unicodedata

import fsspec
import pytest

from ignitetf.fs.filesystem import IgniteFileSystem
from ignitetf.fs.oserrors import NativeIOUnavailable
from ignitetf.settings import Settings

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

_NAME = "ERRTEST"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def fs(address):
    return IgniteFileSystem(address=address, name=_NAME, skip_instance_cache=True)


@pytest.fixture
def base(fs):
    """A directory with a file `f` and one that is not empty, `d`; removed afterwards."""
    path = f"/errors{os.getpid()}-{next(_numbers)}"
    fs.pipe({f"{path}/f": b"content", f"{path}/d/g": b"below"})
    yield path
    fs.rm(path, recursive=True)


@pytest.fixture(scope="module")
def gfile(address):
    """`tf.io.gfile`, which knows the same file system."""
    tf = pytest.importorskip("tensorflow")
    try:
        from ignitetf.fs import gfile
    except NativeIOUnavailable as error:
        pytest.skip(str(error))
    gfile.configure(Settings.resolve(address=address), _NAME)
    return tf.io.gfile


def write(io, path, mode="wb"):
    """Write through fsspec or through TensorFlow."""
    with (io.GFile if hasattr(io, "GFile") else io.open)(path, mode) as file:
        file.write(b"new")


def read(io, path):
    with (io.GFile if hasattr(io, "GFile") else io.open)(path, "rb") as file:
        return file.read()


NOT_FOUND, EXISTS = "NotFoundError", "AlreadyExistsError"
FAILED, INVALID = "FailedPreconditionError", "InvalidArgumentError"

# What is done below a directory, by fsspec and by tf.io.gfile; the errno, the class of TensorFlow.
# None where TensorFlow has no such operation or makes no error of it, on local disks neither.
CASES = {
    "read without a file": (read, read, "", errno.EISDIR, FAILED),
    "write without a file": (write, write, "", errno.EISDIR, FAILED),
    "read the root": (read, read, None, errno.EISDIR, FAILED),
    "write the root": (write, write, None, errno.EISDIR, FAILED),
    "read a missing file": (read, read, "none", errno.ENOENT, NOT_FOUND),
    "read below a missing directory": (read, read, "no/ne", errno.ENOENT, NOT_FOUND),
    "describe a missing file": (
        lambda fs, path: fs.info(path),
        lambda tf, path: tf.stat(path),
        "none",
        errno.ENOENT,
        NOT_FOUND,
    ),
    "remove a missing file": (
        lambda fs, path: fs.rm_file(path),
        lambda tf, path: tf.remove(path),
        "none",
        errno.ENOENT,
        NOT_FOUND,
    ),
    "remove a directory as a file": (
        lambda fs, path: fs.rm_file(path),
        lambda tf, path: tf.remove(path),
        "d",
        errno.EISDIR,
        FAILED,
    ),
    "remove a directory that is not empty": (
        lambda fs, path: fs.rmdir(path),
        None,
        "d",
        errno.ENOTEMPTY,
        FAILED,
    ),
    "remove a file as a directory": (
        lambda fs, path: fs.rmdir(path),
        None,
        "f",
        errno.ENOTDIR,
        FAILED,
    ),
    "remove a missing directory": (
        lambda fs, path: fs.rm(path, recursive=True),
        lambda tf, path: tf.rmtree(path),
        "none",
        errno.ENOENT,
        NOT_FOUND,
    ),
    "remove the root": (
        lambda fs, path: fs.rm(path, recursive=True),
        lambda tf, path: tf.rmtree(path),
        None,
        errno.EBUSY,
        FAILED,
    ),
    "remove the root as an empty directory": (
        lambda fs, path: fs.rmdir(path),
        None,
        None,
        errno.EBUSY,
        FAILED,
    ),
    "rename the root": (
        lambda fs, path: fs.rename_exactly(path, "/new"),
        lambda tf, path: tf.rename(path, f"{path}new"),
        None,
        errno.EBUSY,
        FAILED,
    ),
    "read below a file": (read, read, "f/g", errno.ENOTDIR, FAILED),
    "write below a file": (write, write, "f/g", errno.ENOTDIR, FAILED),
    "make a directory below a file": (
        lambda fs, path: fs.makedirs(path),
        lambda tf, path: tf.makedirs(path),
        "f/g/h",
        errno.ENOTDIR,
        FAILED,
    ),
    "make a directory where a file is": (
        lambda fs, path: fs.mkdir(path),
        None,
        "f",
        errno.EEXIST,
        EXISTS,
    ),
    "make a directory again": (
        lambda fs, path: fs.mkdir(path),
        None,
        "d",
        errno.EEXIST,
        EXISTS,
    ),
    "create a file again": (
        lambda fs, path: write(fs, path, "xb"),
        None,
        "f",
        errno.EEXIST,
        EXISTS,
    ),
    "rename into itself": (
        lambda fs, path: fs.rename_exactly(path, f"{path}/below"),
        lambda tf, path: tf.rename(path, f"{path}/below"),
        "d",
        errno.EINVAL,
        INVALID,
    ),
    "rename a missing file": (
        lambda fs, path: fs.rename_exactly(path, f"{path}-new"),
        lambda tf, path: tf.rename(path, f"{path}-new"),
        "none",
        errno.ENOENT,
        NOT_FOUND,
    ),
    "rename a directory to a file": (
        lambda fs, path: fs.rename_exactly(path, f"{path}/../f"),
        lambda tf, path: tf.rename(path, f"{path}/../f", overwrite=True),
        "d",
        errno.ENOTDIR,
        FAILED,
    ),
    "rename a file to a directory": (
        lambda fs, path: fs.rename_exactly(path, f"{path}/../d"),
        lambda tf, path: tf.rename(path, f"{path}/../d", overwrite=True),
        "f",
        errno.EISDIR,
        FAILED,
    ),
    "list a missing directory": (
        lambda fs, path: fs.ls(path),
        lambda tf, path: tf.listdir(path),
        "none",
        errno.ENOENT,
        NOT_FOUND,
    ),
    "a name that is too long": (write, write, "n" * 256, errno.ENAMETOOLONG, INVALID),
    "a name that is too long in UTF-8": (write, write, "ż" * 128, errno.ENAMETOOLONG, INVALID),
    "a name with NUL": (write, None, "nul\0", errno.EINVAL, INVALID),
    "a name that is no Unicode": (write, None, "half \udc80", errno.EILSEQ, INVALID),
}


def place(base, below):
    return "/" if below is None else f"{base}/{below}" if below else base


@pytest.mark.parametrize("case", CASES)
def test_fsspec_raises_the_errno_of_a_local_file_system(fs, base, case):
    work, _, below, code, _ = CASES[case]
    with pytest.raises(OSError) as caught:
        work(fs, place(base, below))
    assert caught.value.errno == code, caught.value
    # The subclass fits, as with errors of the operating system.
    assert type(caught.value) is type(OSError(code, ""))
    assert unharmed(fs, base)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][1]])
def test_tensorflow_raises_the_class_of_a_local_path(fs, gfile, base, tmp_path, case):
    import tensorflow as tf

    _, work, below, _, kind = CASES[case]
    with pytest.raises(tf.errors.OpError) as caught:
        work(gfile, f"igfs://{place(base, below)}")
    assert type(caught.value).__name__ == kind, caught.value
    assert unharmed(fs, base)
    if below is not None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "g").write_bytes(b"below")
        (tmp_path / "f").write_bytes(b"content")
        with pytest.raises(type(caught.value)):
            work(gfile, place(str(tmp_path), below))


def unharmed(fs, base):
    return fs.find(base) == [f"{base}/d/g", f"{base}/f"] and fs.cat(f"{base}/f") == b"content"


NAMES = {
    "accents": "żółć",
    "decomposed": unicodedata.normalize("NFD", "żółć"),
    "composed": unicodedata.normalize("NFC", "żółć"),
    "other scripts": "日本語 עברית العربية",
    "beyond the basic plane": "🎉𝔘",
    "joined and reversed": "👩‍👩‍👧\u202egnp.",
    "spaces": "  two  words  ",
    "line ends": "a\nb\r\tc",
    "control": "\x01\x7f",
    "marks of URLs": "100% #1?x=y&z;@host:80+~",
    "marks of patterns": "a*b?[c]{d}",
    "backslash and quotes": "\\\"'`$(x)",
    "dots": "...",
    "longest": "n" * 255,
    "longest in UTF-8": "ż" * 127 + "n",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_unicode_is_a_name(fs, gfile, base, name):
    data = name.encode()
    with fs.open(f"{base}/u/{name}", "wb") as file:
        file.write(data)
    uri = f"igfs://{base}/u"
    assert fs.ls(f"{base}/u", detail=False) == [f"{base}/u/{name}"]
    assert gfile.listdir(uri) == [name]
    assert read(gfile, f"{uri}/{name}") == fs.cat_file(f"{base}/u/{name}") == data
    gfile.rename(f"{uri}/{name}", f"{uri}/plain")
    gfile.copy(f"{uri}/plain", f"{uri}/{name}")
    assert sorted(gfile.listdir(uri)) == sorted([name, "plain"])
    assert fs.info(f"{base}/u/{name}")["size"] == gfile.stat(f"{uri}/{name}").length == len(data)
    gfile.remove(f"{uri}/{name}")
    assert fs.ls(f"{base}/u", detail=False) == [f"{base}/u/plain"]


def test_a_url_opens_any_name_that_a_url_can_carry(address, base):
    for name in ("żółć 日本.txt", "100%25 #1?x=y", "🎉"):
        url = f"igfs://{address}{base}/{name}"
        with fsspec.open(url, "w", name=_NAME, encoding="utf-8") as file:
            file.write(name)
        with fsspec.open(url, "r", name=_NAME, encoding="utf-8") as file:
            assert file.read() == name


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("{base}/d/../f", "{base}/f"),
        ("{base}/none/../f", "{base}/f"),
        ("{base}/./d/.././f", "{base}/f"),
        ("/../../..{base}/f", "{base}/f"),
        ("{base}//d///g", "{base}/d/g"),
    ],
)
def test_dots_lead_where_they_say_and_never_out(fs, gfile, base, path, same):
    path, same = path.format(base=base), same.format(base=base)
    expected = fs.cat(same)
    assert fs.cat_file(path) == read(gfile, f"igfs://{path}") == expected
    write(gfile, f"igfs://{path}")
    assert fs.cat(same) == b"new"
    write(fs, path, "ab")
    assert fs.cat(same) == b"newnew"
    assert len(fs.find(base)) == 2


def test_no_node_refuses_the_connection(gfile):
    import tensorflow as tf

    with pytest.raises(ConnectionRefusedError) as caught:
        fsspec.open("igfs://127.0.0.1:1/x", "rb").open()
    assert caught.value.errno == errno.ECONNREFUSED
    for work in (read, write, lambda io, path: io.exists(path), lambda io, path: io.rmtree(path)):
        with pytest.raises(tf.errors.UnavailableError, match="refused"):
            work(gfile, "igfs://127.0.0.1:1/x")


def test_an_address_that_is_none_is_invalid(gfile):
    import tensorflow as tf

    with pytest.raises(OSError) as caught:
        fsspec.open("igfs://host:port/x", "rb").open()
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(gfile, "igfs://host:port/x")
