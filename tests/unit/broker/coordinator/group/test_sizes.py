"""What groups, members and offsets take in memory, as the coordinator estimates it: every text of a
client counts once, what goes leaves nothing behind, and growth is asked for before it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicMember
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    ResolvedRegularExpression,
    member_record,
    member_tombstones,
    regular_expression_record,
    target_record,
)
from moldau.broker.coordinator.group.core.context import (
    GROUP_BYTES,
    MEMBER_BYTES,
    NAME_BYTES,
    PARTITION_BYTES,
    PENDING_MEMBER_BYTES,
    PROTOCOL_BYTES,
    ClientInfo,
)
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.offset_store import (
    OFFSET_BYTES,
    StoredOffset,
    offset_bytes,
)
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.unit.broker.coordinator.group.consumer_harness import Consumer, ConsumerShard
from tests.unit.broker.coordinator.group.harness import Groups, Member, error_of, subscription
from tests.unit.broker.coordinator.harness import Caller

T1, T2 = UUID(int=1), UUID(int=2)
EMPTY_GROUP_BYTES = GROUP_BYTES + len("team")
PROTOCOLS = (("range", b"1234"), ("s", b""))
PROTOCOLS_BYTES = 2 * PROTOCOL_BYTES + len("range") + 4 + len("s")


# -- members -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "more_bytes"),
    [
        ({"instance_id": "12345"}, 5),
        ({"rack_id": "12345"}, 5),
        ({"client_id": "12345"}, 5),
        ({"subscribed_topic_names": frozenset({"abc", "d"})}, 2 * NAME_BYTES + 4),
        ({"subscribed_topic_regex": "a.*"}, 3),
        ({"classic": ClassicProtocols(1000, PROTOCOLS)}, PROTOCOLS_BYTES),
    ],
)
def test_a_consumer_takes_what_it_says_of_itself(changes: dict[str, Any], more_bytes: int) -> None:
    plain = ConsumerGroupMember("m1")
    assert plain.size_bytes == MEMBER_BYTES + len("m1")
    assert replace(plain, **changes).size_bytes == plain.size_bytes + more_bytes


@pytest.mark.parametrize(("instance_id", "instance_bytes"), [(None, 0), ("12345", 5)])
def test_a_classic_member_takes_what_it_says_of_itself_and_its_assignment(
    instance_id: str | None, instance_bytes: int
) -> None:
    member = ClassicMember("m1", instance_id, "client", "host", 1, 1, PROTOCOLS)
    own_bytes = MEMBER_BYTES + len("m1") + len("client") + PROTOCOLS_BYTES + instance_bytes
    assert member.size_bytes == own_bytes
    member.assignment = b"123"
    assert member.size_bytes == own_bytes + 3


@pytest.mark.parametrize("instance_id", [None, "12345"])
def test_a_join_weighs_as_much_as_its_member_will_but_for_the_id(instance_id: str | None) -> None:
    request = JoinGroupRequest(
        group_instance_id=instance_id,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in PROTOCOLS],
    )
    joining = at_once(Joining.read(request, 9, ClientInfo("client", "host"), Caller()))
    member = ClassicMember("m1", instance_id, "client", "host", 1, 1, joining.protocols)
    assert joining.size_bytes + len("m1") == member.size_bytes


# -- groups --------------------------------------------------------------------------------------


def test_a_consumer_group_takes_what_it_has_of_members_targets_and_expressions() -> None:
    group = ConsumerGroup("team", {})
    assert group.size_bytes == EMPTY_GROUP_BYTES
    assert group.member_bytes("m1", None) == group.member_bytes("", "i1") == 0
    member = ConsumerGroupMember("m1", instance_id="i1")
    resolved = ResolvedRegularExpression(frozenset({"a", "b"}), 1, 1)
    fewer = ResolvedRegularExpression(frozenset({"a"}), 2, 2)
    end_of_member = member_tombstones("team", "m1")
    story: list[tuple[CoordinatorRecord, int]] = [
        (member_record("team", member), member.size_bytes),
        (member_record("team", replace(member, client_id="12345")), 5),
        (
            target_record("team", "m1", {T1: frozenset({0, 1}), T2: frozenset({7})}),
            3 * PARTITION_BYTES,
        ),
        (target_record("team", "m1", {T2: frozenset({7})}), -2 * PARTITION_BYTES),
        (regular_expression_record("team", "x", resolved), 3 * NAME_BYTES),
        (regular_expression_record("team", "x", fewer), -NAME_BYTES),
        (regular_expression_record("team", "x", None), -2 * NAME_BYTES),
        (regular_expression_record("team", "x", None), 0),
        (end_of_member[0], 0),
        (end_of_member[1], -PARTITION_BYTES),
        (end_of_member[2], -member.size_bytes - 5),
        (end_of_member[1], 0),
        (end_of_member[2], 0),
    ]
    expected = EMPTY_GROUP_BYTES
    for record, change_bytes in story:
        group.replay(record, is_live=True)
        expected += change_bytes
        assert group.size_bytes == expected, record.key
        known = sum(each.size_bytes for each in group.members.values())
        assert group.member_bytes("m1", None) == group.member_bytes("", "i1") == known
    assert expected == EMPTY_GROUP_BYTES


def test_a_classic_group_takes_its_members_as_long_as_it_has_them() -> None:
    group = ClassicGroup("team", 0)
    assert group.size_bytes == EMPTY_GROUP_BYTES
    member = ClassicMember("m1", "i1", "c", "h", 1, 1, PROTOCOLS)
    own_bytes = member.size_bytes
    group.pending_members.add("m2")
    assert group.size_bytes == EMPTY_GROUP_BYTES + PENDING_MEMBER_BYTES
    group.pending_members.clear()

    def takes(more_bytes: int) -> None:
        assert group.size_bytes == EMPTY_GROUP_BYTES + own_bytes + more_bytes
        assert group.member_bytes(member.member_id, None) == own_bytes + more_bytes
        assert group.member_bytes("", "i1") == own_bytes + more_bytes
        assert group.member_bytes("m9", None) == group.member_bytes("", "i9") == 0

    group.add(member, "consumer")
    takes(0)
    group.assign(member, b"12345")
    takes(5)
    group.assign(member, b"1")
    takes(1)
    group.rename(member, "m1-longer")
    takes(1 + len("-longer"))
    group.update(member, PROTOCOLS[:1], 2, 3)
    takes(1 + len("-longer") - PROTOCOL_BYTES - len("s"))
    group.remove(member)
    assert group.size_bytes == EMPTY_GROUP_BYTES


# -- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "more_bytes"), [("", 0), ("abc", 3), ("\x7f", 1), ("\x80", 4), ("aé", 8)]
)
def test_an_offset_takes_its_metadata_as_python_keeps_them(metadata: str, more_bytes: int) -> None:
    assert offset_bytes(StoredOffset(5, metadata=metadata)) == OFFSET_BYTES + more_bytes


# -- what a coordinator keeps of all of them -----------------------------------------------------


def kept_bytes(groups: Groups) -> int:
    """What the coordinator's limit says, checked against the groups."""
    state = groups.state
    sizes: Mapping[str, int] = {
        group_id: group.size_bytes + state.offsets.size_bytes(group_id)
        for group_id, group in state.groups.items()
    }
    used_bytes = groups.coordinator._memory.used_bytes
    assert used_bytes == sum(sizes.values())
    return used_bytes


def test_a_coordinator_keeps_nothing_of_what_is_gone() -> None:
    groups = Groups()
    assert kept_bytes(groups) == 0
    groups.commit({("events", 0): 1, ("events", 1): 1}, metadata="abc")
    offsets_bytes = 2 * (OFFSET_BYTES + 3)
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + offsets_bytes
    groups.commit({("events", 1): 2}, metadata="")
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + offsets_bytes - 3
    groups.commit_transactional({("events", 1): 3}, metadata="ab")
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + offsets_bytes - 3 + OFFSET_BYTES + 2
    groups.fail_over()
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + offsets_bytes - 3 + OFFSET_BYTES + 2
    groups.end_transaction()
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + offsets_bytes - 1
    groups.delete_offsets({"events": [0]})
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + OFFSET_BYTES + 2
    groups.delete_group()
    assert kept_bytes(groups) == 0
    groups.broker.depose()
    assert groups.coordinator._memory.used_bytes == 0


def test_a_coordinator_keeps_what_members_of_a_classic_group_bring() -> None:
    groups = Groups()
    members = groups.stable(2)
    group = groups.state.groups["team"]
    assert isinstance(group, ClassicGroup)
    shares = [len(f"share of {each.member_id}") for each in members]
    assert [len(each.assignment) for each in group.members.values()] == shares
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES + sum(
        each.size_bytes for each in group.members.values()
    )
    for member in members:
        member.leave()
    assert kept_bytes(groups) == EMPTY_GROUP_BYTES


# -- growth at the limit -------------------------------------------------------------------------

MANY_TOPICS = [f"topic-{number}" for number in range(50)]
"""That do not exist, so that no partitions are assigned."""


def full_shard() -> tuple[ConsumerShard, Consumer]:
    """A coordinator whose only group has one member, as large as the coordinator's limit allows."""
    sized = ConsumerShard()
    sized.consumer("team", MANY_TOPICS, instance_id="i", member_id="m1").join()
    limit_bytes = kept_bytes(sized)
    groups = ConsumerShard(moldau_group_coordinator_max_bytes=limit_bytes)
    member = groups.consumer("team", MANY_TOPICS, instance_id="i", member_id="m1")
    assert member.join().error_code == ErrorCode.NONE
    assert kept_bytes(groups) == limit_bytes
    return groups, member


def test_a_group_may_be_as_large_as_the_limit_and_not_larger() -> None:
    groups, member = full_shard()
    limit_bytes = kept_bytes(groups)
    assert member.heartbeat().error_code == ErrorCode.NONE
    more = member.heartbeat(subscribed_topic_names=[*MANY_TOPICS, "x"])
    assert more.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    fewer = member.heartbeat(subscribed_topic_names=MANY_TOPICS[1:])
    assert fewer.error_code == ErrorCode.NONE
    assert kept_bytes(groups) == limit_bytes - NAME_BYTES - len("topic-0")


@pytest.mark.parametrize(
    ("missing_bytes", "error"), [(0, ErrorCode.NONE), (1, ErrorCode.GROUP_MAX_SIZE_REACHED)]
)
def test_a_new_group_needs_room_for_itself_and_its_member(
    missing_bytes: int, error: ErrorCode
) -> None:
    groups, _ = full_shard()
    wanted_bytes = kept_bytes(groups) - len("team")
    smaller = ConsumerShard(moldau_group_coordinator_max_bytes=wanted_bytes - missing_bytes)
    member = smaller.consumer("team", MANY_TOPICS, instance_id="i", member_id="m1")
    assert member.join().error_code == error
    assert bool(smaller.state.groups) is (error is ErrorCode.NONE)


def test_a_static_member_that_comes_back_asks_for_no_more_than_it_had() -> None:
    groups, member = full_shard()
    limit_bytes = kept_bytes(groups)
    assert member.leave(-2) is ErrorCode.NONE
    back = groups.consumer("team", MANY_TOPICS, instance_id="i", member_id="m2")
    assert back.join().error_code == ErrorCode.NONE
    assert kept_bytes(groups) == limit_bytes
    other = groups.consumer("team", [], member_id="m3")
    assert other.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def big(groups: Groups, instance_id: str | None) -> Member:
    return groups.member(protocols={"range": subscription(*MANY_TOPICS)}, instance_id=instance_id)


@pytest.mark.parametrize("instance_id", [None, "i"])
def test_a_classic_member_that_joins_again_asks_for_no_more_than_it_has(
    instance_id: str | None,
) -> None:
    sized = Groups()
    big(sized, instance_id).join()
    groups = Groups(moldau_group_coordinator_max_bytes=2 * kept_bytes(sized))
    member = big(groups, instance_id)
    member.join()
    assert not member.joining.is_answered
    for _ in range(2):
        if instance_id is not None:
            member = big(groups, instance_id)
        assert not member.ask_to_join().is_answered, "it waits for the generation as before"
    other = groups.member()
    assert error_of(other.ask_to_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.advance(3000)
    assert member.joined().generation_id == 1


@pytest.mark.parametrize(("missing_bytes", "is_taken"), [(0, True), (1, False)])
def test_one_more_classic_member_needs_room_for_itself(missing_bytes: int, is_taken: bool) -> None:
    groups = Groups()
    groups.member(instance_id="i").join()
    group_bytes = kept_bytes(groups)
    member_bytes = group_bytes - EMPTY_GROUP_BYTES - len(groups.timers[1][1])
    # What was not made by a principal grows by as much as it leaves beside itself.
    groups.coordinator._memory.max_bytes = 2 * group_bytes + member_bytes - missing_bytes
    other = groups.member(instance_id="j")
    assert other.ask_to_join().is_answered is not is_taken
    assert len(groups.state.groups["team"].members) == 1 + is_taken


def test_a_commit_that_replaces_as_much_is_taken_at_the_limit() -> None:
    sized = Groups()
    sized.commit({("events", 0): 1, ("events", 1): 1}, metadata="abc")
    sized.commit_transactional({("events", 2): 1}, metadata="abc")
    limit_bytes = kept_bytes(sized)
    groups = Groups(moldau_group_coordinator_max_bytes=2 * limit_bytes)
    groups.commit({("events", 0): 1, ("events", 1): 1}, metadata="abc")
    groups.commit_transactional({("events", 2): 1}, metadata="abc")
    groups.coordinator._memory.max_bytes = limit_bytes
    refused = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    for offsets, metadata, error in (
        ({("events", 0): 2, ("events", 1): 2}, "abc", ErrorCode.NONE),
        ({("events", 0): 2, ("events", 1): 2}, "abcd", refused),
        ({("events", 9): 2}, "", refused),
        ({("events", 0): 2}, "ab", ErrorCode.NONE),
    ):
        assert error_of(groups.commit(offsets, metadata=metadata)) is error
    assert kept_bytes(groups) == limit_bytes - 1


@pytest.mark.parametrize(("missing_bytes", "is_taken"), [(0, True), (1, False)])
def test_one_more_offset_needs_room_for_itself(missing_bytes: int, is_taken: bool) -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    group_bytes = kept_bytes(groups)
    groups.coordinator._memory.max_bytes = 2 * group_bytes + OFFSET_BYTES - missing_bytes
    error = ErrorCode.NONE if is_taken else ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert error_of(groups.commit({("events", 1): 1})) is error
    assert kept_bytes(groups) == group_bytes + (OFFSET_BYTES if is_taken else 0)
