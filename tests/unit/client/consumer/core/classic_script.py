"""A member of a classic group on its way: the steps that scripts are made of."""

from __future__ import annotations

from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.rebalance_steps import Assign, GroupRequest, PollWatch, Revoke
from moldau.client.records import TopicPartition
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode


class Script:
    """A member with a clock, and the usual ways of a group."""

    def __init__(self, *, cooperative: bool = False, instance_id: str | None = None) -> None:
        self.now_ms = 0.0
        self.calls = 0
        self.watch = PollWatch(1_000.0, 0.0)
        self.member = ClassicMember(
            group_instance_id=instance_id,
            cooperative=cooperative,
            heartbeat_interval_ms=100.0,
            session_timeout_ms=500.0,
            poll_watch=self.watch,
            backoff=Backoff(10.0, 1_000.0),
            on_attention=self._attend,
        )
        self.member.subscribe(frozenset({"t"}))

    def _attend(self) -> None:
        self.calls += 1

    def send(self, expected: GroupRequest) -> int:
        assert self.member.next_request(self.now_ms) is expected
        return self.member.sent(expected, self.now_ms)

    def refuse(self, request: GroupRequest, code: ErrorCode, member_id: str = "") -> None:
        attempt = self.send(request)
        self.member.refused(attempt, self.now_ms, request, code, member_id=member_id)

    def prepare(self, *given_up: TopicPartition) -> None:
        step = self.member.next_step(self.now_ms)
        assert step == Revoke(frozenset(given_up))
        self.member.revoked(step.partitions, self.now_ms)

    def prepare_again(self) -> None:
        """The coordinator announces a rebalance; nothing is given up before it."""
        self.now_ms += 100
        self.refuse(GroupRequest.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
        self.prepare()

    def join(self, generation_id: int, *partitions: TopicPartition) -> None:
        attempt = self.send(GroupRequest.JOIN)
        assert self.member.joined(
            attempt, self.now_ms, generation_id=generation_id, member_id="m", is_leader=False
        )
        attempt = self.send(GroupRequest.SYNC)
        self.member.synced(attempt, self.now_ms, frozenset(partitions))

    def take_over(self) -> Assign:
        step = self.member.next_step(self.now_ms)
        assert isinstance(step, Assign)
        self.member.assigned(step, self.now_ms)
        self.member.acknowledge(self.now_ms)
        return step

    def enter(self, generation_id: int, *partitions: TopicPartition) -> None:
        self.prepare()
        self.join(generation_id, *partitions)
        self.take_over()
