"""The embedded node: a real Apache Ignite server as a managed background process.

Java runtime -> jars -> configuration -> **processes** -> an address to connect to

`running_addresses` reads only one small file; `Node` is imported on first use, since most commands
need just an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ignitetf.local.state import running_addresses

if TYPE_CHECKING:
    from ignitetf.node.embedded import Node, NodeStatus

__all__ = ["Node", "NodeStatus", "running_addresses"]


def __getattr__(name: str) -> Any:
    if name in ("Node", "NodeStatus"):
        from ignitetf.node import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
