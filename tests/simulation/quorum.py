"""A quorum of simulated processes under faults, with clients and an operator.

Owns: the nodes and their disks, the requests between them, crashes and restarts, the end of the
faults and what must be true then. Must not: know how the core works inside. Invariant: everything
random comes from the scheduler's one source, so that a seed is a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.raft import core as raft_core
from moldau.raft.core import effects as ef
from moldau.raft.core.messages import PeerResponse
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from tests.kit.seeds import Violation
from tests.simulation.checks import Checks, key_of, may_be
from tests.simulation.disk import Batch, Disk
from tests.simulation.disk_troubles import DiskTroubles
from tests.simulation.ledger import Ledger
from tests.simulation.nemesis import Nemesis, NetworkFaults
from tests.simulation.network import Network
from tests.simulation.process_faults import Operator, ProcessFaults
from tests.simulation.replica import Pending, Replica
from tests.simulation.scheduler import Scheduler

BASE_PORT = 9_000
PORTS_APART = 100
FAULTS_BEGIN_MS = 2_000.0
FAULT_DURATIONS_MS = (20_000.0, 40_000.0)
LEADER_MS = 30_000.0
"""So long after the end of the faults a majority follows one leader. The last crashes and pauses
may end 12 seconds after it.
"""
RECOVERY_MS = 90_000.0
"""So long after it every replica has caught up; on the slowest links 100 batches take a minute."""
FINAL_APPENDS = 3
FINAL_TRIES = 4
FINAL_APPEND_MS = 20_000.0
FULL_START_MS = 1_000.0
UNLIMITED_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Node:
    """A machine: at most one process runs on its disk."""

    node_id: int
    is_controller: bool
    directory_id: UUID
    disk: Disk
    bootstrap_voters: VoterSet
    moves: int = 0
    """How often it has got another port."""
    incarnation: int = 0
    replica: Replica | None = None
    wiped: dict[ReplicaKey, Disk] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Where its controller listens; no port is ever another node's."""
        return BASE_PORT + self.node_id + PORTS_APART * self.moves

    @property
    def endpoints(self) -> tuple[VoterEndpoint, ...]:
        """The same as voters records have it."""
        return (VoterEndpoint("CONTROLLER", f"node-{self.node_id}", self.port),)

    @property
    def key(self) -> ReplicaKey:
        """Its identity now."""
        return ReplicaKey(self.node_id, self.directory_id)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed's cluster looks like."""

    voter_count: int
    spare_count: int
    observer_count: int
    is_dynamic: bool
    snapshot_interval: int
    snapshots_kept: int
    appends_per_second: float
    election_timeout_ms: int
    fetch_timeout_ms: int
    fetch_max_bytes: int
    fetch_snapshot_max_bytes: int


class QuorumSimulation:
    """One seed."""

    def __init__(self, seed: int, *, print_trace: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(f"quorum-{seed}", print_trace=print_trace)
        self.random = self.scheduler.random
        self.ledger = Ledger()
        self.network = Network(self.scheduler)
        self.shape = self._draw_shape()
        self.snapshot_interval = self.shape.snapshot_interval
        self.snapshots_kept = self.shape.snapshots_kept
        self.checks = Checks(self)
        self.damage_rate = 0.0
        self.calm = False
        self._payload = 0
        self._disk_number = 0
        self.nodes: dict[int, Node] = {}
        self._build_nodes()
        self.network.reset_listeners.append(self._connection_reset)
        self._waiting: dict[int, tuple[Replica, ef.Send, int]] = {}
        self._request_number = 0
        self.operator = Operator(self)
        self.faults = ProcessFaults(self)
        self.troubles = DiskTroubles(self)
        network_faults = NetworkFaults(self.network, list(self.nodes), self.leader_id)
        self.nemesis = Nemesis(
            self.scheduler,
            {**network_faults.actions(), **self.faults.actions(), **self.operator.actions()},
            favoured=("add-voter", "remove-voter"),
        )
        self.scheduler.note(f"shape {self.shape}")

    def _draw_shape(self) -> Shape:
        random = self.random
        is_slow = self.network.delay_range_ms[1] > 100
        is_dynamic = random.random() < 0.6
        election_timeout_ms, fetch_timeout_ms = (
            (1_000, 2_000) if is_slow else random.choice(((1_000, 2_000), (300, 600)))
        )
        fetch_max_bytes = random.choice((1, 500, UNLIMITED_BYTES))
        # A follower that gets a few batches for each round trip must be able to keep up.
        rates = (2.0, 10.0) if is_slow else (2.0, 10.0, 40.0)
        if fetch_max_bytes == 1:
            rates = (2.0,)
        return Shape(
            voter_count=random.choice((1, 3, 3, 3, 3, 5, 5)),
            spare_count=random.choice((0, 1, 2, 2)) if is_dynamic else 0,
            observer_count=random.choice((0, 0, 1, 2)),
            is_dynamic=is_dynamic,
            snapshot_interval=random.choice((3, 8, 25, 1_000_000)),
            snapshots_kept=random.choice((1, 1, 2)),
            appends_per_second=random.choice(rates),
            election_timeout_ms=election_timeout_ms,
            fetch_timeout_ms=fetch_timeout_ms,
            fetch_max_bytes=fetch_max_bytes,
            fetch_snapshot_max_bytes=random.choice((300, UNLIMITED_BYTES)),
        )

    # Nodes

    def new_disk(self) -> Disk:
        """An empty one."""
        self._disk_number += 1
        disk = Disk(self._disk_number)
        disk.flush_latency_ms = self.random.choice((0.1, 1.0, 5.0, 20.0))
        return disk

    def new_directory_id(self) -> UUID:
        """A random one, as `storage format` draws it."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def _build_nodes(self) -> None:
        shape = self.shape
        count = shape.voter_count + shape.spare_count + shape.observer_count
        for node_id in range(1, count + 1):
            is_controller = node_id <= shape.voter_count + shape.spare_count
            self.nodes[node_id] = Node(
                node_id, is_controller, self.new_directory_id(), self.new_disk(), VoterSet()
            )
        first = list(self.nodes.values())[: shape.voter_count]
        if shape.is_dynamic:
            voters = VoterSet(tuple(self.description(node) for node in first), 1)
            for node in first:
                node.bootstrap_voters = voters
        else:
            voters = VoterSet(
                tuple(self.description(node)._replace(directory_id=ZERO_UUID) for node in first),
                0,
            )
            for node in self.nodes.values():
                node.bootstrap_voters = voters

    @staticmethod
    def description(node: Node) -> VoterDescription:
        """The node as a voter."""
        return VoterDescription(node.node_id, node.directory_id, node.endpoints)

    def disk_of(self, key: ReplicaKey) -> Disk | None:
        """The disk with this identity; None when it has been wiped since."""
        node = self.nodes.get(key.node_id)
        return node.disk if node is not None and may_be(node.key, key) else None

    def disk_that_was(self, key: ReplicaKey) -> Disk | None:
        """The same, and for a wiped one what was on it at the end: it did hold that once, and its
        identity never votes again.
        """
        node = self.nodes.get(key.node_id)
        return self.disk_of(key) or (node.wiped.get(key) if node is not None else None)

    def replicas(self) -> Iterator[Replica]:
        """The processes that run."""
        for node in self.nodes.values():
            if node.replica is not None:
                yield node.replica

    def leaders(self) -> list[Replica]:
        """The nodes that believe to lead."""
        return [each for each in self.replicas() if each.core.state.role is raft_core.Role.LEADER]

    def leader(self) -> Replica | None:
        """The one with the highest epoch."""
        return max(self.leaders(), key=lambda each: each.core.state.leader_epoch, default=None)

    def leader_id(self) -> int | None:
        """Its node."""
        leader = self.leader()
        return leader.node_id if leader is not None else None

    def start_node(self, node_id: int) -> None:
        """Starts a process, unless one runs."""
        node = self.nodes[node_id]
        if node.replica is not None:
            return
        if node.disk.is_full:  # no process starts on it; its supervisor tries again
            self.scheduler.after(FULL_START_MS, self.start_node, node_id)
            return
        node.incarnation += 1
        settings = QuorumSettings(
            local=node.key,
            endpoints=node.endpoints if node.is_controller else (),
            is_controller=node.is_controller,
            bootstrap_servers=tuple(
                Destination(-2 - position, f"node-{each.node_id}", each.port)
                for position, each in enumerate(self.controllers())
            ),
            election_timeout_ms=self.shape.election_timeout_ms,
            election_backoff_max_ms=self.shape.election_timeout_ms,
            fetch_timeout_ms=self.shape.fetch_timeout_ms,
            request_timeout_ms=self.shape.fetch_timeout_ms,
            fetch_max_bytes=self.shape.fetch_max_bytes,
            fetch_snapshot_max_bytes=self.shape.fetch_snapshot_max_bytes,
        )
        replica = Replica(self, settings, node.disk, node.incarnation, node.bootstrap_voters)
        node.replica = replica
        self.scheduler.note(f"{node_id} starts, disk {node.disk.number}")
        replica.start()

    def controllers(self) -> list[Node]:
        """The nodes that are or may become voters."""
        return [node for node in self.nodes.values() if node.is_controller]

    # Crashes

    def crash(self, node_id: int, *, power_loss: bool, restart_after_ms: float) -> None:
        """The process is gone, and with the power what the disk did not have yet."""
        node = self.nodes[node_id]
        replica = node.replica
        if replica is None:
            return
        replica.alive = False
        node.replica = None
        self.scheduler.note(f"{node_id} crashes {power_loss=}")
        self.faults.half_done(replica)
        if power_loss:
            node.disk.lose_power(self.random)
        for other in self.nodes:
            if other != node_id:
                self.network.reset(node_id, other)
        for number in [n for n, (asker, _, _) in self._waiting.items() if asker is replica]:
            del self._waiting[number]
        self.scheduler.after(restart_after_ms, self.start_node, node_id)

    def crash_inside(self, replica: Replica) -> None:
        """The crash that was armed."""
        effect = type(replica.in_progress).__name__
        self.scheduler.fault("crash-inside", f"{replica.node_id} {effect}")
        self.crash(
            replica.node_id,
            power_loss=self.random.random() < 0.5,
            restart_after_ms=self.faults.restart_delay_ms(),
        )

    def disk_failed(self, replica: Replica) -> None:
        """A node whose disk refuses stops; what it had not flushed is in doubt."""
        self.scheduler.note(f"{replica.node_id} stops: disk")
        replica.disk.fails_after = None
        self.crash(
            replica.node_id,
            power_loss=not (replica.disk.is_broken and replica.disk.keeps_cache),
            restart_after_ms=self.faults.restart_delay_ms(),
        )

    # Requests

    def send(self, replica: Replica, send: ef.Send) -> None:
        """A request leaves; it is answered once: by the peer, by a reset, or by the clock."""
        target = (send.destination.port - BASE_PORT) % PORTS_APART
        self._request_number += 1
        number = self._request_number
        self._waiting[number] = (replica, send, target)
        self.scheduler.after(send.timeout_ms, self._resolve, number, None)
        if self.nodes[target].port != send.destination.port or target == replica.node_id:
            self.scheduler.after(1.0, self._resolve, number, None)
            return
        source = replica.node_id

        def respond(response: PeerResponse) -> None:
            arrive: Callable[[], None] = lambda: self._resolve(number, response)  # noqa: E731
            self.network.send(target, source, arrive, may_repeat=False)

        def deliver() -> None:
            receiver = self.nodes[target].replica
            if receiver is None:
                self._resolve(number, None)
            else:
                receiver.receive(Pending(source, send.request, respond))

        self.network.send(source, target, deliver, may_repeat=True)

    def _resolve(self, number: int, response: PeerResponse | None) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            replica, send, target = waiting
            replica.answered(send, target, response)

    def _connection_reset(self, one: int, other: int) -> None:
        pair = (one, other), (other, one)
        numbers = [n for n, (asker, _, to) in self._waiting.items() if (asker.node_id, to) in pair]
        for number in numbers:
            self._resolve(number, None)

    def transmit(self, batches: list[Batch]) -> list[Batch]:
        """The batches as they arrive: rarely one is damaged."""
        if batches and self.damage_rate and self.random.random() < self.damage_rate:
            self.scheduler.fault("damaged-batch")
            position = self.random.randrange(len(batches))
            batches[position] = dataclasses.replace(batches[position], is_damaged=True)
        return batches

    def transmit_bytes(self, data: bytes) -> bytes:
        """The stretch of a snapshot as it arrives: rarely damaged."""
        if data and self.damage_rate and self.random.random() < self.damage_rate:
            self.scheduler.fault("damaged-snapshot")
            position = self.random.randrange(len(data))
            return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        return data

    def completed(self, replica: Replica, effect: ef.Complete) -> None:
        """An operation that the operator asked for has ended."""
        self.scheduler.note(f"{replica.node_id} completes {effect.token} {effect.error.name}")
        self.scheduler.counts[f"{effect.token[0]}-{effect.error is ErrorCode.NONE}"] += 1
        self.operator.completed(replica, effect)

    # Clients

    def next_payload(self) -> int:
        """A number that no record has had."""
        self._payload += 1
        return self._payload

    def _client(self) -> None:
        if self.calm:
            return
        believers = self.leaders()
        if believers:
            replica = self.random.choice(believers)
            count = self.random.choice((1, 1, 1, 2, 3))
            replica.append(tuple(self.next_payload() for _ in range(count)))
        self.scheduler.after(
            self.random.expovariate(self.shape.appends_per_second / 1_000), self._client
        )

    def _random_ticks(self) -> None:
        replicas = list(self.replicas())
        if replicas:
            self.random.choice(replicas).tick()
        self.scheduler.after(500.0, self._random_ticks)

    # The run

    def run(self) -> None:
        """Everything.

        Raises:
            Violation: what must not happen has happened.
        """
        try:
            self._run()
        except Violation:
            raise
        except Exception as error:  # whatever the core raises is a finding
            raise Violation(f"raised-{type(error).__name__}", str(error)) from error

    def _run(self) -> None:
        for node_id in self.nodes:
            self.scheduler.after(self.random.random() * 100, self.start_node, node_id)
        self.scheduler.after(500.0, self._client)
        self.scheduler.after(700.0, self._random_ticks)
        self.nemesis.start(FAULTS_BEGIN_MS)
        self.troubles.start(FAULTS_BEGIN_MS)
        self.faults.draw_rates()
        self.scheduler.run_until(FAULTS_BEGIN_MS + self.random.choice(FAULT_DURATIONS_MS))
        self._finish()

    def _finish(self) -> None:
        """The faults are over: a leader, one log, appends that succeed."""
        scheduler = self.scheduler
        scheduler.note("the faults are over")
        self.calm = True
        self.nemesis.stop()
        self.network.heal()
        self.faults.heal()
        self.troubles.heal()
        if not self.operator.can_recover():
            scheduler.counts["excused"] += 1
            return
        over_ms = scheduler.now_ms
        if not scheduler.run_until(over_ms + LEADER_MS, self._is_led):
            raise Violation("no-leader", self._describe())
        if not scheduler.run_until(over_ms + RECOVERY_MS, self._has_converged):
            raise Violation("no-convergence", self._describe())
        for _ in range(FINAL_APPENDS):
            if not any(self._append_arrives() for _ in range(FINAL_TRIES)):
                raise Violation("append-fails", self._describe())
        self._check_acknowledged()

    def _append_arrives(self) -> bool:
        """Whether a client's record is acknowledged, and then everywhere. A leader that was asked
        to shut down before the faults ended may still go.
        """
        leader = self.leader()
        if leader is None:
            return False
        payload = self.next_payload()
        leader.append((payload,))

        def everywhere() -> bool:
            return payload in self.ledger.acknowledged and self._has_converged()

        return self.scheduler.run_until(self.scheduler.now_ms + FINAL_APPEND_MS, everywhere)

    def _is_led(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        voters = leader.core.state.voters.latest.voters
        following = [
            voter
            for voter in voters
            if (replica := self.nodes[voter.voter_id].replica) is not None
            and replica.core.state.leadership.leader_id == leader.node_id
            and replica.core.state.leader_epoch == leader.core.state.leader_epoch
        ]
        return 2 * len(following) > len(voters)

    def _has_converged(self) -> bool:
        leader = self.leader()
        if leader is None or len(list(self.replicas())) < len(self.nodes):
            return False
        epoch, end = leader.core.state.leader_epoch, leader.log.end()
        return leader.core.state.high_watermark == end and all(
            each.core.state.leader_epoch == epoch
            and each.core.state.leadership.leader_id == leader.node_id
            and each.applied_offset == end
            and not each.waiters
            for each in self.replicas()
        )

    def _describe(self) -> str:
        return "; ".join(
            f"{each.who} {each.core.state.role.name} epoch={each.core.state.leader_epoch}"
            f" leader={each.core.state.leadership.leader_id}"
            f" log={each.log.start()}..{each.log.end()}"
            f" hw={each.core.state.high_watermark} applied={each.applied_offset}"
            f" voters={[str(key_of(voter)) for voter in each.core.state.voters.latest.voters]}"
            for each in self.replicas()
        )

    def _check_acknowledged(self) -> None:
        for payload, offset in self.ledger.acknowledged.items():
            if self.ledger.at(offset)[1] != payload:
                raise Violation("acknowledged-lost", f"{payload} at {offset}")
