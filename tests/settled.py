"""Waiting until a cluster has all copies of its data again, for tests that kill nodes."""

import time

from ignitetf.errors import IgniteTFError

_REBALANCED = "SELECT VALUE FROM SYS.METRICS WHERE NAME = 'cluster.Rebalanced'"
_GROUPS = "SELECT CACHE_GROUP_ID, BACKUPS, PARTITIONS_COUNT FROM SYS.CACHE_GROUPS"
_OWNED = """
    SELECT CACHE_GROUP_ID, COUNT(*) FROM SYS.PARTITION_STATES
    WHERE STATE = 'OWNING' AND NODE_ID IN (SELECT NODE_ID FROM SYS.NODES) GROUP BY CACHE_GROUP_ID
"""


def settle(client, nodes=3, seconds=120):
    """Wait until so many nodes are left and every partition has its copies on them.

    The metric alone may still tell of the time before a node went or came; who kills another
    node then takes the last copy.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if len(client.nodes()) == nodes and _has_copies(client, nodes):
                return
        except IgniteTFError:
            pass
        time.sleep(0.3)
    raise AssertionError("the cluster was not rebalanced")


def _has_copies(client, nodes):
    owned = dict(client.sql(_OWNED).fetchall())
    return client.sql(_REBALANCED).fetchall() == [("true",)] and all(
        owned.get(group, 0) >= partitions * min(backups + 1, nodes)
        for group, backups, partitions in client.sql(_GROUPS)
    )
