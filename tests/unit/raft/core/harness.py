"""The simplest driver there is: a replica's log in memory, its effects carried out at once.

Owns: MemoryLog, Replica (one core with its log, which a crash cuts back to what was flushed), and
Cluster (a virtual clock, and requests that travel when the test says so). Must not: be lenient: an
effect that a real driver could not carry out fails the test.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import QuorumCore, Role, VoterHistory
from moldau.raft.core.effects import (
    AdvanceHighWatermark,
    AppendEpochStart,
    AppendFetched,
    AppendVoters,
    Effect,
    Persist,
    ReadRecords,
    ReadSnapshot,
    Reply,
    Send,
    Stop,
    Truncate,
    WriteSnapshotChunk,
)
from moldau.raft.core.messages import FetchResponse, FetchSnapshotResponse, PeerResponse
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.settings import Random as RandomPort
from moldau.raft.core.values import (
    Destination,
    ElectionState,
    EpochEnd,
    ReplicaKey,
    SnapshotId,
)
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from tests.unit.raft.core.transcript import effect_line


def directory(node_id: int, disk: int = 0) -> UUID:
    """The directory id of a node's disk."""
    return UUID(int=(node_id + 1) * 1000 + disk)


def key(node_id: int, disk: int = 0) -> ReplicaKey:
    """A node as a replica."""
    return ReplicaKey(node_id, directory(node_id, disk))


def endpoints(node_id: int) -> tuple[VoterEndpoint, ...]:
    """Where a node listens."""
    return (VoterEndpoint("CONTROLLER", f"node{node_id}", 9093),)


def described(node_id: int, disk: int = 0) -> VoterDescription:
    """A node as a voter."""
    return VoterDescription(node_id, directory(node_id, disk), endpoints(node_id))


def voter_set(*node_ids: int, kraft_version: int = 1) -> VoterSet:
    """These nodes as voters."""
    if kraft_version == 0:
        return VoterSet(
            tuple(VoterDescription(each, UUID(int=0), endpoints(each)) for each in node_ids)
        )
    return VoterSet(tuple(described(each) for each in node_ids), kraft_version)


@dataclass(frozen=True, slots=True)
class Record:
    """One record, a batch by itself."""

    leader_epoch: int
    value: Any
    voters: VoterSet | None = None


class MemoryLog:
    """A LogView over a list."""

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Record] = []
        self.flushed = 0
        self.snapshots: dict[SnapshotId, tuple[list[Record], VoterSet]] = {}

    @property
    def log_start_offset(self) -> int:
        return self.start

    @property
    def log_end_offset(self) -> int:
        return self.start + len(self.records)

    @property
    def last_leader_epoch(self) -> int:
        if self.records:
            return self.records[-1].leader_epoch
        latest = self.latest_snapshot
        return latest.leader_epoch if latest is not None else 0

    def _at_start(self) -> SnapshotId | None:
        return next((each for each in self.snapshots if each.end_offset == self.start), None)

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        found = EpochEnd(0, self.start)
        at_start = self._at_start()
        if at_start is not None and at_start.leader_epoch <= leader_epoch:
            found = EpochEnd(at_start.leader_epoch, self.start)
        for offset, record in enumerate(self.records, self.start):
            if record.leader_epoch <= leader_epoch:
                found = EpochEnd(record.leader_epoch, offset + 1)
        return found

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self.snapshots, default=None)

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return min(self.snapshots, default=None)

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        return snapshot_id in self.snapshots

    def read(self, start_offset: int, end_offset: int) -> list[Record]:
        assert self.start <= start_offset <= end_offset <= self.log_end_offset
        return self.records[start_offset - self.start : end_offset - self.start]

    def append(self, *records: Record) -> None:
        for record in records:
            assert record.leader_epoch >= self.last_leader_epoch
            self.records.append(record)

    def truncate(self, end_offset: int) -> None:
        assert self.start <= end_offset < self.log_end_offset
        del self.records[end_offset - self.start :]
        self.flushed = min(self.flushed, end_offset)

    def flush(self) -> None:
        self.flushed = self.log_end_offset

    def lose_what_is_not_flushed(self) -> None:
        del self.records[max(0, self.flushed - self.start) :]


@dataclass
class InFlight:
    """A request on its way, or its answer."""

    sender: int
    incarnation: int
    send: Send
    token: tuple[int, int]


@dataclass
class Replica:
    """One node: core, disk, and everything its effects have reported."""

    node_id: int
    base: VoterSet
    cluster: Cluster
    disk: int = 0
    settings: QuorumSettings | None = None
    log: MemoryLog = field(default_factory=MemoryLog)
    election: ElectionState = field(default_factory=ElectionState)
    committed: int = 0
    core: QuorumCore | None = None
    effects: list[Effect] = field(default_factory=list)
    stopped: str | None = None
    incarnation: int = 0
    flushes: bool = True
    chunks: bytes = b""

    def start(self) -> None:
        """Come up with what is on disk."""
        self.incarnation += 1
        self.log.flush()
        settings = self.settings or self.cluster.settings_for(self.node_id, self.disk)
        latest = self.log.latest_snapshot
        at_start = next(
            (each for each in self.log.snapshots if each.end_offset == self.log.start), None
        )
        base = self.log.snapshots[at_start][1] if at_start is not None else self.base
        history = VoterHistory(base)
        for offset, record in enumerate(self.log.records, self.log.start):
            if record.voters is not None:
                history.append(offset, record.voters)
        self.core = QuorumCore(
            settings,
            self.cluster.random,
            self.log,
            election=self.election,
            voters=history,
            high_watermark=latest.end_offset if latest is not None else 0,
        )
        self.committed = self.core.state.high_watermark
        self.run(self.core.start(self.cluster.now_ms))

    def crash(self, *, power_loss: bool = True) -> None:
        """Stop at once, with what is on disk."""
        self.core = None
        if power_loss:
            self.log.lose_what_is_not_flushed()

    @property
    def role(self) -> Role:
        assert self.core is not None
        return self.core.state.role

    def run(self, effects: list[Effect]) -> None:
        """Carry them out in order, and what they cause after them."""
        queue = list(effects)
        while queue:
            effect = queue.pop(0)
            self.effects.append(effect)
            self.cluster.trace(self, effect)
            queue += self._run_one(effect)

    def _run_one(self, effect: Effect) -> list[Effect]:
        log = self.log
        match effect:
            case Persist(state):
                self.election = state
            case Truncate(end_offset):
                assert end_offset >= self.committed, "truncated committed records"
                log.truncate(end_offset)
            case AppendEpochStart():
                voters = effect.voters
                return self._append(Record(effect.leader_epoch, "start", voters))
            case AppendVoters():
                return self._append(Record(effect.leader_epoch, "voters", effect.voters))
            case AppendFetched(base_offset, leader_epoch, data):
                assert base_offset == log.log_end_offset
                records = pickle.loads(bytes(data))
                assert all(record.leader_epoch <= leader_epoch for record in records)
                return self._append(*records, flush=True)
            case WriteSnapshotChunk(snapshot_id, position, data, is_last):
                self.chunks = self.chunks[:position] + bytes(data)
                if is_last:
                    return self._install(snapshot_id)
            case Send():
                self.cluster.sent(self, effect)
            case Reply(token, response):
                self.cluster.answered(token, response)
            case ReadRecords(token, start, end, _, response):
                assert isinstance(response, FetchResponse)
                data = pickle.dumps(log.read(start, end))
                self.cluster.answered(token, replace(response, records=data))
            case ReadSnapshot():
                self._read_snapshot(effect)
            case AdvanceHighWatermark(high_watermark):
                assert self.committed < high_watermark <= log.log_end_offset
                self.committed = high_watermark
                self.cluster.committed(self)
            case Stop(reason):
                self.stopped = reason
        return []

    def _append(self, *records: Record, flush: bool = False) -> list[Effect]:
        assert self.core is not None
        base = self.log.log_end_offset
        self.log.append(*records)
        voters = [(offset, each.voters) for offset, each in enumerate(records, base) if each.voters]
        effects = self.core.on_appended(self.cluster.now_ms, voters)
        if flush or self.flushes:
            effects += self.flush_effects()
        return effects

    def flush_effects(self) -> list[Effect]:
        assert self.core is not None
        self.log.flush()
        return self.core.on_flushed(self.log.flushed, self.cluster.now_ms)

    def flush(self) -> None:
        self.run(self.flush_effects())

    def propose(self, value: Any) -> None:
        """A leader's own record."""
        assert self.core is not None
        assert self.core.state.role is Role.LEADER
        self.run(self._append(Record(self.core.state.leader_epoch, value)))

    def snapshot(self, end_offset: int | None = None, *, trim: bool = True) -> SnapshotId:
        """Write a snapshot of what is committed, and drop the log below it."""
        assert self.core is not None
        end_offset = self.committed if end_offset is None else end_offset
        assert self.log.start < end_offset <= self.committed
        kept = self.log.records[: end_offset - self.log.start]
        snapshot_id = SnapshotId(end_offset, kept[-1].leader_epoch)
        before: list[Record] = []
        latest = self.log.latest_snapshot
        if latest is not None:
            before = self.log.snapshots[latest][0][: self.log.start]
        voters = self.base
        if latest is not None:
            voters = self.log.snapshots[latest][1]
        for record in kept:
            voters = record.voters or voters
        if trim:
            self.log.snapshots.clear()
            del self.log.records[: end_offset - self.log.start]
            self.log.start = end_offset
        self.log.snapshots[snapshot_id] = (before + kept, voters)
        self.run(self.core.on_snapshot_written(self.cluster.now_ms))
        return snapshot_id

    def _read_snapshot(self, effect: ReadSnapshot) -> None:
        data = pickle.dumps(self.log.snapshots[effect.snapshot_id])
        response = effect.response
        assert isinstance(response, FetchSnapshotResponse)
        if effect.position >= len(data):
            response = replace(response, error=ErrorCode.POSITION_OUT_OF_RANGE)
        else:
            size = min(effect.max_bytes, self.cluster.chunk_bytes)
            chunk = data[effect.position : effect.position + size]
            response = replace(response, size_bytes=len(data), data=chunk)
        self.cluster.answered(effect.token, response)

    def _install(self, snapshot_id: SnapshotId) -> list[Effect]:
        assert self.core is not None
        records, voters = pickle.loads(self.chunks)
        self.log.snapshots = {snapshot_id: (records, voters)}
        self.log.start = self.log.flushed = snapshot_id.end_offset
        self.log.records.clear()
        return self.core.on_snapshot_installed(snapshot_id, voters, self.cluster.now_ms)

    def history(self) -> list[Record]:
        """Every committed record from offset 0, by way of the snapshot."""
        latest = self.log.earliest_snapshot
        before = self.log.snapshots[latest][0] if latest is not None and self.log.start else []
        return [*before[: self.log.start], *self.log.read(self.log.start, self.committed)]


class Cluster:
    """Replicas, a clock, and the requests between them; checks what must always hold."""

    def __init__(
        self,
        voters: VoterSet,
        *,
        observers: tuple[int, ...] = (),
        seed: int = 1,
        controllers: tuple[int, ...] | None = None,
        random: RandomPort | None = None,
    ) -> None:
        self.now_ms = 1_000.0
        self.random: RandomPort = random or Random(seed)
        self.chunk_bytes = 200
        self.controllers = controllers
        self.requests: list[InFlight] = []
        self.responses: list[tuple[InFlight, PeerResponse | None]] = []
        self.waiting: dict[tuple[int, int], InFlight] = {}
        self.lines: list[str] = []
        self.cut: set[tuple[int, int]] = set()
        self.leaders: dict[int, int] = {}
        self.agreed: list[Record] = []
        self._tokens = 0
        self.bootstrap = tuple(
            Destination(voter.voter_id, voter.endpoints[0].host, 9093) for voter in voters.voters
        )
        self.replicas: dict[int, Replica] = {}
        for node_id in [*(voter.voter_id for voter in voters.voters), *observers]:
            self.replicas[node_id] = Replica(node_id, voters, self)

    def settings_for(self, node_id: int, disk: int) -> QuorumSettings:
        is_controller = self.controllers is None or node_id in self.controllers
        return QuorumSettings(
            local=key(node_id, disk),
            endpoints=endpoints(node_id),
            is_controller=is_controller,
            bootstrap_servers=self.bootstrap,
        )

    def __getitem__(self, node_id: int) -> Replica:
        return self.replicas[node_id]

    def live(self) -> Iterator[Replica]:
        return (each for each in self.replicas.values() if each.core is not None)

    def start(self) -> None:
        for replica in self.replicas.values():
            replica.start()

    # -- what must always hold ----------------------------------------------------------------

    def trace(self, replica: Replica, effect: Effect) -> None:
        self.lines.append(f"{replica.node_id} {effect_line(effect)}")
        if isinstance(effect, AppendEpochStart):
            known = self.leaders.setdefault(effect.leader_epoch, replica.node_id)
            assert known == replica.node_id, f"two leaders in epoch {effect.leader_epoch}"

    def committed(self, replica: Replica) -> None:
        history = replica.history()
        shared = min(len(history), len(self.agreed))
        assert history[:shared] == self.agreed[:shared], "committed records differ"
        self.agreed += history[shared:]

    # -- the network --------------------------------------------------------------------------

    def sent(self, replica: Replica, send: Send) -> None:
        self._tokens += 1
        token = (replica.node_id, self._tokens)
        self.requests.append(InFlight(replica.node_id, replica.incarnation, send, token))

    def answered(self, token: tuple[int, int], response: PeerResponse) -> None:
        in_flight = self.waiting.pop(token, None)
        if in_flight is not None:
            self.responses.append((in_flight, response))

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut

    def isolate(self, node_id: int) -> None:
        for other in self.replicas:
            self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()

    def node_at(self, destination: Destination) -> int:
        return int(destination.host.removeprefix("node"))

    def deliver_request(self, in_flight: InFlight) -> None:
        to = self.replicas.get(self.node_at(in_flight.send.destination))
        if to is None or to.core is None or self.is_cut(in_flight.sender, to.node_id):
            self.responses.append((in_flight, None))
            return
        self.waiting[in_flight.token] = in_flight
        to.run(to.core.on_request(in_flight.send.request, in_flight.token, self.now_ms))

    def deliver_response(self, in_flight: InFlight, response: PeerResponse | None) -> None:
        replica = self.replicas[in_flight.sender]
        if replica.core is None or replica.incarnation != in_flight.incarnation:
            return
        peer = self.node_at(in_flight.send.destination)
        if self.is_cut(peer, replica.node_id):
            response = None
        replica.run(replica.core.on_response(in_flight.send, response, self.now_ms))

    def fail_waiting(self, node_id: int) -> None:
        """The node is gone: a node that waits for its answer hears so."""
        for token, in_flight in list(self.waiting.items()):
            if self.node_at(in_flight.send.destination) == node_id:
                del self.waiting[token]
                self.responses.append((in_flight, None))

    def step(self) -> bool:
        """Deliver one message, the oldest. Returns whether there was one."""
        if self.responses:
            self.deliver_response(*self.responses.pop(0))
        elif self.requests:
            self.deliver_request(self.requests.pop(0))
        else:
            return False
        return True

    def settle(self, limit: int = 2_000) -> None:
        """Deliver everything that is on its way now, without time going by."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("messages go round and round")

    def next_ms(self) -> float:
        ticks = [each.core.next_tick_ms() for each in self.live() if each.core is not None]
        return min((each for each in ticks if each is not None), default=float("inf"))

    def advance(self, until_ms: float) -> None:
        """Let time go by, with everything that is due."""
        for _ in range(20_000):
            self.settle()
            due_ms = self.next_ms()
            if due_ms > until_ms:
                self.now_ms = max(self.now_ms, until_ms)
                return
            self.now_ms = max(self.now_ms + 1, due_ms)
            for replica in list(self.live()):
                assert replica.core is not None
                replica.run(replica.core.tick(self.now_ms))
        raise AssertionError("too many ticks")

    def run_for(self, duration_ms: float) -> None:
        self.advance(self.now_ms + duration_ms)

    def crash(self, node_id: int, *, power_loss: bool = True) -> None:
        self[node_id].crash(power_loss=power_loss)
        self.fail_waiting(node_id)

    @staticmethod
    def key_of(voter: VoterDescription) -> ReplicaKey:
        return ReplicaKey(voter.voter_id, voter.directory_id)

    def wipe(self, node_id: int) -> None:
        """A new disk, formatted for the same node, and a new start."""
        replica = self[node_id]
        replica.disk += 1
        replica.log, replica.election, replica.base = MemoryLog(), ElectionState(), VoterSet((), 1)
        replica.start()

    def leader(self) -> Replica:
        """The one leader of the highest epoch."""
        leaders = [each for each in self.live() if each.role is Role.LEADER]
        assert leaders, [(each.node_id, each.role) for each in self.live()]
        return max(leaders, key=lambda each: each.core.state.leader_epoch if each.core else 0)

    def elect(self) -> Replica:
        """Run until there is a leader that has committed in its epoch."""
        for _ in range(100):
            self.run_for(250)
            leaders = [each for each in self.live() if each.role is Role.LEADER]
            if leaders:
                leader = self.leader()
                assert leader.core is not None
                if leader.core.state.high_watermark > leader.core.state.epoch_start_offset:
                    return leader
        raise AssertionError("no leader in 25 virtual seconds")

    def elect_another(self, than: int) -> Replica:
        """Run until another voter leads a later epoch and has committed in it."""
        for _ in range(100):
            self.run_for(250)
            for each in self.live():
                core = each.core
                assert core is not None
                if (
                    each.node_id != than
                    and core.state.role is Role.LEADER
                    and core.state.high_watermark > core.state.epoch_start_offset
                ):
                    return each
        raise AssertionError("no other leader in 25 virtual seconds")
