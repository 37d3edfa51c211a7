"""The gauges of a broker's replicas, under Kafka's names.

Owns the names. Must not change anything, nor be called on hot paths. Invariant: each is computed
when somebody asks, from the partitions as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.broker.replica.purgatory import Purgatory
    from moldau.runtime.telemetry.metrics import Registry

METRIC_PREFIX: Final = "kafka.server:type=ReplicaManager,name="
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
"""What a coordinator is given, beyond the longest timeout, to abort what timed out (KIP-664)."""
PURGATORY_PREFIX: Final = "kafka.server:type=DelayedOperationPurgatory,name="


def register_replica_gauges(
    registry: Registry,
    partitions: Callable[[], Iterable[Partition]],
    purgatories: Iterable[Purgatory],
    max_transaction_ms: int,
) -> None:
    """Register them all; `partitions` gives the broker's at the time of the call.

    `max_transaction_ms` is `transaction.max.timeout.ms`.
    """
    late_ms = max_transaction_ms + LATE_TRANSACTION_BUFFER_MS

    def gauge(name: str, is_counted: Callable[[Partition], bool]) -> None:
        registry.gauge(METRIC_PREFIX + name, lambda: float(sum(map(is_counted, partitions()))))

    gauge("PartitionCount", lambda each: True)
    gauge("LeaderCount", lambda each: each.is_leader)
    gauge("OfflineReplicaCount", lambda each: each.is_offline)
    gauge("UnderReplicatedPartitions", lambda each: each.is_under_replicated)
    gauge("UnderMinIsrPartitionCount", lambda each: each.is_under_min_isr)
    gauge("AtMinIsrPartitionCount", lambda each: each.is_at_min_isr)
    gauge("PartitionsWithLateTransactionsCount", lambda each: each.has_late_transaction(late_ms))
    gauge("ReassigningPartitions", lambda each: each.is_reassigning)
    for purgatory in purgatories:
        registry.gauge(
            PURGATORY_PREFIX + "PurgatorySize",
            purgatory.size,
            delayedOperation=purgatory.name,
        )
