"""Scripts for a member of the new protocol: what is in each heartbeat, what answers lead to."""

from __future__ import annotations

import pytest

from moldau.client.consumer.core.consumer_member import (
    TRANSITIONS,
    ConsumerState,
    Wish,
)
from moldau.client.consumer.core.rebalance_steps import (
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
from tests.unit.client.consumer.core.consumer_script import Script, T, U

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_the_first_heartbeat_says_everything() -> None:
    _, request = Script(instance_id="i").send()
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "me", 0)
    assert request.instance_id == "i"
    assert request.rack_id == "rack"
    assert request.server_assignor == "uniform"
    assert request.rebalance_timeout_ms == 1_000
    assert request.subscribed_topic_names == ["t"]
    assert request.subscribed_topic_regex is None
    assert request.topic_partitions == []


def test_later_ones_say_what_has_changed() -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    assert script.step() == Assign(frozenset({P0}), frozenset({P0}))
    assert script.member.state is ConsumerState.ACKNOWLEDGING
    acknowledgement = script.beat(1)
    assert acknowledgement.topic_partitions is not None
    assert [(each.topic_id, each.partitions) for each in acknowledgement.topic_partitions] == [
        (T, [0])
    ]
    script.now_ms += 100
    quiet = script.beat(1)
    assert quiet.topic_partitions is None
    assert quiet.subscribed_topic_names is None
    assert quiet.server_assignor is None
    assert quiet.rebalance_timeout_ms == -1
    script.member.subscribe(Wish(frozenset({"t", "u"})))
    assert script.beat(1).subscribed_topic_names == ["t", "u"], "at once"


def test_a_heartbeat_without_an_answer_is_said_again() -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    attempt, _ = script.send()
    script.member.failed(attempt, script.now_ms)
    assert script.member.needs_coordinator
    script.now_ms = script.member.due_ms()
    again = script.beat(1)
    assert again.subscribed_topic_names == ["t"]
    assert again.topic_partitions is not None


def test_what_is_taken_away_goes_before_anything_new_comes() -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    script.beat(2, [(T, 1)])
    assert script.step() == Revoke(frozenset({P0}))
    assert script.step() == Assign(frozenset({P1}), frozenset({P1}))
    told = script.beat(2).topic_partitions
    assert told is not None
    assert told[0].partitions == [1]
    assert script.member.state is ConsumerState.STABLE


def test_topics_without_a_known_name_wait_and_what_goes_does_not() -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    script.beat(2, [(U, 0)])
    assert script.member.needs_topic_names
    assert script.step() == Revoke(frozenset({P0}))
    assert script.step() == Assign(frozenset(), frozenset())
    assert script.beat(2).topic_partitions == []
    assert not script.member.has_step()
    assert script.member.needs_topic_names
    calls = script.calls
    script.member.names_changed()
    assert script.calls == calls, "what is wanted has no name yet"
    script.names[U] = "u"
    script.member.names_changed()
    assert script.calls == calls + 1
    added = frozenset({TopicPartition("u", 0)})
    assert script.step() == Assign(added, added)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_fenced_members_lose_all_and_join_again(code: ErrorCode) -> None:
    script = Script()
    script.enter(0)
    script.now_ms += 100
    script.refuse(code)
    assert script.member.standing() is Standing.OUT
    assert script.member.next_request(script.now_ms) is None
    assert script.step() == Lose(frozenset({P0}))
    assert script.step() is None
    _, request = script.send()
    assert request.member_epoch == 0
    assert request.member_id == "me"
    assert request.topic_partitions == []


def test_who_does_not_poll_leaves() -> None:
    script = Script()
    script.enter(0)
    script.now_ms = 1_000.0
    assert script.member.next_request(script.now_ms) is GroupRequest.LEAVE
    message = script.member.take_leave()
    assert message is not None
    assert message.member_epoch == -1
    assert script.member.owned == {P0}
    assert script.step() == Lose(frozenset({P0}))


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_the_epoch_of_a_good_bye(instance_id: str | None, epoch: int) -> None:
    script = Script(instance_id=instance_id)
    script.enter(0)
    assert script.member.unsubscribe() == (frozenset({P0}), False)
    message = script.member.take_leave()
    assert message is not None
    assert message.member_epoch == epoch
    assert script.member.take_leave() is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ],
)
def test_a_member_that_is_out_says_no_good_bye(code: ErrorCode) -> None:
    script = Script(instance_id="i")
    script.enter(0)
    script.now_ms = script.member.due_ms()
    script.refuse(code)
    assert script.member.unsubscribe() == (frozenset({P0}), True)
    assert script.member.take_leave() is None
    assert script.member.next_request(script.now_ms) is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_refused_for_good_until_the_user_subscribes_again(code: ErrorCode) -> None:
    script = Script()
    script.refuse(code)
    for _ in range(2):
        step = script.member.next_step(script.now_ms)
        assert isinstance(step, Fail)
        assert step.code is code
    script.member.subscribe(Wish(frozenset({"t"})), is_new=True)
    script.send()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_passing_refusals_are_tried_again(code: ErrorCode) -> None:
    script = Script()
    script.refuse(code)
    assert script.member.next_request(script.now_ms) is None
    script.now_ms = script.member.due_ms()
    script.send()


def test_a_topic_that_may_not_be_read_is_raised_once_and_asked_for_again() -> None:
    script = Script()
    script.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Fail)
    assert step.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert script.member.next_step(script.now_ms) is None
    script.now_ms = script.member.due_ms()
    script.enter(0)


def test_a_pattern_is_the_brokers_to_match_and_can_be_taken_back() -> None:
    script = Script(wish=Wish(pattern="t.*"))
    request = script.beat(1)
    assert request.subscribed_topic_regex == "t.*"
    assert request.subscribed_topic_names is None
    script.member.subscribe(Wish(frozenset({"t"})))
    request = script.beat(1)
    assert request.subscribed_topic_regex == ""
    assert request.subscribed_topic_names == ["t"]


def test_a_new_target_during_the_listener_is_reconciled_next() -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Assign)
    script.member.assigned(step, script.now_ms)
    script.now_ms += 100
    script.beat(2, [(T, 1)])
    script.member.acknowledge(script.now_ms)
    assert script.step() == Revoke(frozenset({P0}))


def test_a_new_target_before_the_one_before_it_is_carried_out() -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    step = script.member.next_step(script.now_ms)
    assert isinstance(step, Assign)
    script.now_ms += 100
    script.beat(2, [(T, 1)])
    script.member.assigned(step, script.now_ms)
    script.member.acknowledge(script.now_ms)
    assert script.member.owned == frozenset({P0})
    assert script.step() == Revoke(frozenset({P0}))
    assert script.step() == Assign(frozenset({P1}), frozenset({P1}))


@pytest.mark.parametrize("owned", [[], [0]], ids=["nothing", "one partition"])
def test_a_target_that_is_taken_back_before_it_is_taken_over_is_acknowledged(
    owned: list[int],
) -> None:
    """The coordinator counts partition 1 as the member's until the member says what it owns."""
    script = Script()
    script.enter(*owned)
    script.now_ms += 100
    script.beat(2, [(T, each) for each in (*owned, 1)])
    script.now_ms += 100
    assert script.beat(3, [(T, each) for each in owned]).topic_partitions is None
    assert isinstance(script.step(), Assign)
    acknowledgement = script.beat(3).topic_partitions
    assert acknowledgement is not None
    assert [each.partitions for each in acknowledgement] == ([owned] if owned else [])
    script.now_ms += 100
    assert script.beat(3).topic_partitions is None


@pytest.mark.parametrize("is_lost", [False, True])
def test_new_partitions_wait_until_what_was_said_to_be_owned_is_answered(is_lost: bool) -> None:
    script = Script()
    script.beat(1, [(T, 0)])
    script.now_ms += 100
    before, _ = script.send()
    assert script.step() == Assign(frozenset({P0}), frozenset({P0}))
    script.answer(before, 2, [(T, 0), (T, 1)])
    attempt, request = script.send()
    assert request.topic_partitions is not None
    assert [each.partitions for each in request.topic_partitions] == [[0]]
    assert not script.member.has_step()
    if is_lost:
        script.member.failed(attempt, script.now_ms)
        assert script.step() is None
        script.now_ms += 100
        attempt, _ = script.send()
    assert script.step() is None
    calls = script.calls
    script.answer(attempt, 3, [(T, 0)] if is_lost else None)
    if is_lost:  # the coordinator had taken the first one for a return of P1
        assert script.step() == Assign(frozenset({P0}), frozenset())
    else:
        assert script.calls > calls, "the poll goes on"
        assert script.step() == Assign(frozenset({P0, P1}), frozenset({P1}))


def test_an_answer_to_an_older_heartbeat_changes_nothing() -> None:
    script = Script()
    old, _ = script.send()
    script.member.failed(old, script.now_ms)
    script.now_ms += 10
    script.send()
    script.answer(old, 7, [(T, 0)])
    assert script.member.member_epoch == -1
    assert not script.member.has_step()


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(ConsumerState)


def test_only_a_stale_epoch_of_a_commit_hurries_the_next_heartbeat() -> None:
    script = Script()
    script.beat(1, [])
    older = Identity(0, "me", None)
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        script.member.commit_refused(older, code)
        assert script.member.next_request(script.now_ms) is None
    script.member.commit_refused(script.member.identity(), ErrorCode.STALE_MEMBER_EPOCH)
    assert script.member.next_request(script.now_ms) is GroupRequest.HEARTBEAT
