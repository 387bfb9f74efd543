"""How the partitions of a cache are asked for: by scan, or by SQL where `where=` is given.

reader -> **queries** -> scan
"""

from __future__ import annotations

from ignitetf.client import cache_id
from ignitetf.errors import ConfigError
from ignitetf.read.options import PAGE_BYTES, ReadOptions
from ignitetf.read.scan import Query, pipeline_depth
from ignitetf.transport import Channel
from ignitetf.wire.codes import Feature, OpCode
from ignitetf.wire.frames import encode_parameter, scan_request, sql_request

__all__ = ["scan_query", "sql_query"]


def scan_query(cache: str, page_size: int, unit_bytes: float | None, page_bytes: int) -> Query:
    """All entries of a partition.

    Args:
        cache: Its name.
        page_size: Entries in a page.
        unit_bytes: About how many bytes a partition has; None where nobody knows.
        page_bytes: About how many bytes a page has.
    """
    number = cache_id(cache)
    return Query(
        OpCode.QUERY_SCAN,
        lambda partition: scan_request(number, page_size, partition),
        cache,
        page_size,
        pipelined=pipeline_depth(unit_bytes, page_bytes) if unit_bytes is not None else 1,
        buffer_bytes=page_bytes,
    )


def sql_query(
    cache: str, table: str, options: ReadOptions, page_size: int, channel: Channel
) -> Query:
    """The entries of a partition for which the condition of `where=` holds.

    Args:
        cache: Its name.
        table: The cache's table, with its schema.
        options: `where` and its parameters, which are bound.
        page_size: Entries in a page.
        channel: A connection, which tells what the cluster can do.

    Raises:
        ConfigError: The cluster does not take SQL by partition.
    """
    if not channel.features & Feature.QUERY_PARTITIONS_BATCH_SIZE:
        raise ConfigError(
            "the cluster does not take SQL by partition, where= cannot be used",
            hint="Apache Ignite 2.13 or newer is needed for where=",
        )
    schema = table.partition(".")[0].strip('"')
    statement = f"SELECT _KEY, _VAL FROM {table} WHERE ({options.where})"  # nosec B608
    params = [encode_parameter(v) for v in options.where_params]
    return Query(
        OpCode.QUERY_SQL_FIELDS,
        lambda p: sql_request(schema, statement, params, page_size, partitions=[p]),
        cache,
        page_size,
        pipelined=1,
        buffer_bytes=PAGE_BYTES // 2,
    )
