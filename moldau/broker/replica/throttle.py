"""Replication quotas: how fast throttled replicas may be copied (KIP-73).

Owns which replicas are throttled on this broker, as leader and as follower, the measured rates and
the limits (clients' quotas are in `server.quotas`). Must not know connections, sessions or
requests: their owners call `allows` before and `record` after. Invariants: a replica in sync is
never held back, though its bytes count; over any span the bytes recorded while `allows` was true
stay within limit × span, one whole window and one burst; after `retry_ms` without new bytes
`allows` is true again, unless the quota is zero.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Final

from moldau.config import effective_broker_config
from moldau.metadata.image.configs import ConfigResource, ConfigResourceType
from moldau.server.quotas.core.rates import SampledTotal

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.protocol.types import TopicPartition
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.storage.log_config import ConfigValues

logger = logging.getLogger(__name__)

UNLIMITED: Final = 2**63 - 1
"""The rate of a quota that holds no replica back, Kafka's default."""

MAX_RETRY_MS: Final = 1_000.0
"""The longest pause before `allows` is called again: the limit may have been changed."""

ALL_PARTITIONS: Final = None
"""What `*` stands for in the table of throttled partitions."""

ThrottledPartitions = frozenset[int] | None


class WindowedRate(SampledTotal):
    """Bytes per second over the last samples, measured as Kafka measures replication. The rate is
    that of the span since the oldest sample began, which counts as one window at least: a first
    burst is not divided by nothing.
    """

    __slots__ = ()

    def bytes_per_second(self, now_ms: float) -> float:
        elapsed_ms = max(self.elapsed_ms(now_ms), self.window_ms)
        return self.total(now_ms) * 1000.0 / elapsed_ms

    def ms_until(self, limit: int, now_ms: float) -> float:
        """How long until the rate is at most `limit` bytes per second, if nothing is added."""
        total_bytes = self.total(now_ms)
        oldest_since_ms = now_ms
        for sample in self.counted(now_ms):
            # While this one is the oldest, the span grows; then its bytes are forgotten.
            spread_ms = total_bytes * 1000.0 / limit
            if spread_ms <= self.window_ms:
                break
            forgotten_ms = sample.last_event_ms + self.span_ms
            if sample.start_ms + spread_ms < forgotten_ms:
                return max(oldest_since_ms, sample.start_ms + spread_ms) - now_ms
            oldest_since_ms = forgotten_ms
            total_bytes -= sample.amount
        return oldest_since_ms - now_ms


class ReplicationQuota:
    """One direction's quota: which replicas here are throttled, how fast they may go.

    `side` is "leader" or "follower", as in the names of the keys; `sample_count` and `window_ms`
    are replication.quota.window.num and .size.seconds.
    """

    def __init__(
        self,
        side: str,
        *,
        broker_id: int,
        clock: Clock,
        registry: Registry,
        sample_count: int,
        window_ms: float,
    ) -> None:
        self.rate_key = f"{side}.replication.throttled.rate"
        self.replicas_key = f"{side}.replication.throttled.replicas"
        self.limit = UNLIMITED
        self._broker_id = broker_id
        self._clock = clock
        self._rate = WindowedRate(sample_count, window_ms)
        self._topics: dict[str, ThrottledPartitions] = {}
        self._debt_bytes = 0.0
        self._debt_at_ms = clock.monotonic_ms()
        self._is_standstill_said = False
        registry.gauge(
            f"kafka.server:type={side.capitalize()}Replication,name=byte-rate",
            lambda: self._rate.bytes_per_second(clock.monotonic_ms()),
        )

    def set_limit(self, bytes_per_second: int) -> None:
        """Take over a new rate; 0 stops throttled replicas that are not in sync altogether."""
        if bytes_per_second == self.limit:
            return
        self._settle(self._clock.monotonic_ms())
        if UNLIMITED in (self.limit, bytes_per_second):
            self._debt_bytes = 0.0
        self.limit = bytes_per_second
        logger.info("%s is now %d bytes/s", self.rate_key, bytes_per_second)

    def set_topic(self, topic: str, replicas: Iterable[str]) -> None:
        """Take over the list of one topic: `partition:broker` pairs, or `*`; empty for none."""
        throttled = self._partitions_here(tuple(replicas))
        if throttled is not ALL_PARTITIONS and not throttled:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] = throttled

    def say_standstill(self) -> None:
        """Warn, once, when a rate of zero keeps replicas from ever catching up."""
        if self.limit > 0 or not self._topics:
            self._is_standstill_said = False
        elif not self._is_standstill_said:
            self._is_standstill_said = True
            logger.warning(
                "%s=0: replicas in %s that are not in sync get no records until it is raised or "
                "removed; topics: %s",
                self.rate_key,
                self.replicas_key,
                ", ".join(sorted(self._topics)),
            )

    def _partitions_here(self, replicas: tuple[str, ...]) -> ThrottledPartitions:
        if "".join(replicas).strip() == "*":
            return ALL_PARTITIONS
        pairs = (pair.partition(":") for pair in replicas if pair)
        return frozenset(
            int(partition) for partition, _, broker in pairs if int(broker) == self._broker_id
        )

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        topics = self._topics
        if not topics or topic_partition.topic not in topics:
            return False
        partitions = topics[topic_partition.topic]
        return partitions is ALL_PARTITIONS or topic_partition.partition in partitions

    @property
    def is_exceeded(self) -> bool:
        limit = self.limit
        if limit == UNLIMITED:
            return False
        if limit == 0:
            return True
        now_ms = self._clock.monotonic_ms()
        if self._rate.bytes_per_second(now_ms) > limit:
            return True
        self._settle(now_ms)
        return self._debt_bytes > self._debt_limit

    def allows(self, topic_partition: TopicPartition, in_sync: bool) -> bool:
        """Whether records of the partition may be copied now; to a replica in sync always."""
        return in_sync or not self.is_throttled(topic_partition) or not self.is_exceeded

    def record(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        """Note copied records of the partition; throttled replicas' bytes count, in sync or not."""
        if size_bytes <= 0 or not self.is_throttled(topic_partition):
            return
        now_ms = self._clock.monotonic_ms()
        self._rate.record(size_bytes, now_ms)
        if self.limit != UNLIMITED:
            self._settle(now_ms)
            self._debt_bytes += size_bytes

    def retry_ms(self) -> float:
        """How long to wait before `allows` may say yes: 0 for not at all, MAX_RETRY_MS at most."""
        if not self.is_exceeded:
            return 0.0
        if self.limit == 0:
            return MAX_RETRY_MS
        now_ms = self._clock.monotonic_ms()
        debt_ms = (self._debt_bytes - self._debt_limit) * 1000.0 / self.limit
        wait_ms = max(debt_ms, self._rate.ms_until(self.limit, now_ms))
        # Rounded up: a remainder of nanoseconds would have the caller ask without a pause.
        return min(max(1.0, float(ceil(wait_ms))), MAX_RETRY_MS)

    # Forgotten samples would take what was copied beyond the limit with them: with batches larger
    # than limit × span the real rate would be that of the batches. So that excess is kept as a debt
    # that only time pays off, and counts once it exceeds what the samples hold.

    @property
    def _debt_limit(self) -> float:
        return self.limit * self._rate.span_ms / 1000.0

    def _settle(self, now_ms: float) -> None:
        paid_bytes = self.limit * (now_ms - self._debt_at_ms) / 1000.0
        self._debt_bytes = max(0.0, self._debt_bytes - paid_bytes)
        self._debt_at_ms = now_ms


class ReplicationThrottles:
    """Both directions' quotas, kept at what the newest image says. A metadata publisher."""

    def __init__(
        self, *, broker_id: int, node_values: ConfigValues, clock: Clock, registry: Registry
    ) -> None:
        self._broker_id = broker_id
        self._static_values = node_values
        self._broker_resources = (
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.BROKER, str(broker_id)),
        )
        self.leader, self.follower = (
            ReplicationQuota(
                side,
                broker_id=broker_id,
                clock=clock,
                registry=registry,
                sample_count=node_values["replication.quota.window.num"],
                window_ms=node_values["replication.quota.window.size.seconds"] * 1000.0,
            )
            for side in ("leader", "follower")
        )
        self._set_limits(node_values)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        changes = delta.configs_delta.changes
        if any(resource in changes for resource in self._broker_resources):
            defaults, own = (image.configs.get(*each) for each in self._broker_resources)
            self._set_limits(effective_broker_config(self._static_values, defaults, own))
        for resource, keys in changes.items():
            if resource.resource_type == ConfigResourceType.TOPIC:
                self._set_topic(resource.name, keys)
        self.leader.say_standstill()
        self.follower.say_standstill()

    def _set_limits(self, values: ConfigValues) -> None:
        for quota in (self.leader, self.follower):
            quota.set_limit(values[quota.rate_key])

    def _set_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
        for quota in (self.leader, self.follower):
            if quota.replicas_key in changes:
                text = changes[quota.replicas_key] or ""
                try:
                    quota.set_topic(topic, (each.strip() for each in text.split(",")))
                except ValueError:
                    logger.warning(
                        "topic %s: %s=%s has no effect: it is no list of PARTITION:BROKER pairs",
                        topic,
                        quota.replicas_key,
                        text,
                    )
