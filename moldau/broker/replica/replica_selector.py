"""Which replica a consumer reads from: the leader, or a nearer follower (KIP-392).

Owns the choice. Must not know logs, requests or metadata: what is known of the replicas comes in.
Invariant: a follower is named only when it is in sync, has the offset the consumer asks for, and
lies in the consumer's rack while the leader does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from moldau.config.cross_checks import RACK_AWARE_REPLICA_SELECTOR

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.metadata.image import MetadataImage

NO_PREFERRED_READ_REPLICA: Final = -1
"""What a consumer is told that may go on reading from the leader."""


class ReplicaView(NamedTuple):
    """What the leader knows of one follower in sync.

    `lag_ms` says how long ago it was last caught up, `rack` is None for a broker without one.
    """

    broker_id: int
    rack: str | None
    log_start_offset: int
    log_end_offset: int
    lag_ms: float


class ReplicaSelector(Protocol):
    """Chooses for consumers; the leader asks it."""

    def choose(
        self,
        *,
        client_rack_id: str,
        leader_rack: str | None,
        fetch_offset: int,
        in_sync_followers: Iterable[ReplicaView],
    ) -> int:
        """The follower to read from, or NO_PREFERRED_READ_REPLICA for the leader."""


class RackAwareReplicaSelector:
    """The most caught-up replica in the client's rack; the leader itself if it is there.

    Most caught-up: the highest log end offset, then whoever was level last, then the higher id, as
    Kafka orders them.
    """

    __slots__ = ()

    def choose(
        self,
        *,
        client_rack_id: str,
        leader_rack: str | None,
        fetch_offset: int,
        in_sync_followers: Iterable[ReplicaView],
    ) -> int:
        """The follower to read from, or NO_PREFERRED_READ_REPLICA for the leader.

        Args:
            client_rack_id: of the consumer, its `client.rack`; empty when it does not say.
            fetch_offset: a follower must have it: from its log start to its log end offset.
            in_sync_followers: with what the leader knows of their logs.
        """
        if not client_rack_id or leader_rack == client_rack_id:
            return NO_PREFERRED_READ_REPLICA
        near = [
            replica
            for replica in in_sync_followers
            if replica.rack == client_rack_id
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
        ]
        if not near:
            return NO_PREFERRED_READ_REPLICA
        best = max(near, key=lambda each: (each.log_end_offset, -each.lag_ms, each.broker_id))
        return best.broker_id


def make_replica_selector(class_name: str | None) -> ReplicaSelector | None:
    """The selector that `replica.selector.class` names; None when consumers read from leaders.

    Raises:
        ValueError: a class that is not served; configuration has refused it before.
    """
    if not class_name:
        return None
    if class_name == RACK_AWARE_REPLICA_SELECTOR:
        return RackAwareReplicaSelector()
    raise ValueError(
        f"replica.selector.class={class_name}: only {RACK_AWARE_REPLICA_SELECTOR} is served"
    )


class ReadReplicas:
    """Where consumers read, by what the leader and the newest metadata know.

    Args:
        selector: None when everybody reads from leaders.
        image: the newest metadata.
    """

    __slots__ = ("_image", "_selector")

    def __init__(
        self, selector: ReplicaSelector | None, image: Callable[[], MetadataImage]
    ) -> None:
        self._selector = selector
        self._image = image

    @property
    def is_enabled(self) -> bool:
        """Whether consumers may be sent to followers at all."""
        return self._selector is not None

    def rack_of(self, rack_id: str) -> str:
        """The rack a consumer names, or nothing where racks make no difference."""
        return "" if self._selector is None else rack_id

    def preferred(
        self, partition: Partition, client_rack_id: str, fetch_offset: int, listener_name: str
    ) -> int:
        """The follower that a consumer of a partition led here should read from, -1 for none.

        Args:
            listener_name: the consumer's; a replica that it cannot reach by it is of no use.
        """
        selector = self._selector
        if selector is None:
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
                followers.append(
                    ReplicaView(
                        figures.replica_id,
                        broker.rack,
                        figures.log_start_offset,
                        figures.log_end_offset,
                        figures.caught_up_age_ms if figures.caught_up_age_ms >= 0 else inf,
                    )
                )
        return selector.choose(
            client_rack_id=client_rack_id,
            leader_rack=None if leader is None else leader.rack,
            fetch_offset=fetch_offset,
            in_sync_followers=followers,
        )
