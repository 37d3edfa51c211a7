"""Kafka's BrokerTopicMetrics: what each topic of this broker takes in and gives out.

Owns the meters of every hosted topic and those of all topics together. Must not know requests.
Invariant: what is marked for a topic is marked for all topics too, so the sum outlives the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Meter, Registry

METRIC_PREFIX: Final = "kafka.server:type=BrokerTopicMetrics,name="

METER_NAMES: Final[dict[str, str]] = {
    "bytes_in": "BytesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "bytes_rejected": "BytesRejectedPerSec",
    "messages_in": "MessagesInPerSec",
    "produce_requests": "TotalProduceRequestsPerSec",
    "fetch_requests": "TotalFetchRequestsPerSec",
    "failed_produce_requests": "FailedProduceRequestsPerSec",
    "failed_fetch_requests": "FailedFetchRequestsPerSec",
    "message_conversions": "ProduceMessageConversionsPerSec",
}
"""Attribute of TopicStats -> Kafka's name for it."""


class TopicStats:
    """The meters of one topic, or of all. Bytes are those of record batches."""

    __slots__ = tuple(METER_NAMES)

    bytes_in: Meter
    bytes_out: Meter
    bytes_rejected: Meter
    messages_in: Meter
    produce_requests: Meter
    fetch_requests: Meter
    failed_produce_requests: Meter
    failed_fetch_requests: Meter
    message_conversions: Meter

    def __init__(self, registry: Registry, topic: str | None) -> None:
        labels = {} if topic is None else {"topic": topic}
        for attribute, name in METER_NAMES.items():
            setattr(self, attribute, registry.meter(METRIC_PREFIX + name, **labels))


class BrokerTopicStats:
    """Finds the meters of a topic; `all_topics` is the sum."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._topics: dict[str, TopicStats] = {}
        self.all_topics = TopicStats(registry, None)
        self.keyless_records = registry.meter(METRIC_PREFIX + "NoKeyCompactedTopicRecordsPerSec")

    def of(self, topic: str) -> TopicStats:
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = TopicStats(self._registry, topic)
        return stats

    def forget(self, topic: str) -> None:
        """The topic has left this broker: its own meters go, the sums stay."""
        if self._topics.pop(topic, None) is not None:
            for name in METER_NAMES.values():
                self._registry.remove(METRIC_PREFIX + name, topic=topic)
