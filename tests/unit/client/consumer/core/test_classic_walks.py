"""Any interleaving of polls, answers, losses and time keeps the classic member's promises, and the
rules notice members that do not keep them.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.rebalance_steps import NOTHING, Assign, Partitions, Standing
from tests.unit.client.consumer.core.classic_walk import ClassicWalk, Violation
from tests.unit.client.consumer.core.decisions import Decisions

IN_STEP = bytes.fromhex("0001000000000200000004000201060000040102000400060000020004")
"""A group that never settled while the coordinator completed rebalances in the members' rhythm."""


@settings(max_examples=60)
@given(data=st.binary(min_size=50, max_size=500), cooperative=st.booleans())
@example(data=IN_STEP, cooperative=True)
def test_any_interleaving(data: bytes, cooperative: bool) -> None:
    walk = ClassicWalk(Decisions(data), cooperative=cooperative)
    walk.run()
    walk.check_settles()


@pytest.mark.parametrize("seed", range(20))
def test_long_walks(seed: int) -> None:
    print(f"seed {seed}")
    walk = ClassicWalk(Decisions(random.Random(seed).randbytes(1_500)), cooperative=bool(seed % 2))
    walk.run()
    walk.check_settles()


class ForgetsThatItLost(ClassicMember):
    """Expelled, it goes on with what it owned."""

    def _reset(self, *, forget_member: bool) -> None:
        super()._reset(forget_member=forget_member)
        self._is_lost = False


class JoinsWithEverything(ClassicMember):
    """An eager member keeps consuming while it joins."""

    def _to_give_up_before_joining(self) -> Partitions:
        return NOTHING


class TakesWithoutGiving(ClassicMember):
    """A cooperative member takes over its assignment and keeps what is not in it."""

    def assigned(self, step: Assign, now_ms: float) -> None:
        super().assigned(Assign(step.partitions | self._before, step.added), now_ms)
        self._assignment = None

    def revoked(self, partitions: Partitions, now_ms: float) -> None:
        self._before = self.owned
        super().revoked(partitions, now_ms)

    _before: Partitions = NOTHING


class StaysSilentAboutRevocation(ClassicMember):
    """After giving up it does not join again: what it gave up has no owner."""

    def revoked(self, partitions: Partitions, now_ms: float) -> None:
        wanted = self._rejoin_wanted
        super().revoked(partitions, now_ms)
        if self._assignment is not None:
            self._rejoin_wanted = wanted


class NeverSettles(ClassicMember):
    """Rejoins without an end."""

    def synced(self, attempt: int, now_ms: float, partitions: Partitions) -> None:
        super().synced(attempt, now_ms, partitions)
        self._rejoin_wanted = True


FAULTS = {
    ForgetsThatItLost: False,
    JoinsWithEverything: False,
    TakesWithoutGiving: True,
    StaysSilentAboutRevocation: True,
    NeverSettles: False,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_injected_bugs_are_found(fault: type[ClassicMember]) -> None:
    for seed in range(100):
        walk = ClassicWalk(
            Decisions(random.Random(seed).randbytes(600)), cooperative=FAULTS[fault], kind=fault
        )
        try:
            walk.run()
            walk.check_settles()
        except AssertionError:  # a broken rule, or an illegal transition
            return
    pytest.fail("nobody notices")


def test_a_rule_is_what_finds_a_double_owner() -> None:
    walk = ClassicWalk(Decisions(b""), cooperative=False)
    walk.check_settles()
    thief, victim = walk.nodes[0].member, walk.nodes[1].member
    assert thief.standing() is Standing.MEMBER
    thief.owned |= victim.owned
    with pytest.raises(Violation, match="m1"):
        walk.check()
