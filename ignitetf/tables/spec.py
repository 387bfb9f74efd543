"""`CacheSpec`: the configuration of a new cache, and the two ways to request it from Ignite.

A thin client creates a cache by its properties, which lack the number of partitions, or by the
options of a CREATE TABLE, whose template sets it. Both are derived from a `CacheSpec` here, so that
every cache of ignitetf, including its catalog and its file systems, follows the same rules:

- A cache with copies is FULL_SYNC. By default Ignite acknowledges a write when only the primary
  node has it, and losing that node loses the write.
- Lost partitions answer with an error (READ_WRITE_SAFE) rather than as if they were empty. CREATE
  TABLE has no option for this; the templates do (see `node.config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.net.pyclient import translated
from ignitetf.partitions import DEFAULT_PARTITIONS, MAX_PARTITIONS, REPLICATED_PARTITIONS
from ignitetf.tables.room import require_room

__all__ = [
    "CacheSpec",
    "check_partitions",
    "copy_options",
    "ensure_caches",
    "make_cache",
    "require_room_for",
    "table_options",
]

_MODES: Final = ("PARTITIONED", "REPLICATED")
_ATOMICITIES: Final = ("ATOMIC", "TRANSACTIONAL")

Options = dict[str, str | int | bool]


@dataclass(frozen=True)
class CacheSpec:
    """Configuration of a new cache.

    Attributes:
        name: Name of the cache.
        partitions: Number of partitions; None leaves it to the cluster (1024).
        backups: Copies of each partition in addition to the primary one.
        mode: PARTITIONED, or REPLICATED (all data on each node).
        atomicity: ATOMIC or TRANSACTIONAL.
        affinity_key: Name of the key field that determines the partition, for composite keys.
        data_region: Data region of the nodes that holds it; None for their default one.
        query_entity: SQL table over a cache created by properties, in pyignite's form.
    """

    name: str
    partitions: int | None = None
    backups: int = 0
    mode: str = "PARTITIONED"
    atomicity: str = "ATOMIC"
    affinity_key: str | None = None
    data_region: str | None = None
    query_entity: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values that the server would refuse or misinterpret."""
        if not self.name or self.name != self.name.strip():
            raise ConfigError(f"{self.name!r} is not a valid cache name")
        check_partitions(self.partitions)
        if self.backups < 0:
            raise ConfigError(f"a cache cannot have {self.backups} backups")
        if self.mode not in _MODES:
            raise ConfigError(f"mode {self.mode!r} is not one of {', '.join(_MODES)}")
        if self.atomicity not in _ATOMICITIES:
            raise ConfigError(
                f"atomicity {self.atomicity!r} is not one of {', '.join(_ATOMICITIES)}"
            )
        if self.mode == "REPLICATED" and self.partitions is not None:
            raise ConfigError(
                "a replicated cache takes no number of partitions",
                hint="omit the number, or choose the mode PARTITIONED with backups",
            )

    @property
    def partition_count(self) -> int:
        """Number of partitions that the cache will have."""
        if self.mode == "REPLICATED":
            return REPLICATED_PARTITIONS
        return self.partitions or DEFAULT_PARTITIONS


def check_partitions(count: int | None) -> None:
    """Raise ConfigError unless a cache can have this number of partitions."""
    if count is not None and not 1 <= count <= MAX_PARTITIONS:
        raise ConfigError(
            f"a cache cannot have {count} partitions", hint=f"choose 1 to {MAX_PARTITIONS}"
        )


def table_options(spec: CacheSpec, partitions: int | None) -> Options:
    """Return the CREATE TABLE options for a cache, with a template if `partitions` is given."""
    replicated = spec.mode == "REPLICATED"
    options: Options = {"ATOMICITY": spec.atomicity}
    if replicated:
        options["TEMPLATE"] = "REPLICATED"
    else:
        # Given even if 0, as templates of the cluster may have backups.
        options["BACKUPS"] = spec.backups
        if partitions is not None:
            options["TEMPLATE"] = f"p{partitions}"
    if spec.data_region is not None:
        options["DATA_REGION"] = spec.data_region
    return options | copy_options(spec.backups, replicated=replicated)


def copy_options(backups: int, *, replicated: bool = False) -> Options:
    """Return the CREATE TABLE options for copies of partitions; empty if there are no copies."""
    number: Options = {"BACKUPS": backups} if backups else {}
    if backups or replicated:
        return {**number, "WRITE_SYNCHRONIZATION_MODE": "FULL_SYNC"}
    return {}


def ensure_caches(client: Client, *specs: CacheSpec) -> None:
    """Create each cache that does not exist yet, by its properties, in this order.

    Raises:
        ServerOverloaded: The node's memory has no room for all of them; none is created.
    """
    require_room(client, specs[0].name, sum(spec.partition_count for spec in specs))
    for spec in specs:
        with translated():
            client.pyignite.get_or_create_cache(_properties(spec))


def make_cache(client: Client, spec: CacheSpec) -> None:
    """Create a cache by its properties; raises ServerError if its name is taken."""
    with translated():
        client.pyignite.create_cache(_properties(spec))


def require_room_for(client: Client, spec: CacheSpec) -> None:
    """Raise ServerOverloaded unless the node has room for the partitions of this new cache."""
    require_room(client, spec.name, spec.partition_count)


def _properties(spec: CacheSpec) -> dict[int, Any]:
    from pyignite.datatypes import prop_codes
    from pyignite.datatypes.cache_config import (
        CacheAtomicityMode,
        CacheMode,
        PartitionLossPolicy,
        WriteSynchronizationMode,
    )

    properties: dict[int, Any] = {
        prop_codes.PROP_NAME: spec.name,
        prop_codes.PROP_CACHE_MODE: getattr(CacheMode, spec.mode),
        prop_codes.PROP_CACHE_ATOMICITY_MODE: getattr(CacheAtomicityMode, spec.atomicity),
        prop_codes.PROP_BACKUPS_NUMBER: spec.backups,
        prop_codes.PROP_PARTITION_LOSS_POLICY: PartitionLossPolicy.READ_WRITE_SAFE,
        prop_codes.PROP_WRITE_SYNCHRONIZATION_MODE: WriteSynchronizationMode.FULL_SYNC,
    }
    if spec.data_region is not None:
        properties[prop_codes.PROP_DATA_REGION_NAME] = spec.data_region
    if spec.query_entity is not None:
        properties[prop_codes.PROP_QUERY_ENTITIES] = [spec.query_entity]
    return properties
