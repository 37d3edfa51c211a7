"""`/v3/clusters`: the one cluster that the console is connected to."""

from __future__ import annotations

from typing import Final

from moldau.console.calls import Call, Reply
from moldau.console.routes import Route
from moldau.console.v3.shapes import BASE, RELATED, Document, Places, described, listed

_RELATIONS: Final = ("acls", "brokers", "broker_configs", "consumer_groups", "topics")
CLUSTER: Final = described(
    "ClusterData",
    dict.fromkeys((*_RELATIONS, "partition_reassignments"), RELATED),
    {"controller": RELATED},
)


async def show_clusters(call: Call) -> Reply:
    """A list with the one cluster."""
    shown = await _cluster(call)
    at = f"{call.base}/v3/clusters"
    return Reply(
        {"kind": "KafkaClusterList", "metadata": {"self": at, "next": None}, "data": [shown]}
    )


async def show_cluster(call: Call) -> Reply:
    """The cluster."""
    return Reply(await _cluster(call))


async def _cluster(call: Call) -> Document:
    clients = await call.clients()
    cluster = await clients.admin.describe_cluster()
    places = Places(call, cluster.cluster_id)
    shown = places.resource("KafkaCluster", "")
    if cluster.controller_id >= 0:
        shown["controller"] = places.related("brokers", cluster.controller_id)
    for name in _RELATIONS:
        shown[name] = places.related(name.replace("_", "-"))
    shown["partition_reassignments"] = places.related(
        "topics", "-", "partitions", "-", "reassignment"
    )
    return shown


ROUTES: Final = (
    Route(
        method="GET",
        path="/v3/clusters",
        handler=show_clusters,
        name="listKafkaV3Clusters",
        summary="List clusters",
        answer=listed("ClusterDataList", CLUSTER),
    ),
    Route(
        method="GET",
        path=BASE,
        handler=show_cluster,
        name="getKafkaV3Cluster",
        summary="Get a cluster",
        answer=CLUSTER,
    ),
)
