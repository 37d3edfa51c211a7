"""Replicas on disks that are full, or fail: what the driver does with each refused write."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import NoOpRecord
from moldau.raft import MetadataLogError
from moldau.raft.core.values import ReplicaKey
from moldau.raft.room import MAX_PAUSE_MS, PROBE_FILE
from moldau.storage.checkpoints import SEGMENT_SEALS, read_segment_seals
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

from .fixtures import LOG_DIRECTORY, Listener, append, format_directory, open_log, snapshot_of
from .quorums import Node, Quorum

SAYS_FULL = "no room for the metadata log"
SAYS_ROOM = "there is room again for the metadata log"
SEALS = f"{LOG_DIRECTORY}/{SEGMENT_SEALS}"


@contextmanager
def full(*nodes: Node) -> Iterator[None]:
    """Not a byte more fits on the disks of these nodes."""
    for node in nodes:
        node.filesystem.capacity_bytes = node.filesystem.used_bytes()
    try:
        yield
    finally:
        for node in nodes:
            node.filesystem.capacity_bytes = None


def try_to_append(node: Node) -> ErrorCode:
    log = node.running
    error, _ = log.append([(NoOpRecord(), 0)], leader_epoch=log.state.leader_epoch)
    return error


async def regained(quorum: Quorum, caplog: pytest.LogCaptureFixture) -> None:
    await quorum.until(lambda: SAYS_ROOM in caplog.messages)


async def test_a_leader_with_a_full_disk_hands_over_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "moldau")
    async with Quorum(1, 2, 3, seed=30) as quorum:
        former = await quorum.leader()
        former.append("a")
        await quorum.converged("a")
        with full(former):
            assert try_to_append(former) is ErrorCode.NOT_CONTROLLER, "another one takes it"
            leader = await quorum.leader()
            assert leader is not former
            leader.append("b")
            await quorum.until(lambda: leader.listener.names == ["a", "b"])
            await quorum.pass_ms(30_000)
            assert quorum.leaders() == [leader]
            assert former.listener.leaders[-1][0] == -1
            said = [each for each in caplog.messages if SAYS_FULL in each]
            assert len(said) == 1
        await regained(quorum, caplog)
        await quorum.converged("a", "b")
        assert former.fatal == []
        key = ReplicaKey(former.node_id, former.directory_id)
        resigning = asyncio.ensure_future(leader.running.resign(key))
        await quorum.until(resigning.done)
        assert await quorum.leader(other_than=leader) is former, "it stands again"


async def test_three_full_disks_wait_for_room_without_elections() -> None:
    async with Quorum(1, 2, 3, seed=31) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        with full(*quorum.nodes.values()):
            assert try_to_append(leader) is ErrorCode.NOT_CONTROLLER
            await quorum.pass_ms(30_000)
            assert quorum.leaders() == []
            epochs = [node.running.state.leader_epoch for node in quorum.nodes.values()]
            assert max(epochs) < leader.running.state.leader_epoch + 5, (
                "no election after the other"
            )
        leader = await quorum.leader()
        leader.append("b")
        await quorum.converged("a", "b")
        assert [node.fatal for node in quorum.nodes.values()] == [[], [], []]


async def test_the_only_voter_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "moldau")
    async with Quorum(1, seed=32) as quorum:
        node = await quorum.leader()
        node.append("a")
        await quorum.converged("a")
        with full(node):
            for _ in range(50):
                assert try_to_append(node) is ErrorCode.KAFKA_STORAGE_ERROR
                await quorum.pass_ms(500)
            assert len([each for each in caplog.messages if SAYS_FULL in each]) == 1
            assert quorum.leaders() == [node]
        node.append("b")
        await quorum.converged("a", "b")
        await regained(quorum, caplog)
        assert node.running.state.leader_epoch == 1


async def test_a_voter_without_room_for_its_vote_stands_still_until_there_is() -> None:
    async with Quorum(1, 2, 3, seed=33) as quorum:
        former = await quorum.leader()
        former.append("a")
        await quorum.converged("a")
        voter = next(node for node in quorum.nodes.values() if node is not former)
        epoch = voter.running.state.leader_epoch
        with full(voter):
            former.crash()
            await quorum.pass_ms(20_000)
            assert not any(
                voted == voter.node_id for voted, at, _ in quorum.network.votes if at > epoch
            )
            assert quorum.leaders() == []
        leader = await quorum.leader()
        leader.append("b")
        await quorum.converged("a", "b")
        assert voter.fatal == []


async def test_a_replica_that_stands_still_can_be_closed() -> None:
    async with Quorum(1, 2, 3, seed=34) as quorum:
        former = await quorum.leader()
        with full(former):
            try_to_append(former)
            await quorum.leader(other_than=former)
            await quorum.pass_ms(5_000)
            began_ms = quorum.clock.monotonic_ms()
            await former.stop()
            assert quorum.clock.monotonic_ms() - began_ms < MAX_PAUSE_MS
            assert former.fatal == []


@pytest.mark.parametrize("operation", ["append", "fsync", "rename", "create"])
async def test_a_new_leader_without_room_for_its_first_batch_resigns(operation: str) -> None:
    """Whichever of its files it is that finds no room: the log, or the leader epochs beside it."""
    async with Quorum(1, 2, 3, seed=35) as quorum:
        former = await quorum.leader()
        former.append("a")
        await quorum.converged("a")
        others = [node for node in quorum.nodes.values() if node is not former]
        for node in others:
            part = ".log" if operation == "append" else "leader-epoch-checkpoint"
            fault = Fault(operation, part, errno.ENOSPC, count=None)
            node.filesystem.faults = [fault]
        former.crash()
        await quorum.pass_ms(20_000)
        assert [node.fatal for node in others] == [[], []]
        for node in others:
            node.filesystem.faults = []
        await former.start()
        leader = await quorum.leader()
        leader.append("b")
        await quorum.converged("a", "b")


async def test_a_snapshot_that_finds_no_room_is_fetched_again_with_room() -> None:
    async with Quorum(1, 2, 3, seed=36, retention_bytes=1) as quorum:
        leader = await quorum.leader()
        late = next(node for node in quorum.nodes.values() if node is not leader)
        leader.append("a")
        await quorum.converged("a")
        quorum.network.isolate(late.node_id)
        for name in ("b", "c"):  # the log goes up to the older of two snapshots
            leader.append(name)
            await quorum.until(
                lambda: leader.running.high_watermark == leader.running.log_end_offset
            )
            await snapshot_of(leader.running, leader.listener)
        for part in (".checkpoint.part", "snapshot-install"):
            fault = Fault("append", part, errno.ENOSPC)
            late.filesystem.faults.append(fault)
        quorum.network.heal()
        await quorum.converged("a", "b", "c")
        assert [each.count for each in late.filesystem.faults] == [0, 0]
        assert late.fatal == []
        assert late.running.files.snapshots == leader.running.files.snapshots


async def test_a_cut_that_cannot_be_noted_waits_for_room() -> None:
    async with Quorum(1, 2, 3, seed=37) as quorum:
        former = await quorum.leader()
        former.append("a")
        await quorum.converged("a")
        quorum.network.isolate(former.node_id)
        former.append("lost")
        former.running.files.flushed_end_offset = former.running.log_end_offset
        leader = await quorum.leader(other_than=former)
        leader.append("b")
        fault = Fault("append", "flushed-end-offset", errno.ENOSPC, count=2)
        former.filesystem.faults = [fault]
        quorum.network.heal()
        await quorum.converged("a", "b")
        assert fault.count == 0
        assert former.fatal == []


async def test_a_broker_without_room_follows_again_with_room() -> None:
    async with Quorum(1, 2, 3, seed=40) as quorum:
        broker = quorum.add(7, is_controller=False)
        await broker.start()
        former = await quorum.leader()
        former.append("a")
        await quorum.converged("a")
        with full(broker):
            former.crash()
            leader = await quorum.leader()
            leader.append("b")
            await quorum.pass_ms(20_000)
            assert broker.listener.names == ["a"]
        await former.start()
        await quorum.converged("a", "b")
        assert broker.fatal == []


async def test_a_leader_without_descriptors_leads_on_and_serves_again_with_some() -> None:
    async with Quorum(1, 2, 3, seed=41) as quorum:
        leader = await quorum.leader()
        late = next(node for node in quorum.nodes.values() if node is not leader)
        leader.append("a")
        await quorum.converged("a")
        quorum.network.isolate(late.node_id)
        leader.append("b")
        await quorum.until(lambda: leader.listener.names == ["a", "b"])
        await snapshot_of(leader.running, leader.listener)  # another segment begins
        leader.running.files.log.segments[0].close_descriptors()
        fault = Fault("open", ".log", errno.EMFILE, count=3)
        leader.filesystem.faults = [fault]
        quorum.network.heal()
        await quorum.converged("a", "b")
        assert fault.count == 0
        assert leader.fatal == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS], ids=["EIO", "EROFS"])
@pytest.mark.parametrize("operation", ["append", "fdatasync"])
async def test_a_leader_whose_disk_fails_stops_and_another_leads(
    operation: str, number: int
) -> None:
    async with Quorum(1, 2, 3, seed=38) as quorum:
        former = await quorum.leader()
        former.filesystem.faults = [Fault(operation, ".log", number, count=None)]
        try_to_append(former)
        await quorum.until(lambda: former.fatal)
        leader = await quorum.leader(other_than=former)
        leader.append("b")
        await quorum.until(lambda: leader.listener.names == ["b"])
        assert len(former.fatal) == 1


async def test_a_disk_that_fails_while_it_is_probed_stops_the_replica() -> None:
    async with Quorum(1, 2, 3, seed=39) as quorum:
        former = await quorum.leader()
        with full(former):
            try_to_append(former)
            former.filesystem.faults = [Fault("create", PROBE_FILE, errno.EROFS, count=None)]
            await quorum.until(lambda: former.fatal)
            assert PROBE_FILE in former.fatal[0]


async def test_a_node_does_not_start_on_a_full_disk() -> None:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    filesystem.capacity_bytes = filesystem.used_bytes()
    with pytest.raises((MetadataLogError, OSError), match="No space left"):
        await open_log(filesystem)
    filesystem.capacity_bytes = None
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "a")
    for _ in range(100):
        await asyncio.sleep(0)
    assert listener.names == ["a"]
    await log.close()


class YieldingFilesystem(SimulatedFilesystem):
    """What is offloaded lets the loop go on, as a disk thread does."""

    async def offload(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return await super().offload(function, *args, **kwargs)

    async def comes_to_rest(self) -> None:
        """Nothing writes to the disk any more."""
        for _ in range(100):
            await asyncio.sleep(0)
        count = self.operation_count
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.operation_count == count, self.operations[-1]


@pytest.mark.parametrize("is_start", [False, True])
async def test_without_room_for_seals_a_flush_is_not_repeated_at_once(is_start: bool) -> None:
    """Neither where a segment ends, nor at a start, which has checked one and seals it."""
    filesystem = YieldingFilesystem()
    format_directory(filesystem)
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "a")
    await filesystem.comes_to_rest()
    fault = Fault("append", SEGMENT_SEALS, errno.ENOSPC, count=None)
    if is_start:
        await log.close()
        filesystem.unlink(SEALS)
        filesystem.faults = [fault]
        opening = asyncio.ensure_future(open_log(filesystem))
        await filesystem.comes_to_rest()
        log = await opening
    else:
        filesystem.faults = [fault]
        await snapshot_of(log, listener)
        await filesystem.comes_to_rest()
    filesystem.faults = []
    assert 0 not in read_segment_seals(filesystem, SEALS)
    append(log, "b")
    await filesystem.comes_to_rest()
    assert log.high_watermark == log.log_end_offset
    assert 0 in read_segment_seals(filesystem, SEALS), "with room they are written"
    await log.close()
