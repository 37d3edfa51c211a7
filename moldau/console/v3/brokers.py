"""`/v3/clusters/{cluster_id}/brokers`: brokers, and the replicas that each has."""

from __future__ import annotations

from typing import Final

from moldau.client import RegisteredBroker
from moldau.console.calls import Call, Reply
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import INTEGER, STRING, nullable
from moldau.console.v3.partitions import REPLICA_LIST, replica_document
from moldau.console.v3.shapes import (
    BASE,
    RELATED,
    Document,
    Places,
    described,
    listed,
    number_in,
)

BROKER: Final = described(
    "BrokerData",
    {"broker_id": INTEGER, "configs": RELATED, "partition_replicas": RELATED},
    {"host": nullable(STRING), "port": nullable(INTEGER), "rack": nullable(STRING)},
)


async def list_brokers(call: Call) -> Reply:
    """Every broker that serves."""
    places, clients = await Places.of(call), await call.clients()
    brokers = (await clients.admin.describe_cluster()).brokers
    data = [_broker(places, each) for each in sorted(brokers, key=lambda each: each.node_id)]
    return Reply(places.collection("KafkaBrokerList", data, "brokers"))


async def show_broker(call: Call) -> Reply:
    """One broker."""
    return Reply(_broker(await Places.of(call), await broker_of(call)))


async def list_replicas(call: Call) -> Reply:
    """Every replica on a broker."""
    broker_id = (await broker_of(call)).node_id
    places, clients = await Places.of(call), await call.clients()
    topics = await clients.admin.describe_topics()
    data = [
        replica_document(places, topic.name, partition, broker_id)
        for topic in topics.values()
        for partition in topic.partitions
        if broker_id in partition.replicas
    ]
    at = ("brokers", broker_id, "partition-replicas")
    return Reply(places.collection("KafkaReplicaList", data, *at))


async def broker_of(call: Call) -> RegisteredBroker:
    """The broker that the path names. Raises: Problem: 404."""
    broker_id, clients = number_in(call, "broker_id"), await call.clients()
    for each in (await clients.admin.describe_cluster()).brokers:
        if each.node_id == broker_id:
            return each
    raise Problem(404, f"there is no broker {broker_id}, or it does not serve")


def _broker(places: Places, broker: RegisteredBroker) -> Document:
    at = ("brokers", broker.node_id)
    return places.resource("KafkaBroker", f"/broker={broker.node_id}", *at) | {
        "broker_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "configs": places.related(*at, "configs"),
        "partition_replicas": places.related(*at, "partition-replicas"),
    }


_BROKER: Final = f"{BASE}/brokers/{{broker_id}}"
ROUTES: Final = (
    Route(
        method="GET",
        path=f"{BASE}/brokers",
        handler=list_brokers,
        name="listKafkaV3Brokers",
        summary="List brokers",
        answer=listed("BrokerDataList", BROKER),
    ),
    Route(
        method="GET",
        path=_BROKER,
        handler=show_broker,
        name="getKafkaV3Broker",
        summary="Get a broker",
        answer=BROKER,
    ),
    Route(
        method="GET",
        path=f"{_BROKER}/partition-replicas",
        handler=list_replicas,
        name="listKafkaV3BrokerReplicas",
        summary="List the replicas on a broker",
        needs="Describe on the topics; the others are left out",
        answer=REPLICA_LIST,
    ),
)
