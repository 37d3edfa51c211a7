"""A replica that is ticked when it asks to be does what one does that is ticked each millisecond:
nothing is due before `next_tick_ms`, and nothing is late.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core.effects import Effect
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    UpdateVoterRequest,
    VoteRequest,
)
from moldau.raft.core.values import ElectionState, SnapshotId
from moldau.raft.core.voters import VoterEndpoint, VoterSet
from tests.unit.raft.core.harness import Record, Replica, described, key
from tests.unit.raft.core.solo import Solo
from tests.unit.raft.core.transcript import effect_line

Make = Callable[..., Solo]


class Ticked(Solo):
    """It is ticked each millisecond, due or not."""

    def wait(self, duration_ms: float) -> None:
        for _ in range(int(duration_ms)):
            self.cluster.now_ms += 1
            self.replica.run(self.core.tick(self.now_ms))


def fail(solo: Solo, kind: type[PeerRequest]) -> None:
    """Everything of a kind that is under way fails."""
    for node_id in [node_id for node_id, _ in solo.sent(kind)]:
        solo.respond(kind, node_id, None)


def _alone(make: Make) -> Solo:
    solo = make()
    solo.wait(10_000)
    return solo


def _after_a_silent_leader(make: Make) -> Solo:
    solo = make()
    solo.follow()
    solo.fetched()
    solo.wait(8_000)
    return solo


def _after_a_leader_that_is_refused(make: Make) -> Solo:
    solo = make()
    solo.follow()
    solo.fetched()
    for _ in range(8):
        fail(solo, FetchRequest)
        solo.wait(60)
    solo.wait(3_000)
    return solo


def _looking_for_a_leader(make: Make) -> Solo:
    solo = make(node_id=9)
    for _ in range(20):
        fail(solo, FetchRequest)
        solo.wait(70)
    solo.wait(1_000)
    return solo


def _fetching_a_snapshot(make: Make) -> Solo:
    solo = make()
    solo.follow()
    solo.fetched(snapshot_id=SnapshotId(10, 1))
    for _ in range(6):
        fail(solo, FetchSnapshotRequest)
        solo.wait(90)
    solo.wait(4_000)
    return solo


def _reporting_itself(make: Make) -> Solo:
    elsewhere = (VoterEndpoint("CONTROLLER", "elsewhere", 1),)
    old = described(1)._replace(endpoints=elsewhere)
    solo = make(VoterSet((old, described(2), described(3)), 1))
    solo.follow()
    for _ in range(9):
        solo.wait(1_500)
        solo.fetched()
        fail(solo, UpdateVoterRequest)
    return solo


def _standing(make: Make) -> Solo:
    solo = make()
    solo.stand()
    for _ in range(4):
        fail(solo, VoteRequest)
        solo.wait(30)
    solo.refuse(2)
    solo.wait(4_000)
    return solo


def _leading_without_followers(make: Make) -> Solo:
    solo = make()
    solo.lead()
    for _ in range(5):
        fail(solo, BeginQuorumEpochRequest)
        solo.wait(130)
    solo.wait(8_000)
    return solo


def _leading(make: Make) -> Solo:
    solo = make()
    solo.lead()
    for node_id in (2, 3):
        response = BeginQuorumEpochResponse(ErrorCode.NONE, 1, 1)
        solo.respond(BeginQuorumEpochRequest, node_id, response)
    for number in range(12):
        solo.fetch_by(2, max_wait_ms=400)
        solo.fetch_by(9, max_wait_ms=700)
        solo.wait(550)
        if number % 3 == 0:
            solo.replica.propose(number)
    return solo


def _handing_over(make: Make) -> Solo:
    solo = make()
    solo.lead()
    solo.fetch_by(3)
    solo.replica.propose("a")
    solo.replica.run(solo.core.resign("resign", key(3), solo.now_ms))
    solo.wait(1_200)
    for _ in range(4):
        fail(solo, EndQuorumEpochRequest)
        solo.wait(50)
    solo.wait(5_000)
    return solo


def _resigned_after_a_restart(make: Make) -> Solo:
    solo = make(records=(Record(3, "start"),), election=ElectionState(3, 1, key(1)))
    for _ in range(4):
        fail(solo, EndQuorumEpochRequest)
        solo.wait(50)
    solo.wait(4_000)
    return solo


def _adding_a_voter(make: Make) -> Solo:
    solo = make()
    solo.lead()
    solo.fetch_by(2)
    solo.replica.run(solo.core.add_voter("add", described(4), solo.now_ms, timeout_ms=900))
    for _ in range(5):
        fail(solo, KraftVersionRequest)
        solo.wait(110)
    solo.respond(KraftVersionRequest, 4, KraftVersionResponse(ErrorCode.NONE, 0, 1))
    solo.wait(2_000)
    return solo


def _removing_a_voter(make: Make) -> Solo:
    solo = make()
    solo.lead()
    solo.fetch_by(2)
    solo.replica.run(solo.core.remove_voter("remove", key(3), solo.now_ms, timeout_ms=900))
    solo.wait(4_000)
    return solo


def _shutting_down(make: Make) -> Solo:
    solo = make()
    solo.lead()
    solo.replica.run(solo.core.shut_down("bye", solo.now_ms))
    solo.wait(2_000)
    return solo


def _fetching_from_a_leader_with_nothing(make: Make) -> Solo:
    solo = make()
    solo.follow()
    for took_ms in (0, 5, 19, 20, 0):
        solo.wait(took_ms)
        solo.respond(FetchRequest, 2, FetchResponse(ErrorCode.NONE, 2, 1))
        solo.wait(50)
    solo.wait(500)
    return solo


SCENARIOS = [
    _alone,
    _after_a_silent_leader,
    _after_a_leader_that_is_refused,
    _looking_for_a_leader,
    _fetching_a_snapshot,
    _reporting_itself,
    _standing,
    _leading_without_followers,
    _leading,
    _handing_over,
    _resigned_after_a_restart,
    _adding_a_voter,
    _removing_a_voter,
    _shutting_down,
    _fetching_from_a_leader_with_nothing,
]


def effects_of(scenario: Callable[[Make], Solo], kind: type[Solo]) -> list[tuple[float, str]]:
    """What a replica does in a scenario, and when."""
    lines: list[tuple[float, str]] = []

    def make(*arguments: object, **options: object) -> Solo:
        solo = kind(*arguments, start=False, **options)  # type: ignore[arg-type]

        def trace(_replica: Replica, effect: Effect) -> None:
            lines.append((solo.now_ms, effect_line(effect)))

        solo.cluster.trace = trace  # type: ignore[method-assign]
        solo.replica.start()
        return solo

    scenario(make)
    return lines


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__.strip("_"))
def test_ticks_are_neither_early_nor_late(scenario: Callable[[Make], Solo]) -> None:
    when_due = effects_of(scenario, Solo)
    assert when_due == effects_of(scenario, Ticked)
    assert len(when_due) > 3
