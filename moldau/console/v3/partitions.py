"""`…/topics/{topic_name}/partitions`: partitions, their replicas, and moves of replicas."""

from __future__ import annotations

from typing import Final

from moldau.client import PartitionDescription, Reassignment, TopicPartition
from moldau.console.calls import Call, Reply
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array
from moldau.console.v3.shapes import (
    BASE,
    RELATED,
    Document,
    Places,
    described,
    listed,
    number_in,
)
from moldau.protocol.errors import ErrorCode

PARTITION: Final = described(
    "PartitionData",
    {"topic_name": STRING, "partition_id": INTEGER, "replicas": RELATED, "reassignment": RELATED},
    {"leader": RELATED},
)
REPLICA: Final = described(
    "ReplicaData",
    {
        "topic_name": STRING,
        "partition_id": INTEGER,
        "broker_id": INTEGER,
        "is_leader": BOOLEAN,
        "is_in_sync": BOOLEAN,
        "broker": RELATED,
    },
)
REPLICA_LIST: Final = listed("ReplicaDataList", REPLICA)
REASSIGNMENT: Final = described(
    "ReassignmentData",
    {
        "topic_name": STRING,
        "partition_id": INTEGER,
        "adding_replicas": array(INTEGER),
        "removing_replicas": array(INTEGER),
        "replicas": RELATED,
    },
)
REASSIGNMENT_LIST: Final = listed("ReassignmentDataList", REASSIGNMENT)


async def list_partitions(call: Call) -> Reply:
    """All partitions of a topic."""
    places, name = await Places.of(call), call.path["topic_name"]
    data = [_partition(places, name, each) for each in await _partitions(call)]
    return Reply(places.collection("KafkaPartitionList", data, "topics", name, "partitions"))


async def show_partition(call: Call) -> Reply:
    """One partition."""
    partition = await _partition_of(call)
    return Reply(_partition(await Places.of(call), call.path["topic_name"], partition))


async def list_replicas(call: Call) -> Reply:
    """All replicas of a partition."""
    places, name, partition = (
        await Places.of(call),
        call.path["topic_name"],
        await _partition_of(call),
    )
    data = [replica_document(places, name, partition, each) for each in partition.replicas]
    at = ("topics", name, "partitions", partition.partition, "replicas")
    return Reply(places.collection("KafkaReplicaList", data, *at))


async def show_replica(call: Call) -> Reply:
    """One replica."""
    broker_id, partition = number_in(call, "broker_id"), await _partition_of(call)
    if broker_id not in partition.replicas:
        raise Problem(404, f"broker {broker_id} has no replica of it")
    name = call.path["topic_name"]
    return Reply(replica_document(await Places.of(call), name, partition, broker_id))


async def list_reassignments(call: Call) -> Reply:
    """The moves of replicas under way: all, those of a topic, or that of a partition."""
    places, clients = await Places.of(call), await call.clients()
    name = call.path.get("topic_name")
    moved = await clients.admin.list_partition_reassignments()
    data = [
        _reassignment(places, partition, each)
        for partition, each in sorted(moved.items())
        if name in (None, partition.topic)
    ]
    at = ("topics", name or "-", "partitions", "-", "reassignment")
    return Reply(places.collection("KafkaReassignmentList", data, *at))


async def show_reassignment(call: Call) -> Reply:
    """The move of one partition's replicas."""
    partition = TopicPartition(call.path["topic_name"], number_in(call, "partition_id"))
    clients = await call.clients()
    moved = await clients.admin.list_partition_reassignments([partition])
    if partition not in moved:
        raise Problem(404, f"no replica of {partition} moves")
    return Reply(_reassignment(await Places.of(call), partition, moved[partition]))


async def _partitions(call: Call) -> tuple[PartitionDescription, ...]:
    """Raises: KafkaError: the topic is unknown."""
    clients, name = await call.clients(), call.path["topic_name"]
    return (await clients.admin.describe_topics([name]))[name].partitions


async def _partition_of(call: Call) -> PartitionDescription:
    """The partition that the path names. Raises: Problem: 404; KafkaError."""
    index = number_in(call, "partition_id")
    for each in await _partitions(call):
        if each.partition == index:
            return each
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise Problem(404, f"the topic has no partition {index}", kafka_code=code)


def _partition(places: Places, name: str, partition: PartitionDescription) -> Document:
    at = ("topics", name, "partitions", partition.partition)
    called = f"/topic={name}/partition={partition.partition}"
    shown = places.resource("KafkaPartition", called, *at) | {
        "topic_name": name,
        "partition_id": partition.partition,
        "replicas": places.related(*at, "replicas"),
        "reassignment": places.related(*at, "reassignment"),
    }
    if partition.leader >= 0:
        shown["leader"] = places.related(*at, "replicas", partition.leader)
    return shown


def replica_document(
    places: Places, name: str, partition: PartitionDescription, broker_id: int
) -> Document:
    at = ("topics", name, "partitions", partition.partition, "replicas", broker_id)
    called = f"/topic={name}/partition={partition.partition}/replica={broker_id}"
    return places.resource("KafkaReplica", called, *at) | {
        "topic_name": name,
        "partition_id": partition.partition,
        "broker_id": broker_id,
        "is_leader": broker_id == partition.leader,
        "is_in_sync": broker_id in partition.isr,
        "broker": places.related("brokers", broker_id),
    }


def _reassignment(places: Places, partition: TopicPartition, moved: Reassignment) -> Document:
    at = ("topics", partition.topic, "partitions", partition.partition)
    called = f"/topic={partition.topic}/partition={partition.partition}/reassignment"
    return places.resource("KafkaReassignment", called, *at, "reassignment") | {
        "topic_name": partition.topic,
        "partition_id": partition.partition,
        "adding_replicas": list(moved.adding_replicas),
        "removing_replicas": list(moved.removing_replicas),
        "replicas": places.related(*at, "replicas"),
    }


_ALL: Final = f"{BASE}/topics/{{topic_name}}/partitions"
_ONE: Final = f"{_ALL}/{{partition_id}}"
_DESCRIBE: Final = "Describe on the topic"
_MOVES: Final = "Describe on the cluster"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ALL,
        handler=list_partitions,
        name="listKafkaV3Partitions",
        summary="List partitions",
        needs=_DESCRIBE,
        answer=listed("PartitionDataList", PARTITION),
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=show_partition,
        name="getKafkaV3Partition",
        summary="Get a partition",
        needs=_DESCRIBE,
        answer=PARTITION,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/replicas",
        handler=list_replicas,
        name="listKafkaV3Replicas",
        summary="List replicas",
        needs=_DESCRIBE,
        answer=REPLICA_LIST,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/replicas/{{broker_id}}",
        handler=show_replica,
        name="getKafkaV3Replica",
        summary="Get a replica",
        needs=_DESCRIBE,
        answer=REPLICA,
    ),
    Route(
        method="GET",
        path=f"{BASE}/topics/-/partitions/-/reassignment",
        handler=list_reassignments,
        name="listKafkaV3AllReassignments",
        summary="List all moves of replicas",
        needs=_MOVES,
        answer=REASSIGNMENT_LIST,
    ),
    *(
        Route(
            method="GET",
            path=f"{_ALL}/-/{word}",
            handler=list_reassignments,
            name=f"listKafkaV3TopicR{word[1:]}",
            summary="List the moves of a topic's replicas",
            needs=_MOVES,
            answer=REASSIGNMENT_LIST,
        )
        for word in ("reassignment", "reassignments")  # the documentation has both
    ),
    Route(
        method="GET",
        path=f"{_ONE}/reassignment",
        handler=show_reassignment,
        name="getKafkaV3Reassignment",
        summary="Get the move of a partition's replicas",
        needs=_MOVES,
        answer=REASSIGNMENT,
    ),
)
