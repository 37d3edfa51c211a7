"""Admin calls about partitions: offsets, records and producers at their leaders, and replicas.

A call about single replicas asks each broker once. A broker that does not answer, or not for a
replica, is an error in the outcome and never of the call: the others' answers are useful while a
broker is down.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from moldau.client.admin.calls import (
    OPERATION_TIMEOUT_MS,
    AdminCalls,
    check_several,
    partition_entries,
    problem_of,
    raise_moved,
)
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.errors import (
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    UnsupportedByBroker,
    error_for,
    raise_for,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from moldau.protocol.messages import p21_delete_records as deletion
from moldau.protocol.messages import p34_alter_replica_log_dirs as log_dirs
from moldau.protocol.messages import p35_describe_log_dirs as described_dirs
from moldau.protocol.messages import p43_elect_leaders as elected
from moldau.protocol.messages import p45_alter_partition_reassignments as reassigning
from moldau.protocol.messages import p46_list_partition_reassignments as reassigned
from moldau.protocol.messages import p61_describe_producers as producers
from moldau.protocol.schema import AnyRequest
from moldau.protocol.types import TopicPartition, by_topic
from moldau.runtime.connection import UnsupportedByPeer


class OffsetSpec(IntEnum):
    """The special timestamps of ListOffsets; any other number is a time in ms since 1970."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


class TopicPartitionReplica(NamedTuple):
    """One copy of one partition."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One replica's log on its broker (KIP-113).

    `offset_lag` is how far the log ends below the high watermark that its own broker knows: 0 for a
    follower, however far the leader is ahead. The future directory is where the log is being moved
    to on the same broker, None when it is not moved.
    """

    directory: str
    size_bytes: int
    offset_lag: int
    future_directory: str | None = None
    future_offset_lag: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """An offset with the timestamp (ms) and leader epoch of its record, -1 where not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition remembers of one idempotent or transactional producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers (KIP-455)."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[int, ...]:
        """The replicas before the reassignment, which a cancellation restores."""
        return tuple(each for each in self.replicas if each not in self.adding_replicas)


CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2
"""Asks any replica, not only the leader, and sees up to the log's end. Brokers require no more than
DESCRIBE on the topic for it."""

Value = TypeVar("Value")


class PartitionCalls(AdminCalls):
    """The part of `Admin` that deals with partitions and their replicas."""

    # -- at the leaders ---------------------------------------------------------------------------

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

        def read(
            partition: TopicPartition, entry: offsets.ListOffsetsPartitionResponse
        ) -> PartitionOffset:
            raise_for(entry.error_code, None, str(partition))
            return _offset(entry)

        return await self._ask_leaders(
            specs,
            lambda some: _offsets_request(some, specs, read_committed=read_committed),
            read,
            what="list offsets",
            timeout_ms=timeout_ms,
        )

    async def list_partition_offsets(
        self, specs: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionOffset | KafkaError]:
        """As `list_offsets`, but with an offset or an error for each partition."""
        return await self._try_leaders(
            specs,
            lambda some: _offsets_request(some, specs),
            _offset,
            what="offsets of",
            timeout_ms=timeout_ms,
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset (-1: the high watermark); returns the low watermarks.

        Raises:
            OffsetOutOfRange: the offset lies behind the high watermark.
        """

        def request(some: list[TopicPartition]) -> AnyRequest:
            topics = [
                deletion.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        deletion.DeleteRecordsPartition(
                            partition_index=index, offset=before[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(some).items()
            ]
            return deletion.DeleteRecordsRequest(topics=topics, timeout_ms=OPERATION_TIMEOUT_MS)

        def read(partition: TopicPartition, entry: deletion.DeleteRecordsPartitionResult) -> int:
            raise_for(entry.error_code, None, f"delete records of {partition}")
            return entry.low_watermark

        return await self._ask_leaders(
            before, request, read, what="delete records", timeout_ms=timeout_ms
        )

    async def describe_producers(
        self, partition: TopicPartition, *, timeout_ms: float | None = None
    ) -> list[ProducerState]:
        """The producers that the leader of a partition remembers (KIP-664)."""

        def read(_: TopicPartition, entry: producers.PartitionResponse) -> list[ProducerState]:
            raise_for(entry.error_code, entry.error_message, f"producers of {partition}")
            return _producers(entry)

        found = await self._ask_leaders(
            [partition], _producers_of, read, what="describe producers", timeout_ms=timeout_ms
        )
        return found[partition]

    async def describe_partition_producers(
        self,
        partitions: Collection[TopicPartition],
        *,
        broker_id: int | None = None,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        """The producers that the leaders of partitions remember (KIP-664), or why they are unknown.

        Args:
            broker_id: ask this replica instead of the leaders.
        """
        check_several(partitions)
        return await self._try_leaders(
            partitions,
            _producers_of,
            _producers,
            what="producers of",
            timeout_ms=timeout_ms,
            broker_id=broker_id,
        )

    # -- elections and reassignments --------------------------------------------------------------

    async def elect_leaders(
        self,
        election_type: elected.ElectionType,
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
        request = elected.ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=None
            if partitions is None
            else [
                elected.TopicPartitions(topic=name, partitions=indexes)
                for name, indexes in by_topic(sorted(partitions)).items()
            ],
            timeout_ms=OPERATION_TIMEOUT_MS,
        )
        response = await self._ask_controller(request, "elect leaders", timeout_ms)
        outcome = {}
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                partition = TopicPartition(topic.topic, result.partition_id)
                outcome[partition] = problem_of(result, str(partition))
        return outcome

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
        topics: defaultdict[str, list[reassigning.ReassignablePartition]] = defaultdict(list)
        for (topic, partition), replicas in sorted(reassignments.items()):
            topics[topic].append(
                reassigning.ReassignablePartition(
                    partition_index=partition, replicas=None if replicas is None else list(replicas)
                )
            )
        request = reassigning.AlterPartitionReassignmentsRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                reassigning.ReassignableTopic(name=name, partitions=listed)
                for name, listed in topics.items()
            ],
        )
        what = "reassign partitions"
        response = await self._ask_controller(
            request,
            what,
            timeout_ms,
            check=lambda found: raise_moved(
                (each for _, each in partition_entries(found.responses)), what
            ),
        )
        outcome: dict[TopicPartition, BrokerError | None] = dict.fromkeys(reassignments)
        for name, result in partition_entries(response.responses):
            # Final: others may be on their way already, so that the caller decides.
            outcome[name] = problem_of(result, f"reassign {name}", final=True)
        return outcome

    async def list_partition_reassignments(
        self,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Reassignment]:
        """Moves in progress (KIP-455), of all partitions when none are named."""
        check_several(partitions)
        request = reassigned.ListPartitionReassignmentsRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            topics=None
            if partitions is None
            else [
                reassigned.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in by_topic(sorted(partitions)).items()
            ],
        )

        response = await self._ask_controller(request, "list reassignments", timeout_ms)
        return {
            partition: Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for partition, each in partition_entries(response.topics)
        }

    # -- at single replicas -----------------------------------------------------------------------

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
            topics = [
                described_dirs.DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(wanted).items()
            ]
            response = await self._client.ask_node(
                broker_id,
                described_dirs.DescribeLogDirsRequest(topics=topics),
                timeout_ms=timeout_ms,
            )
            raise_for(response.error_code, None, f"log directories of broker {broker_id}")
            return _replica_logs(response)

        return await self._ask_replicas(replicas, ask)

    async def list_replica_offsets(
        self,
        replicas: Collection[TopicPartitionReplica],
        spec: int = OffsetSpec.LATEST,
        *,
        as_consumer: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartitionReplica, int | KafkaError]:
        """Where each replica's own log ends (LATEST) or begins (EARLIEST), or why it is not known.

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
            request = offsets.ListOffsetsRequest(
                replica_id=CONSUMER_REPLICA_ID if as_consumer else DEBUGGING_REPLICA_ID,
                topics=_offset_topics(wanted, dict.fromkeys(wanted, spec)),
            )
            response = await self._client.ask_node(broker_id, request, timeout_ms=timeout_ms)
            return {
                partition: problem_of(entry, f"{partition} on broker {broker_id}") or entry.offset
                for partition, entry in partition_entries(response.topics)
            }

        return await self._ask_replicas(replicas, ask)

    async def alter_replica_log_dirs(
        self, directories: Mapping[TopicPartitionReplica, str], *, timeout_ms: float | None = None
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
            moved: defaultdict[str, list[TopicPartition]] = defaultdict(list)
            for partition in wanted:
                moved[directories[TopicPartitionReplica(*partition, broker_id)]].append(partition)
            request = log_dirs.AlterReplicaLogDirsRequest(
                dirs=[
                    log_dirs.AlterReplicaLogDir(
                        path=path,
                        topics=[
                            log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                            for topic, indexes in by_topic(partitions).items()
                        ],
                    )
                    for path, partitions in moved.items()
                ]
            )
            response = await self._client.ask_node(broker_id, request, timeout_ms=timeout_ms)
            answered: dict[TopicPartition, bool | KafkaError] = {}
            for topic in response.results:
                for entry in topic.partitions:
                    partition = TopicPartition(topic.topic_name, entry.partition_index)
                    where = f"{partition} on broker {broker_id}"
                    answered[partition] = problem_of(entry, where) or True
            return answered

        return await self._ask_replicas(list(directories), ask)

    async def _ask_replicas(
        self,
        replicas: Collection[TopicPartitionReplica],
        ask: Callable[
            [int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, Value | KafkaError]]
        ],
    ) -> dict[TopicPartitionReplica, Value | KafkaError]:
        by_broker: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic, partition, broker_id in sorted(set(replicas)):
            by_broker[broker_id].append(TopicPartition(topic, partition))
        await self._find_brokers(by_broker)
        outcome: dict[TopicPartitionReplica, Value | KafkaError] = {}

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

    async def _find_brokers(self, broker_ids: Collection[int]) -> None:
        """Fetch the brokers' addresses before all brokers are asked at once."""
        if all(broker_id in self._client.metadata.brokers for broker_id in broker_ids):
            return

        async def attempt() -> None:
            await self._client.refresh_metadata([])

        await self._client.retry(attempt, what="find the brokers", timeout_ms=None)


def _offset_topics(
    partitions: Iterable[TopicPartition], specs: Mapping[TopicPartition, int]
) -> list[offsets.ListOffsetsTopic]:
    return [
        offsets.ListOffsetsTopic(
            name=topic,
            partitions=[
                offsets.ListOffsetsPartition(
                    partition_index=index, timestamp=int(specs[TopicPartition(topic, index)])
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(partitions).items()
    ]


def _offsets_request(
    partitions: Iterable[TopicPartition],
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
) -> offsets.ListOffsetsRequest:
    return offsets.ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=int(read_committed),
        topics=_offset_topics(partitions, specs),
        timeout_ms=OPERATION_TIMEOUT_MS,
    )


def _offset(entry: offsets.ListOffsetsPartitionResponse) -> PartitionOffset:
    return PartitionOffset(entry.offset, entry.timestamp, entry.leader_epoch)


def _producers_of(partitions: Iterable[TopicPartition]) -> producers.DescribeProducersRequest:
    return producers.DescribeProducersRequest(
        topics=[
            producers.TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(partitions).items()
        ]
    )


def _producers(entry: producers.PartitionResponse) -> list[ProducerState]:
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


def _replica_logs(
    response: described_dirs.DescribeLogDirsResponse,
) -> dict[TopicPartition, ReplicaLog]:
    """Logs by partition; for one that moves between directories with its future directory."""
    current: dict[TopicPartition, tuple[str, int, int]] = {}
    future: dict[TopicPartition, tuple[str, int]] = {}
    for directory in response.results:
        if directory.error_code != ErrorCode.NONE:
            continue
        for partition, each in partition_entries(directory.topics):
            if each.is_future_key:
                future[partition] = (directory.log_dir, each.offset_lag)
            else:
                current[partition] = (directory.log_dir, each.partition_size, each.offset_lag)
    return {
        partition: ReplicaLog(*log, *future.get(partition, (None, None)))
        for partition, log in current.items()
    }
