"""A real broker for your tests: `Cluster` starts node processes, the pytest plugin brings fixtures.

    from moldau.testing import Cluster

    with Cluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_server})

Must not be imported by a running node. Names are imported when they are asked for, because every
run of pytest loads the plugin, and with it this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.local.node_process import NodeFailed
    from moldau.testing.cluster import Cluster
    from moldau.testing.container import MoldauContainer
    from moldau.testing.waiting import wait_until, wait_until_async

__all__ = ["Cluster", "MoldauContainer", "NodeFailed", "wait_until", "wait_until_async"]

at_first_use(
    globals(),
    """
    testing.cluster: Cluster
    testing.container: MoldauContainer
    local.node_process: NodeFailed
    testing.waiting: wait_until wait_until_async
    """,
)
