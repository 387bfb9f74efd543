"""Manifests: each describes the data set in a cache. Ignite stores them next to the data.

loader -> **manifest** -> reader, verify, describe

A manifest is a JSON text in the replicated cache `IGNITETF_CATALOG`, keyed by the name of its data
set, so that every Ignite client can read it. The loader writes it last, when all rows are stored,
so a manifest is always correct.

A data set has the name its user gave it. The rows are in the cache `Manifest.cache`, whose name
differs during a replacement; readers follow the manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ignitetf.errors import SchemaError
from ignitetf.net.client import Client
from ignitetf.net.common import Question
from ignitetf.tables.splits import Division
from ignitetf.tables.storage import Layout, LoadFacts
from ignitetf.tables.texts import Texts, json_text
from ignitetf.wire.schema import Schema

__all__ = [
    "CATALOG_CACHE",
    "SEPARATOR",
    "Manifest",
    "catalog",
    "drop_manifest",
    "forget_journal",
    "forget_manifest",
    "journal_question",
    "list_manifests",
    "manifest_of",
    "manifest_question",
    "read_manifest",
    "write_manifest",
]

log = logging.getLogger(__name__)

CATALOG_CACHE: Final = "IGNITETF_CATALOG"
_FORMAT: Final = 1
# Other entries than manifests have this in their names; names of data sets never have it.
SEPARATOR: Final = "\n"


@dataclass(frozen=True)
class Manifest:
    """All recorded facts about a data set.

    Attributes:
        name: Name of the data set.
        schema: Its records as training reads them (also in the block layout).
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
        options: Facts about the load that wrote it.
        splits: Its splits; the names in each division differ from those in all others.
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


def catalog(client: Client) -> Texts:
    """Return the texts of the catalog."""
    return Texts(client, CATALOG_CACHE)


def read_manifest(client: Client, name: str) -> Manifest | None:
    """Return a data set's manifest; None for a cache without one (made by another program).

    Raises:
        SchemaError: It is damaged, or of another version.
    """
    return manifest_of(client, name, catalog(client).get(name))


def manifest_question(client: Client, name: str) -> Question[str | None]:
    """Return the request for the text of a data set's manifest; `manifest_of` parses it."""
    return catalog(client).question(name)


def journal_question(client: Client, name: str) -> Question[str | None]:
    """Return the request for the text of a data set's journal; the answer is None without one."""
    return catalog(client).question(f"{name}{SEPARATOR}journal")


def manifest_of(client: Client, name: str, text: str | None) -> Manifest | None:
    """Parse this text as a manifest; returns and raises as `read_manifest` does."""
    try:
        return None if text is None else Manifest.from_json(catalog(client).parse(name, text))
    except SchemaError as error:
        if error.hint is None:
            raise error.hinted(
                f"'ignitetf cache drop {name}' removes a damaged data set"
            ) from error
        raise


def write_manifest(client: Client, manifest: Manifest) -> None:
    """Store a manifest under its name, replacing any older one."""
    catalog(client).put(manifest.name, json_text(manifest.to_json()))


def drop_manifest(client: Client, name: str) -> None:
    """Remove a data set's manifest and journal, if they exist."""
    client.at_once(
        lambda: forget_manifest(client, name),
        lambda: forget_journal(client, name),
    )


def forget_manifest(client: Client, name: str) -> None:
    """Remove a data set's manifest if it exists."""
    catalog(client).delete(name)


def forget_journal(client: Client, name: str) -> None:
    """Remove the journal of a data set's unfinished load if it exists."""
    catalog(client).delete(f"{name}{SEPARATOR}journal")


def list_manifests(client: Client) -> list[Manifest]:
    """Return the manifests of all data sets, sorted by name; skip and log damaged ones."""
    texts, found = catalog(client), list[Manifest]()
    for name, text in sorted(texts.all().items()):
        if SEPARATOR not in name:
            try:
                found.append(Manifest.from_json(texts.parse(name, text)))
            except SchemaError as error:
                log.warning("data set %s: %s", name, error.message)
    return found
