"""Admin calls that ask the leaders of many partitions, each for its own.

Owns the loop that follows leaders as they move. Invariant: every partition ends with exactly one
value or one error, whatever became of the others; a partition that does not exist or has no leader
is told at once, not after the whole time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import PartitionOffset, ProducerState
from moldau.client.cluster.cluster_client import PASSING_FAULTS, ClusterClient, describe_fault
from moldau.client.cluster.coordinators import Refusal
from moldau.client.errors import KafkaError, NoBrokerAvailable, UnsupportedByBroker, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from moldau.protocol.messages import p61_describe_producers as producers
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

Value = TypeVar("Value")
Answers = Mapping[TopicPartition, Value | Refusal]
Outcome = dict[TopicPartition, Value | KafkaError]

PARTITIONS_PER_REQUEST: Final = 500
"""A partition may have thousands of producers: so many partitions at most in one answer."""

CONSUMER_REPLICA_ID: Final = -1
OPERATION_TIMEOUT_MS: Final = 30_000

MOVED: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)
"""Answers of a broker that does not lead a partition (yet, or any more)."""


class PartitionCalls:
    """The part of `Admin` that asks the leaders of partitions."""

    _client: ClusterClient

    async def list_partition_offsets(
        self, specs: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionOffset | KafkaError]:
        """As `list_offsets`, but an error of a partition stands beside the others' offsets."""

        async def ask(broker_id: int, wanted: list[TopicPartition]) -> Answers[PartitionOffset]:
            topics: dict[str, offsets.ListOffsetsTopic] = {}
            for partition in wanted:
                topics.setdefault(
                    partition.topic, offsets.ListOffsetsTopic(name=partition.topic)
                ).partitions.append(
                    offsets.ListOffsetsPartition(
                        partition_index=partition.partition, timestamp=int(specs[partition])
                    )
                )
            response = await self._client.ask_node(
                broker_id,
                offsets.ListOffsetsRequest(
                    replica_id=CONSUMER_REPLICA_ID,
                    topics=list(topics.values()),
                    timeout_ms=OPERATION_TIMEOUT_MS,
                ),
            )
            return {
                TopicPartition(topic.name, entry.partition_index): PartitionOffset(
                    entry.offset, entry.timestamp, entry.leader_epoch
                )
                if entry.error_code == ErrorCode.NONE
                else Refusal(entry.error_code)
                for topic in response.topics
                for entry in topic.partitions
            }

        return await self._ask_leaders(specs, ask, what="offsets of", timeout_ms=timeout_ms)

    async def describe_partition_producers(
        self,
        partitions: Collection[TopicPartition],
        *,
        broker_id: int | None = None,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        """What leaders remember of the producers of partitions (KIP-664), or why nobody tells.

        Args:
            broker_id: ask this replica instead of the leaders.
        """
        check_several(partitions)

        async def ask(node_id: int, wanted: list[TopicPartition]) -> Answers[list[ProducerState]]:
            topics: dict[str, producers.TopicRequest] = {}
            for topic, index in wanted:
                topics.setdefault(
                    topic, producers.TopicRequest(name=topic)
                ).partition_indexes.append(index)
            response = await self._client.ask_node(
                node_id, producers.DescribeProducersRequest(topics=list(topics.values()))
            )
            return {
                TopicPartition(topic.name, entry.partition_index): [
                    _producer(each) for each in entry.active_producers
                ]
                if entry.error_code == ErrorCode.NONE
                else Refusal(entry.error_code, entry.error_message)
                for topic in response.topics
                for entry in topic.partitions
            }

        return await self._ask_leaders(
            partitions, ask, what="producers of", timeout_ms=timeout_ms, broker_id=broker_id
        )

    async def _ask_leaders(
        self,
        partitions: Collection[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Answers[Value]]],
        *,
        what: str,
        timeout_ms: float | None,
        broker_id: int | None = None,
    ) -> Outcome[Value]:
        outcome: Outcome[Value] = {}
        passing: dict[TopicPartition, KafkaError] = {}

        async def ask_one(node_id: int, some: list[TopicPartition]) -> None:
            try:
                answers = await ask(node_id, some)
            except UnsupportedByPeer as error:
                unserved = UnsupportedByBroker(f"broker {node_id}: {error}")
                outcome.update(dict.fromkeys(some, unserved))
                return
            except PASSING_FAULTS as fault:
                problem = NoBrokerAvailable(f"broker {node_id}: {describe_fault(fault)}")
                passing.update(dict.fromkeys(some, problem))
                return
            for partition in some:
                answer = answers.get(partition, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR))
                if not isinstance(answer, Refusal):
                    outcome[partition] = answer
                    continue
                is_passing = ErrorCode.of(answer.error_code) in MOVED
                (passing if is_passing else outcome)[partition] = error_for(
                    answer.error_code,
                    answer.message,
                    f"{what} {partition} on broker {node_id}",
                    final=not is_passing,
                )

        async def attempt() -> None:
            left = [partition for partition in partitions if partition not in outcome]
            passing.clear()
            groups = await self._leaders(left, outcome) if broker_id is None else {broker_id: left}
            await asyncio.gather(
                *(
                    ask_one(node_id, group[first : first + PARTITIONS_PER_REQUEST])
                    for node_id, group in groups.items()
                    for first in range(0, len(group), PARTITIONS_PER_REQUEST)
                )
            )
            if passing:
                raise next(iter(passing.values()))

        try:
            await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)
        except KafkaError as error:
            for partition in partitions:
                if partition not in outcome:
                    outcome[partition] = passing.get(partition, error)
        return {partition: outcome[partition] for partition in partitions}

    async def _leaders(
        self, partitions: Collection[TopicPartition], outcome: Outcome[Value]
    ) -> dict[int, list[TopicPartition]]:
        """By leader; why the others have none goes into the outcome."""
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        if partitions:
            await self._client.refresh_metadata({partition.topic for partition in partitions})
        metadata = self._client.metadata
        for partition in partitions:
            leader_id = metadata.leader(*partition)
            if leader_id is not None:
                by_leader[leader_id].append(partition)
                continue
            problem = metadata.problem(*partition)
            outcome[partition] = error_for(problem, None, str(partition), final=True)
        return by_leader


def _producer(state: producers.ProducerState) -> ProducerState:
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
    )
