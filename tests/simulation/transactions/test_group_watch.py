"""When another member may read what one has not given up, which have to leave, and in which order
commits are sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.kit.seeds import Violation
from tests.simulation.transactions.group_log import Patience
from tests.simulation.transactions.group_watch import GroupWatch
from tests.simulation.transactions.ledger import TransactionLedger

TOPIC = UUID(int=1)
SESSION_S, REBALANCE_S = 3.0, 6.0


class Member:
    """One that has been assigned two partitions, at 0 seconds of a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._answer: ConsumerGroupHeartbeatResponse | OffsetCommitResponse | None = None
        self.ledger = TransactionLedger(Counter(), print, lambda: self.now, lambda _topic: TOPIC)
        self.ledger.topic_names[TOPIC] = "input"
        world: Any = SimpleNamespace(
            data=self.ledger,
            counts=Counter(),
            changing_groups=(),
            draws=SimpleNamespace(groups=False, levels=False, has_visitors=False),
            loop=SimpleNamespace(time=lambda: self.now),
            guard=lambda check, *arguments: check(*arguments),
            is_coordinator=lambda group, node_id: True,
        )
        self.watch = GroupWatch(
            *(world, "slow", "team", None),
            is_classic=False,
            patience=Patience(SESSION_S, REBALANCE_S),
        )
        self.link: Any = SimpleNamespace(ask=self._ask, _node_id=1)
        self.watch.attach(self.link)
        self.beats(0.0, says=[], told=[0, 1], epoch=0)
        self.watch.assigned([("input", 0), ("input", 1)])
        self.beats(0.0, says=[0, 1])

    async def _ask(self, kind: Any, build: Any) -> Any:
        build(1)
        if self._answer is None:
            raise ConnectionError
        return self._answer

    def beats(
        self,
        at: float,
        *,
        says: list[int] | None = None,
        told: list[int] | None = None,
        is_lost: bool = False,
        epoch: int = 2,
    ) -> None:
        """Send a heartbeat, which is answered at once unless it is lost."""
        self.now = at
        owned = None if says is None else [TopicPartitions(topic_id=TOPIC, partitions=says)]
        given = None
        if told is not None:
            partitions = TopicPartitions(topic_id=TOPIC, partitions=told)
            given = Assignment(topic_partitions=[partitions])
        self._answer = None
        if not is_lost:
            self._answer = ConsumerGroupHeartbeatResponse(member_epoch=2, assignment=given)
        request = ConsumerGroupHeartbeatRequest(
            group_id="team", member_id="slow", member_epoch=epoch, topic_partitions=owned
        )
        try:
            asyncio.run(self.link.ask(ConsumerGroupHeartbeatRequest, lambda version: request))
        except ConnectionError:
            assert is_lost

    def commits(self, number: int, answer: ErrorCode | None) -> None:
        """Send its commit of that number, which is lost, or answered. Raises Violation."""
        offset = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=number, committed_metadata=f"slow:{number}"
        )
        topic = OffsetCommitRequestTopic(name="input", partitions=[offset])
        request = OffsetCommitRequest(group_id="team", member_id="slow", topics=[topic])
        self._answer = None
        if answer is not None:
            outcome = OffsetCommitResponsePartition(partition_index=0, error_code=answer)
            told = OffsetCommitResponseTopic(name="input", partitions=[outcome])
            self._answer = OffsetCommitResponse(topics=[told])
        try:
            asyncio.run(self.link.ask(OffsetCommitRequest, lambda version: request))
        except ConnectionError:
            assert answer is None

    def is_replaced(self, at: float) -> None:
        """Another member reads the partition that this one was to keep. Raises Violation."""
        self.now = at
        place = {("input", 0): TOPIC}
        patience = Patience(SESSION_S, REBALANCE_S)
        self.ledger.owned("team", "quick", place, patience, None, is_classic=False)


def must_wait(member: Member, until: float) -> None:
    """Another member reads in good order from then on, and not a moment before."""
    with pytest.raises(Violation, match="two-owners"):
        member.is_replaced(until - 0.01)
    member.is_replaced(until)


def test_a_member_that_is_not_heard_keeps_its_partitions_for_its_session():
    member = Member()
    member.beats(1.0)
    member.beats(2.0, is_lost=True)
    must_wait(member, 1.0 + SESSION_S)


def test_a_member_that_is_heard_has_the_rebalance_timeout_for_giving_back():
    member = Member()
    member.beats(1.0, told=[0])
    for second in range(2, 7):
        member.beats(float(second))
    must_wait(member, 1.0 + REBALANCE_S)


def test_the_rebalance_timeout_begins_with_a_heartbeat_that_was_not_answered():
    member = Member()
    member.beats(2.0, is_lost=True)
    member.beats(4.0, says=[0, 1], is_lost=True)
    member.beats(7.5, says=[0, 1], told=[0])
    must_wait(member, 2.0 + REBALANCE_S)


def test_the_rebalance_timeout_ends_when_the_member_says_that_it_has_given_back():
    member = Member()
    member.beats(1.0, told=[0])
    member.watch.gave_up([("input", 1)])
    member.beats(2.0, is_lost=True)
    member.beats(5.0, says=[0])
    member.beats(6.0)
    must_wait(member, 6.0 + SESSION_S)


def test_what_is_said_before_the_revocation_does_not_end_the_rebalance_timeout():
    member = Member()
    member.beats(1.0, told=[0])
    member.beats(5.0, says=[0, 1], told=[0])
    member.watch.gave_up([("input", 1)])
    member.beats(6.0)
    must_wait(member, 1.0 + REBALANCE_S)


def test_a_classic_member_whose_leave_was_not_sent_has_no_id_to_leave_with_again():
    async def unreachable(kind: Any, build: Any) -> Any:
        raise ConnectionError

    world: Any = SimpleNamespace()
    patience = Patience(SESSION_S, REBALANCE_S)
    watch = GroupWatch(world, "slow", "team", None, is_classic=True, patience=patience)
    watch.is_member = True
    link: Any = SimpleNamespace(ask=unreachable)
    watch.attach(link)
    assert watch.must_leave("slow-1")
    assert watch.must_leave(""), "an id is not forgotten without a reason"
    with pytest.raises(ConnectionError):
        asyncio.run(link.ask(LeaveGroupRequest, lambda version: None))
    assert not watch.must_leave("")
    assert watch.must_leave("slow-2"), "it has joined again"


@pytest.mark.parametrize(
    ("answer", "may_be_committed"),
    [
        (None, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_no_commit_is_sent_after_a_later_one_that_may_be_committed(
    answer: ErrorCode | None, may_be_committed: bool
):
    member = Member()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    member.commits(1, loading)
    member.commits(2, answer)
    member.commits(2, loading)
    if may_be_committed:
        with pytest.raises(Violation, match="commit-reordered"):
            member.commits(1, loading)
    else:
        member.commits(1, loading)


@pytest.mark.parametrize(
    ("answer", "is_out"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, True),
        (ErrorCode.FENCED_INSTANCE_ID, True),
        (ErrorCode.STALE_MEMBER_EPOCH, False),
    ],
)
def test_a_refused_commit_may_report_that_its_member_is_none(answer: ErrorCode, is_out: bool):
    member = Member()
    member.ledger.is_spoilt = True
    member.commits(1, answer)
    assert member.watch.was_put_out is is_out
