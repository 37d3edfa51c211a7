"""AssignReplicasToDirs: the controller learns where replicas lie, whatever becomes of requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.broker.replica.controller_reports import DirectoryAssignments
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import AssignReplicasToDirsResponse
from tests.unit.broker.replica.directory_answers import answer
from tests.unit.broker.scripted_channel import ScriptedChannel, Sent

TOPIC_ID, OTHER_TOPIC_ID = uuid.UUID(int=7), uuid.UUID(int=8)
HERE, THERE = uuid.UUID(int=100), uuid.UUID(int=200)


class Rig:
    def __init__(self) -> None:
        self.channel = ScriptedChannel()
        self.faults: list[BaseException] = []
        self.epoch = 55
        self.directories = DirectoryAssignments(
            self.channel,
            broker_id=1,
            broker_epoch=lambda: self.epoch,
            on_fault=self.faults.append,
        )

    async def idle(self) -> None:
        """Return when nothing is under way any more."""
        async with asyncio.timeout(10):
            while self.directories._task is not None:
                await asyncio.wait([self.directories._task])
                await asyncio.sleep(0)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(DirectoryAssignments, "retry_backoff_ms", 1)
    made = Rig()
    yield made
    await made.directories.close()
    assert not made.faults


def told(sent: Sent) -> dict[tuple[uuid.UUID, int], uuid.UUID]:
    return {
        (topic.topic_id, partition.partition_index): directory.id
        for directory in sent.request.directories
        for topic in directory.topics
        for partition in topic.partitions
    }


async def test_everything_of_one_change_goes_into_one_request(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    rig.directories.assign(TOPIC_ID, 1, HERE)
    rig.directories.assign(TOPIC_ID, 2, THERE)
    rig.directories.assign(OTHER_TOPIC_ID, 0, THERE)
    sent = await rig.channel.next()
    assert (sent.request.broker_id, sent.request.broker_epoch) == (1, 55)
    assert told(sent) == {
        (TOPIC_ID, 0): HERE,
        (TOPIC_ID, 1): HERE,
        (TOPIC_ID, 2): THERE,
        (OTHER_TOPIC_ID, 0): THERE,
    }
    assert [len(each.topics) for each in sent.request.directories] == [1, 2]
    answer(sent)
    await rig.idle()
    assert not rig.channel.sent


async def test_what_was_reported_is_not_reported_again_until_metadata_agreed(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    answer(await rig.channel.next())
    await rig.idle()
    rig.directories.assign(TOPIC_ID, 0, HERE)  # an older image still says otherwise
    await rig.idle()
    assert len(rig.channel.all_requests) == 1
    rig.directories.settled(TOPIC_ID, 0)
    rig.directories.assign(TOPIC_ID, 0, HERE)  # reassigned away and back, say
    assert told(await rig.channel.next()) == {(TOPIC_ID, 0): HERE}


async def test_what_comes_as_the_last_answer_does_is_reported_too(rig: Rig) -> None:
    """Metadata and answer come in one turn of the loop, the metadata second."""
    rig.directories.assign(TOPIC_ID, 0, HERE)
    sent = await rig.channel.next()
    task = rig.directories._task
    assert task is not None
    answer(sent)
    # The task takes its answer next and ends; this comes after it, and before any listener is
    # called.
    loop = asyncio.get_running_loop()
    was_over: asyncio.Future[bool] = loop.create_future()

    def metadata_came() -> None:
        was_over.set_result(task.done() and rig.directories._task is task)
        rig.directories.assign(TOPIC_ID, 0, THERE)

    loop.call_soon(metadata_came)
    assert await was_over
    assert told(await rig.channel.next()) == {(TOPIC_ID, 0): THERE}


async def test_a_bounded_number_per_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryAssignments, "max_replicas_per_request", 4)
    for index in range(10):
        rig.directories.assign(TOPIC_ID, index, HERE)
    sizes = []
    for _ in range(3):
        sent = await rig.channel.next()
        sizes.append(len(told(sent)))
        answer(sent)
    await rig.idle()
    assert sizes == [4, 4, 2]


async def test_a_lost_or_refused_request_is_made_again(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    (await rig.channel.next()).fail(ControllerUnavailable("nobody leads"))
    stale = AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    (await rig.channel.next()).answer(stale)
    rig.epoch = 56
    sent = await rig.channel.next()
    assert sent.request.broker_epoch == 56
    assert told(sent) == {(TOPIC_ID, 0): HERE}
    answer(sent)
    await rig.idle()


async def test_replicas_are_answered_each_on_its_own(rig: Rig) -> None:
    for index in range(4):
        rig.directories.assign(TOPIC_ID, index, HERE)
    sent = await rig.channel.next()
    errors = {1: ErrorCode.NOT_LEADER_OR_FOLLOWER, 2: ErrorCode.UNKNOWN_SERVER_ERROR}
    answer(sent, errors=errors, skip=(3,))
    again = await rig.channel.next()
    assert told(again) == {(TOPIC_ID, 2): HERE, (TOPIC_ID, 3): HERE}
    answer(again)
    await rig.idle()
    # Not ours when it was asked; it may be by now.
    rig.directories.assign(TOPIC_ID, 1, HERE)
    assert told(await rig.channel.next()) == {(TOPIC_ID, 1): HERE}


async def test_the_newest_directory_wins_over_a_failed_attempt(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    sent = await rig.channel.next()
    rig.directories.assign(TOPIC_ID, 0, THERE)
    sent.fail(ControllerUnavailable("nobody leads"))
    again = await rig.channel.next()
    assert told(again) == {(TOPIC_ID, 0): THERE}
    answer(again)
    await rig.idle()
    assert len(rig.channel.all_requests) == 2


async def test_a_replica_that_left_before_the_report_is_forgotten(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    sent = await rig.channel.next()
    rig.directories.settled(TOPIC_ID, 0)
    sent.fail(ControllerUnavailable("nobody leads"))
    await rig.idle()
    assert len(rig.channel.all_requests) == 1


async def test_a_cluster_without_directories_is_left_alone(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    unsupported = AssignReplicasToDirsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    (await rig.channel.next()).answer(unsupported)
    await rig.idle()
    assert len(rig.channel.all_requests) == 1
    rig.directories.assign(TOPIC_ID, 0, HERE)  # after the upgrade
    answer(await rig.channel.next())
    await rig.idle()


async def test_closing_gives_up(rig: Rig) -> None:
    rig.directories.assign(TOPIC_ID, 0, HERE)
    sent = await rig.channel.next()
    await rig.directories.close()
    assert sent.future.cancelled()
    rig.directories.assign(TOPIC_ID, 1, HERE)
    await asyncio.sleep(0)
    assert not rig.channel.sent
