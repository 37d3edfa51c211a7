"""A consumer group of the new protocol (KIP-848), as one member sees it: its heartbeats.

Owns the way of ConsumerGroupHeartbeat to the coordinator and back. Must not decide what is in it
(`core.consumer_member` does) nor touch what the user consumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from moldau.client.consumer.core.consumer_member import ConsumerMember
from moldau.client.consumer.core.rebalance_steps import Assign
from moldau.client.consumer.group_link import MEMBERSHIP, OFFSETS, GroupLink
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

REGEX_VERSION: Final = 1
"""From which version on a heartbeat can carry a regular expression."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and to which of the member's heartbeats."""

    attempt: int
    response: Any


class ConsumerGroup:
    """The heartbeats of one member."""

    def __init__(self, link: GroupLink, member: ConsumerMember) -> None:
        self.member: Final = member
        self._link = link

    def before_assign(self, step: Assign) -> None:
        """Nobody else has to hear of it."""

    async def send(self, attempt: int, message: ConsumerGroupHeartbeatRequest) -> Answer:
        """Send a heartbeat, without touching the member. Raises as `GroupLink.ask`."""
        lowest = REGEX_VERSION if message.subscribed_topic_regex is not None else 0
        response = await self._link.ask(
            ConsumerGroupHeartbeatRequest,
            lambda version: message,
            purpose=MEMBERSHIP,
            versions=(lowest, ConsumerGroupHeartbeatRequest.MAX_VERSION),
        )
        return Answer(attempt, response)

    def accept(self, answer: Answer, now_ms: float) -> None:
        """Tell the member what was answered."""
        response = answer.response
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            self.member.refused(answer.attempt, now_ms, code, response.error_message)
            return
        target = None
        if response.assignment is not None:
            target = [
                (each.topic_id, partition)
                for each in response.assignment.topic_partitions
                for partition in each.partitions
            ]
        self.member.answered(
            answer.attempt,
            now_ms,
            member_id=response.member_id,
            member_epoch=response.member_epoch,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            target=target,
        )

    async def leave(self, message: ConsumerGroupHeartbeatRequest) -> None:
        """Say good-bye; nobody cares for its answer. Raises as `GroupLink.ask`."""
        await self._link.ask(
            ConsumerGroupHeartbeatRequest, lambda version: message, purpose=OFFSETS
        )
