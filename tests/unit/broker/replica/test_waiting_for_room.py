"""Logs that cannot be opened for want of room, or were left half done: no damage, they wait."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from moldau.broker.replica.log_opener import MAX_ROOM_PAUSE_MS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.metadata_records import RemoveTopicRecord
from moldau.storage.faults import LogOffline
from tests.kit.waiting import until_async
from tests.storage.simulated_filesystem import Fault
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce
from tests.unit.broker.replica.test_lost_directories import BELIEVED, NOT_BELIEVED, Machine

NO_ROOM = pytest.mark.parametrize(
    "fault",
    [
        ("truncate", errno.ENOSPC),
        ("truncate", errno.EDQUOT),
        ("open", errno.EMFILE),
    ],
    ids=["full", "quota", "descriptors"],
)


async def killed(fault: tuple[str, int]) -> Machine:
    """A broker that had records was killed, and finds no room when it starts again."""
    machine = Machine()
    async with machine.start() as broker:
        broker.replay(*machine.topic(machine.ids["/one"], leader_epoch=0))
        await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
        machine.kill()
    operation, number = fault
    machine.filesystem.faults.append(Fault(operation, "t-0/", number, count=None))
    return machine


async def passes(broker: DataPath) -> None:
    """The pause until the next attempt passes, and the attempt is over."""
    broker.clock.advance(MAX_ROOM_PAUSE_MS)
    for _ in range(30):
        await asyncio.sleep(0)


def lost(broker: DataPath) -> list[Any]:
    """What the broker reports of its replicas' directories."""
    kind = AssignReplicasToDirsRequest
    return [each for each in broker.channel.sent if isinstance(each.request, kind)]


@NO_ROOM
async def test_the_only_replica_is_served_when_there_is_room(fault: tuple[str, int]) -> None:
    machine = await killed(fault)
    only_one = {"replicas": [BROKER_ID], "isr": [BROKER_ID]}
    async with machine.start(at_start=machine.topic(machine.ids["/one"], **only_one)) as broker:
        for _ in range(3):
            refused = only(await broker.ask(produce({("t", 0): batch(1)}), 12))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await passes(broker)
        machine.filesystem.faults.clear()
        await passes(broker)
        found = only(await broker.ask(fetch({("t", 0): 0}), 12))
        assert fetched_values(found) == [b"value"] * 3
        assert only(await broker.ask(produce({("t", 0): batch(1)}), 12)).base_offset == 3
    assert machine.filesystem.listdir("/one").count("t-0") == 1


@NO_ROOM
@pytest.mark.parametrize("state", [*BELIEVED, NOT_BELIEVED])
async def test_a_replica_is_neither_reported_as_lost_nor_begun_again(
    fault: tuple[str, int], state: dict[str, Any]
) -> None:
    machine = await killed(fault)
    async with machine.start(at_start=machine.topic(machine.ids["/one"], **state)) as broker:
        assert broker.partition("t").is_offline
        await passes(broker)
        assert broker.partition("t").is_offline
        machine.filesystem.faults.clear()
        await passes(broker)
        assert broker.log("t").log_end_offset == 3
        assert not lost(broker)
    assert [each for each in machine.filesystem.listdir("/one") if "t-0" in each] == ["t-0"]


@NO_ROOM
async def test_a_topic_deleted_and_made_again_while_its_log_is_opened_again(
    fault: tuple[str, int],
) -> None:
    machine = await killed(fault)
    topic = machine.topic(machine.ids["/one"])
    async with machine.start(at_start=topic) as broker:
        machine.filesystem.faults.clear()
        go_on = asyncio.Event()
        offload = machine.filesystem.offload

        async def late(*work: Any) -> Any:
            done = await offload(*work)
            await go_on.wait()
            return done

        machine.filesystem.offload = late  # type: ignore[assignment]
        await passes(broker)
        machine.filesystem.offload = offload  # type: ignore[method-assign]
        broker.replay(RemoveTopicRecord(topic_id=topic_id_of("t")))
        other = topic_id_of("u")
        create, partition = machine.topic(machine.ids["/one"], topic_id=other)
        broker.replay(create, partition)
        assert broker.partition("t").is_offline, "the old one is being opened"
        go_on.set()
        for _ in range(2):
            await passes(broker)
        assert (broker.log("t").topic_id, broker.log("t").log_end_offset) == (other, 0)


@pytest.mark.parametrize("replicas", [[BROKER_ID], [BROKER_ID, OTHER_BROKER_ID]])
async def test_a_cut_left_half_done_is_no_damage(replicas: list[int]) -> None:
    machine = Machine()
    await machine.fill()
    topic = machine.topic(machine.ids["/one"], replicas=replicas, isr=replicas)
    async with machine.start(at_start=topic) as broker:
        fault = Fault("truncate", "t-0/00000000000000000000.log", errno.ENOSPC, count=None)
        machine.filesystem.faults.append(fault)
        with pytest.raises(LogOffline):
            broker.log("t").truncate_to(1)
        await passes(broker)
        assert broker.partition("t").log is None
        machine.filesystem.faults.clear()
        await passes(broker)
        assert broker.log("t").log_end_offset == 3
        found = only(await broker.ask(fetch({("t", 0): 0}, max_wait_ms=0), 12))
        assert found.error_code == ErrorCode.NONE
        assert not lost(broker)


@NO_ROOM
async def test_a_stop_while_logs_wait_keeps_them(fault: tuple[str, int]) -> None:
    machine = await killed(fault)
    for _ in range(2):
        async with machine.start(at_start=machine.topic(machine.ids["/one"])) as broker:
            assert broker.partition("t").is_offline
    machine.filesystem.faults.clear()
    async with machine.start(at_start=machine.topic(machine.ids["/one"])) as broker:
        await until_async(lambda: broker.log("t").log_end_offset == 3)
