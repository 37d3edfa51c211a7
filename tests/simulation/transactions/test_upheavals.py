"""Which upheavals a seed draws, and that feature levels do not outlast them."""

from __future__ import annotations

from dataclasses import replace

from moldau.metadata.features import TRANSACTION_VERSION
from tests.simulation.transactions.draws import Draws
from tests.simulation.transactions.scripted_world import ScriptedWorld

STOPPED_MS = 4_000.0
"""Longer than it takes until the levels are looked at."""

LIMIT_MS = 10_000.0


class LateLevelWorld(ScriptedWorld):
    """A level is asked for while no controller answers, and falls when faults have ended."""

    def __init__(self) -> None:
        super().__init__("late level")
        self.draws = replace(self.draws, levels=True)
        self.before = 0

    async def story(self) -> None:
        self._take_places([])
        self.before = self.level_of(TRANSACTION_VERSION)
        process = self.active()[0].process
        assert process is not None
        process.stop_for(STOPPED_MS)
        administrator = self.administrator
        administrator.process.spawn(administrator.change_level(TRANSACTION_VERSION, 0))

    async def _settle(self) -> None:
        await self._until(self._is_restored, "not restored", LIMIT_MS)
        await super()._settle()

    def _is_restored(self) -> bool:
        is_answered = self.counts["level_changes"] > 0
        return is_answered and self.level_of(TRANSACTION_VERSION) == self.before


def test_a_fault_that_is_asked_for_brings_what_it_needs():
    assert Draws.of_seed("1", ("recreate_topic",)) == Draws(topics=True)
    assert Draws.of_seed("1", ("kill_broker",)) == Draws()
    assert Draws.of_seed("1", ("race_for_id", "delete_group")) == Draws(groups=True, rivals=True)


def test_every_upheaval_is_drawn_by_some_seeds_and_not_by_all():
    drawn = [Draws.of_seed(str(number)) for number in range(60)]
    for what in ("two_phase", "levels", "topics", "groups", "rivals"):
        assert 5 < sum(getattr(each, what) for each in drawn) < 30, what


def test_a_level_that_falls_after_faults_have_ended_is_restored():
    world = LateLevelWorld()
    world.tell()
    assert 0 < world.before == world.level_of(TRANSACTION_VERSION)
