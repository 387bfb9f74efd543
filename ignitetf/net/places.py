"""How near the nodes of a cluster are to this process: on its own host, in its data center, or not.

pool -> **places** -> which copy is read, and what is counted about it
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ignitetf.settings import is_loopback, split_address

__all__ = ["DATA_CENTER", "PLACES", "Origin", "Place", "place_of"]

# The node attribute that says where a node stands.
DATA_CENTER: Final = "data_center"
# From near to far.
Place = Literal["host", "data_center", "elsewhere"]
PLACES: Final[tuple[Place, ...]] = ("host", "data_center", "elsewhere")


class Origin(NamedTuple):
    """Where data came from.

    Attributes:
        node: Address of the node.
        place: How near it is.
    """

    node: str
    place: Place


def place_of(addresses: Sequence[str], data_center: str | None, own: str | None) -> Place:
    """Return how near a node is.

    Args:
        addresses: The node's addresses.
        data_center: Its data center, if it has one and ours is known.
        own: Our data center; None if it is not known.
    """
    # One host has one data center. Where they differ, an address is a tunnel's or a container's.
    if own is not None and data_center not in (None, own):
        return "elsewhere"
    if _on_own_host(addresses):
        return "host"
    return "data_center" if own is not None and data_center == own else "elsewhere"


def _on_own_host(addresses: Sequence[str]) -> bool:
    """Return whether a node with these addresses runs on this machine.

    A node names the addresses of all interfaces that it listens on, so one elsewhere has at least
    one that is not ours. Loopback addresses, which every machine has, decide only if there is no
    other.
    """
    if is_loopback(addresses):
        return bool(addresses)
    hosts = [split_address(a)[0].partition("%")[0] for a in addresses if not is_loopback([a])]
    return set(hosts) <= _own_addresses()


@functools.cache
def _own_addresses() -> frozenset[str]:
    """Names and addresses of this machine."""
    import psutil

    found = {
        address.address.partition("%")[0]
        for every in psutil.net_if_addrs().values()
        for address in every
    }
    return frozenset({*found, socket.gethostname()})
