"""`PageDecoder`: reads rows that the core has left, with the types that they need.

reading -> **page decoder** -> wire.decoder
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ignitetf.errors import IgniteTFError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.net.retry import READ, Backoff
from ignitetf.read.error_context import Place
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.frames import Page
from ignitetf.wire.schema import Batch, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["PageDecoder"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class PageDecoder:
    """Decodes pages of one cache; may be used by several threads.

    Args:
        client: Asked for types that the registry lacks.
        name: Name of the data set, for messages.
        schema: Fields to decode.
        registry: Known binary types.
        retry_s: Seconds in which a type is asked for again, if a connection is lost.
    """

    def __init__(
        self, client: Client, name: str, schema: Schema, registry: TypeRegistry, retry_s: float
    ) -> None:
        self._client = client
        self._name = name
        self._registry = registry
        self._decoder = Decoder(schema, registry)
        self._retry_s = retry_s

    def decode(self, partition: int | None, page: Page, first: int = 0) -> Batch:
        """Decode a page.

        Args:
            partition: Its partition, if it is of a single one.
            page: The page.
            first: Number of its first entry, for messages.

        Raises:
            SchemaError: A record does not fit; names cache, partition, key and field.
        """
        with Place(self._name, partition, first=first):
            return self.with_types(self._decoder.decode, page)

    def with_types(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` with the types that it needs; as `net.binary_types.with_types`.

        A type is asked for over another connection, which may be lost though the page is here.
        """
        backoff = Backoff(READ)
        while True:
            try:
                return with_types(self._client, self._registry, work, *args)
            except IgniteTFError as error:
                if (wait := backoff.wait_s(error, self._retry_s)) is None:
                    raise
                log.warning("%s: %s; asking again in %.1f s", self._name, error, wait)
                time.sleep(wait)
