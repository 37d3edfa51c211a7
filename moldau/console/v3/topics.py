"""`/v3/clusters/{cluster_id}/topics`: topics are listed, created, grown and deleted."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from moldau.client import (
    AuthorizationFailed,
    NewPartitions,
    NewTopic,
    TopicDescription,
    UnknownTopicOrPartition,
)
from moldau.console.calls import NO_CONTENT, Call, Reply
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, nullable, record
from moldau.console.v3.shapes import BASE, MAX_NUMBER, RELATED, Document, Places, described, listed

CREATED: Final = 201
SEEN_TRIES, SEEN_PAUSE_S = 10, 0.1
MAX_PARTITIONS: Final = 1_000_000

TOPIC: Final = described(
    "TopicData",
    {
        "topic_name": STRING,
        "is_internal": BOOLEAN,
        "replication_factor": INTEGER,
        "partitions_count": INTEGER,
        "partitions": RELATED,
        "configs": RELATED,
        "partition_reassignments": RELATED,
    },
)
_NUMBER: Final = {**INTEGER, "minimum": 0, "maximum": MAX_NUMBER}
_COUNT: Final = {**INTEGER, "minimum": 1, "maximum": MAX_PARTITIONS}
NEW_TOPIC: Final = record(
    {"topic_name": STRING},
    {
        "partitions_count": _COUNT,
        "replication_factor": {**INTEGER, "minimum": 1, "maximum": 32_767},
        "replicas_assignments": array(
            record({"partition_id": _NUMBER, "broker_ids": array(_NUMBER, most=1_000)}),
            most=100_000,
        ),
        "configs": array(record({"name": STRING}, {"value": nullable(STRING)}), most=1_000),
        "validate_only": BOOLEAN,
    },
)


async def list_topics(call: Call) -> Reply:
    """Every topic that the person may describe."""
    places, clients = await Places.of(call), await call.clients()
    topics = await clients.admin.describe_topics()
    data = [topic_document(places, topic) for _, topic in sorted(topics.items())]
    return Reply(places.collection("KafkaTopicList", data, "topics"))


async def create_topic(call: Call) -> Reply:
    """Create a topic, or only check whether it could be."""
    body: dict[str, Any] = call.body
    assignment: dict[int, list[int]] = {}
    for each in body.get("replicas_assignments", ()):
        if each["partition_id"] in assignment:
            raise Problem(422, f"partition {each['partition_id']} is assigned twice")
        assignment[each["partition_id"]] = each["broker_ids"]
    topic = NewTopic(
        body["topic_name"],
        body.get("partitions_count", -1),
        body.get("replication_factor", -1),
        {
            each["name"]: each["value"]
            for each in body.get("configs", ())
            if each.get("value") is not None
        },
        assignment,
    )
    validate_only = body.get("validate_only", False)
    clients, places = await call.clients(), await Places.of(call)
    await clients.admin.create_topics([topic], validate_only=validate_only)
    found = None if validate_only else await _seen(call, topic.name)
    if found is not None:
        shown = topic_document(places, found)
    else:
        factor = max(map(len, assignment.values()), default=topic.replication_factor)
        shown = _document(
            places, topic.name, len(assignment) or topic.partition_count, factor, is_internal=False
        )
    at = {"Location": places.at("topics", topic.name)}
    return Reply(shown, 200 if validate_only else CREATED, {} if validate_only else at)


async def _seen(call: Call, name: str) -> TopicDescription | None:
    """A topic that was just created, as soon as the broker that is asked knows it; None if the
    person may not describe it.
    """
    clients = await call.clients()
    for _ in range(SEEN_TRIES):
        try:
            return (await clients.admin.describe_topics([name]))[name]
        except UnknownTopicOrPartition:
            await asyncio.sleep(SEEN_PAUSE_S)
        except AuthorizationFailed:
            return None
    return None


async def show_topic(call: Call) -> Reply:
    """One topic."""
    clients, name = await call.clients(), call.path["topic_name"]
    found = (await clients.admin.describe_topics([name]))[name]
    return Reply(topic_document(await Places.of(call), found))


async def delete_topic(call: Call) -> Reply:
    """Delete a topic with everything in it."""
    clients = await call.clients()
    await clients.admin.delete_topics([call.path["topic_name"]])
    return Reply(status=NO_CONTENT)


async def grow_topic(call: Call) -> Reply:
    """Give a topic more partitions."""
    clients, name, count = (
        await call.clients(),
        call.path["topic_name"],
        call.body["partitions_count"],
    )
    await clients.admin.create_partitions({name: NewPartitions(count)})
    found = (await clients.admin.describe_topics([name]))[name]
    shown = topic_document(await Places.of(call), found)
    shown["partitions_count"] = count  # the broker that was asked may not know it yet
    return Reply(shown)


def topic_document(places: Places, topic: TopicDescription) -> Document:
    factor = max((len(each.replicas) for each in topic.partitions), default=0)
    count = len(topic.partitions)
    return _document(places, topic.name, count, factor, is_internal=topic.is_internal)


def _document(
    places: Places, name: str, partition_count: int, factor: int, *, is_internal: bool
) -> Document:
    at = ("topics", name)
    return places.resource("KafkaTopic", f"/topic={name}", *at) | {
        "topic_name": name,
        "is_internal": is_internal,
        "replication_factor": factor,
        "partitions_count": partition_count,
        "partitions": places.related(*at, "partitions"),
        "configs": places.related(*at, "configs"),
        "partition_reassignments": places.related(*at, "partitions", "-", "reassignment"),
    }


_ALL: Final = f"{BASE}/topics"
_ONE: Final = f"{_ALL}/{{topic_name}}"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ALL,
        handler=list_topics,
        name="listKafkaV3Topics",
        summary="List topics",
        needs="Describe on the topics; the others are left out",
        answer=listed("TopicDataList", TOPIC),
    ),
    Route(
        method="POST",
        path=_ALL,
        handler=create_topic,
        name="createKafkaV3Topic",
        summary="Create a topic",
        needs="Create on the topic or on the cluster",
        body=NEW_TOPIC,
        answer=TOPIC,
        status=CREATED,
        may_be={200: "With `validate_only`: it could be created"},
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=show_topic,
        name="getKafkaV3Topic",
        summary="Get a topic",
        needs="Describe on the topic",
        answer=TOPIC,
    ),
    Route(
        method="DELETE",
        path=_ONE,
        handler=delete_topic,
        name="deleteKafkaV3Topic",
        summary="Delete a topic",
        needs="Delete on the topic",
        status=NO_CONTENT,
    ),
    Route(
        method="PATCH",
        path=_ONE,
        handler=grow_topic,
        name="updatePartitionCountKafkaV3Topic",
        summary="Give a topic more partitions",
        needs="Alter on the topic",
        body=record({"partitions_count": _COUNT}),
        answer=TOPIC,
    ),
)
