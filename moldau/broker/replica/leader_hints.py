"""Where to go instead: the leader and its address in an error response (KIP-951)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.replica.replica_manager import LeaderHint, ReplicaManager
    from moldau.protocol.messages import p00_produce, p01_fetch

WRONG_LEADER_ERRORS: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
)
"""The errors that come with a hint."""


NodeEndpoint = TypeVar("NodeEndpoint", "p00_produce.NodeEndpoint", "p01_fetch.NodeEndpoint")


@dataclass(slots=True, eq=False, repr=False)
class LeaderHints:
    """Collects what one response says about other leaders."""

    _manager: ReplicaManager
    _listener_name: str
    _leader_ids: dict[int, None] = field(default_factory=dict)

    def leader(self, topic: str, partition_index: int) -> LeaderHint:
        """The partition's leader; remembered for `endpoints`."""
        hint = self._manager.leader_hint(topic, partition_index)
        if hint.leader_id >= 0:
            self._leader_ids[hint.leader_id] = None
        return hint

    def endpoints(self, endpoint_class: type[NodeEndpoint]) -> list[NodeEndpoint]:
        """The addresses of the leaders named so far."""
        brokers = self._manager.image.cluster.brokers
        found = []
        for leader_id in self._leader_ids:
            registration = brokers.get(leader_id)
            if registration is None or self._listener_name not in registration.listeners:
                continue
            endpoint = registration.listeners[self._listener_name]
            found.append(
                endpoint_class(
                    node_id=leader_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=registration.rack,
                )
            )
        return found
