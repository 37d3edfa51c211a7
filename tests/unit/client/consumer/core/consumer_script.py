"""A member of the new protocol on its way: the steps that scripts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from moldau.client.consumer.core.consumer_member import ConsumerMember, Wish
from moldau.client.consumer.core.rebalance_steps import (
    Assign,
    GroupRequest,
    Lose,
    PollWatch,
    Revoke,
)
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.unit.client.consumer.core.consumer_walk import heartbeat_response

T, U = UUID(int=1), UUID(int=2)


class Script:
    """A member with a clock."""

    def __init__(self, *, instance_id: str | None = None, wish: Wish | None = None) -> None:
        self.now_ms = 0.0
        self.calls = 0
        self.names = {T: "t"}
        self.watch = PollWatch(1_000.0, 0.0)
        self.member = ConsumerMember(
            group_id="g",
            member_id="me",
            group_instance_id=instance_id,
            rack_id="rack",
            server_assignor="uniform",
            poll_watch=self.watch,
            backoff=Backoff(10.0, 100.0),
            name_of=self.names.get,
            on_attention=self._attend,
        )
        self.member.subscribe(wish or Wish(frozenset({"t"})))

    def _attend(self) -> None:
        self.calls += 1

    def send(self) -> tuple[int, ConsumerGroupHeartbeatRequest]:
        assert self.member.next_request(self.now_ms) is GroupRequest.HEARTBEAT
        return self.member.sent(self.now_ms)

    def answer(
        self, attempt: int, epoch: int, target: Iterable[tuple[UUID, int]] | None = None
    ) -> None:
        self.member.answered(attempt, self.now_ms, heartbeat_response(epoch, target))

    def beat(
        self, epoch: int, target: Iterable[tuple[UUID, int]] | None = None
    ) -> ConsumerGroupHeartbeatRequest:
        attempt, request = self.send()
        self.answer(attempt, epoch, target)
        return request

    def refuse(self, code: ErrorCode) -> None:
        attempt, _ = self.send()
        self.member.refused(attempt, self.now_ms, code)

    def step(self) -> object:
        """Carry out the next step."""
        step = self.member.next_step(self.now_ms)
        match step:
            case Revoke(partitions):
                self.member.revoked(partitions, self.now_ms)
            case Lose(partitions):
                self.member.lost(partitions, self.now_ms)
            case Assign():
                self.member.assigned(step, self.now_ms)
                self.member.acknowledge(self.now_ms)
        return step

    def enter(self, *partitions: int) -> None:
        self.beat(1, [(T, each) for each in partitions])
        assert isinstance(self.step(), Assign)
        self.beat(1)
