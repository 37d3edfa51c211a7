"""How groups and their offsets go: from memory and from the log, whole, and counted."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.broker.coordinator.group.core.offset_removal import MAX_RECORDS_AT_ONCE
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.consumer_harness import ConsumerShard
from tests.unit.broker.coordinator.group.harness import Groups, topic_id_of
from tests.unit.broker.coordinator.group.test_offsets import MINUTE_MS, RETENTION, let_expire


def counted(groups: Groups) -> dict[str, int]:
    """The counters of the group coordinator."""
    return {
        metric.name.rpartition("name=")[2]: metric.instrument.value
        for metric in groups.broker.registry.collect()
        if metric.name.endswith("-count") and "group-coordinator-metrics" in metric.name
        if hasattr(metric.instrument, "value") and not metric.labels
    }


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_empty_group_goes_from_the_log_too(has_moved: bool) -> None:
    groups = Groups(**RETENTION)
    (member,) = groups.stable()
    member.leave()
    if has_moved:
        groups.fail_over()
    group = groups.state.groups["team"]
    assert groups.group_state() == "Empty"
    let_expire(groups, 1)
    assert (groups.group_state(), group.state_name) == ("Dead", "Dead")
    groups.fail_over()
    assert groups.group_state() == "Dead"


def test_a_group_of_which_nothing_is_left_in_the_log_is_not_loaded() -> None:
    groups = Groups()
    groups.commit({("events", 0): 4})
    groups.delete_offsets({"events": [0]})
    groups.fail_over()
    assert groups.group_state() == "Dead"


@pytest.mark.parametrize(("max_batch_bytes", "is_possible"), [(300, True), (200, False)])
def test_a_group_is_deleted_if_its_offsets_can_be_one_by_one(
    max_batch_bytes: int, is_possible: bool
) -> None:
    groups = Groups()
    group_id = "x" * 150
    groups.commit({("events", n): n for n in range(2)}, group_id)
    groups.log.max_batch_bytes = max_batch_bytes
    error = ErrorCode.NONE if is_possible else ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.delete_group(group_id).answer is error
    assert groups.group_state(group_id) == ("Dead" if is_possible else "Empty")


@pytest.mark.parametrize(("retention_minutes", "lasts_minutes"), [(0, 1), (3, 3)])
def test_an_offset_with_its_own_retention_expires_at_its_very_end(
    retention_minutes: int, lasts_minutes: int
) -> None:
    groups = Groups(**RETENTION)
    retention_ms = retention_minutes * MINUTE_MS
    groups.commit({("events", 0): 4}, retention_ms=retention_ms, version=4)
    let_expire(groups, lasts_minutes - 1)
    assert groups.offset("events", 0) == 4
    let_expire(groups, 1)
    assert groups.offset("events", 0) == -1


def test_the_next_topics_offset_stays_when_that_of_the_last_one_goes_late() -> None:
    """A topic was deleted, and made again, while its group had no coordinator."""
    groups = Groups()
    groups.create_topic("events")
    groups.commit({("events", 0): 4}, topic_id=topic_id_of("events"))
    groups.broker.depose(0)
    groups.delete_topic("events")
    next_id = UUID(int=77)
    groups.create_topic("events", topic_id=next_id)
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.broker.elect(0)
    groups.log.append_error = ErrorCode.NONE
    groups.commit({("events", 0): 1}, topic_id=next_id)
    groups.advance(10_000)
    assert groups.offset("events", 0) == 1


def test_offsets_of_topics_that_a_consumer_group_gave_up_expire() -> None:
    groups = ConsumerShard(**RETENTION)
    groups.create_topic("events", 1)
    member = groups.consumer("team", ["events"])
    member.join()
    identity = {"member_id": member.member_id, "generation": member.epoch}
    groups.commit({("events", 0): 4, ("former", 0): 5}, **identity)
    for minutes, former in ((9, 5), (1, -1)):
        for _ in range(4 * minutes):
            groups.advance(MINUTE_MS / 4)
            member.heartbeat()
        assert (groups.offset("events", 0), groups.offset("former", 0)) == (4, former)
    assert groups.group_state() == "Stable"


def test_removed_offsets_are_counted_by_why_they_were_removed() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", n): n for n in range(5)})
    groups.delete_offsets({"events": [0, 1, 9]})
    before = counted(groups)
    assert (before["offset-deletion-count"], before["offset-expiration-count"]) == (2, 0)
    let_expire(groups, 11)
    assert groups.group_state() == "Dead"
    after = counted(groups)
    assert (after["offset-deletion-count"], after["offset-expiration-count"]) == (2, 3)


def test_offsets_that_expire_in_several_portions_are_all_counted() -> None:
    groups = Groups(**RETENTION)
    groups.commit({("events", n): n for n in range(2 * MAX_RECORDS_AT_ONCE + 5)})
    let_expire(groups, 11)
    groups.advance(1000)
    assert groups.group_state() == "Dead"
    assert counted(groups)["offset-expiration-count"] == 2 * MAX_RECORDS_AT_ONCE + 5
