"""`…/topics/{topic}`: one topic with its partitions, configurations and readers; its oldest records
are deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from moldau.client import (
    Admin,
    ConfigResource,
    ConfigResourceType,
    GroupDescription,
    KafkaError,
    OffsetSpec,
    PartitionDescription,
    PartitionOffset,
    TopicDescription,
    TopicPartition,
    TopicPartitionReplica,
)
from moldau.console.calls import Call, Reply
from moldau.console.clients import Clients
from moldau.console.own.brokers import DONE
from moldau.console.own.commands import command
from moldau.console.own.gathering import (
    ANSWER_TIMEOUT_MS,
    CONFIG,
    Offsets,
    config_documents,
    ends_of,
    known,
    lag_of,
    offset_in,
)
from moldau.console.own.lists import OWN, Row
from moldau.console.own.topics import partitions_of, readers_of, starts_of
from moldau.console.problems import Problem
from moldau.console.reading import MAX_OFFSET
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, named, nullable, record
from moldau.console.v3.shapes import MAX_NUMBER
from moldau.protocol.types import uuid_to_base64

_NUMBERS: Final = array(INTEGER)
PARTITION: Final = record(
    {
        "partition": INTEGER,
        "leader": nullable(INTEGER),
        "leader_epoch": nullable(INTEGER),
        "replicas": _NUMBERS,
        "isr": _NUMBERS,
        "elr": nullable(_NUMBERS),
        "last_known_elr": nullable(_NUMBERS),
        "offline_replicas": _NUMBERS,
        "start_offset": nullable(INTEGER),
        "end_offset": nullable(INTEGER),
        "last_stable_offset": nullable(INTEGER),
        "size_bytes": nullable(INTEGER),
        "max_timestamp_ms": nullable(INTEGER),
    }
)
READER: Final = record(
    {
        "group_id": STRING,
        "type": STRING,
        "state": STRING,
        "members": nullable(INTEGER),
        "lag": nullable(INTEGER),
    }
)
TOPIC: Final = named(
    "Topic",
    record(
        {
            "name": STRING,
            "topic_id": nullable(STRING),
            "is_internal": BOOLEAN,
            "configs": nullable(array(CONFIG)),
            "partitions": array(PARTITION),
            "groups": nullable(array(READER)),
        }
    ),
)
CUTS: Final = record(
    {
        "offsets": {
            **array(
                record(
                    {
                        "partition": {**INTEGER, "minimum": 0, "maximum": MAX_NUMBER},
                        "before_offset": {**INTEGER, "minimum": 0, "maximum": MAX_OFFSET},
                    }
                ),
                most=10_000,
            ),
            "minItems": 1,
        }
    }
)


async def show_topic(call: Call) -> Reply:
    """One topic; what is not known, or not for this person, is null."""
    clients, name = await call.clients(), call.path["topic"]
    topic = (await clients.admin.describe_topics([name]))[name]
    logs, sizes, configs, readers = await asyncio.gather(
        _Logs.of(clients.admin, partitions_of(topic)),
        _sizes(clients, topic),
        _configs(clients.admin, name),
        _readers(clients, name),
    )
    return Reply(
        {
            "name": name,
            "topic_id": uuid_to_base64(topic.topic_id) if topic.topic_id.int else None,
            "is_internal": topic.is_internal,
            "configs": configs,
            "partitions": [
                {
                    **_partition(each),
                    **logs.document(TopicPartition(name, each.partition)),
                    "size_bytes": sizes.get(each.partition),
                }
                for each in topic.partitions
            ],
            "groups": None
            if readers is None
            else await _described(clients, name, readers, logs.ends),
        }
    )


def _partition(partition: PartitionDescription) -> Row:
    has_leader = partition.leader >= 0
    return {
        "partition": partition.partition,
        "leader": partition.leader if has_leader else None,
        "leader_epoch": partition.leader_epoch if partition.leader_epoch >= 0 else None,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "elr": partition.eligible_leader_replicas,
        "last_known_elr": partition.last_known_eligible_leader_replicas,
        "offline_replicas": partition.offline_replicas,
    }


@dataclass(frozen=True, slots=True)
class _Logs:
    """Where the logs of partitions begin and end, up to where they are stable, and their newest
    records.
    """

    starts: Offsets
    ends: Offsets
    stable: Offsets
    newest: Offsets

    @classmethod
    async def of(cls, admin: Admin, partitions: list[TopicPartition]) -> _Logs:
        newest = dict.fromkeys(partitions, int(OffsetSpec.MAX_TIMESTAMP))
        return cls(
            *await asyncio.gather(
                starts_of(admin, partitions),
                ends_of(admin, partitions),
                _stable(admin, partitions),
                admin.list_partition_offsets(newest, timeout_ms=ANSWER_TIMEOUT_MS),
            )
        )

    def document(self, partition: TopicPartition) -> Row:
        newest = self.newest.get(partition)
        newest_ms = newest.timestamp_ms if isinstance(newest, PartitionOffset) else -1
        return {
            "start_offset": offset_in(self.starts, partition),
            "end_offset": offset_in(self.ends, partition),
            "last_stable_offset": offset_in(self.stable, partition),
            "max_timestamp_ms": newest_ms if newest_ms >= 0 else None,
        }


async def _stable(admin: Admin, partitions: Iterable[TopicPartition]) -> Offsets:
    """The last stable offsets; none if those of one partition are not known."""
    specs = dict.fromkeys(partitions, int(OffsetSpec.LATEST))
    asking = admin.list_offsets(specs, read_committed=True, timeout_ms=ANSWER_TIMEOUT_MS)
    return await known(asking) or {}


async def _sizes(clients: Clients, topic: TopicDescription) -> dict[int, int]:
    """The bytes of each partition, on the disks of the replicas that say so."""
    serving = {each.node_id for each in (await clients.admin.describe_cluster()).brokers}
    replicas = {
        TopicPartitionReplica(topic.name, each.partition, broker_id)
        for each in topic.partitions
        for broker_id in each.replicas
        if broker_id in serving
    }
    asking = clients.admin.describe_replica_logs(replicas, timeout_ms=ANSWER_TIMEOUT_MS)
    sizes: defaultdict[int, int] = defaultdict(int)
    for replica, log in (await known(asking) or {}).items():
        if not isinstance(log, KafkaError):
            sizes[replica.partition] += log.size_bytes
    return sizes


async def _configs(admin: Admin, name: str) -> list[dict[str, Any]] | None:
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    described = await known(
        admin.describe_configs(
            [resource],
            include_synonyms=True,
            include_documentation=True,
            timeout_ms=ANSWER_TIMEOUT_MS,
        )
    )
    return None if described is None else config_documents(described[resource])


async def _readers(clients: Clients, name: str) -> dict[str, Row] | None:
    """The groups that have committed offsets of a topic."""
    readers = await readers_of(clients)
    if readers is None:
        return None
    return {
        group_id: {"group_id": group_id, "type": kind, "committed": committed}
        for group_id, (kind, committed) in sorted(readers.items())
        if any(each.topic == name for each in committed)
    }


async def _described(
    clients: Clients, name: str, readers: dict[str, Row], ends: Offsets
) -> list[Row]:
    asking = clients.admin.describe_groups([*readers], timeout_ms=ANSWER_TIMEOUT_MS)
    described = await known(asking) or {}
    rows = []
    for group_id, row in readers.items():
        group = described.get(group_id)
        rows.append(
            {
                "group_id": group_id,
                "type": row["type"],
                "state": group.state if isinstance(group, GroupDescription) else "Unknown",
                "members": len(group.members) if isinstance(group, GroupDescription) else None,
                "lag": lag_of(row["committed"], ends, name),
            }
        )
    return rows


async def delete_records(call: Call) -> Reply:
    """Delete the records before an offset, of one or more partitions, for good."""
    clients, name = await call.clients(), call.path["topic"]
    before: dict[TopicPartition, int] = {}
    for each in call.body["offsets"]:
        partition = TopicPartition(name, each["partition"])
        if partition in before:
            raise Problem(422, f"partition {partition.partition} is named twice")
        before[partition] = each["before_offset"]
    topic = (await clients.admin.describe_topics([name]))[name]
    await clients.admin.delete_records(before)
    internal = ("--internal",) if topic.is_internal else ()
    places = [f"{name}:{at.partition}@{offset}" for at, offset in sorted(before.items())]
    return Reply({"command": command("records", "delete", *internal, names=places)})


_ONE: Final = f"{OWN}/topics/{{topic}}"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ONE,
        handler=show_topic,
        name="getTopic",
        summary="One topic: partitions, configurations, groups that read it",
        needs=(
            "Describe on the topic; DescribeConfigs on it for configurations, Describe on the "
            "cluster for sizes, and on groups: null without"
        ),
        answer=TOPIC,
    ),
    Route(
        method="POST",
        path=f"{_ONE}/delete-records",
        handler=delete_records,
        name="deleteRecords",
        summary="Delete a topic's oldest records",
        needs="Delete on the topic",
        body=CUTS,
        answer=DONE,
    ),
)
