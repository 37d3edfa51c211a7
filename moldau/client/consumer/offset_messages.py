"""OffsetCommit v2–v10 and OffsetFetch v1–v10: offsets into requests, responses into offsets.

Owns which version says what: topics by name, or by id from version 10 on; one group, or several
from OffsetFetch 8 on; member epochs from version 9 on. Must not send. Invariant: every partition
that was asked for has an outcome, also when the broker left it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client.consumer.core.rebalance_steps import Identity
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from moldau.protocol.types import ZERO_UUID

TopicIds: TypeAlias = Mapping[str, UUID]
Found: TypeAlias = dict[TopicPartition, OffsetAndMetadata | None]

IDS_VERSION: Final = 10
EPOCHS_VERSION: Final = 9
GROUPS_VERSION: Final = 8
STATIC_VERSION: Final = 7
"""From which version on OffsetCommit carries a group instance id."""


def commit_versions(
    offsets: Iterable[TopicPartition], ids: TopicIds, *, epochs: bool
) -> tuple[int, int]:
    """The versions that can say it: epochs need the newer ones, and every id has to be known."""
    lowest = EPOCHS_VERSION if epochs else OffsetCommitRequest.MIN_VERSION
    return lowest, IDS_VERSION if _all_known(offsets, ids) else IDS_VERSION - 1


def commit_request(
    group_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: TopicIds,
    version: int,
) -> OffsetCommitRequest:
    """The request of one commit."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for each, offset in offsets.items():
        topic = topics.get(each.topic)
        if topic is None:
            topic_id = ids[each.topic] if version >= IDS_VERSION else ZERO_UUID
            topic = OffsetCommitRequestTopic(name=each.topic, topic_id=topic_id, partitions=[])
            topics[each.topic] = topic
        epoch = offset.leader_epoch
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=each.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if epoch is None else epoch,
                committed_metadata=offset.metadata,
            )
        )
    instance_id = identity.group_instance_id
    if identity.generation_id < 0 and version < STATIC_VERSION:
        instance_id = None  # no member at all: nothing depends on it
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def commit_problems(
    response: OffsetCommitResponse, offsets: Iterable[TopicPartition], ids: TopicIds
) -> dict[TopicPartition, ErrorCode]:
    """The partitions whose offsets were not stored, with the reason."""
    names = {topic_id: name for name, topic_id in ids.items()}
    outcome: dict[TopicPartition, ErrorCode] = {}
    for topic in response.topics:
        name = topic.name or names.get(topic.topic_id, "")
        for each in topic.partitions:
            outcome[TopicPartition(name, each.partition_index)] = ErrorCode.of(each.error_code)
    problems: dict[TopicPartition, ErrorCode] = {}
    for wanted in offsets:
        code = outcome.get(wanted, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code is not ErrorCode.NONE:
            problems[wanted] = code
    return problems


def fetch_versions(partitions: Iterable[TopicPartition], ids: TopicIds) -> tuple[int, int]:
    """The versions that can say it."""
    highest = IDS_VERSION if _all_known(partitions, ids) else IDS_VERSION - 1
    return OffsetFetchRequest.MIN_VERSION, highest


def fetch_request(
    group_id: str,
    identity: Identity | None,
    partitions: Iterable[TopicPartition],
    ids: TopicIds,
    version: int,
) -> OffsetFetchRequest:
    """The request for some partitions' offsets, those of finished transactions only (KIP-447;
    brokers before version 7 cannot tell). `identity` is that of a member with an epoch (KIP-848).
    """
    indexes: dict[str, list[int]] = {}
    for each in partitions:
        indexes.setdefault(each.topic, []).append(each.partition)
    if version < GROUPS_VERSION:
        return OffsetFetchRequest(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=some)
                for name, some in indexes.items()
            ],
            require_stable=version >= STABLE_VERSION,
        )
    signed = version >= EPOCHS_VERSION and identity is not None and identity.generation_id >= 0
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopics(
                name=name,
                topic_id=ids[name] if version >= IDS_VERSION else ZERO_UUID,
                partition_indexes=some,
            )
            for name, some in indexes.items()
        ],
    )
    if signed and identity is not None:
        group.member_id = identity.member_id
        group.member_epoch = identity.generation_id
    return OffsetFetchRequest(groups=[group], require_stable=True)


STABLE_VERSION: Final = 7
"""From which version on OffsetFetch can insist on finished transactions."""


def fetched(
    response: OffsetFetchResponse, partitions: Iterable[TopicPartition], ids: TopicIds
) -> tuple[ErrorCode, Found, dict[TopicPartition, ErrorCode]]:
    """The group's error, what was committed (None: nothing), and the partitions' errors."""
    names = {topic_id: name for name, topic_id in ids.items()}
    code = ErrorCode.of(response.groups[0].error_code if response.groups else response.error_code)
    found: Found = {}
    problems: dict[TopicPartition, ErrorCode] = {}
    if code is not ErrorCode.NONE:
        return code, found, problems
    answered: Found = {}
    topics = response.groups[0].topics if response.groups else response.topics
    for topic in topics:
        topic_id = getattr(topic, "topic_id", ZERO_UUID)
        name = topic.name or names.get(topic_id, "")
        for each in topic.partitions:
            partition = TopicPartition(name, each.partition_index)
            problem = ErrorCode.of(each.error_code)
            if problem is not ErrorCode.NONE:
                problems[partition] = problem
            elif each.committed_offset < 0:
                answered[partition] = None
            else:
                epoch = each.committed_leader_epoch
                answered[partition] = OffsetAndMetadata(
                    each.committed_offset, each.metadata or "", epoch if epoch >= 0 else None
                )
    for wanted in partitions:
        if wanted in answered:
            found[wanted] = answered[wanted]
        elif wanted not in problems:
            problems[wanted] = ErrorCode.UNKNOWN_SERVER_ERROR
    return code, found, problems


def _all_known(partitions: Iterable[TopicPartition], ids: TopicIds) -> bool:
    return all(ids.get(each.topic, ZERO_UUID) != ZERO_UUID for each in partitions)
