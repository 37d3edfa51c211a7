"""Where to go instead: the leader and its address in an error response (KIP-951)."""

from __future__ import annotations

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


class LeaderHints:
    """Collects what one response says about other leaders."""

    __slots__ = ("_leader_ids", "_listener_name", "_manager")

    def __init__(self, manager: ReplicaManager, listener_name: str) -> None:
        self._manager = manager
        self._listener_name = listener_name
        self._leader_ids: dict[int, None] = {}

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
