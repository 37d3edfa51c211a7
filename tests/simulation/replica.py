"""A process of the quorum: carries out QuorumCore's effects on a simulated disk and network.

Owns: the order of events and effects, the flush, the state machine that committed records make.
Must not: repair what the core does. Invariant: effects run strictly in order, each completely;
while one takes time (or the process is paused), events queue; a crash may come between any two and
inside each.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.raft import core as raft_core
from moldau.raft.core import effects as ef
from moldau.raft.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    PeerRequest,
    PeerResponse,
)
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import ReplicaKey, SnapshotId
from moldau.raft.core.voters import VoterSet
from tests.kit.seeds import Violation
from tests.simulation import snapshot_bytes
from tests.simulation.disk import Batch, Disk, DiskFailure, DiskLog, Snapshot

if TYPE_CHECKING:
    from tests.simulation.quorum import QuorumSimulation

TIMER_GRAIN_MS = 0.001
"""No timer is exact; and the sum of two clocks' floating point numbers is none either."""
OPERATOR = -1
"""Stands for a tool where a request's source is expected."""
PROBE_MS = 1_000.0
"""How often a replica without room looks for some."""
RECORD_BYTES = 100
"""What a record weighs against `max_bytes`."""

Event = Callable[[float], list[ef.Effect]]


class Pending:
    """A request that waits for its answer: the token the core is given with it."""

    __slots__ = ("answer", "request", "source")

    def __init__(
        self, source: int, request: PeerRequest, answer: Callable[[PeerResponse], None]
    ) -> None:
        self.source = source
        self.request = request
        self.answer = answer


@dataclasses.dataclass(slots=True)
class Waiter:
    """A client that waits for its records to be committed."""

    base_offset: int
    payloads: tuple[Any, ...]


class Replica:
    """One run of a node, from start to crash."""

    def __init__(
        self,
        world: QuorumSimulation,
        settings: QuorumSettings,
        disk: Disk,
        incarnation: int,
        bootstrap_voters: VoterSet,
    ) -> None:
        self.world = world
        self.settings = settings
        self.node_id = settings.local.node_id
        self.disk = disk
        self.log = DiskLog(disk)
        self.who = (self.node_id, incarnation)
        self.alive = True
        self.paused = False
        self.disk_failed = False
        self.crash_in: int | None = None
        self.in_progress: ef.Effect | None = None
        self.clock_offset_ms = world.random.randrange(1_000_000) * 1.0
        self.waiters: list[Waiter] = []
        self.partial_snapshot: tuple[SnapshotId, bytearray] | None = None
        self._inbox: deque[tuple[str, object, Event]] = deque()
        self._effects: deque[ef.Effect] = deque()
        self._busy = False
        self._pumping = False
        self._timer_due_ms: float | None = None
        self._tick_queued = False
        self._flushing = False
        self._flush_again = False
        self._flushing_end = 0
        self.flushed_end_offset = 0
        self._snapshot_running = False
        self.lacks_room = False
        self._recover(bootstrap_voters)

    def _recover(self, bootstrap_voters: VoterSet) -> None:
        disk = self.disk
        disk.recover()
        self.world.checks.persisted(self, disk.election)
        latest = max(disk.snapshots, default=None)
        self.applied_offset = latest.end_offset if latest else 0
        self.applied_count = disk.snapshots[latest].applied_count if latest else 0
        self.state_digest = disk.snapshots[latest].state_digest if latest else 0
        base = bootstrap_voters
        for snapshot_id, snapshot in disk.snapshots.items():
            if snapshot_id.end_offset == disk.log.start:
                base = snapshot.voters
        self.history = raft_core.VoterHistory(base)
        for batch in disk.log.batches:
            if batch.voters is not None:
                self.history.append(batch.end_offset - 1, batch.voters)
        self.flushed_end_offset = disk.log.end
        self.seen_epoch = disk.election.leader_epoch
        self.seen_high_watermark = self.applied_offset
        self.led_epoch = -1
        self.core = raft_core.QuorumCore(
            self.settings,
            self.world.random,
            self.log,
            election=disk.election,
            voters=self.history,
            high_watermark=self.applied_offset,
        )

    # Events

    def now_ms(self) -> float:
        """This process's monotonic clock."""
        return self.world.scheduler.now_ms + self.clock_offset_ms

    def start(self) -> None:
        """The process begins."""
        self.offer("start", self.core.start)

    def offer(self, kind: str, event: Event, detail: object = "") -> None:
        """Queues an event for the core."""
        if self.alive:
            self._inbox.append((kind, detail, event))
            self.pump()

    def offer_next(self, kind: str, event: Event) -> None:
        """Queues an event that the core waits for: it comes before all others."""
        self._inbox.appendleft((kind, "", event))

    def pump(self) -> None:
        """Carries out effects and hands out events as long as nothing takes time."""
        if self._pumping:
            return
        self._pumping = True
        while self.alive and not self._busy and not self.paused:
            if self._effects:
                self._carry_out(self._effects.popleft())
            elif self._inbox:
                self._dispatch(*self._inbox.popleft())
            else:
                break
        self._pumping = False
        if self.alive:
            self._arm_timer()

    def _dispatch(self, kind: str, detail: object, event: Event) -> None:
        core = self.core
        effects = event(self.now_ms())
        self.world.scheduler.event(
            f"{self.node_id} {kind} | {core.state.role.name} epoch={core.state.leader_epoch}"
            f" log={self.log.start()}..{self.log.end()} hw={core.state.high_watermark}",
            detail,
        )
        self._effects.extend(effects)
        self.world.checks.after_event(self)

    def _arm_timer(self) -> None:
        due_ms = None if self._tick_queued else self.core.next_tick_ms()
        if due_ms is None or (self._timer_due_ms is not None and self._timer_due_ms <= due_ms):
            return
        self._timer_due_ms = due_ms
        delay_ms = max(0.0, due_ms - self.now_ms()) + TIMER_GRAIN_MS
        self.world.scheduler.after(delay_ms, self._timer, due_ms)

    def _timer(self, due_ms: float) -> None:
        if not self.alive or self._timer_due_ms != due_ms:
            return
        self._timer_due_ms = None
        self.tick()

    def tick(self) -> None:
        """The core's timer, or a tick that the core did not ask for."""
        if not self._tick_queued:
            self._tick_queued = True
            self.offer("tick", self._tick)

    def _tick(self, now_ms: float) -> list[ef.Effect]:
        self._tick_queued = False
        effects = self.core.tick(now_ms)
        self.world.checks.after_tick(self)
        return effects

    def receive(self, pending: Pending) -> None:
        """A request of a peer."""

        def event(now_ms: float) -> list[ef.Effect]:
            if pending.source != OPERATOR:
                self.world.checks.heard(self, pending.source, pending.request)
            return self.core.on_request(pending.request, pending, now_ms)

        kind = f"<- {pending.source} {type(pending.request).__name__}"
        self.offer(kind, event, pending.request)

    def answered(self, send: ef.Send, target: int | None, response: PeerResponse | None) -> None:
        """The answer to a request of ours; None when there is none."""

        def event(now_ms: float) -> list[ef.Effect]:
            if response is not None and target is not None:
                self.world.checks.heard(self, target, response)
            return self.core.on_response(send, response, now_ms)

        self.offer(f"<= {target} {type(response).__name__}", event, response)

    def append(self, payloads: tuple[Any, ...]) -> None:
        """A client's records."""
        self.offer(f"append {payloads}", lambda now_ms: self._append_data(payloads, now_ms))

    def _append_data(self, payloads: tuple[Any, ...], now_ms: float) -> list[ef.Effect]:
        if self.core.state.role is not raft_core.Role.LEADER:
            return []
        if self.disk.is_full:
            return self._no_room(now_ms, may_lead_on=True)
        batch = Batch(self.log.end(), self.core.state.leader_epoch, payloads)
        self._append(batch)
        self.waiters.append(Waiter(batch.base_offset, payloads))
        self.flush()
        return self.core.on_appended(now_ms)

    # A full disk

    def _no_room(self, now_ms: float, *, may_lead_on: bool) -> list[ef.Effect]:
        """A write found no room: the core hears of it, and a probe looks for room from now on."""
        if not self.lacks_room:
            self.lacks_room = True
            self.world.scheduler.after(PROBE_MS, self._probe)
        effects = self.core.on_no_room(now_ms, may_lead_on=may_lead_on)
        self.world.checks.found_no_room(self)
        return effects

    def _offer_no_room(self, *, may_lead_on: bool) -> None:
        self.offer_next("no room", lambda now: self._no_room(now, may_lead_on=may_lead_on))

    def _probe(self) -> None:
        if not self.alive:
            return
        if self.disk.is_full:
            self.world.scheduler.after(PROBE_MS, self._probe)
        else:
            self.offer("room", self._room)

    def _room(self, now_ms: float) -> list[ef.Effect]:
        self.lacks_room = False
        return self.core.on_room(now_ms)

    def _again(self, effect: ef.Effect) -> None:
        """An effect that waited for room, whose turn it is still."""
        if self.alive:
            self.world.checks.stood_still(self, PROBE_MS)
            self._busy = False
            self._effects.appendleft(effect)
            self.pump()

    # Effects

    def _carry_out(self, effect: ef.Effect) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.in_progress = effect
                self.world.crash_inside(self)
                return
        try:
            _HANDLERS[type(effect)](self, effect)
        except DiskFailure:
            self.in_progress = effect
            self.disk_failed = True
            self.world.disk_failed(self)

    def _take(self, effect: ef.Effect, finish: Callable[[], None]) -> None:
        """The effect takes the disk a while; nothing else happens until then."""
        latency_ms = self.disk.latency_ms(self.world.scheduler.now_ms, self.world.random)
        self._busy = True
        self.in_progress = effect
        self.world.scheduler.after(latency_ms, self._taken, finish)

    def _taken(self, finish: Callable[[], None]) -> None:
        if not self.alive:
            return
        self._busy = False
        self.in_progress = None
        finish()
        self.pump()

    def _persist(self, effect: ef.Persist) -> None:
        if self.disk.is_full:
            self._busy = True
            self.in_progress = effect
            self.world.scheduler.after(PROBE_MS, self._again, effect)
            return
        self.world.checks.persist(self, effect.state)

        def finish() -> None:
            self.disk.election = self.disk.durable_election = effect.state
            self.world.checks.persisted(self, effect.state)

        self.world.scheduler.note(f"{self.node_id} persists", effect.state)
        self._take(effect, finish)

    def _truncate(self, effect: ef.Truncate) -> None:
        self.world.scheduler.note(f"{self.node_id} truncates to {effect.end_offset}")
        for batch in self.disk.log.batches:
            if batch.end_offset > effect.end_offset:
                self.world.checks.erase(self, batch)
        self.disk.change_log("truncate", effect.end_offset)
        self.flushed_end_offset = min(self.flushed_end_offset, effect.end_offset)
        self._flushing_end = min(self._flushing_end, effect.end_offset)
        self.flush()

    def _append(self, batch: Batch) -> None:
        previous_epoch = self.log.last_leader_epoch
        for position, payload in enumerate(batch.payloads):
            self.world.ledger.append(
                self.who,
                batch.base_offset + position,
                (batch.leader_epoch, payload),
                previous_epoch if position == 0 else batch.leader_epoch,
            )
        if batch.voters is None and not batch.is_control:
            self.world.checks.data_appended(self, batch)
        self.disk.change_log("append", batch)

    def _append_control(self, batch: Batch) -> None:
        if self.disk.is_full:
            self._offer_no_room(may_lead_on=False)
            return
        self._append(batch)
        self.flush()
        voters = [] if batch.voters is None else [(batch.end_offset - 1, batch.voters)]
        self.offer_next("appended", lambda now_ms: self.core.on_appended(now_ms, voters))

    def _append_epoch_start(self, effect: ef.AppendEpochStart) -> None:
        payloads = [("leader-change", self.who, effect.leader_epoch)]
        if effect.voters is not None:
            payloads += [("kraft-version", self.who, effect.leader_epoch)]
            payloads += [("voters", self.who, effect.leader_epoch)]
        batch = Batch(
            self.log.end(), effect.leader_epoch, tuple(payloads), effect.voters, is_control=True
        )
        self._append_control(batch)

    def _append_voters(self, effect: ef.AppendVoters) -> None:
        self.world.checks.voters_appended(self, effect)
        number = self.world.next_payload()
        payloads = (("voters", number),)
        if effect.kraft_version_changed:
            payloads = (("kraft-version", number), *payloads)
        self._append_control(
            Batch(self.log.end(), effect.leader_epoch, payloads, effect.voters, is_control=True)
        )

    def _append_fetched(self, effect: ef.AppendFetched) -> None:
        if effect.base_offset != self.log.end():
            raise Violation("append-gap", f"{self.who}: {effect} at {self.log.end()}")
        voters = []
        appended = refused = False
        for batch in effect.records:
            if batch.is_damaged or self.disk.is_full:
                refused = True
                break
            if not self.log.last_leader_epoch <= batch.leader_epoch <= effect.leader_epoch:
                raise Violation("epoch-order", f"{self.who}: {batch} in {effect.leader_epoch}")
            if batch.base_offset != self.log.end():
                raise Violation("append-gap", f"{self.who}: {batch} at {self.log.end()}")
            self._append(batch)
            appended = True
            if batch.voters is not None:
                voters.append((batch.end_offset - 1, batch.voters))
        if refused:
            self.offer_next("refused", lambda now: self.core.on_append_refused(now))
        if refused and self.disk.is_full:
            self._offer_no_room(may_lead_on=True)
        if appended:
            self.flush()
            self.offer_next("appended", lambda now_ms: self.core.on_appended(now_ms, voters))

    def flush(self) -> None:
        """Group commit: one flush runs, at most one waits."""
        if self._flushing:
            self._flush_again = True
            return
        if self.disk.is_full:
            self._flushing = True
            self.world.scheduler.after(PROBE_MS, self._flush_once_more)
            self.offer("no room", lambda now: self._no_room(now, may_lead_on=True))
            return
        try:
            latency_ms = self.disk.latency_ms(self.world.scheduler.now_ms, self.world.random)
        except DiskFailure:
            self.disk_failed = True
            self.world.disk_failed(self)
            return
        self._flushing = True
        self._flushing_end = self.log.end()
        self.world.scheduler.after(latency_ms, self._flushed, len(self.disk.changes))

    def _flush_once_more(self) -> None:
        if self.alive:
            self._flushing = False
            self.flush()

    def _flushed(self, change_count: int) -> None:
        if not self.alive:
            return
        self._flushing = False
        self.disk.sync_log(change_count)
        self.flushed_end_offset = max(self.flushed_end_offset, self._flushing_end)
        self.offer("flushed", lambda now: self.core.on_flushed(self.flushed_end_offset, now))
        if self._flush_again and self.alive:
            self._flush_again = False
            self.flush()

    def _write_snapshot_chunk(self, effect: ef.WriteSnapshotChunk) -> None:
        if self.disk.is_full:
            self.partial_snapshot = None
            self.offer_next("refused", lambda now: self.core.on_snapshot_refused(now))
            self._offer_no_room(may_lead_on=True)
            return
        if effect.position == 0:
            self.partial_snapshot = (effect.snapshot_id, bytearray())
        partial = self.partial_snapshot
        if partial is None or partial[0] != effect.snapshot_id:
            raise Violation("snapshot-chunk", f"{self.who}: {effect} of another snapshot")
        if len(partial[1]) != effect.position:
            raise Violation("snapshot-chunk", f"{self.who}: {effect} at {len(partial[1])}")
        partial[1].extend(effect.data)
        if effect.is_last:
            self._take(effect, lambda: self._install(effect.snapshot_id, bytes(partial[1])))

    def _install(self, snapshot_id: SnapshotId, data: bytes) -> None:
        self.partial_snapshot = None
        snapshot = snapshot_bytes.decode(data)
        if snapshot is None or snapshot.snapshot_id != snapshot_id:
            self.offer_next(
                "snapshot refused",
                lambda now_ms: self.core.on_snapshot_refused(now_ms),
            )
            return
        self.world.checks.install(self, snapshot)
        self.disk.snapshots[snapshot_id] = snapshot
        self.disk.change_log("restart", snapshot_id.end_offset)
        for each in [each for each in self.disk.snapshots if each < snapshot_id]:
            del self.disk.snapshots[each]
        self.flushed_end_offset = self._flushing_end = snapshot_id.end_offset
        self.applied_offset = snapshot_id.end_offset
        self.applied_count = snapshot.applied_count
        self.state_digest = snapshot.state_digest
        self.world.scheduler.note(f"{self.node_id} installed {snapshot_id}")
        self.offer_next(
            "snapshot installed",
            lambda now_ms: self.core.on_snapshot_installed(snapshot_id, snapshot.voters, now_ms),
        )

    def _send(self, effect: ef.Send) -> None:
        self.world.checks.sends(self, effect.request)
        self.world.scheduler.note(
            f"{self.node_id} -> {effect.destination.port} {type(effect.request).__name__}",
            effect.request,
        )
        self.world.send(self, effect)

    def _reply(self, effect: ef.Reply) -> None:
        self._answer(effect.token, effect.response)

    def _answer(self, pending: Pending, response: PeerResponse) -> None:
        self.world.checks.replies(self, pending, response)
        pending.answer(response)

    def _read_records(self, effect: ef.ReadRecords) -> None:
        pending: Pending = effect.token
        assert isinstance(pending.request, FetchRequest)
        assert isinstance(effect.response, FetchResponse)
        records: list[Batch] = []
        size_bytes = 0
        offset = effect.start_offset
        while offset < effect.end_offset:
            batch = self.disk.log.batch_at(offset)
            if batch is None or batch.base_offset != offset:
                raise Violation("read-outside", f"{self.who}: {effect} of {self.disk.log}")
            size_bytes += RECORD_BYTES * len(batch.payloads)
            if records and size_bytes > effect.max_bytes:
                break
            records.append(batch)
            offset = batch.end_offset
        sent = tuple(self.world.transmit(records))
        self._answer(pending, dataclasses.replace(effect.response, records=sent))  # type: ignore[arg-type]

    def _read_snapshot(self, effect: ef.ReadSnapshot) -> None:
        assert isinstance(effect.response, FetchSnapshotResponse)
        data = snapshot_bytes.encode(self.disk.snapshots[effect.snapshot_id])
        end = min(len(data), effect.position + effect.max_bytes)
        response = dataclasses.replace(
            effect.response,
            snapshot_id=effect.snapshot_id,
            size_bytes=len(data),
            position=effect.position,
            data=self.world.transmit_bytes(data[effect.position : end]),
        )
        self._answer(effect.token, response)

    def _advance(self, effect: ef.AdvanceHighWatermark) -> None:
        if effect.high_watermark < self.applied_offset:
            raise Violation("applied-back", f"{self.who}: {effect} after {self.applied_offset}")
        while self.applied_offset < effect.high_watermark:
            entry = self.log.entry_at(self.applied_offset)
            if entry is None:
                raise Violation("apply-gap", f"{self.who}: nothing at {self.applied_offset}")
            self.apply(self.applied_offset, entry[1])
        self._acknowledge()
        self._maybe_snapshot()

    def apply(self, offset: int, payload: Any) -> None:
        """The next committed record changes the state machine."""
        assert offset == self.applied_offset
        if isinstance(payload, int):
            self.applied_count += 1
            self.state_digest = hash((self.state_digest, offset, payload))
        self.applied_offset = offset + 1
        self.world.checks.applied(self)

    def _acknowledge(self) -> None:
        while self.waiters:
            waiter = self.waiters[0]
            if waiter.base_offset + len(waiter.payloads) > self.applied_offset:
                return
            self.waiters.pop(0)
            for position, payload in enumerate(waiter.payloads):
                self.world.ledger.acknowledge(payload, waiter.base_offset + position)

    def _change_leadership(self, effect: ef.ChangeLeadership) -> None:
        if effect.leadership.leader_id != self.node_id:
            self.waiters.clear()

    def _complete(self, effect: ef.Complete) -> None:
        self.world.completed(self, effect)

    def _stop(self, effect: ef.Stop) -> None:
        raise Violation("stop", f"{self.who}: {effect.reason}")

    # Local snapshots

    def _maybe_snapshot(self) -> None:
        latest = max(self.disk.snapshots, default=None)
        begun = latest.end_offset if latest else 0
        if self._snapshot_running or self.applied_offset - begun < self.world.snapshot_interval:
            return
        last = self.log.entry_at(self.applied_offset - 1)
        assert last is not None
        snapshot = Snapshot(
            SnapshotId(self.applied_offset, last[0]),
            self.applied_count,
            self.state_digest,
            self.history.at(self.applied_offset),
        )
        self._snapshot_running = True
        delay_ms = self.world.random.random() * 50
        self.world.scheduler.after(delay_ms, self._snapshot_written, snapshot)

    def _snapshot_written(self, snapshot: Snapshot) -> None:
        if not self.alive:
            return
        latest = max(self.disk.snapshots, default=None)
        is_late = latest is not None and latest >= snapshot.snapshot_id
        if is_late or self.disk.is_full:
            self._snapshot_running = False
            return
        self.world.scheduler.note(f"{self.node_id} snapshot {snapshot.snapshot_id}")
        self.disk.snapshots[snapshot.snapshot_id] = snapshot
        delay_ms = self.world.random.random() * 50
        self.world.scheduler.after(delay_ms, self._snapshot_durable, snapshot.snapshot_id)

    def _snapshot_durable(self, snapshot_id: SnapshotId) -> None:
        """The log is trimmed to the latest snapshot or to the one before it."""
        if not self.alive:
            return
        self._snapshot_running = False
        self.offer("snapshot written", self._trim)

    def _trim(self, now_ms: float) -> list[ef.Effect]:
        kept = sorted(self.disk.snapshots)[-self.world.snapshots_kept :]
        for each in sorted(self.disk.snapshots):
            if each not in kept:
                del self.disk.snapshots[each]
        if kept and kept[0].end_offset > self.log.start():
            self.disk.change_log("trim", kept[0].end_offset)
        return self.core.on_snapshot_written(now_ms)

    @property
    def local(self) -> ReplicaKey:
        """Who this replica is."""
        return self.settings.local


_HANDLERS: dict[type, Callable[[Replica, Any], None]] = {
    ef.Persist: Replica._persist,
    ef.Truncate: Replica._truncate,
    ef.AppendEpochStart: Replica._append_epoch_start,
    ef.AppendVoters: Replica._append_voters,
    ef.AppendFetched: Replica._append_fetched,
    ef.WriteSnapshotChunk: Replica._write_snapshot_chunk,
    ef.Send: Replica._send,
    ef.Reply: Replica._reply,
    ef.ReadRecords: Replica._read_records,
    ef.ReadSnapshot: Replica._read_snapshot,
    ef.AdvanceHighWatermark: Replica._advance,
    ef.ChangeLeadership: Replica._change_leadership,
    ef.Complete: Replica._complete,
    ef.Stop: Replica._stop,
}
