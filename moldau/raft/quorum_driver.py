"""The quorum core at work: its decisions carried out on the disk and the network.

Owns: the order event -> effects -> next event, the one timer, requests to peers, and the callers
that wait for an answer of the core. Runs on one event loop; what waits for the disk goes through
`Filesystem.offload`. Must not: decide anything about elections, or know what records mean.
Invariant: an effect is begun only when the one before it is complete, and no event reaches the core
before every effect of the events before it has been carried out; after a failed write or flush
nothing is committed, sent or granted any more (what the disk holds is unknown), and the owner is
reported once. Want of room is no such failure: a vote, an epoch or a cut waits for room, and the
replica stands still until then, as if paused; all other writes are refused, and the core hears it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import uuid_to_base64
from moldau.raft.core import QuorumCore
from moldau.raft.core.effects import (
    AdvanceHighWatermark,
    AppendEpochStart,
    AppendFetched,
    AppendVoters,
    ChangeLeadership,
    Complete,
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
from moldau.raft.core.messages import KraftVersionResponse, PeerResponse
from moldau.raft.core.values import NO_NODE, Leadership
from moldau.raft.delivery import Delivery
from moldau.raft.log_files import LogFiles
from moldau.raft.log_store import LogStore, VotersAt
from moldau.raft.peers import PeerNetwork
from moldau.raft.room import RoomWatch
from moldau.raft.snapshot_store import SnapshotRefused, SnapshotStore
from moldau.raft.values import MetadataLogError, MetadataLogSettings, QuorumStopped
from moldau.runtime.clock import Clock, TimerHandle
from moldau.storage.faults import DiskFull, LogOffline, lacks_room

MAX_QUEUED_EVENTS: Final = 1_000
"""Requests of peers wait for a place when so many events are queued. The replica's own events
(answers, timers, flushes) are bounded by its own requests."""

Event = Callable[[], Sequence[Effect]]
Answer = PeerResponse | Complete
"""What the core settles a token with."""


@dataclass(eq=False, repr=False)
class EventQueue:
    """The core's events, one after the other, and the effects of each, in order.

    `carry_out` does one effect, `failed` is called with an exception of it; after the first failure
    nothing is carried out any more.
    """

    _carry_out: Callable[[Effect], Awaitable[None]]
    _after_event: Callable[[], None]
    _failed: Callable[[BaseException], None]
    _events: deque[Event] = field(default_factory=deque)
    _effects: deque[Effect] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._room.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata-quorum")

    def post(self, event: Event) -> None:
        """Queue an event; it is dropped when the queue has stopped."""
        if self.is_stopped:
            return
        self._events.append(event)
        self._idle.clear()
        self._wake.set()
        if len(self._events) >= MAX_QUEUED_EVENTS:
            self._room.clear()

    def add_effects(self, effects: Sequence[Effect]) -> None:
        """Carry out further effects after those that are due: an event that could not wait."""
        if effects and not self.is_stopped:
            self._effects.extend(effects)
            self._idle.clear()
            self._wake.set()

    async def has_room(self) -> None:
        """Wait until fewer than MAX_QUEUED_EVENTS events are queued.

        A caller that posts without another await keeps to that limit.
        """
        while not self._room.is_set():  # callers that were woken before may have taken the place
            await self._room.wait()

    async def is_idle(self) -> None:
        """Wait until every event and effect is done with (or the queue has stopped)."""
        await self._idle.wait()

    def stop(self) -> None:
        """Take no event and carry out no effect any more; the one under way is finished."""
        self.is_stopped = True
        self._events.clear()
        self._effects.clear()
        self._wake.set()
        self._room.set()

    async def closed(self) -> None:
        """After `stop`: wait for the effect under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while not self.is_stopped:
                if self._effects:
                    await self._carry_out(self._effects.popleft())
                elif self._events:
                    event = self._events.popleft()
                    if len(self._events) < MAX_QUEUED_EVENTS:
                        self._room.set()
                    self._effects.extend(event())
                    self._after_event()
                else:
                    self._idle.set()
                    self._wake.clear()
                    await self._wake.wait()
        except (asyncio.CancelledError, GeneratorExit):
            raise  # the loop ends
        except BaseException as error:
            self.stop()
            self._failed(error)
            raise
        finally:
            self._idle.set()


logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_MS: Final = 5_000.0
"""How long closing waits for the quorum to elect another leader."""
MIN_TICK_MS: Final = 1.0
MAX_SENDS: Final = 1_000
"""Requests to peers under way. The core has a few per peer, but a peer that names a new leader at a
new address again and again brings up more: those beyond have no answer.
"""


class QuorumDriver:
    """States: made -> `start` -> taking events -> failed or closed."""

    def __init__(
        self,
        files: LogFiles,
        clock: Clock,
        settings: MetadataLogSettings,
        on_fatal: Callable[[str], None],
        peers: PeerNetwork,
        dice: random.Random,
    ) -> None:
        self._files = files
        self._log = files.log
        self._clock = clock
        self._settings = settings
        self._on_fatal = on_fatal
        self._peers = peers
        self._double_epoch = -1
        log_lock = asyncio.Lock()
        self.delivery = Delivery(files, clock, log_lock, self.fail)
        self.store = LogStore(
            files,
            clock,
            settings.local.node_id,
            self.delivery.recent,
            log_lock,
            on_flushed=self._on_flushed,
            on_no_room=self.on_no_room,
            on_failure=self.fail,
        )
        self.room = RoomWatch(
            files.filesystem,
            clock,
            files.directory,
            on_room=lambda: self.events.post(lambda: self.core.on_room(self.now_ms())),
            on_try=self.store.flush_soon,
            on_failure=self.fail,
        )
        self.snapshots = SnapshotStore(files, clock, settings, log_lock)
        high_watermark = files.snapshots[-1].end_offset if files.snapshots else 0
        self.delivery.advance(high_watermark)
        self.core = QuorumCore(
            settings,
            dice,
            files,
            election=files.quorum_state,
            voters=files.voters,
            high_watermark=high_watermark,
        )
        self.events = EventQueue(self._carry_out, self._arm_timer, self._on_broken)
        self.failure: str | None = None
        self.led_epoch = -1
        """The last epoch whose first batch this replica has appended."""
        self.leadership_watchers: list[Callable[[Leadership], object]] = []
        self._tokens: dict[asyncio.Future[Answer], None] = {}  # in the order they asked
        self._sends: set[asyncio.Task[None]] = set()
        self._timer: TimerHandle | None = None
        self._timer_due_ms: float | None = None
        self._flush_ended = asyncio.Event()
        self._refusal: str | None = None
        """Why the last fetched records were refused; logged once, however often they come again."""
        self._is_started = False
        self._is_closing = False

    async def start(self) -> None:
        """Take part in the quorum; a quorum of one leads on return.

        Raises MetadataLogError: the first steps failed; everything is closed.
        """
        core, events = self.core, self.events
        self.delivery.keep_snapshot()
        events.start()
        events.post(lambda: core.start(self.now_ms()))
        self._on_flushed()
        await events.is_idle()
        await self.store.flush_is_idle()
        await events.is_idle()
        if self.failure is not None:
            await self.close_down()
            raise MetadataLogError(self.failure)
        self._is_started = True

    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    async def ask(self, event: Callable[[object], Sequence[Effect]]) -> Answer:
        """Post an event with a token, and wait for the effect that answers the token.

        Raises QuorumStopped.
        """
        if self.failure is not None or self.events.is_stopped:
            raise QuorumStopped(self.failure or "the metadata log is closed")
        token: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._tokens[token] = None
        token.add_done_callback(self._tokens.pop)
        self.events.post(lambda: event(token))
        return await token

    def _arm_timer(self) -> None:
        due_ms = self.core.next_tick_ms()
        if due_ms == self._timer_due_ms or self.events.is_stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due_ms = due_ms
        if due_ms is not None:
            delay_ms = max(due_ms - self.now_ms(), MIN_TICK_MS)
            self._timer = self._clock.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_due_ms = None
        self.events.post(lambda: self.core.tick(self.now_ms()))

    async def is_flushed_to(self, end_offset: int) -> bool:
        """Wait until everything below is on this replica's stable storage; False when the end of
        the replica comes first.
        """
        while not self.events.is_stopped and self._log.recovery_point < end_offset:
            self._flush_ended.clear()
            await self._flush_ended.wait()
        return not self.events.is_stopped

    def _on_flushed(self) -> None:
        self._flush_ended.set()
        # How far is asked when the event's turn comes: the log may have been cut by then.
        self.events.post(lambda: self.core.on_flushed(self._log.recovery_point, self.now_ms()))

    def on_appended(self, voters: Sequence[VotersAt]) -> None:
        """The core hears of an append at once: the log it looks at has it already."""
        self._add(self.core.on_appended(self.now_ms(), voters))

    def on_no_room(self, reason: str, *, may_lead_on: bool = True) -> None:
        """The disk refused a write for want of room, and nothing of it was done: the core hears of
        it at once, see `QuorumCore.on_no_room`. A start without room fails.
        """
        if not self._is_started:
            self.fail(reason)
            return
        self.room.lost(reason)
        self._add(self.core.on_no_room(self.now_ms(), may_lead_on=may_lead_on))

    def _add(self, effects: Sequence[Effect]) -> None:
        """Take over what an event brought that could not wait for its turn."""
        self.events.add_effects(effects)
        self._arm_timer()  # such an event may have made something due earlier

    def _on_broken(self, error: BaseException) -> None:
        self.fail(f"{type(error).__name__}: {error}")

    def fail(self, reason: str) -> None:
        """Nothing can be promised any more: take no further part, and tell the owner."""
        if self.failure is not None:
            return
        self.failure = reason
        logger.critical("the metadata log failed: %s", reason)
        self._halt()
        try:
            self.delivery.change_leadership(Leadership(NO_NODE, self.core.state.leader_epoch), -1)
        finally:  # a listener may be what has failed
            if self._is_started:
                self._on_fatal(f"metadata log: {reason}")

    def _halt(self) -> None:
        """Carry out nothing and answer no request any more."""
        self.events.stop()
        self.room.stop()
        self._flush_ended.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for token in list(self._tokens):
            if not token.done():
                token.set_exception(QuorumStopped(self.failure or "the metadata log is closed"))
                token.exception()  # retrieved: the caller may have gone

    async def _carry_out(self, effect: Effect) -> None:
        try:
            await self._do(effect)
        except (MetadataLogError, LogOffline, DiskFull, OSError) as error:
            self.fail(str(error))

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Reply(token, response):
                _settle(token, response)
            case AdvanceHighWatermark(high_watermark):
                self.delivery.advance(high_watermark)
            case ReadRecords():
                await self._read_records(effect)
            case ReadSnapshot():
                await self._read_snapshot(effect)
            case ChangeLeadership(leadership, epoch_start_offset):
                self._change_leadership(leadership, epoch_start_offset)
            case Complete(token):
                _settle(token, effect)
            case Stop(reason):
                self.fail(reason)
            case _:
                await self._write(effect)

    async def _write(self, effect: Effect) -> None:
        """An effect that changes what is on the disk."""
        match effect:
            case Persist(state):
                await self._when_there_is_room(partial(self.store.persist, state))
            case AppendFetched():
                await self._append_fetched(effect)
            case Truncate(end_offset):
                assert end_offset >= self.delivery.high_watermark, "what is committed is never cut"
                await self._when_there_is_room(partial(self.store.truncate, end_offset))
            case AppendEpochStart() | AppendVoters():
                self._append_control(effect)
            case WriteSnapshotChunk():
                await self._write_snapshot_chunk(effect)

    async def _when_there_is_room(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat a write that finds no room until it does: what follows depends on it, be it a vote
        that is granted. Raises OSError, LogOffline.
        """
        while True:
            try:
                await write()
                return
            except (OSError, DiskFull) as error:
                if not lacks_room(error) or not self._is_started:
                    raise
                self.room.lost(str(error))
            if self.delivery.leadership.leader_id == self.core.state.local.node_id:
                # Another epoch has begun, or this one has ended: its news come after this write.
                self._change_leadership(Leadership(NO_NODE, self.core.state.leader_epoch), -1)
            if not self._is_closing:
                await self.room.next_try()
            if self._is_closing or self.events.is_stopped:
                self._halt()
                return

    def _append_control(self, effect: AppendEpochStart | AppendVoters) -> None:
        try:
            if isinstance(effect, AppendVoters):
                voters = self.store.append_voters(effect)
            else:
                voters = self.store.append_epoch_start(effect)
                self.led_epoch = effect.leader_epoch
        except DiskFull as error:
            self.on_no_room(str(error), may_lead_on=False)
            return
        self.on_appended(voters)

    def _send(self, effect: Send) -> None:
        if len(self._sends) >= MAX_SENDS:
            self.events.post(lambda: self.core.on_response(effect, None, self.now_ms()))
            return
        task = asyncio.get_running_loop().create_task(self._exchange(effect), name="metadata-send")
        self._sends.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        # A request that is never answered would be awaited for ever.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_broken(error)

    async def _exchange(self, effect: Send) -> None:
        response = await self._peers.request(effect.destination, effect.request, effect.timeout_ms)
        if response is not None and not isinstance(response, KraftVersionResponse):
            self._look_for_double(response.leader_id, response.leader_epoch)
        self.events.post(lambda: self.core.on_response(effect, response, self.now_ms()))

    def _look_for_double(self, leader_id: int, leader_epoch: int) -> None:
        """Warn, once per epoch, that the leader has this node's own id and another directory: a
        node cannot follow itself, and gets no records (KIP-853).
        """
        election = self.core.state.election
        is_known = leader_epoch < election.leader_epoch or (
            leader_epoch == election.leader_epoch and leader_id == election.leader_id
        )
        local = self.core.state.local
        if leader_id != local.node_id or is_known or leader_epoch <= self._double_epoch:
            return
        self._double_epoch = leader_epoch
        logger.warning(
            "node.id=%d leads the quorum in epoch %d with another directory, and this one, %s, "
            "follows nobody as long as it does: either that process is a double, or the disk was "
            "replaced while others still take this node for the leader",
            leader_id,
            leader_epoch,
            uuid_to_base64(local.directory_id),
        )

    async def _append_fetched(self, effect: AppendFetched) -> None:
        outcome = await self.store.append_fetched(effect)
        if outcome.has_appended:
            self.on_appended(outcome.voters)
        if outcome.refusal != self._refusal and outcome.refusal is not None:
            logger.warning("records of the quorum's leader are refused: %s", outcome.refusal)
        self._refusal = outcome.refusal
        if outcome.no_room is not None:
            self.on_no_room(outcome.no_room)
        if outcome.no_room is not None or outcome.refusal is not None:
            self._add(self.core.on_append_refused(self.now_ms()))

    async def _write_snapshot_chunk(self, effect: WriteSnapshotChunk) -> None:
        snapshot_id = effect.snapshot_id
        if effect.is_last:
            await self.store.flush_is_idle()
        try:
            installed = await self.snapshots.write_chunk(effect)
        except (SnapshotRefused, DiskFull) as problem:
            if isinstance(problem, DiskFull):
                self.on_no_room(str(problem))
            else:
                logger.warning("snapshot %s of the leader is refused: %s", snapshot_id, problem)
            self._add(self.core.on_snapshot_refused(self.now_ms()))
            return
        if installed is None:
            return
        voters = installed[1] if installed[1].kraft_version >= 1 else self._settings.static_voters
        self.delivery.recent.clear()
        self.delivery.keep_snapshot()
        self._add(self.core.on_snapshot_installed(snapshot_id, voters, self.now_ms()))

    async def _read_records(self, effect: ReadRecords) -> None:
        assert isinstance(effect.token, asyncio.Future)
        if effect.token.done():
            return
        try:
            records = await self.store.read_records(
                effect.start_offset, effect.end_offset, effect.max_bytes
            )
        except DiskFull:  # the log has said why; the replica asks again
            response = replace(effect.response, error=ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            response = replace(effect.response, records=records)
        _settle(effect.token, response)

    async def _read_snapshot(self, effect: ReadSnapshot) -> None:
        error, size_bytes, data = await self.snapshots.read_chunk(
            effect.snapshot_id, effect.position, effect.max_bytes
        )
        response = replace(
            effect.response,
            error=error,
            snapshot_id=effect.snapshot_id,
            size_bytes=size_bytes,
            position=effect.position,
            data=data,
        )
        _settle(effect.token, response)

    def _change_leadership(self, leadership: Leadership, epoch_start_offset: int) -> None:
        logger.info(
            "metadata quorum: epoch %d, %s",
            leadership.leader_epoch,
            f"node {leadership.leader_id} leads"
            if leadership.leader_id != NO_NODE
            else "no leader is known",
        )
        self.delivery.change_leadership(leadership, epoch_start_offset)
        for watcher in self.leadership_watchers:
            watcher(leadership)

    async def shut_down(self) -> None:
        """Commit what can be committed, hand leadership on, close the files."""
        self._is_closing = True
        self.room.stop()
        # What a leader has appended so far is to be committed where that takes no other replica.
        await self.events.is_idle()
        await self.store.flush_is_idle()
        await self.events.is_idle()
        if not self.events.is_stopped:
            core = self.core
            farewell = asyncio.ensure_future(
                self.ask(lambda token: core.shut_down(token, self.now_ms()))
            )
            timer = self._clock.call_later(CLOSE_TIMEOUT_MS, farewell.cancel)
            await asyncio.wait([farewell])
            timer.cancel()
            if not farewell.cancelled():
                farewell.exception()  # retrieved: a failure was reported by `fail`
        await self.close_down()

    async def close_down(self) -> None:
        """Stop at once, and close the files."""
        self._halt()
        await self.events.closed()
        await self.room.closed()
        await self._peers.close()
        if self._sends:
            await asyncio.wait(list(self._sends))
        await self.delivery.close()
        try:
            await self.snapshots.abandon_fetch()
            await self.store.close()
        except (LogOffline, OSError) as error:
            logger.error("closing the metadata log: %s", error)


def _settle(token: object, outcome: Answer) -> None:
    """Answer the caller, unless it has gone."""
    assert isinstance(token, asyncio.Future), "the tokens are those of `ask`"
    if not token.done():
        token.set_result(outcome)
