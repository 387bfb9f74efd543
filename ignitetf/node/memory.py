"""Sizes of a node's memory: what the user writes, what the machine has, what the JVM gets."""

from __future__ import annotations

import re

from ignitetf.errors import ConfigError, NodeError
from ignitetf.local.process import total_memory_bytes

__all__ = ["MINIMUM_REGION_BYTES", "check_memory", "format_bytes", "heap_mib", "parse_memory"]

MINIMUM_REGION_BYTES = 64 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_HINT = "write a number and a unit, for example --memory 512m or --memory 2g"


def parse_memory(text: str | int) -> int:
    """Bytes of a size such as `512m`, `2g`, `1.5G`, or a number of bytes.

    Raises:
        ConfigError: It is no size, or below 64m.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        raise ConfigError(f"--memory: {text!r} is no size", hint=_HINT)
    size = int(float(found[1]) * _UNITS[found[2].lower()])
    if size < MINIMUM_REGION_BYTES:
        least = format_bytes(MINIMUM_REGION_BYTES)
        raise ConfigError(f"--memory: {text} is too little, a node needs {least}", hint=_HINT)
    return size


def heap_mib(nodes: int) -> int:
    """Java heap of each of `nodes` nodes: a tenth of the memory, between 512 MiB and 2 GiB."""
    return max(512, min(2048, total_memory_bytes() // 10 // nodes >> 20))


def check_memory(region_bytes: int, nodes: int) -> None:
    """Raise NodeError when the nodes' data and heaps can never fit into this machine."""
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
    """The size in the largest unit that keeps it above one: `512m`, `1.5g`."""
    for unit in ("t", "g", "m", "k"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.4g}{unit}"
    return str(size)
