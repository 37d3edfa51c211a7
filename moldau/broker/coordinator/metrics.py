"""The metrics of a coordinator's runtime, under the names of Apache Kafka.

Owns names and labels; the coordinators add what they count themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator.shard import ShardState

if TYPE_CHECKING:
    from moldau.broker.coordinator.shard import Shard
    from moldau.runtime.telemetry.metrics import Histogram, Registry

GROUPS: Final = {
    "__consumer_offsets": "group-coordinator-metrics",
    "__transaction_state": "transaction-coordinator-metrics",
}
_SHOWN: Final = (ShardState.LOADING, ShardState.ACTIVE, ShardState.FAILED)


class RuntimeMetrics:
    """What one runtime shows."""

    __slots__ = ("left_out", "load_time_ms", "turned_away")

    def __init__(
        self, registry: Registry, topic: str, shards: Callable[[], Iterable[Shard[Any]]]
    ) -> None:
        prefix = f"kafka.server:type={GROUPS.get(topic, 'coordinator-metrics')},name="

        def count(state: ShardState) -> float:
            return float(sum(shard.state is state for shard in shards()))

        for state in _SHOWN:
            registry.gauge(f"{prefix}num-partitions", partial(count, state), state=state.value)
        registry.gauge(
            f"{prefix}waiting-count",
            lambda: float(sum(shard.waiting_count for shard in shards())),
        )
        self.load_time_ms: Histogram = registry.histogram(f"{prefix}partition-load-time-ms")
        self.left_out = registry.counter(f"{prefix}left-out-record-count")
        self.turned_away = registry.counter(f"{prefix}turned-away-count")
