"""What a leader may count as committed, under every order of events (`isr_machine`).

That bugs of that kind are found is shown with injected ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings

from moldau.broker.replica.core.in_sync_set import InSyncSet
from tests.kit.dice import drawn_seed
from tests.unit.broker.replica.isr_machine import (
    FOLLOWERS,
    LOCAL,
    MAX_LAG_MS,
    REPLICAS,
    LeaderAndFollowers,
)

TestLeaderAndFollowers = LeaderAndFollowers.TestCase
TestLeaderAndFollowers.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class Walk:
    """The same events by weighted chance: deeper than hypothesis goes, without its shrinking. How
    late metadata and proposals arrive is drawn for each walk, one without the other."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "append": 12,
        "check": 16,
        "let_time_pass": 12,
        "replicate": 40,
        "fetch": 40,
        "fetch_arrives_late": 4,
        "restart_without_its_tail": 1,
        "begin_again_after_damage": 1,
        "minimum_changes": 6,
        "fence": 2,
        "unfence": 12,
        "stall": 6,
        "go_on": 10,
        "refuse": 3,
        "refuse_no_more": 10,
        "new_leader_epoch": 1,
        "another_leads": 1,
        "leads_again": 12,
        "copy_is_lost": 1,
        "connection_is_lost": 8,
        "only_the_answer_is_lost": 2,
        "answer_arrives": 40,
    }

    def __init__(
        self, chance: random.Random, machine: type[LeaderAndFollowers] = LeaderAndFollowers
    ) -> None:
        self.chance = chance
        self.weights = {
            **self.WEIGHTS,
            "metadata_arrive": chance.choice((3, 8, 20)),
            "proposal_arrives": chance.choice((8, 20, 40)),
        }
        self.machine = machine()
        self.machine.begin(chance.randint(1, 3), chance.choice((REPLICAS, (LOCAL, 2), (LOCAL,))))

    def step(self) -> None:
        chance, machine = self.chance, self.machine
        (name,) = chance.choices(list(self.weights), list(self.weights.values()))
        follower, flag, pick = chance.choice(FOLLOWERS), chance.random() < 0.3, chance.randrange(99)
        arguments: dict[str, tuple[object, ...]] = {
            "append": (chance.randint(1, 5),),
            "check": (flag,),
            "let_time_pass": (chance.choice((1, 100, MAX_LAG_MS + 1)),),
            "replicate": (follower, chance.randint(1, 40)),
            "fetch": (follower, flag),
            "fetch_arrives_late": (pick,),
            "restart_without_its_tail": (follower, chance.randint(0, 10)),
            "begin_again_after_damage": (follower,),
            "minimum_changes": (chance.randint(1, 3),),
            "fence": (follower,),
            "unfence": (follower,),
            "stall": (follower,),
            "go_on": (follower,),
            "refuse": (follower,),
            "refuse_no_more": (follower,),
            "another_leads": (follower,),
            "proposal_arrives": (pick, flag),
            "copy_is_lost": (pick,),
            "connection_is_lost": (pick,),
            "only_the_answer_is_lost": (not flag,),
            "answer_arrives": (pick,),
            "metadata_arrive": (pick,),
        }
        needed = {
            "append": machine.core.is_leader,
            "check": machine.core.is_leader,
            "fetch_arrives_late": machine.fetches,
            "proposal_arrives": machine.copies,
            "copy_is_lost": machine.copies,
            "only_the_answer_is_lost": machine.copies,
            "answer_arrives": machine.answers,
        }
        if not needed.get(name, True):
            return
        getattr(machine, name)(*arguments.get(name, ()))
        machine.committed_is_on_every_replica_that_may_lead()
        machine.nothing_in_sync_is_forgotten()


WALKS = 40
STEPS_PER_WALK = 5_000


@pytest.mark.parametrize("round_number", range(WALKS))
def test_long_walks(round_number: int) -> None:
    seed = drawn_seed() + round_number
    walk = Walk(random.Random(seed))
    for _ in range(STEPS_PER_WALK):
        walk.step()  # checks the promises
        assert walk.machine.core.high_watermark <= walk.machine.ends[LOCAL]


def test_walks_are_not_idle() -> None:
    """With a fixed seed: proposals are committed, leaders change, what is hard comes about."""
    walk = Walk(random.Random(5))
    seen: set[str] = set()
    for _ in range(STEPS_PER_WALK):
        walk.step()
        machine = walk.machine
        in_sync = machine.core.in_sync
        seen |= {"eligible leaders"} if machine.newest.elr else set()
        seen |= {"a refused addition"} if in_sync.refused else set()
        seen |= {"left by an answer"} if in_sync.left else set()
        seen |= {"metadata lag"} if machine.heard < len(machine.decided) - 3 else set()
        seen |= {"late copies"} if len(machine.copies) > 1 else set()
    assert walk.machine.committed_count > 10
    assert walk.machine.core.leader_epoch > 2
    assert len(seen) == 5, seen


# -- injected bugs ---------------------------------------------------------------------------------


def removed_at_the_answer(self: Any) -> None:
    """A replica that left the ISR counts no more once the controller has answered so."""
    proposed = () if self.pending is None else self.pending.isr
    self.maximal = self.committed.union(self.refused, proposed)


def refused_is_settled(self: Any) -> None:
    """A refusal is taken for proof that no copy of the proposal is taken over."""
    proposed = () if self.pending is None else self.pending.isr
    self.maximal = self.committed.union(self.left, proposed)


def removal_counts_when_proposed(self: Any) -> None:
    """A replica that is proposed to leave counts no more."""
    kept = self.committed if self.pending is None else frozenset(self.pending.isr)
    self.maximal = kept.union(self.left, self.refused)


def addition_counts_when_answered(self: Any) -> None:
    """A replica that is proposed to join does not count yet."""
    self.maximal = self.committed.union(self.left, self.refused)


class WithoutConfirmations(LeaderAndFollowers):
    """The controller writes nothing for the ISR as it is, so that older copies stay valid."""

    writes_confirmations = False


class DamageKeepsLeaderEpoch(LeaderAndFollowers):
    """A damaged log begins again as soon as its broker takes it to be out of ISR and ELR."""

    damage_begins_leader_epoch = False


def is_found(machine: type[LeaderAndFollowers]) -> bool:
    """Whether as many walks as `test_long_walks` makes find something."""
    for seed in range(WALKS):
        walk = Walk(random.Random(seed), machine)
        try:
            for _ in range(STEPS_PER_WALK):
                walk.step()
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(
    "update",
    [
        removed_at_the_answer,
        refused_is_settled,
        removal_counts_when_proposed,
        addition_counts_when_answered,
    ],
)
def test_an_injected_bug_of_the_leader_is_found(
    update: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InSyncSet, "_update_maximal", update)
    assert is_found(LeaderAndFollowers)


@pytest.mark.parametrize("machine", [WithoutConfirmations, DamageKeepsLeaderEpoch])
def test_a_controller_that_keeps_older_requests_valid_is_found(
    machine: type[LeaderAndFollowers],
) -> None:
    assert is_found(machine)
