"""The coordinators of a broker over its replica manager: made, given metadata and ended together.

Owns their order, and the way from a coordinator's batch to a partition's log and from the log back.
Must not decide about leadership or commits: the partition does. Invariants: a batch is appended in
the leader epoch that the caller names, or not at all; coordinators learn of an image after the
replica manager; the verifier, which asks coordinators on behalf of partitions, ends first; the
transaction coordinator ends before the group coordinator, whose partitions get its markers. Each
coordinator is given what it needs by name: what a new one needs is added here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.coordinator.expression_matcher import (
    ExpressionMatcher,
    ProcessWorker,
    SliceWorker,
    ThreadWorker,
)
from moldau.broker.coordinator.group.coordinator import GroupCoordinator
from moldau.broker.coordinator.ports import Appended, CoordinatorPartition, Piece, RuntimePorts
from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transaction.marker_writer import write_markers
from moldau.broker.coordinator.transaction.verification import TransactionVerifier
from moldau.broker.replica.partition import ACKS_ALL, ProduceWait
from moldau.protocol.errors import ErrorCode
from moldau.storage.append import AppendOrigin, RecordBatches

if TYPE_CHECKING:
    from random import Random

    from moldau.broker.coordinator.core.result import TransactionEnd
    from moldau.broker.coordinator.other_brokers import OtherBrokers
    from moldau.broker.coordinator.producer_ids import ProducerIds
    from moldau.broker.lifecycle.background import Background
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.config import NodeConfig
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel
    from moldau.storage.append import AppendResult
    from moldau.storage.log import Log


def replica_ports(
    manager: ReplicaManager, background: Background, timers: TimerWheel, registry: Registry
) -> RuntimePorts:
    def partition(topic: str, partition_index: int) -> CoordinatorPartition | None:
        found = manager.get(topic, partition_index)
        return None if found is None else ReplicaPartition(manager, found)

    return RuntimePorts(
        broker_id=manager.broker_id,
        clock=manager.clock,
        timers=timers,
        registry=registry,
        partition=partition,
        soon=lambda function: asyncio.get_running_loop().call_soon(function),
        start=background.start,
    )


@dataclass(slots=True, eq=False)
class ReplicaPartition:
    """`CoordinatorPartition` over a partition of this broker."""

    _manager: ReplicaManager
    _partition: Partition
    _log: Log | None = None
    _wait: ProduceWait | None = None
    _wake: Callable[[], None] | None = None

    @property
    def leader_epoch(self) -> int:
        """See the port. A log that has replaced another one is not the one that was loaded."""
        partition = self._partition
        log = partition.log
        if not partition.core.is_leader or log is None or log.offline:
            return -1
        if self._log is None:
            self._log = log
        return partition.core.leader_epoch if log is self._log else -1

    @property
    def log_start_offset(self) -> int:
        log = self._partition.log
        return 0 if log is None else log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        log = self._partition.log
        return 0 if log is None else log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.core.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        """`max.message.bytes` of the topic, and no more than a segment holds."""
        log = self._partition.log
        assert log is not None, "led"
        return min(log.config.max_message_bytes, log.config.segment_bytes)

    def append(self, batch: bytearray, leader_epoch: int) -> Appended:
        if self.leader_epoch != leader_epoch:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        batches = RecordBatches.read(batch)
        return self._appended(self._partition.append(batches, ACKS_ALL, AppendOrigin.COORDINATOR))

    def append_marker(self, end: TransactionEnd, leader_epoch: int) -> Appended:
        if self.leader_epoch != leader_epoch:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        result = self._partition.append_marker(
            *end.producer,
            end.coordinator_epoch,
            is_commit=end.is_commit,
            transaction_version=end.transaction_version,
        )
        return self._appended(result)

    def _appended(self, result: AppendResult) -> Appended:
        if result.error is not ErrorCode.NONE:
            return Appended(result.error)
        self._manager.complete_soon()
        return Appended(ErrorCode.NONE, result.last_offset + 1)

    async def read(self, start_offset: int, max_bytes: int) -> Piece:
        """See the port. A thread of the pool reads the bytes: such a log is mostly cold."""
        log = self._partition.log
        if log is None:
            return Piece(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offload = log.filesystem.offload
        result = log.read(start_offset, max_bytes=max_bytes)
        while result.verification is not None:
            await offload(result.verification.run)
            result = log.finish_verification(result)
            if result.error is ErrorCode.NONE and isinstance(result.records, bytes):
                result = log.read(start_offset, max_bytes=max_bytes)  # the log was cut: read again
        if result.error is not ErrorCode.NONE:
            return Piece(result.error)
        region = result.records
        if isinstance(region, bytes):
            return Piece(ErrorCode.NONE, region, result.next_offset)
        try:
            records = await offload(region.read)
        except OSError as error:
            log.take_offline(f"read failed: {error}")
            return Piece(ErrorCode.KAFKA_STORAGE_ERROR)
        finally:
            region.release()
        return Piece(ErrorCode.NONE, records, result.next_offset)

    def wake_at(self, required_offset: int, wake: Callable[[], None]) -> None:
        self.forget_wake()
        self._wake = wake
        self._wait = ProduceWait(self, self._partition, required_offset, None)
        if self._partition.wait_for_commit(self._wait) is not None:
            self.commit_decided(self._wait, ErrorCode.NONE)

    def forget_wake(self) -> None:
        if self._wait is not None:
            self._partition.produce_waits.pop(self._wait, None)
            self._wait = None
            self._wake = None

    def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
        """The partition has decided; the callback looks up itself how far it is committed."""
        del error
        wake = self._wake
        if wait is self._wait and wake is not None:
            self._wait = self._wake = None
            wake()


class Coordinators:
    """A metadata publisher.

    Args:
        has_child_processes: whether a child process may match expressions; a simulation has none.
    """

    def __init__(
        self,
        config: NodeConfig,
        ports: RuntimePorts,
        manager: ReplicaManager,
        brokers: OtherBrokers,
        background: Background,
        producer_ids: ProducerIds,
        random: Random,
        has_child_processes: bool = False,
    ) -> None:
        worker: SliceWorker = ThreadWorker(ports.clock, manager.filesystem.offload)
        if has_child_processes:
            worker = ProcessWorker(ports.clock, instead=worker)
        self.brokers = brokers
        self.matcher = ExpressionMatcher(ports.clock, worker)
        self.groups = GroupCoordinator(
            config, ports, image=brokers.image, random=random, matcher=self.matcher
        )
        write = self.write_markers = partial(
            write_markers, manager, self.groups.runtime, brokers.request_timeout_ms
        )
        self.transactions = TransactionCoordinator(
            config,
            ports,
            brokers,
            producer_ids,
            lambda request, done: background.go_on(write(request, done)),
        )
        self.verifier = TransactionVerifier(config, ports, brokers, self.transactions, manager)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.groups.on_metadata_update(delta, image)
        self.transactions.on_metadata_update(delta, image)

    async def close(self) -> None:
        await self.verifier.close()
        await self.transactions.close()
        await self.groups.close()
