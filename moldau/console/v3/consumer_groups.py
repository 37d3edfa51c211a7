"""`/v3/clusters/{cluster_id}/consumer-groups`: groups, their consumers, assignments and lags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client import (
    CommittedOffset,
    GroupDescription,
    GroupMember,
    KafkaError,
    OffsetSpec,
    TopicPartition,
)
from moldau.console.calls import Call, Reply
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, nullable
from moldau.console.v3.shapes import (
    BASE,
    RELATED,
    Document,
    Places,
    described,
    listed,
    number_in,
)

CONSUMERS: Final = ("consumer", "")
"""Protocol types of groups that read topics, and of those that only keep offsets."""

GROUP: Final = described(
    "ConsumerGroupData",
    {
        "consumer_group_id": STRING,
        "is_simple": BOOLEAN,
        "partition_assignor": STRING,
        "state": STRING,
        "coordinator": RELATED,
        "consumers": RELATED,
        "lag_summary": RELATED,
    },
)
CONSUMER: Final = described(
    "ConsumerData",
    {
        "consumer_group_id": STRING,
        "consumer_id": STRING,
        "client_id": STRING,
        "assignments": RELATED,
    },
    {"instance_id": nullable(STRING)},
)
ASSIGNMENT: Final = described(
    "ConsumerAssignmentData",
    {
        "consumer_group_id": STRING,
        "consumer_id": STRING,
        "topic_name": STRING,
        "partition_id": INTEGER,
        "partition": RELATED,
        "lag": RELATED,
    },
)
LAG: Final = described(
    "ConsumerLagData",
    {
        "consumer_group_id": STRING,
        "topic_name": STRING,
        "partition_id": INTEGER,
        "current_offset": INTEGER,
        "log_end_offset": INTEGER,
        "lag": INTEGER,
        "consumer_id": STRING,
        "client_id": STRING,
    },
    {"instance_id": nullable(STRING)},
)
SUMMARY: Final = described(
    "ConsumerGroupLagSummaryData",
    {
        "consumer_group_id": STRING,
        "max_lag_consumer_id": STRING,
        "max_lag_client_id": STRING,
        "max_lag_topic_name": STRING,
        "max_lag_partition_id": INTEGER,
        "max_lag": INTEGER,
        "total_lag": INTEGER,
        "max_lag_consumer": RELATED,
        "max_lag_partition": RELATED,
    },
    {"max_lag_instance_id": nullable(STRING)},
)


async def list_groups(call: Call) -> Reply:
    """Every group of consumers that the person may describe."""
    places, clients = await Places.of(call), await call.clients()
    listing = await clients.admin.list_groups()
    names = [each.group_id for each in listing if each.protocol_type in CONSUMERS]
    found = await clients.admin.describe_groups(names)
    groups = [group for group in found.values() if not isinstance(group, KafkaError)]
    data = [_group(places, group) for group in groups]
    return Reply(places.collection("KafkaConsumerGroupList", data, "consumer-groups"))


async def show_group(call: Call) -> Reply:
    """One group."""
    return Reply(_group(await Places.of(call), await _described(call)))


async def list_consumers(call: Call) -> Reply:
    """The members of a group."""
    places, group = await Places.of(call), await _described(call)
    data = [_consumer(places, group, member) for member in group.members]
    at = ("consumer-groups", group.group_id, "consumers")
    return Reply(places.collection("KafkaConsumerList", data, *at))


async def show_consumer(call: Call) -> Reply:
    """One member."""
    group = await _described(call)
    return Reply(_consumer(await Places.of(call), group, _member(call, group)))


async def list_assignments(call: Call) -> Reply:
    """What a member reads."""
    places, group = await Places.of(call), await _described(call)
    member = _member(call, group)
    data = [_assignment(places, group, member, each) for each in sorted(member.assignment)]
    at = ("consumer-groups", group.group_id, "consumers", member.member_id, "assignments")
    return Reply(places.collection("KafkaConsumerAssignmentList", data, *at))


async def show_assignment(call: Call) -> Reply:
    """One partition that a member reads."""
    group = await _described(call)
    member, partition = _member(call, group), _partition(call)
    if partition not in member.assignment:
        raise Problem(404, f"the consumer does not read {partition}")
    return Reply(_assignment(await Places.of(call), group, member, partition))


async def list_lags(call: Call) -> Reply:
    """How far a group is behind, by partition."""
    places, lags = await Places.of(call), await _lags(call)
    data = [_lag(places, lags.group, each) for each in lags.of_partitions]
    at = ("consumer-groups", lags.group.group_id, "lags")
    return Reply(places.collection("KafkaConsumerLagList", data, *at))


async def show_lag(call: Call) -> Reply:
    """How far a group is behind in one partition."""
    lags, partition = await _lags(call), _partition(call)
    for each in lags.of_partitions:
        if each.partition == partition:
            return Reply(_lag(await Places.of(call), lags.group, each))
    raise Problem(404, f"the group has committed nothing for {partition}")


async def summarize_lags(call: Call) -> Reply:
    """The largest lag of a group, and the sum."""
    places, lags = await Places.of(call), await _lags(call)
    group_id = lags.group.group_id
    if not lags.of_partitions:
        raise Problem(404, "the group has committed nothing")
    most = max(lags.of_partitions, key=lambda each: each.lag)
    at = ("consumer-groups", group_id, "lag-summary")
    name = f"/consumer-groups={group_id}/lag-summary"
    return Reply(
        places.resource("KafkaConsumerGroupLagSummary", name, *at)
        | {
            "consumer_group_id": group_id,
            "max_lag_consumer_id": most.member_id,
            "max_lag_instance_id": most.instance_id,
            "max_lag_client_id": most.client_id,
            "max_lag_topic_name": most.partition.topic,
            "max_lag_partition_id": most.partition.partition,
            "max_lag": most.lag,
            "total_lag": sum(each.lag for each in lags.of_partitions),
            "max_lag_consumer": places.related(
                "consumer-groups", group_id, "consumers", most.member_id
            ),
            "max_lag_partition": places.related(
                "topics", most.partition.topic, "partitions", most.partition.partition
            ),
        }
    )


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition; the member that reads it, "" without one."""

    partition: TopicPartition
    current_offset: int
    log_end_offset: int
    member_id: str
    instance_id: str | None
    client_id: str

    @property
    def lag(self) -> int:
        return max(0, self.log_end_offset - self.current_offset)


@dataclass(frozen=True, slots=True)
class GroupLags:
    """The lags of a group, in the order of its partitions."""

    group: GroupDescription
    of_partitions: list[PartitionLag]


async def _lags(call: Call) -> GroupLags:
    """Raises: Problem, KafkaError. A partition whose end is not known is left out."""
    group, clients = await _described(call), await call.clients()
    committed = (await clients.admin.list_group_offsets([group.group_id]))[group.group_id]
    if isinstance(committed, KafkaError):
        raise committed
    ends = await clients.admin.list_partition_offsets(dict.fromkeys(committed, OffsetSpec.LATEST))
    return GroupLags(group, [*_joined(group, committed, ends)])


def _joined(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, object],
) -> list[PartitionLag]:
    owners = {each: member for member in group.members for each in member.assignment}
    lags = []
    for partition, position in sorted(committed.items()):
        end = getattr(ends.get(partition), "offset", None)
        if end is None:
            continue
        member = owners.get(partition)
        who: tuple[str, str | None, str] = ("", None, "")
        if member is not None:
            who = (member.member_id, member.group_instance_id, member.client_id)
        lags.append(PartitionLag(partition, position.offset, end, *who))
    return lags


async def _described(call: Call) -> GroupDescription:
    """The group that the path names. Raises: KafkaError."""
    clients, name = await call.clients(), call.path["consumer_group_id"]
    found = (await clients.admin.describe_groups([name]))[name]
    if isinstance(found, KafkaError):
        raise found
    return found


def _member(call: Call, group: GroupDescription) -> GroupMember:
    """The member that the path names. Raises: Problem: 404."""
    for each in group.members:
        if each.member_id == call.path["consumer_id"]:
            return each
    raise Problem(404, "the group has no such consumer")


def _partition(call: Call) -> TopicPartition:
    return TopicPartition(call.path["topic_name"], number_in(call, "partition_id"))


def _group(places: Places, group: GroupDescription) -> Document:
    at = ("consumer-groups", group.group_id)
    return places.resource("KafkaConsumerGroup", f"/consumer-group={group.group_id}", *at) | {
        "consumer_group_id": group.group_id,
        "is_simple": group.protocol_type == "" and group.group_type == "classic",
        "partition_assignor": group.assignor,
        "state": state_name(group.state),
        "coordinator": places.related("brokers", group.coordinator.node_id),
        "consumers": places.related(*at, "consumers"),
        "lag_summary": places.related(*at, "lag-summary"),
    }


def state_name(state: str) -> str:
    """Kafka's word, as Confluent writes it: PreparingRebalance is PREPARING_REBALANCE."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state).upper()


def _consumer(places: Places, group: GroupDescription, member: GroupMember) -> Document:
    at = ("consumer-groups", group.group_id, "consumers", member.member_id)
    name = f"/consumer-group={group.group_id}/consumer={member.member_id}"
    return places.resource("KafkaConsumer", name, *at) | {
        "consumer_group_id": group.group_id,
        "consumer_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "assignments": places.related(*at, "assignments"),
    }


def _assignment(
    places: Places, group: GroupDescription, member: GroupMember, partition: TopicPartition
) -> Document:
    topic, index = partition
    own = ("consumer-groups", group.group_id)
    at = (*own, "consumers", member.member_id, "assignments", topic, "partitions", index)
    name = (
        f"/consumer-group={group.group_id}/consumer={member.member_id}"
        f"/assignment=topic={topic}/partition={index}"
    )
    return places.resource("KafkaConsumerAssignment", name, *at) | {
        "consumer_group_id": group.group_id,
        "consumer_id": member.member_id,
        "topic_name": topic,
        "partition_id": index,
        "partition": places.related("topics", topic, "partitions", index),
        "lag": places.related(*own, "lags", topic, "partitions", index),
    }


def _lag(places: Places, group: GroupDescription, lag: PartitionLag) -> Document:
    topic, index = lag.partition
    at = ("consumer-groups", group.group_id, "lags", topic, "partitions", index)
    name = f"/consumer-group={group.group_id}/lag={topic}/partition={index}"
    return places.resource("KafkaConsumerLag", name, *at) | {
        "consumer_group_id": group.group_id,
        "topic_name": topic,
        "partition_id": index,
        "current_offset": lag.current_offset,
        "log_end_offset": lag.log_end_offset,
        "lag": lag.lag,
        "consumer_id": lag.member_id,
        "instance_id": lag.instance_id,
        "client_id": lag.client_id,
    }


_ALL: Final = f"{BASE}/consumer-groups"
_ONE: Final = f"{_ALL}/{{consumer_group_id}}"
_CONSUMER: Final = f"{_ONE}/consumers/{{consumer_id}}"
_PARTITION: Final = "{topic_name}/partitions/{partition_id}"
_DESCRIBE: Final = "Describe on the group"
_OFFSETS: Final = "Describe on the group and on the topics"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ALL,
        handler=list_groups,
        name="listKafkaV3ConsumerGroups",
        summary="List groups of consumers",
        needs="Describe on the groups; the others are left out",
        answer=listed("ConsumerGroupDataList", GROUP),
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=show_group,
        name="getKafkaV3ConsumerGroup",
        summary="Get a group of consumers",
        needs=_DESCRIBE,
        answer=GROUP,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/consumers",
        handler=list_consumers,
        name="listKafkaV3Consumers",
        summary="List the members of a group",
        needs=_DESCRIBE,
        answer=listed("ConsumerDataList", CONSUMER),
    ),
    Route(
        method="GET",
        path=_CONSUMER,
        handler=show_consumer,
        name="getKafkaV3Consumer",
        summary="Get a member of a group",
        needs=_DESCRIBE,
        answer=CONSUMER,
    ),
    Route(
        method="GET",
        path=f"{_CONSUMER}/assignments",
        handler=list_assignments,
        name="listKafkaV3ConsumerAssignments",
        summary="List what a member reads",
        needs=_DESCRIBE,
        answer=listed("ConsumerAssignmentDataList", ASSIGNMENT),
    ),
    Route(
        method="GET",
        path=f"{_CONSUMER}/assignments/{_PARTITION}",
        handler=show_assignment,
        name="getKafkaV3ConsumerAssignment",
        summary="Get a partition that a member reads",
        needs=_DESCRIBE,
        answer=ASSIGNMENT,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/lag-summary",
        handler=summarize_lags,
        name="getKafkaV3ConsumerGroupLagSummary",
        summary="Get the largest lag of a group, and the sum",
        needs=_OFFSETS,
        answer=SUMMARY,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/lags",
        handler=list_lags,
        name="listKafkaV3ConsumerLags",
        summary="List the lags of a group",
        needs=_OFFSETS,
        answer=listed("ConsumerLagDataList", LAG),
    ),
    Route(
        method="GET",
        path=f"{_ONE}/lags/{_PARTITION}",
        handler=show_lag,
        name="getKafkaV3ConsumerLag",
        summary="Get a group's lag in a partition",
        needs=_OFFSETS,
        answer=LAG,
    ),
)
