"""The journal of a load: what is stored already, kept in Ignite while the load runs.

The journal is written before the cache is created and after each flush, and removed once the
manifest is written. So a loader that is killed at any moment leaves a journal whose rows are all
stored. Later rows may be stored too; they are written again with the same keys.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.load.sender import Totals
from ignitetf.net.client import Client
from ignitetf.net.common import Question
from ignitetf.tables.catalog import SEPARATOR, catalog
from ignitetf.tables.storage import Origin, Storage
from ignitetf.tables.texts import json_text
from ignitetf.wire.schema import Schema

__all__ = [
    "Journal",
    "Mode",
    "add_journal",
    "drop_journal",
    "journal_question",
    "read_journal",
    "write_journal",
]

# How a load started.
Mode = Literal["new", "append", "replace"]


@dataclass
class Journal:
    """An unfinished load.

    Attributes:
        name: Name of the data set.
        cache: The cache being filled.
        mode: `new`, `append` or `replace`.
        phase: `load`, or `move` once a replacement is loaded and takes over the name.
        schema: The records.
        source: Fingerprint of the source.
        storage: Which rows are stored and how; must be equal to resume.
        position: Record of the source to continue with.
        key_base: Added to running keys (for `append`).
        rows: Rows stored by this load.
        nbytes: Bytes of their entries.
        checksum: Sum of their hashes.
        partition_rows: Rows by partition; empty if unknown.
        skipped: Bad records left out so far.
        partitions: Requested number of partitions; None leaves it to the cluster.
        backups: Copies of each partition.
        origin: How the source was opened, for commands that open it again; None if unknown.
        load: Id of this load, which identifies its manifest.
        replaces: The caches that a replacement supersedes.
        blocks: Number of blocks in each partition so far; empty for the row layout.
        block_rows: Rows of each block so far, as in `LoadFacts`.
        topology: Version of the cluster's topology when this load began to write.
    """

    name: str
    cache: str
    mode: Mode
    schema: Schema
    source: str
    storage: Storage
    phase: Literal["load", "move"] = "load"
    position: int = 0
    key_base: int = 0
    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: list[int] = field(default_factory=list)
    skipped: int = 0
    partitions: int | None = None
    backups: int = 0
    origin: Origin | None = None
    load: str = field(default_factory=lambda: uuid.uuid4().hex)
    replaces: list[str] = field(default_factory=list)
    blocks: tuple[int, ...] = ()
    block_rows: tuple[int, ...] = ()
    topology: int | None = None

    def totals(self, partitions: int | None) -> Totals:
        """Return what is stored so far, for a writer to continue from."""
        counts = None
        if partitions is not None and (self.partition_rows or self.rows == 0):
            counts = np.array(self.partition_rows or [0] * partitions, np.int64)
        return Totals(self.rows, self.nbytes, self.checksum, counts)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` restores an equal journal."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        del out["storage"], out["blocks"], out["block_rows"]
        state = {"blocks": list(self.blocks), "block_rows": list(self.block_rows)}
        return {
            **out,
            "schema": self.schema.to_json(),
            "options": self.storage.to_json(),
            # It has 64 unsigned bits, more than JSON readers of other languages keep.
            "checksum": f"{self.checksum:016x}",
            "origin": None if self.origin is None else self.origin.to_json(),
            "state": state if self.storage.layout == "blocks" else {},
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Journal:
        """Restore a journal from the output of `to_json`; raises SchemaError for anything else."""
        try:
            given = dict(entry)
            origin = given["origin"]
            given["schema"] = Schema.from_json(given["schema"])
            given["storage"] = Storage.from_json(given.pop("options"))
            given["checksum"] = int(given["checksum"], 16)
            given["origin"] = None if origin is None else Origin.from_json(origin)
            state = given.pop("state")
            given["blocks"] = tuple(state.get("blocks", ()))
            given["block_rows"] = tuple(state.get("block_rows", ()))
            return cls(**given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(
                f"the journal of an unfinished load cannot be read: {error!r}",
                hint="begin again with --if-exists replace",
            ) from error


def read_journal(client: Client, name: str) -> Journal | None:
    """Return the journal of an unfinished load of this data set, or None."""
    entry = catalog(client).get_json(_entry_name(name))
    return None if entry is None else Journal.from_json(entry)


def journal_question(client: Client, name: str) -> Question[str | None]:
    """Ask for the text of a data set's journal."""
    return catalog(client).question(_entry_name(name))


def write_journal(client: Client, journal: Journal) -> None:
    """Store a journal, replacing an older one."""
    catalog(client).put(_entry_name(journal.name), json_text(journal.to_json()))


def add_journal(client: Client, journal: Journal) -> bool:
    """Store a journal unless there is one, in which case return False.

    Its own from an earlier try, whose answer was lost, counts as stored now.
    """
    entry, text = _entry_name(journal.name), json_text(journal.to_json())
    return catalog(client).add(entry, text) or catalog(client).get(entry) == text


def drop_journal(client: Client, name: str) -> None:
    """Remove a journal if there is one."""
    catalog(client).delete(_entry_name(name))


def _entry_name(name: str) -> str:
    return f"{name}{SEPARATOR}journal"
