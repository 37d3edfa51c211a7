"""`…/topics`: all topics, with what is costly to find out only where it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from moldau.client import (
    Admin,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
    OffsetSpec,
    TopicDescription,
    TopicPartition,
)
from moldau.console.calls import Call, Reply
from moldau.console.clients import Clients
from moldau.console.own.gathering import (
    ANSWER_TIMEOUT_MS,
    Committed,
    Offsets,
    cluster_of,
    committed_by,
    directories_of,
    ends_of,
    groups_of,
    known,
    lag_of,
    offset_in,
    topic_sizes,
    topics_of,
)
from moldau.console.own.health import is_offline, is_under_replicated
from moldau.console.own.lists import OWN, Row, list_parameters, listed, searched
from moldau.console.problems import Problem
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, named, nullable, one_of, record
from moldau.protocol.types import uuid_to_base64

SIZES, OFFSETS, GROUPS = "sizes", "offsets", "groups"
RETENTION, CLEANUP = "retention.ms", "cleanup.policy"
MAX_NAMES: Final = 1_000
MAX_GROUPS: Final = 2_000
"""Where there are more, it is not said which of them read a topic."""
MAX_SORTED_PARTITIONS: Final = 50_000
"""The offsets of more are not asked for only to sort by how many records there are."""
SORT_TIMEOUT_MS: Final = 15_000
SINGLY_AT_ONCE: Final = 10
_SORTED_BY: Final = (
    "name",
    "is_internal",
    "partition_count",
    "replication_factor",
    "record_count",
    "size_bytes",
    "under_replicated",
    "offline",
)
READER: Final = record({"group_id": STRING, "type": STRING, "lag": nullable(INTEGER)})
TOPIC_ROW: Final = named(
    "TopicRow",
    record(
        {
            "name": STRING,
            "topic_id": nullable(STRING),
            "is_internal": BOOLEAN,
            "partition_count": INTEGER,
            "replication_factor": INTEGER,
            "record_count": nullable(INTEGER),
            "size_bytes": nullable(INTEGER),
            "retention_ms": nullable(INTEGER),
            "cleanup_policy": nullable(STRING),
            "under_replicated": INTEGER,
            "offline": INTEGER,
            "groups": nullable(array(READER)),
            "rate_records_s": nullable({"type": "number"}),
        }
    ),
)


async def list_topics(call: Call) -> Reply:
    """The topics that the person may describe."""
    clients, query = await call.clients(), call.query
    topics = await topics_of(clients)
    wanted = topics if query["names"] is None else set(query["names"])
    rows = [
        topic_row(topic)
        for name, topic in topics.items()
        if name in wanted and (query["internal"] or not topic.is_internal)
    ]
    columns = set(query["with"] or ())
    if query["sort"] == "size_bytes" or SIZES in columns:
        await _add_sizes(clients, rows)
    if query["sort"] == "record_count":
        await _add_all_counts(clients, rows, topics)
    shown = searched(call, rows, name="name")
    some: list[Row] = shown["data"]
    await _add_configs(clients.admin, some)
    partitions = [at for row in some for at in partitions_of(topics[row["name"]])]
    ends: Offsets = {}
    if columns & {OFFSETS, GROUPS}:
        ends = await ends_of(clients.admin, partitions)
    if OFFSETS in columns:
        starts = await starts_of(clients.admin, partitions)
        for row in some:
            row["record_count"] = record_count(topics[row["name"]], starts, ends)
    if GROUPS in columns:
        await _add_groups(clients, some, ends)
    return Reply(shown)


def topic_row(topic: TopicDescription) -> Row:
    """What a topic's description says."""
    return {
        "name": topic.name,
        "topic_id": uuid_to_base64(topic.topic_id) if topic.topic_id.int else None,
        "is_internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(each.replicas) for each in topic.partitions), default=0),
        "record_count": None,
        "size_bytes": None,
        "retention_ms": None,
        "cleanup_policy": None,
        "under_replicated": sum(map(is_under_replicated, topic.partitions)),
        "offline": sum(map(is_offline, topic.partitions)),
        "groups": None,
        "rate_records_s": None,
    }


def partitions_of(topic: TopicDescription) -> list[TopicPartition]:
    """Those of a topic that are led: others have no offsets that can be asked for."""
    return [
        TopicPartition(topic.name, each.partition)
        for each in topic.partitions
        if not is_offline(each)
    ]


async def starts_of(
    admin: Admin, partitions: Iterable[TopicPartition], timeout_ms: int = ANSWER_TIMEOUT_MS
) -> Offsets:
    """Where the logs of partitions begin."""
    specs = dict.fromkeys(partitions, int(OffsetSpec.EARLIEST))
    return await admin.list_partition_offsets(specs, timeout_ms=timeout_ms)


def record_count(topic: TopicDescription, starts: Offsets, ends: Offsets) -> int | None:
    """The offsets between the logs' starts and ends; None if those of a partition are not known."""
    total = 0
    for each in topic.partitions:
        partition = TopicPartition(topic.name, each.partition)
        start, end = offset_in(starts, partition), offset_in(ends, partition)
        if start is None or end is None:
            return None
        total += max(0, end - start)
    return total


async def readers_of(clients: Clients) -> dict[str, tuple[str, Committed]] | None:
    """What each group has committed, with its type; None where that is not known, or in a cluster
    with very many groups.
    """

    async def ask() -> dict[str, tuple[str, Committed]] | None:
        listing = await groups_of(clients)
        if listing is None or len(listing) > MAX_GROUPS:
            return None
        types = {each.group_id: each.group_type for each in listing}
        found = await committed_by(clients, types)
        return {
            group_id: (types[group_id], committed)
            for group_id, committed in found.items()
            if not isinstance(committed, KafkaError)
        }

    return await clients.looks.of("what groups have committed", ask)


async def _add_sizes(clients: Clients, rows: Iterable[Row]) -> None:
    cluster = await cluster_of(clients.admin)
    asked = [each.node_id for each in cluster.brokers if not each.fenced]
    directories = await directories_of(clients, asked)
    if all(isinstance(found, KafkaError) for found in directories.values()):
        return
    sizes = topic_sizes(directories)
    for row in rows:
        row["size_bytes"] = sizes.get(row["name"], 0)


async def _add_all_counts(
    clients: Clients, rows: Iterable[Row], topics: Mapping[str, TopicDescription]
) -> None:
    """The records of every topic, to sort by. Raises: Problem: there are too many."""
    partitions = [at for topic in topics.values() for at in partitions_of(topic)]
    if len(partitions) > MAX_SORTED_PARTITIONS:
        why = f"sorted by record_count are at most {MAX_SORTED_PARTITIONS} partitions"
        raise Problem(422, f"{why}; there are {len(partitions)}")

    async def ask() -> dict[str, int | None]:
        starts, ends = await asyncio.gather(
            starts_of(clients.admin, partitions, SORT_TIMEOUT_MS),
            ends_of(clients.admin, partitions, SORT_TIMEOUT_MS),
        )
        return {name: record_count(topic, starts, ends) for name, topic in topics.items()}

    counts = await clients.looks.of("record counts", ask)
    for row in rows:
        row["record_count"] = counts.get(row["name"])


async def _add_configs(admin: Admin, rows: Iterable[Row]) -> None:
    """How long records are kept, of those topics whose configuration the person may see."""
    by_resource = {ConfigResource(ConfigResourceType.TOPIC, row["name"]): row for row in rows}
    if not by_resource:
        return
    found = await known(_configs(admin, by_resource))
    if found is None:  # one that may not be seen, or that is gone, is an error of the whole answer
        found = {}
        places = asyncio.Semaphore(SINGLY_AT_ONCE)

        async def ask(resource: ConfigResource) -> None:
            async with places:
                found.update(await known(_configs(admin, [resource])) or {})

        await asyncio.gather(*map(ask, by_resource))
    for resource, entries in found.items():
        retention, cleanup = entries.get(RETENTION), entries.get(CLEANUP)
        row = by_resource[resource]
        row["retention_ms"] = int(retention.value) if retention and retention.value else None
        row["cleanup_policy"] = cleanup.value if cleanup else None


async def _configs(
    admin: Admin, resources: Collection[ConfigResource]
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    return await admin.describe_configs(
        resources, keys=[RETENTION, CLEANUP], timeout_ms=ANSWER_TIMEOUT_MS
    )


async def _add_groups(clients: Clients, rows: Iterable[Row], ends: Offsets) -> None:
    readers = await readers_of(clients)
    if readers is None:
        return
    by_topic: dict[str, list[dict[str, Any]]] = {row["name"]: [] for row in rows}
    for group_id, (kind, committed) in sorted(readers.items()):
        for name in {each.topic for each in committed} & by_topic.keys():
            lag = lag_of(committed, ends, name)
            by_topic[name].append({"group_id": group_id, "type": kind, "lag": lag})
    for row in rows:
        row["groups"] = by_topic[row["name"]]


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/topics",
        handler=list_topics,
        name="listTopics",
        summary="Topics: searched, sorted and page by page",
        needs=(
            "Describe on the topics, the others are left out; DescribeConfigs on them for how long "
            "records are kept; Describe on the cluster for sizes, and on groups"
        ),
        query=(
            *list_parameters(_SORTED_BY, by="name"),
            Parameter("names", "Only these topics.", array(STRING, most=MAX_NAMES)),
            Parameter("internal", "Whether internal topics are shown.", BOOLEAN, default=True),
            Parameter(
                "with",
                "What is costly to find out: sizes, offsets, groups.",
                array(one_of(SIZES, OFFSETS, GROUPS)),
            ),
        ),
        answer=listed("TopicRows", TOPIC_ROW),
    ),
)
