"""All partitions of this broker: found by name or id, made, changed and dropped as metadata says.

Owns the table of partitions, the purgatories, the fetches that are ready to answer, and what a
client is told about a partition that is not here. Must not decode requests or build responses.
Invariants: a partition is in the table exactly while the image assigns a replica of it to this
broker; requests that became ready are completed before the public call that made them ready
returns to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from moldau.broker.partition import Partition, PartitionState
from moldau.broker.purgatory import Purgatory
from moldau.broker.quotas import Quotas, UnlimitedQuotas
from moldau.broker.topic_stats import BrokerTopicStats
from moldau.config import effective_broker_config, effective_topic_config
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.configs import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_config import LogConfig
from moldau.storage.log_manager import InconsistentTopicId

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.metadata.image import MetadataDelta, PartitionRegistration
    from moldau.runtime.clock import Clock
    from moldau.runtime.filesystem import Filesystem
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel
    from moldau.storage.log import Log
    from moldau.storage.log_manager import LogManager

logger = logging.getLogger("moldau.broker.replicas")

MAX_INLINE_OPENS: Final = 100
"""New logs made at once for one metadata change (about a millisecond each); the others follow while
requests are served, and their partitions answer NOT_LEADER_OR_FOLLOWER until then."""

RETRY_OPEN_MS: Final = 30_000
"""How long after a full disk kept a log from being made it is tried again."""

METRIC_PREFIX: Final = "kafka.server:type=ReplicaManager,name="
PURGATORY_PREFIX: Final = "kafka.server:type=DelayedOperationPurgatory,name="

NO_PARTITIONS: Final[Mapping[int, Partition]] = {}


class ReadyFetch(Protocol):
    """A waiting fetch for which something has changed."""

    def complete_if_ready(self) -> None:
        """Look again, and answer if there is enough now."""


class LeaderHint(NamedTuple):
    """Who leads a partition, as far as this broker knows; both are -1 when it does not."""

    leader_id: int
    leader_epoch: int


class ReplicaManager:
    """The broker's replicas. Belongs to the data loop.

    Args:
        broker_id: of this node.
        node_values: the node's static configuration, typed.
        log_manager: opens and removes the logs.
        timers: the data loop's wheel, for requests that wait.
        registry: where the metrics go.
        quotas: the throttle hook; nobody is throttled without one.
        on_fault: told of an exception in work off the loop that nobody expected.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        node_values: Mapping[str, Any],
        log_manager: LogManager,
        clock: Clock,
        filesystem: Filesystem,
        timers: TimerWheel,
        registry: Registry,
        quotas: Quotas | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.filesystem = filesystem
        self.image = MetadataImage.EMPTY
        self.quotas: Quotas = UnlimitedQuotas() if quotas is None else quotas
        self._on_fault = on_fault
        self.topic_stats = BrokerTopicStats(registry)
        self.produce_purgatory = Purgatory("Produce", timers)
        self.fetch_purgatory = Purgatory("Fetch", timers)
        self._timers = timers
        self._log_manager = log_manager
        self._static_values = node_values
        self._broker_values: Mapping[str, Any] = node_values
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_topic_id: dict[UUID, dict[int, Partition]] = {}
        self._ready: list[ReadyFetch] = []
        self._to_open: deque[Partition] = deque()
        self._inline_open_budget = MAX_INLINE_OPENS
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_completing = False
        self._register_gauges(registry)

    # -- lookup ----------------------------------------------------------------------------------

    def get(self, topic: str, partition_index: int) -> Partition | None:
        """The partition of that name, if it is on this broker."""
        return self._partitions.get((topic, partition_index))

    def topic_by_id(self, topic_id: UUID) -> Mapping[int, Partition]:
        """The partitions of a topic on this broker, by index."""
        return self._by_topic_id.get(topic_id, NO_PARTITIONS)

    def partitions(self) -> Iterator[Partition]:
        """All partitions of this broker."""
        yield from list(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def missing_error(self, topic: str, partition_index: int) -> ErrorCode:
        """What a client is told about a partition that `get` does not find."""
        known = self.image.topics.topics_by_name.get(topic)
        if known is None or partition_index not in known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.broker_id in known.partitions[partition_index].replicas:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def missing_error_by_id(self, topic_id: UUID, partition_index: int) -> ErrorCode:
        """What a client is told about a partition that `topic_by_id` does not have."""
        known = self.image.topics.topics_by_id.get(topic_id)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self.missing_error(known.name, partition_index)

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name that belongs to a topic id."""
        known = self.image.topics.topics_by_id.get(topic_id)
        return None if known is None else known.name

    def leader_hint(self, topic: str, partition_index: int) -> LeaderHint:
        """Who leads now, for clients that asked the wrong broker (KIP-951)."""
        partition = self._partitions.get((topic, partition_index))
        if partition is not None and not partition.is_deleted:
            return LeaderHint(partition.core.leader_id, partition.core.leader_epoch)
        known = self.image.topics.topics_by_name.get(topic)
        registration = None if known is None else known.partitions.get(partition_index)
        if registration is None:
            return LeaderHint(-1, -1)
        return LeaderHint(registration.leader, registration.leader_epoch)

    # -- metadata --------------------------------------------------------------------------------

    def apply_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make, change and drop partitions as `delta` says; `image` is what it leads to."""
        self.image = image
        self._inline_open_budget = MAX_INLINE_OPENS
        changes = delta.topics_delta.local_changes(self.broker_id)
        for topic_partition, topic_id in changes.deleted.items():
            self._drop(topic_partition, topic_id)
        self._apply_configs(delta, image)
        configs: dict[str, tuple[LogConfig, int]] = {}
        for assigned in (changes.leaders, changes.followers):
            for topic_partition, (topic_id, registration) in assigned.items():
                topic = topic_partition.topic
                if topic not in configs:
                    configs[topic] = self._topic_config(topic)
                self._assign(topic_partition, topic_id, registration, *configs[topic])
        self.complete_ready()

    on_metadata_update = apply_metadata

    def _assign(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        registration: PartitionRegistration,
        config: LogConfig,
        min_insync_replicas: int,
    ) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.topic_id != topic_id:
            self._drop(topic_partition, partition.topic_id)
            partition = None
        if partition is None:
            partition = Partition(
                topic_partition,
                topic_id,
                self.broker_id,
                stats=self.topic_stats.of(topic_partition.topic),
                start_work=self.start,
                flush=self._log_manager.flush,
            )
            self._partitions[topic_partition] = partition
            self._by_topic_id.setdefault(topic_id, {})[topic_partition.partition] = partition
        if partition.log is None and not partition.is_opening:
            self._open_now_or_later(partition, config)
        partition.min_insync_replicas = min_insync_replicas
        partition.apply_state(
            PartitionState(
                leader_id=registration.leader,
                leader_epoch=registration.leader_epoch,
                partition_epoch=registration.partition_epoch,
                replicas=registration.replicas,
                isr=registration.isr,
            )
        )

    def _drop(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.topic_id == topic_id:
            del self._partitions[topic_partition]
            partition.resign()
        siblings = self._by_topic_id.get(topic_id)
        if siblings is not None:
            siblings.pop(topic_partition.partition, None)
            if not siblings:
                del self._by_topic_id[topic_id]
                self.topic_stats.forget(topic_partition.topic)
        self._remove_log(topic_partition, topic_id)

    def _open_now_or_later(self, partition: Partition, config: LogConfig) -> None:
        """Logs that exist are at hand; making many new ones takes turns with requests."""
        exists = self._log_manager.get(partition.topic_partition) is not None
        if exists or self._inline_open_budget > 0:
            self._inline_open_budget -= not exists
            partition.log = self._open_log(partition, config)
            return
        partition.is_opening = True
        self._to_open.append(partition)
        if len(self._to_open) == 1:
            self.start(self._open_in_turn())

    async def _open_in_turn(self) -> None:
        while self._to_open:
            await asyncio.sleep(0)
            partition = self._to_open[0]
            partition.is_opening = False
            self._retry_open(partition)
            # Only now: until here `_open_now_or_later` must not start a second turn.
            self._to_open.popleft()

    def _open_log(self, partition: Partition, config: LogConfig) -> Log | None:
        """The partition's log, or None: the partition answers KAFKA_STORAGE_ERROR then."""
        try:
            return self._log_manager.get_or_create(
                partition.topic_partition, partition.topic_id, config
            )
        except DiskFull as problem:
            logger.warning("%s; trying again in %d ms", problem, RETRY_OPEN_MS)
            self._timers.call_later(RETRY_OPEN_MS, self._retry_open, partition)
        except (LogOffline, InconsistentTopicId) as problem:
            logger.error("%s is offline: %s", partition.topic_partition, problem)
        return None

    def _retry_open(self, partition: Partition) -> None:
        if partition.is_deleted or partition.log is not None:
            return
        config, _ = self._topic_config(partition.topic_partition.topic)
        partition.log = self._open_log(partition, config)
        if partition.log is not None:
            partition.log_opened()
            self.complete_ready()

    def _remove_log(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the log, unless it is already that of a later topic of the same name."""
        log = self._log_manager.get(topic_partition)
        if log is not None and log.topic_id != topic_id:
            return
        try:
            self._log_manager.delete(topic_partition)
        except LogOffline as problem:
            logger.error("%s cannot be deleted: %s", topic_partition, problem)

    def _apply_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Changed topic settings reach their logs; a broker default may change any topic."""
        changed_topics: set[str] = set()
        for resource in delta.configs_delta.changes:
            if resource.resource_type == ConfigResourceType.TOPIC:
                changed_topics.add(resource.name)
            elif resource.resource_type == ConfigResourceType.BROKER and resource.name in (
                "",
                str(self.broker_id),
            ):
                changed_topics.update(topic for topic, _ in self._partitions)
                self._broker_values = effective_broker_config(
                    self._static_values,
                    image.configs.get(ConfigResourceType.BROKER, ""),
                    image.configs.get(ConfigResourceType.BROKER, str(self.broker_id)),
                )
        for topic in sorted(changed_topics):
            partitions = self._partitions_of(topic)
            if not partitions:
                continue
            config, min_insync_replicas = self._topic_config(topic)
            for partition in partitions:
                partition.min_insync_replicas = min_insync_replicas
                if partition.log is not None:
                    partition.log.update_config(config)
                partition.settings_changed()

    def _partitions_of(self, topic: str) -> list[Partition]:
        """Those of the topic that the image knows by this name, found without a look at others."""
        known = self.image.topics.topics_by_name.get(topic)
        return [] if known is None else list(self.topic_by_id(known.topic_id).values())

    def _topic_config(self, topic: str) -> tuple[LogConfig, int]:
        values = effective_topic_config(
            self._broker_values, self.image.configs.get(ConfigResourceType.TOPIC, topic)
        )
        return LogConfig.from_topic_config(values), int(values["min.insync.replicas"])

    def log_start_offset_moved(self, partition: Partition) -> None:
        """Records were deleted: checkpoint it soon (a crash before may bring them back)."""
        self._log_manager.jobs.log_start_offsets.soon()
        partition.changed()

    # -- requests that wait ----------------------------------------------------------------------

    def fetch_changed(self, fetch: ReadyFetch) -> None:
        """A waiting fetch has something to look at; `complete_ready` lets it."""
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
                # One has failed, and that is told; the others still get their answers.
                asyncio.get_running_loop().call_soon(self.complete_ready)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that has to leave the loop (recompression, verification); `close` waits for it.

        Its number is bounded by one per partition and kind.
        """
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work off the loop failed", exc_info=error)
            if self._on_fault is not None:
                self._on_fault(error)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self.complete_ready()

    async def close(self) -> None:
        """Answer everybody who waits with what there is, and wait for work off the loop."""
        self.fetch_purgatory.close()
        self.produce_purgatory.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- figures ---------------------------------------------------------------------------------

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """What `replication-offset-checkpoint` holds."""
        return {
            partition.topic_partition: partition.core.high_watermark
            for partition in self._partitions.values()
            if partition.log is not None and not partition.log.offline
        }

    def _register_gauges(self, registry: Registry) -> None:
        def count(predicate: str) -> float:
            return float(sum(bool(getattr(each, predicate)) for each in self.partitions()))

        registry.gauge(METRIC_PREFIX + "PartitionCount", lambda: float(len(self._partitions)))
        registry.gauge(METRIC_PREFIX + "LeaderCount", lambda: count("is_leader"))
        registry.gauge(METRIC_PREFIX + "OfflineReplicaCount", lambda: count("is_offline"))
        registry.gauge(
            METRIC_PREFIX + "UnderReplicatedPartitions", lambda: count("is_under_replicated")
        )
        registry.gauge(
            METRIC_PREFIX + "UnderMinIsrPartitionCount", lambda: count("is_under_min_isr")
        )
        registry.gauge(METRIC_PREFIX + "AtMinIsrPartitionCount", lambda: count("is_at_min_isr"))
        for purgatory in (self.produce_purgatory, self.fetch_purgatory):
            registry.gauge(
                PURGATORY_PREFIX + "PurgatorySize",
                purgatory.size,
                delayedOperation=purgatory.name,
            )
