"""`igfs://` through fsspec beside its abstract suite: pandas, pyarrow, transactions, pickling."""

import array
import contextlib
import copy
import io
import itertools
import os
import pickle
import random
import subprocess
import sys

import fsspec
import numpy as np
import pytest

from ignitetf.fs.filesystem import IgniteFileSystem

pytestmark = pytest.mark.node

_numbers = itertools.count()


@pytest.fixture
def fs(address, monkeypatch):
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    return IgniteFileSystem(skip_instance_cache=True)


@pytest.fixture
def base(fs):
    path = f"/fsspec{os.getpid()}-{next(_numbers)}"
    yield path
    if fs.exists(path):
        fs.rm(path, recursive=True)


@pytest.mark.core
def test_urls_name_user_node_and_path(address):
    cls = fsspec.get_filesystem_class("igfs")
    assert cls._get_kwargs_from_urls("igfs://user@host:1234/a/b") == {
        "address": "host:1234",
        "username": "user",
    }
    assert cls._get_kwargs_from_urls("igfs:///a/b") == {}
    assert cls._strip_protocol("igfs://user@host:1234/a//b/../c/") == "/a/c"
    assert cls._strip_protocol("igfs://host") == cls._strip_protocol("igfs:///") == "/"
    assert cls._strip_protocol(["a", "igfs:///b"]) == ["/a", "/b"]
    with fsspec.open(f"igfs://{address}/url-{os.getpid()}", "w") as file:
        file.write("text")
    fs, path = fsspec.url_to_fs(f"igfs://{address}/url-{os.getpid()}")
    assert fs.cat(path) == b"text"
    assert fs.unstrip_protocol(path) == f"igfs://{address}{path}"
    fs.rm(path)


@pytest.mark.core
def test_pandas_and_pyarrow(fs, base):
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    frame = pandas.DataFrame({"a": range(1000), "b": [f"x{n}" for n in range(1000)]})
    frame.to_csv(f"igfs://{base}/x.csv", index=False)
    assert pandas.read_csv(f"igfs://{base}/x.csv").equals(frame)
    frame.to_parquet(f"igfs://{base}/x.parquet")
    assert pandas.read_parquet(f"igfs://{base}/x.parquet").equals(frame)
    table = pyarrow.parquet.read_table(f"{base}/x.parquet", filesystem=fs)
    assert table.num_rows == 1000
    data = arrow.table({"k": [1, 2, 3] * 100, "v": range(300)})
    options = {"format": "parquet", "partitioning": ["k"], "filesystem": fs}
    pyarrow.dataset.write_dataset(data, f"{base}/ds", **options)
    assert pyarrow.dataset.dataset(f"{base}/ds", **options).to_table().num_rows == 300


@pytest.mark.core
def test_a_transaction_shows_its_files_at_the_end(fs, base):
    with fs.transaction:
        with fs.open(f"{base}/one", "wb") as file:
            file.write(b"1" * 3_000_000)
        assert not fs.exists(f"{base}/one")
    assert fs.cat(f"{base}/one") == b"1" * 3_000_000
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open(f"{base}/two", "wb") as file:
            file.write(b"2")
        raise ZeroDivisionError
    assert not fs.exists(f"{base}/two")


@pytest.mark.core
@pytest.mark.parametrize(("mode", "new"), [("wb", b"new"), ("w", "new"), ("at", "new")])
def test_an_exception_in_a_with_block_keeps_the_old_file(fs, base, mode, new):
    fs.pipe(f"{base}/f", b"old")
    with pytest.raises(ZeroDivisionError), fs.open(f"{base}/f", mode) as file:
        file.write(new)
        raise ZeroDivisionError
    assert fs.cat(f"{base}/f") == b"old"


def test_a_text_file_is_what_was_written(fs, base):
    with fs.open(f"{base}/f", "w", encoding="latin2", newline="\r\n") as file:
        file.write("zażółć\n")
    assert fs.cat(f"{base}/f").decode("latin2") == "zażółć\r\n"
    with fs.open(f"{base}/f", "rt", encoding="latin2") as file:
        assert list(file) == ["zażółć\n"]


def test_pickles(fs, base):
    fs.pipe(f"{base}/f", b"content")
    assert pickle.loads(pickle.dumps(fs)).cat(f"{base}/f") == b"content"
    with fs.open(f"{base}/f") as file:
        file.seek(3)
        again = pickle.loads(pickle.dumps(file))
        assert again.read() == b"tent"


@pytest.mark.core
def test_text_append_seek_ranges_and_caches(fs, base):
    with fs.open(f"{base}/t", "w", encoding="utf-8") as file:
        file.write("zażółć\n" * 5)
    with fs.open(f"{base}/t", "a", encoding="utf-8") as file:
        file.write("end")
    data = ("zażółć\n" * 5 + "end").encode()
    assert fs.cat(f"{base}/t") == data
    with fs.open(f"{base}/t", "r", encoding="utf-8") as file:
        assert file.readlines()[-2:] == ["zażółć\n", "end"]
    for cache_type in ("none", "readahead", "bytes", "all"):
        with fs.open(f"{base}/t", "rb", cache_type=cache_type, block_size=16) as file:
            file.seek(7)
            assert file.read(9) == data[7:16]
            file.seek(-3, 2)
            assert file.readinto(buffer := bytearray(9)) == 3
            assert buffer[:3] == b"end"
            assert file.read(5) == b""
    assert fs.cat_file(f"{base}/t", -3) == b"end"
    assert fs.cat_ranges([f"{base}/t"] * 2, [0, 5], [2, 9]) == [data[:2], data[5:9]]
    with fs.open(f"{base}/z.gz", "wb", compression="gzip") as file:
        file.write(b"packed")
    with fs.open(f"{base}/z.gz", "rb", compression="infer") as file:
        assert file.read() == b"packed"


@pytest.mark.core
def test_walking_and_facts(fs, base):
    for name in ("a.csv", "b.txt", "d/c.csv", "d/e/f.csv"):
        fs.pipe(f"{base}/{name}", name.encode())
    assert fs.glob(f"{base}/**/*.csv") == [
        f"{base}/a.csv",
        f"{base}/d/c.csv",
        f"{base}/d/e/f.csv",
    ]
    assert len(fs.find(base)) == 4
    assert fs.du(base) == sum(map(len, ("a.csv", "b.txt", "d/c.csv", "d/e/f.csv")))
    assert [where for where, _, _ in fs.walk(base)] == [base, f"{base}/d", f"{base}/d/e"]
    before = fs.checksum(f"{base}/a.csv")
    modified = fs.modified(f"{base}/a.csv")
    fs.pipe(f"{base}/a.csv", b"other")
    assert fs.checksum(f"{base}/a.csv") != before
    assert fs.modified(f"{base}/a.csv") >= modified
    fs.mv(f"{base}/d", f"{base}/moved")
    fs.mv(f"{base}/a.csv", f"{base}/moved/")
    assert fs.cat(f"{base}/moved/a.csv") == b"other"
    fs.touch(f"{base}/new")
    assert fs.info(f"{base}/new")["size"] == 0
    fs.touch(f"{base}/b.txt", truncate=False)
    assert fs.cat(f"{base}/b.txt") == b"b.txt"
    mapper = fs.get_mapper(f"{base}/map")
    mapper["x/y"] = b"1"
    assert dict(mapper) == {"x/y": b"1"}
    fs.rm(f"{base}/m*", recursive=True)
    assert fs.ls(base, detail=False) == [f"{base}/b.txt", f"{base}/new"]


def test_a_forked_child_has_connections_of_its_own(fs, base):
    fs.pipe(f"{base}/f", os.urandom(3 << 20))
    with fs.open(f"{base}/f") as file:
        expected = file.read(1 << 20)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                file.seek(0)
                same = file.read(1 << 20) == expected and fs.exists(f"{base}/f")
                code = 0 if same else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        file.seek(1 << 20)
        assert len(file.read()) == 2 << 20


@pytest.mark.parametrize("end", ["close", "discard", "__del__"])
def test_a_forked_child_that_ends_takes_no_file_from_its_parent(fs, base, end):
    with fs.open(f"{base}/new", "wb") as file, fs.open(f"{base}/text", "w") as text:
        file.write(b"a" * (3 << 20))
        text.write("a")
        child = os.fork()
        if child == 0:
            try:
                with contextlib.suppress(OSError):
                    getattr(file, end)()
                del text
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        file.write(b"b" * (3 << 20))
        text.write("b")
    assert fs.cat(f"{base}/new") == b"a" * (3 << 20) + b"b" * (3 << 20)
    assert fs.cat(f"{base}/text") == b"ab"


LEFT_OPEN = """
import sys
import fsspec

fs, base = fsspec.url_to_fs(sys.argv[1])
fs.pipe(f"{base}/old", b"old")
fs.pipe(f"{base}/read", bytes(20 << 20))
kept = [fs.open(f"{base}/{name}", "wb") for name in ("old", "small", "large")]
for file in kept:
    file.write(b"x" * (3 << 20 if "large" in file.path else 1))
kept += [fs.open(f"{base}/read"), fs.open(f"{base}/read"), fs.open(f"{base}/text", "w")]
kept[-1].write("x")
for _ in range(10):
    kept[3].read(1 << 20)  # so that further chunks are asked for
kept[4].read(1)
kept.append(kept)
print("end", flush=True)
"""


def test_a_program_ends_with_files_left_open(fs, base, address):
    command = [sys.executable, "-c", LEFT_OPEN, f"igfs://{address}{base}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    sizes = {name: fs.size(f"{base}/{name}") for name in ("old", "small", "large", "text")}
    assert sizes == {"old": 1, "small": 1, "large": 3 << 20, "text": 1}


ARRAYS = [
    np.zeros((0, 3)),
    np.arange(6).reshape(2, 3)[:, :0],
    array.array("i"),
    array.array("i", [1, 2]),
    np.arange(6, dtype="<i2").reshape(2, 3),
    np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]),
    np.array(5),
    bytearray(b"abc"),
    b"",
]


@pytest.mark.parametrize("data", ARRAYS, ids=repr)
def test_arrays_of_any_type_and_size_are_written_and_filled_as_by_a_local_file(fs, base, data):
    local = io.BytesIO()
    with fs.open(f"{base}/f", "wb") as file:
        for part in (b"before", data, b"behind"):
            assert file.write(part) == local.write(part)
    assert fs.cat(f"{base}/f") == local.getvalue()
    local.seek(0)
    if not isinstance(data, bytes):
        buffers = (copy.deepcopy(data), copy.deepcopy(data))
        with fs.open(f"{base}/f") as file:
            assert file.readinto(buffers[0]) == local.readinto(buffers[1])
            assert file.tell() == local.tell()
        assert memoryview(buffers[0]).tobytes() == memoryview(buffers[1]).tobytes()


def test_a_buffer_that_is_refused_spoils_no_file(fs, base):
    with fs.open(f"{base}/f", "wb") as file:
        file.write(b"before")
        with pytest.raises((TypeError, ValueError)):
            file.write(np.arange(6)[::2])
        file.write(b"behind")
    assert fs.cat(f"{base}/f") == b"beforebehind"


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n", b"a\n\nb", b"x" * 20_000 + b"\nyy\n" * 5000]
)
def test_lines_are_those_of_a_local_file(fs, base, text):
    fs.pipe(f"{base}/f", text)
    rng = random.Random(len(text))
    assert fs.open(f"{base}/f").readlines() == list(fs.open(f"{base}/f")) == list(io.BytesIO(text))
    with fs.open(f"{base}/f") as file:
        local = io.BytesIO(text)
        for _ in range(40):
            size = rng.choice([-1, None, 0, 1, 3, 5000, 30_000])
            name = rng.choice(
                ["readline", "readlines", "read"] if rng.random() < 0.2 else ["readline"]
            )
            assert getattr(file, name)(size) == getattr(local, name)(size), (name, size)
            assert file.tell() == local.tell()
            if rng.random() < 0.2:
                at = rng.randrange(len(text) + 2)
                assert file.seek(at) == local.seek(at)


WILD = ["*", "?", "[ab]", "a*", "[!a]"]  # each matches others, or not itself


@pytest.mark.parametrize("name", WILD)
def test_a_name_that_could_be_a_pattern_means_itself(fs, base, tmp_path, name):
    others = {other: other.encode() for other in ("a", "b", "ab", *WILD)}

    def fresh():
        if fs.exists(base):
            fs.rm_exactly(base, recursive=True)
        for other, data in others.items():
            fs.pipe(f"{base}/{other}", data)
        fs.makedirs(f"{base}/into")

    def left():
        return {path.removeprefix(base) for path in fs.find(base)}

    fresh()
    everything = {f"/{other}" for other in others}
    assert fs.cat(f"{base}/{name}") == name.encode()
    fs.copy(f"{base}/{name}", f"{base}/copy")
    fs.copy(f"{base}/{name}", f"{base}/into")
    assert fs.cat(f"{base}/copy") == fs.cat(f"{base}/into/{name}") == name.encode()
    fs.get(f"{base}/{name}", str(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == name.encode()
    fs.mv(f"{base}/{name}", f"{base}/moved")
    assert fs.cat(f"{base}/moved") == name.encode()
    assert left() == everything - {f"/{name}"} | {"/moved", "/copy", f"/into/{name}"}
    for recursive in (False, True):
        fresh()
        fs.rm(f"{base}/{name}", recursive=recursive)
        assert left() == everything - {f"/{name}"}
    fs.pipe(f"{base}/{name}/x", b"below")
    fs.copy(f"{base}/{name}", f"{base}/tree", recursive=True)
    fs.get(f"{base}/{name}", f"{tmp_path}/", recursive=True)
    assert fs.cat(f"{base}/tree/x") == (tmp_path / name / "x").read_bytes() == b"below"
    fs.rm(f"{base}/{name}", recursive=True)
    assert left() == everything - {f"/{name}"} | {"/tree/x"}
