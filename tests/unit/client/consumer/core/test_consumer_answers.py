"""A member of the new protocol: what errors mean, what each state does, when heartbeats go."""

from __future__ import annotations

import pytest

from moldau.client.consumer.core.consumer_member import ConsumerState, Wish
from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    Assign,
    Fail,
    GroupRequest,
    Identity,
    Lose,
    PollWatch,
    Standing,
)
from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tests.unit.client.consumer.core.consumer_script import Script, T, U

C = ConsumerState
E = ErrorCode
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOTHING: frozenset[TopicPartition] = frozenset()
ACTIVE = (C.JOINING, C.STABLE, C.RECONCILING, C.ACKNOWLEDGING)
FENCING = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID)


def in_state(state: ConsumerState, *, instance_id: str | None = None) -> Script:
    """A member whose next heartbeat is due; all but a joining one own partition 0."""
    script = Script(instance_id=instance_id)
    if state is C.JOINING:
        return script
    script.enter(0)
    script.now_ms += 100
    if state in (C.RECONCILING, C.ACKNOWLEDGING):
        script.beat(2, [(T, 0), (T, 1)])
        script.now_ms += 100
    if state is C.ACKNOWLEDGING:
        assert isinstance(script.step(), Assign)
    elif state is C.FENCED:
        script.refuse(E.UNKNOWN_MEMBER_ID)
    elif state is C.FATAL:
        script.refuse(E.GROUP_AUTHORIZATION_FAILED)
    elif state is C.STALE:
        script.now_ms = script.watch.deadline_ms
        assert script.member.next_request(script.now_ms) is GroupRequest.LEAVE
    elif state is C.UNSUBSCRIBED:
        script.member.unsubscribe()
    assert script.member.state is state
    return script


@pytest.mark.parametrize(
    ("state", "standing", "is_settled", "has_step", "is_lost"),
    [
        (C.UNSUBSCRIBED, Standing.OUT, True, False, True),
        (C.JOINING, Standing.REBALANCING, False, False, False),
        (C.STABLE, Standing.MEMBER, True, False, False),
        (C.RECONCILING, Standing.MEMBER, False, True, False),
        (C.ACKNOWLEDGING, Standing.MEMBER, True, False, False),
        (C.FENCED, Standing.OUT, False, True, True),
        (C.STALE, Standing.OUT, False, True, True),
        (C.FATAL, Standing.OUT, False, True, True),
    ],
)
def test_how_a_member_stands_in_each_state(
    state: ConsumerState, standing: Standing, is_settled: bool, has_step: bool, is_lost: bool
) -> None:
    script = in_state(state)
    member = script.member
    assert (member.standing(), member.is_settled) == (standing, is_settled)
    assert member.has_step() == has_step
    assert not member.needs_topic_names
    in_group = standing is Standing.MEMBER
    epoch = {C.STABLE: 1}.get(state, 2) if in_group else -1
    assert member.identity() == Identity(epoch, "me" if in_group else "", None)
    leaves = state in ACTIVE or state in (C.STALE, C.UNSUBSCRIBED)
    owned = member.owned
    assert member.unsubscribe() == (owned, is_lost)
    assert (member.owned, member.state) == (NOTHING, C.UNSUBSCRIBED)
    assert member.is_settled
    assert (member.next_request(script.now_ms) is GroupRequest.LEAVE) == leaves
    assert member.due_ms() == (0.0 if leaves else NEVER_MS)
    message = member.take_leave()
    assert (message is not None) == leaves
    if message is not None:
        assert (message.group_id, message.member_id) == ("g", "me")
        assert (message.member_epoch, message.instance_id) == (-1, None)
    assert (member.next_request(script.now_ms), member.due_ms()) == (None, NEVER_MS)
    assert member.next_step(script.now_ms) is None
    script.watch.note(script.now_ms)
    member.subscribe(Wish(frozenset({"t"})))
    assert member.state is C.JOINING
    assert member.next_request(script.now_ms) is GroupRequest.HEARTBEAT


def check_refusal(state: ConsumerState, code: ErrorCode) -> None:
    script = in_state(state)
    member = script.member
    calls = script.calls
    attempt, _ = script.send()
    member.refused(attempt, script.now_ms, code, "why")
    assert member.needs_coordinator == (code in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE))
    after = C.RECONCILING if state is C.RECONCILING else C.STABLE
    if code is E.TOPIC_AUTHORIZATION_FAILED or code.retriable:
        assert member.state is (C.JOINING if state is C.JOINING else after)
        raised = code is E.TOPIC_AUTHORIZATION_FAILED
        if raised:
            assert script.calls > calls
            assert member.has_step()
            assert member.next_step(script.now_ms) == Fail(code, "why")
            assert member.has_step() == (state is C.RECONCILING)
        assert member.due_ms() == script.now_ms + 10
        assert member.next_request(script.now_ms + 9) is None
        script.now_ms += 10
        _, request = script.send()
        assert request.subscribed_topic_names == ["t"], "all is said again"
        assert request.rebalance_timeout_ms == 1_000
        return
    assert script.calls > calls
    assert member.due_ms() == NEVER_MS
    assert member.member_epoch == -1
    steps = []
    while (step := member.next_step(script.now_ms)) is not None and len(steps) < 3:
        steps.append(step)
        if isinstance(step, Lose):
            member.lost(step.partitions, script.now_ms)
    lost = [] if state is C.JOINING else [step for step in steps if isinstance(step, Lose)][:1]
    assert bool(lost) == (state is not C.JOINING)
    if code in FENCING:
        assert steps == lost
        assert member.state is C.JOINING, "the poll has begun again"
    else:
        assert member.state is C.FATAL
        assert steps == [*lost, *[Fail(code, "why")] * (3 - len(lost))]


@pytest.mark.parametrize("state", ACTIVE, ids=lambda each: each.name)
def test_what_every_error_leads_to(state: ConsumerState) -> None:
    for code in E:
        if code is not E.NONE:
            try:
                check_refusal(state, code)
            except AssertionError as error:
                error.add_note(code.name)
                raise


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (E.FENCED_INSTANCE_ID, C.FATAL),
        (E.UNKNOWN_MEMBER_ID, C.FENCED),
        (E.STALE_MEMBER_EPOCH, C.STABLE),
        (E.REBALANCE_IN_PROGRESS, C.STABLE),
    ],
)
def test_what_a_refused_commit_says_about_the_member(code: ErrorCode, state: ConsumerState) -> None:
    script = Script()
    script.enter(0)
    calls = script.calls
    script.member.commit_refused(script.member.identity(), code)
    assert script.member.state is state
    assert (script.calls > calls) == (state is not C.STABLE)
    wanted = GroupRequest.HEARTBEAT if code is E.STALE_MEMBER_EPOCH else None
    assert script.member.next_request(script.now_ms) is wanted
    if state is not C.STABLE:
        assert script.step() == Lose(frozenset({P0}))
    if state is C.FATAL:
        assert script.step() == Fail(code, None)


# -- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_is_due_after_the_coordinators_interval_and_one_is_under_way_at_a_time() -> (
    None
):
    script = Script()
    assert script.member.due_ms() == 0.0
    script.beat(1, [])
    script.step()
    script.beat(1)
    assert script.member.due_ms() == 100.0
    assert script.member.next_request(99.0) is None
    script.now_ms = 100.0
    attempt, request = script.send()
    assert request.member_epoch == 1
    assert script.member.next_request(500.0) is None
    assert script.member.due_ms() == 1_000.0, "the user has to poll until then"
    script.now_ms = 120.0
    script.answer(attempt, 1)
    assert script.member.due_ms() == 220.0
    assert script.member.next_request(220.0) is GroupRequest.HEARTBEAT


def test_news_under_way_are_said_at_once_when_the_answer_has_come() -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    attempt, _ = script.send()
    script.member.subscribe(Wish(frozenset({"t", "u"})))
    assert script.member.next_request(script.now_ms) is None, "one at a time"
    script.answer(attempt, 1)
    assert script.beat(1).subscribed_topic_names == ["t", "u"]


def test_the_same_wish_is_no_news() -> None:
    script = Script()
    script.enter(0)
    script.member.subscribe(Wish(frozenset({"t"})))
    assert script.member.next_request(script.now_ms) is None


@pytest.mark.parametrize(("interval_ms", "said_ms"), [(500.9, 500), (2.0**40, 2**31 - 1)])
def test_the_interval_between_polls_is_the_time_for_a_rebalance(
    interval_ms: float, said_ms: int
) -> None:
    script = Script()
    script.member.poll_watch = PollWatch(interval_ms, 0.0)
    assert script.send()[1].rebalance_timeout_ms == said_ms


def test_a_pattern_takes_the_names_back_and_names_the_pattern() -> None:
    script = Script()
    script.enter()
    script.member.subscribe(Wish(pattern="t.*"))
    request = script.beat(1)
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("t.*", [])
    script.now_ms += 100
    request = script.beat(1)
    assert request.subscribed_topic_regex is None
    script.member.subscribe(Wish(pattern="u.*"))
    request = script.beat(1)
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("u.*", None)
    script.member.subscribe(Wish(frozenset({"b", "a"})))
    request = script.beat(1)
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("", ["a", "b"])
    script.now_ms += 100
    request = script.beat(1)
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == (None, None)


def test_a_pattern_says_everything_when_it_joins() -> None:
    script = Script(wish=Wish(pattern="t.*"))
    _, request = script.send()
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("t.*", None)
    assert (request.member_epoch, request.topic_partitions) == (0, [])


def test_what_is_owned_is_named_by_topic_in_order() -> None:
    script = Script()
    script.names[U] = "a"
    script.beat(1, [(T, 2), (U, 1), (T, 0), (U, 0)])
    step = script.step()
    assert isinstance(step, Assign)
    assert step.topic_ids[TopicPartition("a", 1)] == U
    assert step.topic_ids[P0] == T
    said = script.beat(1).topic_partitions
    assert said is not None
    assert [(each.topic_id, each.partitions) for each in said] == [(U, [0, 1]), (T, [0, 2])]


def test_the_coordinator_may_name_the_member_itself() -> None:
    script = Script()
    attempt, _ = script.send()
    response = ConsumerGroupHeartbeatResponse(
        member_id="given", member_epoch=3, heartbeat_interval_ms=70
    )
    script.member.answered(attempt, script.now_ms, response)
    assert script.member.identity() == Identity(3, "given", None)
    assert script.member.state is C.STABLE, "without an assignment none is to be taken over"
    assert script.member.due_ms() == 70.0


def test_an_empty_assignment_is_taken_over_too() -> None:
    script = Script()
    calls = script.calls
    script.beat(1, [])
    assert script.calls > calls
    assert script.step() == Assign(NOTHING, NOTHING)


def test_the_same_target_again_leads_to_nothing() -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    calls = script.calls
    script.beat(2, [(T, 0)])
    assert (script.member.state, script.calls) == (C.STABLE, calls)
    assert not script.member.has_step()
    assert script.member.member_epoch == 2


def test_a_success_begins_the_pauses_again() -> None:
    script = Script()
    script.member.backoff.next_ms()
    script.beat(1)
    assert script.member.backoff.next_ms() == 10.0


@pytest.mark.parametrize("state", ACTIVE, ids=lambda each: each.name)
def test_an_answer_counts_once_and_only_while_it_is_waited_for(state: ConsumerState) -> None:
    for ends in (False, True):
        script = in_state(state)
        attempt, _ = script.send()
        if ends:
            script.member.unsubscribe()
            script.member.take_leave()
        script.answer(attempt, 5)
        after = script.member.state, script.member.identity(), script.member.due_ms()
        assert (after[1].generation_id == 5) is not ends
        script.answer(attempt, 6)
        script.member.failed(attempt, script.now_ms)
        for code in (E.UNKNOWN_MEMBER_ID, E.NOT_COORDINATOR):
            script.member.refused(attempt, script.now_ms, code)
        now = script.member.state, script.member.identity(), script.member.due_ms()
        assert now == after
        assert not script.member.needs_coordinator


def test_a_heartbeat_that_ends_after_the_member_was_lost_changes_nothing() -> None:
    script = in_state(C.STABLE)
    attempt, _ = script.send()
    script.member.commit_refused(script.member.identity(), E.UNKNOWN_MEMBER_ID)
    script.answer(attempt, 5)
    script.member.failed(attempt, script.now_ms)
    assert (script.member.state, script.member.member_epoch) == (C.FENCED, -1)
    assert not script.member.needs_coordinator
    assert script.step() == Lose(frozenset({P0}))
    assert script.step() is None
    new, request = script.send()
    assert request.member_epoch == 0
    script.answer(attempt, 5)
    assert script.member.member_epoch == -1
    script.answer(new, 6)
    assert script.member.member_epoch == 6


@pytest.mark.parametrize("state", ACTIVE, ids=lambda each: each.name)
def test_an_interval_without_a_poll_ends_the_membership_in_every_state(
    state: ConsumerState,
) -> None:
    for instance_id, epoch in ((None, -1), ("i", -2)):
        script = in_state(state, instance_id=instance_id)
        deadline_ms = script.watch.deadline_ms
        assert script.member.next_request(deadline_ms - 1) is not GroupRequest.LEAVE
        calls = script.calls
        assert script.member.next_request(deadline_ms) is GroupRequest.LEAVE
        assert script.calls > calls
        assert script.member.due_ms() == 0.0
        message = script.member.take_leave()
        assert message is not None
        assert (message.member_epoch, message.instance_id) == (epoch, instance_id)
        assert script.member.next_request(deadline_ms) is None
        assert script.member.state is C.STALE
        if state is not C.JOINING:
            assert isinstance(script.step(), Lose)
        assert script.step() is None
        assert script.send()[1].member_epoch == 0


@pytest.mark.parametrize("state", [C.FENCED, C.STALE])
def test_a_poll_joins_again_also_when_nothing_was_lost(state: ConsumerState) -> None:
    script = in_state(state)
    script.watch.note(script.now_ms)
    assert script.step() == Lose(frozenset({P0}))
    assert script.member.state is state
    assert script.member.has_step()
    assert script.step() is None
    assert script.member.state is C.JOINING
    assert not script.member.has_step()


def test_waiting_in_a_poll_is_polling() -> None:
    script = in_state(C.STABLE)
    script.watch.begin(script.now_ms)
    script.now_ms = 5_000.0
    assert script.member.next_request(script.now_ms) is GroupRequest.HEARTBEAT


# -- assignments ---------------------------------------------------------------------------------


def test_a_fatal_error_ends_with_a_new_subscription_only() -> None:
    script = in_state(C.FATAL)
    assert script.step() == Lose(frozenset({P0}))
    for topics in ({"t"}, {"t", "u"}):
        script.member.subscribe(Wish(frozenset(topics)))
        assert script.member.state is C.FATAL
        assert isinstance(script.step(), Fail)
    script.member.subscribe(Wish(frozenset({"t"})), is_new=True)
    assert script.member.state is C.JOINING
    assert script.step() is None


def test_a_member_joins_again_once_all_that_it_had_is_known_to_be_lost() -> None:
    script = in_state(C.FATAL)
    script.member.subscribe(Wish(frozenset({"t"})), is_new=True)
    assert script.member.state is C.UNSUBSCRIBED
    assert script.member.next_request(script.now_ms) is None
    step = script.step()
    assert step == Lose(frozenset({P0}))
    assert script.member.state is C.JOINING
    script.send()


def test_one_partition_after_the_other_may_be_lost() -> None:
    script = Script()
    script.enter(0, 1)
    script.now_ms += 100
    script.refuse(E.UNKNOWN_MEMBER_ID)
    script.member.lost(frozenset({P0}), script.now_ms)
    assert script.member.owned == {P1}
    assert script.step() == Lose(frozenset({P1}))


def test_an_acknowledgement_is_due_at_once() -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    script.now_ms = 30.0
    assert isinstance(script.step(), Assign)
    assert script.member.due_ms() == 30.0
    assert script.member.next_request(30.0) is GroupRequest.HEARTBEAT


def test_nothing_is_acknowledged_that_is_not_being_taken_over() -> None:
    script = Script()
    script.enter(0)
    script.member.acknowledge(script.now_ms)
    assert script.member.state is C.STABLE
    assert script.member.next_request(script.now_ms) is None


def test_a_target_that_changes_while_it_is_acknowledged_is_reconciled() -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    assert isinstance(script.step(), Assign)
    script.now_ms += 100
    attempt, _ = script.send()
    assert script.member.state is C.STABLE
    calls = script.calls
    script.answer(attempt, 2, [(T, 1)])
    assert script.member.state is C.RECONCILING
    assert script.calls > calls


def test_names_that_come_later_matter_only_while_they_are_waited_for() -> None:
    script = Script()
    script.beat(1, [(T, 0), (U, 0)])
    assert script.member.needs_topic_names
    assert script.step() == Assign(frozenset({P0}), frozenset({P0})), "what is known goes first"
    assert script.beat(1).topic_partitions is not None
    assert script.member.state is C.RECONCILING
    assert script.member.needs_topic_names
    assert not script.member.has_step()
    script.names[U] = "u"
    script.member.names_changed()
    both = frozenset({P0, TopicPartition("u", 0)})
    assert script.step() == Assign(both, frozenset({TopicPartition("u", 0)}))
    script.beat(1)
    assert script.member.state is C.STABLE
    assert not script.member.needs_topic_names
    calls = script.calls
    script.member.names_changed()
    assert script.calls == calls
    del script.names[T]
    script.now_ms += 100
    script.beat(2, [(T, 0), (T, 1), (U, 0)])
    assert not script.member.needs_topic_names, "an owned topic has its name"
    assert script.step() == Assign(both | {P1}, frozenset({P1}))


def test_a_member_that_joins_again_does_not_wait_for_the_pause_before() -> None:
    script = in_state(C.STABLE)
    script.refuse(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert script.member.next_request(script.now_ms) is None
    script.member.commit_refused(script.member.identity(), E.UNKNOWN_MEMBER_ID)
    assert script.step() == Lose(frozenset({P0}))
    assert script.step() is None
    assert script.send()[1].member_epoch == 0
