"""Waiting until a cluster has all copies of its data again, for tests that kill nodes."""

import time

from ignitetf.errors import IgniteTFError

_REBALANCED = "SELECT VALUE FROM SYS.METRICS WHERE NAME = 'cluster.Rebalanced'"
_GROUPS = """
    SELECT CACHE_GROUP_ID, CACHE_GROUP_NAME, BACKUPS, PARTITIONS_COUNT FROM SYS.CACHE_GROUPS
"""
_COPIES = """
    SELECT CACHE_GROUP_ID, COPIES, COUNT(*) FROM (
        SELECT CACHE_GROUP_ID, PARTITION_ID, COUNT(*) AS COPIES FROM SYS.PARTITION_STATES
        WHERE STATE = 'OWNING' AND NODE_ID IN (SELECT NODE_ID FROM SYS.NODES)
        GROUP BY CACHE_GROUP_ID, PARTITION_ID
    ) GROUP BY CACHE_GROUP_ID, COPIES
"""


def settle(client, nodes=3, seconds=120):
    """Wait until so many nodes are left and every partition has its copies on them.

    The metric alone may still tell of the time before a node went or came; who kills another
    node then takes the last copy.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            missing = _missing(client, nodes)
        except IgniteTFError as error:
            missing = [repr(error)]
        if not missing:
            return
        if time.monotonic() >= until:
            raise AssertionError(f"the cluster was not rebalanced: {missing}")
        time.sleep(0.3)


def _missing(client, nodes):
    """What a cluster with all copies would have, in words."""
    left = len(client.nodes())
    missing = [] if left == nodes else [f"{left} nodes"]
    if client.sql(_REBALANCED).fetchall() != [("true",)]:
        missing.append("cluster.Rebalanced is not true")
    copies = client.sql(_COPIES).fetchall()
    for group, name, backups, partitions in client.sql(_GROUPS):
        wanted = min(backups + 1, nodes)
        # A partition with more copies than it needs does not make up for one with less.
        whole = sum(n for g, found, n in copies if g == group and found >= wanted)
        if whole < partitions:
            missing.append(f"{name}: {whole} of {partitions} partitions have {wanted} copies")
    return missing
