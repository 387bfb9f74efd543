"""Reads whatever can be read: an unreadable field is left out and does not hide the others.

cache -> reader -> **readable** -> head, stats, preview
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ignitetf.errors import SchemaError
from ignitetf.net.client import Client
from ignitetf.read.declared import KEY_AS_STORED
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.wire.infer import STORED_KEY

__all__ = ["read_what_can_be"]

T = TypeVar("T")


def read_what_can_be(
    client: Client, cache: str, options: ReadOptions, work: Callable[[CacheReader], T]
) -> tuple[T, dict[str, str]]:
    """Return the result of `work` on a cache, starting over without any field that cannot be read.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        options: How to read it. If they name fields, these are required.
        work: Reads; must not keep anything from an earlier attempt.

    Returns:
        Its result, and the fields left out with the reasons.

    Raises:
        SchemaError: Nothing can be read, or not the named fields.
    """
    if options.fields is not None:
        return work(CacheReader(client, cache, options)), {}
    options = replace(options, skip_unreadable=True)
    left_out: dict[str, str] = {}
    while True:
        reader = CacheReader(client, cache, options)
        left_out |= {name: error.message for name, error in reader.left_out.items()}
        try:
            return work(reader), left_out
        except SchemaError as error:
            name = error.fields.get("field")
            if name == reader.schema.key.name and reader.schema.key != STORED_KEY:
                left_out[str(name)] = error.message
                options = replace(options, schema=KEY_AS_STORED)
                continue
            if name not in reader.schema.names:
                raise
            others = [n for n in reader.schema.names if n != name]
            left_out[str(name)] = error.message
            options = replace(options, fields=others)
