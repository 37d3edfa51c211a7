"""The controller quorum's replica: KRaft (KIP-595, 630, 853, 996, 1166) as a state machine.

Owns: the events, their order, and when to be called again. Must not: hold what the parts own
(`state`, `election`, `fetching`, `replication`, `voter_changes`). Invariant: an event goes in, the
effects it causes come out, and between two events the state is complete; after Stop, or when a
graceful shutdown is complete, nothing happens any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.raft.core.effects import ChangeLeadership, Complete, Effect, Reply, Send
from moldau.raft.core.election import Elections
from moldau.raft.core.fetching import Fetching
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    PeerResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.replication import Replication
from moldau.raft.core.roles import Role
from moldau.raft.core.settings import LogView, QuorumSettings, Random
from moldau.raft.core.state import QuorumState
from moldau.raft.core.values import (
    NO_NODE,
    ElectionState,
    Leadership,
    ReplicaKey,
    ReplicaProgress,
    SnapshotId,
)
from moldau.raft.core.voter_changes import Refused, VoterChanges, not_a_voter, not_the_leader
from moldau.raft.core.voters import LATEST_KRAFT_VERSION, VoterDescription, VoterHistory, VoterSet

MAX_STEPS: Final = 16
"""More changes of role than any one event can cause."""

_RESPONSES: Final[dict[type[PeerRequest], type[Any]]] = {
    VoteRequest: VoteResponse,
    BeginQuorumEpochRequest: BeginQuorumEpochResponse,
    EndQuorumEpochRequest: EndQuorumEpochResponse,
    FetchRequest: FetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
    UpdateVoterRequest: UpdateVoterResponse,
    KraftVersionRequest: KraftVersionResponse,
}


class QuorumCore:
    """One replica. States: created -> started -> stopped; its roles are in `roles`.

    `now_ms` is a monotonic clock's, in milliseconds; `high_watermark` the end of the latest
    snapshot, 0 without one. What is in the log when it starts must be on stable storage. Others
    read `state`, and change nothing in it.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        random: Random,
        log: LogView,
        *,
        election: ElectionState,
        voters: VoterHistory,
        high_watermark: int = 0,
    ) -> None:
        self.state = QuorumState(settings, random, log, election, voters, high_watermark)
        self._elections = Elections(self.state)
        self._fetching = Fetching(self.state)
        self._replication = Replication(self.state)
        self._changes = VoterChanges(self.state, self._replication, self._elections)
        self._response_handlers: dict[type[PeerRequest], Callable[[Send, Any], None]] = {
            VoteRequest: self._elections.on_vote_response,
            BeginQuorumEpochRequest: self._replication.on_begin_quorum_epoch_response,
            EndQuorumEpochRequest: self._elections.on_end_quorum_epoch_response,
            FetchRequest: self._fetching.on_fetch_response,
            FetchSnapshotRequest: self._fetching.on_fetch_snapshot_response,
            UpdateVoterRequest: self._fetching.on_update_voter_response,
            KraftVersionRequest: self._changes.on_kraft_version_response,
        }
        self._announced: Leadership | None = None
        self._is_started = False
        self._next_tick_ms: float | None = None
        self._shutdown_tokens: list[object] = []
        self._resign_tokens: list[object] = []

    def progress(self) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """How far voters and observers are; both empty when this replica does not lead."""
        return self._replication.progress()

    def next_tick_ms(self) -> float | None:
        """When `tick` is due; None when only another event can change something."""
        return None if self.state.is_stopped else self._next_tick_ms

    def _begin(self, now_ms: float) -> QuorumState:
        state = self.state
        assert self._is_started, "start it first"
        state.now_ms = max(state.now_ms, now_ms)
        state.effects = []
        state.wants_tick = False
        return state

    def _run(self, now_ms: float, step: Callable[[], object], token: object = None) -> list[Effect]:
        """Take one event; a replica that has stopped takes none. An event with a `token` is
        answered, also when it is refused.
        """
        if self.state.is_stopped:
            stopped = ErrorCode.BROKER_NOT_AVAILABLE, "the quorum has stopped"
            return [] if token is None else [Complete(token, *stopped)]
        self._begin(now_ms)
        try:
            step()
        except Refused as refusal:
            self.state.effects.append(Complete(token, refusal.error, refusal.message))
        return self._end()

    def _end(self) -> list[Effect]:
        """Do what time and the event have made due, until nothing more is."""
        state = self.state
        if state.log.log_end_offset < state.high_watermark:
            state.stop(
                f"the log ends at {state.log.log_end_offset}, below the high watermark "
                f"{state.high_watermark}: committed records are missing"
            )
        for _ in range(MAX_STEPS):
            if state.is_stopped:
                break
            before = state.transitions_count
            wake_ms = self._poll()
            if not state.is_stopped:
                self._announce()  # each step on its own: a listener must hear of every leader
            if state.transitions_count == before:
                self._next_tick_ms = wake_ms
                break
        else:
            raise AssertionError(f"{state.local} does not settle in role {state.role}")
        if not state.is_stopped:
            self._finish_resignations()
            self._finish_shutdown()
        if state.wants_tick:
            self._next_tick_ms = state.now_ms
        return state.effects

    def _poll(self) -> float | None:
        state = self.state
        times: list[float | None] = []
        match state.role:
            case Role.UNATTACHED:
                times.append(self._elections.poll_unattached())
                if state.role is Role.UNATTACHED and not state.is_shutting_down:
                    times.append(self._fetching.poll_discovery())
            case Role.FOLLOWER:
                times.append(self._fetching.poll_follower())
            case Role.PROSPECTIVE | Role.CANDIDATE:
                times.append(self._elections.poll_campaign())
            case Role.LEADER:
                times.append(self._poll_leader())
            case Role.RESIGNED:
                times.append(self._elections.poll_resigned())
        times.append(self._changes.poll())
        times.append(self._replication.poll_parked())
        wake_ms = min((each for each in times if each is not None), default=float("inf"))
        return None if wake_ms == float("inf") else wake_ms

    def _poll_leader(self) -> float:
        state = self.state
        deadline_ms = self._replication.check_quorum_deadline_ms()
        if state.now_ms >= deadline_ms:
            self._elections.resign()
            return deadline_ms
        self._changes.poll()
        self._changes.poll_leader()
        if state.role is not Role.LEADER:
            return deadline_ms
        deadline_ms = min(deadline_ms, self._elections.poll_handover())
        if state.role is not Role.LEADER:
            return deadline_ms
        self._replication.forget_silent_observers()
        return min(deadline_ms, self._replication.poll_begin_quorum_epoch())

    def _announce(self) -> None:
        """Tell the listeners of a change of leader."""
        leadership = self.state.leadership
        if leadership == self._announced:
            return
        self._announced = leadership
        self.state.effects.append(ChangeLeadership(leadership, self.state.epoch_start_offset))

    def _finish_resignations(self) -> None:
        """Complete them when this replica leads no more, for whatever reason."""
        if self._resign_tokens and self.state.role is not Role.LEADER:
            for token in self._resign_tokens:
                self.state.effects.append(Complete(token, ErrorCode.NONE))
            self._resign_tokens.clear()

    def _finish_shutdown(self) -> None:
        """Complete when this replica owes the others nothing more."""
        state = self.state
        if not state.is_shutting_down:
            return
        owes = state.role is Role.RESIGNED and not state.is_sole_voter
        if owes and state.deadline_ms is not None and state.now_ms < state.deadline_ms:
            return
        for token in self._shutdown_tokens:
            state.effects.append(Complete(token, ErrorCode.NONE))
        self._shutdown_tokens.clear()
        state.is_stopped = True

    def start(self, now_ms: float) -> list[Effect]:
        """Take the role that the last run left. Called once, before every other event."""
        assert not self._is_started
        self._is_started = True
        state = self._begin(now_ms)
        state.restore()
        return self._end()

    def tick(self, now_ms: float) -> list[Effect]:
        return self._run(now_ms, lambda: None)

    def on_request(self, request: PeerRequest, token: object, now_ms: float) -> list[Effect]:
        """A peer asks; it is answered once, with `token`, now or, a fetch, later."""
        state = self.state
        if state.is_stopped:
            return [Reply(token, self._refuse(request, ErrorCode.BROKER_NOT_AVAILABLE))]
        self._begin(now_ms)
        match request:
            case VoteRequest():
                state.effects.append(Reply(token, self._elections.on_vote(request)))
            case BeginQuorumEpochRequest():
                state.effects.append(Reply(token, self._elections.on_begin_quorum_epoch(request)))
            case EndQuorumEpochRequest():
                state.effects.append(Reply(token, self._elections.on_end_quorum_epoch(request)))
            case FetchRequest():
                self._replication.on_fetch(request, token)
            case FetchSnapshotRequest():
                self._replication.on_fetch_snapshot(request, token)
            case UpdateVoterRequest():
                self._changes.on_update_voter(request, token)
            case KraftVersionRequest():
                response = KraftVersionResponse(ErrorCode.NONE, 0, LATEST_KRAFT_VERSION)
                state.effects.append(Reply(token, response))
        return self._end()

    def _refuse(self, request: PeerRequest, error: ErrorCode) -> PeerResponse:
        if isinstance(request, KraftVersionRequest):
            return KraftVersionResponse(error)
        refusal: PeerResponse = _RESPONSES[type(request)](error, NO_NODE, self.state.leader_epoch)
        return refusal

    def on_response(self, send: Send, response: PeerResponse | None, now_ms: float) -> list[Effect]:
        """The one answer to a Send; None when there was none."""
        kind = type(send.request)
        assert response is None or isinstance(response, _RESPONSES[kind])
        return self._run(now_ms, lambda: self._response_handlers[kind](send, response))

    def on_appended(
        self, now_ms: float, voters: Sequence[tuple[int, VoterSet]] = ()
    ) -> list[Effect]:
        """The log's end has moved; `voters` are the appended sets and their offsets."""
        if self.state.is_stopped:
            return []
        state = self._begin(now_ms)
        for offset, voter_set in voters:
            state.voters.append(offset, voter_set)
        self._fetching.on_appended()
        if voters:
            self._changes.on_appended()
            self._replication.advance_high_watermark()
        return self._end()

    def on_flushed(self, flushed_end_offset: int, now_ms: float) -> list[Effect]:
        """Everything below is on stable storage now."""
        if self.state.is_stopped:
            return []
        state = self._begin(now_ms)
        assert flushed_end_offset <= state.log.log_end_offset, (
            f"flushed to {flushed_end_offset}, beyond the end {state.log.log_end_offset}"
        )
        state.flushed_end_offset = max(state.flushed_end_offset, flushed_end_offset)
        self._replication.advance_high_watermark()
        self._fetching.advance_high_watermark()
        return self._end()

    def on_append_refused(self, now_ms: float) -> list[Effect]:
        """Fetched records are damaged, or found no room; those before are in the log."""
        return self._run(now_ms, self._fetching.append_refused)

    def on_no_room(self, now_ms: float, *, may_lead_on: bool) -> list[Effect]:
        """The disk refused a write for want of room, and nothing of it was done.

        Args:
            may_lead_on: whether the epoch is whole without that write; not when it was a batch of
                the leader's own (AppendEpochStart, AppendVoters).
        """
        return self._run(now_ms, lambda: self._elections.lose_room(may_lead_on=may_lead_on))

    def on_room(self, now_ms: float) -> list[Effect]:
        """The disk has room again."""
        return self._run(now_ms, self._elections.regain_room)

    def on_snapshot_installed(
        self, snapshot_id: SnapshotId, voters: VoterSet, now_ms: float
    ) -> list[Effect]:
        """The log now begins and ends where this snapshot ends."""
        return self._run(now_ms, lambda: self._fetching.on_snapshot_installed(snapshot_id, voters))

    def on_snapshot_refused(self, now_ms: float) -> list[Effect]:
        """The fetched file is no snapshot, or found no room, and is removed again."""
        return self._run(now_ms, self._fetching.forget_download)

    def on_snapshot_written(self, now_ms: float) -> list[Effect]:
        """This replica has written a snapshot, or removed the log below one."""
        state = self.state
        return self._run(now_ms, lambda: state.voters.trim_to(state.log.log_start_offset))

    def resign(self, token: object, preferred: ReplicaKey | None, now_ms: float) -> list[Effect]:
        """Stop leading, in favour of `preferred` if it is a voter other than this one: as soon as
        that has every record, or after an election timeout.
        """
        return self._run(now_ms, lambda: self._hand_over(token, preferred), token)

    def _hand_over(self, token: object, preferred: ReplicaKey | None) -> None:
        state = self.state
        if state.role is not Role.LEADER:
            raise not_the_leader()
        if preferred is not None and state.voters.latest.find(*preferred) is None:
            raise not_a_voter(preferred)
        if preferred is not None and preferred.matches(state.local):
            state.effects.append(Complete(token, ErrorCode.NONE))
        else:
            self._resign_tokens.append(token)
            self._elections.hand_over((preferred,) if preferred is not None else ())

    def shut_down(self, token: object, now_ms: float) -> list[Effect]:
        """Leave gracefully: a leader resigns and stays until another leader is elected, or until an
        election timeout is over.
        """
        if self.state.is_stopped:
            return [Complete(token, ErrorCode.NONE)]
        state = self._begin(now_ms)
        state.is_shutting_down = True
        self._shutdown_tokens.append(token)
        if state.role is Role.LEADER:
            self._elections.resign()
        return self._end()

    def add_voter(
        self,
        token: object,
        voter: VoterDescription,
        now_ms: float,
        *,
        ack_when_committed: bool = True,
        timeout_ms: int,
    ) -> list[Effect]:
        """AddRaftVoter (KIP-853); `ack_when_committed` of KIP-1186."""
        add = partial(self._changes.add, ack_when_committed=ack_when_committed)
        return self._run(now_ms, lambda: add(token, voter, timeout_ms=timeout_ms), token)

    def remove_voter(
        self, token: object, voter: ReplicaKey, now_ms: float, *, timeout_ms: int
    ) -> list[Effect]:
        """RemoveRaftVoter (KIP-853)."""
        remove = self._changes.remove
        return self._run(now_ms, lambda: remove(token, voter, timeout_ms=timeout_ms), token)

    def upgrade_kraft_version(
        self, token: object, level: int, now_ms: float, *, timeout_ms: int
    ) -> list[Effect]:
        """UpdateFeatures of kraft.version (KIP-853)."""
        upgrade = self._changes.upgrade
        return self._run(now_ms, lambda: upgrade(token, level, timeout_ms=timeout_ms), token)
