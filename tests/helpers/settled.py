"""Waiting until a cluster has all copies of its data again, for tests that kill nodes."""

import time

from ignitetf.errors import IgniteTFError

_REBALANCED = "SELECT VALUE FROM SYS.METRICS WHERE NAME = 'cluster.Rebalanced'"
_GROUPS = """
    SELECT CACHE_GROUP_ID, CACHE_GROUP_NAME, BACKUPS, PARTITIONS_COUNT FROM SYS.CACHE_GROUPS
"""
_COPIES = """
    SELECT CACHE_GROUP_ID, OWNING, OTHERS, COUNT(*) FROM (
        SELECT CACHE_GROUP_ID, PARTITION_ID,
            SUM(CASE WHEN STATE = 'OWNING' THEN 1 ELSE 0 END) AS OWNING,
            SUM(CASE WHEN STATE IN ('MOVING', 'RENTING', 'LOST') THEN 1 ELSE 0 END) AS OTHERS
        FROM SYS.PARTITION_STATES WHERE NODE_ID IN (SELECT NODE_ID FROM SYS.NODES)
        GROUP BY CACHE_GROUP_ID, PARTITION_ID
    ) GROUP BY CACHE_GROUP_ID, OWNING, OTHERS
"""


def settle(client, nodes=3, seconds=120, *, exact=False):
    """Wait until so many nodes are left and every partition has its copies on them.

    The metric alone may still tell of the time before a node went or came; who kills another
    node then takes the last copy.

    With `exact`, wait also until no surplus copy is left: a node that is to own a partition anew
    while its old copy still goes must wait for that. A cursor that reads a copy keeps it, so this
    is for tests that read nothing at that moment.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            missing = _missing(client, nodes, exact)
        except IgniteTFError as error:
            missing = [repr(error)]
        if not missing:
            return
        if time.monotonic() >= until:
            raise AssertionError(f"the cluster was not rebalanced: {missing}")
        time.sleep(0.3)


def _missing(client, nodes, exact):
    """What a cluster with all copies would have, in words."""
    left = len(client.nodes())
    missing = [] if left == nodes else [f"{left} nodes"]
    if client.sql(_REBALANCED).fetchall() != [("true",)]:
        missing.append("cluster.Rebalanced is not true")
    copies = client.sql(_COPIES).fetchall()
    for group, name, backups, partitions in client.sql(_GROUPS):
        wanted = min(backups + 1, nodes)
        # A partition with more copies than it needs does not make up for one with less.
        whole = sum(
            count
            for found_group, owning, others, count in copies
            if found_group == group
            and ((owning, others) == (wanted, 0) if exact else owning >= wanted)
        )
        if whole < partitions:
            missing.append(f"{name}: {whole} of {partitions} partitions have {wanted} copies")
    return missing
