"""A connection that follows the leader.

Owns: one connection at a time, made when it is first needed, given up when the leader has moved.
Must not: retry, or know what requests mean. Invariant: a request is sent only to the address it was
meant for; once that is not the leader's any more, callers that still wait there get the error at
once instead of waiting for an answer that may never come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.schema import Request, Response
from moldau.runtime.connection import (
    DEFAULT_REQUEST_TIMEOUT_MS,
    Connection,
    ConnectionLost,
    RequestTimedOut,
)
from moldau.runtime.connector import Connector

LINK_ERRORS: Final = (OSError, TimeoutError, ConnectionLost, RequestTimedOut, RemoteProtocolError)
"""What `send` raises when there is no answer; the request may have been served all the same."""


class LeaderAddress(NamedTuple):
    """The leader's node id and where it listens."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"node {self.node_id} at {self.host}:{self.port}"


class LeaderLink:
    """States: without a connection ⇄ connecting → connected → without; `close` is final.

    Args:
        connector: in PLAINTEXT on the machine's network without one.
        request_timeout_ms: after which a peer that does not answer is given up.
    """

    def __init__(
        self,
        *,
        client_id: str,
        connector: Connector | None = None,
        request_timeout_ms: float = DEFAULT_REQUEST_TIMEOUT_MS,
    ) -> None:
        self._client_id = client_id
        self._connector = connector or Connector()
        self._request_timeout_ms = request_timeout_ms
        self._address: LeaderAddress | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._is_closed = False

    async def send(
        self,
        leader: LeaderAddress,
        message: Request[Response] | Callable[[Connection], Awaitable[Request[Response]]],
        *,
        timeout_ms: float,
    ) -> Response:
        """One attempt: the response of `leader`.

        A caller that gives up in time does not disturb the others: the connection is given up only
        when it owes an answer for `request_timeout_ms`, or for a client's longer `timeout_ms`.

        Args:
            message: this node's request, or what makes a client's once the peer's versions are
                known.
            timeout_ms: how long this caller waits, connecting included.

        Raises:
            LINK_ERRORS: no answer.
            UnsupportedByPeer, LocalProtocolError: the peer does not speak what is to be said.
        """
        async with asyncio.timeout(max(timeout_ms, 0.0) / 1000):
            connection = await self._connected(leader)
            if isinstance(message, Request):
                return await connection.send(message, timeout_ms=self._request_timeout_ms)
            # What a client asks for may take as long as the client says.
            patience_ms = max(timeout_ms, self._request_timeout_ms)
            return await connection.send(await message(connection), timeout_ms=patience_ms)

    def leader_changed(self, leader: LeaderAddress | None) -> None:
        """Give up a connection to any other node than `leader`; None changes nothing yet: an old
        leader that is still reachable says NOT_CONTROLLER itself.
        """
        if leader is not None and self._address is not None and leader != self._address:
            self._drop()

    async def close(self) -> None:
        """Close for good; callers that wait get ConnectionLost."""
        self._is_closed = True
        connecting = self._connecting
        self._drop()
        if connecting is not None:
            await asyncio.wait([connecting])

    async def _connected(self, leader: LeaderAddress) -> Connection:
        if self._is_closed:
            raise ConnectionLost("this node is stopping")
        if self._address != leader:
            self._drop()
            self._address = leader
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = asyncio.create_task(self._connect(leader))
            connecting.add_done_callback(self._connect_ended)
        # Shielded: one caller that gives up must not take the connection from the others.
        await asyncio.wait([connecting])
        if connecting.cancelled():
            raise ConnectionLost(f"{leader} does not lead any more")
        return connecting.result()

    async def _connect(self, leader: LeaderAddress) -> Connection:
        connection = await self._connector.connect(
            leader.host,
            leader.port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
        )
        self._connection = connection
        return connection

    def _connect_ended(self, task: asyncio.Task[Connection]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled():
            task.exception()  # seen: the caller may have given up

    def _drop(self) -> None:
        self._address = None
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        if connection is not None:
            connection.close()
