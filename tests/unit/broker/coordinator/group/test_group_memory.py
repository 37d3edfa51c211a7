"""The memory of groups is limited: a principal takes no more than it leaves, and others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequestProtocol
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from tests.unit.broker.coordinator.group.data_path import (
    commit_request,
    errors,
    join,
    join_request,
    running_broker,
    stable,
    ticked,
)
from tests.unit.broker.harness import DataPath

MAX_BYTES = 40_000
METADATA = "m" * 2_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with running_broker(tmp_path, moldau_group_coordinator_max_bytes=MAX_BYTES) as data_path:
        data_path.replay(FeatureLevelRecord(name="group.version", feature_level=1))
        yield data_path


def used_bytes(broker: DataPath) -> int:
    """Checked against what there is."""
    coordinator = broker.services.coordinators.groups
    limit = coordinator._memory
    found = 0
    for _, state in coordinator.runtime.states():
        for group_id, group in state.groups.items():
            members = group.members.values()
            found += state.offsets.size_bytes(group_id) + group.size_bytes
            assert group._members_bytes == sum(each.size_bytes for each in members)
        assert set(state._memory._kept) == set(state.groups)
    assert limit.used_bytes == found
    return limit.used_bytes


def commit(group_id: str, metadata: str = METADATA) -> OffsetCommitRequest:
    request = commit_request({("events", 0): 1, ("events", 1): 1}, group_id=group_id)
    for each in request.topics[0].partitions + request.topics[1].partitions:
        each.committed_metadata = metadata
    return request


async def committed(broker: DataPath, principal: str, *group_ids: str) -> list[int]:
    """The error of each group's commit."""
    broker.connection.principal = principal
    return [max(errors(await broker.ask(commit(each), 8))) for each in group_ids]


TOO_MUCH = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


async def test_offsets_of_one_principal_leave_room_for_others(broker: DataPath) -> None:
    greedy = [f"greedy-{n}" for n in range(6)]
    assert await committed(broker, "User:greedy", *greedy) == [0, 0, 0] + [TOO_MUCH] * 3
    assert await committed(broker, "User:good", "good-0", "good-1") == [0, TOO_MUCH]
    # What exists can be written again, and be removed; then there is room once more.
    broker.connection.principal = "User:greedy"
    assert errors(await broker.ask(commit("greedy-0"), 8)) == [0, 0]
    assert errors(await broker.ask(commit("greedy-0", METADATA + "m"), 8)) == [TOO_MUCH] * 2
    used = used_bytes(broker)
    assert errors(await broker.ask(commit("greedy-0", ""), 8)) == [0, 0]
    assert used_bytes(broker) == used - 2 * len(METADATA)
    deleted = await broker.ask(DeleteGroupsRequest(groups_names=["greedy-0", "greedy-1"]), 2)
    assert {each.error_code for each in deleted.results} == {ErrorCode.NONE}
    assert await committed(broker, "User:greedy", "greedy-5") == [0]


async def test_offsets_of_open_transactions_count(broker: DataPath) -> None:
    before = used_bytes(broker)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="team",
        producer_id=5,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="events",
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata=METADATA
                    )
                ],
            )
        ],
    )
    state = await stored(broker, request)
    assert used_bytes(broker) > before + len(METADATA)
    pending = used_bytes(broker)
    (producer,) = state.offsets._pending
    state.replay_end_marker(type("P", (), {"producer_id": producer})(), is_commit=True)
    assert used_bytes(broker) == pending


async def stored(broker: DataPath, request: TxnOffsetCommitRequest) -> Any:
    """The state that keeps a transactional commit, past the coordinator of transactions."""
    coordinator = broker.services.coordinators.groups
    from moldau.broker.coordinator.core.result import CallbackReply
    from moldau.broker.coordinator.group.core.offset_requests import prepare_transactional
    from moldau.metadata.steps import at_once

    prepared = at_once(
        prepare_transactional(request, coordinator.commit_limits("team"), 1.0, "User:a")
    )
    answers: list[Any] = []
    reply = CallbackReply(answers.append)
    coordinator.ask(
        "team",
        reply,
        lambda state, _now: state.offset_requests.commit(request, prepared, 3, reply),
        prepared.refused,
    )
    await ticked(broker, lambda: answers)
    assert errors(answers[0]) == [0]
    return next(state for _, state in coordinator.runtime.states() if "team" in state.groups)


async def test_metadata_of_classic_members_count(broker: DataPath) -> None:
    """`group.max.size` has no limit by default, and a JoinGroup may have 100 MB."""
    big = [JoinGroupRequestProtocol(name="range", metadata=b"m" * 16_000)]
    broker.connection.principal = "User:greedy"
    first = await stable(broker, group_id="one", protocols=big)
    refused = await broker.ask(join_request(group_id="two", protocols=big), 9)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert used_bytes(broker) > 16_000
    # A member that exists comes back as it is; in another's group nothing is in its way.
    assert (await join(broker, group_id="one", member_id=first.member_id)).error_code == 0
    broker.connection.principal = "User:good"
    assert (await stable(broker, group_id="good")).member_id
    left = await broker.ask(
        LeaveGroupRequest(group_id="one", members=[MemberIdentity(member_id=first.member_id)]), 5
    )
    assert left.error_code == 0
    await ticked(broker, lambda: used_bytes(broker) < 12_000)


async def test_members_of_consumer_groups_count(broker: DataPath) -> None:
    def joins(group_id: str, member_id: str, count: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[f"topic-{n}" for n in range(count)],
            topic_partitions=[],
        )

    broker.connection.principal = "User:greedy"
    assert (await broker.ask(joins("team", "m", 100), 1)).error_code == 0
    used = used_bytes(broker)
    assert used > 100 * len("topic-99")
    refused = await broker.ask(joins("team", "n", 200), 1)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    broker.connection.principal = "User:good"
    assert (await broker.ask(joins("other", "o", 10), 1)).error_code == 0
    leaves = joins("team", "m", 0)
    leaves.member_epoch = -1
    assert (await broker.ask(leaves, 1)).error_code == 0
    assert used_bytes(broker) < used


async def test_what_a_coordinator_loses_it_gives_back(broker: DataPath) -> None:
    await committed(broker, "User:greedy", "a", "b")
    await stable(broker, group_id="c")
    used = used_bytes(broker)
    coordinator = broker.services.coordinators.groups
    for partition_index, _ in list(coordinator.runtime.states()):
        coordinator.runtime._unload(partition_index)
    assert coordinator._memory.used_bytes == 0
    assert used > 0
