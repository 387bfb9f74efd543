"""Checks a node's memory: whether it is full, and whether a new cache fits into the rest.

A new cache needs memory for each partition even without rows. An in-memory node without this memory
halts. An embedded node refuses such a cache itself (`node.config`), with little explanation. The
check here runs first, works on every cluster and reports the numbers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ignitetf.errors import IgniteTFError, ServerOverloaded
from ignitetf.partitions import PAGES_PER_PARTITION, RESERVE_PAGES, RESERVE_PART
from ignitetf.sql import statement

if TYPE_CHECKING:
    from ignitetf.net.client import Client

__all__ = ["data_regions", "memory_full", "require_room"]

_PAGE_BYTES: Final = 4096  # Ignite's default, for servers that do not report theirs
_MOST_PAGE_BYTES: Final = 16 << 10
_PAGE_HEAD: Final = 24  # Ignite's bookkeeping for a page
# Ignite leaves a few pages of a full data region free.
_FULL: Final = 0.9
_DEFAULT: Final = "default"
_HINT: Final = "give the node more memory (ignitetf node start --memory SIZE), or remove data"


def memory_full(client: Client) -> ServerOverloaded | None:
    """Return the error to raise if a data region of the node is full, or None.

    A failed update only reports its keys, so the reason must be requested.
    """
    for region, (used, most) in data_regions(client).items():
        if used > _FULL * most > 0 and not (region == _DEFAULT and _storage(client)[0]):
            return ServerOverloaded(
                f"the node's memory is full: {used >> 20:,} of {most >> 20:,} MB of the data"
                f" region {region!r} are in use",
                hint=_HINT,
            )
    return None


def require_room(client: Client, cache: str, partitions: int) -> None:
    """Raise ServerOverloaded unless the node has room for a new cache of this many partitions.

    The check assumes that this node holds all partitions, as after the loss of the other nodes. A
    node without metrics is assumed to have room.
    """
    used, most = data_regions(client).get(_DEFAULT, (0, 0))
    need = partitions * PAGES_PER_PARTITION

    def fits(page_bytes: int) -> bool:
        reserve = max(RESERVE_PAGES, most // page_bytes // RESERVE_PART)
        return not most or used + (need + reserve) * page_bytes <= most

    if fits(_MOST_PAGE_BYTES + _PAGE_HEAD):  # saves a round trip
        return
    on_disk, page_bytes = _storage(client)
    if on_disk or fits(page_bytes):
        return
    raise ServerOverloaded(
        f"the node has no room for {cache!r}: its {partitions:,} partitions take"
        f" {need * page_bytes / 1e6:,.1f} MB at once, and {used / 1e6:,.1f} of"
        f" {most / 1e6:,.1f} MB are in use",
        hint=f"{_HINT}, or choose fewer --partitions",
        cache=cache,
    )


def data_regions(client: Client) -> dict[str, tuple[int, int]]:
    """Return used and maximum bytes of each data region of the connected node."""
    sizes: dict[str, dict[str, int]] = {}
    with contextlib.suppress(IgniteTFError):
        for name, value in client.sql(statement("memory")).fetchall():
            region, _, kind = name.removeprefix("io.dataregion.").rpartition(".")
            sizes.setdefault(region, {})[kind] = int(value)
    return {
        region: (size.get("TotalUsedSize", 0), size.get("MaxSize", 0))
        for region, size in sizes.items()
    }


def _storage(client: Client) -> tuple[bool, int]:
    """Return whether the default region keeps its pages on disk, and the bytes of a page.

    A region on disk is never full.
    """
    found: dict[str, str | None] = {}
    with contextlib.suppress(IgniteTFError):
        found = dict(client.sql(statement("storage")).fetchall())
    on_disk = any(value == "true" for name, value in found.items() if name.endswith("Enabled"))
    pages = [int(value) for name, value in found.items() if value and name.endswith("PageSize")]
    return on_disk, (pages[0] if pages else _PAGE_BYTES) + _PAGE_HEAD
