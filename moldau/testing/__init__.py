"""A real broker for your tests: `Cluster` starts node processes, the pytest plugin brings fixtures.

    from moldau.testing import Cluster

    with Cluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_server})

Must not be imported by a running node.
"""

from moldau.testing.cluster import Cluster, NodeFailed
from moldau.testing.waiting import wait_until, wait_until_async

__all__ = ["Cluster", "NodeFailed", "wait_until", "wait_until_async"]
