"""Bad input by each way in: the errno of a local file system, the error class of TensorFlow."""

import errno
import itertools
import os
import unicodedata
from functools import partial

import fsspec
import pytest
from helpers.needs import needs_native_io

from ignitetf.fs.filesystem import IgniteFileSystem
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
    needs_native_io()
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address), _NAME)
    return tf.io.gfile


def write(io, path, mode="wb"):
    """Write through fsspec or through TensorFlow."""
    with (io.GFile if hasattr(io, "GFile") else io.open)(path, mode) as file:
        file.write(b"new")


def read(io, path):
    with (io.GFile if hasattr(io, "GFile") else io.open)(path, "rb") as file:
        return file.read()


def call(name, *words, **options):
    """A method by its name, given a path; {} in the words after it stands for the path, too."""
    return lambda io, path: getattr(io, name)(path, *(w.format(path) for w in words), **options)


def rename(target, **options):
    return call("rename_exactly", target), call("rename", target, **options)


# Each operation by fsspec and by tf.io.gfile; None where TensorFlow has no such operation or makes
# no error of it, on local disks neither.
READ, WRITE = (read, read), (write, write)
WRITE_BY_FSSPEC = write, None
CREATE = partial(write, mode="xb"), None
DESCRIBE = call("info"), call("stat")
LIST = call("ls"), call("listdir")
REMOVE = call("rm_file"), call("remove")
REMOVE_EMPTY = call("rmdir"), None
REMOVE_ALL = call("rm", recursive=True), call("rmtree")
MAKE = call("mkdir"), None
MAKE_ALL = call("makedirs"), call("makedirs")

NOT_FOUND, EXISTS = "NotFoundError", "AlreadyExistsError"
FAILED, INVALID = "FailedPreconditionError", "InvalidArgumentError"

# What is done below a directory, to the root where that is None; the errno, the class of TensorFlow.
CASES = {
    "read without a file": (READ, "", errno.EISDIR, FAILED),
    "write without a file": (WRITE, "", errno.EISDIR, FAILED),
    "read the root": (READ, None, errno.EISDIR, FAILED),
    "write the root": (WRITE, None, errno.EISDIR, FAILED),
    "read a missing file": (READ, "none", errno.ENOENT, NOT_FOUND),
    "read below a missing directory": (READ, "no/ne", errno.ENOENT, NOT_FOUND),
    "describe a missing file": (DESCRIBE, "none", errno.ENOENT, NOT_FOUND),
    "remove a missing file": (REMOVE, "none", errno.ENOENT, NOT_FOUND),
    "remove a directory as a file": (REMOVE, "d", errno.EISDIR, FAILED),
    "remove a directory that is not empty": (REMOVE_EMPTY, "d", errno.ENOTEMPTY, FAILED),
    "remove a file as a directory": (REMOVE_EMPTY, "f", errno.ENOTDIR, FAILED),
    "remove a missing directory": (REMOVE_ALL, "none", errno.ENOENT, NOT_FOUND),
    "remove the root": (REMOVE_ALL, None, errno.EBUSY, FAILED),
    "remove the root as an empty directory": (REMOVE_EMPTY, None, errno.EBUSY, FAILED),
    "rename the root": (rename("{}new"), None, errno.EBUSY, FAILED),
    "read below a file": (READ, "f/g", errno.ENOTDIR, FAILED),
    "write below a file": (WRITE, "f/g", errno.ENOTDIR, FAILED),
    "make a directory below a file": (MAKE_ALL, "f/g/h", errno.ENOTDIR, FAILED),
    "make a directory where a file is": (MAKE, "f", errno.EEXIST, EXISTS),
    "make a directory again": (MAKE, "d", errno.EEXIST, EXISTS),
    "create a file again": (CREATE, "f", errno.EEXIST, EXISTS),
    "rename into itself": (rename("{}/below"), "d", errno.EINVAL, INVALID),
    "rename a missing file": (rename("{}-new"), "none", errno.ENOENT, NOT_FOUND),
    "rename a directory to a file": (rename("{}/../f", overwrite=True), "d", errno.ENOTDIR, FAILED),
    "rename a file to a directory": (rename("{}/../d", overwrite=True), "f", errno.EISDIR, FAILED),
    "list a missing directory": (LIST, "none", errno.ENOENT, NOT_FOUND),
    "a name that is too long": (WRITE, "n" * 256, errno.ENAMETOOLONG, INVALID),
    "a name that is too long in UTF-8": (WRITE, "ż" * 128, errno.ENAMETOOLONG, INVALID),
    "a name with NUL": (WRITE_BY_FSSPEC, "nul\0", errno.EINVAL, INVALID),
    "a name that is no Unicode": (WRITE_BY_FSSPEC, "half \udc80", errno.EILSEQ, INVALID),
}


def place(base, below):
    return "/" if below is None else f"{base}/{below}" if below else base


@pytest.mark.parametrize("case", CASES)
def test_fsspec_raises_the_errno_of_a_local_file_system(fs, base, case):
    (work, _), below, code, _ = CASES[case]
    with pytest.raises(OSError) as caught:
        work(fs, place(base, below))
    assert caught.value.errno == code, caught.value
    # The subclass fits, as with errors of the operating system.
    assert type(caught.value) is type(OSError(code, ""))
    assert unharmed(fs, base)


@pytest.mark.parametrize("case", [case for case, (work, *_) in CASES.items() if work[1]])
def test_tensorflow_raises_the_class_of_a_local_path(fs, gfile, base, tmp_path, case):
    import tensorflow as tf

    (_, work), below, _, kind = CASES[case]
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
    for work in (read, write, call("exists"), call("rmtree")):
        with pytest.raises(tf.errors.UnavailableError, match="refused"):
            work(gfile, "igfs://127.0.0.1:1/x")


def test_an_address_that_is_none_is_invalid(gfile):
    import tensorflow as tf

    with pytest.raises(OSError) as caught:
        fsspec.open("igfs://host:port/x", "rb").open()
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(gfile, "igfs://host:port/x")
