"""All partitions of this broker: found by name or id, made, changed and dropped as metadata says.

Owns the table of partitions, the purgatories, the fetches that are ready to answer, and the error
for a partition that is not here. Must not decode requests or build responses, or talk to other
brokers (`replication` does). Invariants: a partition is in the table exactly while the image
assigns a replica of it to this broker; requests that became ready are completed before the public
call that made them ready returns to the loop, or after an append at the loop's next turn; the
settings of a topic are those of the newest image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from moldau.broker.replica.context import METRIC_PREFIX
from moldau.broker.replica.core.in_sync_set import PartitionState
from moldau.broker.replica.log_opener import LogOpener
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.purgatory import Purgatory
from moldau.broker.replica.replication import Replication, ReplicationPorts
from moldau.broker.replica.topic_stats import BrokerTopicStats
from moldau.config import effective_broker_config, effective_topic_config
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.configs import ConfigResource, ConfigResourceType
from moldau.metadata.image.values import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.log_config import ConfigValues, LogConfig

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.metadata.image import MetadataDelta, PartitionRegistration
    from moldau.protocol.access_control import Operation
    from moldau.runtime.clock import Clock
    from moldau.runtime.filesystem import Filesystem
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel
    from moldau.server.request import RequestContext
    from moldau.storage.log import Log
    from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

NO_PARTITIONS: Final[Mapping[int, Partition]] = {}
PURGATORY_PREFIX: Final = "kafka.server:type=DelayedOperationPurgatory,name="
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
"""The time of a coordinator, beyond the longest timeout, to abort what timed out (KIP-664)."""


class ReadyFetch(Protocol):
    """A waiting fetch for which something has changed."""

    def complete_if_ready(self) -> None:
        """Look again, and answer if there is enough now."""


class LeaderHint(NamedTuple):
    """The leader of a partition as this broker knows it; both are -1 when it does not."""

    leader_id: int
    leader_epoch: int


class LedPartition(NamedTuple):
    """A partition this broker leads, with its log."""

    partition: Partition
    log: Log


class TopicSettings:
    """The effective settings of topics: topic, broker and cluster level over the node's own."""

    def __init__(self, broker_id: int, node_values: ConfigValues) -> None:
        self._broker_resources = (
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.BROKER, str(broker_id)),
        )
        self._static_values = node_values
        self._broker_values = node_values
        self._image = MetadataImage.EMPTY

    def _values(self, topic: str) -> ConfigValues:
        overrides = self._image.configs.get(ConfigResourceType.TOPIC, topic)
        return effective_topic_config(self._broker_values, overrides)

    def log_config(self, topic: str) -> LogConfig:
        return LogConfig.from_config(self._values(topic))

    def min_insync_replicas(self, topic: str) -> int:
        return int(self._values(topic)["min.insync.replicas"])

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> tuple[set[str], bool]:
        """Take over the new image. Returns the topics whose own settings changed, and whether a
        broker default has, which may change any topic.
        """
        self._image = image
        changes = delta.configs_delta.changes
        topics = {each.name for each in changes if each.resource_type == ConfigResourceType.TOPIC}
        is_default_changed = any(each in changes for each in self._broker_resources)
        if is_default_changed:
            defaults, own = (image.configs.get(*each) for each in self._broker_resources)
            self._broker_values = effective_broker_config(self._static_values, defaults, own)
        return topics, is_default_changed


class ReplicaManager:
    """The broker's replicas. Belongs to the data loop.

    `node_values` is the node's static configuration.
    `on_fault` is called with an unexpected exception in work off the loop.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        node_values: ConfigValues,
        log_manager: LogManager,
        clock: Clock,
        filesystem: Filesystem,
        timers: TimerWheel,
        registry: Registry,
        ports: ReplicationPorts,
        on_fault: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.filesystem = filesystem
        self.image = MetadataImage.EMPTY
        self.is_confirmed = ports.is_confirmed
        self._on_fault = on_fault
        self.topic_stats = BrokerTopicStats(registry)
        self.produce_purgatory = Purgatory("Produce", timers)
        self.fetch_purgatory = Purgatory("Fetch", timers)
        self.delete_records_purgatory = Purgatory("DeleteRecords", timers)
        self._log_manager = log_manager
        self._settings = TopicSettings(broker_id, node_values)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_topic_id: dict[UUID, dict[int, Partition]] = {}
        self._ready: list[ReadyFetch] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_completing = False
        self._is_completion_due = False
        self._is_first_change = True
        self._opener = LogOpener(
            log_manager,
            log_config=self._settings.log_config,
            timers=timers,
            start_work=self.start,
            on_opened=self._log_opened,
        )
        self.replication = Replication(
            ports,
            broker_id=broker_id,
            node_values=node_values,
            log_manager=log_manager,
            clock=clock,
            timers=timers,
            registry=registry,
            partitions=self.partitions,
            image=lambda: self.image,
            start=self.start,
            on_changed=self.complete_ready,
            on_fault=self._fault,
        )
        log_manager.on_log_offline = self._log_went_offline
        self._register_gauges(registry, node_values["transaction.max.timeout.ms"])

    def _register_gauges(self, registry: Registry, max_transaction_ms: int) -> None:
        late_ms = max_transaction_ms + LATE_TRANSACTION_BUFFER_MS

        def gauge(name: str, is_counted: Callable[[Partition], bool]) -> None:
            registry.gauge(
                METRIC_PREFIX + name, lambda: float(sum(map(is_counted, self.partitions())))
            )

        gauge("PartitionCount", lambda each: True)
        gauge("LeaderCount", lambda each: each.is_leader)
        gauge("OfflineReplicaCount", lambda each: each.is_offline)
        gauge("UnderReplicatedPartitions", lambda each: each.core.is_under_replicated)
        gauge("UnderMinIsrPartitionCount", lambda each: each.is_under_min_isr)
        gauge("AtMinIsrPartitionCount", lambda each: each.is_at_min_isr)
        gauge(
            "PartitionsWithLateTransactionsCount", lambda each: each.has_late_transaction(late_ms)
        )
        gauge("ReassigningPartitions", lambda each: each.is_reassigning)
        for purgatory in (
            self.produce_purgatory,
            self.fetch_purgatory,
            self.delete_records_purgatory,
        ):
            registry.gauge(
                PURGATORY_PREFIX + "PurgatorySize",
                purgatory.size,
                delayedOperation=purgatory.name,
            )

    # -- lookup ----------------------------------------------------------------------------------

    def get(self, topic: str, partition_index: int) -> Partition | None:
        return self._partitions.get((topic, partition_index))

    def topic_by_id(self, topic_id: UUID) -> Mapping[int, Partition]:
        return self._by_topic_id.get(topic_id, NO_PARTITIONS)

    def partitions(self) -> Iterator[Partition]:
        yield from list(self._partitions.values())

    def missing_error(self, topic: str, partition_index: int) -> ErrorCode:
        """The error for a partition that `get` does not find."""
        known = self.image.topics.topics_by_name.get(topic)
        if known is None or partition_index not in known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.broker_id in known.partitions[partition_index].replicas:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def topic_name(self, topic_id: UUID) -> str | None:
        known = self.image.topics.topics_by_id.get(topic_id)
        return None if known is None else known.name

    def leader_hint(self, topic: str, partition_index: int) -> LeaderHint:
        """The present leader, for clients that asked the wrong broker (KIP-951)."""
        partition = self._partitions.get((topic, partition_index))
        if partition is not None and not partition.is_deleted:
            return LeaderHint(partition.core.leader_id, partition.core.leader_epoch)
        known = self.image.topics.topics_by_name.get(topic)
        registration = None if known is None else known.partitions.get(partition_index)
        if registration is None:
            return LeaderHint(-1, -1)
        return LeaderHint(registration.leader, registration.leader_epoch)

    # -- metadata --------------------------------------------------------------------------------

    def has_every_directory(self, image: MetadataImage) -> bool:
        """Whether the start has read every log directory that this broker had, by its last stop and
        by the registration in `image`, the one before this start's. If not, a replica that may have
        been in a missing directory is offline from now on, also after a kill: the next registration
        will not name that directory.
        """
        found, broker_id = self._log_manager.found, self.broker_id
        registration = image.cluster.brokers.get(broker_id)
        if found.has_all(() if registration is None else registration.directories):
            return True
        found.note_missing(
            (TopicPartition(topic.name, index), topic.topic_id)
            for topic in image.topics.topics_by_id.values()
            for index, partition in topic.partitions.items()
            if broker_id in partition.replicas
            and partition.directory(broker_id) in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
            and not self.replication.may_be_replaced(partition)
        )
        return False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make, change and drop partitions as `delta` says; `image` is what it leads to."""
        self.image = image
        self._opener.begin_change()
        changes = delta.topics_delta.local_changes(self.broker_id)
        for topic_partition, topic_id in changes.deleted.items():
            self._drop(topic_partition, topic_id)
        self._apply_configs(delta, image)
        min_insync: dict[str, int] = {}
        for assigned in (changes.leaders, changes.followers):
            for topic_partition, (topic_id, registration) in assigned.items():
                topic = topic_partition.topic
                if topic not in min_insync:
                    min_insync[topic] = self._settings.min_insync_replicas(topic)
                self._assign(topic_partition, topic_id, registration, min_insync[topic])
        if self._is_first_change:
            self._is_first_change = False
            self._log_manager.found.replicas_known()
        self.replication.apply_metadata(delta, image)
        self.complete_ready()

    def _assign(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        registration: PartitionRegistration,
        min_insync_replicas: int,
    ) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.topic_id != topic_id:
            self._drop(topic_partition, partition.topic_id)
            partition = None
        if partition is None:
            partition = self._make_partition(topic_partition, topic_id)
            if not self._is_first_change:
                self._opener.is_new(partition)
        if partition.log is None and not partition.is_opening:
            self._open_log(partition, registration)
        partition.min_insync_replicas = min_insync_replicas
        partition.apply_state(
            PartitionState(
                leader_id=registration.leader,
                leader_epoch=registration.leader_epoch,
                partition_epoch=registration.partition_epoch,
                replicas=registration.replicas,
                isr=registration.isr,
                adding_replicas=registration.adding_replicas,
                removing_replicas=registration.removing_replicas,
                leader_recovery_state=registration.leader_recovery_state,
            )
        )
        if partition.is_offline:
            self._look_after_damage(partition, registration)
        self.replication.partition_changed(partition, registration)

    def _open_log(self, partition: Partition, registration: PartitionRegistration) -> None:
        assigned = registration.directory(self.broker_id)
        if assigned == MIGRATING_DIRECTORY and registration.partition_epoch == 0:
            # The metadata names no directories; a partition that has never changed is new.
            assigned = UNASSIGNED_DIRECTORY
        is_believed = not self.replication.may_be_replaced(registration)
        self._opener.open(partition, assigned, is_believed=is_believed)

    def _make_partition(self, topic_partition: TopicPartition, topic_id: UUID) -> Partition:
        partition = Partition(
            topic_partition,
            topic_id,
            self.broker_id,
            stats=self.topic_stats.of(topic_partition.topic),
            start_work=self.start,
            flush=self._log_manager.jobs.flush,
            submit_isr_change=self.replication.isr_changes.submit,
            context=self.replication.context,
        )
        self._partitions[topic_partition] = partition
        self._by_topic_id.setdefault(topic_id, {})[topic_partition.partition] = partition
        return partition

    def _drop(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.topic_id == topic_id:
            del self._partitions[topic_partition]
            partition.resign()
            self.replication.partition_gone(partition)
        siblings = self._by_topic_id.get(topic_id)
        if siblings is not None:
            siblings.pop(topic_partition.partition, None)
            if not siblings:
                del self._by_topic_id[topic_id]
                self.topic_stats.forget(topic_partition.topic)
        self._opener.remove(topic_partition, topic_id)

    def _apply_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        topics, is_default_changed = self._settings.apply(delta, image)
        if is_default_changed:
            topics.update(topic for topic, _ in self._partitions)
        for topic in sorted(topics):
            known = image.topics.topics_by_name.get(topic)
            partitions = [] if known is None else list(self.topic_by_id(known.topic_id).values())
            if not partitions:
                continue
            config = self._settings.log_config(topic)
            min_insync_replicas = self._settings.min_insync_replicas(topic)
            for partition in partitions:
                partition.min_insync_replicas = min_insync_replicas
                if partition.log is not None:
                    partition.log.update_config(config)
                partition.settings_changed()

    def _registration(self, partition: Partition) -> PartitionRegistration | None:
        return self.image.topics.partition(partition.topic_id, partition.topic_partition.partition)

    # -- logs that come and go -------------------------------------------------------------------

    def _log_opened(self, partition: Partition) -> None:
        """A log was opened later than its partition: there were many, or the disk had no room."""
        registration = self._registration(partition)
        if registration is not None:
            self.replication.partition_changed(partition, registration)
        self.complete_ready()

    def _log_went_offline(self, log: Log) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is None or partition.log is not log:
            return
        partition.damaged_in_epoch = partition.core.leader_epoch
        # Not from within the append or read that failed: it gives its own answer first.
        asyncio.get_running_loop().call_soon(self._leave_offline, partition)

    def _leave_offline(self, partition: Partition) -> None:
        registration = self._registration(partition)
        if partition.is_deleted or registration is None or not partition.is_offline:
            return
        partition.changed()
        if self._log_manager.lacks_room(partition.topic_partition):
            partition.log = None
            self._open_log(partition, registration)
        if len(registration.replicas) > 1 and self._opener.damage(partition) is not None:
            logger.warning(
                "%s: its log is damaged and reported as lost; it begins empty when the replica is "
                "neither in sync nor eligible, in a leader epoch after %d or a restart of this "
                "broker",
                partition.topic_partition,
                partition.damaged_in_epoch,
            )
        self._look_after_damage(partition, registration)
        self.replication.partition_changed(partition, registration)
        self.complete_ready()

    def _look_after_damage(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Begin a damaged replica empty once it is neither in sync nor eligible, in a leader epoch
        that began after the damage; else report it.

        Why the leader epoch has to be newer than the damage:
        1. This replica, outside the ISR, has caught up. Its leader proposes to let it in, counts it
           for the high watermark, and waits for the controller.
        2. The log is damaged. By the metadata it is neither in sync nor eligible.
        3. The controller takes the proposal over. If the log began again in 2, a replica that lacks
           committed records is in sync.
        By the report the controller begins a leader epoch, in which the leader knows nothing of its
        followers; proposals and fetches of the former epoch are refused. One damaged before this
        process registered needs none: its broker epoch is newer (KIP-903).
        """
        if len(registration.replicas) == 1 or self._opener.damage(partition) is None:
            return
        if (
            self.replication.may_be_replaced(registration)
            and registration.leader_epoch > partition.damaged_in_epoch
        ):
            self._opener.replace_damaged(partition)
        else:
            self.replication.tell_lost(partition, registration)

    def log_start_offset_moved(self, partition: Partition) -> None:
        """Records were deleted: checkpoint that soon (a crash before may bring them back)."""
        self._log_manager.jobs.log_start_offsets.soon()
        partition.changed()

    # -- requests that wait ----------------------------------------------------------------------

    def fetch_changed(self, fetch: ReadyFetch) -> None:
        """A waiting fetch has something to look at; `complete_ready` completes it."""
        self._ready.append(fetch)

    def complete_ready(self) -> None:
        """Answer the fetches that became ready. Call it after anything that changed partitions."""
        if self._is_completing:
            return
        self._is_completing = True
        try:
            while self._ready:
                ready, self._ready = self._ready, []
                done_count = 0
                try:
                    for fetch in ready:
                        done_count += 1
                        fetch.complete_if_ready()
                finally:
                    self._ready[:0] = ready[done_count:]
        finally:
            self._is_completing = False
            if self._ready:
                # One has failed and its exception goes on; the others still get their answers.
                asyncio.get_running_loop().call_soon(self.complete_ready)

    def complete_soon(self) -> None:
        """`complete_ready` after everything received so far: appends of several requests, from any
        connections, reach a waiting fetch, a follower's above all, in one answer.
        """
        if self._ready and not self._is_completion_due:
            self._is_completion_due = True
            asyncio.get_running_loop().call_soon(self._complete_due)

    def _complete_due(self) -> None:
        self._is_completion_due = False
        self.complete_ready()

    def start(self, work: Coroutine[object, None, None]) -> None:
        """Run work that has to leave the loop (recompression, verification); `close` waits for it.
        There is at most one of a kind per partition.
        """
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fault(error)

    def _fault(self, error: BaseException) -> None:
        logger.error("work off the loop failed", exc_info=error)
        if self._on_fault is not None:
            self._on_fault(error)

    async def _run(self, work: Coroutine[object, None, None]) -> None:
        await work
        self.complete_ready()

    async def close(self) -> None:
        """Stop fetching, answer every waiting request with what there is, and wait for work off the
        loop.
        """
        await self.replication.close()
        self.fetch_purgatory.close()
        self.produce_purgatory.close()
        self.delete_records_purgatory.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def find_led(
    manager: ReplicaManager,
    context: RequestContext,
    operation: Operation | None,
    topic: str,
    partition_index: int,
    *,
    current_leader_epoch: int = -1,
    leader_only: bool = True,
) -> LedPartition | ErrorCode:
    """The partition and its log, or the error the client gets.

    Args:
        operation: what the sender must be allowed to do to the topic; None for no check.
        current_leader_epoch: the client's, -1 when it does not say (KIP-320).
        leader_only: False lets a follower answer (debugging consumers).
    """
    if operation is not None and not context.authorized_topic(operation, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    partition = manager.get(topic, partition_index)
    if partition is None:
        return manager.missing_error(topic, partition_index)
    core = partition.core
    error = (
        core.check_leader(current_leader_epoch)
        if leader_only
        else core.check_leader_epoch(current_leader_epoch)
    )
    if error is not ErrorCode.NONE:
        return error
    log = partition.log
    if log is None or log.offline:
        return partition.unusable_error
    return LedPartition(partition, log)
