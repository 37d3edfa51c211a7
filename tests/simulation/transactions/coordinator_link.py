"""How a simulated client finds coordinators, on top of how it finds leaders.

Owns: which broker coordinates which group or transactional id, as far as known. Must not: retry.
Invariant: what a coordinator that is none any more says makes the client look for another.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.schema import Message
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink

GROUP, TRANSACTION = 0, 1

ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class CoordinatorLink(ClusterLink):
    """One per client process."""

    coordinators: dict[tuple[int, str], int]

    async def find(self, kind: int, key: str) -> int | None:
        """Who coordinates; None while nobody says."""
        if not hasattr(self, "coordinators"):
            self.coordinators = {}
        known = self.coordinators.get((kind, key))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        try:
            response = await self.ask(self.some_broker(), request)
        except NO_ANSWER:
            return None
        found = response.coordinators[0]
        if found.error_code != ErrorCode.NONE:
            return None
        self.coordinators[(kind, key)] = int(found.node_id)
        return int(found.node_id)

    def forget(self, kind: int, key: str) -> None:
        """Look for it anew."""
        self.coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self, kind: int, key: str, request: Message, *, api_version: int | None = None
    ) -> Any:
        """One attempt; None while there is no coordinator or no answer."""
        broker_id = await self.find(kind, key)
        if broker_id is None:
            return None
        try:
            return await self.ask(broker_id, request, api_version=api_version)
        except NO_ANSWER:
            self.forget(kind, key)
            return None
