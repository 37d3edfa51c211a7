"""Consumer groups: joining, rebalancing, leaving, dying, and what a failover keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.broker.coordinator.group.core.consumer_member import (
    MemberState,
    current_assignment_record,
)
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.consumer_harness import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    ConsumerShard,
)
from tests.unit.broker.coordinator.harness import HOUR_MS

TICK_MS = 10
"""Timers run out by so much later at most."""


def shard(partition_count: int = 6, **config: object) -> ConsumerShard:
    groups = ConsumerShard(**config)
    groups.create_topic("events", partition_count)
    return groups


def test_first_member_gets_everything_in_epoch_two() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    answer = member.join()
    assert (answer.error_code, answer.member_epoch) == (0, 2)
    assert answer.heartbeat_interval_ms == INTERVAL_MS
    assert member.owned == {"events": {0, 1, 2, 3, 4, 5}}
    assert groups.group_state() == "Stable"


def test_a_first_member_without_topics_begins_epoch_one() -> None:
    groups = shard()
    assert groups.consumer("team", []).join().member_epoch == 1
    assert rebalance_count(groups) == 1
    group = groups.consumer_group()
    assert (group.group_epoch, group.assignment_epoch, group.state_name) == (1, 1, "Stable")
    assert groups.written_count == 4, "a member, two epochs, and what the member has"


def rebalance_count(groups: ConsumerShard) -> int:
    (rebalances,) = (
        metric.instrument.value
        for metric in groups.broker.registry.collect()
        if metric.name.endswith("name=consumer-group-rebalance-count")
    )
    return int(rebalances)


def test_each_new_epoch_of_a_group_is_a_rebalance() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    epochs = [groups.consumer_group().group_epoch]
    assert (rebalance_count(groups), epochs) == (1, [2]), "epoch 1 of a new group is passed over"
    second.join()
    groups.settle([first, second])
    epochs.append(groups.consumer_group().group_epoch)
    assert rebalance_count(groups) == 2
    second.heartbeat(subscribed_topic_names=[], subscribed_topic_regex="eve.*")
    groups.settle([first, second])
    epochs.append(groups.consumer_group().group_epoch)
    first.leave()
    epochs.append(groups.consumer_group().group_epoch)
    assert epochs[:2] == [2, 3]
    assert rebalance_count(groups) == epochs[-1] - 1
    assert epochs[3] == epochs[2] + 1


def test_answers_name_the_assignment_only_when_it_changes_or_after_a_full_heartbeat() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    assert member.heartbeat().assignment is None
    assert member.ask(**member.full()).assignment is not None


def test_the_second_member_gets_partitions_only_after_the_first_has_given_them_back() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    assert second.join().member_epoch == 3
    assert second.owned == {}
    first.is_slow = True
    first.heartbeat()
    assert first.epoch == 2
    assert len(first.assigned["events"]) == 3
    assert groups.group_state() == "Reconciling"
    second.heartbeat()
    assert second.owned == {}
    first.release()
    first.heartbeat()
    assert first.epoch == 3
    second.heartbeat()
    assert first.owned["events"] | second.owned["events"] == set(range(6))
    assert not first.owned["events"] & second.owned["events"]
    assert groups.group_state() == "Stable"


def test_a_member_that_does_not_give_back_in_its_rebalance_timeout_is_fenced() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    first.is_slow = True
    elapsed_ms = 0
    while elapsed_ms < REBALANCE_MS + INTERVAL_MS:
        first.heartbeat()
        second.heartbeat()
        if first.epoch == 0:
            break
        groups.advance(INTERVAL_MS)
        elapsed_ms += INTERVAL_MS
    assert elapsed_ms >= REBALANCE_MS
    assert first.member_id not in groups.consumer_group().members
    groups.settle([second])
    assert second.owned == {"events": set(range(6))}


def test_a_silent_member_is_fenced_and_its_partitions_go_on() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    groups.settle([first, second])
    for _ in range(SESSION_MS // INTERVAL_MS + 1):
        groups.advance(INTERVAL_MS)
        second.heartbeat()
    groups.settle([second])
    assert second.owned == {"events": set(range(6))}
    assert first.error() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_could_not_be_fenced_is_tried_again() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.advance(SESSION_MS + 1)
    assert member.member_id in groups.consumer_group().members
    groups.log.append_error = ErrorCode.NONE
    groups.advance(1000)
    assert groups.group_state() == "Empty"


def test_an_answer_waits_for_the_commit_of_what_it_shows() -> None:
    groups = shard(is_committing_at_once=False)
    member = groups.consumer("team", ["events"])
    assert member.ask(**member.full()) is None
    groups.log.commit()
    assert member.last.answer.member_epoch == 2


def test_a_member_gets_an_error_when_nothing_could_be_written() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.error(**member.full()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.append_error = ErrorCode.MESSAGE_TOO_LARGE
    assert member.error(**member.full()) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "team" not in groups.state.groups
    groups.log.append_error = ErrorCode.NONE
    member.join()
    assert member.owned == {"events": set(range(6))}


def test_leaving_ends_the_member_and_empties_the_group() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    answer = member.ask(member_epoch=-1)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, member.member_id, -1)
    assert groups.group_state() == "Empty"
    assert groups.consumer_group().group_epoch == 3


def test_leaving_that_cannot_be_written_is_refused_and_has_not_happened() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.error(member_epoch=-1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.member_id in groups.consumer_group().members


def test_a_lost_answer_is_made_good_by_the_epoch_before() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    first.heartbeat()
    before = first.epoch
    first.ask(topic_partitions=first.to_wire())  # the answer gets lost
    assert groups.consumer_group().members[first.member_id].member_epoch == before + 1
    assert first.error(topic_partitions=first.to_wire()) is ErrorCode.NONE


def test_a_topic_that_grows_is_assigned_again() -> None:
    groups = shard(2)
    member = groups.consumer("team", ["events"])
    member.join()
    groups.grow_topic("events", 2, 5)
    groups.settle([member])
    assert member.owned == {"events": set(range(5))}
    assert member.epoch == 3


def test_a_topic_that_comes_later_or_goes_is_followed() -> None:
    groups = shard(2)
    member = groups.consumer("team", ["events", "later"])
    member.join()
    groups.create_topic("later", 2)
    groups.settle([member])
    assert member.owned == {"events": {0, 1}, "later": {0, 1}}
    groups.delete_topic("events")
    groups.settle([member])
    assert member.owned == {"later": {0, 1}}


def test_metadata_that_changes_nothing_for_the_group_bumps_no_epoch() -> None:
    groups = shard(2)
    member = groups.consumer("team", ["events"])
    member.join()
    groups.create_topic("other", 1)
    groups.grow_topic("events", 1, 2)  # the same partition again: a change of nothing
    groups.settle([member])
    assert member.epoch == 2


def test_unsubscribed_topics_are_asked_back_at_once() -> None:
    groups = shard(2, group_consumer_assignment_interval_ms=10_000)
    groups.create_topic("other", 2)
    member = groups.consumer("team", ["events", "other"])
    member.join()
    member.topics = ["events"]
    answer = member.heartbeat(subscribed_topic_names=["events"])
    assert [len(topic.partitions) for topic in answer.assignment.topic_partitions] == [2]
    assert member.owned == {"events": {0, 1}}
    assert groups.consumer_group().assignment_epoch == 2
    groups.advance(10_001)
    groups.settle([member])
    assert groups.consumer_group().assignment_epoch == 3


def test_an_unsubscribed_topic_is_not_given_on_before_it_was_given_back() -> None:
    groups = shard(2, group_consumer_assignment_interval_ms=10_000)
    groups.create_topic("other", 2)
    first = groups.consumer("team", ["events", "other"])
    second = groups.consumer("team", ["other"])
    first.join()
    first.is_slow = True
    first.heartbeat(subscribed_topic_names=["events"])
    second.join()
    groups.advance(10_001)
    for member in (first, second, first, second):
        member.heartbeat()
    assert first.owned["other"] == {0, 1}, "it still has them"
    assert second.owned == {}
    first.release()
    groups.settle([first, second])
    assert second.owned == {"other": {0, 1}}


def test_a_member_that_has_given_up_an_unsubscribed_topic_is_not_asked_for_it() -> None:
    groups = shard(2, group_consumer_assignment_interval_ms=10_000)
    groups.create_topic("other", 2)
    member = groups.consumer("team", ["events", "other"])
    member.join()
    del member.owned["other"]
    member.heartbeat(subscribed_topic_names=["events"])
    assert groups.group_state() == "Assigning", "its epoch is new, and nothing is to be given back"
    (state,) = {each.state for each in groups.consumer_group().members.values()}
    assert state is MemberState.STABLE


def test_partitions_that_become_free_one_after_the_other_are_given_one_after_the_other() -> None:
    groups = shard(12)
    givers = [groups.consumer("team", ["events"]) for _ in range(3)]
    for giver in givers:
        giver.join()
    groups.settle(givers)
    taker = groups.consumer("team", ["events"])
    taker.join()
    for giver in givers:
        giver.is_slow = True
        giver.heartbeat()
    for number, giver in enumerate(givers, 1):
        giver.release()
        giver.heartbeat()
        taker.heartbeat()
        assert len(taker.owned["events"]) == number
    groups.settle([*givers, taker])


def test_assignments_are_computed_at_most_once_per_interval() -> None:
    groups = shard(group_consumer_assignment_interval_ms=1000)
    members = [groups.consumer("team", ["events"]) for _ in range(3)]
    for member in members:
        member.join()
    group = groups.consumer_group()
    assert (group.group_epoch, group.assignment_epoch) == (4, 2)
    assert groups.group_state() == "Assigning"
    groups.advance(1000)
    groups.settle(members)
    assert (group.group_epoch, group.assignment_epoch) == (4, 4)
    assert sorted(len(member.owned["events"]) for member in members) == [2, 2, 2]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_group_is_assigned_after_the_coordinators_clock_has_gone_back(fails_over: bool) -> None:
    groups = shard(group_consumer_assignment_interval_ms=1000)
    groups.broker.jump_wall_clock(HOUR_MS)
    members = [groups.consumer("team", ["events"])]
    members[0].join()
    groups.broker.jump_wall_clock(-HOUR_MS)
    if fails_over:
        groups.fail_over()
    members.append(groups.consumer("team", ["events"]))
    members[1].join()
    groups.advance(1000)
    groups.settle(members)
    assert [len(member.owned["events"]) for member in members] == [3, 3]


def test_most_members_choose_the_assignor() -> None:
    groups = shard(4)
    groups.create_topic("other", 4)
    topics = ["events", "other"]
    members = [groups.consumer("team", topics, assignor="range") for _ in range(2)]
    for member in members:
        member.join()
    groups.settle(members)
    assert groups.described().assignor_name == "range"
    for member in members:
        assert member.owned["events"] == member.owned["other"]


def shares(groups: ConsumerShard) -> dict[str, int]:
    """How many partitions each member shall own."""
    targets = groups.consumer_group().targets
    return {member_id: sum(map(len, topics.values())) for member_id, topics in targets.items()}


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_assignor_that_a_member_asks_for_now_counts_and_not_the_one_before(
    comes_back: bool,
) -> None:
    groups = ConsumerShard()
    for name in ("a", "b", "c"):
        groups.create_topic(name, 1)
    first = groups.consumer(topics=["a", "b"], member_id="m1", instance_id="i", assignor="uniform")
    first.join()
    groups.consumer(topics=["a", "b"], member_id="m2").join()
    assert shares(groups) == {"m1": 1, "m2": 1}
    if comes_back:
        first.leave(-2)
        again = groups.consumer(
            topics=["a", "b", "c"], member_id="m0", instance_id="i", assignor="range"
        )
        again.join()
        assert shares(groups) == {"m0": 3, "m2": 0}
    else:
        first.heartbeat(subscribed_topic_names=["a", "b", "c"], server_assignor="range")
        assert shares(groups) == {"m1": 3, "m2": 0}


def test_members_that_ask_for_no_assignor_get_the_brokers_first_one() -> None:
    groups = ConsumerShard()
    for name in ("a", "b"):
        groups.create_topic(name, 1)
    for member_id in ("m1", "m2"):
        groups.consumer(topics=["a", "b"], member_id=member_id).join()
    assert shares(groups) == {"m1": 1, "m2": 1}


def test_a_member_that_changes_its_topics_still_has_its_say_in_the_assignor() -> None:
    groups = shard(4)
    groups.create_topic("other", 4)
    assignors = ("range", "range", "uniform")
    members = [groups.consumer("team", ["events"], assignor=each) for each in assignors]
    for member in members:
        member.join()
    groups.settle(members)
    for member in members[:2]:
        member.heartbeat(subscribed_topic_names=["events", "other"])
    groups.settle(members)
    # "range" gives the first of the two that want "other" the same half of both topics' indexes;
    # "uniform" makes all three equally large.
    assert groups.described().assignor_name == "range"
    sizes = sorted(sum(map(len, member.owned.values())) for member in members)
    assert sizes == [1, 3, 4]


def test_group_configuration_sets_session_and_heartbeat_within_the_brokers_limits() -> None:
    groups = shard()
    groups.configure("team", "consumer.heartbeat.interval.ms", "7000")
    groups.configure("team", "consumer.session.timeout.ms", "60000000")
    member = groups.consumer("team", ["events"])
    assert member.join().heartbeat_interval_ms == 7000
    groups.advance(59_000)
    assert member.member_id in groups.consumer_group().members
    groups.advance(2000)
    assert not groups.consumer_group().members


def test_a_failover_keeps_the_group_as_it_is_and_gives_each_member_a_session() -> None:
    groups = shard()
    groups.create_topic("other", 3)
    members = [
        groups.consumer("team", ["events"], instance_id="one"),
        groups.consumer("team", ["events", "other"]),
        groups.consumer("team", regex="e.*"),
    ]
    for member in members:
        member.join()
    groups.settle(members)
    before = groups.described()
    groups.advance(SESSION_MS - 1000)
    groups.fail_over()
    assert groups.described() == before
    groups.advance(SESSION_MS - 1000)
    epochs = [member.epoch for member in members]
    groups.settle(members)
    assert [member.epoch for member in members] == epochs
    assert groups.described() == before
    groups.advance(SESSION_MS + 1)
    assert groups.group_state() == "Empty"


def test_after_a_failover_a_slow_member_has_its_rebalance_timeout_once_more() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    first.is_slow = True
    first.heartbeat()
    groups.fail_over()
    for _ in range(REBALANCE_MS // INTERVAL_MS - 1):
        groups.advance(INTERVAL_MS)
        assert first.heartbeat().error_code == 0
        second.heartbeat()
    groups.advance(INTERVAL_MS)
    assert first.heartbeat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_back_before_its_end_is_committed_keeps_its_session() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    groups.log.is_committing_at_once = False
    groups.advance(SESSION_MS + 1)
    assert not groups.consumer_group().members, "its end is written, and not committed"
    groups.advance(4000)
    member.ask(**{**member.full(), "member_epoch": 0, "topic_partitions": []})
    groups.advance(2000)  # the end has waited for offsets.commit.timeout.ms, the join has not
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.advance(SESSION_MS - 3000)
    assert list(groups.consumer_group().members) == [member.member_id]
    groups.advance(3000 + TICK_MS)
    assert not groups.consumer_group().members


def test_a_member_that_waits_for_its_answer_is_not_silent() -> None:
    groups = shard(offsets_commit_timeout_ms=3 * SESSION_MS)
    member = groups.consumer("team", ["events"])
    member.join()
    groups.log.is_committing_at_once = False
    groups.commit({("events", 0): 1}, "another")
    assert member.ask() is None
    groups.advance(2 * SESSION_MS)
    assert list(groups.consumer_group().members) == [member.member_id]
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.advance(SESSION_MS - 1000)
    assert member.heartbeat().error_code == ErrorCode.NONE
    groups.advance(SESSION_MS + TICK_MS)
    assert not groups.consumer_group().members


@pytest.mark.parametrize("fails_over", [False, True])
def test_no_partition_is_given_to_a_second_member(*, fails_over: bool) -> None:
    """What this coordinator has decided is a bug then, and stops it; what an earlier one has
    written may be the rest of a longer story, of which the log keeps the newest records.
    """
    groups = shard()
    first = groups.consumer(topics=["events"])
    first.join()
    twice = replace(groups.consumer_group().members[first.member_id], member_id="second")
    record = current_assignment_record("team", twice)
    if fails_over:
        groups.fail_over()
    with pytest.raises(AssertionError, match="still owns it"):
        groups.state.replay(record, groups.log.log_end_offset, None)


def test_describe_shows_epochs_assignments_and_kinds_of_members() -> None:
    groups = shard(2)
    member = groups.consumer("team", ["events"], instance_id="i")
    member.join()
    group = groups.described()
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (
        0,
        "Stable",
        2,
        2,
    )
    (described,) = group.members
    assert (described.member_id, described.instance_id) == (member.member_id, "i")
    assert group.assignor_name == "uniform", "nobody asked for another one"
    assert described.client_host == "/127.0.0.1"
    assert described.member_type == 1
    for assignment in (described.assignment, described.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("events", [0, 1])


def test_an_empty_classic_group_gives_way() -> None:
    groups = shard()
    (classic,) = groups.stable()
    classic.commit({("events", 0): 7})
    classic.leave()
    member = groups.consumer("team", ["events"])
    member.join()
    assert member.owned == {"events": set(range(6))}
    assert groups.offset("events", 0) == 7


def test_an_empty_consumer_group_gives_way_to_a_classic_one() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    groups.commit({("events", 0): 5}, member_id=member.member_id, generation=member.epoch)
    member.leave()
    groups.stable()
    assert groups.state.groups["team"].kind == "classic"
    assert groups.offset("events", 0) == 5
    groups.fail_over()
    assert groups.state.groups["team"].kind == "classic"


def test_deleting_needs_an_empty_group_and_removes_every_record() -> None:
    groups = shard()
    member = groups.consumer("team", regex="ev.*")
    member.join()
    groups.settle([member])
    assert groups.delete_group().answer is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert groups.delete_group().answer is ErrorCode.NONE
    assert "team" not in groups.state.groups
    groups.fail_over()
    assert "team" not in groups.state.groups


def test_listed_groups_are_of_the_states_and_of_the_types_that_were_asked_for() -> None:
    groups = shard()
    groups.consumer("new", ["events"]).join()
    groups.stable(1, "old")

    def listed(states: set[str], types: set[str]) -> list[str]:
        caller = groups.call(
            "new",
            lambda state, to, _now_ms: state.list_groups(frozenset(states), frozenset(types), to),
        )
        return sorted(each.group_id for each in caller.answer)

    assert listed(set(), set()) == ["new", "old"]
    assert listed({"stable"}, set()) == ["new", "old"]
    assert listed({"empty"}, set()) == []
    assert listed(set(), {"consumer"}) == ["new"]
    assert listed({"stable"}, {"classic"}) == ["old"]
    assert listed({"empty"}, {"classic"}) == []


def test_thousand_members_converge() -> None:
    groups = shard(3000, group_consumer_assignment_interval_ms=1000)
    members = [groups.consumer("team", ["events"]) for _ in range(1000)]
    for member in members:
        member.join()
    groups.advance(1000)
    groups.settle(members)
    assert {len(member.owned["events"]) for member in members} == {3}
