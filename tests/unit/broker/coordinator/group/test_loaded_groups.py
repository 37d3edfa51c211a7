"""Consumer groups read from logs that compaction, older or other coordinators have left behind."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    MemberState,
    current_assignment_record,
    member_record,
    member_tombstones,
)
from moldau.broker.coordinator.group.core.consumer_protocol import by_topic_id
from moldau.metadata.image import MetadataImage
from moldau.protocol.coordinator_records.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import TopicPartition
from moldau.protocol.metadata_records import TopicRecord
from tests.unit.broker.coordinator.group.harness import topic_id_of
from tests.unit.broker.coordinator.group.migration_harness import shard
from tests.unit.metadata.builders import replay

T1 = UUID(int=1)


def test_a_partition_of_two_members_in_the_log_is_that_of_the_newer_epoch() -> None:
    """Compaction has removed the end of the first member before this replica had it."""
    groups = shard()
    first = groups.consumer("team", ["events"], member_id="first")
    first.join()
    before_end = len(groups.log.batches)
    first.leave()
    after_end = len(groups.log.batches)
    second = groups.consumer("team", ["events"], member_id="second")
    second.join()
    assert second.owned == {"events": {0, 1, 2, 3}}
    del groups.log.batches[before_end:after_end]
    groups.fail_over()
    group = groups.consumer_group()
    assert set(group.members) == {"first", "second"}
    owners = {owner for partitions in group.owners.values() for owner in partitions.values()}
    assert owners == {"second"}
    assert group.members["first"].assigned == {}
    assert group.members["first"].state is MemberState.UNRELEASED_PARTITIONS
    assert second.heartbeat().error_code == ErrorCode.NONE


def test_ends_of_a_group_of_which_nothing_else_is_left_make_no_group() -> None:
    groups = shard()
    member = groups.consumer("team", ["events"])
    member.join()
    member.leave()
    before_end = len(groups.log.batches)
    assert groups.delete_group().answer is ErrorCode.NONE
    del groups.log.batches[:before_end]
    groups.fail_over()
    assert groups.group_state() == "Dead"
    assert groups.state.groups == {}


def test_a_member_whose_assignment_ends_owns_nothing() -> None:
    group = ConsumerGroup("team", {})
    member = ConsumerGroupMember("m", member_epoch=5, assigned={T1: {0: 5}})
    group.replay(member_record("team", member), is_live=True)
    group.replay(current_assignment_record("team", member), is_live=True)
    assert (group.owner_of(T1, 0), group.members["m"]) == ("m", member)
    end_of_assignment, *_ = member_tombstones("team", "m")
    group.replay(end_of_assignment, is_live=True)
    assert (group.owners, group.members["m"].member_epoch) == ({}, -1)
    stranger, *_ = member_tombstones("team", "stranger")
    group.replay(stranger, is_live=True)
    assert set(group.members) == {"m"}


@pytest.mark.parametrize(
    ("epochs", "assigned"),
    [(None, {0: 7, 3: 7}), ([4], {0: 7, 3: 7}), ([4, 6], {0: 4, 3: 6}), ([], {0: 7, 3: 7})],
)
def test_partitions_written_without_epochs_were_got_in_that_of_the_member(
    epochs: list[int] | None, assigned: dict[int, int]
) -> None:
    topic = TopicPartitions(topic_id=T1, partitions=[0, 3], assignment_epochs=epochs)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=7, previous_member_epoch=6, state=0, assigned_partitions=[topic]
    )
    member = ConsumerGroupMember("m").with_current_assignment(value)
    assert member.assigned == {T1: assigned}
    assert (member.member_epoch, member.previous_member_epoch) == (7, 6)


def test_partitions_by_name_are_found_by_id_but_for_those_of_no_topic() -> None:
    image = replay(
        MetadataImage.EMPTY,
        [TopicRecord(name=name, topic_id=topic_id_of(name)) for name in ("a", "b")],
    )
    named = [("a", [1]), ("b", []), ("gone", [0]), ("a", [2])]
    partitions = [TopicPartition(topic=name, partitions=indexes) for name, indexes in named]
    assert by_topic_id(partitions, image) == {topic_id_of("a"): {1, 2}}
