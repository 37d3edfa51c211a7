"""A quorum of three over sockets: connections made, lost, refused, silent, closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from moldau.protocol.metadata_records import TopicRecord
from moldau.protocol.registry import request_class
from moldau.raft import (
    MetadataLogSettings,
    QuorumLog,
    RaftRequestHandler,
    VoterDescription,
    VoterEndpoint,
    VoterSet,
    write_bootstrap,
)
from moldau.raft import peers as peers_module
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    KraftVersionRequest,
    KraftVersionResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.raft.peers import ConnectionPeers
from moldau.runtime.clock import SystemClock
from moldau.runtime.connector import Connector
from moldau.server.apis import APIS, QUORUM
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server
from tests.kit.waiting import until_async
from tests.storage.simulated_filesystem import SimulatedFilesystem

from .fixtures import DIRECTORY, Listener
from .quorums import CLUSTER_ID, LISTENER

pytestmark = pytest.mark.real

FAST = {
    "election_timeout_ms": 150,
    "election_backoff_max_ms": 100,
    "fetch_timeout_ms": 600,
    "request_timeout_ms": 600,
}


class Host:
    """A controller's listener: answers for whatever handler it has at the moment."""

    def __init__(self) -> None:
        self.handler: RaftRequestHandler | None = None
        self.server = Server(self._on_request)
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_silent = False
        self.served = frozenset(key for key, api in APIS.items() if api.controller == QUORUM)
        self.vote_version = 2

    async def start(self) -> int:
        await self.server.start([ListenerSpec(LISTENER, "127.0.0.1", 0)])
        return self.server.port(LISTENER)

    def _on_request(self, request: Request) -> None:
        if self.is_silent:
            return
        task = asyncio.ensure_future(self._answer(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, request: Request) -> None:
        message: Any
        message, _ = request_class(request.api_key).decode(request.body, request.api_version)
        if request.api_key == ApiKey.API_VERSIONS:
            request.respond(self._versions())
            return
        if self.handler is None:
            request.close("nobody is at home")
            return
        request.respond(await self.handler.handle(message, request.api_version, "127.0.0.1"))

    def _versions(self) -> ApiVersionsResponse:
        highest = {key: request_class(key).MAX_VERSION for key in self.served}
        highest[ApiKey.VOTE] = self.vote_version
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=0, max_version=version)
                for key, version in sorted({**highest, ApiKey.API_VERSIONS: 4}.items())
            ],
            supported_features=[
                SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
            ],
        )


def connection_peers(node_id: int) -> ConnectionPeers:
    return ConnectionPeers(
        Connector(),
        cluster_id=CLUSTER_ID,
        client_id=f"raft-client-{node_id}",
        listener_name=LISTENER,
    )


@asynccontextmanager
async def host() -> AsyncIterator[tuple[Host, Destination]]:
    each = Host()
    port = await each.start()
    try:
        yield each, Destination(1, "127.0.0.1", port)
    finally:
        await each.server.close(graceful_ms=0)


VOTE = VoteRequest(ReplicaKey(1, UUID(int=1)), ReplicaKey(2, UUID(int=2)), 3, 2, 10, pre_vote=True)
FETCH = FetchRequest(ReplicaKey(1, UUID(int=1)), 3, 0, 0, max_wait_ms=100)


def deposed(log: QuorumLog) -> Callable[[], bool]:
    """Whether it does not lead any more in the epoch in which it leads now."""
    epoch = log.state.leader_epoch
    return lambda: not log.is_leader or log.state.leader_epoch != epoch


async def test_three_over_sockets() -> None:
    seed = 31
    print(f"seed {seed}")
    hosts = {node_id: Host() for node_id in (1, 2, 3)}
    endpoints = {
        node_id: VoterEndpoint(LISTENER, "127.0.0.1", await each.start())
        for node_id, each in hosts.items()
    }
    voters = VoterSet(
        tuple(VoterDescription(each, UUID(int=each), (endpoints[each],)) for each in hosts), 1
    )
    logs: dict[int, QuorumLog] = {}
    listeners: dict[int, Listener] = {}
    fatal: list[str] = []

    async def open_node(node_id: int, filesystem: SimulatedFilesystem) -> None:
        log = await QuorumLog.open(
            filesystem,
            SystemClock(),
            MetadataLogSettings(
                metadata_directory=DIRECTORY,
                local=ReplicaKey(node_id, UUID(int=node_id)),
                endpoints=(endpoints[node_id],),
                segment_bytes=8 * 1024 * 1024,
                segment_index_bytes=4096,
                **FAST,  # type: ignore[arg-type]
            ),
            fatal.append,
            peers=connection_peers(node_id),
            dice=random.Random(seed + node_id),
        )
        logs[node_id] = log
        hosts[node_id].handler = RaftRequestHandler(
            log, CLUSTER_ID, clock=SystemClock(), listener_name=LISTENER
        )
        listeners[node_id] = Listener()
        log.add_listener(listeners[node_id])

    async def leader() -> int:
        await until_async(lambda: any(log.is_leader for log in logs.values()), "a leader")
        return next(node_id for node_id, log in logs.items() if log.is_leader)

    def is_everywhere(name: str) -> bool:
        return all(name in listeners[each].names for each in logs)

    async def append(name: str) -> None:
        """As a client does: again when a leader has taken it, and leads no more."""
        while not is_everywhere(name):
            log = logs[await leader()]
            is_over = deposed(log)
            error, _ = log.append(
                [(TopicRecord(name=name), 0)], leader_epoch=log.state.leader_epoch
            )
            if error is ErrorCode.NONE:
                await until_async(lambda over=is_over: is_everywhere(name) or over(), name)  # type: ignore[misc]

    for node_id in hosts:
        filesystem = SimulatedFilesystem()
        write_bootstrap(filesystem, DIRECTORY, [], voters, now_ms=5)
        await open_node(node_id, filesystem)
    await append("a")
    first = await leader()
    await logs.pop(first).close()
    hosts[first].handler = None
    await append("b")
    assert fatal == []
    for log in list(logs.values()):
        await log.close()
    for each in hosts.values():
        await each.server.close(graceful_ms=0)


@pytest.mark.parametrize("name", ["a\0b", "a..b", "x" * 300, ""], ids=repr)
async def test_a_peer_with_a_name_that_is_none_does_not_answer(name: str) -> None:
    peers = connection_peers(1)
    assert await peers.request(Destination(2, name, 9093), VOTE, 5_000) is None
    await peers.close()


async def test_a_peer_that_is_not_there_or_says_nothing() -> None:
    peers = connection_peers(1)
    async with host() as (there, destination):
        assert await peers.request(destination, VOTE, 5_000) is None, "closed without an answer"
        there.is_silent = True
        assert await peers.request(destination, VOTE, 50) is None
        assert await peers.request(destination, FETCH, 50) is None
        there.is_silent = False
        answer = await peers.request(destination, KraftVersionRequest(), 5_000)
        assert answer == KraftVersionResponse(ErrorCode.NONE, 0, 1), "and it is spoken to again"
    assert await peers.request(destination, VOTE, 1_000) is None
    await peers.close()
    assert await peers.request(destination, VOTE, 1_000) is None


async def test_a_peer_of_an_older_release() -> None:
    peers = connection_peers(1)
    async with host() as (older, destination):
        older.vote_version = 1
        answer = await peers.request(destination, VOTE, 5_000)
        assert answer == VoteResponse(ErrorCode.UNSUPPORTED_VERSION, -1, VOTE.leader_epoch)
    await peers.close()
    peers = connection_peers(1)
    async with host() as (broker, destination):
        broker.served = frozenset({ApiKey.FETCH})
        begin = BeginQuorumEpochRequest(1, 3, ReplicaKey(2, UUID(int=2)))
        assert await peers.request(destination, begin, 5_000) is None, "it does not serve that"
    await peers.close()


async def test_closing_ends_what_waits() -> None:
    peers = connection_peers(1)
    async with host() as (silent, destination):
        silent.is_silent = True
        waiting = [
            asyncio.ensure_future(peers.request(destination, request, 60_000))
            for request in (VOTE, FETCH, VOTE)
        ]
        await asyncio.sleep(0)
        await peers.close()
        assert await asyncio.gather(*waiting) == [None, None, None]


async def test_what_waits_for_one_peer_is_bounded() -> None:
    peers = connection_peers(1)
    async with host() as (silent, destination):
        silent.is_silent = True
        waiting = [
            asyncio.ensure_future(peers.request(destination, VOTE, 60_000)) for _ in range(40)
        ]
        await until_async(lambda: sum(each.done() for each in waiting) == 8, "those over the limit")
        await peers.close()
        assert await asyncio.gather(*waiting) == [None] * 40


async def test_addresses_that_are_asked_once_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers_module, "MAX_CHANNELS", 4)
    async with host() as (first, destination):
        peers = connection_peers(1)
        assert await peers.request(destination, KraftVersionRequest(), 1_000) is not None
        for port in range(1, 20):
            nowhere = Destination(port, "127.0.0.1", port)
            assert await peers.request(nowhere, KraftVersionRequest(), 1_000) is None
            assert len(peers.problems()) <= 4
        # The first one was forgotten too, and is asked again on its own connection.
        assert await peers.request(destination, KraftVersionRequest(), 1_000) is not None
        del first
        await peers.close()
