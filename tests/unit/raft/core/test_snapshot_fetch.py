"""How a follower gets a snapshot from its leader (KIP-630)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import Stop, WriteSnapshotChunk
from moldau.raft.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from moldau.raft.core.values import SnapshotId
from tests.unit.raft.core.harness import Record, endpoints, voter_set
from tests.unit.raft.core.solo import FETCH_TIMEOUT_MS, Solo

SNAPSHOT = SnapshotId(5, 2)
VOTERS = voter_set(1, 2, 3, 4)
DATA = pickle.dumps(([Record(2, value) for value in range(5)], VOTERS))


def told_to_fetch(*held: Record) -> Solo:
    solo = Solo(records=held)
    solo.follow(2, 3)
    solo.fetched(snapshot_id=SNAPSHOT, high_watermark=9)
    return solo


def chunk(start: int, end: int, **fields: object) -> FetchSnapshotResponse:
    response = FetchSnapshotResponse(
        ErrorCode.NONE, 2, 3, endpoints(2), SNAPSHOT, len(DATA), start, DATA[start:end]
    )
    return replace(response, **fields)  # type: ignore[arg-type]


def wanted(solo: Solo) -> list[int]:
    return [request.position for _, request in solo.sent(FetchSnapshotRequest)]


def test_the_snapshot_comes_in_stretches_and_replaces_the_log() -> None:
    solo = told_to_fetch()
    (request,) = (request for _, request in solo.sent(FetchSnapshotRequest))
    assert (request.snapshot_id, request.position, request.leader_epoch) == (SNAPSHOT, 0, 3)
    assert solo.sent(FetchRequest)[-1][1].leader_epoch == 0, "no other fetch meanwhile"
    solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    assert wanted(solo) == [40]
    solo.respond(FetchSnapshotRequest, 2, chunk(40, len(DATA)))
    last = solo.of(WriteSnapshotChunk)[-1]
    assert isinstance(last, WriteSnapshotChunk)
    assert last.is_last
    assert solo.replica.log.log_start_offset == solo.replica.log.log_end_offset == 5
    assert solo.core.state.high_watermark == 5
    assert solo.core.state.voters.latest == VOTERS
    request_ = solo.sent(FetchRequest)[-1][1]
    assert (request_.fetch_offset, request_.last_fetched_epoch) == (5, 2)


def test_a_lost_answer_is_asked_for_again_at_the_same_position() -> None:
    solo = told_to_fetch()
    solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    solo.respond(FetchSnapshotRequest, 2, None)
    assert wanted(solo) == []
    solo.wait(20)
    assert wanted(solo) == [40]


def test_a_stretch_that_comes_twice_is_written_once() -> None:
    solo = told_to_fetch()
    send = solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    solo.again(send, chunk(0, 40))
    assert len(solo.of(WriteSnapshotChunk)) == 1


def test_a_snapshot_that_is_gone_leads_back_to_fetch() -> None:
    for error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
        solo = told_to_fetch()
        solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
        solo.respond(FetchSnapshotRequest, 2, FetchSnapshotResponse(error, 2, 3))
        assert solo.sent(FetchRequest)[-1][1].fetch_offset == 0
        newer = SnapshotId(8, 3)
        solo.fetched(snapshot_id=newer)
        request = solo.sent(FetchSnapshotRequest)[-1][1]
        assert (request.snapshot_id, request.position) == (newer, 0)


def test_with_a_new_leader_the_snapshot_begins_again() -> None:
    solo = told_to_fetch()
    solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    solo.follow(3, 4)
    late = next(
        each
        for each in solo.cluster.requests
        if isinstance(each.send.request, FetchSnapshotRequest)
    )
    solo.again(late.send, chunk(40, 80))
    assert len(solo.of(WriteSnapshotChunk)) == 1
    assert solo.sent(FetchRequest)[-1][0] == 3
    response = FetchResponse(ErrorCode.NONE, 3, 4, snapshot_id=SNAPSHOT)
    solo.respond(FetchRequest, 3, response)
    node_id, request = solo.sent(FetchSnapshotRequest)[-1]
    assert (node_id, request.position) == (3, 0)


def test_stretches_keep_the_follower_from_giving_its_leader_up() -> None:
    solo = told_to_fetch()
    for position in range(0, 40, 10):
        solo.wait(1_500)
        solo.respond(FetchSnapshotRequest, 2, chunk(position, position + 10))
    assert solo.role is Role.FOLLOWER
    solo.wait(FETCH_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE


def test_what_does_not_fit_together_is_dropped() -> None:
    for bad in (
        chunk(0, 0),
        chunk(0, 40, snapshot_id=SnapshotId(6, 2)),
        chunk(10, 40),
        chunk(0, 40, size_bytes=39),
    ):
        solo = told_to_fetch()
        solo.respond(FetchSnapshotRequest, 2, bad)
        assert solo.of(WriteSnapshotChunk) == []
        asked_count = len(solo.sent(FetchRequest))
        solo.wait(19)
        assert len(solo.sent(FetchRequest)) == asked_count, "no loop at the network's speed"
        solo.wait(1)
        assert solo.sent(FetchRequest)[-1][1].fetch_offset == 0
        assert len(solo.sent(FetchRequest)) == asked_count + 1


@pytest.mark.parametrize(
    "bad",
    [
        {"size_bytes": len(DATA) + 1},
        {"leader_epoch": 2},
        {"snapshot_id": SnapshotId(6, 2)},
        {"error": ErrorCode.BROKER_NOT_AVAILABLE},
    ],
)
def test_a_later_stretch_that_does_not_fit_is_not_written(bad: dict[str, object]) -> None:
    solo = told_to_fetch()
    solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    solo.respond(FetchSnapshotRequest, 2, chunk(40, 80, **bad))
    assert len(solo.of(WriteSnapshotChunk)) == 1
    assert solo.role is Role.FOLLOWER


def test_nothing_is_fetched_while_the_last_stretch_is_installed() -> None:
    solo = told_to_fetch()
    solo.respond(FetchSnapshotRequest, 2, chunk(0, 40))
    fetched = solo._take(FetchSnapshotRequest, 2).send
    (last,) = solo.core.on_response(fetched, chunk(40, len(DATA)), solo.now_ms)
    assert isinstance(last, WriteSnapshotChunk)
    assert (last.position, last.is_last) == (40, True)
    before = len(solo.cluster.requests)
    solo.wait(FETCH_TIMEOUT_MS / 2)
    solo.again(fetched, chunk(40, len(DATA)))
    assert len(solo.of(WriteSnapshotChunk)) == 1, "the first; the last one is under way"
    assert len(solo.cluster.requests) == before


def test_a_refused_snapshot_is_fetched_again_after_a_pause() -> None:
    solo = told_to_fetch()
    send = solo.cluster.requests.pop(-1)
    effects = solo.core.on_response(send.send, chunk(0, len(DATA)), solo.now_ms)
    assert [type(each) for each in effects] == [WriteSnapshotChunk]
    assert solo.core.tick(solo.now_ms + 50) == [], "it waits for the installation"
    solo.replica.run(solo.core.on_snapshot_refused(solo.now_ms))
    assert solo.replica.log.log_end_offset == 0
    solo.wait(50)
    assert solo.sent(FetchRequest)[-1][1].fetch_offset == 0


def test_a_snapshot_of_what_is_committed_here_already_is_not_fetched() -> None:
    solo = Solo()
    solo.follow(2, 3)
    records = pickle.dumps([Record(2, value) for value in range(6)])
    solo.fetched(records=records, high_watermark=5)
    assert solo.core.state.high_watermark == 5
    solo.fetched(snapshot_id=SNAPSHOT)
    assert solo.sent(FetchSnapshotRequest) == []
    solo.wait(20)
    assert solo.sent(FetchRequest)[-1][1].fetch_offset == 6


@pytest.mark.parametrize(("leader_epoch", "is_fetched"), [(0, True), (-1, False)])
def test_a_snapshot_of_epoch_0_is_fetched_and_one_without_an_epoch_is_not(
    leader_epoch: int, is_fetched: bool
) -> None:
    solo = Solo()
    solo.follow(2, 3)
    solo.fetched(snapshot_id=SnapshotId(5, leader_epoch), high_watermark=9)
    assert bool(solo.sent(FetchSnapshotRequest)) is is_fetched


def test_a_tail_that_is_not_committed_goes_with_the_old_log() -> None:
    held = tuple(Record(1, value) for value in range(9))
    solo = told_to_fetch(*held)
    solo.respond(FetchSnapshotRequest, 2, chunk(0, len(DATA)))
    assert solo.replica.log.log_end_offset == 5
    assert solo.core.state.high_watermark == 5


def test_an_installation_below_the_high_watermark_stops_the_node() -> None:
    solo = Solo()
    solo.follow(2, 3)
    records = pickle.dumps([Record(2, value) for value in range(6)])
    solo.fetched(records=records, high_watermark=6)
    effects = solo.core.on_snapshot_installed(SNAPSHOT, VOTERS, solo.now_ms)
    assert [type(each) for each in effects] == [Stop]
