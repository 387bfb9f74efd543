"""The file system while nodes die, are full, are absent, or refuse the user.

IGNITETF_FAULT_ROUNDS multiplies the number of killed nodes.
"""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.ports import lasting_port
from helpers.settled import settle

from ignitetf.fs.check import check
from ignitetf.fs.filesystem import IgniteFileSystem
from ignitetf.fs.path import NativeIOUnavailable
from ignitetf.fs.store import Store
from ignitetf.net.client import connect
from ignitetf.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
from fs_programs import is_whole

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
_PROGRAMS = Path(__file__).with_name("fs_programs.py")


def start(node_home, name, **options):
    from ignitetf.node import Node

    return Node.start(name, port=lasting_port(options.get("nodes", 1)), **options)


def read(store, path):
    file = store.open_read(path)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def wait_for_versions(store, writers, count):
    """Wait until each writer has stored its file so many times more; whole at every look."""
    names = [f"/f{n}" for n in range(len(writers))]
    first, until = None, time.monotonic() + 60
    while True:
        found = [read(store, name) for name in names]
        assert all(map(is_whole, found))
        ended = [writer for writer in writers if writer.poll() is not None]
        assert not ended, [writer.communicate()[1][-2000:] for writer in ended]
        versions = [int(data[:16]) for data in found]
        first = first or versions
        if all(now >= then + count for now, then in zip(versions, first, strict=True)):
            return
        assert time.monotonic() < until, (first, versions)
        time.sleep(0.2)


def test_a_killed_node_tears_no_file(node_home):
    rng = random.Random(1)
    with start(node_home, "fs-kill", nodes=3, memory="1g") as node:
        address = ",".join(node.addresses)
        with connect(node.addresses) as client:
            store = Store(client, "KILL", backups=1, chunk_bytes=65536)
        writers = [
            subprocess.Popen(
                [sys.executable, str(_PROGRAMS), "writer", address, "KILL", f"/f{n}", str(n + 1)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in range(2)
        ]
        for writer in writers:
            writer.stdout.readline()
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(0.2, 1.5))
            os.kill(rng.choice(node.pids), signal.SIGKILL)
            with connect(node.addresses) as client:
                store = Store(client, "KILL")
                wait_for_versions(store, writers, 5)
                store.close()
            node = type(node).start("fs-kill")
            with connect(node.addresses) as client:
                settle(client)
        stored = []
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            stored.append([int(line) for line in writer.communicate()[0].split()])
        with connect(node.addresses) as client:
            store = Store(client, "KILL")
            report = check(store, repair=True, read=True)
            assert report.ok, report
            for n in range(2):
                data = read(store, f"/f{n}")
                assert is_whole(data)
                assert int(data[:16]) >= max(stored[n])
            expected = sum(sum(e.contents().values()) for _, e in store.list("/"))
            assert store.chunks.count() == expected
            store.close()


def tensorflow(settings, name):
    """TensorFlow whose `igfs:///` leads there, None where it cannot."""
    tf = pytest.importorskip("tensorflow")
    try:
        from ignitetf.fs import gfile
    except NativeIOUnavailable:
        return None
    gfile.configure(settings, name)
    return tf


def fill(tf, path):
    with tf.io.gfile.GFile(path, "wb") as file:
        for _ in range(300):
            file.write(os.urandom(1 << 20))


def test_a_full_node_says_so_and_loses_nothing(node_home):
    with (
        start(node_home, "fs-full", memory="100m") as node,
        connect(node.addresses) as client,
    ):
        store = Store(client, "FULL")
        with store.writing("/kept") as file:
            file.write(memoryview(b"kept" * 1000))
        with pytest.raises(OSError) as caught, store.writing("/big") as file:
            for _ in range(300):
                file.write(memoryview(os.urandom(1 << 20)))
        assert caught.value.errno == errno.ENOSPC
        assert not store.exists("/big")
        fs = IgniteFileSystem(settings=node.settings, name="FULL", skip_instance_cache=True)
        with pytest.raises(OSError) as caught, fs.open("/big", "wb") as file:
            for _ in range(300):
                file.write(os.urandom(1 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert not fs.exists("/big")
        if (tf := tensorflow(node.settings, "FULL")) is not None:
            with pytest.raises(tf.errors.ResourceExhaustedError):
                fill(tf, "igfs:///big")
            assert not tf.io.gfile.exists("igfs:///big")
        assert read(store, "/kept") == b"kept" * 1000
        report = check(store, repair=True, read=True)
        assert report.ok, report
        assert store.chunks.count() == 1
        with store.writing("/again") as file:
            file.write(memoryview(b"x" * (20 << 20)))
        assert store.stat("/again").size == 20 << 20
        store.close()


def fill_to_the_last_page(store):
    """Files of ever smaller size until none fits; gives their contents by path."""
    kept = {}
    for size in (8 << 20, 60_000, 1000):
        for number in range(1000):
            path, data = f"/d{number % 2}/{size}-{number}", os.urandom(size)
            try:
                with store.writing(path) as file:
                    file.write(memoryview(data))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
            kept[path] = data
        else:
            raise AssertionError("the node was never full")
    return kept


def test_what_makes_room_works_on_a_node_full_to_the_last_page(node_home):
    with (
        start(node_home, "fs-brim", memory="100m") as node,
        connect(node.addresses) as client,
    ):
        store = Store(client, "BRIM")
        store.make_directory("/d0")
        store.make_directory("/d1")
        kept = fill_to_the_last_page(store)
        first, second = [path for path in kept if path.startswith("/d0/")][:2]
        with pytest.raises(OSError) as caught, store.writing(first) as file:
            file.write(memoryview(b"other" * 1000))
        assert caught.value.errno == errno.ENOSPC
        assert read(store, first) == kept[first]
        store.remove(second)
        del kept[second]
        store.remove_directory("/d1", recursive=True)
        kept = {path: data for path, data in kept.items() if path.startswith("/d0/")}
        assert {f"/d0/{name}" for name, _ in store.list("/d0")} == set(kept)
        # Nothing is left for the repair but what is due later: each step removed its own.
        report = check(store, repair=True, read=True)
        assert report.ok, report
        assert report.repaired == []
        assert all(read(store, path) == data for path, data in kept.items())
        with store.writing("/again") as file:
            file.write(memoryview(b"x" * (20 << 20)))
        store.close()


def test_no_node_and_wrong_login_have_their_errno(node_home):
    nobody = IgniteFileSystem(address="127.0.0.1:1", skip_instance_cache=True)
    with pytest.raises(ConnectionRefusedError) as caught:
        nobody.ls("/")
    assert caught.value.errno == errno.ECONNREFUSED
    with pytest.raises(OSError):
        nobody.exists("/x")
    with start(node_home, "fs-secure", secure=True, memory="256m") as node:
        good = node.settings
        with connect(settings=good) as client:
            store = Store(client, "LOGIN")
            with store.writing("/f") as file:
                file.write(memoryview(b"secret"))
            assert read(store, "/f") == b"secret"
            store.close()
        wrong = good.replace(password="wrong")
        fs = IgniteFileSystem(settings=wrong, name="LOGIN", skip_instance_cache=True)
        with pytest.raises(PermissionError) as caught:
            fs.ls("/")
        assert caught.value.errno == errno.EACCES
        assert "wrong" not in str(caught.value)
        if (tf := tensorflow(wrong, "LOGIN")) is not None:
            # Not listdir: TensorFlow asks whether it is a directory, and takes an error for "no".
            for work in (tf.io.gfile.stat, tf.io.gfile.exists, tf.io.gfile.remove, tf.io.read_file):
                with pytest.raises(tf.errors.PermissionDeniedError) as refused:
                    work("igfs:///f")
                assert "wrong" not in str(refused.value)
        plain = Settings(addresses=good.addresses)
        fs = IgniteFileSystem(settings=plain, name="LOGIN", skip_instance_cache=True)
        with pytest.raises(OSError):
            fs.ls("/")
