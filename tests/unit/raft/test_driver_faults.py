"""Listeners that fail, snapshots in the way of each other, a full queue: what the driver does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from moldau.metadata.log import CommittedBatch
from moldau.raft.core.effects import Effect
from moldau.raft.quorum_driver import MAX_QUEUED_EVENTS, EventQueue
from tests.kit.waiting import until_async
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

from .fixtures import LOG_DIRECTORY, Listener, append, format_directory, open_log, snapshot_of
from .quorums import Quorum


class FailingListener(Listener):
    """Fails at a batch, and, with `at_leaders`, whenever it hears that no voter leads."""

    def __init__(self, *, at_leaders: bool = False) -> None:
        super().__init__()
        self.at_leaders = at_leaders
        self.is_failing = True

    def handle_commit(self, batch: CommittedBatch) -> None:
        if self.is_failing and batch.records:
            raise ZeroDivisionError("a record nobody expected")
        super().handle_commit(batch)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        if self.at_leaders and leader_id < 0:
            raise ZeroDivisionError("nobody leads")
        super().handle_leader_change(leader_id, leader_epoch)


@pytest.mark.parametrize("at_leaders", [False, True])
@pytest.mark.parametrize("is_live", [True, False], ids=["live", "catching up"])
async def test_a_listener_that_fails_stops_the_node(is_live: bool, at_leaders: bool) -> None:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    fatal: list[str] = []
    log = await open_log(filesystem, on_fatal=fatal.append)
    first = Listener()
    log.add_listener(first)
    listener = FailingListener(at_leaders=at_leaders)
    if is_live:
        log.add_listener(listener)
        await until_async(lambda: listener.next_offset == log.log_end_offset)
    append(log, "a")
    await until_async(lambda: fatal if is_live else first.names == ["a"])
    if not is_live:
        log.add_listener(listener)
    await until_async(lambda: fatal)
    assert len(fatal) == 1
    assert "a record nobody expected" in fatal[0]
    await log.close()


async def test_an_own_snapshot_that_an_installed_one_removed_is_no_fault() -> None:
    async with Quorum(1, 2, 3, seed=20, retention_bytes=1) as quorum:
        leader = await quorum.leader()
        late = next(node for node in quorum.nodes.values() if node is not leader)
        leader.append("a")
        await quorum.converged("a")
        quorum.network.isolate(late.node_id)
        released = late.filesystem.held_after["finish"] = asyncio.Event()
        own = asyncio.ensure_future(snapshot_of(late.running, late.listener))
        own_name = f"{late.listener.next_offset:020d}-"
        await quorum.until(lambda: own_name in "".join(late.filesystem.files()))
        names = ["a"]
        for round_number in range(2):  # the log goes up to the older of two snapshots
            names.append(f"t{round_number}")
            leader.append(names[-1])
            await quorum.until(lambda: leader.listener.names == names)
            await snapshot_of(leader.running, leader.listener)
        assert leader.running.files.snapshots[0].end_offset > late.running.log_end_offset
        quorum.network.heal()
        await quorum.until(lambda: late.running.files.snapshots == leader.running.files.snapshots)
        assert own_name not in "".join(late.filesystem.files())
        released.set()
        await quorum.until(own.done)
        own.result()
        leader = await quorum.leader()
        leader.append("on")
        await quorum.converged(*names, "on")
        assert late.fatal == []
        assert late.running.files.snapshots == leader.running.files.snapshots


async def test_a_snapshot_waits_until_the_leader_has_flushed_what_is_in_it() -> None:
    async with Quorum(1, 2, 3, seed=21) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        await snapshot_of(leader.running, leader.listener)
        flushed_end_offset = leader.running.log_end_offset
        released = leader.filesystem.held_before["run"] = asyncio.Event()
        leader.append("b")
        await quorum.converged("a", "b")  # the others have flushed it
        writing = asyncio.ensure_future(snapshot_of(leader.running, leader.listener))
        await quorum.pass_ms(1_000)
        assert not writing.done()
        leader.crash(lose_power=True)
        released.set()
        await quorum.until(writing.done)
        log = await leader.start()
        assert log.files.snapshots[-1].end_offset <= flushed_end_offset
        await quorum.converged("a", "b")


async def test_a_follower_with_a_full_disk_says_so_once_and_heals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "moldau.raft")
    async with Quorum(1, 2, 3, seed=22) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        follower = next(node for node in quorum.nodes.values() if node is not leader)
        fault = Fault("append", LOG_DIRECTORY, errno.ENOSPC, count=None)
        for _ in range(2):
            follower.filesystem.faults = [fault]
            caplog.clear()
            leader.append("b")
            await quorum.pass_ms(2_000)
            assert follower.running.log_end_offset < leader.running.log_end_offset
            said = [each for each in caplog.messages if "no room for the metadata log" in each]
            assert len(said) == 1, said
            follower.filesystem.faults = []
            await quorum.until(lambda: follower.listener.names == leader.listener.names)
            await quorum.until(
                lambda: "there is room again for the metadata log" in caplog.messages
            )
        await quorum.converged("a", "b", "b")
        assert follower.fatal == []


async def test_no_more_requests_than_there_is_room_for_are_queued() -> None:
    released = asyncio.Event()
    counts: list[int] = []

    async def carry_out(_effect: Effect) -> None:
        await released.wait()

    def failed(error: BaseException) -> None:
        raise AssertionError from error

    queue = EventQueue(carry_out, lambda: None, failed)
    queue.start()
    blocking: Any = object()
    waiting = 0

    def nothing() -> Sequence[Effect]:
        counts.append(waiting)
        return ()

    async def request() -> None:
        nonlocal waiting
        await queue.has_room()
        waiting += 1
        queue.post(done)

    def done() -> Sequence[Effect]:
        nonlocal waiting
        counts.append(waiting)
        waiting -= 1
        return ()

    queue.post(lambda: (blocking,))
    await asyncio.sleep(0)
    requests: list[Awaitable[None]] = [
        asyncio.ensure_future(request()) for _ in range(3 * MAX_QUEUED_EVENTS)
    ]
    await asyncio.sleep(0)
    for _ in range(3 * MAX_QUEUED_EVENTS):
        queue.post(nothing)  # what the log posts to itself finds a place always
    released.set()
    await asyncio.gather(*requests)
    await queue.is_idle()
    assert len(counts) == 6 * MAX_QUEUED_EVENTS
    assert max(counts) <= MAX_QUEUED_EVENTS
    queue.stop()
    await queue.closed()
