"""A leader, its followers and a controller that hear of each other late, twice or never.

The leader is the real `PartitionCore`; followers are log ends, the controller is the list of what
it has decided, which the leader hears of in order but as late as it comes. Requests to the
controller have copies that lie in older connections; brokers are fenced, or refused for a reason
that the leader cannot see; `min.insync.replicas` changes while changes of the ISR are under way.
What is checked is what clients are promised: nothing counts as committed that a replica lacks
which could be elected, from the ISR or as an eligible leader replica (KIP-966).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.broker.replica.core.in_sync_set import IsrAnswer, IsrChange, PartitionState
from moldau.broker.replica.core.partition_core import FollowerFetch, PartitionCore
from moldau.protocol.errors import ErrorCode

LOCAL = 1
FOLLOWERS = (2, 3)
REPLICAS = (LOCAL, *FOLLOWERS)
MAX_LAG_MS = 1_000

PICK = st.integers(min_value=0, max_value=1_000)
FOLLOWER = st.sampled_from(FOLLOWERS)
MINIMUM = st.integers(min_value=1, max_value=3)
UNANSWERED = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
)


class Decided(NamedTuple):
    """Everything the controller has decided up to one place of the metadata log."""

    state: PartitionState
    elr: frozenset[int]
    min_insync_replicas: int
    fenced: frozenset[int]
    broker_epochs: dict[int, int]


class Copy(NamedTuple):
    """One copy of a proposal on its way; the leader waits for the answer to the newest alone."""

    change: IsrChange
    attempt: int


class Answer(NamedTuple):
    copy: Copy
    error: ErrorCode
    state: PartitionState | None


class DelayedFetch(NamedTuple):
    leader_epoch: int
    fetch: FollowerFetch


class WatchedCore(PartitionCore):
    """Looks at each move of the high watermark."""

    def advance_high_watermark(self, min_insync_replicas: int) -> bool:
        before = self.high_watermark
        is_moved = super().advance_high_watermark(min_insync_replicas)
        assert is_moved == (self.high_watermark > before)
        assert self.high_watermark >= before
        assert not is_moved or not self.is_under_min_isr(min_insync_replicas)
        return is_moved


class LeaderAndFollowers(RuleBasedStateMachine):
    """Rules are events; the leader's view of the cluster trails behind the controller's."""

    writes_confirmations: ClassVar[bool] = True
    """Whether the controller's partition epoch grows with a report that changes nothing."""

    damage_begins_leader_epoch: ClassVar[bool] = True
    """Whether a damaged log is begun again under another leader epoch only."""

    def __init__(self) -> None:
        super().__init__()
        # What the leader sees of the cluster (ClusterView), and knows of the topic.
        self.max_lag_ms = MAX_LAG_MS
        self.last_fetch_ms: dict[int, float] = {}
        self.now = 0.0
        self.heard = -1
        self.known_minimum = 1
        # What is.
        self.ends = dict.fromkeys(REPLICAS, 0)
        self.decided: list[Decided] = []
        self.unwanted: frozenset[int] = frozenset()
        self.stalled: frozenset[int] = frozenset()
        self.copies: list[Copy] = []
        self.answers: list[Answer] = []
        self.attempts: dict[IsrChange, int] = {}
        self.fetches: list[DelayedFetch] = []
        self.handed_out: IsrChange | None = None
        self.core = WatchedCore(LOCAL, self)
        self.committed_count = 0

    @initialize(min_insync_replicas=MINIMUM, isr=st.sampled_from((REPLICAS, (LOCAL, 2), (LOCAL,))))
    def begin(self, min_insync_replicas: int, isr: tuple[int, ...]) -> None:
        state = PartitionState(LOCAL, 0, 0, REPLICAS, isr)
        epochs = dict.fromkeys(REPLICAS, 1)
        self.decided = [Decided(state, frozenset(), min_insync_replicas, frozenset(), epochs)]
        self._hear(0)

    # -- ClusterView -----------------------------------------------------------------------------

    def now_ms(self) -> float:
        return self.now

    def broker_epoch(self) -> int:
        return 1

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        seen = self.decided[self.heard]
        return broker_id not in seen.fenced and broker_epoch in (-1, seen.broker_epochs[broker_id])

    # -- the leader ------------------------------------------------------------------------------

    def _is_leading(self) -> bool:
        return self.core.is_leader

    @rule(count=st.integers(min_value=1, max_value=5))
    @precondition(_is_leading)
    def append(self, count: int) -> None:
        self.ends[LOCAL] += count
        self.core.local_log_grew(self.ends[LOCAL], self.known_minimum)

    @rule(again=st.booleans())
    @precondition(_is_leading)
    def check(self, again: bool) -> None:
        self.core.advance_high_watermark(self.known_minimum)
        self._hand_out(self.core.propose(again=again))

    @rule(elapsed_ms=st.sampled_from((1, 100, MAX_LAG_MS + 1)))
    def let_time_pass(self, elapsed_ms: int) -> None:
        self.now += elapsed_ms

    def _hand_out(self, change: IsrChange | None) -> None:
        if change is None:
            return
        assert self.handed_out is None, "a second proposal while one is under way"
        assert self.core.in_sync.pending is change
        for member in set(change.isr) - self.core.isr:
            assert self.core.followers[member].log_end_offset >= self.core.high_watermark
            assert self.core.followers[member].log_end_offset >= self.core.leader_epoch_start_offset
            assert change.broker_epochs[member] > 0
        self.handed_out = change
        self._send(change)

    def _send(self, change: IsrChange) -> None:
        self.attempts[change] = attempt = self.attempts.get(change, 0) + 1
        self.copies.append(Copy(change, attempt))

    # -- followers -------------------------------------------------------------------------------

    @property
    def newest(self) -> Decided:
        return self.decided[-1]

    @rule(replica_id=FOLLOWER, count=st.integers(min_value=1, max_value=10))
    def replicate(self, replica_id: int, count: int) -> None:
        """Records have arrived at a follower that follows this leader."""
        if replica_id in self.stalled:
            return
        if self.newest.state.leader_id == LOCAL and self._has_heard_epoch():
            self.ends[replica_id] = min(self.ends[LOCAL], self.ends[replica_id] + count)

    def _has_heard_epoch(self) -> bool:
        return self.core.leader_epoch == self.newest.state.leader_epoch

    @rule(replica_id=FOLLOWER, is_delayed=st.booleans())
    def fetch(self, replica_id: int, is_delayed: bool) -> None:
        """A follower's fetch is sent, under the newest leader epoch."""
        if replica_id in self.stalled:
            return
        epoch = self.newest.broker_epochs[replica_id]
        sent = DelayedFetch(
            self.newest.state.leader_epoch,
            FollowerFetch(replica_id, self.ends[replica_id], 0, epoch, self.now),
        )
        if is_delayed:
            self.fetches.append(sent)
        else:
            self._arrive(sent)

    @rule(replica_id=FOLLOWER)
    def stall(self, replica_id: int) -> None:
        """Its broker lives, but fetches nothing."""
        self.stalled |= {replica_id}

    @rule(replica_id=FOLLOWER)
    def go_on(self, replica_id: int) -> None:
        self.stalled -= {replica_id}

    @rule(pick=PICK)
    @precondition(lambda self: self.fetches)
    def fetch_arrives_late(self, pick: int) -> None:
        sent = self.fetches.pop(pick % len(self.fetches))
        self._arrive(sent._replace(fetch=sent.fetch._replace(now_ms=self.now)))

    def _arrive(self, sent: DelayedFetch) -> None:
        fetch = sent.fetch
        self.last_fetch_ms[fetch.replica_id] = fetch.now_ms
        error = self.core.check_follower(fetch.replica_id, fetch.broker_epoch, sent.leader_epoch)
        if error is not ErrorCode.NONE:
            return
        assert sent.leader_epoch == self.core.leader_epoch
        self.core.follower_fetched(fetch, self.known_minimum)
        self._hand_out(self.core.propose_after_fetch(fetch.replica_id))

    @rule(replica_id=FOLLOWER, lost=st.integers(min_value=0, max_value=10))
    def restart_without_its_tail(self, replica_id: int, lost: int) -> None:
        """An unclean start: out of the ISR and the ELR before it fetches anything."""
        newest = self.newest
        if newest.state.leader_id == replica_id:
            return
        epochs = {**newest.broker_epochs, replica_id: newest.broker_epochs[replica_id] + 1}
        self.ends[replica_id] = max(0, self.ends[replica_id] - lost)
        self._write(broker_epochs=epochs)
        self._leave_isr(replica_id, lost=(replica_id,))

    @rule(replica_id=FOLLOWER)
    def begin_again_after_damage(self, replica_id: int) -> None:
        """Its broker lives on. By the broker's report the replica leaves ISR and ELR, in another
        leader epoch, before its log is put aside.
        """
        state = self.newest.state
        if state.leader_id == replica_id:
            return
        leader_epoch = state.leader_epoch + self.damage_begins_leader_epoch
        isr = tuple(each for each in state.isr if each != replica_id)
        self._change_partition(isr=isr, leader_epoch=leader_epoch, lost=(replica_id,))
        self.ends[replica_id] = 0

    # -- the controller --------------------------------------------------------------------------

    def _write(self, **changes: Any) -> None:
        self.decided.append(self.newest._replace(**changes))

    def _change_partition(self, *, lost: tuple[int, ...] = (), **changes: Any) -> None:
        """Also finds the eligible leaders, as `partition_changes` does."""
        old = self.newest.state
        state = old._replace(partition_epoch=old.partition_epoch + 1, **changes)
        elr: frozenset[int] = frozenset()
        if len(state.isr) < self.newest.min_insync_replicas:
            elr = self.newest.elr.union(old.isr).difference(state.isr, lost)
        self._write(state=state, elr=elr)

    def _leave_isr(self, replica_id: int, lost: tuple[int, ...] = ()) -> None:
        isr = self.newest.state.isr
        if replica_id in isr or self.newest.elr.intersection(lost):
            self._change_partition(isr=tuple(each for each in isr if each != replica_id), lost=lost)

    @rule(min_insync_replicas=MINIMUM)
    def minimum_changes(self, min_insync_replicas: int) -> None:
        """Who is eligible by the old minimum is not by the new one (ClearElrRecord)."""
        self._write(min_insync_replicas=min_insync_replicas, elr=frozenset())

    @rule(replica_id=FOLLOWER)
    def fence(self, replica_id: int) -> None:
        if self.newest.state.leader_id != replica_id:
            self._write(fenced=self.newest.fenced | {replica_id})
            self._leave_isr(replica_id)

    @rule(replica_id=FOLLOWER)
    def unfence(self, replica_id: int) -> None:
        if replica_id in self.newest.fenced:
            self._write(fenced=self.newest.fenced - {replica_id})

    @rule(replica_id=FOLLOWER)
    def refuse(self, replica_id: int) -> None:
        """For a reason of which the leader does not hear: a directory."""
        self.unwanted |= {replica_id}

    @rule(replica_id=FOLLOWER)
    def refuse_no_more(self, replica_id: int) -> None:
        self.unwanted -= {replica_id}

    @rule()
    def new_leader_epoch(self) -> None:
        """The same leader is elected again."""
        self._change_partition(leader_epoch=self.newest.state.leader_epoch + 1)

    @rule(replica_id=FOLLOWER)
    def another_leads(self, replica_id: int) -> None:
        """Any member of the ISR may be elected; the others follow its log."""
        state = self.newest.state
        if replica_id not in state.isr or state.leader_id != LOCAL:
            return
        self._change_partition(leader_id=replica_id, leader_epoch=state.leader_epoch + 1)
        for other in FOLLOWERS:
            self.ends[other] = min(self.ends[other], self.ends[replica_id])

    @rule()
    def leads_again(self) -> None:
        state = self.newest.state
        if state.leader_id != LOCAL and LOCAL in state.isr and self._has_heard_epoch():
            self._change_partition(leader_id=LOCAL, leader_epoch=state.leader_epoch + 1)

    # -- proposals -------------------------------------------------------------------------------

    @rule(pick=PICK, is_repeated=st.booleans())
    @precondition(lambda self: self.copies)
    def proposal_arrives(self, pick: int, is_repeated: bool) -> None:
        """The controller decides and answers; the same copy may come once more."""
        index = pick % len(self.copies)
        copy = self.copies[index] if is_repeated else self.copies.pop(index)
        change = copy.change
        error = self._judge(change)
        if error is not ErrorCode.NONE:
            self.answers.append(Answer(copy, error, None))
            return
        old = self.newest.state
        if self.writes_confirmations or (change.isr, change.leader_recovery_state) != (
            old.isr,
            old.leader_recovery_state,
        ):
            self._change_partition(
                isr=change.isr, leader_recovery_state=change.leader_recovery_state
            )
        self.answers.append(Answer(copy, error, self.newest.state))

    def _judge(self, change: IsrChange) -> ErrorCode:
        newest = self.newest
        state = newest.state
        if change.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in change.isr:
            epoch = change.broker_epochs[member]
            if member in newest.fenced or epoch not in (-1, newest.broker_epochs[member]):
                return ErrorCode.INELIGIBLE_REPLICA
            if member in self.unwanted and member not in state.isr:
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    @rule(pick=PICK)
    @precondition(lambda self: self.copies)
    def copy_is_lost(self, pick: int) -> None:
        self.copies.pop(pick % len(self.copies))

    @rule(pick=PICK)
    def connection_is_lost(self, pick: int) -> None:
        """No answer comes over it any more; its requests may lie in it yet. The leader sends the
        proposal again, unless metadata have made it void."""
        change = self.core.in_sync.pending
        if change is None or self.core.in_sync.is_awaiting_metadata:
            return
        before = self._snapshot()
        error = UNANSWERED[pick % len(UNANSWERED)]
        assert self.core.isr_change_answered(change, error, None) is IsrAnswer.RETRY
        assert self._snapshot() == before
        self._send(change)

    @rule(is_repeated=st.booleans())
    @precondition(lambda self: self.copies)
    def only_the_answer_is_lost(self, is_repeated: bool) -> None:
        """Committed perhaps, and proposed again because the leader did not hear of it."""
        self.proposal_arrives(0, False)
        self.connection_is_lost(0)
        if is_repeated and self.copies:
            self.proposal_arrives(len(self.copies) - 1, False)
            self.answer_arrives(len(self.answers) - 1)

    @rule(pick=PICK)
    @precondition(lambda self: self.answers)
    def answer_arrives(self, pick: int) -> None:
        copy, error, state = self.answers.pop(pick % len(self.answers))
        core, change = self.core, copy.change
        if copy.attempt != self.attempts[change]:
            return  # over a connection that the leader has given up
        before = self._snapshot()
        is_stale = core.in_sync.pending is not change
        became = core.isr_change_answered(change, error, state)
        if is_stale:
            assert self._snapshot() == before, "a stale answer changed something"
            return
        if core.in_sync.pending is None:
            self.handed_out = None
        if became is IsrAnswer.COMMITTED:
            self.committed_count += 1
            core.advance_high_watermark(self.known_minimum)
        if core.in_sync.pending is None:
            self._hand_out(core.propose())

    def _snapshot(self) -> object:
        core = self.core
        return (core.state, core.in_sync.maximal, core.in_sync.pending, core.high_watermark)

    # -- metadata --------------------------------------------------------------------------------

    @rule(pick=PICK)
    def metadata_arrive(self, pick: int) -> None:
        """One change, several or all of them at once; sometimes an old state once more."""
        if pick % 4 == 0:
            before = self._snapshot()
            old = self.decided[pick % (self.heard + 1)].state
            if (old.leader_epoch, old.partition_epoch) < (
                self.core.leader_epoch,
                self.core.partition_epoch,
            ):
                self.core.apply_state(
                    old, log_end_offset=self.ends[LOCAL], high_watermark=self.core.high_watermark
                )
                assert self._snapshot() == before, "an old state changed something"
            return
        newest = len(self.decided) - 1
        self._hear(newest if pick % 4 == 1 else min(newest, self.heard + 1 + pick % 3))

    def _hear(self, position: int) -> None:
        """Apply in the broker's order: settings, partitions, brokers."""
        core = self.core
        old = self.decided[self.heard] if self.heard >= 0 else None
        self.heard = position
        seen = self.decided[position]
        state = seen.state
        self.known_minimum = seen.min_insync_replicas
        if old is not None:
            core.advance_high_watermark(self.known_minimum)
        if old is None or state != old.state:
            if state.leader_id != LOCAL and state.leader_epoch > core.leader_epoch:
                self.ends[LOCAL] = min(self.ends[LOCAL], self.ends[state.leader_id])
            core.apply_state(
                state, log_end_offset=self.ends[LOCAL], high_watermark=core.high_watermark
            )
            if core.in_sync.pending is None:
                self.handed_out = None
            core.advance_high_watermark(self.known_minimum)
            self._hand_out(core.propose())
        if old is not None and (seen.fenced, seen.broker_epochs) != (old.fenced, old.broker_epochs):
            core.advance_high_watermark(self.known_minimum)
            self._hand_out(core.propose(again=True))

    # -- promises --------------------------------------------------------------------------------

    @invariant()
    def committed_is_on_every_replica_that_may_lead(self) -> None:
        for member in self.newest.elr.union(self.newest.state.isr):
            assert self.core.high_watermark <= self.ends[member], member

    @invariant()
    def nothing_in_sync_is_forgotten(self) -> None:
        if self.core.is_leader and self._has_heard_epoch():
            missing = set(self.newest.state.isr) - self.core.in_sync.maximal
            assert not missing, f"{missing} may be elected, and the leader does not wait for them"
