"""The replica that a consumer reads from: the leader, or a nearer follower (KIP-392).

Must not know logs or requests. Invariant: a follower is named only when it is in sync, has the
offset that the consumer asks for, and lies in the consumer's rack while the leader does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Final

from moldau.config.node_config import RACK_AWARE_REPLICA_SELECTOR

if TYPE_CHECKING:
    from moldau.broker.replica.core.partition_core import ReplicaFigures
    from moldau.broker.replica.partition import Partition
    from moldau.metadata.image import MetadataImage

NO_PREFERRED_READ_REPLICA: Final = -1
"""The answer to a consumer that may go on reading from the leader."""


def choose_in_rack(
    rack_id: str,
    leader_rack: str | None,
    fetch_offset: int,
    followers: Iterable[tuple[str | None, ReplicaFigures]],
) -> int:
    """The most caught-up follower in a consumer's rack, or NO_PREFERRED_READ_REPLICA: Kafka's
    RackAwareReplicaSelector.

    Most caught-up: the highest log end offset, then the one that was level last, then the higher
    id, as Kafka orders them.

    Args:
        rack_id: the consumer's `client.rack`; empty when it does not say.
        fetch_offset: a follower must have it: from its log start to its log end offset.
        followers: those in sync, each with its rack, None without one.
    """
    if not rack_id or leader_rack == rack_id:
        return NO_PREFERRED_READ_REPLICA
    near = [
        replica
        for rack, replica in followers
        if rack == rack_id and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
    ]
    if not near:
        return NO_PREFERRED_READ_REPLICA
    return max(near, key=_caught_up_order).replica_id


def _caught_up_order(replica: ReplicaFigures) -> tuple[int, float, int]:
    age_ms = replica.caught_up_age_ms
    return replica.log_end_offset, -age_ms if age_ms >= 0 else -inf, replica.replica_id


class ReadReplicas:
    """Chooses by what the leader and the newest metadata know.

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
        """The follower that a consumer of a partition led here should read from, -1 for none. A
        replica that it cannot reach by its listener is of no use.
        """
        if not self.is_enabled:
            return NO_PREFERRED_READ_REPLICA
        brokers = self._image().cluster.brokers
        local_broker_id = partition.core.local_broker_id
        leader = brokers.get(local_broker_id)
        followers = []
        for figures in partition.replica_figures():
            broker = brokers.get(figures.replica_id)
            if (
                figures.replica_id != local_broker_id
                and figures.is_in_sync
                and broker is not None
                and not broker.fenced
                and listener_name in broker.listeners
            ):
                followers.append((broker.rack, figures))
        leader_rack = None if leader is None else leader.rack
        return choose_in_rack(client_rack_id, leader_rack, fetch_offset, followers)
