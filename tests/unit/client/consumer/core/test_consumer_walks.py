"""Any interleaving of polls, answers, losses and time keeps the promises of a member of the new
protocol, and the rules notice members that do not keep them.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.consumer.core.consumer_member import ConsumerMember, ConsumerState
from moldau.client.consumer.core.rebalance_steps import Partitions
from tests.unit.client.consumer.core.consumer_walk import ConsumerWalk
from tests.unit.client.consumer.core.decisions import Decisions


@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=50, max_size=500))
def test_any_interleaving(data: bytes) -> None:
    walk = ConsumerWalk(Decisions(data))
    walk.run()
    walk.check_settles()


@pytest.mark.parametrize("seed", range(20))
def test_long_walks(seed: int) -> None:
    print(f"seed {seed}")
    walk = ConsumerWalk(Decisions(random.Random(seed).randbytes(1_500)))
    walk.run()
    walk.check_settles()


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

    def assigned(self, partitions: Partitions, now_ms: float) -> None:
        super().assigned(partitions, now_ms)
        self.owned |= self._kept

    _kept: Partitions = frozenset()


FAULTS = (
    AcknowledgesBeforeGivingUp,
    SaysNothingAfterALostAnswer,
    KeepsWhatItLost,
    KeepsWhatIsTakenAway,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_injected_bugs_are_found(fault: type[ConsumerMember]) -> None:
    for seed in range(100):
        walk = ConsumerWalk(Decisions(random.Random(seed).randbytes(600)), kind=fault)
        try:
            walk.run()
            walk.check_settles()
        except (AssertionError, KeyError):  # a broken rule, or a member that contradicts itself
            return
    pytest.fail("nobody notices")
