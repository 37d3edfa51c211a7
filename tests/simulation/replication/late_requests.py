"""Requests to controllers that arrive when their sender has gone on over another connection.

Owns: the way of a broker's own requests, lane by lane, and what is still on its way. Must not:
change a request. Invariant: a late request was lost for its sender, which heard that the connection
broke; it arrives once, whatever has become of the sender since.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection, ConnectionLost
from moldau.runtime.leader_link import LINK_ERRORS, LeaderAddress
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

HOST = "network"
LANES = ("alter-partition", "directory-assignments", "heartbeat")
LATE_MS = (300.0, 3_000.0)
BROKEN_AFTER_MS = (5.0, 600.0)
TIMEOUT_MS = 2_000
SPARED = 0.1


class LateRequests:
    """The network as it delivers what is late; one per world."""

    def __init__(self, world: ReplicationWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self._process = Process(world.loop, HOST)
        self._network = world.fabric.port_of(self._process, HOST)

    def take(self, leader: LeaderAddress, request: Message) -> None:
        """Deliver it some time."""
        self.world.counts["late_requests"] += 1
        self._process.spawn(self._deliver(leader, request))

    async def _deliver(self, leader: LeaderAddress, request: Message) -> None:
        loop = self.world.loop
        await loop.elapse(self.random.uniform(*LATE_MS))
        self.world.note(f"a late {type(request).__name__} arrives at {leader.host}")
        try:
            connection = await Connection.connect(
                self._network,
                leader.host,
                leader.port,
                client_id=HOST,
                clock=VirtualClock(loop),
                connect_timeout_ms=TIMEOUT_MS,
                request_timeout_ms=TIMEOUT_MS,
            )
            try:
                await connection.send(request, timeout_ms=TIMEOUT_MS)
            finally:
                connection.close()
        except LINK_ERRORS:
            return


class LateLink:
    """A LeaderLink of a broker, bad while `is_bad` says so: then most of what it sends is late."""

    def __init__(self, link: Any, late: LateRequests, is_bad: Callable[[], bool]) -> None:
        self._link = link
        self._late = late
        self._is_bad = is_bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def send(self, leader: LeaderAddress, message: Any, **options: Any) -> Any:
        late = self._late
        if not isinstance(message, Message) or not self._is_bad() or late.random.random() < SPARED:
            return await self._link.send(leader, message, **options)
        late.take(leader, message)
        await late.world.loop.elapse(late.random.uniform(*BROKEN_AFTER_MS))
        raise ConnectionLost("the simulated connection broke")
