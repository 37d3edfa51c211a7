"""How simulated brokers and clients reach the active controller over the simulated network.

Owns: one production Connection to the controller taken for the active one, and the search for
another. Must not: retry what may have happened, unless the caller says that it does no harm.
Invariant: a request is answered, or fails with ControllerUnavailable (it never happened or cannot
be known: `may_have_happened` says which).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.error_responses import has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.runtime.authentication import TlsError
from moldau.runtime.connection import Connection
from tests.virtual.loop import VirtualClock, VirtualLoop
from tests.virtual.network import SimulatedNetwork

CONNECT_TIMEOUT_MS = 1_000
REQUEST_TIMEOUT_MS = 2_000.0
BACKOFF_MS = (20.0, 120.0)


class Undecided(ControllerUnavailable):
    """The request was sent and not answered: it may have happened, or may happen yet."""


class ControllerLink:
    """Implements the broker's ControllerChannel; one per process."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        random: Random,
        controllers: Sequence[tuple[str, int]],
        client_id: str,
    ) -> None:
        self._loop = loop
        self._network = network
        self._random = random
        self._controllers = list(controllers)
        self._client_id = client_id
        self._target = random.randrange(len(self._controllers))
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def send(self, request: Message, principal: str, *, timeout_ms: float = 30_000) -> Any:
        """As a broker: again and again until there is an answer."""
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            try:
                return await self.send_once(request, max(deadline - self._loop.time(), 0) * 1000)
            except ControllerUnavailable:
                if self._loop.time() >= deadline:
                    raise
            await self._loop.elapse(self._random.uniform(*BACKOFF_MS))

    async def send_once(self, request: Message, timeout_ms: float = REQUEST_TIMEOUT_MS) -> Any:
        """One attempt; the next goes elsewhere when this one failed.

        Raises:
            Undecided: the caller cannot know whether it happened.
            ControllerUnavailable: it did not.
        """
        try:
            connection = await self._connected()
        except (OSError, TimeoutError, TlsError) as error:
            self._look_elsewhere(None)
            raise ControllerUnavailable(str(error)) from None
        limit_ms = max(min(timeout_ms, REQUEST_TIMEOUT_MS), 1.0)
        try:
            response = await connection.send(request, timeout_ms=limit_ms)
        except (OSError, TimeoutError) as error:
            self._look_elsewhere(connection)
            raise Undecided(str(error)) from None
        if has_error(response, ErrorCode.NOT_CONTROLLER):
            self._look_elsewhere(connection)
            raise Undecided("not the active controller, or not any more")
        return response

    def look_elsewhere(self) -> None:
        """The controller that answered last is of no use."""
        self._look_elsewhere(self._connection)

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                host, port = self._controllers[self._target]
                self._connection = await Connection.connect(
                    self._network,
                    host,
                    port,
                    client_id=self._client_id,
                    clock=VirtualClock(self._loop),
                    connect_timeout_ms=CONNECT_TIMEOUT_MS,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
            return self._connection

    def _look_elsewhere(self, failed: Connection | None) -> None:
        if failed is not None and failed is not self._connection:
            return
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._target = self._random.randrange(len(self._controllers))
