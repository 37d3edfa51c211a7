"""Consumer groups (KIP-848) on a coordinator in memory, and clients that speak the protocol.

    groups = ConsumerShard()                    # a `Groups` whose look-ups run at once
    groups.create_topic("events", 4)
    member = groups.consumer("team", ["events"])
    member.join(); member.owned                 # {"events": {0, 1, 2, 3}}

A `Consumer` does what the protocol asks of a client: it heartbeats, gives back what it is asked to,
and says so. `release_slowly` makes it keep what it should give back until `release()`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_groups import refused_heartbeat
from moldau.broker.coordinator.group.core.context import ClientInfo, Refusal
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from moldau.protocol.messages.p69_consumer_group_describe import DescribedGroup
from moldau.protocol.metadata_records import ConfigRecord, PartitionRecord
from tests.unit.broker.coordinator.group.harness import Groups, topic_id_of
from tests.unit.broker.coordinator.harness import BROKER_ID, Caller

SESSION_MS = 45_000
INTERVAL_MS = 5000
REBALANCE_MS = 60_000
GROUP = 32


class ConsumerShard(Groups):
    """`Groups` with look-ups of regular expressions, growing topics and group configuration."""

    def __init__(self, **config: Any) -> None:
        config.setdefault("group_consumer_assignment_interval_ms", 0)
        super().__init__(**config)
        self.holds_lookups = False
        self.lookups: list[Coroutine[Any, Any, None]] = []
        self.lookup_steps = 0
        self.longest_step_ms = 0.0
        self.start_look_ups_with(self._start)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        del name
        self.lookups.append(work)
        if not self.holds_lookups:
            self.run_lookups()

    def run_lookups(self) -> None:
        """Let all look-ups that were begun come to their end."""
        while self.lookups:
            work = self.lookups.pop()
            while True:
                self.lookup_steps += 1
                begun_ms = self.broker.clock.monotonic_ms()
                try:
                    work.send(None)
                except StopIteration:
                    break
                finally:
                    step_ms = self.broker.clock.monotonic_ms() - begun_ms
                    self.longest_step_ms = max(self.longest_step_ms, step_ms)

    def grow_topic(self, name: str, first: int, partition_count: int) -> None:
        """Add partitions `first` up to `partition_count`."""
        self.broker.replay(
            *[
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id_of(name),
                    replicas=[BROKER_ID],
                    isr=[BROKER_ID],
                    leader=BROKER_ID,
                )
                for index in range(first, partition_count)
            ]
        )

    def configure(self, group_id: str, key: str, value: str | None) -> None:
        self.broker.replay(
            ConfigRecord(resource_type=GROUP, resource_name=group_id, name=key, value=value)
        )

    def consumer_group(self, group_id: str = "team") -> ConsumerGroup:
        group = self.state.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def consumer(self, group_id: str = "team", topics: Any = None, **options: Any) -> Consumer:
        return Consumer(self, group_id, topics, **options)

    def described(self, group_id: str = "team") -> DescribedGroup:
        caller = self.call(
            group_id,
            lambda state, to, _now_ms: state.consumer_groups.describe_group(group_id, to),
        )
        group = caller.answer
        assert isinstance(group, DescribedGroup)
        return group

    def settle(self, members: Iterable[Any], rounds: int = 12) -> None:
        """Heartbeat until nothing changes."""
        members = list(members)
        for _ in range(rounds):
            before = self.log.log_end_offset
            for member in members:
                member.heartbeat()
            if self.log.log_end_offset == before:
                return
        raise AssertionError("the group does not come to rest")


class Consumer:
    """A member of the new protocol. `owned` is what it may read, by topic name."""

    def __init__(
        self,
        groups: ConsumerShard,
        group_id: str = "team",
        topics: Iterable[str] | None = None,
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        member_id: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 1,
        authorize: Any = None,
    ) -> None:
        self.groups = groups
        self.group_id = group_id
        self.topics = list(topics) if topics is not None else None
        self.regex = regex
        self.instance_id = instance_id
        self.member_id = groups.coordinator._random_id() if member_id is None else member_id
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.client = ClientInfo("client", "/127.0.0.1", authorize)
        self.epoch = 0
        self.owned: dict[str, set[int]] = {}
        self.assigned: dict[str, set[int]] = {}
        self.is_slow = False
        self.last: Any = None

    def ask(self, **changes: Any) -> Any:
        """Send one heartbeat with `changes` to a minimal one; returns the response."""
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            **changes,
        }
        request = ConsumerGroupHeartbeatRequest(**values)
        try:
            self.groups.coordinator.check_heartbeat(request, self.version)
        except Refusal as refusal:
            self.last = Caller()
            self.last.respond(refused_heartbeat(refusal))
            return self.last.answer
        caller = self.groups.call(
            self.group_id,
            lambda state, to, now_ms: state.consumer_groups.consumer_group_heartbeat(
                request, self.client, to, now_ms
            ),
        )
        self.last = caller
        return caller.answers[0] if caller.answers else None

    def error(self, **changes: Any) -> ErrorCode:
        return ErrorCode.of(self.ask(**changes).error_code)

    def full(self) -> dict[str, Any]:
        return {
            "rebalance_timeout_ms": self.rebalance_ms,
            "subscribed_topic_names": self.topics,
            "subscribed_topic_regex": self.regex,
            "server_assignor": self.assignor,
            "topic_partitions": self.to_wire(),
        }

    def to_wire(self) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=topic_id_of(name), partitions=sorted(partitions))
            for name, partitions in sorted(self.owned.items())
            if partitions
        ]

    def join(self, **changes: Any) -> Any:
        """Join, owning nothing."""
        self.epoch, self.owned, self.assigned = 0, {}, {}
        return self._take(self.ask(**{**self.full(), **changes}))

    def heartbeat(self, **changes: Any) -> Any:
        """What a client sends when its interval is over: everything it has, every time."""
        answer = self.ask(**{"topic_partitions": self.to_wire(), **changes})
        return self._take(answer)

    def leave(self, epoch: int = -1) -> ErrorCode:
        answer = self.ask(member_epoch=epoch)
        self.owned, self.assigned = {}, {}
        return ErrorCode.NONE if answer is None else ErrorCode.of(answer.error_code)

    def release(self) -> None:
        """Give back what it must not have any more."""
        self.owned = {
            name: kept
            for name, partitions in self.owned.items()
            if (kept := partitions & self.assigned.get(name, set()))
        }
        for name, partitions in self.assigned.items():
            self.owned.setdefault(name, set()).update(partitions)

    def _take(self, answer: Any) -> Any:
        error = ErrorCode.of(answer.error_code)
        if error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.assigned = 0, {}, {}
            return answer
        if error is not ErrorCode.NONE:
            return answer
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id
        if answer.assignment is not None:
            self.assigned = {
                name_of(topic.topic_id): set(topic.partitions)
                for topic in answer.assignment.topic_partitions
            }
            if not self.is_slow:
                self.release()
        return answer


def name_of(topic_id: UUID) -> str:
    """The inverse of `topic_id_of`."""
    return topic_id.int.to_bytes(8).lstrip(b"\0 ").decode()
