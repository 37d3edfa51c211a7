"""The replica that a consumer reads from: leader or nearer (`replica.selector.class`, KIP-392).

Must not know logs or requests. Invariant: a follower is named only when it is in sync, has the
offset that the consumer asks for, and lies in the consumer's rack while the leader does not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from moldau.config.node_config import RACK_AWARE_REPLICA_SELECTOR

if TYPE_CHECKING:
    from moldau.broker.replica.core.partition_core import ReplicaFigures
    from moldau.broker.replica.partition import Partition
    from moldau.metadata.image import MetadataImage

NO_PREFERRED_READ_REPLICA: Final = -1
"""The answer to a consumer that may go on reading from the leader."""


def _caught_up_order(replica: ReplicaFigures) -> tuple[int, float, int]:
    """The highest log end offset counts, then which one was level last, then the higher id, as
    Kafka orders them.
    """
    age_ms = replica.caught_up_age_ms
    return replica.log_end_offset, -age_ms if age_ms >= 0 else -inf, replica.replica_id


class ReadReplicas:
    """Chooses by what the leader and the newest metadata know, as Kafka's RackAwareReplicaSelector.

    `selector_class` is `replica.selector.class`, None when all consumers read from leaders. Raises:
    ValueError for a class that is not served; configuration has refused it before.
    """

    def __init__(self, selector_class: str | None, image: Callable[[], MetadataImage]) -> None:
        if selector_class and selector_class != RACK_AWARE_REPLICA_SELECTOR:
            raise ValueError(
                f"replica.selector.class={selector_class}: only {RACK_AWARE_REPLICA_SELECTOR} is "
                "served"
            )
        self.is_enabled = bool(selector_class)
        self._image = image

    def rack_of(self, rack_id: str) -> str:
        """The rack a consumer names, or nothing where racks make no difference."""
        return rack_id if self.is_enabled else ""

    def preferred(
        self, partition: Partition, client_rack_id: str, fetch_offset: int, listener_name: str
    ) -> int:
        """The most caught-up follower in the rack of a consumer of a partition led here, -1 for
        none. It must have the offset, and the consumer must be able to reach it by its listener.
        """
        if not self.is_enabled or not client_rack_id:
            return NO_PREFERRED_READ_REPLICA
        brokers = self._image().cluster.brokers
        leader = brokers.get(partition.core.local_broker_id)
        if leader is not None and leader.rack == client_rack_id:
            return NO_PREFERRED_READ_REPLICA
        near = []
        for figures in partition.replica_figures():
            broker = brokers.get(figures.replica_id)
            if (
                broker is not None
                and broker.rack == client_rack_id
                and not broker.fenced
                and listener_name in broker.listeners
                and figures.is_in_sync
                and figures.log_start_offset <= fetch_offset <= figures.log_end_offset
            ):
                near.append(figures)
        nearest = max(near, key=_caught_up_order, default=None)
        return NO_PREFERRED_READ_REPLICA if nearest is None else nearest.replica_id
