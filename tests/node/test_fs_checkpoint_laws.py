"""What savers of checkpoints need of a file system, without the savers.

Orbax writes into a temporary directory and renames it, torch DCP renames its index last, TensorFlow
and Keras replace one file. All of them list directories to find the latest checkpoint.
"""

import contextlib
import io
import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ignitetf.fs.filesystem import IgniteFileSystem

pytestmark = pytest.mark.node

_numbers = itertools.count()
_COMMITTED = "_COMMITTED"


@pytest.fixture
def clients(address):
    """Two file systems with connections of their own, as two processes have."""
    return [
        IgniteFileSystem(address=address, name="LAWS", skip_instance_cache=True) for _ in range(2)
    ]


@pytest.fixture
def fs(clients):
    return clients[0]


@pytest.fixture
def base(fs):
    path = f"/laws{os.getpid()}-{next(_numbers)}"
    fs.makedirs(path)
    yield path
    fs.rm(path, recursive=True)


def save(fs, folder, step, files=20):
    """Write a checkpoint as Orbax does: into a temporary directory, which is then renamed."""
    temporary = f"{folder}/{step}.tmp"
    for number in range(files):
        fs.pipe(f"{temporary}/{number}", b"%d" % step * 100)
    fs.pipe(f"{temporary}/{_COMMITTED}", b"")
    fs.rename_exactly(temporary, f"{folder}/{step}")


def complete(fs, folder):
    """Return the steps of the checkpoints that count, as a restoring program finds them."""
    names = [path.rpartition("/")[2] for path in fs.ls(folder, detail=False)]
    return sorted(int(name) for name in names if name.isdigit())


def test_a_directory_appears_under_its_new_name_with_everything_in_it(clients, base):
    writer, reader = clients
    seen, ended = [], threading.Event()

    def watch():
        while not ended.is_set():
            for step in complete(reader, base):
                with contextlib.suppress(FileNotFoundError):  # removed since the listing
                    names = reader.ls(f"{base}/{step}", detail=False)
                    seen.append((step, len(names)))

    thread = threading.Thread(target=watch)
    thread.start()
    for step in range(5):
        save(writer, base, step)
        assert step in complete(reader, base)
    ended.set()
    thread.join()
    assert {count for _, count in seen} == {21}
    assert max(seen)[0] >= 3


def test_of_all_who_create_a_file_exactly_one_succeeds(clients, base):
    def create(number):
        try:
            clients[number % 2].pipe_file(f"{base}/lock", b"%d" % number, mode="create")
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(create, range(8)) if n is not None]
    assert len(winners) == 1
    assert clients[0].cat(f"{base}/lock") == b"%d" % winners[0]


def test_of_all_who_rename_to_a_directory_with_files_none_replaces_it(clients, base):
    for number in range(4):
        clients[0].pipe(f"{base}/tmp{number}/file", b"%d" % number)

    def move(number):
        try:
            clients[number % 2].rename_exactly(f"{base}/tmp{number}", f"{base}/final")
        except OSError:
            return None
        return number

    with ThreadPoolExecutor(4) as pool:
        winners = [n for n in pool.map(move, range(4)) if n is not None]
    assert len(winners) == 1
    assert clients[1].cat(f"{base}/final/file") == b"%d" % winners[0]
    left = {path.rpartition("/")[2] for path in clients[1].ls(base, detail=False)}
    assert left == {"final", *(f"tmp{n}" for n in range(4) if n not in winners)}


def test_a_listing_has_what_was_closed_and_not_what_was_removed(clients, base):
    one, other = clients
    for number in range(20):
        one.pipe(f"{base}/{number}", b"x")
        assert f"{base}/{number}" in other.ls(base, detail=False)
        assert other.size(f"{base}/{number}") == 1
        if number % 2:
            other.rm(f"{base}/{number}")
            assert f"{base}/{number}" not in one.ls(base, detail=False)
    assert len(one.ls(base)) == 10


def test_an_empty_directory_stays(clients, base):
    one, other = clients
    one.makedirs(f"{base}/a/b")
    assert other.isdir(f"{base}/a/b")
    assert other.ls(f"{base}/a/b") == []
    one.pipe(f"{base}/a/b/file", b"x")
    one.rm(f"{base}/a/b/file")
    assert other.isdir(f"{base}/a/b")
    other.rename_exactly(f"{base}/a/b", f"{base}/c")
    assert one.isdir(f"{base}/c")
    assert not one.exists(f"{base}/a/b")


def test_many_small_files_of_many_writers_are_all_there(clients, base):
    def write(number):
        clients[number % 2].pipe(f"{base}/{number % 7}/{number}", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(300)))
    found = clients[0].cat(clients[1].find(base))
    assert len(found) == 300
    assert all(path.endswith(f"/{data.decode()}") for path, data in found.items())


@pytest.mark.parametrize("block", [1_000_003, 64 << 20])
def test_a_large_file_is_what_was_written(clients, base, block):
    part, count = os.urandom(999_983), 50
    with clients[0].open(f"{base}/file", "wb") as file:
        for _ in range(count):
            file.write(part)
    with clients[1].open(f"{base}/file") as file:
        found = b"".join(iter(lambda: file.read(block), b""))
    assert found == part * count


def test_a_replaced_file_is_the_old_or_the_new(clients, base):
    writer, reader = clients
    contents = [b"%d" % n * (2_000_000 + n) for n in range(6)]
    writer.pipe(f"{base}/file", contents[0])
    ended, seen = threading.Event(), []

    def read():
        while not ended.is_set():
            seen.append(reader.cat(f"{base}/file"))

    thread = threading.Thread(target=read)
    thread.start()
    for content in contents[1:]:
        writer.pipe(f"{base}/file", content)
    ended.set()
    thread.join()
    assert all(content in contents for content in seen)
    assert reader.cat(f"{base}/file") == contents[-1]


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_a_file_without_a_descriptor_says_so_as_a_stream_does(fs, base, mode):
    fs.pipe(f"{base}/file", b"x")
    with fs.open(f"{base}/file", mode) as file, pytest.raises(io.UnsupportedOperation):
        os.fsync(file.fileno())


KILLED = """
import itertools, sys
sys.path.insert(0, sys.argv[3])
from test_fs_checkpoint_laws import save
from ignitetf.fs.filesystem import IgniteFileSystem

fs = IgniteFileSystem(address=sys.argv[1], name="LAWS")
for step in itertools.count():
    save(fs, sys.argv[2], step, files=5)
    print(step, flush=True)
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.013, 0.029])
def test_who_is_killed_in_the_middle_leaves_no_half_checkpoint(fs, base, address, wait_s):
    command = [sys.executable, "-c", KILLED, address, base, str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    done = [int(process.stdout.readline()) for _ in range(3)]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(wait_s)
    process.kill()
    done += map(int, process.communicate()[0].split())
    found = complete(fs, base)
    assert found in (done, [*done, done[-1] + 1])
    for step in found:
        assert {fs.cat(f"{base}/{step}/{n}") for n in range(5)} == {b"%d" % step * 100}
        assert fs.exists(f"{base}/{step}/{_COMMITTED}")
    # The next program saves the step that was cut.
    save(fs, base, found[-1] + 1, files=5)
    assert complete(fs, base) == [*found, found[-1] + 1]
