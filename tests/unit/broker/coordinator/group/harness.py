"""A group coordinator on partitions in memory: requests go straight to the state machine.

    groups = Groups(is_committing_at_once=True)
    member = groups.member("team")          # a consumer that joins, syncs and beats
    member.join(); groups.advance(3000)
    member.sync({member.member_id: b"all"})

Each request returns a `Caller`, whose `answer` is set when the coordinator has answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from moldau.broker.coordinator.core.result import Producer, TransactionEnd
from moldau.broker.coordinator.expression_matcher import ExpressionMatcher, ThreadWorker
from moldau.broker.coordinator.group.coordinator import GroupCoordinator
from moldau.broker.coordinator.group.core.context import ClientInfo
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.offset_requests import (
    prepare_commit,
    prepare_transactional,
)
from moldau.broker.coordinator.group.core.state import GroupState
from moldau.config import BROKER_KEYS
from moldau.metadata.steps import at_once
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import (
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
)
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.messages.p47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from moldau.protocol.records import decode_records, iter_batches
from moldau.protocol.types import ZERO_UUID
from tests.unit.broker.coordinator.harness import BROKER_ID, Caller, MemoryBroker

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3000
CLIENT = ClientInfo("client", "/127.0.0.1")


def topic_id_of(name: str) -> UUID:
    """Every topic of a test has its own id."""
    return UUID(int=int.from_bytes(name.encode()[:8].rjust(8)))


def subscription(*topics: str) -> bytes:
    """What a consumer says about itself."""
    return b"\0\0" + ConsumerProtocolSubscription(topics=list(topics)).to_bytes(0)


class Groups:
    """One broker's group coordinator, leading every partition of its topic.

    `config` are configuration keys with underscores for the dots.
    """

    def __init__(
        self,
        *,
        partition_count: int = 1,
        is_committing_at_once: bool = True,
        is_led: bool = True,
        **config: Any,
    ) -> None:
        self.broker = MemoryBroker(
            CONSUMER_OFFSETS,
            partition_count=partition_count,
            is_committing_at_once=is_committing_at_once,
        )
        values = {name: key.default_value for name, key in BROKER_KEYS.items()}
        for name, value in config.items():
            values[name.replace("_", ".")] = value
        self.coordinator = GroupCoordinator(
            values,  # type: ignore[arg-type]
            self.broker.ports,
            image=lambda: self.broker.image,
            random=random.Random(7),
            matcher=ExpressionMatcher(
                self.broker.clock, ThreadWorker(self.broker.clock, self._offload)
            ),
        )
        self.start_look_ups_with(lambda work, name: work.close())
        self.broker.attach(self.coordinator)
        if is_led:
            self.broker.elect_all()

    def start_look_ups_with(self, start: Callable[[Any, str], None]) -> None:
        """The runtime goes on to start its own work."""
        self.coordinator._ports = self.broker.ports._replace(start=start)

    async def _offload(self, function: Callable[..., Any], *args: Any) -> Any:
        """Each call is one step of a look-up."""
        await asyncio.sleep(0)
        return function(*args)

    @property
    def state(self) -> GroupState:
        """The state machine of partition 0."""
        return dict(self.coordinator.runtime.states())[0]

    @property
    def log(self) -> Any:
        """The log of partition 0."""
        return self.broker.partition(0)

    @property
    def timers(self) -> list[tuple[str, str]]:
        """The running timers of groups of partition 0: kind and member id, in order."""
        keys = self.coordinator.runtime._shards[0]._timers
        of_groups: list[Any] = [key for key in keys if not isinstance(key, str)]
        return sorted((key.kind, key.member_id) for key in of_groups)

    @property
    def written_count(self) -> int:
        """Records in the log of partition 0, but for those that prove the leadership for a refusal,
        which say nothing.
        """
        proof = CONSUMER_OFFSETS.encode_key(CONSUMER_OFFSETS.unused_key)
        return sum(
            record.key != proof
            for batch in self.log.batches
            for position, _ in iter_batches(batch)
            for record in decode_records(batch, position)
        )

    @property
    def now_ms(self) -> float:
        return float(self.broker.clock.now_ms())

    def advance(self, elapsed_ms: float) -> None:
        """Let time pass; timers run."""
        self.broker.advance(elapsed_ms)

    def fail_over(self, *, keep: int | None = None) -> None:
        """Another broker leads and gives everything back; what lies from `keep` on is lost."""
        self.broker.depose(0, keep=keep)
        self.broker.elect(0)

    def create_topic(
        self, name: str, partition_count: int = 2, topic_id: UUID | None = None
    ) -> None:
        topic_id = topic_id_of(name) if topic_id is None else topic_id
        self.broker.replay(
            TopicRecord(name=name, topic_id=topic_id),
            *[
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=[BROKER_ID],
                    isr=[BROKER_ID],
                    leader=BROKER_ID,
                )
                for index in range(partition_count)
            ],
        )

    def delete_topic(self, name: str) -> None:
        self.broker.replay(RemoveTopicRecord(topic_id=topic_id_of(name)))

    def group_state(self, group_id: str = "team") -> str:
        group = self.state.groups.get(group_id)
        return "Dead" if group is None else str(group.state_name)

    # -- requests --------------------------------------------------------------------------------

    def call(self, group_id: str, operation: Any, caller: Caller | None = None) -> Caller:
        """Run `operation(state, caller, now_ms)` where the group is kept."""
        caller = caller or Caller(group_id)
        error = self.coordinator.runtime.call(
            group_id, lambda state, now_ms: operation(state, caller, now_ms)
        )
        if error is not ErrorCode.NONE:
            caller.respond(error)
        return caller

    def member(self, group_id: str = "team", **options: Any) -> Member:
        return Member(self, group_id, **options)

    def stable(self, count: int = 1, group_id: str = "team", **options: Any) -> list[Member]:
        """A group of `count` members, whose first generation is complete."""
        members = [self.member(group_id, **options) for _ in range(count)]
        for member in members:
            member.join()
        self.advance(INITIAL_DELAY_MS)
        while not all(member.joining.is_answered for member in members):
            self.advance(INITIAL_DELAY_MS)
        finish_rebalance(members)
        return members

    def commit(
        self,
        offsets: Mapping[tuple[str, int], int],
        group_id: str = "team",
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
        topic_id: UUID = ZERO_UUID,
    ) -> Caller:
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        limits = self.coordinator.commit_limits(group_id)
        return self.call(
            group_id,
            lambda state, to, now_ms: state.offset_requests.commit(
                request, at_once(prepare_commit(request, limits, now_ms)), version, to
            ),
        )

    def commit_transactional(
        self,
        offsets: Mapping[tuple[str, int], int],
        group_id: str = "team",
        *,
        producer: tuple[int, int] = (70, 0),
        member_id: str = "",
        generation: int = -1,
        metadata: str | None = "",
    ) -> Caller:
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=group_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id=generation,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        caller = Caller("txn")
        limits = self.coordinator.commit_limits(group_id)
        prepared = at_once(prepare_transactional(request, limits, self.broker.clock.now_ms()))
        self.coordinator.ask(
            group_id,
            caller,
            lambda state, _now_ms: state.offset_requests.commit(request, prepared, 5, caller),
            prepared.refused,
        )
        return caller

    def end_transaction(
        self, producer: tuple[int, int] = (70, 0), *, is_commit: bool = True
    ) -> Caller:
        caller = Caller("marker")
        self.coordinator.runtime.complete_transaction(
            0, TransactionEnd(Producer(*producer), is_commit, 0, 0), caller.respond
        )
        return caller

    def fetch(
        self,
        partitions: Mapping[str, list[int]] | None = None,
        group_id: str = "team",
        *,
        require_stable: bool = False,
        topic_id: UUID = ZERO_UUID,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Caller:
        topics = None
        if partitions is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=indexes)
                for topic, indexes in partitions.items()
            ]
        request = OffsetFetchRequestGroup(
            group_id=group_id, member_id=member_id, member_epoch=member_epoch, topics=topics
        )
        return self.call(
            group_id,
            lambda state, to, _now_ms: state.offset_requests.fetch(
                request, to, require_stable=require_stable
            ),
        )

    def offset(self, topic: str, partition: int, group_id: str = "team") -> int:
        """The committed offset, -1 for none."""
        answer = self.fetch({topic: [partition]}, group_id).answer
        return int(answer.topics[0].partitions[0].committed_offset)

    def delete_offsets(self, partitions: Mapping[str, list[int]], group_id: str = "team") -> Caller:
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                    ],
                )
                for topic, indexes in partitions.items()
            ],
        )
        return self.call(
            group_id, lambda state, to, _now_ms: state.offset_requests.delete(request, to)
        )

    def delete_group(self, group_id: str = "team") -> Caller:
        return self.call(group_id, lambda state, to, _now_ms: state.delete_group(group_id, to))

    def describe(self, group_id: str = "team", version: int = 6) -> Any:
        caller = self.call(
            group_id,
            lambda state, to, _now_ms: state.describe_group(group_id, version, to),
        )
        return caller.answer

    def leave(self, *members: tuple[str, str | None], group_id: str = "team") -> Caller:
        """Leave by (member id, instance id)."""
        request = LeaveGroupRequest(
            group_id=group_id,
            members=[
                MemberIdentity(member_id=member_id, group_instance_id=instance_id)
                for member_id, instance_id in members
            ],
        )
        answers = [
            MemberResponse(
                member_id=member_id,
                group_instance_id=instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for member_id, instance_id in members
        ]
        return self.call(
            group_id,
            lambda state, to, now_ms: state.protocol_of(group_id).leave_group(
                request, to, now_ms, answers
            ),
        )


class Member:
    """A client of the classic protocol. `joining` and `syncing` are its last requests."""

    def __init__(
        self,
        groups: Groups,
        group_id: str = "team",
        *,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> None:
        self.groups = groups
        self.group_id = group_id
        self.instance_id = instance_id
        self.protocols = dict(protocols or {"range": subscription("events")})
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.joining = Caller()
        self.syncing = Caller()

    def ask_to_join(self) -> Caller:
        """One JoinGroup request, as it is."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
        )
        self.joining = self.groups.call(
            self.group_id,
            lambda state, to, now_ms: state.join_group(
                at_once(Joining.read(request, self.version, CLIENT, to)), now_ms
            ),
        )
        return self.joining

    def join(self) -> Caller:
        """Join, with the id that is handed out first."""
        self.ask_to_join()
        if self.joining.is_answered:
            answer = self.joining.answer
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self.ask_to_join()
        return self.joining

    def joined(self) -> Any:
        """Take over what the answer to JoinGroup says."""
        answer = self.joining.answer
        assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code)
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        return answer

    def sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> Caller:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=changes.get("generation", self.generation),
            member_id=changes.get("member_id", self.member_id),
            group_instance_id=changes.get("instance_id", self.instance_id),
            protocol_type=changes.get("protocol_type"),
            protocol_name=changes.get("protocol_name"),
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        self.syncing = self.groups.call(
            self.group_id,
            lambda state, to, _now_ms: state.protocol_of(self.group_id).sync_group(request, to),
        )
        return self.syncing

    def heartbeat(self, **changes: Any) -> ErrorCode:
        return error_of(self.beat(**changes))

    def beat(self, **changes: Any) -> Caller:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=changes.get("generation", self.generation),
            member_id=changes.get("member_id", self.member_id),
            group_instance_id=changes.get("instance_id", self.instance_id),
        )
        return self.groups.call(
            self.group_id,
            lambda state, to, now_ms: state.protocol_of(self.group_id).heartbeat(
                request, to, now_ms
            ),
        )

    def leave(self) -> Caller:
        return self.groups.leave((self.member_id, None), group_id=self.group_id)

    def commit(self, offsets: Mapping[tuple[str, int], int], **options: Any) -> Caller:
        return self.groups.commit(
            offsets,
            self.group_id,
            **{
                "member_id": self.member_id,
                "generation": self.generation,
                "instance_id": self.instance_id,
                **options,
            },
        )


def finish_rebalance(members: list[Member]) -> None:
    """All of them have been answered their JoinGroup: sync, the leader with a share for each."""
    leader_id = ""
    for member in members:
        leader_id = member.joined().leader
    shares = {member.member_id: f"share of {member.member_id}".encode() for member in members}
    for member in members:
        member.sync(shares if member.member_id == leader_id else None)


def error_of(caller: Caller) -> ErrorCode:
    """The answer's error: its own, or that of its only partition, member or group."""
    answer = caller.answer
    if isinstance(answer, ErrorCode):
        return answer
    if getattr(answer, "error_code", 0):
        return ErrorCode.of(answer.error_code)
    for topic in getattr(answer, "topics", []):
        for partition in topic.partitions:
            return ErrorCode.of(partition.error_code)
    return ErrorCode.NONE
