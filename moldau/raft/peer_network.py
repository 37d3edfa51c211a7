"""How the quorum's replicas reach each other: the port.

Owns: the port, and its form for a quorum that has nobody to reach. Must not: know the wire.
Invariant: a request is answered once, or given up in its time.
"""

from __future__ import annotations

from typing import Protocol

from moldau.raft.core.messages import PeerRequest, PeerResponse
from moldau.raft.core.values import Destination


class PeerNetwork(Protocol):
    """Requests to other replicas."""

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        """The answer, or None when there is none within `timeout_ms` or the connection fails."""

    async def close(self) -> None:
        """Give up what is under way; every request from now on has no answer."""


class NoPeers:
    """Nobody answers: enough for a quorum of one."""

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        """No answer."""
        return None

    async def close(self) -> None:
        """Nothing is under way."""
