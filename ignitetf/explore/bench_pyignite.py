"""pyignite's `put_all` in a process of its own, as a program that loads by it would run.

`bench write` -> rows, settings -> **process** -> seconds

What a process freed before decides how its malloc hands out memory: with the thresholds that
arrays of 8 MB leave behind, pyignite writes rows of 1 MB a third faster than in a new process.
In the process of the benchmark its rate would be a matter of what ran before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.client import connect
from ignitetf.errors import IgniteTFError, RequestTimeout
from ignitetf.settings import Settings

__all__ = ["PutAll", "images_of", "labels_of", "put_all_seconds"]

_SEED: Final = 20
_LIMIT_S: Final = 600.0


@dataclass(frozen=True)
class PutAll:
    """What the process writes.

    Attributes:
        settings: Where the node is.
        cache: Name of the cache, which is that of its binary type too; both are there.
        rows: Number of rows, the first ones of those that the other ways write.
        row_bytes: Bytes of the image of each.
        batch: Rows of a `put_all`.
    """

    settings: Settings
    cache: str
    rows: int
    row_bytes: int
    batch: int


def images_of(rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """The same random bytes for every caller, shape [rows, row_bytes]; fewer rows are the first."""
    rng = np.random.default_rng(_SEED)
    return rng.integers(0, 256, (rows, row_bytes), dtype=np.uint8)


def labels_of(rows: int) -> NDArray[np.int32]:
    """Their labels, shape [rows]."""
    return np.arange(rows, dtype=np.int32) % 10


def put_all_seconds(work: PutAll) -> float:
    """Seconds that the rows take, without the start of the process and a first batch.

    Raises:
        IgniteTFError: The process failed; the message is its last line.
        RequestTimeout: It took too long, and was ended.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(asdict(work)).encode(),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
            # The folder that the user stands in has no say in what is imported.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise RequestTimeout(f"pyignite took more than {_LIMIT_S:g} s") from error
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise IgniteTFError(f"pyignite's process failed: {(lines or ['no message'])[-1]}")
    return float(ended.stdout)


def _read(given: bytes) -> PutAll:
    values = json.loads(given)
    settings = values.pop("settings")
    addresses = tuple(settings.pop("addresses"))
    return PutAll(Settings(addresses=addresses, **settings), **values)


def _write(work: PutAll) -> float:
    with connect(settings=work.settings) as client:
        cache = client.cache(work.cache)
        images, labels = images_of(work.rows, work.row_bytes), labels_of(work.rows)
        # Keys behind those that are measured.
        cache.put_all(next(_objects(work, images, labels, work.rows)))
        begin = time.perf_counter()
        for entries in _objects(work, images, labels, 0):
            cache.put_all(entries)
        return time.perf_counter() - begin


def _objects(
    work: PutAll, images: NDArray[np.uint8], labels: NDArray[np.int32], first_key: int
) -> Iterator[dict[Any, Any]]:
    """Rows as a user of pyignite has them: objects by key."""
    from pyignite import GenericObjectMeta
    from pyignite.datatypes import ByteArrayObject, IntObject, LongObject

    fields = OrderedDict(IMAGE=ByteArrayObject, LABEL=IntObject)
    row: Any = GenericObjectMeta(work.cache, (), {}, type_name=work.cache, schema=fields)
    for start in range(0, work.rows, work.batch):
        yield {
            (first_key + i, LongObject): row(IMAGE=images[i].tobytes(), LABEL=int(labels[i]))
            for i in range(start, min(start + work.batch, work.rows))
        }


if __name__ == "__main__":
    print(_write(_read(sys.stdin.buffer.read())))
