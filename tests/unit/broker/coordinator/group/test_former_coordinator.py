"""A group coordinator that may have been replaced refuses nothing that a client acts upon (ADR 15).

Its successor may know members and groups that it does not. So such an answer waits until a record
that says nothing, written for it, is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.consumer_harness import ConsumerShard
from tests.unit.broker.coordinator.group.harness import Member, error_of
from tests.unit.broker.coordinator.harness import Caller

Refused = Callable[[ConsumerShard], Caller]
OFFSETS = {("events", 0): 1}


def cluster() -> ConsumerShard:
    """A classic group `team` of one static member, and a consumer group `new` of another."""
    groups = ConsumerShard(group_max_size=1)
    groups.create_topic("events")
    groups.stable(1, instance_id="i-1")
    groups.consumer("new", ["events"], instance_id="i-1").join()
    groups.log.is_committing_at_once = False
    return groups


def former(groups: ConsumerShard) -> Member:
    """A member of `team` that this coordinator takes for fenced."""
    member = groups.member(instance_id="i-1")
    member.member_id, member.generation = "of the successor", 1
    return member


def unknown(groups: ConsumerShard, group_id: str = "team") -> Member:
    """A member that this coordinator does not know."""
    member = groups.member(group_id)
    member.member_id, member.generation = "of the successor", 1
    return member


def current(groups: ConsumerShard, **changes: Any) -> Member:
    member = groups.member(instance_id="i-1", **changes)
    (member.member_id,) = groups.state.groups["team"].members
    member.generation = 2
    return member


def beat(groups: ConsumerShard, **changes: Any) -> Caller:
    """A heartbeat to `new`, of its only member if `changes` name no other one."""
    (known,) = groups.consumer_group("new").members
    consumer = groups.consumer("new", ["events"], member_id=changes.pop("member_id", known))
    consumer.ask(**changes)
    return consumer.last  # type: ignore[no-any-return]


E = ErrorCode
REFUSED: dict[str, tuple[ErrorCode, Refused]] = {
    "Heartbeat, fenced": (E.FENCED_INSTANCE_ID, lambda groups: former(groups).beat()),
    "Heartbeat, unknown": (E.UNKNOWN_MEMBER_ID, lambda groups: unknown(groups).beat()),
    "Heartbeat, later": (E.ILLEGAL_GENERATION, lambda groups: current(groups).beat()),
    "JoinGroup, no group": (
        E.UNKNOWN_MEMBER_ID,
        lambda groups: unknown(groups, "none").ask_to_join(),
    ),
    "JoinGroup, protocol": (
        E.INCONSISTENT_GROUP_PROTOCOL,
        lambda groups: current(groups, protocols={"other": b""}).ask_to_join(),
    ),
    "JoinGroup, full": (
        E.GROUP_MAX_SIZE_REACHED,
        lambda groups: groups.member(instance_id="i-2").ask_to_join(),
    ),
    "SyncGroup": (E.FENCED_INSTANCE_ID, lambda groups: former(groups).sync()),
    "OffsetCommit": (E.FENCED_INSTANCE_ID, lambda groups: former(groups).commit(OFFSETS)),
    "OffsetCommit, no group": (
        E.GROUP_ID_NOT_FOUND,
        lambda groups: groups.commit(OFFSETS, "none", member_id="m", generation=1),
    ),
    "TxnOffsetCommit": (
        E.UNKNOWN_MEMBER_ID,
        lambda groups: groups.commit_transactional(OFFSETS, member_id="m", generation=1),
    ),
    "OffsetFetch": (
        E.UNKNOWN_MEMBER_ID,
        lambda groups: groups.fetch({"events": [0]}, "new", member_id="m", member_epoch=1),
    ),
    "DeleteGroups": (E.GROUP_ID_NOT_FOUND, lambda groups: groups.delete_group("none")),
    "DeleteGroups, members": (E.NON_EMPTY_GROUP, lambda groups: groups.delete_group("team")),
    "OffsetDelete": (
        E.GROUP_ID_NOT_FOUND,
        lambda groups: groups.delete_offsets({"events": [0]}, "none"),
    ),
    "OffsetDelete, no offset": (
        E.NONE,
        lambda groups: groups.delete_offsets({"other": [0]}, "team"),
    ),
    "ConsumerGroupHeartbeat, unknown": (
        E.UNKNOWN_MEMBER_ID,
        lambda groups: beat(groups, member_id="m", member_epoch=3),
    ),
    "ConsumerGroupHeartbeat, epoch": (
        E.FENCED_MEMBER_EPOCH,
        lambda groups: beat(groups, member_epoch=9),
    ),
    "ConsumerGroupHeartbeat, fenced": (
        E.FENCED_INSTANCE_ID,
        lambda groups: beat(groups, member_id="m", member_epoch=3, instance_id="i-1"),
    ),
    "ConsumerGroupHeartbeat, no group": (
        E.GROUP_ID_NOT_FOUND,
        lambda groups: beat(groups, member_id="m", group_id="none", member_epoch=3),
    ),
    "ConsumerGroupHeartbeat, unreleased": (
        E.UNRELEASED_INSTANCE_ID,
        lambda groups: beat(
            groups, member_id="m", instance_id="i-1", **groups.consumer("new", ["events"]).full()
        ),
    ),
}
"""The error, and a request that the successor may know better."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_client_acts_upon_is_refused_by_the_proven_leader_only(name: str) -> None:
    error, refused = REFUSED[name]
    groups = cluster()
    caller = refused(groups)
    assert not caller.is_answered
    groups.log.commit()
    groups.broker.settle()
    assert error_of(caller) is error
    caller = refused(groups)
    groups.broker.depose()
    assert error_of(caller) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("name", REFUSED)
def test_without_replicas_in_sync_a_client_is_sent_to_look_for_the_coordinator(name: str) -> None:
    groups = cluster()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert error_of(REFUSED[name][1](groups)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_heartbeats_of_strangers_share_one_record_at_a_time() -> None:
    groups = cluster()
    end_offset = groups.log.log_end_offset
    strangers = [unknown(groups).beat() for _ in range(50)]
    strangers += [beat(groups, member_id=f"m-{n}", member_epoch=3) for n in range(50)]
    assert groups.log.log_end_offset == end_offset + 1
    groups.log.commit()
    groups.broker.settle()
    # A follower may have had that record before it became the leader, and the others came then.
    assert [caller.is_answered for caller in strangers] == [True] + [False] * 99
    assert groups.log.log_end_offset == end_offset + 2
    groups.log.commit()
    groups.broker.settle()
    assert {error_of(caller) for caller in strangers} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.log.log_end_offset == end_offset + 2


def test_members_and_what_ends_nothing_are_answered_without_a_record() -> None:
    groups = cluster()
    end_offset = groups.log.log_end_offset
    assert current(groups).beat(generation=1).answer.error_code == ErrorCode.NONE
    joining = groups.member("another").ask_to_join()
    assert error_of(joining) is ErrorCode.MEMBER_ID_REQUIRED
    assert groups.log.log_end_offset == end_offset


def test_who_waits_at_a_former_coordinator_is_not_fenced() -> None:
    """Another consumer took the instance id there; which of both is the one, the successor says."""
    groups = ConsumerShard()
    groups.stable(2)
    groups.log.is_committing_at_once = False
    waiting, again = (groups.member(instance_id="i-1") for _ in range(2))
    waiting.ask_to_join()
    again.ask_to_join()
    assert not waiting.joining.is_answered
    groups.broker.depose()
    assert error_of(waiting.joining) is ErrorCode.NOT_COORDINATOR
