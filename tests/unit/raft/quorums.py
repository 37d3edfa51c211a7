"""Several metadata logs of one quorum in one loop, on simulated disks and one manual clock.

Every request and answer goes through the protocol's bytes, in the version the network speaks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.metadata_records import TopicRecord
from moldau.protocol.schema import Message
from moldau.raft import (
    MetadataLogSettings,
    QuorumLog,
    RaftRequestHandler,
    VoterDescription,
    VoterEndpoint,
    VoterSet,
    write_bootstrap,
)
from moldau.raft.core.messages import (
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    PeerResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.raft.wire import decode_response, encode_request
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_disk import DirectoryNode
from tests.storage.simulated_filesystem import SimulatedFilesystem

from .fixtures import DIRECTORY, Listener

CLUSTER_ID = "cluster-of-the-tests"
LISTENER = "CONTROLLER"
STEP_MS = 5.0
MAX_VIRTUAL_MS = 60_000.0
LOOP_TURNS = 12
"""Turns of the loop that nothing needs more of before time must pass."""


def endpoint_of(node_id: int) -> VoterEndpoint:
    return VoterEndpoint(LISTENER, f"host{node_id}", 9093)


def voters_of(*node_ids: int) -> VoterSet:
    return VoterSet(
        tuple(
            VoterDescription(each, UUID(int=0x1000 + each), (endpoint_of(each),))
            for each in node_ids
        ),
        1,
    )


class SlowFilesystem(SimulatedFilesystem):
    """What is offloaded takes some turns of the loop, so that other things happen in between."""

    def __init__(self, dice: random.Random, root: DirectoryNode | None = None) -> None:
        super().__init__(root)
        self._dice = dice
        self.held_before: dict[str, asyncio.Event] = {}
        """Functions by their name that are not begun before the event."""
        self.held_after: dict[str, asyncio.Event] = {}
        """Those whose end no node hears before the event."""

    async def offload(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        if (held := self.held_before.get(name)) is not None:
            await held.wait()
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
        result = await super().offload(function, *args, **kwargs)
        if (held := self.held_after.get(name)) is not None:
            await held.wait()
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
        return result


class Network:
    """Hosts by name; `cut` holds pairs (from, to) that nothing passes."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.cut: set[tuple[int, int]] = set()
        self.max_version: dict[type[Message], int] = {}
        self.tamper: Callable[[int, Any], None] | None = None
        """Called with the asking node and the decoded answer, which it may change."""
        self.requests: list[tuple[int, int, PeerRequest]] = []
        self.votes: list[tuple[int, int, ReplicaKey]] = []
        """Every vote that was given: voter, epoch, candidate."""

    def isolate(self, node_id: int) -> None:
        for other in self.quorum.nodes:
            self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()


class Peers:
    """One node's way to the others."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id
        self.is_dead = False

    def _passes(self, target: int) -> bool:
        node = self._network.quorum.nodes.get(target)
        return (
            not self.is_dead
            and node is not None
            and node.handler is not None
            and ((self._node_id, target) not in self._network.cut)
        )

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        await asyncio.sleep(0)
        target = int(destination.host.removeprefix("host"))
        self._network.requests.append((self._node_id, target, request))
        if not self._passes(target):
            return None
        if isinstance(request, KraftVersionRequest):
            return KraftVersionResponse(ErrorCode.NONE, 0, 1)
        handler = self._network.quorum.nodes[target].handler
        assert handler is not None
        maximum = self._network.max_version

        def version_of(request_class: type[Message]) -> int:
            return maximum.get(request_class, request_class.MAX_VERSION)

        message, version = encode_request(request, version_of, CLUSTER_ID)
        received, _ = type(message).decode(message.to_bytes(version), version)
        answering = asyncio.ensure_future(handler.handle(received, version, "127.0.0.1"))
        gone = asyncio.get_running_loop().create_future()
        timer = self._network.quorum.clock.call_later(timeout_ms, gone.cancel)
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        gone.cancel()
        if not answering.done():
            answering.cancel()
            return None
        answer = answering.result()
        if self.is_dead or (target, self._node_id) in self._network.cut:
            return None
        data = answer.to_bytes(version)
        decoded: Any
        decoded, _ = type(answer).decode(data, version)
        if self._network.tamper is not None:
            self._network.tamper(self._node_id, decoded)
        try:
            response = decode_response(request, decoded, LISTENER)
            if (
                isinstance(request, VoteRequest)
                and isinstance(response, VoteResponse)
                and response.vote_granted
                and not request.pre_vote
            ):
                self._network.votes.append((target, request.leader_epoch, request.candidate))
            return response
        except RemoteProtocolError:
            return None

    async def close(self) -> None:
        """Nothing is held open."""


class Node:
    """One replica: a disk that outlives it, the log while it runs, what its listener heard."""

    def __init__(self, quorum: Quorum, node_id: int, **changes: Any) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.changes = changes
        self.filesystem = SlowFilesystem(quorum.dice)
        self.log: QuorumLog | None = None
        self.handler: RaftRequestHandler | None = None
        self.listener = Listener()
        self.fatal: list[str] = []
        self.start_count = 0
        self.former: list[QuorumLog] = []
        self.peers: Peers | None = None

    @property
    def running(self) -> QuorumLog:
        assert self.log is not None
        return self.log

    @property
    def directory_id(self) -> UUID:
        local: ReplicaKey | None = self.changes.get("local")
        return local.directory_id if local else UUID(int=0x1000 + self.node_id)

    def format(self, voters: VoterSet) -> None:
        write_bootstrap(self.filesystem, DIRECTORY, [(TopicRecord(name="b"), 0)], voters, now_ms=5)

    async def start(self) -> QuorumLog:
        self.start_count += 1
        settings = MetadataLogSettings(
            metadata_directory=DIRECTORY,
            local=ReplicaKey(self.node_id, self.directory_id),
            endpoints=(endpoint_of(self.node_id),),
            bootstrap_servers=tuple(
                Destination(-2 - number, f"host{each}", 9093)
                for number, each in enumerate(self.quorum.bootstrap)
            ),
            segment_bytes=8 * 1024 * 1024,
            segment_index_bytes=4096,
        )
        seed = self.quorum.seed * 1000 + self.node_id * 100 + self.start_count
        peers = self.peers = Peers(self.quorum.network, self.node_id)
        log = await QuorumLog.open(
            self.filesystem,
            self.quorum.clock,
            replace(settings, **self.changes),
            self.fatal.append,
            peers=peers,
            dice=random.Random(seed),
        )
        self.log = log
        self.handler = RaftRequestHandler(
            log, CLUSTER_ID, clock=self.quorum.clock, listener_name=LISTENER
        )
        self.listener = Listener()
        log.add_listener(self.listener)
        return log

    def crash(self, *, lose_power: bool = False) -> None:
        """Gone in this instant; the disk is what a kill or a power loss leaves."""
        image = self.filesystem.image()
        root = image.after_power_loss(self.quorum.dice) if lose_power else image.after_kill()
        # The old process lives on where no node hears it, until the test is over.
        if self.log is not None:
            self.former.append(self.log)
        if self.peers is not None:
            self.peers.is_dead = True
        self.log = self.handler = None
        self.filesystem = SlowFilesystem(self.quorum.dice, root)

    async def stop(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            closing = asyncio.ensure_future(log.close())
            await self.quorum.until(closing.done)
            closing.result()
        self.handler = None

    def append(self, *names: str) -> int:
        log = self.running
        error, last_offset = log.append(
            [(TopicRecord(name=name), 0) for name in names], leader_epoch=log.state.leader_epoch
        )
        assert error is ErrorCode.NONE, error
        return last_offset


class Quorum:
    """`async with Quorum(1, 2, 3) as quorum`: formatted and started."""

    def __init__(self, *voter_ids: int, seed: int = 1, **changes: Any) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.clock = ManualClock()
        self.network = Network(self)
        self.bootstrap: Sequence[int] = voter_ids
        self.voters = voters_of(*voter_ids)
        self.nodes = {each: Node(self, each, **changes) for each in voter_ids}

    async def __aenter__(self) -> Quorum:
        print(f"seed {self.seed}")  # pytest shows it with a failure
        for node in self.nodes.values():
            node.format(self.voters)
            await node.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        logs = [node.log for node in self.nodes.values() if node.log is not None]
        for node in self.nodes.values():
            logs += node.former
        closing = [asyncio.ensure_future(log.close()) for log in logs]
        await self.until(lambda: all(each.done() for each in closing))

    def add(self, node_id: int, **changes: Any) -> Node:
        """A node that is no voter (yet), formatted without voters."""
        node = self.nodes[node_id] = Node(self, node_id, **changes)
        node.format(VoterSet())
        return node

    async def settle(self) -> None:
        """Let everything happen that needs no time to pass."""
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until `condition` holds."""
        deadline_ms = self.clock.monotonic_ms() + MAX_VIRTUAL_MS
        while not condition():
            assert self.clock.monotonic_ms() < deadline_ms, f"seed {self.seed}: never true"
            await self.settle()
            if condition():
                return
            self.clock.advance(STEP_MS)

    async def pass_ms(self, elapsed_ms: float) -> None:
        """Let so much virtual time pass."""
        end_ms = self.clock.monotonic_ms() + elapsed_ms
        await self.until(lambda: self.clock.monotonic_ms() >= end_ms)

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.log is not None and node.log.is_leader]

    async def leader(self, *, other_than: Node | None = None) -> Node:
        """The leader of the newest epoch, once every running node that can hear it knows it."""

        def elected() -> Node | None:
            found = [node for node in self.leaders() if node is not other_than]
            if not found:
                return None
            return max(found, key=lambda node: node.running.state.leader_epoch)

        await self.until(elected)
        node = elected()
        assert node is not None
        return node

    async def converged(self, *names: str) -> None:
        """Wait until every running node's listener has got exactly these topics."""
        running = [node for node in self.nodes.values() if node.log is not None]
        await self.until(lambda: all(node.listener.names == list(names) for node in running))


def changed_answers(change: Callable[[Any], None]) -> Callable[[int, Any], None]:
    """A `tamper` that changes the answers to fetches."""

    def tamper(_node_id: int, answer: Any) -> None:
        if hasattr(answer, "responses"):
            change(answer.responses[0].partitions[0])

    return tamper
