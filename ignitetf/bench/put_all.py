"""Runs pyignite's `put_all` in a separate process, like a program that loads with it.

`bench write` -> rows, settings -> **process** -> seconds

The memory that malloc returns depends on what the process freed before. So pyignite
writes rows of 1 MB at either 420 or 600 MB/s, and in the benchmark's own process its rate would
depend on earlier runs. In this process malloc keeps large blocks from the start, which is
pyignite's best case.
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

from ignitetf import connect
from ignitetf.bench.rows import Columns, Profile, make_rows
from ignitetf.errors import IgniteTFError, RequestTimeout
from ignitetf.settings import Settings

__all__ = ["PutAll", "put_all_seconds"]

_LIMIT_S: Final = 600.0
_ENVIRONMENT: Final = {
    # The highest values that glibc itself sets once large blocks have been freed.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    # The current folder must not affect what is imported.
    "PYTHONSAFEPATH": "1",
}


@dataclass(frozen=True)
class PutAll:
    """The work of the process.

    Attributes:
        settings: Address of the node.
        cache: Name of an existing cache, and of its binary type.
        profile: The rows; each `put_all` takes a batch of them.
    """

    settings: Settings
    cache: str
    profile: Profile


def put_all_seconds(work: PutAll, limit_s: float = _LIMIT_S) -> float:
    """Return the seconds that the rows take, without process start and a first batch.

    Args:
        work: The rows to write, and where.
        limit_s: Seconds after which the process is killed.

    Raises:
        IgniteTFError: The process failed; the message is the last line of its error.
        RequestTimeout: It took too long and was killed.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(asdict(work)).encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
            env=os.environ | _ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as error:
        raise RequestTimeout(f"pyignite took more than {limit_s:g} s") from error
    if ended.returncode:
        output = ended.stderr.decode(errors="replace").strip().splitlines()
        # Notes of the error, such as its hint, follow its message.
        lines = [line for line in output if not line.startswith("hint: ")] or ["no message"]
        raise IgniteTFError(f"pyignite's process failed: {lines[-1]}")
    return float(ended.stdout)


def _read(given: bytes) -> PutAll:
    values = json.loads(given)
    settings = values.pop("settings")
    addresses = tuple(settings.pop("addresses"))
    return PutAll(
        Settings(addresses=addresses, **settings), values["cache"], Profile(**values["profile"])
    )


def _write(work: PutAll) -> float:
    with connect(settings=work.settings) as client:
        cache = client.cache(work.cache)
        (rows,) = make_rows(work.profile, work.profile.rows * work.profile.row_bytes)
        # The warm-up uses keys beyond those that are measured.
        cache.put_all(next(_objects(work, rows, work.profile.rows)))
        begin = time.perf_counter()
        for entries in _objects(work, rows, 0):
            cache.put_all(entries)
        return time.perf_counter() - begin


def _objects(work: PutAll, rows: Columns, first_key: int) -> Iterator[dict[Any, Any]]:
    """Yield rows in the form in which a user of pyignite has them: objects by key."""
    from pyignite import GenericObjectMeta
    from pyignite.datatypes import ByteArrayObject, IntObject, LongObject

    fields = OrderedDict(IMAGE=ByteArrayObject, LABEL=IntObject)
    row: Any = GenericObjectMeta(work.cache, (), {}, type_name=work.cache, schema=fields)
    images, labels = rows["IMAGE"], rows["LABEL"]
    for start in range(0, len(labels), work.profile.batch):
        yield {
            (first_key + i, LongObject): row(IMAGE=images[i].tobytes(), LABEL=int(labels[i]))
            for i in range(start, min(start + work.profile.batch, len(labels)))
        }


if __name__ == "__main__":
    print(_write(_read(sys.stdin.buffer.read())))
