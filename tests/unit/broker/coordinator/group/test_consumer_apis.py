"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through a broker's data path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import re2

from moldau.broker.coordinator.expression_matcher import REST_PER_COMPILATION
from moldau.broker.coordinator.group.coordinator import MAX_LOOK_UP_TASKS
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from moldau.protocol.messages.p69_consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.group.data_path import Refusing, running_broker, stable
from tests.unit.broker.harness import DataPath, topic_id_of


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with running_broker(tmp_path) as data_path:
        enable(data_path)
        yield data_path


def enable(broker: DataPath, level: int = 1) -> None:
    broker.replay(FeatureLevelRecord(name="group.version", feature_level=level))


def heartbeat(**changes: Any) -> ConsumerGroupHeartbeatRequest:
    values: dict[str, Any] = {
        "group_id": "new",
        "member_id": "member-1",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["events"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**values, **changes})


def resolved(broker: DataPath, group_id: str) -> Any:
    """The expressions of a group whose topics are known."""
    for _partition_index, state in broker.services.coordinators.groups.runtime.states():
        if group_id in state.groups:
            return state.groups[group_id].resolved
    return {}


async def described(broker: DataPath, version: int, *group_ids: str, **options: Any) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=list(group_ids), **options)
    return (await broker.ask(request, version)).groups


async def test_both_in_every_version(broker: DataPath) -> None:
    for version in (0, 1):
        group_id = f"new-{version}"
        answer = await broker.ask(heartbeat(group_id=group_id), version)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 2)
        (topic,) = answer.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (topic_id_of("events"), [0, 1])
        (group,) = await described(broker, version, group_id)
        assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Stable")
        assert group.members[0].member_type == (1 if version else -1)
        assert group.authorized_operations == -(2**31)


async def test_a_regular_expression_is_resolved(broker: DataPath) -> None:
    request = heartbeat(subscribed_topic_names=None, subscribed_topic_regex="ev.*")
    assert (await broker.ask(request, 1)).error_code == ErrorCode.NONE
    request = heartbeat(
        member_epoch=1, subscribed_topic_names=None, rebalance_timeout_ms=-1, topic_partitions=[]
    )

    await until_async(lambda: "ev.*" in resolved(broker, "new"))
    broker.clock.advance(1000)
    answer = await broker.ask(request, 1)
    assert [each.partitions for each in answer.assignment.topic_partitions] == [[0, 1]]


async def test_look_ups_of_many_groups_have_few_tasks_and_take_turns(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group's would hold all names of topics; one user's groups do not delay another's."""
    coordinator = broker.services.coordinators.groups
    begun: list[str] = []
    resolve, gate = coordinator._resolve, asyncio.Event()

    async def resolve_later(partition_index: int, command: Any) -> None:
        begun.append(command.group_id)
        await gate.wait()
        await resolve(partition_index, command)

    monkeypatch.setattr(coordinator, "_resolve", resolve_later)
    monkeypatch.setattr(coordinator._look_ups, "max_count", 6)

    async def joins(group_id: str, member_epoch: int = 0) -> None:
        request = heartbeat(
            group_id=group_id,
            member_epoch=member_epoch,
            subscribed_topic_names=None,
            subscribed_topic_regex="ev.*",
        )
        assert (await broker.ask(request, 1)).error_code == ErrorCode.NONE

    broker.connection.principal = "User:greedy"
    greedy = [f"greedy-{number}" for number in range(14)]
    for group_id in greedy:
        await joins(group_id)
        if group_id == greedy[MAX_LOOK_UP_TASKS - 1]:
            await until_async(lambda: len(begun) == MAX_LOOK_UP_TASKS)
    broker.connection.principal = "User:good"
    await joins("good")
    assert len(broker.background) == MAX_LOOK_UP_TASKS
    assert len(coordinator._look_ups) == 6
    gate.set()
    await until_async(lambda: "ev.*" in resolved(broker, "good"))
    assert begun.index("good") <= MAX_LOOK_UP_TASKS + 1, "the second of those that waited"
    # Those that found no place are looked up with their next heartbeat.
    left_out = [group_id for group_id in greedy if group_id not in begun]
    assert len(left_out) == 14 - 4 - 5
    for group_id in left_out:
        await joins(group_id, 1)
    await until_async(lambda: all("ev.*" in resolved(broker, each) for each in greedy))


async def test_who_has_a_costly_expression_compiled_is_throttled_before_the_answer(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with_re2, taken_ms = re2.compile, 0.0

    def slowly(expression: str, options: Any) -> Any:
        broker.clock.stand_still(taken_ms)
        return compile_with_re2(expression, options)

    monkeypatch.setattr(re2, "compile", slowly)
    for taken_ms, rest_ms in ((0.0, 0), (3.0, 3 * REST_PER_COMPILATION)):
        for end in ("", "("):
            request = heartbeat(subscribed_topic_regex=f"costly-{taken_ms:.0f}-{end}")
            answered = broker.send(request, 1)
            assert broker.connection.throttled_ms == rest_ms
            await until_async(lambda sent=answered: sent.is_answered)
            assert answered.response.throttle_time_ms == rest_ms


@pytest.mark.parametrize("version", [0, 1])
async def test_without_the_feature_both_are_unsupported(tmp_path: Path, version: int) -> None:
    async with running_broker(tmp_path) as broker:
        answer = await broker.ask(heartbeat(), version)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        (group,) = await described(broker, version, "new")
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_broker_may_leave_the_protocol_out(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path, group_coordinator_rebalance_protocols=("classic",)
    ) as broker:
        enable(broker)
        answer = await broker.ask(heartbeat(), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_permissions(tmp_path: Path) -> None:
    for operation, kind, error in (
        (Operation.READ, ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (Operation.DESCRIBE, ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ):
        async with running_broker(
            tmp_path / error.name, authorizer=Refusing(operation, kind)
        ) as broker:
            enable(broker)
            assert (await broker.ask(heartbeat(), 1)).error_code == error


async def test_describing_needs_the_group_and_its_topics(broker: DataPath) -> None:
    await broker.ask(heartbeat(), 1)
    (group,) = await described(broker, 1, "new", include_authorized_operations=True)
    assert group.authorized_operations > 0
    broker.router._authorizer = Refusing(Operation.DESCRIBE, ResourceType.GROUP)
    (group,) = await described(broker, 1, "new")
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.router._authorizer = Refusing(Operation.DESCRIBE, ResourceType.TOPIC)
    (group,) = await described(broker, 1, "new")
    assert (group.error_code, group.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])


async def test_groups_that_cannot_be_described(broker: DataPath) -> None:
    await stable(broker)
    unknown, classic, nameless = await described(broker, 1, "unknown", "team", "")
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
