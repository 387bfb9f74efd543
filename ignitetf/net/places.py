"""How near the nodes of a cluster are to this process: on its own host, in its data center, or not.

pool -> **places** -> which copy is read, and what is counted about it
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ignitetf.settings import split_address

__all__ = ["PLACES", "Place", "Source", "on_own_host"]

# From near to far.
Place = Literal["host", "data_center", "elsewhere"]
PLACES: Final[tuple[Place, ...]] = ("host", "data_center", "elsewhere")


class Source(NamedTuple):
    """Where data came from.

    Attributes:
        node: Address of the node.
        place: How near it is.
    """

    node: str
    place: Place


def on_own_host(addresses: Sequence[str]) -> bool:
    """Return whether a node with these addresses runs on this machine.

    A node names the addresses of all interfaces that it listens on, so one elsewhere has at least
    one that is not ours. Loopback addresses, which every machine has, decide only if there is no
    other.
    """
    hosts = {split_address(address)[0].partition("%")[0] for address in addresses}
    loopback = {host for host in hosts if _is_loopback(host)}
    if hosts == loopback:
        return bool(hosts)
    return hosts - loopback <= _own_addresses()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
