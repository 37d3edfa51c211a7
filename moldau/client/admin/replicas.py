"""Admin calls about where replicas live and who leads.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import ElectionType, Reassignment
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import BrokerError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.types import TopicPartition

OPERATION_TIMEOUT_MS = 30_000


class ReplicaCalls:
    """The part of `Admin` that deals with replicas."""

    _client: ClusterClient

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elect leaders (KIP-460); the outcome by partition, None for success.

        A leader that is the preferred one already is an ELECTION_NOT_NEEDED error in the outcome.

        Args:
            partitions: None for all; then only those that needed an election are in the answer.
        """
        check_several(partitions)
        by_topic = None if partitions is None else _by_topic(partitions)
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=None
            if by_topic is None
            else [TopicPartitions(topic=name, partitions=ids) for name, ids in by_topic.items()],
            timeout_ms=OPERATION_TIMEOUT_MS,
        )

        async def attempt() -> dict[TopicPartition, BrokerError | None]:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, None, "elect leaders")
            outcome: dict[TopicPartition, BrokerError | None] = {}
            for topic in response.replica_election_results:
                for result in topic.partition_result:
                    partition = TopicPartition(topic.topic, result.partition_id)
                    outcome[partition] = (
                        None
                        if result.error_code == ErrorCode.NONE
                        else error_for(result.error_code, result.error_message, str(partition))
                    )
            return outcome

        return await self._client.retry(attempt, what="elect leaders", timeout_ms=timeout_ms)

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: float | None = None,
    ) -> None:
        """Move partitions to other brokers, or cancel a move with None (KIP-455).

        Raises:
            BrokerError: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, … of the first
                partition that could not be moved; the others may have been.
        """
        outcome = await self.try_partition_reassignments(
            reassignments,
            allow_replication_factor_change=allow_replication_factor_change,
            timeout_ms=timeout_ms,
        )
        for error in outcome.values():
            if error is not None:
                raise error

    async def try_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, BrokerError | None]:
        """As `alter_partition_reassignments`, but each partition's own outcome; None for success.

        Args:
            allow_replication_factor_change: False refuses another number of replicas (KIP-860);
                brokers before Kafka 4.1 cannot be asked for that.

        Raises:
            KafkaError: of the whole request, for instance UnsupportedByBroker.
        """
        topics: defaultdict[str, list[ReassignablePartition]] = defaultdict(list)
        for (topic, partition), replicas in sorted(reassignments.items()):
            topics[topic].append(
                ReassignablePartition(
                    partition_index=partition, replicas=None if replicas is None else list(replicas)
                )
            )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                ReassignableTopic(name=name, partitions=listed) for name, listed in topics.items()
            ],
        )

        async def attempt() -> dict[TopicPartition, BrokerError | None]:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, "reassign partitions")
            outcome: dict[TopicPartition, BrokerError | None] = dict.fromkeys(reassignments)
            for topic in response.responses:
                for result in topic.partitions:
                    what = f"reassign {topic.name}-{result.partition_index}"
                    if result.error_code == ErrorCode.NOT_CONTROLLER:
                        raise_for(result.error_code, result.error_message, what)
                    if result.error_code != ErrorCode.NONE:
                        # Others may be on their way already: this is for the caller to decide.
                        outcome[TopicPartition(topic.name, result.partition_index)] = error_for(
                            result.error_code, result.error_message, what, final=True
                        )
            return outcome

        return await self._client.retry(attempt, what="reassign partitions", timeout_ms=timeout_ms)

    async def list_partition_reassignments(
        self,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Reassignment]:
        """Moves in progress (KIP-455), of all partitions when none are named."""
        check_several(partitions)
        by_topic = None if partitions is None else _by_topic(partitions)
        request = ListPartitionReassignmentsRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            topics=None
            if by_topic is None
            else [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=ids)
                for name, ids in by_topic.items()
            ],
        )

        async def attempt() -> dict[TopicPartition, Reassignment]:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, "list reassignments")
            return {
                TopicPartition(topic.name, each.partition_index): Reassignment(
                    tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
                )
                for topic in response.topics
                for each in topic.partitions
            }

        return await self._client.retry(attempt, what="list reassignments", timeout_ms=timeout_ms)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return dict(topics)
