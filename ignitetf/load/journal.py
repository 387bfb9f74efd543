"""The journal of a load: what is stored already, kept in Ignite while the load runs.

The journal is written before the cache is made, after each flush, and removed once the manifest
stands. A loader that is killed at any moment therefore leaves a journal behind whose rows are
all stored; rows after them may be, and are written again with the same keys.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.load.work import Totals
from ignitetf.net.client import Client
from ignitetf.tables.catalog import SEPARATOR, delete_entry, read_entry, write_entry
from ignitetf.wire.schema import Schema

__all__ = ["Journal", "drop_journal", "read_journal", "write_journal"]


@dataclass
class Journal:
    """An unfinished load.

    Attributes:
        name: Name of the data set.
        cache: The cache that is filled.
        mode: `new`, `append` or `replace`.
        phase: `load`, or `move` when a replacement is loaded and takes the name's cache.
        schema: The records.
        source: Fingerprint of the source.
        options: Options that decide which rows are stored and how; equal for a resume.
        position: Record of the source with which to go on.
        key_base: Added to running keys (after `append`).
        rows: Rows of this load that are stored.
        nbytes: Bytes of their entries.
        checksum: Sum of their hashes.
        partition_rows: Rows by partition; empty where it is not known.
        skipped: Bad records left out so far.
        partitions: Number asked for; None leaves it to the cluster.
        backups: Copies of each partition.
        origin: How the source was opened, for commands that open it again.
        load: Name of this load, by which its manifest is known.
        replaces: The caches whose place a replacement takes.
        state: What a layout has to remember beside this.
    """

    name: str
    cache: str
    mode: str
    schema: Schema
    source: str
    options: dict[str, Any]
    phase: str = "load"
    position: int = 0
    key_base: int = 0
    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: list[int] = field(default_factory=list)
    skipped: int = 0
    partitions: int | None = None
    backups: int = 0
    origin: dict[str, Any] | None = None
    load: str = field(default_factory=lambda: uuid.uuid4().hex)
    replaces: list[str] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    def totals(self, partitions: int | None) -> Totals:
        """What is stored, for a writer to go on from."""
        counts = None
        if partitions is not None and (self.partition_rows or self.rows == 0):
            counts = np.array(self.partition_rows or [0] * partitions, np.int64)
        return Totals(self.rows, self.nbytes, self.checksum, counts)


def read_journal(client: Client, name: str) -> Journal | None:
    """The journal of an unfinished load of this data set; None where there is none."""
    entry = read_entry(client, _entry_name(name))
    return None if entry is None else _from_json(entry)


def write_journal(client: Client, journal: Journal) -> None:
    """Store a journal in place of an older one."""
    write_entry(client, _entry_name(journal.name), _to_json(journal))


def drop_journal(client: Client, name: str) -> None:
    """Remove a journal; harmless where there is none."""
    delete_entry(client, _entry_name(name))


def _entry_name(name: str) -> str:
    return f"{name}{SEPARATOR}journal"


def _to_json(journal: Journal) -> dict[str, Any]:
    # The checksum has 64 unsigned bits, more than JSON readers of other languages keep.
    return {
        **asdict(journal),
        "schema": journal.schema.to_json(),
        "checksum": f"{journal.checksum:016x}",
    }


def _from_json(entry: Mapping[str, Any]) -> Journal:
    try:
        given = dict(entry)
        given["schema"] = Schema.from_json(given["schema"])
        given["checksum"] = int(given["checksum"], 16)
        return Journal(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(
            f"the journal of an unfinished load cannot be read: {error!r}",
            hint="begin again with --if-exists replace",
        ) from error
