"""Scripts for a member of a classic group: what each answer and each silence leads to."""

from __future__ import annotations

import pytest

from moldau.client.consumer.core.classic_member import TRANSITIONS, ClassicState
from moldau.client.consumer.core.rebalance_steps import (
    Assign,
    Fail,
    GroupRequest,
    Lose,
    Revoke,
    Standing,
)
from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode
from tests.unit.client.consumer.core.classic_script import Script

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))


def test_the_coordinator_gives_the_member_id() -> None:
    script = Script()
    script.prepare()
    script.refuse(GroupRequest.JOIN, ErrorCode.MEMBER_ID_REQUIRED, "given")
    assert script.member.member_id == "given"
    script.send(GroupRequest.JOIN)


def test_a_leader_works_out_the_assignment_before_it_syncs() -> None:
    script = Script()
    script.prepare()
    attempt = script.send(GroupRequest.JOIN)
    script.member.joined(attempt, 0.0, generation_id=1, member_id="m", is_leader=True)
    attempt = script.send(GroupRequest.LEAD)
    assert script.member.led(attempt)
    script.send(GroupRequest.SYNC)


def test_eager_members_give_everything_up_before_they_join_again() -> None:
    script = Script()
    script.enter(1, P0, P1)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    assert script.member.standing() is Standing.MEMBER, "the last chance to commit"
    script.prepare(P0, P1)
    assert script.member.standing() is Standing.REBALANCING
    script.join(2, P1)
    assert script.take_over() == Assign(frozenset({P1}), frozenset({P1}))


def test_cooperative_members_give_up_what_moves_and_join_once_more() -> None:
    script = Script(cooperative=True)
    script.enter(1, P0, P1)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    script.prepare()
    assert script.member.owned == {P0, P1}
    script.join(2, P0)
    script.prepare(P1)
    assert script.take_over() == Assign(frozenset({P0}), frozenset())
    script.prepare()
    script.send(GroupRequest.JOIN)
    assert script.member.rejoin_reason == "need to revoke partitions and re-join"


def test_an_unsubscribed_topic_goes_before_a_cooperative_join() -> None:
    script = Script(cooperative=True)
    other = TopicPartition("other", 0)
    script.member.subscribe(frozenset({"t", "other"}))
    script.enter(1, P0, other)
    script.member.subscribe(frozenset({"t"}))
    assert script.member.next_step(script.now_ms) == Revoke(frozenset({other}))


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_expelled(code: ErrorCode) -> None:
    script = Script()
    script.enter(1, P0)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, code)
    assert script.member.standing() is Standing.OUT
    assert script.member.next_request(script.now_ms) is None, "only a poll joins again"
    step = script.member.next_step(script.now_ms)
    assert step == Lose(frozenset({P0}))
    script.member.lost(step.partitions, script.now_ms)
    script.prepare()
    script.send(GroupRequest.JOIN)
    assert script.member.member_id == ("" if code is ErrorCode.UNKNOWN_MEMBER_ID else "m")


def test_fenced_for_good_until_the_user_subscribes_again() -> None:
    script = Script(instance_id="i")
    script.enter(1, P0)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID)
    script.member.lost(frozenset({P0}), script.now_ms)
    for _ in range(2):
        step = script.member.next_step(script.now_ms)
        assert isinstance(step, Fail)
        assert step.code is ErrorCode.FENCED_INSTANCE_ID
    script.member.subscribe(frozenset({"t"}), is_new=True)
    script.prepare()
    script.send(GroupRequest.JOIN)


def test_a_refusal_is_raised_once_and_the_next_poll_tries_again() -> None:
    script = Script()
    script.prepare()
    script.refuse(GroupRequest.JOIN, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Fail)
    script.prepare()
    script.send(GroupRequest.JOIN)


def test_who_does_not_poll_leaves() -> None:
    script = Script()
    script.enter(1, P0)
    script.now_ms = 999.0
    script.send(GroupRequest.HEARTBEAT)
    script.now_ms = 1_000.0
    assert script.member.next_request(script.now_ms) is GroupRequest.LEAVE
    leave = script.member.take_leave()
    assert leave is not None
    assert leave[0] == "m"
    assert script.member.owned == {P0}, "nothing is taken away outside of polls"
    assert isinstance(script.member.next_step(script.now_ms), Lose)


def test_waiting_in_a_poll_is_polling() -> None:
    script = Script()
    script.enter(1, P0)
    script.watch.begin(script.now_ms)
    script.now_ms = 5_000.0
    assert script.member.next_request(script.now_ms) is GroupRequest.HEARTBEAT
    script.watch.end(script.now_ms)
    assert script.watch.deadline_ms == 6_000.0


def test_static_members_do_not_say_good_bye() -> None:
    script = Script(instance_id="i")
    script.enter(1, P0)
    assert script.member.unsubscribe("closing") == (frozenset({P0}), False)
    assert script.member.next_request(script.now_ms) is GroupRequest.LEAVE
    assert script.member.take_leave() is None


def test_an_answer_to_a_request_given_up_changes_nothing() -> None:
    """1. SyncGroup of generation 1 is under way. 2. The connection ends, the member joins
    generation 2. 3. The answer of generation 1 comes after all: its partitions may be others'.
    """
    script = Script()
    script.prepare()
    attempt = script.send(GroupRequest.JOIN)
    script.member.joined(attempt, 0.0, generation_id=1, member_id="m", is_leader=False)
    old = script.send(GroupRequest.SYNC)
    script.member.failed(old, script.now_ms)
    script.now_ms += 20
    attempt = script.send(GroupRequest.JOIN)
    script.member.joined(attempt, script.now_ms, generation_id=2, member_id="m", is_leader=False)
    script.send(GroupRequest.SYNC)
    script.member.synced(old, script.now_ms, frozenset({P0}))
    assert script.member.state is ClassicState.READY_TO_SYNC
    assert not script.member.has_step()


def test_failures_pause_longer_and_longer_and_look_for_the_coordinator() -> None:
    script = Script()
    script.prepare()
    pauses = []
    for _ in range(3):
        script.member.failed(script.send(GroupRequest.JOIN), script.now_ms)
        assert script.member.needs_coordinator
        pauses.append(script.member.due_ms() - script.now_ms)
        script.now_ms = script.member.due_ms()
    assert pauses == [10.0, 20.0, 40.0]


def test_a_sync_that_fails_joins_once_more_and_a_heartbeat_does_not() -> None:
    script = Script()
    script.enter(1, P0)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert script.member.state is ClassicState.STABLE
    script.now_ms = script.member.due_ms()
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    script.prepare(P0)
    attempt = script.send(GroupRequest.JOIN)
    script.member.joined(attempt, script.now_ms, generation_id=2, member_id="m", is_leader=False)
    script.refuse(GroupRequest.SYNC, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    script.now_ms = script.member.due_ms()
    script.send(GroupRequest.JOIN)


def test_silence_for_a_session_looks_for_the_coordinator() -> None:
    script = Script()
    script.enter(1, P0)
    script.watch.begin(0.0)
    for script.now_ms in (500.0, 501.0):
        script.member.needs_coordinator = False
        script.member.next_request(script.now_ms)
        assert script.member.needs_coordinator == (script.now_ms > 500.0)


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_refused_commit_of_an_older_generation_says_nothing(code: ErrorCode) -> None:
    script = Script()
    script.enter(1, P0)
    old = script.member.identity()
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    script.prepare(P0)
    script.join(2, P0)
    script.member.commit_refused(old, code)
    assert script.member.standing() is Standing.MEMBER
    script.member.commit_refused(script.member.identity(), code)
    assert script.member.standing() is Standing.OUT


def test_lost_while_the_listener_runs() -> None:
    script = Script()
    script.prepare()
    script.join(1, P0)
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Assign)
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID)
    script.member.assigned(step, script.now_ms)
    assert script.member.next_step(script.now_ms) == Lose(frozenset({P0}))


@pytest.mark.parametrize("cooperative", [False, True])
def test_lost_while_the_listener_hears_of_the_revocation(cooperative: bool) -> None:
    """What the revocation leaves is lost next, if it leaves anything; then the member joins."""
    script = Script(cooperative=cooperative)
    script.enter(1, P0, P1)
    if cooperative:
        script.prepare_again()
        script.join(2, P0)
    else:
        script.member.request_rejoin("wanted")
    step = script.member.next_step(script.now_ms)
    assert step == Revoke(frozenset({P1} if cooperative else {P0, P1}))
    script.now_ms += 100
    script.refuse(GroupRequest.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID)
    script.member.revoked(step.partitions, script.now_ms)
    assert script.member.next_request(script.now_ms) is None
    if cooperative:
        step = script.member.next_step(script.now_ms)
        assert step == Lose(frozenset({P0}))
        script.member.lost(step.partitions, script.now_ms)
    script.prepare()
    script.send(GroupRequest.JOIN)


def test_a_join_that_succeeded_begins_the_pauses_again() -> None:
    script = Script()
    script.prepare()
    for _ in range(3):
        script.member.failed(script.send(GroupRequest.JOIN), script.now_ms)
        script.now_ms = script.member.due_ms()
    attempt = script.send(GroupRequest.JOIN)
    script.member.joined(attempt, script.now_ms, generation_id=1, member_id="m", is_leader=False)
    script.member.failed(script.send(GroupRequest.SYNC), script.now_ms)
    assert script.member.due_ms() - script.now_ms == 10.0


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(ClassicState)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED]
)
def test_an_error_after_the_member_has_left_changes_nothing(code: ErrorCode) -> None:
    script = Script()
    script.enter(1, P0)
    script.now_ms += 100
    attempt = script.send(GroupRequest.HEARTBEAT)
    script.member.unsubscribe("closing")
    assert script.member.state is ClassicState.OUT
    script.member.refused(attempt, script.now_ms, GroupRequest.HEARTBEAT, code)
    assert script.member.state is ClassicState.OUT
    assert script.member.next_step(script.now_ms) is None
    assert script.member.next_request(script.now_ms) is GroupRequest.LEAVE
    leave = script.member.take_leave()
    assert leave is not None
    assert leave[0] == "m"
