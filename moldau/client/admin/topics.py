"""Admin calls that create, change, delete and describe topics."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from moldau.client.admin.calls import (
    OPERATION_TIMEOUT_MS,
    AdminCalls,
    check_kind,
    check_several,
    problem_of,
    raise_any,
)
from moldau.client.cluster.metadata_updates import metadata_request
from moldau.client.errors import error_for, raise_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p19_create_topics as created
from moldau.protocol.messages import p37_create_partitions as grown
from moldau.protocol.messages.p03_metadata import MetadataResponseTopic
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; counts of -1 (and no assignment) mean the brokers' defaults."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


def create_topics_request(
    topics: Iterable[NewTopic],
    *,
    timeout_ms: int = OPERATION_TIMEOUT_MS,
    validate_only: bool = False,
) -> created.CreateTopicsRequest:
    return created.CreateTopicsRequest(
        topics=[
            created.CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.replica_assignment else topic.partition_count,
                replication_factor=-1 if topic.replica_assignment else topic.replication_factor,
                assignments=[
                    created.CreatableReplicaAssignment(
                        partition_index=index, broker_ids=list(brokers)
                    )
                    for index, brokers in sorted(topic.replica_assignment.items())
                ],
                configs=[
                    created.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The total number of partitions that a topic is to have, and the replicas of the new ones."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as the brokers see it; `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...]
    last_known_eligible_leader_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics' partitions, and where the next page begins; None after the last one."""

    topics: tuple[TopicDescription, ...]
    next_cursor: TopicPartition | None


PAGE_PARTITION_COUNT: Final = 2_000


class TopicCalls(AdminCalls):
    """The part of `Admin` that deals with topics."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, uuid.UUID]:
        """Create topics and return their ids.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidRequest, AuthorizationFailed, KafkaError
        """
        check_several(topics)
        topics = list(topics)
        check_kind(topics, NewTopic)
        response = await self._ask_controller(
            create_topics_request(topics, validate_only=validate_only),
            "create topics",
            timeout_ms,
            check=lambda found: raise_any(found.topics, lambda each: f"create topic {each.name}"),
        )
        return {result.name: result.topic_id for result in response.topics}

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float | None = None) -> None:
        """Delete topics with everything in them. Raises: UnknownTopicOrPartition, KafkaError"""
        check_several(names)
        wanted = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted], timeout_ms=OPERATION_TIMEOUT_MS
        )
        by_names = DeleteTopicsRequest(topic_names=wanted, timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> None:
            try:
                response = await self._client.ask_controller(request, versions=(6, 6))
            except UnsupportedByPeer:
                response = await self._client.ask_controller(by_names, versions=(1, 5))
            for result in response.responses:
                code, message = result.error_code, result.error_message
                # A topic that the first try has deleted is unknown to the second one: an error.
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise error_for(code, message, f"topic {result.name}", final=True)
                raise_for(code, message, f"delete topic {result.name}")

        await self._client.retry(attempt, what="delete topics", timeout_ms=timeout_ms)

    async def create_partitions(
        self,
        partitions: Mapping[str, NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Grow topics to a total number of partitions. Raises: InvalidRequest, KafkaError"""
        if not isinstance(partitions, Mapping):
            given = type(partitions).__name__
            raise TypeError(f"this call takes NewPartitions by topic, in a mapping, not {given}")
        check_kind(partitions.values(), NewPartitions)
        request = grown.CreatePartitionsRequest(
            topics=[
                grown.CreatePartitionsTopic(
                    name=name,
                    count=new.total_count,
                    assignments=None
                    if new.new_assignments is None
                    else [
                        grown.CreatePartitionsAssignment(broker_ids=list(brokers))
                        for brokers in new.new_assignments
                    ],
                )
                for name, new in partitions.items()
            ],
            timeout_ms=OPERATION_TIMEOUT_MS,
            validate_only=validate_only,
        )

        def check(response: grown.CreatePartitionsResponse) -> None:
            # The active controller knows every topic: that it is unknown does not pass.
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for each in response.results:
                if error := problem_of(
                    each, f"topic {each.name}", final=each.error_code == unknown
                ):
                    raise error

        await self._ask_controller(request, "create partitions", timeout_ms, check=check)

    async def list_topics(
        self, *, include_internal: bool = False, timeout_ms: float | None = None
    ) -> list[str]:
        """Names of all topics, in order."""

        async def attempt() -> list[str]:
            metadata = await self._client.refresh_metadata(None)
            return sorted(
                name
                for name, topic in metadata.topics.items()
                if include_internal or not topic.is_internal
            )

        return await self._client.retry(attempt, what="list topics", timeout_ms=timeout_ms)

    async def describe_topics(
        self, names: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> dict[str, TopicDescription]:
        """Describe the named topics, or all, page by page. Raises: UnknownTopicOrPartition, …"""
        check_several(names)
        if names is not None and not names:
            return {}

        async def attempt() -> dict[str, TopicDescription]:
            try:
                return await self._describe_by_page(names or ())
            except UnsupportedByPeer:
                # Apache Kafka before 3.7 has no pages.
                return await self._describe_at_once(names)

        return await self._client.retry(attempt, what="describe topics", timeout_ms=timeout_ms)

    async def describe_topic_partitions(
        self,
        names: Collection[str] | None = None,
        *,
        cursor: TopicPartition | None = None,
        partition_limit: int = PAGE_PARTITION_COUNT,
        timeout_ms: float | None = None,
    ) -> TopicPage:
        """One page of `describe_topics` (KIP-966), in the order of names.

        Args:
            names: None for all topics.
            cursor: the first partition of the page; None for the first page.
            partition_limit: how many partitions at most; a broker may have a lower limit.

        Raises:
            UnknownTopicOrPartition, InvalidTopic, AuthorizationFailed, KafkaError
        """
        check_several(names)
        if names is not None and not names:
            return TopicPage((), None)

        async def attempt() -> TopicPage:
            return await self._describe_page(names or (), partition_limit, cursor)

        return await self._client.retry(attempt, what="describe topics", timeout_ms=timeout_ms)

    async def _describe_by_page(self, names: Collection[str]) -> dict[str, TopicDescription]:
        found: dict[str, TopicDescription] = {}
        cursor: TopicPartition | None = None
        while True:
            page = await self._describe_page(names, PAGE_PARTITION_COUNT, cursor)
            for topic in page.topics:
                earlier = found.get(topic.name)
                if earlier is not None:
                    if earlier.topic_id != topic.topic_id:
                        # Deleted and created again between two pages: start again.
                        raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, None, f"topic {topic.name}")
                    topic = replace(topic, partitions=earlier.partitions + topic.partitions)
                found[topic.name] = topic
            if page.next_cursor is None:
                return found
            cursor = page.next_cursor

    async def _describe_page(
        self, names: Collection[str], partition_limit: int, cursor: TopicPartition | None
    ) -> TopicPage:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=partition_limit,
            cursor=None
            if cursor is None
            else Cursor(topic_name=cursor.topic, partition_index=cursor.partition),
        )
        response = await self._client.ask_any(request)
        after = response.next_cursor
        return TopicPage(
            _described(response.topics),
            None if after is None else TopicPartition(after.topic_name, after.partition_index),
        )

    async def _describe_at_once(self, names: Collection[str] | None) -> dict[str, TopicDescription]:
        once = None if names is None else dict.fromkeys(names)
        response = await self._client.ask_any(metadata_request(once))
        return {topic.name: topic for topic in _described(response.topics)}


def _described(
    topics: Iterable[DescribeTopicPartitionsResponseTopic] | Iterable[MetadataResponseTopic],
) -> tuple[TopicDescription, ...]:
    """Topics of DescribeTopicPartitions, or of Metadata, which lacks eligible leader replicas."""
    described = []
    for topic in topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Raised at once, although its code counts as retriable for producers.
            raise error_for(topic.error_code, None, f"topic {name}", final=True)
        raise_for(topic.error_code, None, f"topic {name}")
        partitions = tuple(
            PartitionDescription(
                partition=entry.partition_index,
                leader=entry.leader_id,
                leader_epoch=entry.leader_epoch,
                replicas=tuple(entry.replica_nodes),
                isr=tuple(entry.isr_nodes),
                eligible_leader_replicas=tuple(
                    getattr(entry, "eligible_leader_replicas", None) or ()
                ),
                last_known_eligible_leader_replicas=tuple(
                    getattr(entry, "last_known_elr", None) or ()
                ),
                offline_replicas=tuple(entry.offline_replicas),
            )
            for entry in topic.partitions
        )
        described.append(TopicDescription(name, topic.topic_id, topic.is_internal, partitions))
    return tuple(described)
