"""A leader, its followers and a controller that hear of each other late, twice or never.

The leader is the real `PartitionCore`; followers are log ends, the controller is the list of states
it has decided. What is checked is what clients are promised: nothing counts as committed that a
replica lacks which could be elected.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.broker.partition.core import (
    FollowerFetch,
    IsrAnswer,
    IsrChange,
    PartitionCore,
    PartitionState,
)
from moldau.protocol.errors import ErrorCode

LOCAL = 1
FOLLOWERS = (2, 3)
REPLICAS = (LOCAL, *FOLLOWERS)
MAX_LAG_MS = 1_000

PICK = st.integers(min_value=0, max_value=1_000)
FOLLOWER = st.sampled_from(FOLLOWERS)


class Answer(NamedTuple):
    change: IsrChange
    error: ErrorCode
    state: PartitionState | None


class DelayedFetch(NamedTuple):
    leader_epoch: int
    fetch: FollowerFetch


class LeaderAndFollowers(RuleBasedStateMachine):
    """Rules are events; the leader's view of the cluster trails behind the controller's."""

    def __init__(self) -> None:
        super().__init__()
        # What the leader sees of the cluster (ClusterView).
        self.max_lag_ms = MAX_LAG_MS
        self.last_fetch_ms: dict[int, float] = {}
        self.now = 0.0
        self.seen_epochs = dict.fromkeys(REPLICAS, 1)
        self.seen_fenced: frozenset[int] = frozenset()
        # What is.
        self.ends = dict.fromkeys(REPLICAS, 0)
        self.broker_epochs = dict.fromkeys(REPLICAS, 1)
        self.fenced: frozenset[int] = frozenset()
        self.states: list[PartitionState] = []
        self.under_way: list[IsrChange] = []
        self.answers: list[Answer] = []
        self.fetches: list[DelayedFetch] = []
        self.handed_out: IsrChange | None = None
        self.core = PartitionCore(LOCAL, self)
        self.last_high_watermark = (0, 0)
        self.min_insync_replicas = 1
        self.committed_count = 0

    @initialize(
        min_insync_replicas=st.integers(min_value=1, max_value=3),
        isr=st.sampled_from((REPLICAS, (LOCAL, 2), (LOCAL,))),
    )
    def begin(self, min_insync_replicas: int, isr: tuple[int, ...]) -> None:
        self.min_insync_replicas = min_insync_replicas
        self.states = [PartitionState(LOCAL, 0, 0, REPLICAS, isr)]
        self._hear(self.states[0])

    # -- ClusterView -----------------------------------------------------------------------------

    def now_ms(self) -> float:
        return self.now

    def broker_epoch(self) -> int:
        return self.broker_epochs[LOCAL]

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id not in self.seen_fenced and broker_epoch in (
            -1,
            self.seen_epochs[broker_id],
        )

    # -- the leader ------------------------------------------------------------------------------

    def _is_leading(self) -> bool:
        return self.core.is_leader

    @rule(count=st.integers(min_value=1, max_value=5))
    @precondition(_is_leading)
    def append(self, count: int) -> None:
        self.ends[LOCAL] += count
        self.core.local_log_grew(self.ends[LOCAL], self.min_insync_replicas)

    @rule()
    @precondition(_is_leading)
    def check(self) -> None:
        self.core.advance_high_watermark(self.min_insync_replicas)
        self._hand_out(self.core.propose())

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
        self.under_way.append(change)

    # -- followers -------------------------------------------------------------------------------

    def _controller_state(self) -> PartitionState:
        return self.states[-1]

    @rule(replica_id=FOLLOWER, count=st.integers(min_value=1, max_value=10))
    def replicate(self, replica_id: int, count: int) -> None:
        """Records have arrived at a follower that follows this leader."""
        if self._controller_state().leader_id == LOCAL and self._has_heard_epoch():
            self.ends[replica_id] = min(self.ends[LOCAL], self.ends[replica_id] + count)

    def _has_heard_epoch(self) -> bool:
        return self.core.leader_epoch == self._controller_state().leader_epoch

    @rule(replica_id=FOLLOWER, is_delayed=st.booleans())
    def fetch(self, replica_id: int, is_delayed: bool) -> None:
        """A follower's fetch is sent, under the newest leader epoch."""
        if replica_id in self.fenced and self.broker_epochs[replica_id] == 1:
            return
        sent = DelayedFetch(
            self._controller_state().leader_epoch,
            FollowerFetch(
                replica_id, self.ends[replica_id], 0, self.broker_epochs[replica_id], self.now
            ),
        )
        if is_delayed:
            self.fetches.append(sent)
        else:
            self._arrive(sent)

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
        self.core.follower_fetched(fetch, self.min_insync_replicas)
        self._hand_out(self.core.propose_expansion(fetch.replica_id))

    @rule(replica_id=FOLLOWER, lost=st.integers(min_value=0, max_value=10))
    def restart_without_its_tail(self, replica_id: int, lost: int) -> None:
        """An unclean start: out of the ISR before it fetches anything."""
        if self._controller_state().leader_id == replica_id:
            return
        self.broker_epochs[replica_id] += 1
        self.ends[replica_id] = max(0, self.ends[replica_id] - lost)
        self._leave_isr(replica_id)

    # -- the controller --------------------------------------------------------------------------

    def _decide(self, **changes: object) -> None:
        state = self._controller_state()
        self.states.append(
            replace(state, partition_epoch=state.partition_epoch + 1, **changes)  # type: ignore[arg-type]
        )

    def _leave_isr(self, replica_id: int) -> None:
        isr = self._controller_state().isr
        if replica_id in isr:
            self._decide(isr=tuple(member for member in isr if member != replica_id))

    @rule(replica_id=FOLLOWER)
    def fence(self, replica_id: int) -> None:
        if self._controller_state().leader_id != replica_id:
            self.fenced |= {replica_id}
            self._leave_isr(replica_id)

    @rule(replica_id=FOLLOWER)
    def unfence(self, replica_id: int) -> None:
        self.fenced -= {replica_id}

    @rule()
    def new_leader_epoch(self) -> None:
        """The same leader is elected again."""
        state = self._controller_state()
        self._decide(leader_epoch=state.leader_epoch + 1)

    @rule(replica_id=FOLLOWER)
    def another_leads(self, replica_id: int) -> None:
        """Any member of the ISR may be elected; the others follow its log."""
        state = self._controller_state()
        if replica_id not in state.isr or state.leader_id != LOCAL:
            return
        self._decide(leader_id=replica_id, leader_epoch=state.leader_epoch + 1)
        for other in FOLLOWERS:
            self.ends[other] = min(self.ends[other], self.ends[replica_id])

    @rule()
    def leads_again(self) -> None:
        state = self._controller_state()
        if state.leader_id != LOCAL and LOCAL in state.isr and self._has_heard_epoch():
            self._decide(leader_id=LOCAL, leader_epoch=state.leader_epoch + 1)

    @rule(pick=PICK, is_heard=st.booleans())
    @precondition(lambda self: self.under_way)
    def proposal_arrives(self, pick: int, is_heard: bool) -> None:
        """The controller decides; the answer goes out, or there is none and the leader knows."""
        change = self.under_way.pop(pick % len(self.under_way))
        error = self._judge(change)
        if error is ErrorCode.NONE:
            self._decide(isr=change.isr, leader_recovery_state=change.leader_recovery_state)
        state = self._controller_state() if error is ErrorCode.NONE else None
        answer = Answer(change, error, state)
        if not is_heard:
            answer = Answer(change, ErrorCode.NETWORK_EXCEPTION, None)
        self.answers.append(answer)

    @rule(pick=PICK)
    @precondition(lambda self: self.under_way)
    def proposal_is_lost(self, pick: int) -> None:
        change = self.under_way.pop(pick % len(self.under_way))
        self.answers.append(Answer(change, ErrorCode.REQUEST_TIMED_OUT, None))

    def _judge(self, change: IsrChange) -> ErrorCode:
        state = self._controller_state()
        if change.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in change.isr:
            epoch = change.broker_epochs[member]
            if member in self.fenced or epoch not in (-1, self.broker_epochs[member]):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    @rule(is_repeated=st.booleans())
    @precondition(lambda self: self.under_way)
    def only_the_answer_is_lost(self, is_repeated: bool) -> None:
        """Committed perhaps, and proposed again because nobody heard of it."""
        self.proposal_arrives(0, False)
        self.answer_arrives(len(self.answers) - 1, False)
        if is_repeated and self.under_way:
            self.proposal_arrives(len(self.under_way) - 1, True)
            self.answer_arrives(len(self.answers) - 1, False)

    @rule(pick=PICK, is_repeated=st.booleans())
    @precondition(lambda self: self.answers)
    def answer_arrives(self, pick: int, is_repeated: bool) -> None:
        index = pick % len(self.answers)
        core = self.core
        # The sender has one request under way: only what nobody waits for may come twice.
        is_repeated = is_repeated and self.answers[index].change is not core.in_sync.pending
        answer = self.answers[index] if is_repeated else self.answers.pop(index)
        before = self._snapshot()
        is_stale = core.in_sync.pending is not answer.change
        became = core.isr_change_answered(answer.change, answer.error, answer.state)
        if is_stale:
            assert self._snapshot() == before, "a stale answer changed something"
            return
        if answer.error in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
            assert self._snapshot() == before
            assert answer.change not in self.under_way
            self.under_way.append(answer.change)
            return
        if core.in_sync.pending is None:
            self.handed_out = None
        if became is IsrAnswer.COMMITTED:
            self.committed_count += 1
            core.advance_high_watermark(self.min_insync_replicas)
            self._hand_out(core.propose())

    def _snapshot(self) -> object:
        core = self.core
        return (core.state, core.in_sync.maximal, core.in_sync.pending, core.high_watermark)

    @rule(pick=PICK)
    def metadata_arrives(self, pick: int) -> None:
        """Mostly the newest, sometimes an old one once more."""
        if pick % 3 == 0:
            before = self._snapshot()
            old = self.states[pick % len(self.states)]
            if (old.leader_epoch, old.partition_epoch) < (
                self.core.leader_epoch,
                self.core.partition_epoch,
            ):
                self.core.apply_state(
                    old, log_end_offset=self.ends[LOCAL], high_watermark=self.core.high_watermark
                )
                assert self._snapshot() == before, "an old state changed something"
            return
        self.seen_fenced = self.fenced
        self.seen_epochs = dict(self.broker_epochs)
        self._hear(self.states[-1])

    def _hear(self, state: PartitionState) -> None:
        core = self.core
        if state.leader_id != LOCAL and state.leader_epoch > core.leader_epoch:
            self.ends[LOCAL] = min(self.ends[LOCAL], self.ends[state.leader_id])
        core.apply_state(state, log_end_offset=self.ends[LOCAL], high_watermark=core.high_watermark)
        if core.in_sync.pending is None:
            self.handed_out = None
        core.advance_high_watermark(self.min_insync_replicas)
        self._hand_out(core.propose())

    # -- promises --------------------------------------------------------------------------------

    @invariant()
    def committed_is_on_every_replica_that_may_lead(self) -> None:
        for member in self._controller_state().isr:
            assert self.core.high_watermark <= self.ends[member], member

    @invariant()
    def high_watermark_moves_only_on_and_with_enough_in_sync(self) -> None:
        core = self.core
        leader_epoch, before = self.last_high_watermark
        self.last_high_watermark = (core.leader_epoch, core.high_watermark)
        if not core.is_leader or leader_epoch != core.leader_epoch:
            return
        assert core.high_watermark >= before
        if core.high_watermark > before:
            # The ISR may change right after the high watermark has moved within one event, but
            # then it can only have shrunk by the controller's word.
            assert not core.is_under_min_isr(self.min_insync_replicas)

    @invariant()
    def nothing_in_sync_is_forgotten(self) -> None:
        if self.core.is_leader and self._has_heard_epoch():
            missing = set(self._controller_state().isr) - self.core.in_sync.maximal
            assert not missing, f"{missing} may be elected, and the leader does not wait for them"


TestLeaderAndFollowers = LeaderAndFollowers.TestCase
TestLeaderAndFollowers.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class Walk:
    """The same events by weighted chance: deeper than hypothesis goes, without its shrinking."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "append": 4,
        "check": 4,
        "let_time_pass": 6,
        "replicate": 20,
        "fetch": 20,
        "fetch_arrives_late": 2,
        "restart_without_its_tail": 1,
        "fence": 1,
        "unfence": 8,
        "new_leader_epoch": 1,
        "another_leads": 1,
        "leads_again": 4,
        "proposal_arrives": 8,
        "proposal_is_lost": 2,
        "only_the_answer_is_lost": 2,
        "answer_arrives": 8,
        "metadata_arrives": 8,
    }

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.machine = LeaderAndFollowers()
        self.machine.begin(chance.randint(1, 3), chance.choice((REPLICAS, (LOCAL, 2), (LOCAL,))))

    def step(self) -> None:
        chance, machine = self.chance, self.machine
        (name,) = chance.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))
        follower, flag, pick = chance.choice(FOLLOWERS), chance.random() < 0.3, chance.randrange(99)
        arguments: dict[str, tuple[object, ...]] = {
            "append": (chance.randint(1, 5),),
            "let_time_pass": (chance.choice((1, 100, MAX_LAG_MS + 1)),),
            "replicate": (follower, chance.randint(1, 40)),
            "fetch": (follower, flag),
            "restart_without_its_tail": (follower, chance.randint(0, 10)),
            "fence": (follower,),
            "unfence": (follower,),
            "another_leads": (follower,),
            "fetch_arrives_late": (pick,),
            "proposal_arrives": (pick, not flag),
            "proposal_is_lost": (pick,),
            "only_the_answer_is_lost": (not flag,),
            "answer_arrives": (pick, flag),
            "metadata_arrives": (pick,),
        }
        needed = {
            "append": machine.core.is_leader,
            "check": machine.core.is_leader,
            "fetch_arrives_late": machine.fetches,
            "proposal_arrives": machine.under_way,
            "proposal_is_lost": machine.under_way,
            "only_the_answer_is_lost": machine.under_way,
            "answer_arrives": machine.answers,
        }
        if not needed.get(name, True):
            return
        getattr(machine, name)(*arguments.get(name, ()))
        machine.committed_is_on_every_replica_that_may_lead()
        machine.high_watermark_moves_only_on_and_with_enough_in_sync()
        machine.nothing_in_sync_is_forgotten()


@pytest.mark.parametrize("round_number", range(20))
def test_long_walks(round_number: int) -> None:
    seed = int(os.environ.get("MOLDAU_SEED", random.randrange(2**32))) + round_number
    print(f"MOLDAU_SEED={seed - round_number}")
    walk = Walk(random.Random(seed))
    for _ in range(1_500):
        walk.step()


def test_walks_are_not_idle() -> None:
    """With a fixed seed: proposals are committed, leaders change."""
    walk = Walk(random.Random(5))
    for _ in range(3_000):
        walk.step()
    assert walk.machine.committed_count > 2
    assert walk.machine.core.leader_epoch > 2
