"""Create and drop caches and SQL tables.

A thin client cannot set the number of partitions of a cache. Templates in the node's
configuration can (`p16*` has 16), and `CREATE TABLE ... WITH "template=p16"` takes one under any
cache name; so every cache whose partitions are chosen is made by SQL. What was made is compared
with what was asked for, and dropped when the two differ. A call that is interrupted while the
node makes a cache removes it (`unmade`).

Source: Apache Ignite 2.17.0, by experiment. Columns of the type OTHER take arrays of every kind;
a column whose type is not exactly that of the binary field fails when it is read. A bare string
value gets a full-text index, without whose jar the table silently does not appear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    IgniteTFError,
    ServerError,
    SqlError,
)
from ignitetf.net.client import Client
from ignitetf.net.pyclient import translated
from ignitetf.node.config import template_xml
from ignitetf.partitions import DEFAULT_PARTITIONS, MAX_PARTITIONS, REPLICATED_PARTITIONS
from ignitetf.sql import statement
from ignitetf.tables.describe import (
    describe,
    find_table,
    list_caches,
    list_tables,
    resolve,
)
from ignitetf.tables.removal import (
    clear_cache,
    drop_cache,
    drop_sql_table,
    drop_table,
    remove_cache,
)
from ignitetf.tables.room import require_room
from ignitetf.tables.undo import unmade_if_interrupted
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import Field, Schema

__all__ = [
    "CacheSpec",
    "check_partitions",
    "clear_cache",
    "column_type",
    "create_cache",
    "create_table",
    "creation_error",
    "describe",
    "drop_cache",
    "drop_table",
    "find_table",
    "has_table",
    "list_caches",
    "list_tables",
    "missing_template",
    "remove_cache",
    "resolve",
]

_MODES: Final = ("PARTITIONED", "REPLICATED")
_ATOMICITIES: Final = ("ATOMIC", "TRANSACTIONAL")

_COLUMN: Final[Mapping[TypeCode, str]] = {
    TypeCode.BYTE: "TINYINT",
    TypeCode.SHORT: "SMALLINT",
    TypeCode.INT: "INT",
    TypeCode.LONG: "BIGINT",
    TypeCode.FLOAT: "REAL",
    TypeCode.DOUBLE: "DOUBLE",
    TypeCode.CHAR: "CHAR",
    TypeCode.BOOL: "BOOLEAN",
    TypeCode.STRING: "VARCHAR",
    TypeCode.UUID: "UUID",
    TypeCode.DATE: "TIMESTAMP",
    TypeCode.TIMESTAMP: "TIMESTAMP",
    TypeCode.TIME: "TIME",
    TypeCode.DECIMAL: "DECIMAL",
    TypeCode.BYTE_ARRAY: "VARBINARY",
}


@dataclass(frozen=True)
class CacheSpec:
    """What a new cache shall be.

    Attributes:
        name: Name of the cache.
        partitions: Number of partitions; None leaves it to the cluster (1024).
        backups: Copies of each partition beside the primary one.
        mode: PARTITIONED, or REPLICATED (all data on each node).
        atomicity: ATOMIC or TRANSACTIONAL.
        affinity_key: Name of the key field that decides the partition, for composite keys.
    """

    name: str
    partitions: int | None = None
    backups: int = 0
    mode: str = "PARTITIONED"
    atomicity: str = "ATOMIC"
    affinity_key: str | None = None

    def __post_init__(self) -> None:
        """Refuse what the server would refuse later, or take as something else."""
        if not self.name or self.name != self.name.strip():
            raise ConfigError(f"{self.name!r} is no name of a cache")
        check_partitions(self.partitions)
        if self.backups < 0:
            raise ConfigError(f"a cache cannot have {self.backups} backups")
        if self.mode not in _MODES:
            raise ConfigError(f"mode {self.mode!r} is none of {', '.join(_MODES)}")
        if self.atomicity not in _ATOMICITIES:
            raise ConfigError(f"atomicity {self.atomicity!r} is none of {', '.join(_ATOMICITIES)}")
        if self.mode == "REPLICATED" and self.partitions is not None:
            raise ConfigError(
                "a replicated cache takes no number of partitions",
                hint="leave the number out, or choose the mode PARTITIONED with backups",
            )


def check_partitions(count: int | None) -> None:
    """Raise ConfigError unless a cache can have this number of partitions."""
    if count is not None and not 1 <= count <= MAX_PARTITIONS:
        raise ConfigError(
            f"a cache cannot have {count} partitions", hint=f"choose 1 to {MAX_PARTITIONS}"
        )


def create_cache(client: Client, spec: CacheSpec) -> None:
    """Create a cache for keys and values of every type.

    Raises:
        CacheExists: There is a cache or a table of this name.
        ConfigError: The cluster has no template for this number of partitions.
        ServerOverloaded: The node's memory has no room for them.
    """
    _require_absent(client, spec.name)
    _require_room(client, spec)
    with _unmade(client, spec.name):
        if spec.partitions is None:
            _create_plain(client, spec)
            return
        # Under the cache's own name it would say that the cache is empty.
        table = f"{spec.name}__CACHE"
        options = _options(spec, spec.partitions)
        text = statement("create_cache", table=table, cache=spec.name, options=options)
        _create(client, spec, text, table)


def create_table(
    client: Client, schema: Schema, name: str, spec: CacheSpec, index: Sequence[str] = ()
) -> None:
    """Create the SQL table `name` over the new cache `spec.name`, for records of this schema.

    The columns are the key (`ID`, or the fields of a composite key) and the fields of the value,
    in capitals. Bare values that SQL cannot show (strings, arrays but byte[]) get a cache without
    a table.

    Args:
        client: The connection.
        schema: The records.
        name: Name of the table; in capitals, SQL needs no quotes around it.
        spec: The cache.
        index: Names of columns that get an index of their own.

    Raises:
        CacheExists: There is a cache or a table of this name.
        ConfigError: A name cannot stand in SQL, or the cluster has no template for this number
            of partitions. Nothing is left behind.
        ServerOverloaded: The node's memory has no room for them.
    """
    schema.check_identifiers()
    _require_absent(client, spec.name)
    _require_room(client, spec)
    if not has_table(schema):
        create_cache(client, spec)
        return
    with _unmade(client, spec.name):
        _create_from_template(client, schema, name, spec)
        try:
            for column in index:
                _create_index(client, spec.name, name, column.upper())
        except Exception:
            remove_cache(client, spec.name)
            raise


def has_table(schema: Schema) -> bool:
    """Whether SQL can show these records: all but bare values of types that it has not."""
    value = schema.fields[0]
    bare = schema.type_name is None
    return not bare or (value.type in _COLUMN and value.type is not TypeCode.STRING)


def column_type(field: Field) -> str:
    """The SQL type whose values are exactly those of the field's binary type."""
    return _COLUMN.get(field.type, "OTHER")


def missing_template(partitions: int) -> ConfigError:
    """The error for a cluster that has no template with this number of partitions."""
    return ConfigError(
        f"the cluster has no cache template p{partitions}*, so it cannot make a cache with "
        f"{partitions} partitions",
        hint=f"start an embedded node with --template-partitions {partitions}, or put this into "
        f"the IgniteConfiguration of the nodes:\n{template_xml([partitions])}",
        partitions=partitions,
    )


def creation_error(error: SqlError, table: str, partitions: int) -> IgniteTFError:
    """What the failure of a CREATE TABLE means; the error itself where it says enough."""
    if "already exists" in error.message or "already indexed" in error.message:
        return CacheExists(
            f"table {table!r} exists",
            hint=f"choose another name, or remove it with 'ignitetf table drop {table}'",
            cache=table,
        )
    if f"Cache doesn't exist: p{partitions}" in error.message:
        return missing_template(partitions)
    return error


def _options(spec: CacheSpec, partitions: int | None) -> dict[str, str | int | bool]:
    options: dict[str, str | int | bool] = {"BACKUPS": spec.backups, "ATOMICITY": spec.atomicity}
    if spec.backups or spec.mode == "REPLICATED":
        # By default Ignite acknowledges what the primary node alone has, and its loss loses it.
        options["WRITE_SYNCHRONIZATION_MODE"] = "FULL_SYNC"
    if spec.mode == "REPLICATED":
        del options["BACKUPS"]
        return {"TEMPLATE": "REPLICATED", **options}
    if partitions is not None:
        options["TEMPLATE"] = f"p{partitions}"
    return options


def _create_from_template(client: Client, schema: Schema, name: str, spec: CacheSpec) -> None:
    """Create a table; without a number of partitions also where the cluster has no templates."""
    partitions = spec.partitions
    if partitions is None and spec.mode == "PARTITIONED":
        partitions = DEFAULT_PARTITIONS
    text = _table_text(schema, name, spec, partitions)
    try:
        _create(client, spec, text, name)
    except ConfigError:
        if spec.partitions is not None or partitions is None:
            raise
        # The table then takes Ignite's own defaults, which have as many partitions.
        text = _table_text(schema, name, spec, None)
        _create(client, spec, text, name)


def _table_text(schema: Schema, name: str, spec: CacheSpec, partitions: int | None) -> str:
    keys = _key_columns(schema)
    columns = [*keys, *((f.name.upper(), column_type(f)) for f in schema.fields)]
    options = _options(spec, partitions)
    if schema.type_name is None:
        options["WRAP_VALUE"] = False
    else:
        options["VALUE_TYPE"] = schema.type_name
    if schema.key_type_name is not None:
        options["KEY_TYPE"] = schema.key_type_name
    if affinity_key := spec.affinity_key or schema.affinity_key:
        options["AFFINITY_KEY"] = affinity_key.upper()
    names = [key for key, _ in keys]
    return statement(
        "create_table", table=name, columns=columns, key=names, cache=spec.name, options=options
    )


def _create(client: Client, spec: CacheSpec, text: str, table: str) -> None:
    """Run a CREATE TABLE and compare the number of partitions; leaves nothing when it fails."""
    try:
        client.sql(text).close()
    except SqlError as error:
        raise creation_error(error, table, spec.partitions or DEFAULT_PARTITIONS) from error
    if spec.partitions is not None and not _has_partitions(client, spec.name, spec.partitions):
        with contextlib.suppress(CacheNotFound):
            drop_sql_table(client, "PUBLIC", table)
        raise missing_template(spec.partitions)


def _has_partitions(client: Client, cache: str, count: int) -> bool:
    """Whether a new cache, whose partitions have owners yet, has so many.

    Its map tells that in a fifth of the time of the view; without a map, the view does.
    """
    return client.partition_map(cache).count == count or client.partition_count(cache) == count


def _create_index(client: Client, cache: str, table: str, column: str) -> None:
    text = statement("create_index", index=f"{cache}_{column}_IDX", table=table, columns=[column])
    client.sql(text).close()


def _unmade(client: Client, cache: str) -> contextlib.AbstractContextManager[None]:
    """Remove a cache, which was absent, when the calls that make it are interrupted."""
    return unmade_if_interrupted(
        lambda: client.cache_exists(cache), lambda: remove_cache(client, cache)
    )


def _require_absent(client: Client, name: str) -> None:
    if client.cache_exists(name):
        raise CacheExists(
            f"cache {name!r} exists",
            hint=f"choose another name, or remove it with 'ignitetf cache drop {name}'",
            cache=name,
        )


def _require_room(client: Client, spec: CacheSpec) -> None:
    replicated = spec.mode == "REPLICATED"
    default = REPLICATED_PARTITIONS if replicated else DEFAULT_PARTITIONS
    require_room(client, spec.name, spec.partitions or default)


def _create_plain(client: Client, spec: CacheSpec) -> None:
    from pyignite.datatypes import prop_codes
    from pyignite.datatypes.cache_config import (
        CacheAtomicityMode,
        CacheMode,
        PartitionLossPolicy,
        WriteSynchronizationMode,
    )

    settings = {
        prop_codes.PROP_NAME: spec.name,
        prop_codes.PROP_CACHE_MODE: getattr(CacheMode, spec.mode),
        prop_codes.PROP_CACHE_ATOMICITY_MODE: getattr(CacheAtomicityMode, spec.atomicity),
        prop_codes.PROP_BACKUPS_NUMBER: spec.backups,
        prop_codes.PROP_PARTITION_LOSS_POLICY: PartitionLossPolicy.READ_WRITE_SAFE,
        prop_codes.PROP_WRITE_SYNCHRONIZATION_MODE: WriteSynchronizationMode.FULL_SYNC,
    }
    try:
        with translated():
            client.pyignite.create_cache(settings)
    except ServerError:
        _require_absent(client, spec.name)
        raise


def _key_columns(schema: Schema) -> list[tuple[str, str]]:
    if schema.key.type is TypeCode.OBJECT:
        return [(f.name.upper(), column_type(f)) for f in schema.key.fields]
    taken = {f.name.upper() for f in schema.fields}
    name = next(n for n in ("ID", "KEY", "KEY_ID", "CACHE_KEY", "ROW_KEY") if n not in taken)
    return [(name, column_type(schema.key))]
