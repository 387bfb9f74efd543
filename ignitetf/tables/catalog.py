"""Manifests, which describe the data set in a cache and are stored in Ignite beside the data.

loader -> **manifest** -> reader, verify, describe

A manifest is a JSON text in the replicated cache `IGNITETF_CATALOG`, keyed by the name of its data
set, so that every Ignite client can read it. The loader writes it last, when all rows are stored,
so its content can be relied on.

A data set has the name its user gave it. The rows are in the cache `Manifest.cache`, whose name
differs while a replacement takes over; readers follow the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ignitetf.errors import CacheNotFound, SchemaError, WireError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.pyclient import translated
from ignitetf.tables.spec import CacheSpec, ensure_caches
from ignitetf.tables.splits import Division
from ignitetf.tables.storage import Layout, LoadFacts
from ignitetf.wire.answers import read_bool, read_sized
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.parameters import encode_string
from ignitetf.wire.requests import cache_request
from ignitetf.wire.schema import Schema

__all__ = [
    "CATALOG_CACHE",
    "SEPARATOR",
    "Manifest",
    "add_text",
    "delete_entry",
    "drop_manifest",
    "json_text",
    "list_entries",
    "list_manifests",
    "read_entry",
    "read_manifest",
    "read_text",
    "remove_text",
    "replace_text",
    "write_entry",
    "write_manifest",
]

CATALOG_CACHE: Final = "IGNITETF_CATALOG"
_FORMAT: Final = 1
# Names of other entries than manifests contain this; names of data sets never do.
SEPARATOR: Final = "\n"


@dataclass(frozen=True)
class Manifest:
    """Everything recorded about a data set.

    Attributes:
        name: Name of the data set.
        schema: Its records, as they are for training (also in the block layout).
        cache: The cache that holds it now; `name`, except while it is being replaced.
        layout: `rows` (an entry is a record) or `blocks` (an entry is a block of columns).
        rows: Number of records.
        partition_rows: Number of records in each partition; empty if unknown.
        class_names: Names of the values of LABEL; empty if they have none.
        checksum: Sum modulo 2^64 of the records' hashes (`wire.checksum`), 16 hex digits, equal for
            both layouts. Empty if unknown.
        source: Fingerprint of what was loaded; after `append` several, separated by spaces.
        created: Time of the load, ISO 8601 in UTC.
        version: 1 for a new data set, one more with each `replace` or `append`.
        skipped: Number of bad records left out.
        nbytes: Bytes of all values.
        index: For the block layout, the table that has the keys and some fields as SQL rows.
        options: What is recorded of the load that wrote it.
        splits: Its splits, each division with names that no other one has.
    """

    name: str
    schema: Schema
    cache: str = ""
    layout: Layout = "rows"
    rows: int = 0
    partition_rows: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    checksum: str = ""
    source: str = ""
    created: str = ""
    version: int = 1
    skipped: int = 0
    nbytes: int = 0
    index: str | None = None
    options: LoadFacts = field(default_factory=LoadFacts)
    splits: tuple[Division, ...] = ()

    def __post_init__(self) -> None:
        """Default the cache's name to that of the data set."""
        if not self.cache:
            object.__setattr__(self, "cache", self.name)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal manifest."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["schema"] = self.schema.to_json()
        out["options"] = self.options.to_json()
        out["splits"] = [division.to_json() for division in self.splits]
        return {"format": _FORMAT, **out}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Restore a manifest written by `to_json`; raises SchemaError if it is not one."""
        known = {f.name for f in fields(cls)}
        try:
            if data["format"] != _FORMAT:
                raise SchemaError(
                    f"manifest of format {data['format']}, this version reads {_FORMAT}",
                    hint="update ignitetf",
                )
            given = {k: v for k, v in data.items() if k in known}
            given["schema"] = Schema.from_json(given["schema"])
            given["options"] = LoadFacts.from_json(given.get("options", {}))
            given["splits"] = tuple(map(Division.from_json, given.get("splits", ())))
            for name in ("partition_rows", "class_names"):
                given[name] = tuple(given.get(name, ()))
            return cls(**given)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SchemaError(f"not a manifest: {error!r}") from error


def read_manifest(client: Client, name: str) -> Manifest | None:
    """Return a data set's manifest, or None if there is none (as for other people's caches)."""
    entry = read_entry(client, name)
    return None if entry is None else Manifest.from_json(entry)


def write_manifest(client: Client, manifest: Manifest) -> None:
    """Store a manifest under its name, replacing any older one."""
    write_entry(client, manifest.name, manifest.to_json())


def drop_manifest(client: Client, name: str) -> None:
    """Remove a data set's manifest and journal, if they exist."""
    delete_entry(client, name)
    delete_entry(client, name + SEPARATOR + "journal")


def list_manifests(client: Client) -> list[Manifest]:
    """Return the manifests of all data sets, sorted by name."""
    found = list_entries(client)
    names = sorted(name for name in found if SEPARATOR not in name)
    return [Manifest.from_json(json.loads(found[name])) for name in names]


def list_entries(client: Client) -> dict[str, str]:
    """Return all texts of the catalog by name."""
    try:
        with translated(), client.cache(CATALOG_CACHE).scan(page_size=256) as cursor:
            return dict(cursor)
    except CacheNotFound:
        return {}


def read_entry(client: Client, name: str) -> dict[str, Any] | None:
    """Return the JSON object stored in the catalog under a name, or None."""
    if (text := read_text(client, name)) is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"{CATALOG_CACHE}: the entry {name!r} is no JSON") from error
    if not isinstance(found, dict):
        raise SchemaError(f"{CATALOG_CACHE}: the entry {name!r} is no JSON object")
    return found


def read_text(client: Client, name: str) -> str | None:
    """Return the text stored in the catalog under a name, unparsed, or None."""
    try:
        body = client.call(OpCode.CACHE_GET, _request(name))
    except CacheNotFound:
        return None
    code, text = read_sized(body, f"{CATALOG_CACHE}, entry {name!r}")
    if code is TypeCode.NULL:
        return None
    if code is not TypeCode.STRING:
        raise WireError(f"{CATALOG_CACHE}: the entry {name!r} is no text")
    try:
        return bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{CATALOG_CACHE}: the entry {name!r} is no JSON") from error


def write_entry(client: Client, name: str, entry: Mapping[str, Any]) -> None:
    """Store a JSON object in the catalog under a name, creating the catalog if needed."""
    _put(client, OpCode.CACHE_PUT, _request(name, json_text(entry)))


def json_text(entry: Mapping[str, Any]) -> str:
    """Format a JSON object the way the catalog stores it."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def add_text(client: Client, name: str, text: str) -> bool:
    """Store a text unless the name has one already, in which case return False."""
    body = _put(client, OpCode.CACHE_PUT_IF_ABSENT, _request(name, text))
    return read_bool(body, CATALOG_CACHE)


def replace_text(client: Client, name: str, old: str, new: str) -> bool:
    """Replace exactly the text `old`; return False if the name has another text or none."""
    body = _put(client, OpCode.CACHE_REPLACE_IF_EQUALS, _request(name, old, new))
    return read_bool(body, CATALOG_CACHE)


def remove_text(client: Client, name: str, text: str, *, timeout_s: float | None = None) -> bool:
    """Remove exactly this text; return False if the name has another text or none."""
    request = _request(name, text)
    body = client.call(OpCode.CACHE_REMOVE_IF_EQUALS, request, timeout_s=timeout_s)
    return read_bool(body, CATALOG_CACHE)


def delete_entry(client: Client, name: str) -> None:
    """Remove an entry of the catalog if it exists."""
    try:
        client.call(OpCode.CACHE_REMOVE_KEY, _request(name))
    except CacheNotFound:
        return


def _put(client: Client, op: OpCode, request: bytes) -> memoryview:
    """Send a request that stores something, creating the catalog if needed."""
    try:
        return client.call(op, request)
    except CacheNotFound:
        ensure_caches(client, CacheSpec(CATALOG_CACHE, mode="REPLICATED"))
        return client.call(op, request)


def _request(*texts: str) -> bytes:
    return cache_request(cache_id(CATALOG_CACHE), *map(encode_string, texts))
