"""Requests to other replicas of the quorum: the port, and the port over real connections.

Owns: the connections to each destination, their making and breaking, the limit of what waits for
one. Must not: retry, or know what requests mean (`wire` does). Invariant: every request ends in its
time, with an answer or with None; a connection that failed is never used again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.schema import Message
from moldau.raft.core.messages import (
    FetchRequest,
    PeerRequest,
    PeerResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import NO_NODE, Destination
from moldau.raft.wire import PreVoteUnsupported, decode_response, encode_request
from moldau.runtime.connection import Connection
from moldau.runtime.connector import Connector, PeerRefused
from moldau.runtime.fault_words import words_of


class PeerNetwork(Protocol):
    """Requests to other replicas."""

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        """The answer, or None when there is none within `timeout_ms` or the connection fails."""

    async def close(self) -> None:
        """Give up what is under way; every request from now on has no answer."""


logger = logging.getLogger(__name__)

MAX_PENDING_PER_PEER: Final = 32
MAX_CHANNELS: Final = 256
"""The limit for channels to peers. Any peer may name the address of a leader: what is asked of no
more is forgotten when others come.
"""
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""A batch of the metadata log may be larger than a fetch's limit, but not than this."""


@dataclass(slots=True, eq=False, repr=False)
class _Channel:
    """The connection to one destination for one kind of requests."""

    connection: Connection | None = None
    pending_count: int = 0
    problem: str = ""
    """The last problem that was logged; a problem is logged once, however often it recurs."""
    refusal: str = ""
    """The error in the last answer, empty without one: ordinary while leaders change."""
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def connected(
        self, connector: Connector, destination: Destination, client_id: str
    ) -> Connection:
        """The open connection, made if there is none. Raises as `Connector.connect`."""
        async with self._connecting:
            connection = self.connection
            if connection is None or connection.is_closed:
                connection = self.connection = await connector.connect(
                    destination.host,
                    destination.port,
                    client_id=client_id,
                    max_response_bytes=MAX_RESPONSE_BYTES,
                )
            return connection


@dataclass(eq=False, repr=False)
class ConnectionPeers:
    """The PeerNetwork of a node.

    A destination has two connections: answers come in the order of requests, and a fetch that waits
    for records must not hold up a vote behind it.

    Args:
        listener_name: what the controllers' listener is called.
    """

    _connector: Connector
    _: KW_ONLY
    cluster_id: str
    client_id: str
    listener_name: str
    _channels: dict[tuple[str, int, bool], _Channel] = field(default_factory=dict)
    _under_way: dict[asyncio.Task[PeerResponse | None], None] = field(default_factory=dict)
    """The requests under way, in the order they were made."""
    _is_closed: bool = False

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        """The answer, or None when there is none in time; see PeerNetwork."""
        is_fetch = isinstance(request, FetchRequest)
        key = (destination.host, destination.port, is_fetch)
        channel = self._channels.get(key)
        if channel is None:
            self._make_room()
            channel = self._channels[key] = _Channel()
        if self._is_closed or channel.pending_count >= MAX_PENDING_PER_PEER:
            return None
        task = asyncio.ensure_future(self._within(channel, destination, request, timeout_ms))
        channel.pending_count += 1
        self._under_way[task] = None
        try:
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()
        finally:
            channel.pending_count -= 1
            del self._under_way[task]

    def _make_room(self) -> None:
        """Forget a channel that nothing is asked on, the first that was made, if there are many."""
        if len(self._channels) < MAX_CHANNELS:
            return
        idle = (key for key, each in self._channels.items() if not each.pending_count)
        if (key := next(idle, None)) is not None:
            connection = self._channels.pop(key).connection
            if connection is not None:
                connection.close()

    async def _within(
        self, channel: _Channel, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self._exchange(channel, destination, request, timeout_ms)
        except PreVoteUnsupported:
            assert isinstance(request, VoteRequest)
            return VoteResponse(ErrorCode.UNSUPPORTED_VERSION, NO_NODE, request.leader_epoch)
        except (RemoteProtocolError, LocalProtocolError, OSError, TimeoutError) as error:
            problem = words_of(error)
            if problem != channel.problem:
                channel.problem = problem
                if isinstance(error, PeerRefused):
                    return None  # it is logged already
                level = logging.INFO if isinstance(error, OSError) else logging.WARNING
                where = f"{destination.host}:{destination.port}"
                logger.log(level, "%s to %s: %s", type(request).__name__, where, problem)
            return None
        channel.problem = ""
        channel.refusal = "" if response.error is ErrorCode.NONE else response.error.name
        return response

    async def _exchange(
        self, channel: _Channel, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse:
        """Raises OSError, TimeoutError, RemoteProtocolError, LocalProtocolError."""
        connection = await channel.connected(self._connector, destination, self.client_id)

        def version_of(request_class: type[Message]) -> int:
            if request_class is ApiVersionsRequest and not connection.versions:
                return ApiVersionsRequest.MAX_VERSION
            return connection.best_version(ApiKey(request_class.API_KEY), request_class)

        message, version = encode_request(request, version_of, self.cluster_id)
        answer = await connection.send(message, api_version=version, timeout_ms=timeout_ms)
        return decode_response(request, answer, self.listener_name)

    def problems(self) -> dict[str, str]:
        """What is wrong with the last request to each `host:port`, where anything is."""
        found: dict[str, str] = {}
        for (host, port, _), channel in self._channels.items():
            problem = channel.problem or channel.refusal
            if problem:
                found[f"{host}:{port}"] = problem
        return found

    async def close(self) -> None:
        """Give up what is under way and close every connection."""
        self._is_closed = True
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        for channel in self._channels.values():
            if channel.connection is not None:
                channel.connection.close()
        self._channels.clear()
