"""How a faulty client asks brokers and finds coordinators: production connections, raw requests.

Owns: one connection per broker, and which broker coordinates which group or transactional id, as
far as known. Must not: retry.
Invariant: what a coordinator that is none any more says makes the client look for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection
from tests.virtual.loop import Process, VirtualClock, VirtualLoop
from tests.virtual.network import SimulatedNetwork

CONNECT_TIMEOUT_MS = 800
REQUEST_TIMEOUT_MS = 2_500.0
NO_ANSWER = (OSError, TimeoutError)

GROUP, TRANSACTION = 0, 1

ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class CoordinatorLink:
    """One per client process."""

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        network: SimulatedNetwork,
        random: Random,
        brokers: Sequence[tuple[int, str, int]],
    ) -> None:
        self.loop = loop
        self.process = process
        self.random = random
        self.coordinators: dict[tuple[int, str], int] = {}
        self._network = network
        self._addresses = {broker_id: (host, port) for broker_id, host, port in brokers}
        self._connections: dict[int, Connection] = {}

    # -- brokers ---------------------------------------------------------------------------------

    async def connection(self, broker_id: int) -> Connection:
        """An open connection to a broker. Raises OSError, TimeoutError."""
        known = self._connections.get(broker_id)
        if known is not None and not known.is_closed:
            return known
        host, port = self._addresses[broker_id]
        made = await Connection.connect(
            self._network,
            host,
            port,
            client_id=self.process.name,
            clock=VirtualClock(self.loop),
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self._connections[broker_id] = made
        return made

    def drop(self, broker_id: int) -> None:
        """Close the connection to a broker that does not answer."""
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    async def ask(
        self,
        broker_id: int,
        request: Message,
        *,
        api_version: int | None = None,
        timeout_ms: float | None = None,
    ) -> Any:
        """One attempt. Raises OSError, TimeoutError."""
        try:
            connection = await self.connection(broker_id)
            return await connection.send(request, api_version=api_version, timeout_ms=timeout_ms)
        except NO_ANSWER:
            self.drop(broker_id)
            raise

    def some_broker(self) -> int:
        """Any."""
        return self.random.choice(sorted(self._addresses))

    async def pause(self, longest_ms: float = 150.0) -> None:
        """Back off."""
        await self.loop.elapse(self.random.uniform(10.0, longest_ms))

    # -- coordinators ----------------------------------------------------------------------------

    async def find(self, kind: int, key: str) -> int | None:
        """Who coordinates; None while no broker says."""
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
        """Look for it again."""
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
