"""A classic member: what every error means to each request, and when it asks, pauses and leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from moldau.client.consumer.core.classic_member import ClassicState
from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    Assign,
    Fail,
    GroupRequest,
    Identity,
    Lose,
    Revoke,
    Standing,
)
from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode
from tests.unit.client.consumer.core.classic_script import Script

C = ClassicState
R = GroupRequest
E = ErrorCode
P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
NOTHING: frozenset[TopicPartition] = frozenset()

FATAL = {
    E.FENCED_INSTANCE_ID,
    E.UNSUPPORTED_VERSION,
    E.INVALID_GROUP_ID,
    E.INVALID_SESSION_TIMEOUT,
    E.INCONSISTENT_GROUP_PROTOCOL,
}
MOVED = {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE}


class Effect(NamedTuple):
    """What a refusal leads to."""

    state: ClassicState
    member_id: str = "m"
    pauses: bool = False
    raises: bool = False


def expected_of(code: ErrorCode, request: GroupRequest) -> Effect:
    """What a member does that has been in the group, and owns nothing when it joins or syncs."""
    waiting = C.STABLE if request is R.HEARTBEAT else C.READY_TO_JOIN
    if code in FATAL:
        return Effect(C.FATAL, "", raises=True)
    if code is E.MEMBER_ID_REQUIRED:
        return Effect({R.SYNC: C.READY_TO_SYNC}.get(request, waiting), "given")
    if code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
        if request is R.JOIN:
            return Effect(C.READY_TO_JOIN, "")
        return Effect(C.OUT, "" if code is E.UNKNOWN_MEMBER_ID else "m")
    if code is E.REBALANCE_IN_PROGRESS:
        return Effect(waiting, pauses=request is R.JOIN)
    if code.retriable:
        return Effect(waiting, pauses=True)
    return Effect(C.OUT, raises=True)


def at(request: GroupRequest) -> Script:
    """A member of generation 1 that is about to send the request."""
    script = Script()
    script.enter(1, P0)
    if request is not R.HEARTBEAT:
        script.now_ms += 100
        script.refuse(R.HEARTBEAT, E.REBALANCE_IN_PROGRESS)
        script.prepare(P0)
    if request is R.SYNC:
        attempt = script.send(R.JOIN)
        script.member.joined(
            attempt, script.now_ms, generation_id=2, member_id="m", is_leader=False
        )
    script.now_ms += 100
    script.watch.note(script.now_ms)
    return script


def check_refusal(code: ErrorCode, request: GroupRequest) -> None:
    script = at(request)
    member = script.member
    calls = script.calls
    attempt = script.send(request)
    member.refused(attempt, script.now_ms, request, code, member_id="given", message="why")
    effect = expected_of(code, request)
    assert (member.state, member.member_id) == (effect.state, effect.member_id)
    assert member.needs_coordinator == (code in MOVED)
    is_active = effect.state not in (C.OUT, C.FATAL)
    if not is_active:
        assert member.due_ms() == NEVER_MS
        assert member.generation_id == -1
        assert script.calls > calls, "a poll has something to do"
    elif effect.pauses:
        assert member.due_ms() == script.now_ms + 10
        assert member.next_request(script.now_ms + 9) is None
        wanted = R.HEARTBEAT if request is R.HEARTBEAT else R.JOIN
        assert member.next_request(script.now_ms + 10) is wanted
    elif request is R.HEARTBEAT:
        assert member.due_ms() == script.now_ms + 100
    else:
        assert member.due_ms() <= script.now_ms
    steps = []
    while (step := member.next_step(script.now_ms)) is not None and len(steps) < 3:
        steps.append(step)
        if isinstance(step, Lose):
            member.lost(step.partitions, script.now_ms)
        if isinstance(step, Revoke):
            break
    lost = [Lose(frozenset({P0}))] if request is R.HEARTBEAT and not is_active else []
    raised: list[object] = [Fail(code, "why")] if effect.raises else []
    if effect.state is C.FATAL:
        assert steps == [*lost, *raised * (3 - len(lost))], "raised by every poll"
    elif effect.state is C.OUT:
        assert steps == [*raised, *lost, Revoke(NOTHING)]
    elif code is E.REBALANCE_IN_PROGRESS and request is R.HEARTBEAT:
        assert steps == [Revoke(frozenset({P0}))]
    else:
        assert steps == []


@pytest.mark.parametrize("request_", [R.JOIN, R.SYNC, R.HEARTBEAT], ids=lambda each: each.name)
def test_what_every_error_leads_to(request_: GroupRequest) -> None:
    for code in E:
        if code is not E.NONE:
            try:
                check_refusal(code, request_)
            except AssertionError as error:
                error.add_note(code.name)
                raise


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION])
def test_a_cooperative_member_that_is_not_let_in_again_loses_what_it_owns(code: ErrorCode) -> None:
    script = Script(cooperative=True)
    script.enter(1, P0)
    script.prepare_again()
    script.refuse(R.JOIN, code)
    assert script.member.state is C.OUT
    assert script.member.next_step(script.now_ms) == Lose(frozenset({P0}))


def test_an_unknown_member_joins_at_once_as_a_new_one() -> None:
    script = at(R.JOIN)
    script.refuse(R.JOIN, E.UNKNOWN_MEMBER_ID)
    assert script.member.identity() == Identity(-1, "", None)
    script.join(3, P1)
    assert script.member.identity() == Identity(3, "m", None)


# -- steps ---------------------------------------------------------------------------------------


def state_of(state: ClassicState) -> Script:
    """A member in this state, in its second rebalance or after its first."""
    if state in (C.READY_TO_JOIN, C.READY_TO_SYNC):
        return at(R.JOIN if state is C.READY_TO_JOIN else R.SYNC)
    script = at(R.JOIN if state is C.LEADING else R.HEARTBEAT)
    if state is C.LEADING:
        attempt = script.send(R.JOIN)
        script.member.joined(attempt, script.now_ms, generation_id=2, member_id="m", is_leader=True)
    elif state is C.OUT:
        script.refuse(R.HEARTBEAT, E.UNKNOWN_MEMBER_ID)
    elif state is C.FATAL:
        script.refuse(R.HEARTBEAT, E.FENCED_INSTANCE_ID)
    assert script.member.state is state
    return script


@pytest.mark.parametrize(
    ("state", "standing", "is_settled", "request_"),
    [
        (C.OUT, Standing.OUT, False, None),
        (C.READY_TO_JOIN, Standing.REBALANCING, False, R.JOIN),
        (C.LEADING, Standing.REBALANCING, False, R.LEAD),
        (C.READY_TO_SYNC, Standing.REBALANCING, False, R.SYNC),
        (C.STABLE, Standing.MEMBER, True, R.HEARTBEAT),
        (C.FATAL, Standing.OUT, False, None),
    ],
)
def test_how_a_member_stands_in_each_state(
    state: ClassicState, standing: Standing, is_settled: bool, request_: GroupRequest | None
) -> None:
    script = state_of(state)
    member = script.member
    assert (member.standing(), member.is_settled) == (standing, is_settled)
    assert member.next_request(script.now_ms) is request_
    was_lost = state in (C.OUT, C.FATAL)
    owned = frozenset({P0}) if was_lost or state is C.STABLE else NOTHING
    assert member.unsubscribe("closing") == (owned, was_lost)
    assert member.is_settled
    leaves = None if was_lost else ("m", "closing")
    assert (member.next_request(script.now_ms) is R.LEAVE) == (not was_lost)
    assert member.due_ms() == (NEVER_MS if was_lost else 0.0)
    assert member.take_leave() == leaves
    assert member.take_leave() is None
    assert (member.next_request(script.now_ms), member.due_ms()) == (None, NEVER_MS)
    assert member.next_step(script.now_ms) is None
    assert member.unsubscribe("again") == (NOTHING, False)
    assert member.take_leave() is None
    assert member.identity() == Identity(-1, "", None)


def test_a_member_that_kept_its_id_says_good_bye_with_it() -> None:
    script = at(R.HEARTBEAT)
    script.refuse(R.HEARTBEAT, E.ILLEGAL_GENERATION)
    assert script.member.unsubscribe("closing") == (frozenset({P0}), True)
    assert script.member.take_leave() == ("m", "closing")


def test_a_member_that_never_joined_has_nothing_to_leave() -> None:
    script = Script()
    assert script.member.unsubscribe("closing") == (NOTHING, False)
    assert script.member.next_request(0.0) is None
    script = Script()
    script.prepare()
    script.member.unsubscribe("closing")
    assert script.member.next_request(0.0) is R.LEAVE
    assert script.member.take_leave() is None, "it has no id to leave with"


def test_only_another_subscription_begins_a_rebalance() -> None:
    script = at(R.HEARTBEAT)
    calls = script.calls
    script.member.subscribe(frozenset({"t"}))
    assert (script.calls, script.member.has_step()) == (calls, False)
    script.member.subscribe(frozenset({"t", "u"}))
    assert script.calls > calls
    assert script.member.rejoin_reason == "the subscription has changed"
    script.member.request_rejoin("another")
    assert script.member.rejoin_reason == "the subscription has changed", "the first reason counts"
    assert not script.member.is_settled
    script.prepare(P0)
    script.join(2, P0)
    assert script.member.rejoin_reason is None


def test_a_member_that_subscribes_again_joins_again() -> None:
    script = at(R.HEARTBEAT)
    script.member.unsubscribe("closing")
    script.member.take_leave()
    script.member.subscribe(frozenset({"t"}))
    script.prepare()
    assert script.member.rejoin_reason is None
    script.join(1, P1)
    assert script.take_over() == Assign(frozenset({P1}), frozenset({P1}))


def test_only_a_new_subscription_ends_a_fatal_error() -> None:
    script = state_of(C.FATAL)
    script.member.lost(frozenset({P0}), script.now_ms)
    for topics in ({"t"}, {"t", "u"}):
        script.member.subscribe(frozenset(topics))
        assert script.member.state is C.FATAL
        assert isinstance(script.member.next_step(script.now_ms), Fail)
    script.member.subscribe(frozenset({"t", "u"}), is_new=True)
    assert script.member.state is C.OUT
    script.prepare()
    script.send(R.JOIN)


def test_an_assignment_is_taken_over_in_its_generation() -> None:
    script = Script()
    assert script.member.owned_generation_id == -1
    script.prepare()
    script.join(4, P0, P1)
    assert script.member.owned_generation_id == -1
    assert script.take_over() == Assign(frozenset({P0, P1}), frozenset({P0, P1}))
    assert script.member.owned_generation_id == 4
    script.now_ms += 100
    script.refuse(R.HEARTBEAT, E.UNKNOWN_MEMBER_ID)
    script.member.lost(frozenset({P0}), script.now_ms)
    assert script.member.owned_generation_id == 4
    assert script.member.next_step(script.now_ms) == Lose(frozenset({P1}))
    script.member.lost(frozenset({P1}), script.now_ms)
    assert script.member.owned_generation_id == -1
    assert script.member.next_step(script.now_ms) == Revoke(NOTHING)


def test_an_older_assignment_that_is_being_taken_over_does_not_hide_the_newer() -> None:
    script = Script(cooperative=True)
    script.prepare()
    script.join(1, P0)
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Assign)
    script.now_ms += 100
    script.refuse(R.HEARTBEAT, E.REBALANCE_IN_PROGRESS)
    script.member.assigned(step, script.now_ms)
    assert script.member.owned == {P0}
    script.prepare()
    script.join(2, P1)
    script.member.assigned(step, script.now_ms)
    assert script.member.owned_generation_id == 1
    assert script.member.next_step(script.now_ms) == Revoke(frozenset({P0}))


def test_nothing_is_lost_with_an_empty_assignment() -> None:
    script = Script()
    script.prepare()
    script.join(1)
    step = script.member.next_step(script.now_ms)
    assert step == Assign(NOTHING, NOTHING)
    assert isinstance(step, Assign)
    script.now_ms += 100
    script.refuse(R.HEARTBEAT, E.UNKNOWN_MEMBER_ID)
    script.member.assigned(step, script.now_ms)
    assert script.member.next_step(script.now_ms) == Revoke(NOTHING)


def test_giving_up_nothing_leads_to_no_other_rebalance() -> None:
    script = Script(cooperative=True)
    script.enter(1, P0)
    script.prepare_again()
    script.join(2, P0)
    script.member.revoked(NOTHING, script.now_ms)
    assert script.take_over() == Assign(frozenset({P0}), NOTHING)
    assert script.member.is_settled


def test_a_revocation_after_the_end_of_the_subscription_joins_nothing() -> None:
    script = at(R.HEARTBEAT)
    script.member.request_rejoin("wanted")
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Revoke)
    script.member.unsubscribe("closing")
    script.member.revoked(step.partitions, script.now_ms)
    script.member.take_leave()
    assert script.member.state is C.OUT
    assert script.member.next_request(script.now_ms) is None


# -- commits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state", "member_id"),
    [
        (E.FENCED_INSTANCE_ID, C.FATAL, ""),
        (E.UNKNOWN_MEMBER_ID, C.OUT, ""),
        (E.ILLEGAL_GENERATION, C.OUT, "m"),
        (E.REBALANCE_IN_PROGRESS, C.STABLE, "m"),
        (E.COORDINATOR_NOT_AVAILABLE, C.STABLE, "m"),
    ],
)
def test_what_a_refused_commit_says_about_the_member(
    code: ErrorCode, state: ClassicState, member_id: str
) -> None:
    script = at(R.HEARTBEAT)
    script.member.commit_refused(script.member.identity(), code)
    assert (script.member.state, script.member.member_id) == (state, member_id)
    rejoins = code is E.REBALANCE_IN_PROGRESS
    assert script.member.is_settled == (code is E.COORDINATOR_NOT_AVAILABLE)
    reason = "offset commit failed since the group is rebalancing" if rejoins else None
    assert script.member.rejoin_reason == reason
    if state is C.FATAL:
        script.member.lost(frozenset({P0}), script.now_ms)
        assert script.member.next_step(script.now_ms) == Fail(code, None)


def test_a_refused_commit_ends_no_rebalance() -> None:
    for code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
        script = at(R.SYNC)
        script.member.commit_refused(script.member.identity(), code)
        assert script.member.state is C.READY_TO_SYNC


# -- times ---------------------------------------------------------------------------------------


def test_a_heartbeat_is_due_an_interval_after_the_last_and_one_is_under_way_at_a_time() -> None:
    script = Script()
    script.prepare()
    script.now_ms = 50.0
    script.join(1, P0)
    assert script.member.due_ms() == 150.0
    assert script.member.next_request(149.0) is None
    script.now_ms = 150.0
    attempt = script.send(R.HEARTBEAT)
    assert script.member.next_request(400.0) is None
    assert script.member.due_ms() == 1_000.0, "the user has to poll until then"
    script.member.heartbeat_succeeded(attempt, 160.0)
    assert script.member.due_ms() == 250.0
    assert script.member.next_request(250.0) is R.HEARTBEAT


@pytest.mark.parametrize("heard", ["sync", "heartbeat"])
def test_a_session_is_as_long_as_the_last_answer_is_ago(heard: str) -> None:
    script = Script()
    script.watch.begin(0.0)
    script.prepare()
    attempt = script.send(R.JOIN)
    script.member.joined(attempt, 500.0, generation_id=1, member_id="m", is_leader=False)
    attempt = script.send(R.SYNC)
    calls = script.calls
    script.member.synced(attempt, 1_000.0, NOTHING)
    assert script.calls > calls, "a poll has something to take over"
    heard_ms = 1_000.0
    if heard == "heartbeat":
        heard_ms = script.now_ms = 1_100.0
        script.member.heartbeat_succeeded(script.send(R.HEARTBEAT), heard_ms)
    for now_ms, expected in ((heard_ms + 500, False), (heard_ms + 501, True)):
        script.member.next_request(now_ms)
        assert script.member.needs_coordinator is expected
    script.member.needs_coordinator = False
    script.member.next_request(heard_ms + 1_001)
    assert not script.member.needs_coordinator, "it is looked up once in a session"
    script.member.next_request(heard_ms + 1_002)
    assert script.member.needs_coordinator


def test_only_a_member_with_heartbeats_has_a_session() -> None:
    script = at(R.JOIN)
    script.watch.begin(script.now_ms)
    script.member.next_request(script.now_ms + 5_000)
    assert not script.member.needs_coordinator


@pytest.mark.parametrize("state", [C.READY_TO_JOIN, C.LEADING, C.READY_TO_SYNC, C.STABLE])
def test_an_interval_without_a_poll_ends_the_membership_in_every_state(
    state: ClassicState,
) -> None:
    script = state_of(state)
    deadline_ms = script.watch.deadline_ms
    assert script.member.next_request(deadline_ms - 1) is not R.LEAVE
    calls = script.calls
    assert script.member.next_request(deadline_ms) is R.LEAVE
    assert script.calls > calls
    leave = script.member.take_leave()
    assert leave == ("m", "consumer poll timeout has expired")
    assert script.member.state is C.OUT


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID])
def test_a_member_that_is_out_leaves_by_no_interval(code: ErrorCode) -> None:
    script = at(R.HEARTBEAT)
    script.refuse(R.HEARTBEAT, code)
    assert script.member.next_request(1e9) is None


@pytest.mark.parametrize(
    ("state", "following"),
    [
        (C.READY_TO_JOIN, R.JOIN),
        (C.LEADING, R.JOIN),
        (C.READY_TO_SYNC, R.JOIN),
        (C.STABLE, R.HEARTBEAT),
    ],
)
def test_a_request_without_an_answer_is_followed_after_a_pause(
    state: ClassicState, following: GroupRequest
) -> None:
    script = state_of(state)
    request = script.member.next_request(script.now_ms)
    assert request is not None
    script.member.failed(script.send(request), script.now_ms)
    assert script.member.needs_coordinator
    assert script.member.due_ms() == script.now_ms + 10
    assert script.member.next_request(script.now_ms + 9) is None
    assert script.member.next_request(script.now_ms + 10) is following


SUCCESSES: dict[GroupRequest, Callable[[Script, int], object]] = {
    R.JOIN: lambda script, attempt: script.member.joined(
        attempt, script.now_ms, generation_id=9, member_id="other", is_leader=False
    ),
    R.LEAD: lambda script, attempt: script.member.led(attempt),
    R.SYNC: lambda script, attempt: script.member.synced(attempt, script.now_ms, frozenset({P2})),
    R.HEARTBEAT: lambda script, attempt: script.member.heartbeat_succeeded(attempt, script.now_ms),
}


@pytest.mark.parametrize("state", [C.READY_TO_JOIN, C.LEADING, C.READY_TO_SYNC, C.STABLE])
def test_an_answer_counts_once_and_only_while_it_is_waited_for(state: ClassicState) -> None:
    for ends in (False, True):
        script = state_of(state)
        request = script.member.next_request(script.now_ms)
        assert request is not None
        attempt = script.send(request)
        if ends:
            script.member.unsubscribe("closing")
            script.member.take_leave()
        answered = SUCCESSES[request](script, attempt)
        after = script.member.state, script.member.identity(), script.member.due_ms()
        if request in (R.JOIN, R.LEAD):
            assert answered is not ends
        assert (after[0] is C.OUT) == ends
        for other in SUCCESSES:
            assert not SUCCESSES[other](script, attempt)
        script.member.failed(attempt, script.now_ms)
        script.member.refused(attempt, script.now_ms, request, E.UNKNOWN_MEMBER_ID)
        now = script.member.state, script.member.identity(), script.member.due_ms()
        assert now == after
        assert not script.member.needs_coordinator


def test_every_success_begins_the_pauses_again() -> None:
    for state in (C.READY_TO_JOIN, C.READY_TO_SYNC, C.STABLE):
        script = state_of(state)
        request = script.member.next_request(script.now_ms)
        assert request is not None
        script.member.backoff.next_ms()
        SUCCESSES[request](script, script.send(request))
        assert script.member.backoff.next_ms() == 10.0


def test_a_leader_is_one_until_the_generation_ends() -> None:
    script = state_of(C.LEADING)
    assert script.member.is_leader
    assert script.member.led(script.send(R.LEAD))
    script.member.synced(script.send(R.SYNC), script.now_ms, NOTHING)
    assert script.member.is_leader
    script.take_over()
    script.now_ms += 100
    script.refuse(R.HEARTBEAT, E.UNKNOWN_MEMBER_ID)
    assert not script.member.is_leader


def test_a_member_that_was_lost_waits_for_no_answer() -> None:
    script = at(R.HEARTBEAT)
    script.send(R.HEARTBEAT)
    script.member.commit_refused(script.member.identity(), E.UNKNOWN_MEMBER_ID)
    script.member.lost(frozenset({P0}), script.now_ms)
    script.prepare()
    assert script.member.next_request(script.now_ms) is R.JOIN


def test_a_pause_outlasts_what_is_given_up() -> None:
    script = at(R.HEARTBEAT)
    script.refuse(R.HEARTBEAT, E.COORDINATOR_LOAD_IN_PROGRESS)
    script.member.request_rejoin("wanted")
    script.prepare(P0)
    assert script.member.next_request(script.now_ms + 9) is None
    assert script.member.next_request(script.now_ms + 10) is R.JOIN


@pytest.mark.parametrize("state", [C.READY_TO_JOIN, C.LEADING, C.READY_TO_SYNC])
def test_an_answer_to_another_request_leads_nowhere(state: ClassicState) -> None:
    script = state_of(state)
    request = script.member.next_request(script.now_ms)
    assert request is not None
    attempt = script.send(request)
    assert not SUCCESSES[request](script, attempt - 1)
    assert script.member.state is state
    assert script.member.next_request(script.now_ms) is None
