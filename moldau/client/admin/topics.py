"""Admin calls about topics, their partitions and their records.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import (
    NewPartitions,
    NewTopic,
    PartitionDescription,
    PartitionOffset,
    ProducerState,
    TopicDescription,
    TopicPage,
)
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersRequest,
)
from moldau.protocol.messages.p61_describe_producers import (
    TopicRequest as ProducersTopicRequest,
)
from moldau.protocol.messages.p75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

OPERATION_TIMEOUT_MS = 30_000
PAGE_PARTITION_COUNT = 2_000
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class TopicCalls:
    """The part of `Admin` that deals with topics."""

    _client: ClusterClient

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
        wanted = list(topics)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=-1 if topic.replica_assignment else topic.partition_count,
                    replication_factor=-1 if topic.replica_assignment else topic.replication_factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                        for index, brokers in sorted(topic.replica_assignment.items())
                    ],
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in topic.configs.items()
                    ],
                )
                for topic in wanted
            ],
            timeout_ms=OPERATION_TIMEOUT_MS,
            validate_only=validate_only,
        )

        async def attempt() -> dict[str, uuid.UUID]:
            response = await self._client.ask_controller(request)
            for result in response.topics:
                raise_for(result.error_code, result.error_message, f"create topic {result.name}")
            return {result.name: result.topic_id for result in response.topics}

        return await self._client.retry(attempt, what="create topics", timeout_ms=timeout_ms)

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float | None = None) -> None:
        """Delete topics with everything in them. Raises: UnknownTopicOrPartition, KafkaError"""
        check_several(names)
        wanted = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            timeout_ms=OPERATION_TIMEOUT_MS,
        )
        by_names = DeleteTopicsRequest(topic_names=wanted, timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> None:
            try:
                response = await self._client.ask_controller(request, versions=(6, 6))
            except UnsupportedByPeer:
                response = await self._client.ask_controller(by_names, versions=(1, 5))
            for result in response.responses:
                # A second try finds gone what the first one deleted: still an error, and told.
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _final(result.error_code, result.error_message, result.name)
                raise_for(result.error_code, result.error_message, f"delete topic {result.name}")

        await self._client.retry(attempt, what="delete topics", timeout_ms=timeout_ms)

    async def create_partitions(
        self,
        partitions: Mapping[str, NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Grow topics to a total number of partitions. Raises: InvalidRequest, KafkaError"""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=new.total_count,
                    assignments=None
                    if new.new_assignments is None
                    else [
                        CreatePartitionsAssignment(broker_ids=list(brokers))
                        for brokers in new.new_assignments
                    ],
                )
                for name, new in partitions.items()
            ],
            timeout_ms=OPERATION_TIMEOUT_MS,
            validate_only=validate_only,
        )

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            for result in response.results:
                raise_for(result.error_code, result.error_message, f"topic {result.name}")

        await self._client.retry(attempt, what="create partitions", timeout_ms=timeout_ms)

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

    async def _describe_by_page(self, names: Collection[str]) -> dict[str, TopicDescription]:
        found: dict[str, TopicDescription] = {}
        cursor: TopicPartition | None = None
        while True:
            page = await self._describe_page(names, PAGE_PARTITION_COUNT, cursor)
            for topic in page.topics:
                _add_page(found, topic)
            if page.next_cursor is None:
                return found
            cursor = page.next_cursor

    async def _describe_at_once(self, names: Collection[str] | None) -> dict[str, TopicDescription]:
        response = await self._client.ask_any(
            MetadataRequest(
                topics=None
                if names is None
                else [MetadataRequestTopic(name=name) for name in dict.fromkeys(names)],
                allow_auto_topic_creation=False,
            )
        )
        found: dict[str, TopicDescription] = {}
        for topic in response.topics:
            name = topic.name or ""
            _raise_for_topic(topic.error_code, name)
            found[name] = TopicDescription(
                name,
                topic.topic_id,
                topic.is_internal,
                tuple(map(_from_metadata, topic.partitions)),
            )
        return found

    async def describe_topic_partitions(
        self,
        names: Collection[str] | None = None,
        *,
        cursor: TopicPartition | None = None,
        partition_limit: int = PAGE_PARTITION_COUNT,
        timeout_ms: float | None = None,
    ) -> TopicPage:
        """One page of what `describe_topics` tells (KIP-966), in the order of names.

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
        for topic in response.topics:
            _raise_for_topic(topic.error_code, topic.name or "")
        after = response.next_cursor
        return TopicPage(
            tuple(_described(topic) for topic in response.topics),
            None if after is None else TopicPartition(after.topic_name, after.partition_index),
        )

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, PartitionOffset]:
        """Offsets by `OffsetSpec` or by time in ms (the first record at or after it; offset -1 when
        there is none).
        """

        async def ask(
            leader_id: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, PartitionOffset]:
            topics: dict[str, ListOffsetsTopic] = {}
            for partition in partitions:
                topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
                topic.partitions.append(
                    ListOffsetsPartition(
                        partition_index=partition.partition, timestamp=int(specs[partition])
                    )
                )
            response = await self._client.ask_node(
                leader_id,
                ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
                    topics=list(topics.values()),
                    timeout_ms=OPERATION_TIMEOUT_MS,
                ),
            )
            found = {}
            for answered in response.topics:
                for entry in answered.partitions:
                    raise_for(entry.error_code, None, f"{answered.name}-{entry.partition_index}")
                    found[TopicPartition(answered.name, entry.partition_index)] = PartitionOffset(
                        entry.offset, entry.timestamp, entry.leader_epoch
                    )
            return found

        async def attempt() -> dict[TopicPartition, PartitionOffset]:
            by_leader = await self._by_leader(specs)
            answers = await asyncio.gather(*(ask(*group) for group in by_leader.items()))
            return {key: value for answer in answers for key, value in answer.items()}

        return await self._client.retry(attempt, what="list offsets", timeout_ms=timeout_ms)

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete what lies before an offset (-1: the high watermark); returns the low watermarks.

        Raises:
            OffsetOutOfRange: the offset lies behind the high watermark.
        """

        async def ask(
            leader_id: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, int]:
            topics: dict[str, DeleteRecordsTopic] = {}
            for partition in partitions:
                topic = topics.setdefault(partition.topic, DeleteRecordsTopic(name=partition.topic))
                topic.partitions.append(
                    DeleteRecordsPartition(
                        partition_index=partition.partition, offset=before[partition]
                    )
                )
            response = await self._client.ask_node(
                leader_id,
                DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=OPERATION_TIMEOUT_MS),
            )
            low_watermarks = {}
            for answered in response.topics:
                for entry in answered.partitions:
                    what = f"{answered.name}-{entry.partition_index}"
                    raise_for(entry.error_code, None, f"delete records of {what}")
                    partition = TopicPartition(answered.name, entry.partition_index)
                    low_watermarks[partition] = entry.low_watermark
            return low_watermarks

        async def attempt() -> dict[TopicPartition, int]:
            by_leader = await self._by_leader(before)
            answers = await asyncio.gather(*(ask(*group) for group in by_leader.items()))
            return {key: value for answer in answers for key, value in answer.items()}

        return await self._client.retry(attempt, what="delete records", timeout_ms=timeout_ms)

    async def describe_producers(
        self, partition: TopicPartition, *, timeout_ms: float | None = None
    ) -> list[ProducerState]:
        """What the leader of a partition remembers of its producers (KIP-664)."""
        request = DescribeProducersRequest(
            topics=[
                ProducersTopicRequest(name=partition.topic, partition_indexes=[partition.partition])
            ]
        )

        async def attempt() -> list[ProducerState]:
            (leader_id,) = await self._by_leader([partition])
            response = await self._client.ask_node(leader_id, request)
            entry = response.topics[0].partitions[0]
            raise_for(entry.error_code, entry.error_message, f"producers of {partition}")
            return [
                ProducerState(
                    state.producer_id,
                    state.producer_epoch,
                    state.last_sequence,
                    state.last_timestamp,
                    state.coordinator_epoch,
                    None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
                )
                for state in entry.active_producers
            ]

        return await self._client.retry(attempt, what="describe producers", timeout_ms=timeout_ms)

    async def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        wanted = list(partitions)
        await self._client.refresh_metadata({partition.topic for partition in wanted})
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for partition in wanted:
            if self._client.metadata.leader(*partition) is None:
                error = self._client.metadata.problem(*partition)
                if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _final(error, None, f"{partition.topic}-{partition.partition}")
            by_leader[await self._client.leader_of(*partition)].append(partition)
        return by_leader


def _raise_for_topic(error_code: int, name: str) -> None:
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise _final(error_code, None, name)
    raise_for(error_code, None, f"topic {name}")


def _from_metadata(entry: MetadataResponsePartition) -> PartitionDescription:
    """Without eligible leader replicas (KIP-966), of which Metadata tells nothing."""
    return PartitionDescription(
        partition=entry.partition_index,
        leader=entry.leader_id,
        leader_epoch=entry.leader_epoch,
        replicas=tuple(entry.replica_nodes),
        isr=tuple(entry.isr_nodes),
        eligible_leader_replicas=(),
        last_known_eligible_leader_replicas=(),
        offline_replicas=tuple(entry.offline_replicas),
    )


def _described(topic: DescribeTopicPartitionsResponseTopic) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition=entry.partition_index,
            leader=entry.leader_id,
            leader_epoch=entry.leader_epoch,
            replicas=tuple(entry.replica_nodes),
            isr=tuple(entry.isr_nodes),
            eligible_leader_replicas=tuple(entry.eligible_leader_replicas or ()),
            last_known_eligible_leader_replicas=tuple(entry.last_known_elr or ()),
            offline_replicas=tuple(entry.offline_replicas),
        )
        for entry in topic.partitions
    )
    return TopicDescription(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )


def _add_page(found: dict[str, TopicDescription], topic: TopicDescription) -> None:
    """Take over one page of a topic's partitions; a topic may go on over several pages."""
    earlier = found.get(topic.name)
    if earlier is not None:
        if earlier.topic_id != topic.topic_id:
            # Deleted and made again between two pages: begin anew.
            raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, None, f"topic {topic.name}")
        topic = replace(topic, partitions=earlier.partitions + topic.partitions)
    found[topic.name] = topic


def _final(error_code: int, message: str | None, name: str | None) -> KafkaError:
    """An error that is told at once, although its code counts as retriable for producers."""
    return error_for(error_code, message, f"topic {name}", final=True)
