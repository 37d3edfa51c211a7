"""Every error that ConsumerGroupHeartbeat and offsets of consumer groups answer, and when."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorResult
from moldau.protocol.coordinator_records.consumer_groups import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import TopicPartitions
from tests.unit.broker.coordinator.group.consumer_harness import ConsumerShard, topic_id_of
from tests.unit.broker.coordinator.group.harness import error_of, subscription


def shard(partition_count: int = 4, **config: Any) -> ConsumerShard:
    groups = ConsumerShard(**config)
    groups.create_topic("events", partition_count)
    return groups


@pytest.mark.parametrize(
    "changes",
    [
        {"member_id": ""},
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [TopicPartitions(topic_id=topic_id_of("events"), partitions=[0])]},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
        {"member_epoch": -1, "member_id": ""},
        {"member_epoch": 1, "member_id": ""},
    ],
)
def test_requests_that_say_nothing_sensible_are_invalid(changes: dict[str, Any]) -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    answer = member.ask(**{**member.full(), **changes})
    assert ErrorCode.of(answer.error_code) is ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert not groups.state.groups


def test_in_version_0_the_coordinator_chooses_the_id() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"], member_id="", version=0)
    answer = member.join()
    assert answer.member_id
    assert member.heartbeat().error_code == 0


def test_unknown_assignors_are_refused() -> None:
    member = shard().consumer("team", ["events"], assignor="mine")
    assert member.error(**member.full()) is ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize("regex", ["a(b", "[", "(?<x", "a**", "\\1", "(?=look)"])
def test_bad_regular_expressions_are_refused(regex: str) -> None:
    groups = shard()
    member = groups.consumer("team", regex=regex)
    assert member.error(**member.full()) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not groups.state.groups


def test_only_joining_makes_a_group() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    assert member.error(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert member.error(member_epoch=-1) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_classic_group_is_no_consumer_group() -> None:
    groups = shard(group_consumer_migration_policy="disabled")
    groups.stable()
    member = groups.consumer("team", ["events"])
    assert member.error(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert member.error(member_epoch=-1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert member.error(**member.full()) is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.described().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.described("nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_full_groups_take_no_further_member() -> None:
    groups = shard(group_consumer_max_size=1)
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    assert second.error(**second.full()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.join().error_code == 0


def test_unknown_members_get_unknown_member_id() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    stranger = groups.consumer("team", ["events"])
    assert stranger.error(member_epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.error(member_epoch=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.error(member_epoch=1, instance_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.error(member_epoch=-2, instance_id="x") is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_another_epoch_are_fenced() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    groups.settle([first, second])
    assert first.epoch == 3
    assert first.error(member_epoch=4) is ErrorCode.FENCED_MEMBER_EPOCH
    group = groups.consumer_group()
    member = group.members[first.member_id]
    assert (member.member_epoch, member.previous_member_epoch) == (3, 2)
    # Of the epoch before it may be, but not with more than it was given.
    too_much = [TopicPartitions(topic_id=topic_id_of("events"), partitions=[0, 1, 2, 3])]
    assert first.error(member_epoch=2, topic_partitions=too_much) is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.error(member_epoch=2) is ErrorCode.FENCED_MEMBER_EPOCH
    own = first.to_wire()
    assert first.error(member_epoch=2, topic_partitions=own) is ErrorCode.NONE


def test_an_instance_id_in_use_is_not_released() -> None:
    groups = shard()
    first = groups.consumer("team", ["events"], instance_id="i")
    second = groups.consumer("team", ["events"], instance_id="i")
    first.join()
    assert second.error(**second.full()) is ErrorCode.UNRELEASED_INSTANCE_ID


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_static_member_whose_first_answer_was_lost_joins_again(*, fails_over: bool) -> None:
    """Its join has given it the instance id: the same member, as its id says, gets its state."""
    groups = shard()
    member = groups.consumer("team", ["events"], instance_id="i")
    assert member.error(**member.full()) is ErrorCode.NONE
    if fails_over:
        groups.fail_over()
    epoch = groups.consumer_group().members[member.member_id].member_epoch
    answer = member.join()
    assert ErrorCode.of(answer.error_code) is ErrorCode.NONE
    assert (member.epoch, member.owned) == (epoch, {"events": {0, 1, 2, 3}})
    rival = groups.consumer("team", ["events"], instance_id="i")
    assert rival.error(**rival.full()) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert member.heartbeat().error_code == ErrorCode.NONE


def test_a_static_member_that_was_fenced_for_its_epoch_joins_again() -> None:
    groups = shard()
    first = groups.consumer("team", ["events"], instance_id="i")
    second = groups.consumer("team", ["events"], instance_id="j")
    first.join()
    second.join()
    groups.settle([first, second])
    before = dict(first.owned)
    assert first.error(member_epoch=first.epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = first.join()
    assert ErrorCode.of(answer.error_code) is ErrorCode.NONE
    assert (first.owned, first.epoch) == (before, second.epoch)
    groups.settle([first, second])
    assert first.owned == before


def test_a_static_member_joins_again_while_it_has_partitions_to_give_back() -> None:
    groups = shard()
    first = groups.consumer("team", ["events"], instance_id="i")
    second = groups.consumer("team", ["events"], instance_id="j")
    first.join()
    second.join()
    first.is_slow = True
    first.heartbeat()
    assert first.owned == {"events": {0, 1, 2, 3}}
    # Who joins owns nothing, and so has given up what it was asked for.
    first.is_slow = False
    assert ErrorCode.of(first.join().error_code) is ErrorCode.NONE
    groups.settle([first, second])
    assert sorted(map(len, (first.owned["events"], second.owned["events"]))) == [2, 2]
    assert not first.owned["events"] & second.owned["events"]


def test_a_static_member_that_left_for_a_while_comes_back_under_its_own_id() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"], instance_id="i")
    member.join()
    epoch = member.epoch
    assert member.leave(-2) is ErrorCode.NONE
    assert member.error(member_epoch=epoch) is ErrorCode.FENCED_MEMBER_EPOCH
    member.join()
    assert (member.epoch, member.owned) == (epoch, {"events": {0, 1, 2, 3}})


@pytest.mark.parametrize("instance_id", ["i", None])
def test_a_member_does_not_get_a_second_place(instance_id: str | None) -> None:
    """What it has in its first one would have no owner then."""
    groups = shard()
    member = groups.consumer("team", ["events"], instance_id=instance_id)
    away = groups.consumer("team", ["events"], instance_id="j")
    member.join()
    away.join()
    groups.settle([member, away])
    away.leave(-2)
    before = dict(member.owned)
    taking = {**member.full(), "instance_id": "j", "member_epoch": 0, "topic_partitions": []}
    assert member.error(**taking) is ErrorCode.INVALID_REQUEST
    back = groups.consumer("team", ["events"], instance_id="j")
    back.join()
    groups.settle([member, back])
    assert member.owned == before
    assert sorted(member.owned["events"] | back.owned["events"]) == [0, 1, 2, 3]


def test_a_replaced_static_member_is_fenced() -> None:
    groups = shard()
    first = groups.consumer("team", ["events"], instance_id="i")
    second = groups.consumer("team", ["events"], instance_id="i")
    first.join()
    old_epoch = first.epoch
    first.leave(-2)
    second.join()
    assert second.owned == {"events": {0, 1, 2, 3}}
    assert groups.consumer_group().group_epoch == 2
    assert first.error(member_epoch=old_epoch) is ErrorCode.FENCED_INSTANCE_ID
    assert first.error(member_epoch=-1) is ErrorCode.FENCED_INSTANCE_ID
    assert first.error(member_epoch=-2) is ErrorCode.FENCED_INSTANCE_ID


def test_offsets_are_committed_by_members_only() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()

    def commit(**options: Any) -> ErrorCode:
        values = {"member_id": member.member_id, "generation": 2, **options}
        values.setdefault("topic_id", topic_id_of("events"))
        return error_of(groups.commit({("events", 0): 5}, **values))

    assert commit() is ErrorCode.NONE
    assert commit(member_id="who", generation=2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(member_id="", generation=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(generation=3) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(version=8) is ErrorCode.UNSUPPORTED_VERSION


def test_an_older_epoch_commits_what_it_has_had_since_then() -> None:
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    groups.settle([first, second])
    assert (first.epoch, second.epoch) == (3, 3)
    (kept, *_) = sorted(first.owned["events"])
    (lost, *_) = sorted(second.owned["events"])

    def commit(partition: int, metadata: str = "") -> ErrorCode:
        return error_of(
            groups.commit(
                {("events", partition): 9},
                member_id=first.member_id,
                generation=2,
                topic_id=topic_id_of("events"),
                metadata=metadata,
            )
        )

    def commit_transactional(partition: int) -> ErrorCode:
        return error_of(
            groups.commit_transactional(
                {("events", partition): 9}, member_id=first.member_id, generation=2
            )
        )

    assert commit(kept) is ErrorCode.NONE
    assert commit(lost) is ErrorCode.STALE_MEMBER_EPOCH
    # What is not stored is not asked whose it is.
    assert commit(lost, "x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit_transactional(kept) is ErrorCode.NONE
    assert commit_transactional(lost) is ErrorCode.ILLEGAL_GENERATION


def test_a_transaction_commits_nothing_of_another_member() -> None:
    """A member may have heard of its new epoch, and not have let go of what it cost."""
    groups = shard()
    first, second = groups.consumer("team", ["events"]), groups.consumer("team", ["events"])
    first.join()
    second.join()
    groups.settle([first, second])
    (own, *_) = sorted(first.owned["events"])
    (lost, *_) = sorted(second.owned["events"])

    def commit_transactional(topic: str, partition: int) -> ErrorCode:
        return error_of(
            groups.commit_transactional(
                {(topic, partition): 9}, member_id=first.member_id, generation=first.epoch
            )
        )

    assert commit_transactional("events", own) is ErrorCode.NONE
    assert commit_transactional("events", lost) is ErrorCode.ILLEGAL_GENERATION
    # Every member may commit for what no member has, or the group does not consume.
    assert commit_transactional("elsewhere", 0) is ErrorCode.NONE
    second.leave(-1)
    assert commit_transactional("events", lost) is ErrorCode.NONE
    # Without a transaction nothing is promised to be once only.
    plain = groups.commit(
        {("events", lost): 9},
        member_id=first.member_id,
        generation=first.epoch,
        topic_id=topic_id_of("events"),
    )
    assert error_of(plain) is ErrorCode.NONE


def test_offset_fetch_checks_the_member() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    group = groups.consumer_group()
    assert group.validate_offset_fetch(None, -1) is ErrorCode.NONE
    assert group.validate_offset_fetch(member.member_id, 2) is ErrorCode.NONE
    assert group.validate_offset_fetch(member.member_id, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.validate_offset_fetch("who", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.validate_offset_fetch("who", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.validate_offset_fetch(member.member_id, -1) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.validate_offset_fetch(None, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    groups.commit(
        {("events", 0): 5, ("old", 0): 6}, member_id=member.member_id, generation=member.epoch
    )
    deleted = groups.delete_offsets({"events": [0]})
    assert error_of(deleted) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert error_of(groups.delete_offsets({"old": [0]})) is ErrorCode.NONE


def test_classic_requests_of_members_of_the_new_protocol_are_unknown() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    classic = groups.member()
    classic.member_id, classic.generation = member.member_id, member.epoch
    assert classic.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(classic.sync()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_members_must_speak_the_consumer_protocol() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    for options in (
        {"protocol_type": "connect"},
        {"protocols": {"range": b"\0"}},
        {"protocols": {"range": b"\xff\xff" + subscription("events")[2:]}},
    ):
        classic = groups.member(**options)
        assert error_of(classic.join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_errors_of_classic_members_in_a_consumer_group() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    classic = groups.member(instance_id="i")
    classic.join()
    classic.joined()
    assert classic.heartbeat(generation=99) is ErrorCode.ILLEGAL_GENERATION
    assert classic.heartbeat(instance_id="j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.heartbeat(member_id="other") is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(classic.sync(generation=99)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(classic.sync(protocol_name="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(classic.sync(protocol_type="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = classic.sync(protocol_type="consumer", protocol_name="range").answer
    assert (answer.error_code, answer.protocol_name) == (0, "range")
    left = groups.leave(("other", "i"), ("", "nobody"), ("unknown", None)).answer
    assert [ErrorCode.of(member.error_code) for member in left.members] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def test_a_full_consumer_group_takes_no_further_classic_member() -> None:
    groups = shard(group_consumer_max_size=2)
    groups.consumer("team", ["events"]).join()
    members = [groups.member() for _ in range(2)]
    for member in members:
        member.join()
    first, second = members
    assert first.joined().generation_id > 0
    assert error_of(second.joining) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error_of(first.ask_to_join()) is ErrorCode.NONE, "it has its place"


def test_the_message_says_what_the_group_is() -> None:
    groups = shard()
    assert groups.described("none").error_message == "Group none not found."
    groups.member("classic").join()
    assert groups.described("classic").error_message == "Group classic is not a consumer group."


def test_a_leave_of_strangers_changes_nothing() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    written_count = groups.written_count
    answer = groups.leave(("stranger", None), ("", "j")).answer
    assert [ErrorCode.of(each.error_code) for each in answer.members] == (
        [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    )
    assert groups.written_count == written_count
    assert groups.group_state() == "Stable"


def test_a_topic_that_was_deleted_is_not_described() -> None:
    groups = shard()
    groups.create_topic("more", 1)
    member = groups.consumer("team", ["events", "more"])
    member.join()
    groups.delete_topic("events")
    (described,) = groups.described().members
    for each in (described.assignment, described.target_assignment):
        assert [(topic.topic_name, topic.partitions) for topic in each.topic_partitions] == [
            ("more", [0])
        ]


def test_what_older_coordinators_wrote_of_topics_goes_with_the_next_look_at_them() -> None:
    """Apache Kafka 4.0 wrote the partitions of subscribed topics (type 4); 4.1 a hash of them."""
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    key = ConsumerGroupPartitionMetadataKey(group_id="team")
    record = CoordinatorRecord(key, ConsumerGroupPartitionMetadataValue(topics=[]))
    groups.call("team", lambda *_: CoordinatorResult(records=[record]))
    assert groups.consumer_group().has_partition_metadata_record
    groups.fail_over()
    groups.settle([member])
    assert not groups.consumer_group().has_partition_metadata_record
    written_count = groups.written_count
    groups.fail_over()
    groups.settle([member])
    assert not groups.consumer_group().has_partition_metadata_record
    assert groups.written_count == written_count


def test_refusals_change_nothing() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    written_count = groups.written_count
    member.ask(member_epoch=7)
    member.ask(server_assignor="mine")
    member.ask(subscribed_topic_regex="(")
    groups.consumer("team", ["events"]).ask(member_epoch=1)
    assert groups.written_count == written_count
    groups.settle([member])
    assert member.owned == {"events": {0, 1, 2, 3}}
