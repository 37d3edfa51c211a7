"""The replica manager with several log directories, damaged logs, and leaders elsewhere."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.broker.replica.followed_partitions import FollowedPartition
from moldau.broker.replica.log_opener import MAX_REPLACEMENTS
from moldau.metadata.image.values import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from moldau.protocol.messages.p73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.types import TopicPartition
from tests.kit.waiting import until_async
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of
from tests.unit.broker.messages import batch, fetch, only, produce
from tests.unit.broker.replica.directory_answers import answer
from tests.unit.broker.scripted_channel import Sent

ELSEWHERE = uuid.UUID(int=0xE15E)


def register(broker: DataPath, broker_id: int = BROKER_ID, **changed: Any) -> None:
    """Broker 1 with its log directories, or another one."""
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "broker_epoch": broker_id,
        "end_points": [Endpoint(name="PLAINTEXT", host=f"host-{broker_id}", port=9092)],
        "rack": None,
        "fenced": False,
        "log_dirs": [each.directory_id for each in broker.log_manager.directories.all]
        if broker_id == BROKER_ID
        else [ELSEWHERE],
    }
    broker.replay(RegisterBrokerRecord(**{**fields, **changed}))


def create(
    broker: DataPath, topic: str, directory: uuid.UUID, *, leader: int = BROKER_ID, **changed: Any
) -> None:
    """A topic on brokers 1 and 2, whose replica here lies in `directory`."""
    fields: dict[str, Any] = {
        "partition_id": 0,
        "topic_id": topic_id_of(topic),
        "replicas": [BROKER_ID, OTHER_BROKER_ID],
        "isr": [BROKER_ID, OTHER_BROKER_ID],
        "directories": [directory, ELSEWHERE],
        "leader": leader,
    }
    broker.replay(
        TopicRecord(name=topic, topic_id=topic_id_of(topic)),
        PartitionRecord(**{**fields, **changed}),
    )


@pytest.fixture
async def broker() -> AsyncIterator[DataPath]:
    async with DataPath(
        "/one", filesystem=SimulatedFilesystem(), more_directories=["/two"]
    ) as data_path:
        register(data_path)
        yield data_path


def directory_ids(broker: DataPath) -> tuple[uuid.UUID, uuid.UUID]:
    first, second = broker.log_manager.directories.all
    return first.directory_id, second.directory_id


def fail(broker: DataPath, index: int) -> None:
    broker.log_manager.directories.fail(
        broker.log_manager.directories.all[index], "the test says so"
    )


async def told(broker: DataPath) -> dict[str, uuid.UUID]:
    """What the next AssignReplicasToDirs says, by topic."""
    sent = await next_of(broker, AssignReplicasToDirsRequest)
    answer(sent)
    names = {topic_id_of(name): name for name in ("t", "u", "v")}
    return {
        names[topic.topic_id]: directory.id
        for directory in sent.request.directories
        for topic in directory.topics
    }


async def next_of(broker: DataPath, kind: type) -> Sent:
    while True:
        sent = await broker.channel.next()
        if isinstance(sent.request, kind):
            return sent


def asked(broker: DataPath, kind: type) -> list[Any]:
    return [each for each in broker.channel.all_requests if isinstance(each, kind)]


# -- where logs are made ---------------------------------------------------------------------------


async def test_a_log_is_made_where_the_metadata_says(broker: DataPath) -> None:
    first, second = directory_ids(broker)
    for topic, directory in (("t", second), ("u", second), ("v", first)):
        create(broker, topic, directory)
    assert broker.log("t").directory == "/two/t-0"
    assert broker.log("u").directory == "/two/u-0"
    assert broker.log("v").directory == "/one/v-0"
    await broker.manager.replication.directories.close()
    assert not asked(broker, AssignReplicasToDirsRequest), "nothing differs"


async def test_a_replica_without_a_directory_gets_one_and_it_is_reported(broker: DataPath) -> None:
    first, second = directory_ids(broker)
    create(broker, "t", UNASSIGNED_DIRECTORY)
    create(broker, "u", UNASSIGNED_DIRECTORY)
    places = {topic: broker.log(topic).directory for topic in "tu"}
    assert places == {"t": "/one/t-0", "u": "/two/u-0"}
    assert await told(broker) == {"t": first, "u": second}


async def test_a_replica_that_lies_elsewhere_than_the_metadata_says(broker: DataPath) -> None:
    first, second = directory_ids(broker)
    create(broker, "t", first)
    broker.change_partition("t", directories=[second, ELSEWHERE])
    assert broker.log("t").directory == "/one/t-0", "it is not moved"
    assert await told(broker) == {"t": first}


async def test_nothing_is_reported_of_directories_that_are_not_registered(tmp_path: Path) -> None:
    """The cluster's metadata.version is older than directories; reported when it is not any
    more.
    """
    async with DataPath(tmp_path) as broker:
        create(broker, "t", UNASSIGNED_DIRECTORY)
        assert broker.log("t").log_end_offset == 0
        assert not asked(broker, AssignReplicasToDirsRequest)
        register(broker)
        [directory] = broker.log_manager.directories.all
        assert await told(broker) == {"t": directory.directory_id}


async def test_no_empty_log_stands_in_for_one_in_a_failed_directory(broker: DataPath) -> None:
    first, second = directory_ids(broker)
    fail(broker, 1)
    create(broker, "t", second)
    create(broker, "u", ELSEWHERE)
    for topic in "tu":
        assert broker.partition(topic).is_offline
        assert only(await broker.ask(produce({(topic, 0): batch()}), 12)).error_code == (
            ErrorCode.KAFKA_STORAGE_ERROR
        )
        assert broker.log_manager.get(TopicPartition(topic, 0)) is None
    # A new one is no such case.
    create(broker, "v", UNASSIGNED_DIRECTORY)
    assert broker.log("v").directory == "/one/v-0"
    assert await told(broker) == {"v": first}


async def test_a_replaced_directory_is_filled_again(broker: DataPath) -> None:
    """All that are configured work: the directory that the metadata names does not exist any
    more.
    """
    create(broker, "t", ELSEWHERE, leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID])
    assert broker.log("t").log_end_offset == 0
    assert await told(broker) == {"t": directory_ids(broker)[0]}


# -- logs that break -------------------------------------------------------------------------------


async def break_log(broker: DataPath, topic: str) -> None:
    """Its files cannot be written any more; the directory can."""
    assert isinstance(broker.filesystem, SimulatedFilesystem)
    broker.filesystem.faults.append(Fault("append", f"{topic}-0", errno.EIO))
    await broker.ask(produce({(topic, 0): batch()}, acks=1), 12)
    broker.filesystem.faults.clear()
    assert broker.partition(topic).is_offline


async def test_a_log_that_breaks_alone_is_given_up_and_begun_again(
    broker: DataPath, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = directory_ids(broker)
    create(broker, "t", first)
    await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
    await break_log(broker, "t")
    assert await told(broker) == {"t": LOST_DIRECTORY}
    # The controller takes its leadership, and then it out of the ISR.
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    assert broker.partition("t").is_offline, "as long as somebody may believe it, it is kept"
    broker.change_partition("t", isr=[OTHER_BROKER_ID], directories=[LOST_DIRECTORY, ELSEWHERE])
    partition = broker.partition("t")
    assert partition.log is broker.log("t")
    assert not partition.is_offline
    assert partition.log.log_end_offset == 0
    names = broker.filesystem.listdir("/one")
    assert len([name for name in names if name.startswith("t-0.") and "-stray" in name]) == 1
    assert await told(broker) == {"t": first}
    assert FollowedPartition(partition).position() is not None
    await until_async(lambda: broker.network.attempts == [("host-2", 9092)])
    assert any("replicated anew from broker 2" in each.message for each in caplog.records)


async def test_the_only_replica_is_kept_as_it_is(broker: DataPath) -> None:
    first, _ = directory_ids(broker)
    create(broker, "t", first, replicas=[BROKER_ID], isr=[BROKER_ID], directories=[first])
    await broker.ask(produce({("t", 0): batch(3)}), 12)
    await break_log(broker, "t")
    broker.change_partition("t", leader=BROKER_ID)
    assert broker.partition("t").is_offline
    assert not asked(broker, AssignReplicasToDirsRequest)
    assert "t-0" in broker.filesystem.listdir("/one")


@pytest.mark.parametrize(
    "state",
    [
        {"leader": -1, "isr": []},
        {"leader": OTHER_BROKER_ID, "isr": [OTHER_BROKER_ID, BROKER_ID]},
        {
            "leader": OTHER_BROKER_ID,
            "isr": [OTHER_BROKER_ID],
            "eligible_leader_replicas": [BROKER_ID],
        },
        {
            # A controller that left it eligible could elect it as soon as it has a log again.
            "leader": OTHER_BROKER_ID,
            "isr": [OTHER_BROKER_ID],
            "eligible_leader_replicas": [BROKER_ID],
            "directories": [LOST_DIRECTORY, ELSEWHERE],
        },
    ],
)
async def test_a_damaged_log_that_may_be_needed_is_kept(
    broker: DataPath, state: dict[str, Any]
) -> None:
    create(broker, "t", directory_ids(broker)[0])
    await break_log(broker, "t")
    broker.change_partition("t", **state)
    assert broker.partition("t").is_offline
    assert "t-0" in broker.filesystem.listdir("/one")


async def damage(broker: DataPath) -> None:
    """The log fails by itself, and what follows from that has been done."""
    log = broker.log("t")
    log.take_offline("the test says so")
    await asyncio.sleep(0)
    assert broker.partition("t").log is log


def strays(broker: DataPath) -> list[str]:
    return [name for name in broker.filesystem.listdir("/one") if "-stray" in name]


async def test_a_disk_that_breaks_logs_again_and_again_is_left_alone(broker: DataPath) -> None:
    create(broker, "t", directory_ids(broker)[0], leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID])
    for number in range(MAX_REPLACEMENTS + 1):
        await damage(broker)
        broker.change_partition("t", leader=OTHER_BROKER_ID)
        assert broker.partition("t").is_offline == (number == MAX_REPLACEMENTS)
    assert len(strays(broker)) == MAX_REPLACEMENTS


async def test_a_damaged_log_is_kept_until_older_proposals_are_void(
    broker: DataPath, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica had caught up, and its leader has proposed it for the ISR: the controller may
    still take that over, in the leader epoch in which the log was damaged.
    """
    first, _ = directory_ids(broker)
    create(broker, "t", first, leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID], leader_epoch=6)
    await damage(broker)
    assert [each.message for each in caplog.records if "leader epoch after 6" in each.message]
    assert await told(broker) == {"t": LOST_DIRECTORY}
    for changes in (
        {"isr": [OTHER_BROKER_ID]},  # as a proposal that a refused one is followed by
        {"directories": [LOST_DIRECTORY, ELSEWHERE]},  # by a controller of Apache Kafka
        {"isr": [OTHER_BROKER_ID, BROKER_ID]},
        {"isr": [OTHER_BROKER_ID]},
    ):
        broker.change_partition("t", **changes)
        assert broker.partition("t").is_offline, changes
    assert strays(broker) == []
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    assert broker.log("t").log_end_offset == 0
    assert len(strays(broker)) == 1
    assert await told(broker) == {"t": first}
    assert len([each for each in caplog.records if "reported as lost" in each.message]) == 1


async def test_damage_is_reported_again_when_the_metadata_has_earlier_damage(
    broker: DataPath,
) -> None:
    """The log breaks a second time before the controller knows in which directory it began again,
    so that a report of the damage would change nothing, and begin no leader epoch.
    """
    first, _ = directory_ids(broker)
    lost = {"leader": OTHER_BROKER_ID, "directories": [LOST_DIRECTORY, ELSEWHERE]}
    create(broker, "t", first, leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID], leader_epoch=6)
    await damage(broker)
    assert await told(broker) == {"t": LOST_DIRECTORY}
    broker.change_partition("t", **lost)
    sent = await next_of(broker, AssignReplicasToDirsRequest)
    await damage(broker)
    broker.change_partition("t", isr=[OTHER_BROKER_ID])
    sent.fail(ControllerUnavailable("the test says so"))
    assert await told(broker) == {"t": first}
    broker.change_partition("t", directories=[first, ELSEWHERE])
    assert await told(broker) == {"t": LOST_DIRECTORY}
    assert broker.partition("t").is_offline
    broker.change_partition("t", **lost)
    assert broker.log("t").log_end_offset == 0
    assert await told(broker) == {"t": first}


async def test_one_of_two_copies_is_not_chosen_here(broker: DataPath) -> None:
    """The controller gets a report, so that others lead; which copy is right an operator has to
    say.
    """
    create(broker, "t", directory_ids(broker)[0])
    broker.log_manager.found.twins.add(TopicPartition("t", 0))
    await break_log(broker, "t")
    assert await told(broker) == {"t": LOST_DIRECTORY}
    broker.change_partition("t", leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID])
    assert broker.partition("t").is_offline
    assert "t-0" in broker.filesystem.listdir("/one")


async def test_a_failed_directory_is_no_damage(broker: DataPath) -> None:
    """The heartbeat reports it to the controller; nothing is put aside on a disk that is gone."""
    first, second = directory_ids(broker)
    create(broker, "t", second)
    create(broker, "u", first)
    waiting = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)
    fail(broker, 1)
    await until_async(lambda: waiting.is_answered)
    assert only(waiting.response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.change_partition("t", leader=OTHER_BROKER_ID, isr=[OTHER_BROKER_ID])
    assert broker.partition("t").is_offline
    assert only(await broker.ask(produce({("u", 0): batch()}, acks=1), 12)).error_code == 0
    assert not asked(broker, AssignReplicasToDirsRequest)


# -- leaders elsewhere -----------------------------------------------------------------------------


async def test_followed_partitions_are_fetched_from_their_leader(broker: DataPath) -> None:
    create(broker, "t", directory_ids(broker)[0], leader=OTHER_BROKER_ID)
    fetchers = broker.manager.replication.fetchers
    await until_async(lambda: ("host-2", 9092) in broker.network.attempts)
    assert [len(each.partitions) for each in fetchers.fetchers] == [1]
    broker.change_partition("t", leader=BROKER_ID)
    await until_async(lambda: not fetchers.fetchers)
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    await until_async(lambda: len(fetchers.fetchers) == 1)
    broker.delete_topic("t")
    await until_async(lambda: not fetchers.fetchers)


async def test_no_broker_is_fetched_from_without_a_leader(broker: DataPath) -> None:
    create(broker, "t", directory_ids(broker)[0], leader=-1)
    assert not broker.manager.replication.fetchers.fetchers
    assert not broker.network.attempts


async def test_a_leader_that_registers_again_is_found_at_its_new_address(
    broker: DataPath,
) -> None:
    create(broker, "t", directory_ids(broker)[0], leader=OTHER_BROKER_ID)
    await until_async(lambda: ("host-2", 9092) in broker.network.attempts)
    moved = [Endpoint(name="PLAINTEXT", host="moved", port=9999)]
    register(broker, OTHER_BROKER_ID, broker_epoch=33, end_points=moved)
    await until_async(lambda: ("moved", 9999) in broker.network.attempts)
    other = [Endpoint(name="OTHER", host="moved", port=1)]
    register(broker, OTHER_BROKER_ID, broker_epoch=34, end_points=other)
    await until_async(lambda: not broker.manager.replication.fetchers.fetchers)
    assert ("moved", 1) not in broker.network.attempts, "it is not for brokers"


async def test_the_number_of_fetchers_follows_the_configuration(broker: DataPath) -> None:
    for topic in ("t", "u", "v"):
        create(broker, topic, directory_ids(broker)[0], leader=OTHER_BROKER_ID)
    replication = broker.manager.replication
    assert len(replication.fetchers.fetchers) == 1
    replication.fetchers.resize(64)
    await until_async(lambda: len(replication.fetchers.fetchers) == 3)


# -- ISR checks ------------------------------------------------------------------------------------


async def test_lagging_followers_are_found_in_time(tmp_path: Path) -> None:
    async with DataPath(tmp_path, replica_lag_time_max_ms=1_000) as broker:
        broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
        await broker.ask(produce({("t", 0): batch()}, acks=1), 12)
        await until_async(lambda: not broker.manager._tasks)
        broker.clock.advance(505)
        await until_async(lambda: not broker.manager._tasks)
        assert not asked(broker, AlterPartitionRequest), "it may still catch up"
        for _ in range(2):
            broker.clock.advance(505)
            await until_async(lambda: not broker.manager._tasks)
        sent = await next_of(broker, AlterPartitionRequest)
        [wanted] = sent.request.topics[0].partitions
        assert [each.broker_id for each in wanted.new_isr_with_epochs] == [BROKER_ID]


async def test_a_broker_that_leaves_is_not_waited_for(broker: DataPath) -> None:
    """Outside the ISR, but caught up a moment ago: the high watermark waits for it until it is
    fenced, the controller has refused to take it in, and no copy of that proposal can be taken over
    any more.
    """
    create(broker, "t", directory_ids(broker)[0], isr=[BROKER_ID])
    partition = broker.partition("t")
    await broker.ask(fetch({("t", 0): 0}, max_wait_ms=0, replica_id=OTHER_BROKER_ID), 12)
    await broker.ask(produce({("t", 0): batch(2)}, acks=1), 12)
    proposal = await next_of(broker, AlterPartitionRequest)
    broker.replay(
        BrokerRegistrationChangeRecord(broker_id=OTHER_BROKER_ID, broker_epoch=2, fenced=1)
    )
    assert partition.core.high_watermark == 0, "it may have been taken in before"
    [topic] = proposal.request.topics
    refused = PartitionDataResponse(error_code=ErrorCode.INELIGIBLE_REPLICA)
    proposal.answer(
        AlterPartitionResponse(
            topics=[TopicDataResponse(topic_id=topic.topic_id, partitions=[refused])]
        )
    )
    unchanged = await next_of(broker, AlterPartitionRequest)
    [wanted] = unchanged.request.topics[0].partitions
    assert [each.broker_id for each in wanted.new_isr_with_epochs] == [BROKER_ID]
    assert partition.core.high_watermark == 0, "a late copy may still let it in"
    taken_over = PartitionDataResponse(
        leader_id=BROKER_ID,
        leader_epoch=wanted.leader_epoch,
        isr=[BROKER_ID],
        partition_epoch=wanted.partition_epoch + 1,
    )
    unchanged.answer(
        AlterPartitionResponse(
            topics=[TopicDataResponse(topic_id=topic.topic_id, partitions=[taken_over])]
        )
    )
    await until_async(lambda: partition.core.high_watermark == 2)
