"""Programs that the fault tests of the file system run in processes of their own.

python fs_programs.py PROGRAM ADDRESS FILE_SYSTEM ARGUMENTS...
"""

import contextlib
import hashlib
import itertools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from ignitetf.fs.store import Store
from ignitetf.net.client import connect
from ignitetf.settings import Settings


def _plugin(address, name):
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address), name)
    return gfile


def content(version, size):
    """The file of one version: its first bytes say how the rest must look."""
    head = b"%016d%016d" % (version, size)
    return head + random.Random(version).randbytes(size)


def is_whole(data):
    return data == content(int(data[:16]), int(data[16:32]))


def writer(address, name, path, seed):
    """Replace a file without end; says which version is known to be stored."""
    rng = random.Random(int(seed))
    with connect(address.split(",")) as client:
        store = Store(client, name)
        version = int(seed) * 1_000_000
        while True:
            version += 1
            data = content(version, rng.randrange(100, 3_000_000))
            with contextlib.suppress(ConnectionError, TimeoutError), store.writing(path) as file:
                for at in range(0, len(data), 100_000):
                    file.write(memoryview(data)[at : at + 100_000])
            print(version, flush=True)


def racer(address, name, seed, seconds):
    """All sorts of changes in one small directory, from many processes."""
    rng = random.Random(int(seed))
    names = [f"/race/{n}" for n in "abcde"] + [f"/race/{d}/{n}" for d in "xyz" for n in "ab"]
    names += [f"/race/{d}" for d in "xyz"]
    done = 0
    with connect(address.split(",")) as client:
        store = Store(client, name)
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            path, other = rng.choice(names), rng.choice(names)
            action = rng.randrange(8)
            try:
                if action <= 1:
                    with store.writing(path, rng.choice("wxa"), parents=False) as file:
                        file.write(memoryview(content(rng.randrange(1000), 3000)))
                elif action == 2:
                    store.make_directory(path)
                elif action == 3:
                    store.rename(path, other)
                elif action == 4:
                    store.remove(path)
                elif action == 5:
                    store.remove_directory(path, recursive=rng.random() < 0.3)
                elif action == 6:
                    store.list(path)
                else:
                    file = store.open_read(path)
                    data = file.read(0, 3032)
                    file.close()
                    assert not data or is_whole(data), path
                done += 1
            except OSError as error:
                # What a local file system may answer too; anything else ends the process.
                assert error.errno in (2, 17, 20, 21, 22, 39), error
    print(done)


def interrupted(address, name, count):
    """Checkpoint saves with Ctrl-C at random moments; each that returned must restore."""
    import numpy as np
    import tensorflow as tf

    _plugin(address, name)
    values = [tf.Variable(tf.random.normal([100, 256])) for _ in range(30)]
    checkpoint = tf.train.Checkpoint(values=values)
    checkpoint.write("igfs:///interrupted/warm")
    begin = time.perf_counter()
    checkpoint.write("igfs:///interrupted/warm")
    usual = time.perf_counter() - begin
    rng = random.Random(1)
    outcomes = {"restored": 0, "interrupted": 0}
    for number in range(int(count)):
        path = f"igfs:///interrupted/{number}"
        delay = rng.uniform(0, usual * 3)
        thread = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        returned = False
        try:
            thread.start()
            checkpoint.write(path)
            returned = True
            thread.join()
            time.sleep(0.05)
        except (KeyboardInterrupt, tf.errors.OpError):
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()
                time.sleep(0.05)
        if returned:
            again = [tf.Variable(tf.zeros([100, 256])) for _ in range(30)]
            tf.train.Checkpoint(values=again).read(path).assert_consumed()
            pairs = zip(again, values, strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs), path
        outcomes["restored" if returned else "interrupted"] += 1
    # What was interrupted left nothing behind that keeps the next save from working.
    checkpoint.write("igfs:///interrupted/last")
    print(outcomes, flush=True)


def at_exit(address, name, what):
    """End with something open."""
    import tensorflow as tf

    _plugin(address, name)
    base = "igfs:///exit"
    if what == "iterator":
        path = f"{base}/records"
        if not tf.io.gfile.exists(path):
            with tf.io.TFRecordWriter(path) as out:
                for _ in range(20_000):
                    out.write(os.urandom(1000))
        found = tf.data.TFRecordDataset([path] * 4, num_parallel_reads=4, buffer_size=4096)
        kept.append(iter(found.prefetch(5000)))
        next(kept[-1])
    elif what == "file":
        kept.append(tf.io.gfile.GFile(f"{base}/open.txt", "w"))
        kept[-1].write("not closed")
    elif what == "summary":
        out = tf.summary.create_file_writer(f"{base}/logs-{os.getpid()}")
        with out.as_default():
            tf.summary.scalar("a", 1.0, step=0)
        kept.append(out)
    elif what == "async":
        value = tf.Variable(tf.random.normal([4 << 20]))
        options = tf.train.CheckpointOptions(enable_async=True)
        tf.train.Checkpoint(v=value).save(f"{base}/async", options=options)
    elif what == "threads":

        def loop():
            while True:
                with tf.io.gfile.GFile(f"{base}/thread", "wb") as file:
                    file.write(b"x" * 100_000)

        for _ in range(3):
            threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.5)
    print("end", flush=True)


def big(address, name, size):
    """A large file, written and read back in ranges, in order and at random offsets.

    Prints whether all was the same, the peak of memory, and the rates of the three.
    """
    total, rng = int(size), random.Random(1)
    block = rng.randbytes(1 << 20)

    def expected(offset, count):
        first = offset >> 20
        blocks = range(first, ((offset + count - 1) >> 20) + 1)
        data = b"".join(number.to_bytes(8, "little") + block[8:] for number in blocks)
        return memoryview(data)[offset - (first << 20) :][:count]

    with connect(address) as client:
        store = Store(client, name)
        digest, again, at = hashlib.sha256(), hashlib.sha256(), 0
        times = [time.perf_counter()]
        with store.writing("/big") as file:
            for number in range(total >> 20):
                data = expected(number << 20, 1 << 20)
                digest.update(data)
                file.write(data)
        times.append(time.perf_counter())
        reader = store.open_read("/big")
        buffer = memoryview(bytearray(3_333_333))
        while count := reader.read_into(at, buffer):
            again.update(buffer[:count])
            at += count
        times.append(time.perf_counter())
        same, read = digest.digest() == again.digest(), 0
        while read < total // 4:
            offset = rng.randrange(total)
            view = buffer[: min(rng.randrange(1, len(buffer)), total - offset)]
            assert reader.read_into(offset, view) == len(view)
            same = same and view == expected(offset, len(view))
            read += len(view)
        times.append(time.perf_counter())
        reader.close()
        assert at == total == store.stat("/big").size
    # Not getrusage: its peak begins with that of the process that forked this one.
    status = Path("/proc/self/status").read_text().split()
    peak = int(status[status.index("VmHWM:") + 1]) // 1024
    pairs = zip((total, total, read), itertools.pairwise(times), strict=True)
    print(same, peak, *(round(done / (end - begin) / 1e6) for done, (begin, end) in pairs))


kept = []

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
