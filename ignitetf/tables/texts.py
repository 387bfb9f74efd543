"""`Texts`: texts by name in a replicated cache, with atomic operations for leases and records.

spec -> **texts** -> catalog, job records

A text may have a time to live; the cluster removes it by its own clock. So a text that a process
renews exists as long as the process is alive, independent of other machines' clocks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ignitetf.errors import CacheNotFound, SchemaError, ServerError, WireError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.common import Question
from ignitetf.net.pyclient import translated
from ignitetf.tables.spec import CacheSpec, ensure_caches
from ignitetf.wire.answers import read_bool, read_sized
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.requests import cache_request, encode_string

__all__ = ["Texts", "json_text"]


def json_text(entry: Mapping[str, Any]) -> str:
    """Return the stored form of a JSON object."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def _none_without_cache(error: ServerError) -> None:
    if not isinstance(error, CacheNotFound):
        raise error


@dataclass(frozen=True)
class Texts:
    """The texts of one cache. Storing the first text creates the cache.

    Attributes:
        client: The connection.
        cache: Name of the cache.
    """

    client: Client
    cache: str

    def get(self, name: str) -> str | None:
        """Return the text of a name, unparsed, or None."""
        found: str | None
        (found,) = self.client.ask(self.question(name))
        return found

    def question(self, name: str) -> Question[str | None]:
        """Return the request that `get` sends."""
        read = functools.partial(self._read, name)
        return Question(OpCode.CACHE_GET, self._request(name), read, _none_without_cache)

    def _read(self, name: str, body: memoryview) -> str | None:
        code, text = read_sized(body, f"{self.cache}, entry {name!r}")
        if code is TypeCode.NULL:
            return None
        if code is not TypeCode.STRING:
            raise WireError(f"{self.cache}: the entry {name!r} is not a text")
        try:
            return bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SchemaError(f"{self.cache}: the entry {name!r} is not JSON") from error

    def get_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object of a name, or None."""
        text = self.get(name)
        return None if text is None else self.parse(name, text)

    def parse(self, name: str, text: str) -> dict[str, Any]:
        """Return the JSON object that is the text of a name.

        Raises:
            SchemaError: The text is not a JSON object.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"{self.cache}: the entry {name!r} is not JSON") from error
        if not isinstance(found, dict):
            raise SchemaError(f"{self.cache}: the entry {name!r} is not a JSON object")
        return found

    def all(self) -> dict[str, str]:
        """Return all texts by name."""
        try:
            with translated(), self.client.cache(self.cache).scan(page_size=256) as cursor:
                return dict(cursor)
        except CacheNotFound:
            return {}

    def put(self, name: str, text: str, *, lifetime_s: float | None = None) -> None:
        """Store a text, for `lifetime_s` seconds or without a limit."""
        self._put(OpCode.CACHE_PUT, self._request(name, text, lifetime_s=lifetime_s))

    def add(self, name: str, text: str) -> bool:
        """Store a text unless the name has one; return whether it was stored."""
        body = self._put(OpCode.CACHE_PUT_IF_ABSENT, self._request(name, text))
        return read_bool(body, self.cache)

    def replace(self, name: str, old: str, new: str) -> bool:
        """Replace exactly the text `old`; return False if the name has another text or none."""
        body = self._put(OpCode.CACHE_REPLACE_IF_EQUALS, self._request(name, old, new))
        return read_bool(body, self.cache)

    def remove(self, name: str, text: str, *, timeout_s: float | None = None) -> bool:
        """Remove exactly this text; return False if the name has another text or none."""
        request = self._request(name, text)
        body = self.client.call(OpCode.CACHE_REMOVE_IF_EQUALS, request, timeout_s=timeout_s)
        return read_bool(body, self.cache)

    def delete(self, name: str) -> None:
        """Remove a text if it exists."""
        try:
            self.client.call(OpCode.CACHE_REMOVE_KEY, self._request(name))
        except CacheNotFound:
            return

    def _put(self, op: OpCode, request: bytes) -> memoryview:
        """Send a request that stores a text; create the cache if necessary."""
        try:
            return self.client.call(op, request)
        except CacheNotFound:
            ensure_caches(self.client, CacheSpec(self.cache, mode="REPLICATED"))
            return self.client.call(op, request)

    def _request(self, *texts: str, lifetime_s: float | None = None) -> bytes:
        lifetime_ms = None if lifetime_s is None else round(lifetime_s * 1000)
        return cache_request(
            cache_id(self.cache), *map(encode_string, texts), lifetime_ms=lifetime_ms
        )
