"""The traffic of the soak test: every kind of work, paced, checked as it goes.

Each `Worker` is a thread that repeats one round. A round may end with an error of the project (a
node is being killed all the time); anything else, and every wrong answer, is kept and fails the
test. What the cluster acknowledged is written into a ledger, which the end of the test compares
with what is stored.
"""

import random
import threading
import time
from collections import Counter

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError, LoadInterrupted
from ignitetf.fs.store import Store
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

FIXED_ROWS = 20_000
LOADED_ROWS = 4_000
APPENDED_ROWS = 400
INSERTED_ROWS = 20


def arrays(first, rows, version):
    """Rows that tell their version, so that a mixture of two loads is seen."""
    keys = np.arange(first, first + rows)
    image = np.random.default_rng(version).integers(0, 256, (rows, 196), dtype=np.uint8)
    return {"IMAGE": image, "LABEL": keys.astype(np.int32), "VERSION": np.full(rows, version)}


def file_content(version, size):
    return b"%016d%016d" % (version, size) + random.Random(version).randbytes(size)


def is_whole(data):
    return data == file_content(int(data[:16]), int(data[16:32]))


def epoch(client, name):
    """Keys, labels and versions of one pass over all partitions."""
    reader = CacheReader(client, name, ReadOptions())
    keys, labels, versions, images = [], [], [], 0
    for item in reader.batches(range(reader.partition_count)):
        if item.batch is None:
            continue
        keys.append(np.array(item.batch.key.values))
        labels.append(np.array(item.batch.columns["LABEL"].values))
        versions.append(np.array(item.batch.columns["VERSION"].values))
        images += int(item.batch.columns["IMAGE"].values.sum())
    return np.concatenate(keys), np.concatenate(labels), np.concatenate(versions), images


class Worker(threading.Thread):
    """Repeats `round` with a pause until it is stopped."""

    pause_s = 1.0

    def __init__(self, addresses, seed):
        super().__init__(name=type(self).__name__, daemon=True)
        # Each worker begins at another node, so that every kill meets somebody.
        turn = seed % len(addresses)
        self.client = connect([*addresses[turn:], *addresses[:turn]], request_timeout_s=20)
        self.random = random.Random(seed)
        self.rounds = 0
        self.errors = Counter()
        self.wrong = []
        self.longest_s = 0.0
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(self.pause_s * self.random.uniform(0.5, 1.5)):
            begin = time.monotonic()
            try:
                self.round()
                self.rounds += 1
            except (IgniteTFError, OSError) as error:
                self.errors[f"{type(error).__name__}: {str(error)[:160]}"] += 1
            except BaseException as error:
                self.wrong.append(f"{type(error).__name__}: {str(error)[:300]}")
            self.longest_s = max(self.longest_s, time.monotonic() - begin)

    def round(self):
        raise NotImplementedError


class Reads(Worker):
    """Whole epochs of a data set that does not change."""

    pause_s = 2.0

    def __init__(self, addresses, seed):
        super().__init__(addresses, seed)
        data = arrays(0, FIXED_ROWS, 1)
        load_dataset(data, "FIXED", client=self.client, partitions=16, backups=1)
        self.sum = int(data["IMAGE"].sum())
        self.order = None

    def round(self):
        keys, labels, _, images = epoch(self.client, "FIXED")
        self.order = keys if self.order is None else self.order
        assert np.array_equal(keys, self.order), "another order or set of keys"
        assert np.array_equal(np.sort(keys), np.arange(FIXED_ROWS)), "not each key once"
        assert np.array_equal(keys, labels) and images == self.sum, "wrong values"


class Queries(Worker):
    """SQL over the same data set."""

    def round(self):
        rows = self.client.sql("SELECT COUNT(*), SUM(LABEL) FROM FIXED").fetchall()
        assert rows == [(FIXED_ROWS, FIXED_ROWS * (FIXED_ROWS - 1) // 2)], rows


class Inserts(Worker):
    """Single rows by SQL; each statement that returned is in the ledger."""

    def __init__(self, addresses, seed):
        super().__init__(addresses, seed)
        self.client.sql(
            "CREATE TABLE INSERTED (ID BIGINT PRIMARY KEY, V BIGINT) WITH "
            '"backups=1,write_synchronization_mode=FULL_SYNC,cache_name=INSERTED"'
        )
        self.ledger = {}
        self.next = 0

    def round(self):
        for _ in range(INSERTED_ROWS):
            key, value = self.next, self.random.randrange(1 << 40)
            self.next += 1
            self.client.sql("MERGE INTO INSERTED (ID, V) VALUES (?, ?)", (key, value))
            self.ledger[key] = value

    def lost(self):
        stored = dict(self.client.sql("SELECT ID, V FROM INSERTED").fetchall())
        return sum(stored.get(key) != value for key, value in self.ledger.items())


class Loads(Worker):
    """New and replaced data sets, in both layouts; each load that returned is read again."""

    pause_s = 4.0

    def __init__(self, addresses, seed):
        super().__init__(addresses, seed)
        self.version = 1
        self.ledger = {}

    def round(self):
        self.version += 1
        layout = ("rows", "blocks")[self.version % 2]
        name = f"LOADED_{layout.upper()}"
        data = arrays(0, LOADED_ROWS, self.version)
        load(self.client, data, name, "replace", layout)
        self.ledger[name] = self.version
        self.check(name)

    def check(self, name):
        version = self.ledger[name]
        keys, _, versions, images = epoch(self.client, name)
        assert np.array_equal(np.sort(keys), np.arange(LOADED_ROWS)), f"{name}: keys"
        assert (versions == version).all(), f"{name}: rows of another load"
        assert images == int(arrays(0, LOADED_ROWS, version)["IMAGE"].sum()), f"{name}: values"


class Appends(Worker):
    """Rows after rows in one data set; every load that returned stays."""

    pause_s = 3.0

    def __init__(self, addresses, seed):
        super().__init__(addresses, seed)
        self.acknowledged = 0
        self.version = 0

    def round(self):
        self.version += 1
        data = arrays(self.acknowledged, APPENDED_ROWS, self.version)
        mode = "append" if self.acknowledged else "error"
        load(self.client, data, "APPENDED", mode, "rows")
        self.acknowledged += APPENDED_ROWS

    def lost(self):
        keys, labels, _, _ = epoch(self.client, "APPENDED")
        stored = set(keys[keys == labels].tolist())
        return len(set(range(self.acknowledged)) - stored)


class Files(Worker):
    """Files of igfs replaced, renamed and read back."""

    def __init__(self, addresses, seed):
        super().__init__(addresses, seed)
        self.store = Store(self.client, "SOAK", backups=1, chunk_bytes=65536)
        self.ledger = {}
        self.version = 0
        self.torn = 0

    def round(self):
        self.version += 1
        path = f"/f{self.random.randrange(8)}"
        data = file_content(self.version, self.random.randrange(100, 400_000))
        with self.store.writing("/new") as file:
            file.write(memoryview(data))
        self.store.rename("/new", path)
        self.ledger[path] = self.version
        self.check(self.random.choice(sorted(self.ledger)))

    def check(self, path):
        file = self.store.open_read(path)
        try:
            data = file.read(0, file.size)
        finally:
            file.close()
        self.torn += not is_whole(data)
        assert is_whole(data), f"{path} is torn"
        assert int(data[:16]) >= self.ledger[path], f"{path} is older than what was stored"


def load(client, data, name, mode, layout):
    """A load as a user would repeat it: what was interrupted is resumed."""
    present, told = mode, []
    for _ in range(20):
        options = {"partitions": 16, "backups": 1, "if_exists": present, "layout": layout}
        try:
            return load_dataset(data, name, client=client, **options)
        except ConfigError as error:
            told.append(f"{present}: {error}")
            present = mode  # nothing of it was begun
        except LoadInterrupted as error:
            told.append(f"{present}: {error}")
            present = "resume"
        except (IgniteTFError, OSError) as error:
            # Nothing tells whether it took effect; `resume` finds out.
            told.append(f"{present}: {type(error).__name__}: {error}")
            present = "resume"
            time.sleep(0.5)
    raise AssertionError(f"{name} could not be loaded in 20 tries: {told[-3:]}")
