"""Readers of files that `bench storage` compares with a cluster: the same rows in other formats.

rows -> **files of each format** -> **batches**

Each reader takes its package's own way to whole batches of NumPy arrays, or of tensors, without a
copy where the package allows that. A reader has a few settings; the caller takes the quickest.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.bench.rows import Columns

__all__ = ["PEERS", "Peer", "Reading", "missing_packages"]

_FILES: Final = 8
_TABLE: Final = "rows"
_DTYPE: Final = "dtype.json"
# Modules whose package has another name.
_PACKAGES: Final = {"lance": "pylance"}

Batches = Generator[Any, None, None]
Records = NDArray[np.void]


@dataclass(frozen=True)
class Reading:
    """The rows to read.

    Attributes:
        folder: The folder that a peer wrote.
        batch: Rows of a batch; incomplete batches are left out.
        columns: Names of the columns to read; all if empty. Formats without columns read all.
        start: Number of rows to leave out at the beginning.
        once: True to end after one pass; otherwise passes follow each other.
        shard: The index of this reader, and the number of readers. Each has some of the files.
    """

    folder: Path
    batch: int
    columns: tuple[str, ...] = ()
    start: int = 0
    once: bool = False
    shard: tuple[int, int] = (0, 1)

    def files(self, pattern: str) -> list[Path]:
        """Return the files of this reader, by name."""
        index, count = self.shard
        return sorted(self.folder.glob(pattern))[index::count]

    @property
    def passes(self) -> Iterable[None]:
        """One item for each pass."""
        return itertools.repeat(None, 1) if self.once else itertools.repeat(None)


@dataclass(frozen=True)
class Peer:
    """A format of files and its reader.

    Attributes:
        needs: The modules that it imports.
        write: Writes parts of rows to a folder.
        read: Yields batches; takes a `Reading` and a setting as keyword arguments.
        settings: The settings to try.
        least_bytes: The fewest bytes of a row for which the format is used at all.
    """

    needs: tuple[str, ...]
    write: Callable[[Iterator[Columns], Path], None]
    read: Callable[..., Batches]
    settings: tuple[dict[str, Any], ...]
    least_bytes: int = 0


def missing_packages(peer: Peer) -> list[str]:
    """Return the packages, as pip calls them, that a peer needs and that are not installed."""
    return [
        _PACKAGES.get(name, name) for name in peer.needs if importlib.util.find_spec(name) is None
    ]


def _recorded(parts: Iterator[Columns], folder: Path) -> Iterator[tuple[int, Records]]:
    """Yield the number of a file and rows for it, and write the type of a row next to the files."""
    for number, part in enumerate(parts):
        dtype = np.dtype([(name, v.dtype, v.shape[1:]) for name, v in part.items()])
        if not number:
            (folder / _DTYPE).write_text(json.dumps(dtype.descr))
        rows = np.empty(len(next(iter(part.values()))), dtype)
        for name, values in part.items():
            rows[name] = values
        yield number % _FILES, rows


def _dtype(reading: Reading) -> np.dtype[np.void]:
    found = json.loads((reading.folder / _DTYPE).read_text())
    return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in found])


def _names(reading: Reading) -> Sequence[str]:
    return reading.columns or _dtype(reading).names or ()


def _arrow(rows: Records) -> Any:
    """Return rows as an Arrow table: arrays as binary values of their size."""
    import pyarrow as pa

    columns = {}
    for name in rows.dtype.names or ():
        values = np.ascontiguousarray(rows[name])
        if values.ndim == 1:
            columns[name] = pa.array(values)
        else:
            kind = pa.binary(values[0].nbytes)
            columns[name] = pa.array([value.tobytes() for value in values], kind)
    return pa.table(columns)


def _numpy(batch: Any) -> dict[str, Any]:
    """Return the columns of an Arrow batch as NumPy arrays over its memory."""
    return {name: _values(batch.column(name)) for name in batch.schema.names}


def _values(column: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_fixed_size_binary(column.type):
        return column.to_numpy(zero_copy_only=False)
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


# A file for each sample, as DLIO's readers of images have them


def _write_files(parts: Iterator[Columns], folder: Path) -> None:
    count = 0
    for _, rows in _recorded(parts, folder):
        for row in rows:
            (folder / f"{count:09}.bin").write_bytes(row.tobytes())
            count += 1


def _read_files(reading: Reading, threads: int) -> Batches:
    paths = reading.files("*.bin")
    batch, width = reading.batch, _dtype(reading).itemsize

    def read(target: NDArray[np.uint8], path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            file.readinto(target.data)

    with ThreadPoolExecutor(threads) as pool:
        for _ in reading.passes:
            for at in range(reading.start, len(paths) - batch + 1, batch):
                found = np.empty((batch, width), np.uint8)
                list(pool.map(read, found, paths[at : at + batch]))
                yield found


# TFRecord files of `tf.train.Example`


def _write_records(parts: Iterator[Columns], folder: Path) -> None:
    import tensorflow as tf

    writers = [tf.io.TFRecordWriter(str(folder / f"{i}.tfrecord")) for i in range(_FILES)]
    for number, rows in _recorded(parts, folder):
        for row in rows:
            feature = {name: _feature(tf, row[name]) for name in rows.dtype.names or ()}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writers[number].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def _feature(tf: Any, value: Any) -> Any:
    if value.shape:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _read_records(reading: Reading, reads: int, buffer: int) -> Batches:
    import tensorflow as tf

    dtype, features = _dtype(reading), {}
    for name in _names(reading):
        kind = tf.float32 if dtype[name].kind == "f" else tf.int64
        features[name] = tf.io.FixedLenFeature([], tf.string if dtype[name].shape else kind)
    paths = list(map(str, reading.files("*.tfrecord")))
    records = tf.data.TFRecordDataset(paths, buffer_size=buffer, num_parallel_reads=reads)
    records = records.skip(reading.start) if reading.start else records
    records = records if reading.once else records.repeat()
    parsed = records.batch(reading.batch, drop_remainder=True)
    parsed = parsed.map(lambda texts: tf.io.parse_example(texts, features), num_parallel_calls=2)
    yield from parsed.prefetch(1)


# Parquet


def _write_parquet(parts: Iterator[Columns], folder: Path) -> None:
    import pyarrow.parquet as pq

    writers: dict[int, Any] = {}
    for number, rows in _recorded(parts, folder):
        table = _arrow(rows)
        if number not in writers:
            path = folder / f"{number}.parquet"
            # The bytes are random: neither compression nor a dictionary makes them smaller.
            writers[number] = pq.ParquetWriter(
                path, table.schema, compression="none", use_dictionary=False
            )
        writers[number].write_table(table)
    for writer in writers.values():
        writer.close()


def _read_parquet(reading: Reading, threads: bool, ahead: bool) -> Batches:
    import pyarrow.parquet as pq

    columns = list(_names(reading))
    # Without a memory map: its batches would refer to pages that are not yet read from the file.
    for _ in reading.passes:
        left = reading.start
        for path in reading.files("*.parquet"):
            with pq.ParquetFile(path, pre_buffer=ahead) as file:
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
                groups = []
                for group, rows in enumerate(sizes):
                    if left < rows:
                        groups.append(group)
                    left = max(0, left - rows)
                if not groups:
                    continue
                found = file.iter_batches(
                    reading.batch, row_groups=groups, columns=columns, use_threads=threads
                )
                for batch in found:
                    if len(batch) == reading.batch:
                        yield _numpy(batch)


# Lance, by its scanner and by LanceDB's data set for trainings


def _write_lance(parts: Iterator[Columns], folder: Path) -> None:
    import lance

    for count, (_, rows) in enumerate(_recorded(parts, folder)):
        # One fragment for each part, as other formats have one file for each.
        mode = "append" if count else "create"
        lance.write_dataset(_arrow(rows), folder / f"{_TABLE}.lance", mode=mode)


def _read_lance(reading: Reading, ahead: int) -> Batches:
    import lance

    opened = lance.dataset(str(reading.folder / f"{_TABLE}.lance"))
    index, count = reading.shard
    fragments = opened.get_fragments()[index::count] if count > 1 else None
    for _ in reading.passes:
        scanner = opened.scanner(
            columns=list(_names(reading)),
            batch_size=reading.batch,
            batch_readahead=ahead,
            fragments=fragments,
            offset=reading.start or None,
        )
        for batch in scanner.to_batches():
            if len(batch) == reading.batch:
                yield _numpy(batch)


_CONSUMED: Final = ("samples_consumed_per_split", "positions_consumed_per_split")


def _rows_of(batch: Any) -> list[Any]:
    """Return each row as its columns' values over the memory of an Arrow batch."""
    return list(zip(*_numpy(batch).values(), strict=True))


def _read_lancedb(reading: Reading, ahead: int) -> Batches:
    import lancedb
    from lancedb.streaming import StreamingDataset

    table = lancedb.connect(str(reading.folder)).open_table(_TABLE)
    index, count = reading.shard
    names = list(_names(reading))
    for _ in reading.passes:
        rows = StreamingDataset(
            table,
            shuffle=False,
            rank=index,
            world_size=count,
            read_batch_size=reading.batch,
            io_queue_depth=ahead,
            columns=names,
            transform=_rows_of,
        )
        if reading.start:
            seen = dict.fromkeys(_CONSUMED, [reading.start] * count)
            rows.load_state_dict(rows.state_dict() | seen)
        found = iter(rows)
        while len(batch := list(itertools.islice(found, reading.batch))) == reading.batch:
            columns = zip(*batch, strict=True)
            yield {name: np.stack(values) for name, values in zip(names, columns, strict=True)}


# ArrayRecord, by Grain


def _write_array_records(parts: Iterator[Columns], folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    # One record a group, as Grain recommends for access by number.
    writers = [
        ArrayRecordWriter(str(folder / f"{i}.array_record"), "group_size:1") for i in range(_FILES)
    ]
    for number, rows in _recorded(parts, folder):
        for row in rows:
            writers[number].write(row.tobytes())
    for number, writer in enumerate(writers):
        writer.close()
        path = folder / f"{number}.array_record"
        if not path.stat().st_size:
            path.unlink()


def _read_grain(reading: Reading, threads: int, ahead: int) -> Batches:
    import grain

    dtype = _dtype(reading)
    paths = list(map(str, reading.files("*.array_record")))
    rows = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths))
    rows = rows[reading.start :] if reading.start else rows
    rows = rows if reading.once else rows.repeat()
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    stack = functools.partial(_stacked, dtype)
    yield from rows.to_iter_dataset(options).batch(
        reading.batch, drop_remainder=True, batch_fn=stack
    )


def _stacked(dtype: np.dtype[np.void], records: Sequence[bytes]) -> Records:
    return np.frombuffer(b"".join(records), dtype)


_AHEAD: Final = tuple({"ahead": n} for n in (4, 16))
_BUFFERS: Final = (256 << 10, 8 << 20)

PEERS: Final = {
    "TFRecord": Peer(
        ("tensorflow",),
        _write_records,
        _read_records,
        tuple({"reads": n, "buffer": b} for n in (1, 2, 4) for b in _BUFFERS),
    ),
    # No training keeps small samples in files of their own.
    "a file each": Peer(
        (), _write_files, _read_files, tuple({"threads": n} for n in (1, 2, 4)), 10_000
    ),
    "Parquet": Peer(
        ("pyarrow",),
        _write_parquet,
        _read_parquet,
        tuple({"threads": t, "ahead": a} for t in (True, False) for a in (True, False)),
    ),
    "Lance scan": Peer(("lance", "pyarrow"), _write_lance, _read_lance, _AHEAD),
    "LanceDB StreamingDataset": Peer(
        ("lancedb", "lance", "pyarrow", "torch"), _write_lance, _read_lancedb, _AHEAD
    ),
    "Grain, ArrayRecord": Peer(
        ("grain", "array_record"),
        _write_array_records,
        _read_grain,
        tuple({"threads": t, "ahead": a} for t, a in ((2, 16), (4, 64), (16, 500))),
    ),
}
