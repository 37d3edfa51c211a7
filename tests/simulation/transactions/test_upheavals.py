"""Which upheavals a seed draws."""

from __future__ import annotations

from tests.simulation.transactions.draws import Draws


def test_a_fault_that_is_asked_for_brings_what_it_needs():
    assert Draws.of_seed("1", ("recreate_topic",)) == Draws(topics=True)
    assert Draws.of_seed("1", ("kill_broker",)) == Draws()
    assert Draws.of_seed("1", ("race_for_id", "delete_group")) == Draws(groups=True, rivals=True)


def test_every_upheaval_is_drawn_by_some_seeds_and_not_by_all():
    drawn = [Draws.of_seed(str(number)) for number in range(60)]
    for what in ("two_phase", "levels", "topics", "groups", "rivals"):
        assert 5 < sum(getattr(each, what) for each in drawn) < 30, what
