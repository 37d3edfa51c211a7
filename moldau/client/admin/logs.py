"""Admin calls about the logs of single replicas: where each lies, how big it is, where it ends.

Owns the translation between typed values and messages. Invariant: every broker is asked once, and
one that does not answer, or not for a replica, is an error in the outcome, never of the call: the
others' figures are worth having while a broker is down.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import OffsetSpec, ReplicaLog, TopicPartitionReplica
from moldau.client.cluster.cluster_client import (
    PASSING_FAULTS,
    ClusterClient,
    describe_fault,
    raise_for,
)
from moldau.client.errors import (
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    UnsupportedByBroker,
    error_for,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.p35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

#: The replica id that asks any replica, not only the leader, and sees up to the log's end. Brokers
#: want no more than DESCRIBE on the topic for it.
DEBUGGING_REPLICA_ID = -2
CONSUMER_REPLICA_ID = -1

Value = TypeVar("Value")
Outcome = dict[TopicPartitionReplica, Value | KafkaError]


class LogCalls:
    """The part of `Admin` that deals with the logs of single replicas."""

    _client: ClusterClient

    async def describe_replica_logs(
        self, replicas: Collection[TopicPartitionReplica], *, timeout_ms: float | None = None
    ) -> dict[TopicPartitionReplica, ReplicaLog | KafkaError]:
        """Directory and size of each replica's log (KIP-113), or why it is not known.

        Args:
            timeout_ms: for each broker; None for `request.timeout.ms`.
        """
        check_several(replicas)

        async def ask(
            broker_id: int, wanted: list[TopicPartition]
        ) -> Mapping[TopicPartition, ReplicaLog]:
            topics: dict[str, DescribableLogDirTopic] = {}
            for topic, index in wanted:
                asked = topics.setdefault(topic, DescribableLogDirTopic(topic=topic))
                asked.partitions.append(index)
            response = await self._client.ask_node(
                broker_id,
                DescribeLogDirsRequest(topics=list(topics.values())),
                timeout_ms=timeout_ms,
            )
            raise_for(response.error_code, None, f"log directories of broker {broker_id}")
            return _replica_logs(response)

        return await self._ask_brokers(replicas, ask)

    async def list_replica_offsets(
        self,
        replicas: Collection[TopicPartitionReplica],
        spec: int = OffsetSpec.LATEST,
        *,
        as_consumer: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartitionReplica, int | KafkaError]:
        """Where each replica's own log ends (LATEST) or begins (EARLIEST), or why nobody knows.

        Unlike with `list_offsets` followers answer too, and latest is the end of the log, not the
        high watermark.

        Args:
            as_consumer: ask as consumers do: only leaders answer, latest is the high watermark.
            timeout_ms: for each broker; None for `request.timeout.ms`.
        """
        check_several(replicas)

        async def ask(
            broker_id: int, wanted: list[TopicPartition]
        ) -> Mapping[TopicPartition, int | KafkaError]:
            topics: dict[str, ListOffsetsTopic] = {}
            for topic, index in wanted:
                asked = topics.setdefault(topic, ListOffsetsTopic(name=topic))
                asked.partitions.append(
                    ListOffsetsPartition(partition_index=index, timestamp=int(spec))
                )
            request = ListOffsetsRequest(
                replica_id=CONSUMER_REPLICA_ID if as_consumer else DEBUGGING_REPLICA_ID,
                topics=list(topics.values()),
            )
            response = await self._client.ask_node(broker_id, request, timeout_ms=timeout_ms)
            return {
                TopicPartition(topic.name, entry.partition_index): entry.offset
                if entry.error_code == ErrorCode.NONE
                else error_for(
                    entry.error_code,
                    None,
                    f"{topic.name}-{entry.partition_index} on broker {broker_id}",
                )
                for topic in response.topics
                for entry in topic.partitions
            }

        return await self._ask_brokers(replicas, ask)

    async def alter_replica_log_dirs(
        self,
        directories: Mapping[TopicPartitionReplica, str],
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartitionReplica, bool | KafkaError]:
        """Move replicas to other log directories of their brokers (KIP-113).

        Args:
            directories: the absolute path by replica; the broker's log.dirs has to name it.

        Returns for each replica True or why not: LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE for one
        that the broker does not hold (it will be made in that directory), …
        """

        async def ask(
            broker_id: int, wanted: list[TopicPartition]
        ) -> Mapping[TopicPartition, bool | KafkaError]:
            paths: dict[str, AlterReplicaLogDir] = {}
            for topic, index in wanted:
                path = directories[TopicPartitionReplica(topic, index, broker_id)]
                moved = paths.setdefault(path, AlterReplicaLogDir(path=path))
                named = next((each for each in moved.topics if each.name == topic), None)
                if named is None:
                    named = AlterReplicaLogDirTopic(name=topic)
                    moved.topics.append(named)
                named.partitions.append(index)
            request = AlterReplicaLogDirsRequest(dirs=list(paths.values()))
            response = await self._client.ask_node(broker_id, request, timeout_ms=timeout_ms)
            return {
                TopicPartition(topic.topic_name, entry.partition_index): True
                if entry.error_code == ErrorCode.NONE
                else error_for(
                    entry.error_code,
                    None,
                    f"{topic.topic_name}-{entry.partition_index} on broker {broker_id}",
                )
                for topic in response.results
                for entry in topic.partitions
            }

        return await self._ask_brokers(list(directories), ask)

    async def _ask_brokers(
        self,
        replicas: Collection[TopicPartitionReplica],
        ask: Callable[
            [int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, Value | KafkaError]]
        ],
    ) -> Outcome[Value]:
        by_broker: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic, partition, broker_id in sorted(set(replicas)):
            by_broker[broker_id].append(TopicPartition(topic, partition))
        await self._know_brokers(by_broker)
        outcome: Outcome[Value] = {}

        async def ask_one(broker_id: int, wanted: list[TopicPartition]) -> None:
            found: Mapping[TopicPartition, Value | KafkaError] = {}
            problem: KafkaError | None = None
            try:
                found = await ask(broker_id, wanted)
            except KafkaError as error:
                problem = error
            except UnsupportedByPeer as error:
                problem = UnsupportedByBroker(f"broker {broker_id}: {error}")
            except TimeoutError as fault:
                problem = RequestTimeout(f"broker {broker_id}: {describe_fault(fault)}")
            except PASSING_FAULTS as fault:
                problem = NoBrokerAvailable(f"broker {broker_id}: {describe_fault(fault)}")
            for partition in wanted:
                absent = problem or error_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, f"{partition} on broker {broker_id}"
                )
                outcome[TopicPartitionReplica(*partition, broker_id)] = found.get(partition, absent)

        await asyncio.gather(*(ask_one(*group) for group in by_broker.items()))
        return outcome

    async def _know_brokers(self, broker_ids: Collection[int]) -> None:
        """Learn the brokers' addresses before they are asked all at once."""
        if all(broker_id in self._client.metadata.brokers for broker_id in broker_ids):
            return

        async def attempt() -> None:
            await self._client.refresh_metadata([])

        await self._client.retry(attempt, what="find the brokers", timeout_ms=None)


def _replica_logs(response: DescribeLogDirsResponse) -> dict[TopicPartition, ReplicaLog]:
    """By partition; while one moves between directories, the one it will be in is told apart."""
    current: dict[TopicPartition, tuple[str, int, int]] = {}
    future: dict[TopicPartition, tuple[str, int]] = {}
    for directory in response.results:
        if directory.error_code != ErrorCode.NONE:
            continue
        for topic in directory.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.is_future_key:
                    future[partition] = (directory.log_dir, each.offset_lag)
                else:
                    current[partition] = (directory.log_dir, each.partition_size, each.offset_lag)
    return {
        partition: ReplicaLog(*told, *future.get(partition, (None, None)))
        for partition, told in current.items()
    }
