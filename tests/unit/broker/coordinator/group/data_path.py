"""A broker's data path with a loaded `__consumer_offsets`, and the requests of groups.

Bytes in, bytes out, a log on disk. Groups start without delay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.group.harness import subscription
from tests.unit.broker.coordinator.harness import create_internal_topic
from tests.unit.broker.harness import DataPath, topic_id_of

SESSION_MS = 6000


class Refusing(Authorizer):
    """Refuses one operation on one kind of resource, or on a single one of them."""

    def __init__(self, operation: Operation, kind: ResourceType, name: str | None = None) -> None:
        self._refused = operation, kind
        self._name = name

    def authorize(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        return (operation, kind) != self._refused or self._name not in (None, name)


@asynccontextmanager
async def running_broker(directory: Path, **options: Any) -> AsyncIterator[DataPath]:
    """With the topic `events` and a loaded `__consumer_offsets`; groups start without delay."""
    async with DataPath(directory, group_initial_rebalance_delay_ms=0, **options) as broker:
        broker.create_topic("events", 2)
        create_internal_topic(broker, CONSUMER_OFFSETS, 2)
        await loaded(broker, 2)
        yield broker


async def loaded(broker: DataPath, partition_count: int) -> None:
    runtime = broker.services.coordinators.groups.runtime
    await until_async(lambda: len(list(runtime.states())) == partition_count)


SYNCED_PROTOCOL: Final[dict[str, Any]] = {"protocol_type": "consumer", "protocol_name": "range"}
"""What SyncGroup has to tell since version 5; older versions leave it out."""


def join_request(**changes: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": "team",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("events"))],
    }
    return JoinGroupRequest(**{**values, **changes})


async def join(broker: DataPath, version: int = 9, **changes: Any) -> Any:
    """Become a member; the answer."""
    request = broker.send(join_request(**changes), version)
    broker.manager.complete_ready()
    if request.is_answered and request.response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        changes["member_id"] = request.response.member_id
        request = broker.send(join_request(**changes), version)
    await ticked(broker, lambda: request.is_answered)
    return request.response


async def ticked(broker: DataPath, condition: Any) -> None:
    """Let timers run until `condition` holds."""

    def holds() -> bool:
        broker.clock.advance(250)
        broker.manager.complete_ready()
        return bool(condition())

    await until_async(holds)


async def stable(broker: DataPath, version: int = 5, **changes: Any) -> Any:
    """A group of one; what its member was answered when it joined."""
    member = await join(broker, **changes)
    answer = await broker.ask(
        SyncGroupRequest(
            group_id=changes.get("group_id", "team"),
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=changes.get("group_instance_id"),
            **SYNCED_PROTOCOL,
            assignments=[
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"share")
            ],
        ),
        version,
    )
    assert answer.error_code == ErrorCode.NONE
    assert answer.assignment == b"share"
    return member


def commit_request(
    offsets: dict[tuple[str, int], int], version: int = 9, **changes: Any
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        **{"group_id": "team", **changes},
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id_of(topic),
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                ],
            )
            for (topic, partition), offset in offsets.items()
        ],
    )


def errors(response: Any) -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]
