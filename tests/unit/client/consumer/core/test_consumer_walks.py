"""Any interleaving of polls, answers, losses and time keeps the promises of a member of the new
protocol, and the rules notice members that do not keep them.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    MemberState,
    with_epoch,
)
from moldau.broker.coordinator.group.core.member_updates import Reconciliation
from moldau.client.consumer.core.consumer_member import ConsumerMember, ConsumerState
from moldau.client.consumer.core.rebalance_steps import Assign, Partitions
from tests.unit.client.consumer.core.consumer_walk import (
    TOPIC_ID,
    ConsumerWalk,
    Coordinator,
    Seat,
    SeatState,
)
from tests.unit.client.consumer.core.decisions import Decisions

STATES = {
    SeatState.STABLE: MemberState.STABLE,
    SeatState.UNREVOKED: MemberState.UNREVOKED_PARTITIONS,
    SeatState.UNRELEASED: MemberState.UNRELEASED_PARTITIONS,
}


class CheckedCoordinator(Coordinator):
    """The model, whose every step is compared with the broker's own."""

    def reconciled(self, member_id: str, seat: Seat, said: frozenset[int] | None) -> Seat:
        new = super().reconciled(member_id, seat, said)
        held = self.held_by_others(member_id)
        brokers = Reconciliation(
            target_epoch=self.epoch,
            target={TOPIC_ID: self.target(member_id)},
            is_subscribed=lambda _topic_id: True,
            has_subscription_changed=False,
            is_released=lambda _topic_id, partition: partition not in held,
            owned=None if said is None else {TOPIC_ID: said},
        ).next_step(_as_broker_has(member_id, seat))
        assert _without_times(brokers) == _without_times(_as_broker_has(member_id, new))
        return new


def _as_broker_has(member_id: str, seat: Seat) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id,
        member_epoch=seat.epoch,
        previous_member_epoch=seat.previous_epoch,
        state=STATES[seat.state],
        assigned=with_epoch({TOPIC_ID: seat.assigned} if seat.assigned else {}, 0),
        pending_revocation=with_epoch({TOPIC_ID: seat.pending} if seat.pending else {}, 0),
    )


def _without_times(member: ConsumerGroupMember) -> tuple[object, ...]:
    """All but the epochs in which it got each partition, which the model does not have."""
    owned = (
        {topic_id: set(each) for topic_id, each in partitions.items()}
        for partitions in (member.assigned, member.pending_revocation)
    )
    return member.member_epoch, member.previous_member_epoch, member.state, *owned


def walk_through(data: bytes, *, kind: type[ConsumerMember] = ConsumerMember) -> None:
    walk = ConsumerWalk(Decisions(data), kind=kind, coordinator=CheckedCoordinator())
    walk.run()
    walk.check_settles()


LOST_ANSWER = bytes.fromhex(
    "6238860188010000fe0064140100d0001e6e000900036600620c93761831f99b"
    "a3ccd1562b7a840095a0a2b0b100cde5e7f8ab01040bd176"
)
"""The answer that gives m0 partitions is lost, and the target takes them away again: the full
heartbeat after it owns nothing, and gives them back."""

TAKEN_TOO_EARLY = bytes.fromhex(
    "02010401060100020004000a01000900020000020200000402000006020000000201040100000900020601000a"
    "00000202040200020602000202"
)
"""m2 is assigned more while a heartbeat with what it had before is under way. The coordinator,
whose target has changed, takes this heartbeat for a return of the rest."""


@settings(max_examples=60)
@given(data=st.binary(min_size=50, max_size=500))
@example(data=LOST_ANSWER)
@example(data=TAKEN_TOO_EARLY)
def test_any_interleaving(data: bytes) -> None:
    walk_through(data)


@pytest.mark.parametrize("seed", range(20))
def test_long_walks(seed: int) -> None:
    print(f"seed {seed}")
    walk_through(random.Random(seed).randbytes(1_500))


class AcknowledgesBeforeGivingUp(ConsumerMember):
    """Says that it owns its target as soon as it hears of it."""

    def _owned_by_topic(self) -> dict:  # type: ignore[type-arg]
        told = super()._owned_by_topic()
        if self.state is ConsumerState.RECONCILING:
            told = {}
            for topic_id, partition in sorted(self._target, key=lambda each: each[1]):
                told.setdefault(topic_id, []).append(partition)
        return told


class SaysNothingAfterALostAnswer(ConsumerMember):
    """Takes a heartbeat without an answer for one that was heard."""

    def failed(self, attempt: int, now_ms: float) -> None:
        told = self._telling
        super().failed(attempt, now_ms)
        self._told = told


class KeepsWhatItLost(ConsumerMember):
    """Fenced, it goes on with what it owned."""

    def _has_lost(self) -> bool:
        return False


class KeepsWhatIsTakenAway(ConsumerMember):
    """Acknowledges a revocation, and goes on consuming."""

    def revoked(self, partitions: Partitions, now_ms: float) -> None:
        owned = self.owned
        super().revoked(partitions, now_ms)
        self._kept = owned

    def assigned(self, step: Assign, now_ms: float) -> None:
        super().assigned(step, now_ms)
        self.owned |= self._kept

    _kept: Partitions = frozenset()


class TakesBeforeTheAnswer(ConsumerMember):
    """Takes over partitions while the coordinator reads a heartbeat that does not name them."""

    _owned_is_unanswered = property(lambda _self: False, lambda _self, _value: None)  # type: ignore[assignment]


FAULTS = (
    AcknowledgesBeforeGivingUp,
    SaysNothingAfterALostAnswer,
    KeepsWhatItLost,
    KeepsWhatIsTakenAway,
    TakesBeforeTheAnswer,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_injected_bugs_are_found(fault: type[ConsumerMember]) -> None:
    for data in (TAKEN_TOO_EARLY, *(random.Random(seed).randbytes(600) for seed in range(100))):
        try:
            walk_through(data, kind=fault)
        except (AssertionError, KeyError):  # a broken rule, or a member that contradicts itself
            return
    pytest.fail("no rule notices")
