"""The replication of one broker: replica fetchers, ISR checks, directory assignments.

Owns the parts and what each metadata change means for them. Must not make or drop partitions (the
replica manager does), nor decide who is in sync (`core.partition_core` does). Invariants: a
partition is followed exactly while its metadata names another leader and its log can be used; each
led partition is checked for lagging followers every half `replica.lag.time.max.ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.replica.context import ReplicationContext
from moldau.broker.replica.controller_reports import AlterPartitionSender, DirectoryAssignments
from moldau.broker.replica.replica_fetcher import FetcherManager, FetcherSettings, FetcherShare
from moldau.broker.replica.replica_selector import ReadReplicas
from moldau.broker.replica.throttle import ReplicationThrottles
from moldau.broker.replica.topic_stats import METRIC_PREFIX as TOPIC_METRIC_PREFIX
from moldau.metadata.image.values import LOST_DIRECTORY, NO_LEADER

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.lifecycle.controller_channel import ControllerChannel
    from moldau.broker.replica.deferred_appends import StartWork
    from moldau.broker.replica.partition import Partition
    from moldau.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration
    from moldau.runtime.clock import Clock
    from moldau.runtime.connector import Connector
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel
    from moldau.storage.log_config import ConfigValues
    from moldau.storage.log_manager import LogManager

CHECKS_PER_TURN: Final = 500
"""Partitions checked before the loop serves other tasks again."""


class ReplicationPorts(NamedTuple):
    """What replication needs beyond this broker.

    `broker_epoch` is -1 before registration; `is_confirmed` is BrokerLifecycle's; `listener_name`
    is `inter.broker.listener.name`, by which other brokers' addresses are found, and
    `connector` opens connections to them.
    """

    controller: ControllerChannel
    broker_epoch: Callable[[], int]
    is_confirmed: Callable[[], bool]
    listener_name: str
    connector: Connector


class Replication:
    """Made with the replica manager → `apply_metadata`, repeatedly → `close`.

    Args:
        partitions: all of this broker.
        start: runs work that takes turns with the loop's own.
        on_changed: called after a controller's or a leader's answers may have changed partitions.
        on_fault: called with an unexpected exception.
    """

    def __init__(
        self,
        ports: ReplicationPorts,
        *,
        broker_id: int,
        node_values: ConfigValues,
        log_manager: LogManager,
        clock: Clock,
        timers: TimerWheel,
        registry: Registry,
        partitions: Callable[[], Iterator[Partition]],
        image: Callable[[], MetadataImage],
        start: StartWork,
        on_changed: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._listener_name = ports.listener_name
        self._log_manager = log_manager
        self._timers = timers
        self._partitions = partitions
        self._image = image
        self._start = start
        self._is_closed = False
        self.isr_changes = AlterPartitionSender(
            ports.controller,
            broker_id=broker_id,
            broker_epoch=ports.broker_epoch,
            on_answered=on_changed,
            on_fault=on_fault,
        )
        self.directories = DirectoryAssignments(
            ports.controller,
            broker_id=broker_id,
            broker_epoch=ports.broker_epoch,
            on_fault=on_fault,
        )
        self.context = ReplicationContext(
            max_lag_ms=node_values["replica.lag.time.max.ms"],
            clock=clock,
            broker_epoch=ports.broker_epoch,
            image=image,
            registry=registry,
        )
        self.bytes_out = registry.meter(TOPIC_METRIC_PREFIX + "ReplicationBytesOutPerSec")
        self.throttles = ReplicationThrottles(
            broker_id=broker_id, node_values=node_values, clock=clock, registry=registry
        )
        self.read_replicas = ReadReplicas(node_values["replica.selector.class"], image)
        self.fetchers = FetcherManager(
            FetcherShare(
                broker_id,
                ports.broker_epoch,
                ports.connector,
                clock,
                FetcherSettings.from_config(node_values),
                self.throttles.follower,
                on_changed,
            ),
            registry,
            on_fault,
        )
        self._check_interval_ms = self.context.max_lag_ms / 2
        self._next_check = timers.call_later(self._check_interval_ms, self._begin_check)

    def partition_changed(self, partition: Partition, registration: PartitionRegistration) -> None:
        """The metadata says something new about the partition, or its log was opened or failed."""
        leader_id = registration.leader
        if leader_id in (NO_LEADER, self._broker_id) or partition.is_offline:
            self.fetchers.unfollow(partition)
        else:
            self.fetchers.follow(partition, leader_id, self._address(leader_id))
        self._tell_directory(partition, registration)

    def _address(self, broker_id: int) -> tuple[str, int] | None:
        """Where other brokers reach the given one; None while that is unknown."""
        registration = self._image().cluster.brokers.get(broker_id)
        endpoint = registration and registration.listeners.get(self._listener_name)
        return (endpoint.host, endpoint.port) if endpoint else None

    def partition_gone(self, partition: Partition) -> None:
        self.fetchers.unfollow(partition)
        self.directories.settled(partition.topic_id, partition.topic_partition.partition)

    def apply_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take over what `delta` says about brokers and throttles, after the partitions had it."""
        self.throttles.on_metadata_update(delta, image)
        changed = delta.cluster_delta.changed_brokers
        if not changed:
            return
        self.context.brokers_left(image)
        is_own = self._broker_id in changed
        for partition in self._partitions():
            core = partition.core
            if is_own or core.leader_id in changed:
                registration = image.topics.partition(
                    partition.topic_id, partition.topic_partition.partition
                )
                if registration is not None:
                    self.partition_changed(partition, registration)
            if partition.is_leader and len(core.replicas) > 1:
                # A follower that was not eligible at its last fetch may be eligible now.
                partition.check_isr()

    def _tell_directory(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Correct the metadata when it names another directory than the replica's."""
        topic_id, index = partition.topic_id, partition.topic_partition.partition
        directory = self._log_manager.directory_of(partition.topic_partition)
        if directory is None or not directory.is_online or partition.is_offline:
            return
        if registration.directory(self._broker_id) == directory.directory_id:
            self.directories.settled(topic_id, index)
        elif directory.directory_id in self._own_directories():
            self.directories.assign(topic_id, index, directory.directory_id)

    def tell_lost(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Report a damaged log, so that the controller takes the replica out of the ISR and begins
        a leader epoch. While the metadata has the report of earlier damage, the directory of the
        log that began then may be on its way: once the metadata has that, this damage is reported.
        """
        topic_id, index = partition.topic_id, partition.topic_partition.partition
        if registration.directory(self._broker_id) == LOST_DIRECTORY:
            self.directories.settled(topic_id, index, only=LOST_DIRECTORY)
        elif self._own_directories():
            self.directories.assign(topic_id, index, LOST_DIRECTORY)

    def may_be_replaced(self, registration: PartitionRegistration) -> bool:
        """Whether another broker leads and the replica here is neither in sync nor eligible."""
        own_id = self._broker_id
        return (
            registration.leader not in (NO_LEADER, own_id)
            and own_id not in registration.isr
            and own_id not in registration.elr
        )

    def _own_directories(self) -> tuple[UUID, ...]:
        """This broker's registered directories; none where metadata.version knows none."""
        registration = self._image().cluster.brokers.get(self._broker_id)
        return () if registration is None else registration.directories

    def _begin_check(self) -> None:
        if not self._is_closed:
            self._start(self._check())

    async def _check(self) -> None:
        """Check all partitions led here for followers that lag; again after half the limit."""
        try:
            for number, partition in enumerate(self._partitions(), start=1):
                if partition.is_leader and len(partition.core.replicas) > 1:
                    partition.check_isr()
                if number % CHECKS_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            if not self._is_closed:
                self._next_check = self._timers.call_later(
                    self._check_interval_ms, self._begin_check
                )

    async def close(self) -> None:
        """Stop fetching, proposing and reporting; idempotent."""
        self._is_closed = True
        self._next_check.cancel()
        await self.fetchers.close()
        await self.isr_changes.close()
        await self.directories.close()
