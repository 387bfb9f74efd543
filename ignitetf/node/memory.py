"""Memory sizes of a node: parsing, limits of the machine, heap of the JVM."""

from __future__ import annotations

import os
import re

from ignitetf.errors import ConfigError, NodeError
from ignitetf.local.process import total_memory_bytes

__all__ = ["MINIMUM_REGION_BYTES", "check_memory", "format_bytes", "heap_mib", "parse_memory"]

MINIMUM_REGION_BYTES = 64 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_HINT = "write a number and a unit, for example --memory 512m or --memory 2g"


def parse_memory(text: str | int) -> int:
    """Parse a size such as `512m`, `2g`, `1.5G`, or a number of bytes, and return bytes.

    Raises:
        ConfigError: It is not a size, or less than 64m.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        raise ConfigError(f"--memory: {text!r} is not a size", hint=_HINT)
    size = int(float(found[1]) * _UNITS[found[2].lower()])
    if size < MINIMUM_REGION_BYTES:
        least = format_bytes(MINIMUM_REGION_BYTES)
        raise ConfigError(f"--memory: {text} is too little, a node needs {least}", hint=_HINT)
    return size


def heap_mib(nodes: int) -> int:
    """Return the Java heap of each of `nodes` nodes in MiB.

    This is 10 % of the memory, from 512 MiB to 2 GiB, or 256 MiB for each core if that is more: a
    node prepares one answer for each core at a time, but at least eight.
    """
    most = max(2048, 256 * (os.cpu_count() or 1))
    return max(512, min(most, total_memory_bytes() // 10 // nodes >> 20))


def check_memory(region_bytes: int, nodes: int) -> None:
    """Raise NodeError if the nodes' data and heaps cannot fit into this machine's memory."""
    total = total_memory_bytes()
    heap = heap_mib(nodes) << 20
    needed = (region_bytes + heap) * nodes
    if needed <= total:
        return
    each = f" for each of {nodes} nodes" if nodes > 1 else ""
    room = total // nodes - heap
    if room >= MINIMUM_REGION_BYTES:
        hint = f"give --memory {room * 3 // 4 >> 20}m or less"
    else:
        hint = "start fewer nodes, or use a machine with more memory"
    raise NodeError(
        f"too little memory: {format_bytes(region_bytes)} of data and {format_bytes(heap)} of Java"
        f" heap{each} do not fit into {format_bytes(total)}",
        hint=hint,
    )


def format_bytes(size: int) -> str:
    """Format a size in the largest unit that keeps it at least one: `512m`, `1.5g`."""
    for unit in ("t", "g", "m", "k"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.4g}{unit}"
    return str(size)
