"""Every public operation as a function with a known result, for the tests that disturb them.

`World` prepares the data over a connection of its own, undisturbed. An `Operation` is run over
another one, and `settled` looks afterwards, undisturbed again, whether what it acknowledged is
there and what it left behind can be taken up.
"""

import hashlib
import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.checkpoint_files import index_of

from ignitetf import dbapi
from ignitetf.errors import IgniteTFError
from ignitetf.fs.pull import pull
from ignitetf.fs.push import push
from ignitetf.fs.store import Store
from ignitetf.load.loader import load_dataset
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import list_caches
from ignitetf.tables.removal import drop_cache

ROWS = 400
PARTITIONS = 8
_numbers = itertools.count()


def arrays(rows=ROWS, seed=3):
    rng = np.random.default_rng(seed)
    return {
        "IMAGE": rng.integers(0, 256, (rows, 500), dtype=np.uint8),
        "LABEL": np.arange(rows, dtype=np.int32),
    }


def open_reader(client, name, **options):
    return CacheReader(client, name, ReadOptions(page_size=32, **options))


def keys_of(reader):
    found = [
        np.array(item.batch.key.values)
        for item in reader.batches(range(reader.partition_count))
        if item.batch is not None
    ]
    return np.concatenate(found).tolist()


def read_file(store, path):
    file = store.open_read(path)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def digests(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


@dataclass(frozen=True)
class Wrong:
    """A result that is not the documented one."""

    what: Any


class World:
    """Data whose content is known, in one cluster.

    Args:
        client: An undisturbed connection.
        folder: A local folder.
        prefix: What the names of its caches begin with.
        backups: Copies of each partition.
    """

    def __init__(self, client, folder, prefix, backups=0):
        self.client, self.folder, self.prefix, self.backups = client, folder, prefix, backups
        self.table = f"{prefix}_T"
        load_dataset(arrays(), self.table, client=client, partitions=PARTITIONS, backups=backups)
        self.order = keys_of(open_reader(client, self.table))
        assert sorted(self.order) == list(range(ROWS))
        self.checksum = read_manifest(client, self.table).checksum
        self.store = Store(client, f"{prefix}_F", chunk_bytes=16384, backups=backups)
        self.content = random.Random(5).randbytes(150_000)
        with self.store.writing("/big") as file:
            file.write(memoryview(self.content))
        self.local = folder / "local"
        self.local.mkdir()
        for step in (1, 2):
            (self.local / f"ckpt-{step}.data-00000-of-00001").write_bytes(self.content[:60_000])
            (self.local / f"ckpt-{step}.index").write_bytes(index_of(60_000))
        (self.local / "checkpoint").write_text(
            'model_checkpoint_path: "ckpt-2"\n'
            'all_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-2"\n'
        )
        push(self.store, self.local, "/pushed")
        self.pushed = digests(self._pulled(self.store, "/pushed"))

    def close(self):
        self.store.close()
        for name in self.client.cache_names():
            if name.startswith(self.prefix):
                drop_cache(self.client, name)

    def _pulled(self, store, remote):
        target = self.folder / f"pulled-{next(_numbers)}"
        pull(store, remote, target)
        return target

    def _store(self, client):
        return Store(client, self.store.name)

    # Operations: each gives None, or a Wrong

    def load(self, client, layout):
        name = f"{self.prefix}_L{next(_numbers)}"
        self.loading = name, layout
        load_dataset(arrays(), name, client=client, **self._options(layout))
        manifest = read_manifest(self.client, name)
        if (manifest.rows, manifest.checksum) != (ROWS, self.checksum):
            return Wrong(manifest)
        return None

    def _options(self, layout):
        return {"partitions": PARTITIONS, "backups": self.backups, "layout": layout}

    def load_settled(self):
        """What was loaded is all there, or can be made so; then it is removed."""
        name, layout = self.loading
        load_dataset(
            arrays(), name, client=self.client, if_exists="resume", **self._options(layout)
        )
        found = read_manifest(self.client, name)
        keys = keys_of(open_reader(self.client, name))
        drop_cache(self.client, name)
        if sorted(keys) != list(range(ROWS)) or found.checksum != self.checksum:
            return Wrong((len(keys), found))
        return None

    def query(self, client):
        text = f"SELECT LABEL, IMAGE FROM {self.table} ORDER BY LABEL"
        with client.sql(text, page_size=64) as result:
            rows = [(label, bytes(image)) for label, image in result]
        images = arrays()["IMAGE"]
        same = rows == [(i, images[i].tobytes()) for i in range(ROWS)]
        return None if same else Wrong(len(rows))

    def cursor(self, client):
        """The statement of `query` by a cursor of the DB-API, as columns."""
        connection = dbapi.Connection(client, schema="PUBLIC", timeout_s=None, page_rows=64)
        text = f"SELECT LABEL, IMAGE FROM {self.table} ORDER BY LABEL"
        found = connection.execute(text).fetch_numpy()
        same = found["LABEL"].tolist() == list(range(ROWS)) and found["IMAGE"].tolist() == [
            image.tobytes() for image in arrays()["IMAGE"]
        ]
        return None if same else Wrong(len(found["LABEL"]))

    def epoch(self, client):
        found = keys_of(open_reader(client, self.table))
        return None if found == self.order else Wrong(found)

    def numpy(self, client):
        from ignitetf import IgniteDataset

        dataset = IgniteDataset(self.table, settings=client.settings, page_size=32)
        pages = list(dataset.numpy())
        keys = np.concatenate([p["key"] for p in pages])
        images = np.concatenate([p["val"]["IMAGE"] for p in pages])
        same = keys.tolist() == self.order and np.array_equal(images, arrays()["IMAGE"][keys])
        return None if same else Wrong(keys)

    def resume(self, client):
        """Half an epoch, then the rest of it by a dataset that connects anew."""
        from ignitetf import IgniteDataset

        dataset = IgniteDataset(self.table, settings=client.settings, page_size=32)
        half = ROWS // 2
        first = [int(k) for b in dataset.batch(50).take(half // 50) for k in b["key"].numpy()]
        again = IgniteDataset(self.table, settings=client.settings, page_size=32)
        rest = again.resume(dataset.state(half)).batch(50).take(half // 50)
        found = first + [int(k) for b in rest for k in b["key"].numpy()]
        return None if found == self.order else Wrong(found)

    def fs_write(self, client):
        """A file is written beside and renamed into its place."""
        store = self._store(client)
        self.version = data = random.Random(next(_numbers)).randbytes(90_000)
        try:
            with store.writing("/new") as file:
                file.write(memoryview(data))
            store.rename("/new", "/f")
        finally:
            store.close()
        return None if read_file(self.store, "/f") == data else Wrong("content")

    def fs_write_settled(self):
        """Whole files only, under either name."""
        for path in ("/new", "/f"):
            if self.store.exists(path):
                data = read_file(self.store, path)
                if len(data) != 90_000:
                    return Wrong((path, len(data)))
        return None

    def forget(self, name):
        """Remove what an operation left that nobody can vouch for."""
        if name.startswith("load_"):
            self.client.sql(f'DROP TABLE IF EXISTS "{self.loading[0]}"')
        elif name == "fs_write":
            for path in ("/new", "/f"):
                if self.store.exists(path):
                    self.store.remove(path)

    def fs_read(self, client):
        store = self._store(client)
        try:
            same = read_file(store, "/big") == self.content
            names = [name for name, _ in store.list("/")]
        finally:
            store.close()
        return None if same and "big" in names else Wrong(names)

    def push(self, client):
        store = self._store(client)
        remote = f"/run{next(_numbers)}"
        try:
            push(store, self.local, remote)
        finally:
            store.close()
        found = digests(self._pulled(self.store, remote))
        return None if found == self.pushed else Wrong(found)

    def pull(self, client):
        store = self._store(client)
        try:
            found = digests(self._pulled(store, "/pushed"))
        finally:
            store.close()
        return None if found == self.pushed else Wrong(found)

    def caches(self, client):
        names = [row["name"] for row in list_caches(client)]
        return None if self.table in names else Wrong(names)

    OPERATIONS = (
        "load_rows",
        "load_blocks",
        "query",
        "cursor",
        "epoch",
        "numpy",
        "resume",
        "fs_write",
        "fs_read",
        "push",
        "pull",
        "caches",
    )

    def run(self, name, client):
        """Run an operation by name: None, a Wrong, or what it raises."""
        if name.startswith("load_"):
            return self.load(client, name.removeprefix("load_"))
        return getattr(self, name)(client)

    def settled(self, name):
        """Look, undisturbed, at what an operation left."""
        if name.startswith("load_"):
            return self.load_settled()
        return self.fs_write_settled() if name == "fs_write" else None


def is_told(error):
    """Whether an error is one that the project documents.

    An error inside TensorFlow carries the text of the one that was raised there.
    """
    if isinstance(error, IgniteTFError):
        return bool(error.message)
    if isinstance(error, dbapi.Error):
        return is_told(error.__cause__)
    if isinstance(error, OSError):
        return error.errno is not None
    if type(error).__module__.startswith("tensorflow."):
        return "ignitetf.errors." in str(error)
    return False
