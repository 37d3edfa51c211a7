"""Committed offsets: storing, reading, deleting, transactions, expiry, and bad input."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.broker.coordinator.core.result import SetTimer
from moldau.broker.coordinator.group.core import offset_removal
from moldau.broker.coordinator.group.core.offset_removal import EXPIRY
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.classic_groups import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from tests.unit.broker.coordinator.group.harness import (
    INITIAL_DELAY_MS,
    Groups,
    error_of,
    finish_rebalance,
    subscription,
    topic_id_of,
)

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE_MS}


# -- committing ----------------------------------------------------------------------------------


def test_a_commit_is_answered_and_read_when_it_is_committed() -> None:
    groups = Groups(is_committing_at_once=False)
    committing = groups.commit({("events", 0): 10, ("events", 1): 11}, metadata="note")
    reading = groups.fetch({"events": [0, 1, 2]})
    assert not committing.is_answered
    assert not reading.is_answered
    groups.log.commit()
    assert error_of(committing) is ErrorCode.NONE
    found = reading.answer.topics[0].partitions
    assert [each.committed_offset for each in found] == [10, 11, -1]
    assert [each.committed_leader_epoch for each in found] == [3, 3, -1]
    assert [each.metadata for each in found] == ["note", "note", ""]
    assert [each.error_code for each in found] == [ErrorCode.NONE] * 3


def test_offsets_survive_the_coordinator() -> None:
    groups = Groups()
    groups.commit({("events", 0): 10, ("other", 3): 5})
    groups.commit({("events", 0): 12})
    groups.fail_over()
    assert groups.offset("events", 0) == 12
    assert groups.offset("other", 3) == 5
    assert groups.group_state() == "Empty"


def test_what_a_commit_leaves_is_what_its_log_says() -> None:
    groups = Groups()
    groups.commit({("events", 0): 10}, metadata="note", topic_id=topic_id_of("events"))
    groups.commit({("events", 1): 11}, retention_ms=MINUTE_MS, topic_id=topic_id_of("events"))
    groups.commit_transactional({("events", 1): 12, ("events", 2): 13}, metadata="note")
    groups.end_transaction()
    groups.commit_transactional({("events", 0): 14}, producer=(71, 0))
    groups.commit({("other", 0): 15}, "others", retention_ms=MINUTE_MS)
    live = groups.state.offsets
    groups.fail_over()
    loaded = groups.state.offsets
    assert loaded is not live
    for group_id in ("team", "others"):
        assert loaded.topics(group_id) == live.topics(group_id) != {}
    assert loaded.pending_partitions("team") == live.pending_partitions("team") != []
    for store in (live, loaded):
        store.end_transaction(71, is_commit=True)
    assert loaded.topics("team") == live.topics("team")


def test_an_uncommitted_offset_that_is_lost_was_never_answered() -> None:
    groups = Groups(is_committing_at_once=False)
    groups.commit({("events", 0): 10})
    groups.log.commit()
    lost = groups.commit({("events", 0): 99})
    reading = groups.fetch({"events": [0]})
    groups.fail_over(keep=1)
    assert error_of(lost) is ErrorCode.NOT_COORDINATOR
    assert error_of(reading) is ErrorCode.NOT_COORDINATOR
    assert groups.offset("events", 0) == 10


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_commits_that_cannot_be_written(error: ErrorCode, told: ErrorCode) -> None:
    groups = Groups()
    groups.log.append_error = error
    assert error_of(groups.commit({("events", 0): 10})) is told
    assert error_of(groups.commit_transactional({("events", 0): 10})) is told
    groups.log.append_error = ErrorCode.NONE
    assert groups.offset("events", 0) == -1


@pytest.mark.parametrize("offset_count", [1, 2, 3])
def test_a_group_stays_when_its_offsets_cannot_be_deleted(offset_count: int) -> None:
    """Not even one at a time: a batch of one record is not made smaller."""
    groups = Groups()
    topic = "t" * 249
    groups.commit({(topic, n): 10 for n in range(offset_count)})
    groups.log.max_batch_bytes, enough = 200, groups.log.max_batch_bytes
    assert error_of(groups.delete_group()) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.offset(topic, 0) == 10
    groups.log.max_batch_bytes = enough
    assert error_of(groups.delete_group()) is ErrorCode.NONE
    assert groups.group_state() == "Dead"


def test_a_commit_that_is_not_replicated_in_time() -> None:
    groups = Groups(is_committing_at_once=False)
    committing = groups.commit({("events", 0): 10})
    reading = groups.fetch({"events": [0]})
    groups.advance(5000)
    assert error_of(committing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error_of(reading) is ErrorCode.NOT_COORDINATOR


def test_a_commit_larger_than_a_batch_is_refused_as_such() -> None:
    groups = Groups()
    groups.log.max_batch_bytes = 2000
    assert error_of(groups.commit({("events", n): n for n in range(100)})) is (
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )


def test_metadata_that_is_too_long_is_refused_alone() -> None:
    groups = Groups(offset_metadata_max_bytes=4)
    assert error_of(groups.commit({("events", 0): 1}, metadata="12345")) is (
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    )
    assert not groups.log.batches
    assert error_of(groups.commit({("events", 0): 1}, metadata="1234")) is ErrorCode.NONE
    assert error_of(groups.commit({("events", 0): 2}, metadata=None)) is ErrorCode.NONE
    assert error_of(groups.commit_transactional({("events", 0): 1}, metadata="12345")) is (
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    )


def test_a_member_commits_with_its_generation() -> None:
    groups = Groups()
    (member,) = groups.stable()
    assert error_of(member.commit({("events", 0): 4})) is ErrorCode.NONE
    assert groups.offset("events", 0) == 4


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_that_a_group_with_members_refuses(
    changes: dict[str, object], error: ErrorCode
) -> None:
    groups = Groups()
    (member,) = groups.stable()
    assert error_of(member.commit({("events", 0): 4}, **changes)) is error
    assert groups.offset("events", 0) == -1


def test_a_static_member_that_was_replaced_cannot_commit() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    again = groups.member(instance_id="i-1")
    again.ask_to_join()
    again.joined()
    assert error_of(member.commit({("events", 0): 4})) is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(again.commit({("events", 0): 4})) is ErrorCode.NONE


def test_commits_during_a_rebalance() -> None:
    groups = Groups()
    (member,) = groups.stable()
    other = groups.member()
    other.join()
    assert error_of(member.commit({("events", 0): 4})) is ErrorCode.NONE, "the last chance"
    member.join()
    member.joined()
    assert error_of(member.commit({("events", 0): 5})) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_a_member_alive() -> None:
    groups = Groups()
    (member,) = groups.stable()
    for _ in range(3):
        groups.advance(6000)
        assert error_of(member.commit({("events", 0): 4})) is ErrorCode.NONE


def test_a_generation_of_a_group_that_does_not_exist() -> None:
    groups = Groups()
    for version, error in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
        committing = groups.commit({("events", 0): 4}, generation=1, member_id="m", version=version)
        assert error_of(committing) is error
    assert error_of(groups.commit_transactional({("events", 0): 4}, generation=1)) is (
        ErrorCode.ILLEGAL_GENERATION
    )
    first = groups.commit({("events", 0): 4}, generation=0, member_id="m", version=9)
    assert error_of(first) is ErrorCode.GROUP_ID_NOT_FOUND


def test_an_offset_of_a_deleted_topic_of_the_same_name_is_none() -> None:
    groups = Groups()
    groups.commit({("events", 0): 4}, topic_id=topic_id_of("events"))
    found = groups.fetch({"events": [0]}, topic_id=topic_id_of("events")).answer
    assert found.topics[0].partitions[0].committed_offset == 4
    other = groups.fetch({"events": [0]}, topic_id=UUID(int=5)).answer
    assert other.topics[0].partitions[0].committed_offset == -1
    assert groups.offset("events", 0) == 4, "who asks by name does not care"


def test_all_offsets_of_a_group_are_read_without_topics() -> None:
    groups = Groups()
    groups.commit({("events", 0): 4, ("events", 1): 5, ("other", 0): 6})
    found = groups.fetch().answer
    assert {
        (topic.name, each.partition_index): each.committed_offset
        for topic in found.topics
        for each in topic.partitions
    } == {("events", 0): 4, ("events", 1): 5, ("other", 0): 6}
    assert groups.fetch(group_id="nobody").answer.topics == []


def test_offsets_in_the_oldest_form_are_read() -> None:
    groups = Groups()
    from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorResult

    old = CoordinatorRecord(
        LegacyOffsetCommitKey(group="team", topic="events", partition=0),
        LegacyOffsetCommitValue(offset=3, metadata="old", commit_timestamp=1),
    )
    assert CONSUMER_OFFSETS.encode_key(old.key)[:2] == b"\0\0"
    groups.coordinator.runtime.call(0, lambda _state, _now: CoordinatorResult(records=[old]))
    groups.fail_over()
    assert groups.offset("events", 0) == 3


# -- transactions --------------------------------------------------------------------------------


def test_a_transactions_offsets_count_when_it_commits() -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    assert error_of(groups.commit_transactional({("events", 0): 5})) is ErrorCode.NONE
    assert groups.offset("events", 0) == 1
    stable = groups.fetch({"events": [0, 1]}, require_stable=True).answer.topics[0].partitions
    assert [each.error_code for each in stable] == [
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NONE,
    ]
    assert stable[0].committed_offset == -1
    everything = groups.fetch(require_stable=True).answer.topics[0].partitions
    assert everything[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction()
    assert groups.offset("events", 0) == 5
    found = groups.fetch({"events": [0]}, require_stable=True).answer.topics[0].partitions
    assert found[0].error_code == ErrorCode.NONE


def test_an_aborted_transactions_offsets_are_forgotten() -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    groups.commit_transactional({("events", 0): 5, ("events", 1): 6})
    groups.end_transaction(is_commit=False)
    assert groups.offset("events", 0) == 1
    assert groups.offset("events", 1) == -1
    groups.fail_over()
    assert groups.offset("events", 0) == 1


def test_open_and_ended_transactions_survive_the_coordinator() -> None:
    groups = Groups()
    groups.commit_transactional({("events", 0): 5}, producer=(70, 0))
    groups.commit_transactional({("events", 1): 6}, producer=(71, 3))
    groups.end_transaction((70, 1))
    groups.fail_over()
    assert groups.offset("events", 0) == 5
    assert groups.offset("events", 1) == -1
    found = groups.fetch({"events": [1]}, require_stable=True).answer.topics[0].partitions
    assert found[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction((71, 3))
    assert groups.offset("events", 1) == 6


def test_a_later_commit_is_not_undone_by_an_earlier_transaction() -> None:
    groups = Groups()
    groups.commit_transactional({("events", 0): 5})
    groups.commit({("events", 0): 9})
    groups.end_transaction()
    assert groups.offset("events", 0) == 9
    groups.fail_over()
    assert groups.offset("events", 0) == 9


def test_a_generation_without_a_member_is_refused_by_an_empty_group_too() -> None:
    groups = Groups()
    groups.commit({("events", 0): 4})
    assert error_of(groups.commit({("events", 0): 5}, generation=0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.offset("events", 0) == 4


def test_transactional_commits_are_fenced_by_generation() -> None:
    groups = Groups()
    (member,) = groups.stable()
    offsets = {("events", 0): 5}
    assert error_of(groups.commit_transactional(offsets)) is ErrorCode.NONE, "clients of old"
    for member_id, generation, error in (
        (member.member_id, 7, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, ErrorCode.UNKNOWN_MEMBER_ID),
        (member.member_id, 1, ErrorCode.NONE),
    ):
        told = groups.commit_transactional(offsets, member_id=member_id, generation=generation)
        assert error_of(told) is error
    assert error_of(groups.commit_transactional(offsets, "")) is ErrorCode.INVALID_GROUP_ID


# -- deleting ------------------------------------------------------------------------------------


def test_offsets_are_deleted_of_topics_that_no_member_subscribes_to() -> None:
    groups = Groups()
    (member,) = groups.stable()
    member.commit({("events", 0): 4, ("former", 0): 5})
    answer = groups.delete_offsets({"events": [0], "former": [0, 1]}).answer
    assert [[each.error_code for each in topic.partitions] for topic in answer.topics] == [
        [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC],
        [ErrorCode.NONE, ErrorCode.NONE],
    ]
    groups.fail_over()
    assert groups.offset("former", 0) == -1
    assert groups.offset("events", 0) == 4


def test_deleting_offsets_of_groups_that_are_not_there_or_are_no_consumers() -> None:
    groups = Groups()
    assert error_of(groups.delete_offsets({"events": [0]})) is ErrorCode.GROUP_ID_NOT_FOUND
    groups.stable(protocol_type="connect")
    assert error_of(groups.delete_offsets({"events": [0]})) is ErrorCode.NON_EMPTY_GROUP


def test_members_whose_subscription_cannot_be_read_keep_all_offsets() -> None:
    groups = Groups()
    (member,) = groups.stable(protocols={"range": b"\0"})
    member.commit({("events", 0): 4})
    assert error_of(groups.delete_offsets({"events": [0]})) is (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


def test_deleting_an_offset_takes_what_a_transaction_has_for_it() -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    groups.commit_transactional({("events", 0): 5})
    groups.delete_offsets({"events": [0]})
    groups.end_transaction()
    assert groups.offset("events", 0) == -1


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    groups = Groups()
    groups.create_topic("events")
    groups.create_topic("other")
    for group_id in ("one", "two"):
        groups.commit({("events", 0): 4, ("events", 1): 5, ("other", 0): 6}, group_id)
    groups.commit_transactional({("events", 2): 1}, "two")
    groups.delete_topic("events")
    groups.fail_over()
    for group_id in ("one", "two"):
        assert groups.offset("events", 0, group_id) == -1
        assert groups.offset("other", 0, group_id) == 6
    groups.end_transaction()
    assert groups.offset("events", 2, "two") == -1


def test_many_offsets_of_a_deleted_topic_go_in_portions() -> None:
    groups = Groups()
    groups.create_topic("events")
    for start in range(0, 2500, 500):
        groups.commit({("events", n): n for n in range(start, start + 500)})
    groups.delete_topic("events")
    assert groups.state.offsets.count == 0
    sizes = [
        header.record_count for batch in groups.log.batches for _, header in iter_batches(batch)
    ]
    assert sizes[5:] == [1000, 1000, 500]


def test_a_portion_whose_commit_takes_too_long_keeps_none_of_the_others() -> None:
    groups = Groups()
    groups.create_topic("events")
    for start in range(0, 2500, 500):
        groups.commit({("events", n): n for n in range(start, start + 500)})
    groups.log.is_committing_at_once = False
    groups.delete_topic("events")
    for _ in range(3):
        groups.advance(5000)  # offsets.commit.timeout.ms
    groups.log.commit()
    assert groups.state.offsets.count == 0


def test_a_topic_deleted_while_the_partition_is_loaded_takes_its_offsets_along() -> None:
    groups = Groups()
    groups.create_topic("events")
    groups.commit({("events", 0): 4, ("other", 0): 6})
    groups.broker.depose(0)
    groups.broker.is_loading_held = True
    groups.broker.elect(0)
    groups.delete_topic("events")
    groups.broker.load_on()
    assert groups.offset("events", 0) == -1
    assert groups.offset("other", 0) == 6


def test_a_topic_deleted_while_no_broker_coordinates_takes_its_offsets_along() -> None:
    groups = Groups()
    groups.create_topic("events")
    groups.create_topic("other")
    groups.commit({("events", 0): 4, ("events", 1): 5}, topic_id=topic_id_of("events"))
    groups.commit({("events", 1): 6})  # of which it is not known which topic it is of
    groups.commit({("other", 0): 7}, topic_id=topic_id_of("other"))
    groups.broker.depose(0)
    groups.delete_topic("events")
    groups.broker.elect(0)
    assert groups.offset("events", 0) == -1
    assert groups.offset("events", 1) == 6
    assert groups.offset("other", 0) == 7


def test_an_outlived_offset_waits_for_a_transaction_of_the_next_topic() -> None:
    groups = Groups()
    groups.create_topic("events")
    groups.commit({("events", 0): 4, ("events", 1): 5}, topic_id=topic_id_of("events"))
    groups.commit_transactional({("events", 0): 1, ("events", 1): 2})
    groups.broker.depose(0)
    groups.delete_topic("events")
    groups.broker.elect(0)
    assert groups.offset("events", 0) == 4
    groups.commit({("events", 1): 3})
    groups.end_transaction(is_commit=False)
    groups.advance(1_000)
    assert groups.offset("events", 0) == -1
    assert groups.offset("events", 1) == 3


@pytest.mark.parametrize("is_loading", [False, True])
def test_a_deleted_topic_takes_its_offsets_along_when_the_log_takes_them_later(
    is_loading: bool,
) -> None:
    """The topic that is made since under its name is not answered the old one's, and keeps its
    own.
    """
    groups = Groups()
    groups.create_topic("events")
    groups.commit({("events", 0): 4, ("events", 1): 5})
    if is_loading:
        groups.broker.depose(0)
        groups.broker.is_loading_held = True
        groups.broker.elect(0)
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.delete_topic("events")
    groups.broker.load_on()
    groups.create_topic("events")
    groups.advance(2_000)
    assert groups.offset("events", 0) == 4
    groups.log.append_error = ErrorCode.NONE
    groups.commit({("events", 1): 1})
    groups.advance(1_000)
    assert groups.offset("events", 0) == -1
    assert groups.offset("events", 1) == 1
    end_offset = groups.log.log_end_offset
    groups.advance(10_000)
    assert groups.log.log_end_offset == end_offset


def test_a_deleted_topics_offset_waits_for_a_transaction_of_the_next_topic() -> None:
    groups = Groups()
    groups.create_topic("events")
    groups.commit({("events", 0): 4})
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.delete_topic("events")
    groups.create_topic("events")
    groups.log.append_error = ErrorCode.NONE
    groups.commit_transactional({("events", 0): 1})
    groups.advance(1_000)
    groups.end_transaction(is_commit=False)
    groups.advance(1_000)
    assert groups.offset("events", 0) == -1


def test_a_deleted_topics_offset_that_no_batch_can_hold_holds_up_no_other() -> None:
    groups = Groups()
    groups.create_topic("events")
    long_id = "x" * 1_000
    groups.commit({("events", 0): 4}, long_id)
    groups.commit({("events", n): 4 for n in range(30)})
    groups.log.max_batch_bytes = 500
    groups.delete_topic("events")
    assert groups.state.offsets.count == 1
    end_offset = groups.log.log_end_offset
    groups.advance(10_000)
    assert groups.log.log_end_offset == end_offset


# -- expiry --------------------------------------------------------------------------------------


def let_expire(groups: Groups, minutes: float) -> None:
    for _ in range(int(minutes)):
        groups.advance(MINUTE_MS)


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    groups = Groups(**RETENTION)
    (member,) = groups.stable(session_ms=1_800_000)
    member.commit({("events", 0): 4})
    let_expire(groups, 12)
    assert groups.offset("events", 0) == 4, "it has members"
    member.leave()
    let_expire(groups, 9)
    assert groups.offset("events", 0) == 4
    let_expire(groups, 2)
    assert groups.offset("events", 0) == -1
    assert groups.group_state() == "Dead"
    groups.fail_over()
    assert groups.group_state() == "Dead"
    assert groups.offset("events", 0) == -1


def test_offsets_of_topics_that_consumers_gave_up_expire_while_the_group_is_stable() -> None:
    groups = Groups(**RETENTION)
    (member,) = groups.stable(session_ms=1_800_000)
    member.commit({("events", 0): 4, ("former", 0): 5})
    let_expire(groups, 11)
    assert groups.offset("events", 0) == 4
    assert groups.offset("former", 0) == -1


def test_members_that_are_no_consumers_keep_all_their_offsets() -> None:
    groups = Groups(**RETENTION)
    (member,) = groups.stable(session_ms=1_800_000, protocol_type="connect")
    member.commit({("events", 0): 4})
    let_expire(groups, 12)
    assert groups.offset("events", 0) == 4


def test_offsets_without_members_expire_each_by_its_commit() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 4, ("events", 1): 4})
    let_expire(groups, 6)
    groups.commit({("events", 1): 5})
    let_expire(groups, 5)
    assert groups.offset("events", 0) == -1
    assert groups.offset("events", 1) == 5
    let_expire(groups, 6)
    assert groups.group_state() == "Dead"


def test_an_offset_expires_at_the_very_end_of_its_retention() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 4})
    let_expire(groups, 9)
    assert groups.offset("events", 0) == 4
    let_expire(groups, 1)
    assert groups.offset("events", 0) == -1


def test_an_offsets_own_retention_time_wins() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 4}, retention_ms=3 * MINUTE_MS, version=4)
    groups.commit({("events", 1): 4}, retention_ms=30 * MINUTE_MS, version=4)
    groups.fail_over()
    let_expire(groups, 4)
    assert groups.offset("events", 0) == -1
    let_expire(groups, 20)
    assert groups.offset("events", 1) == 4


def test_what_an_open_transaction_will_change_does_not_expire() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 4})
    groups.commit_transactional({("events", 0): 5})
    let_expire(groups, 12)
    assert groups.offset("events", 0) == 4
    assert groups.group_state() == "Empty"
    groups.end_transaction(is_commit=False)
    let_expire(groups, 2)
    assert groups.group_state() == "Dead"


def test_expiry_goes_on_after_a_write_that_failed() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 4})
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    let_expire(groups, 12)
    assert groups.offset("events", 0) == 4
    groups.log.append_error = ErrorCode.NONE
    let_expire(groups, 2)
    assert groups.offset("events", 0) == -1


def test_many_offsets_expire_in_portions() -> None:
    groups = Groups(**RETENTION)
    for start in range(0, 3000, 500):
        groups.commit({("events", n): n for n in range(start, start + 500)})
    let_expire(groups, 11)
    groups.advance(100)
    assert groups.state.offsets.count == 0
    assert groups.group_state() == "Dead"
    largest = max(
        header.record_count for batch in groups.log.batches for _, header in iter_batches(batch)
    )
    assert largest <= 1001


@pytest.mark.parametrize(("offset_count", "ends_portion"), [(3, False), (4, True), (5, True)])
def test_a_portion_looks_at_so_many_groups_and_offsets(
    monkeypatch: pytest.MonkeyPatch, offset_count: int, *, ends_portion: bool
) -> None:
    """Also where nothing has expired. A group counts as one, besides its offsets."""
    monkeypatch.setattr(offset_removal, "MAX_OFFSETS_AT_ONCE", 5)
    groups = Groups(**RETENTION)
    groups.commit({("events", 0): 1}, "looked at last")
    groups.commit({("events", n): n for n in range(offset_count)}, "looked at first")
    result = groups.state.removal.on_timer(EXPIRY, groups.now_ms)
    assert result.records == []
    pause_ms = offset_removal.PAUSE_MS if ends_portion else MINUTE_MS
    assert result.timers == [SetTimer(EXPIRY, pause_ms)]


def test_offsets_of_groups_with_long_names_expire() -> None:
    """A name weighs its bytes, not its characters."""
    groups = Groups(**RETENTION)
    for number in range(40):
        group_id = f"{number}{'語' * 10_000}"
        groups.commit({("events", n): n for n in range(25)}, group_id)
    let_expire(groups, 11)
    groups.advance(1_000)
    assert groups.state.offsets.count == 0
    assert groups.state.groups == {}


def test_groups_that_no_batch_can_hold_hold_up_no_other() -> None:
    groups = Groups(**RETENTION)
    for number in range(3):
        for start in range(0, 1_200, 600):
            offsets = {("events", n): n for n in range(start, start + 600)}
            groups.commit(offsets, f"{number}{'語' * 100}")
        groups.commit({("events", 0): 1}, f"short-{number}")
    groups.log.max_batch_bytes = 300
    let_expire(groups, 11)
    groups.advance(1_000)
    assert groups.state.offsets.count == 3_600
    assert len(groups.state.groups) == 3
    groups.log.max_batch_bytes = 1_000_000
    let_expire(groups, 2)
    assert groups.state.groups == {}


def test_a_group_is_deleted_in_portions_that_fit() -> None:
    groups = Groups()
    groups.commit({("events", n): n for n in range(200)})
    groups.log.max_batch_bytes = 500
    assert groups.delete_group().answer is ErrorCode.NONE
    assert groups.group_state() == "Dead"
    long_id = "x" * 1_000
    groups.log.max_batch_bytes = 10_000
    groups.commit({("events", n): n for n in range(2)}, long_id)
    groups.log.max_batch_bytes = 500
    assert groups.delete_group(long_id).answer is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.offset("events", 1, long_id) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_deletion_is_answered_when_what_completed_it_is_committed(is_lost: bool) -> None:
    """1. The first DeleteGroups writes the tombstone of the offset, and waits for its commit;
    2. the second one finds no offset, and writes the tombstone of the group;
    3. the first one hears of its commit, and finds no group.
    """
    groups = Groups()
    (member,) = groups.stable()
    member.commit({("events", 0): 4})
    member.leave()
    groups.log.is_committing_at_once = False
    first = groups.delete_group()
    end_of_offsets = groups.log.log_end_offset
    second = groups.delete_group()
    assert groups.log.log_end_offset > end_of_offsets
    groups.log.commit(end_of_offsets)
    assert not first.is_answered, "another leader may lack the tombstone of the group"
    if is_lost:
        groups.fail_over(keep=end_of_offsets)
        assert groups.group_state() == "Empty"
    else:
        groups.log.commit()
    told = ErrorCode.NOT_COORDINATOR if is_lost else ErrorCode.NONE
    assert (error_of(first), error_of(second)) == (told, told)


def test_a_pending_member_keeps_an_empty_group() -> None:
    groups = Groups(**RETENTION)
    (member,) = groups.stable()
    member.leave()
    new = groups.member(session_ms=1_800_000)
    new.member_id = new.ask_to_join().answer.member_id
    let_expire(groups, 3)
    new.ask_to_join()
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([new])
    assert groups.group_state() == "Stable"


# -- metrics -------------------------------------------------------------------------------------


def test_groups_and_offsets_are_counted() -> None:
    groups = Groups()
    groups.stable(protocols={"range": subscription("events")})
    groups.commit({("events", 0): 4, ("events", 1): 4}, "simple")
    groups.commit_transactional({("events", 2): 4, ("events", 3): 4, ("events", 4): 4}, "simple")
    values = {
        metric.name.rpartition("name=")[2] + "".join(str(value) for _, value in metric.labels): (
            metric.instrument.value
        )
        for metric in groups.broker.registry.collect()
        if "roup" in metric.name and hasattr(metric.instrument, "value")
    }
    assert values["NumOffsets"] == 2
    assert values["NumGroups"] == 2
    assert values["NumGroupsStable"] == 1
    assert values["NumGroupsEmpty"] == 1
    assert values["group-countclassic"] == 2
    assert values["group-countconsumer"] == 0
    assert values["offset-commit-count"] == 2 + 3
    assert values["group-completed-rebalance-count"] == 1
