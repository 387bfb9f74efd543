"""Rows a second into the memory of a device, copied and gathered, for JAX and PyTorch."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable
from typing import Any, Final

from history import Figure

from ignitetf import Client, connect, open_rows
from ignitetf.bench.rows import PROFILES, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.read.devices import Framework
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import OrderName
from ignitetf.settings import Settings
from ignitetf.train import device_resident

_PARTITIONS: Final = 8
_HOST: Final = "batches on the host"

_Used = Callable[[Iterable[Any]], int]


def device_figures(
    settings: Settings, rounds: int, rows: int | None, profile: str, framework: Framework, name: str
) -> list[Figure]:
    """Rates of batches on a device by that of the same batches on the host.

    Each way ends when the device has used every row: it adds up the bytes of each batch.

    Args:
        settings: Where the node is.
        rounds: Times each way is run.
        rows: Rows to read; None for the profile's own number.
        profile: Rows of `ignitetf bench`: `mnist` or `1mb`.
        framework: `jax` or `torch`.
        name: The device; empty for the default one.
    """
    chosen = PROFILES[profile]
    chosen = chosen if rows is None else sized(chosen, rows)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, chosen, _PARTITIONS)
            ways = _ways(client, chosen.cache, chosen.batch, framework, name or None)
            found = in_turn({n: rows_a_second(way) for n, way in ways.items()}, rounds)
        finally:
            drop_rows(client, chosen.cache)
    where = f"{profile}, {chosen.rows:,} rows, {framework} {name}".rstrip()
    return [
        Figure(
            "device", where, way, round(statistics.median(mine), 1), "rows/s",
            median_ratio(mine, found[f"{_HOST}, {way.rpartition(', ')[2]}"]), rounds,
        )
        for way, mine in found.items()
    ]  # fmt: skip


def _ways(
    client: Client, cache: str, batch: int, framework: Framework, device: str | None
) -> dict[str, Callable[[], int]]:
    used = _used(framework)
    orders: tuple[OrderName, ...] = ("scan", "global")
    ways: dict[str, Callable[[], int]] = {}
    for order in orders:
        rows = open_rows(cache, client=client, order=order, shuffle=7, shard=(0, 1))
        kept = device_resident(rows, batch, framework=framework, device=device, keys=False)
        ways |= {
            f"{_HOST}, {order}": _on_the_host(rows, batch),
            f"to_device, {order}": _copied(rows, batch, framework, device, used),
            f"resident, {order}": functools.partial(used, kept),
        }
    return ways


def _on_the_host(rows: EpochRows, batch: int) -> Callable[[], int]:
    return lambda: sum(len(columns["val"]["LABEL"]) for columns in rows.batches(batch))


def _copied(
    rows: EpochRows, batch: int, framework: Framework, device: str | None, used: _Used
) -> Callable[[], int]:
    def run() -> int:
        with rows.to_device(device, framework=framework, batch_size=batch, keys=False) as batches:
            return used(batches)

    return run


def _used(framework: Framework) -> _Used:
    """Return a function that uses all batches on the device and counts their rows."""
    if framework == "torch":
        return _used_by_torch
    import jax

    add = jax.jit(lambda total, columns: sum((c.sum(dtype="int32") for c in columns), total))

    def used(batches: Iterable[Any]) -> int:
        total: Any = 0
        rows = 0
        for batch in batches:
            columns = list(_columns(batch["val"]))
            total = add(total, columns)
            rows += len(columns[0])
        jax.block_until_ready(total)
        return rows

    return used


def _used_by_torch(batches: Iterable[Any]) -> int:
    total: Any = 0
    rows = 0
    for batch in batches:
        columns = list(_columns(batch["val"]))
        total = sum((column.sum() for column in columns), total)
        rows += len(columns[0])
    float(total)  # waits for the device
    return rows


def _columns(values: Any) -> Iterable[Any]:
    return values.values() if isinstance(values, dict) else (values,)
