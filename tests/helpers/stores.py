"""File systems of their own for tests, dropped afterwards."""

import contextlib
import itertools
import os

from ignitetf.fs.store import Store

_numbers = itertools.count()


@contextlib.contextmanager
def new_store(client, chunk_bytes=65536):
    made = Store(client, f"F{os.getpid()}_{next(_numbers)}", chunk_bytes=chunk_bytes)
    yield made
    made.close()
    for cache in (made.meta.name, made.chunks.name):
        client.destroy_cache(cache)
