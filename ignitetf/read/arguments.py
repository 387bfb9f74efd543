"""Checks the arguments of `IgniteDataset` and `open_rows`, and converts them for the read path.

Any unusable value raises ConfigError. No TensorFlow here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import psutil

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.divide import count_rows, survey
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.scan_order import Even, OrderName, ScanOrder, Shard, whole_argument
from ignitetf.settings import Settings, truth

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "chosen_partitions",
    "even_of",
    "flag",
    "label_of",
    "open_reader",
    "order_name",
    "order_of",
    "page_rows",
    "require_every_row",
    "retry_seconds",
    "seed_of",
    "settings_of",
    "shard_of",
    "step_rows",
    "window_limit",
    "with_environment",
]

DEFAULT_HOST, DEFAULT_PORT = "localhost", 10800
_LABELS = ("label", "class", "target", "y")


def with_environment(**given: Any) -> dict[str, Any]:
    """Return the arguments, overridden by any `IGNITE_DATASET_*` variables."""
    for name in given:
        variable = f"IGNITE_DATASET_{name.upper()}"
        text = os.environ.get(variable)
        if text is None:
            continue
        try:
            if name in ("port", "part", "page_size"):
                given[name] = int(text)
            elif name == "local":
                given[name] = bool(text) and truth(variable, text)
            else:
                given[name] = text
        except (ValueError, ConfigError) as error:
            wanted = "true or false" if name == "local" else "a number"
            raise ConfigError(
                f"{variable}={text!r} is not {wanted}",
                hint="the variable overrides the argument; change it, or unset it",
            ) from error
    return given


def settings_of(
    given: dict[str, Any], addresses: Sequence[str] | None, ca: str | None, tls: bool | None
) -> Settings:
    """Build connection settings from the arguments; a missing address is resolved as usual.

    Raises:
        ConfigError: The host contains a port, or the settings contradict each other.
    """
    host, port = given["host"], given["port"]
    if host.count(":") == 1:
        raise ConfigError(
            f"host={host!r} is a host and a port",
            hint=f"give host= and port=, or addresses=[{host!r}]",
        )
    address = None
    if addresses is None and (host, port) != (DEFAULT_HOST, DEFAULT_PORT):
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Settings.resolve(
        address=address,
        addresses=addresses,
        username=given["username"] or None,
        password=given["password"],
        cert=given["certfile"] or None,
        key=given["keyfile"] or None,
        key_password=given["cert_password"],
        ca=ca,
        tls=tls,
    )


def open_reader(
    client: Client, cache: str, options: ReadOptions, readers: int | str
) -> CacheReader:
    """Open a reader of a cache; `readers="auto"` is one connection to each node."""
    if readers != "auto":
        options = replace(options, readers=_number_of(readers))
    return CacheReader(client, cache, options)


def _number_of(readers: int | str) -> int:
    if isinstance(readers, bool) or not isinstance(readers, int):
        raise ConfigError(f"readers={readers!r}", hint='a number, or "auto"')
    return readers


def retry_seconds(on_node_loss: str) -> float | None:
    """Return the time limit for replacing a lost connection; None takes it from the settings."""
    if on_node_loss not in ("retry", "error"):
        raise ConfigError(f"on_node_loss={on_node_loss!r}", hint="one of retry, error")
    return None if on_node_loss == "retry" else 0.0


def page_rows(page_size: Any) -> int | None:
    """Return the number of entries in a page; None if the argument is None or 0."""
    return whole_argument("page_size", page_size or 0, 0, (1 << 31) - 1) or None


def shard_of(shard: Any) -> Shard:
    """Return the shard of a `shard=` argument; for None the shard is taken from TF_CONFIG."""
    if shard is None:
        return _shard_of_config(os.environ.get("TF_CONFIG"))
    if hasattr(shard, "num_input_pipelines"):
        return Shard(shard.input_pipeline_id, shard.num_input_pipelines)
    return Shard.of(shard)


def _shard_of_config(text: str | None) -> Shard:
    """Return this worker's shard according to TF_CONFIG; the chief is the first worker."""
    if not text:
        return Shard()
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        chiefs = len(cluster.get("chief", ())) + len(cluster.get("master", ()))
        count = chiefs + len(cluster.get("worker", ()))
        if count < 2 or task.get("type") not in ("chief", "master", "worker"):
            return Shard()
        before = chiefs if task["type"] == "worker" else 0
        return Shard(before + int(task["index"]), count)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError("TF_CONFIG is not what TensorFlow expects") from error


def flag(name: str, value: Any) -> bool:
    """Return a checked boolean argument; refuses strings, because "false" is true in Python."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name}={value!r}", hint="True or False")
    return bool(value)


def chosen_partitions(reader: CacheReader, part: int, local: bool) -> list[int]:
    """Return the partitions selected by `part` and `local`, ascending."""
    count = reader.partition_count
    part = whole_argument("part", part, -1)
    if part >= count:
        raise ConfigError(f"{reader.name}: partition {part} of {count}", hint="they count from 0")
    chosen = list(range(count)) if part < 0 else [part]
    if local:
        with reader.client.channel() as channel:
            here = channel.node_id
        owners = reader.client.partition_map(reader.cache)
        if not owners.owners:
            raise ConfigError(
                f"{reader.name}: the cluster does not report which partitions a node owns",
                hint="leave local= out: only the cache's own affinity function knows them",
                cache=reader.name,
            )
        chosen = [p for p in chosen if owners.owner(p) == here]
    return chosen


def order_of(
    reader: CacheReader,
    partitions: list[int],
    seed: int | None,
    even: Any,
    shard: Shard,
    window_bytes: int,
) -> ScanOrder:
    """Return the order in which scans read the rows of the partitions."""
    seed, even = seed_of(seed), even_of(even)
    window_bytes = window_limit(window_bytes)
    if even is not None and not reader.counts_are_exact:
        raise ConfigError(
            f"even={even!r} needs the number of rows, which is unknown with where= or nulls='drop'",
            hint="with where=, order='keys' or 'global' counts them",
        )
    if reader.counts_are_exact:
        _count_split(reader)
    has_counts = reader.has_counts
    is_counted = seed is not None or shard.count > 1 or reader.is_rewritten
    known = reader.counts_are_exact and (has_counts or is_counted)
    counts = reader.partition_counts if known or has_counts else reader.estimated_counts
    return ScanOrder(
        tuple(partitions),
        tuple(counts(partitions)),
        reader.entry_bytes,
        seed,
        even,
        window_bytes,
        known,
    )


def _count_split(reader: CacheReader) -> None:
    """Count the rows of the reader's split, unless the manifest has the numbers."""
    if (split := reader.split) is None or split.counts:
        return
    rows = survey(reader.client, reader.name, split.division.by, reader.options)
    counts = count_rows(split.division, reader.partition_count, rows)
    reader.split = replace(split, counts=split.counts_in(counts))


def order_name(order: Any, global_batch: Any = None) -> OrderName:
    """Return the checked name of an order; for None the order that `global_batch` needs."""
    if order is None:
        return "scan" if global_batch is None else "global"
    for known in get_args(OrderName):
        if order == known:
            if known == "scan" and global_batch is not None:
                raise ConfigError(
                    "order='scan' cannot have global_batch=: its steps depend on the number of workers",
                    hint="order='global', or 'keys'",
                )
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"order={order!r}", hint=f"one of {', '.join(get_args(OrderName))}")


def window_limit(value: Any) -> int:
    """Return the checked size in bytes of a shuffle window."""
    return whole_argument("window_bytes", value, 1, psutil.virtual_memory().total)


def step_rows(global_batch: Any, shard: Shard) -> int | None:
    """Return the checked number of rows of a global step; None if it is not given."""
    if global_batch is None:
        return None
    rows = whole_argument("global_batch", global_batch, 1)
    if rows < shard.count:
        raise ConfigError(
            f"global_batch={rows} is too small for {shard.count} workers",
            hint="at least one row for each",
        )
    return rows


def seed_of(seed: Any) -> int | None:
    """Return the checked seed of a shuffle; None does not shuffle."""
    return None if seed is None else whole_argument("shuffle", seed, 0, (1 << 128) - 1)


def even_of(even: Any) -> Even | None:
    """Return the checked `even` argument; with None, workers may have different numbers of rows."""
    if even not in (None, "pad", "drop"):
        raise ConfigError(f"even={even!r}", hint="one of pad, drop, None")
    return even  # type: ignore[no-any-return]


def label_of(names: list[str], cache: str) -> str:
    """Return the name of the label field; requires exactly one label and other fields."""
    found = [n for n in names if n.lower() in _LABELS]
    if len(found) != 1 or len(names) < 2:
        raise ConfigError(
            f"{cache}: as_supervised needs one field LABEL and other fields, found"
            f" {', '.join(names)}",
            hint="use Dataset.map to pick features and label",
        )
    return found[0]


def require_every_row(reader: CacheReader, use: str) -> None:
    """Raise ConfigError for a reader that goes on if rows are missing; `use` is for the message."""
    policy = reader.options.on_change
    if policy != "error":
        raise ConfigError(
            f"{use} needs every row, on_change={policy!r} may skip some",
            hint="open the rows with on_change='error'",
        )
