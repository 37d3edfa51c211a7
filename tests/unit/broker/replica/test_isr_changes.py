"""AlterPartition: proposals reach the controller in order, whatever becomes of requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.broker.replica.controller_reports import AlterPartitionSender
from moldau.broker.replica.core.in_sync_set import IsrChange, PartitionState
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from moldau.protocol.types import TopicPartition
from tests.unit.broker.scripted_channel import ScriptedChannel, Sent

BROKER_ID = 1
TOPIC_ID = uuid.UUID(int=7)


class FakePartition:
    """A led partition that remembers what it is given."""

    def __init__(self, index: int = 0, topic_id: uuid.UUID = TOPIC_ID) -> None:
        self.topic_id = topic_id
        self.topic_partition = TopicPartition("t", index)
        self.is_deleted = False
        self.core = SimpleNamespace(
            is_leader=True,
            leader_epoch=3,
            partition_epoch=10,
            state=PartitionState(1, 3, 10, replicas=(1, 2, 3), isr=(1,)),
        )
        self.answers: list[tuple[IsrChange, ErrorCode, PartitionState | None]] = []
        self.following: list[IsrChange] = []

    def isr_change_answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrChange | None:
        self.answers.append((change, error, state))
        if state is not None:
            self.core.partition_epoch = state.partition_epoch
        return self.following.pop(0) if self.following else None

    def change(self, *isr: int) -> IsrChange:
        return IsrChange(
            leader_epoch=self.core.leader_epoch,
            partition_epoch=self.core.partition_epoch,
            isr=isr,
            broker_epochs={member: 100 + member for member in isr},
            leader_recovery_state=0,
            reason="the test says so",
        )


def answer(
    sent: Sent, *, errors: dict[int, ErrorCode] | None = None, skip: tuple[int, ...] = ()
) -> None:
    """As a controller that takes everything over, except what `errors` names by partition."""
    errors = errors or {}
    response = AlterPartitionResponse()
    for topic in sent.request.topics:
        answers = TopicDataResponse(topic_id=topic.topic_id)
        response.topics.append(answers)
        for wanted in reversed(topic.partitions):
            if wanted.partition_index in skip:
                continue
            error = errors.get(wanted.partition_index, ErrorCode.NONE)
            if error is not ErrorCode.NONE:
                answers.partitions.append(
                    PartitionDataResponse(partition_index=wanted.partition_index, error_code=error)
                )
                continue
            answers.partitions.append(
                PartitionDataResponse(
                    partition_index=wanted.partition_index,
                    leader_id=BROKER_ID,
                    leader_epoch=wanted.leader_epoch,
                    isr=[member.broker_id for member in wanted.new_isr_with_epochs],
                    partition_epoch=wanted.partition_epoch + 1,
                )
            )
    sent.answer(response)


class Rig:
    def __init__(self) -> None:
        self.channel = ScriptedChannel()
        self.faults: list[BaseException] = []
        self.answered_count = 0
        self.epoch = 55
        self.sender = AlterPartitionSender(
            self.channel,
            broker_id=BROKER_ID,
            broker_epoch=lambda: self.epoch,
            on_answered=self._answered,
            on_fault=self.faults.append,
        )

    def _answered(self) -> None:
        self.answered_count += 1

    def submit(self, partition: FakePartition, change: IsrChange) -> None:
        self.sender.submit(partition, change)  # type: ignore[arg-type]

    async def idle(self) -> None:
        """Return when nothing is under way any more."""
        async with asyncio.timeout(10):
            while self.sender._task is not None:
                await asyncio.wait([self.sender._task])
                await asyncio.sleep(0)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(AlterPartitionSender, "retry_backoff_ms", 1)
    made = Rig()
    yield made
    await made.sender.close()
    assert not made.faults


def proposed(sent: Sent) -> dict[int, list[int]]:
    return {
        partition.partition_index: [each.broker_id for each in partition.new_isr_with_epochs]
        for topic in sent.request.topics
        for partition in topic.partitions
    }


async def test_a_proposal_is_sent_and_its_answer_passed_on(rig: Rig) -> None:
    partition = FakePartition()
    change = partition.change(1, 2)
    rig.submit(partition, change)
    sent = await rig.channel.next()
    assert (sent.request.broker_id, sent.request.broker_epoch) == (BROKER_ID, 55)
    [topic] = sent.request.topics
    [wanted] = topic.partitions
    assert (topic.topic_id, wanted.partition_index) == (TOPIC_ID, 0)
    assert (wanted.leader_epoch, wanted.partition_epoch) == (3, 10)
    members = [(each.broker_id, each.broker_epoch) for each in wanted.new_isr_with_epochs]
    assert members == [(1, 101), (2, 102)]
    sent.request.to_bytes(3)  # what is sent fits the wire
    answer(sent)
    await rig.idle()
    [(told, error, state)] = partition.answers
    assert told is change
    assert error is ErrorCode.NONE
    assert state == PartitionState(BROKER_ID, 3, 11, (1, 2, 3), (1, 2))
    assert rig.answered_count == 1


async def test_one_request_at_a_time_and_the_rest_together(rig: Rig) -> None:
    first, second, third = FakePartition(0), FakePartition(1), FakePartition(2)
    rig.submit(first, first.change(1))
    sent = await rig.channel.next()
    rig.submit(second, second.change(1, 2))
    rig.submit(third, third.change(1, 3))
    other = FakePartition(0, uuid.UUID(int=8))
    rig.submit(other, other.change(1))
    await asyncio.sleep(0)
    assert not rig.channel.sent, "the first request is still under way"
    answer(sent)
    following = await rig.channel.next()
    assert len(following.request.topics) == 2
    assert sum(len(topic.partitions) for topic in following.request.topics) == 3
    answer(following)
    await rig.idle()
    assert [len(each.answers) for each in (first, second, third, other)] == [1, 1, 1, 1]


async def test_a_request_holds_a_bounded_number(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlterPartitionSender, "max_partitions_per_request", 4)
    partitions = [FakePartition(index) for index in range(10)]
    for each in partitions:
        rig.submit(each, each.change(1))
    sizes = []
    for _ in range(3):
        sent = await rig.channel.next()
        sizes.append(len(proposed(sent)))
        answer(sent)
    await rig.idle()
    assert sizes == [4, 4, 2]
    assert all(len(each.answers) == 1 for each in partitions)


async def test_a_lost_answer_is_asked_for_again(rig: Rig) -> None:
    partition = FakePartition()
    change = partition.change(1, 2)
    rig.submit(partition, change)
    for _ in range(3):
        (await rig.channel.next()).fail(ControllerUnavailable("nobody answers"))
    answer(await rig.channel.next())
    await rig.idle()
    assert [told for told, *_ in partition.answers] == [change]


@pytest.mark.parametrize(
    "error",
    [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR],
)
async def test_a_refused_request_is_sent_again_under_the_epoch_of_then(
    rig: Rig, error: ErrorCode
) -> None:
    partition = FakePartition()
    rig.submit(partition, partition.change(1, 2))
    (await rig.channel.next()).answer(AlterPartitionResponse(error_code=error))
    rig.epoch = 56
    sent = await rig.channel.next()
    assert sent.request.broker_epoch == 56
    assert partition.answers == []
    answer(sent)
    await rig.idle()
    assert len(partition.answers) == 1


async def test_partitions_are_answered_each_on_its_own(rig: Rig) -> None:
    taken, refused, forgotten = (FakePartition(index) for index in range(3))
    for each in (taken, refused, forgotten):
        rig.submit(each, each.change(1, 2))
    sent = await rig.channel.next()
    answer(sent, errors={1: ErrorCode.INVALID_UPDATE_VERSION}, skip=(2,))
    again = await rig.channel.next()
    assert proposed(again) == {2: [1, 2]}, "the one that was not answered"
    answer(again)
    await rig.idle()
    assert [error for _, error, _ in taken.answers] == [ErrorCode.NONE]
    [(_, error, state)] = refused.answers
    assert (error, state) == (ErrorCode.INVALID_UPDATE_VERSION, None)
    assert [error for _, error, _ in forgotten.answers] == [ErrorCode.NONE]


async def test_what_the_partition_wants_sent_next_is_sent(rig: Rig) -> None:
    partition = FakePartition()
    change = partition.change(1, 2)
    partition.following.append(change)  # send it again
    rig.submit(partition, change)
    answer(await rig.channel.next(), errors={0: ErrorCode.UNKNOWN_SERVER_ERROR})
    expand = replace(change, isr=(1, 2, 3), partition_epoch=11)
    partition.following.append(expand)
    sent = await rig.channel.next()
    assert proposed(sent) == {0: [1, 2]}
    answer(sent)
    sent = await rig.channel.next()
    assert proposed(sent) == {0: [1, 2, 3]}
    answer(sent)
    await rig.idle()
    assert [error for _, error, _ in partition.answers] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]


async def test_the_newest_proposal_replaces_one_that_waits(rig: Rig) -> None:
    blocker, partition = FakePartition(1), FakePartition(0)
    rig.submit(blocker, blocker.change(1))
    sent = await rig.channel.next()
    rig.submit(partition, partition.change(1, 2))
    rig.submit(partition, partition.change(1, 2, 3))
    answer(sent)
    sent = await rig.channel.next()
    assert proposed(sent) == {0: [1, 2, 3]}
    answer(sent)
    await rig.idle()


async def test_a_newer_proposal_wins_over_one_whose_answer_was_lost(rig: Rig) -> None:
    partition = FakePartition()
    rig.submit(partition, partition.change(1, 2))
    sent = await rig.channel.next()
    partition.core.partition_epoch = 11  # metadata moved on: the answer was lost, the change not
    rig.submit(partition, partition.change(1, 2, 3))
    sent.fail(ControllerUnavailable("the controller died"))
    sent = await rig.channel.next()
    assert proposed(sent) == {0: [1, 2, 3]}
    assert sent.request.topics[0].partitions[0].partition_epoch == 11
    answer(sent)
    await rig.idle()
    assert len(partition.answers) == 1


@pytest.mark.parametrize("what", ["leader_epoch", "partition_epoch", "is_leader", "is_deleted"])
async def test_a_proposal_that_metadata_overtook_is_not_sent(rig: Rig, what: str) -> None:
    partition, other = FakePartition(0), FakePartition(1)
    rig.submit(partition, partition.change(1, 2))
    (await rig.channel.next()).fail(ControllerUnavailable("failover"))
    if what == "is_deleted":
        partition.is_deleted = True
    elif what == "is_leader":
        partition.core.is_leader = False
    else:
        setattr(partition.core, what, getattr(partition.core, what) + 1)
    rig.submit(other, other.change(1))
    sent = await rig.channel.next()
    assert proposed(sent) == {1: [1]}
    answer(sent)
    await rig.idle()
    assert partition.answers == []
    assert not rig.sender.waiting


async def test_closing_gives_up_what_is_under_way(rig: Rig) -> None:
    partition, other = FakePartition(0), FakePartition(1)
    rig.submit(partition, partition.change(1, 2))
    sent = await rig.channel.next()
    rig.submit(other, other.change(1))
    await rig.sender.close()
    assert sent.future.cancelled()
    rig.submit(other, other.change(1, 2))
    await asyncio.sleep(0)
    assert not rig.channel.sent
    assert partition.answers == other.answers == []


async def test_a_fault_is_reported_and_the_next_proposal_is_sent_all_the_same(rig: Rig) -> None:
    class Broken(FakePartition):
        def isr_change_answered(self, *arguments: Any) -> IsrChange | None:
            raise RuntimeError("the test says so")

    partition = Broken()
    rig.submit(partition, partition.change(1))
    answer(await rig.channel.next())
    await rig.idle()
    assert [str(fault) for fault in rig.faults] == ["the test says so"]
    rig.faults.clear()
    sound = FakePartition(1)
    rig.submit(sound, sound.change(1))
    answer(await rig.channel.next())
    await rig.idle()
    assert len(sound.answers) == 1
