"""A quorum of one: epochs, commits, delivery, snapshots, faults, refusals."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import NoOpRecord
from moldau.protocol.records import ControlRecordType
from moldau.protocol.types import ZERO_UUID
from moldau.raft import MetadataLogError, VoterDescription, VoterSet, check_unformatted
from moldau.raft.batch_codec import decode_batches
from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.delivery import RECORDS_PER_TURN
from moldau.raft.state_files import read_quorum_state, write_quorum_state
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

from .fixtures import (
    DIRECTORY,
    DIRECTORY_ID,
    ENDPOINT,
    LOG_DIRECTORY,
    VOTERS,
    Listener,
    append,
    format_directory,
    open_log,
    settled,
    snapshot_of,
)

FIRST_SEGMENT = f"{LOG_DIRECTORY}/{0:020d}.log"


@pytest.fixture
def filesystem() -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    return filesystem


async def test_each_start_opens_an_epoch_with_a_leader_change(
    filesystem: SimulatedFilesystem,
) -> None:
    for epoch in (1, 2, 3):
        log = await open_log(filesystem)
        assert log.state.leader_epoch == epoch
        append(log, f"t{epoch}")
        await log.close()
        state = json.loads(filesystem.read_bytes(f"{LOG_DIRECTORY}/quorum-state"))
        assert state == {
            "leaderId": 1,
            "leaderEpoch": epoch,
            "votedId": 1,
            "votedDirectoryId": "AAAAAAAAAAAAAAAAAABfnQ",
            "data_version": 1,
        }
    batches = list(decode_batches(filesystem.read_bytes(FIRST_SEGMENT), "log"))
    kinds = [[kind for kind, _ in batch.control_records] for batch in batches]
    change = ControlRecordType.LEADER_CHANGE
    assert kinds == [
        [change, ControlRecordType.KRAFT_VERSION, ControlRecordType.KRAFT_VOTERS],
        [],
        [change],
        [],
        [change],
        [],
    ]
    assert [batch.header.partition_leader_epoch for batch in batches] == [1, 1, 2, 2, 3, 3]


async def test_a_moved_controller_says_so_in_the_log(filesystem: SimulatedFilesystem) -> None:
    await (await open_log(filesystem)).close()
    moved = ENDPOINT._replace(port=1234)
    log = await open_log(filesystem, endpoints=(moved,))
    assert log.voters.voters[0].endpoints == (moved,)
    await log.close()
    log = await open_log(filesystem, endpoints=(moved,))
    assert log.state.epoch_start_offset == 5, (
        "said once: 3 records, 2 records, then only LeaderChange"
    )
    assert log.log_end_offset == 6
    await log.close()


async def test_nothing_is_delivered_before_it_is_flushed_and_flushes_are_shared(
    filesystem: SimulatedFilesystem,
) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    await settled(log, listener)
    gate = filesystem.offload_gate = asyncio.Event()
    append(log, "a")
    await asyncio.sleep(0)
    append(log, "b", "c")
    append(log, "d")
    for _ in range(20):
        await asyncio.sleep(0)
    assert listener.names == []
    before = sum(each.name == "fdatasync" for each in filesystem.operations)
    gate.set()
    await settled(log, listener)
    assert listener.names == ["a", "b", "c", "d"]
    assert [len(batch.records) for batch in listener.batches[-3:]] == [1, 2, 1]
    flushes = sum(each.name == "fdatasync" for each in filesystem.operations) - before
    assert flushes == 2, "one for the first batch, one for the other two"
    filesystem.offload_gate = None
    await log.close()


async def test_a_listener_that_is_far_behind_lets_others_have_their_turn(
    filesystem: SimulatedFilesystem,
) -> None:
    """A controller that starts on a long log votes while it reads."""
    log = await open_log(filesystem)
    batch_records, batch_count = RECORDS_PER_TURN // 4, 40
    for batch in range(batch_count):
        append(log, *(f"t{batch}-{index}" for index in range(batch_records)))
    await log.close()
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    most = before = 0
    while listener.next_offset < log.log_end_offset:
        await asyncio.sleep(0)
        most = max(most, len(listener.names) - before)
        before = len(listener.names)
    assert before == batch_records * batch_count
    assert listener.names[-1] == f"t{batch_count - 1}-{batch_records - 1}"
    assert most <= RECORDS_PER_TURN
    await log.close()


async def test_a_listener_hears_of_the_leader_after_everything_before_its_epoch(
    filesystem: SimulatedFilesystem,
) -> None:
    log = await open_log(filesystem)
    append(log, "a")
    await log.close()
    log = await open_log(filesystem)
    heard: list[object] = []

    class Order(Listener):
        def handle_commit(self, batch: object) -> None:
            super().handle_commit(batch)  # type: ignore[arg-type]
            heard.append(self.next_offset)

        def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
            heard.append((leader_id, leader_epoch))

    listener = Order()
    log.add_listener(listener)
    await settled(log, listener)
    assert heard == [3, 4, (1, 2), 5]
    await log.close()


async def test_a_new_listener_starts_from_the_snapshot(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    first = Listener()
    log.add_listener(first)
    append(log, "a")
    append(log, "b")
    await settled(log, first)
    await snapshot_of(log, first)
    append(log, "c")
    await settled(log, first)
    second = Listener()
    log.add_listener(second)
    await settled(log, second)
    assert second.names == ["a", "b", "c"]
    assert [snapshot.end_offset for snapshot in second.snapshots] == [5]
    assert [len(batch.records) for batch in second.batches] == [1]
    await log.close()
    log = await open_log(filesystem)
    third = Listener()
    log.add_listener(third)
    await settled(log, third)
    assert third.names == ["a", "b", "c"]
    assert third.snapshots
    await log.close()


async def test_snapshots_roll_and_trim_the_log(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem, retention_bytes=1)
    listener = Listener()
    log.add_listener(listener)
    for round_number in range(5):
        for index in range(10):
            append(log, f"t{round_number}.{index}")
        await settled(log, listener)
        await snapshot_of(log, listener)
    assert len(log.files.snapshots) == 1
    names = filesystem.listdir(LOG_DIRECTORY)
    assert len([name for name in names if name.endswith(".log")]) == 1
    assert [name for name in names if name.endswith(".checkpoint")] == [
        f"{53:020d}-{1:010d}.checkpoint"
    ]
    expected = listener.names
    # A replica far behind gets the snapshot, since the log does not reach back any more.
    late = Listener()
    log.add_listener(late)
    await settled(log, late)
    assert late.names == expected
    await log.close()
    log = await open_log(filesystem)
    again = Listener()
    log.add_listener(again)
    await settled(log, again)
    assert again.names == expected
    assert log.voters == VOTERS
    await log.close()


async def test_without_need_old_snapshots_stay(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    for name in ("a", "b"):
        append(log, name)
        await settled(log, listener)
        await snapshot_of(log, listener)
    assert [each.end_offset for each in log.files.snapshots] == [0, 4, 5]
    assert filesystem.exists(FIRST_SEGMENT)
    await log.close()


async def test_a_listener_may_pause(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    subscription = log.add_listener(listener)
    await settled(log, listener)
    subscription.pause()
    other = Listener()
    log.add_listener(other)
    for index in range(100):
        append(log, f"t{index}")
    await settled(log, other)
    assert listener.names == []
    subscription.resume()
    await settled(log, listener)
    assert listener.names == other.names
    append(log, "live again")
    await settled(log, listener)
    assert listener.names[-1] == "live again"
    await log.close()


async def test_a_listener_that_pauses_and_resumes_while_it_is_read_for(
    filesystem: SimulatedFilesystem,
) -> None:
    log = await open_log(filesystem)
    first = Listener()
    log.add_listener(first)
    for index in range(50):
        append(log, f"t{index}")
    await settled(log, first)
    gate = filesystem.offload_gate = asyncio.Event()
    listener = Listener()
    subscription = log.add_listener(listener)
    for _ in range(5):
        await asyncio.sleep(0)
    for _ in range(3):  # the reader waits for the disk
        subscription.pause()
        await asyncio.sleep(0)
        subscription.resume()
    readers = [task for task in asyncio.all_tasks() if task.get_name() == "metadata-catch-up"]
    assert len(readers) == 1
    gate.set()
    await settled(log, listener)
    assert listener.names == first.names
    filesystem.offload_gate = None
    append(log, "live again")
    await settled(log, listener)
    assert listener.names[-1] == "live again"
    subscription.pause()
    subscription.resume()
    subscription.resume()
    append(log, "once")
    await settled(log, listener)
    assert listener.names[-2:] == ["live again", "once"]
    await log.close()


async def test_a_failed_flush_commits_nothing_ever_again(filesystem: SimulatedFilesystem) -> None:
    fatal: list[str] = []
    log = await open_log(filesystem, on_fatal=fatal.append)
    listener = Listener()
    log.add_listener(listener)
    await settled(log, listener)
    filesystem.faults.append(Fault("fdatasync", ".log", errno.EIO))
    append(log, "lost?")
    while not fatal:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(fatal) == 1
    assert listener.names == []
    assert listener.leaders[-1] == (-1, 1)
    error, _ = log.append([(NoOpRecord(), 0)], leader_epoch=1)
    assert error is ErrorCode.NOT_CONTROLLER
    await log.close()


async def test_a_full_disk_refuses_one_change_and_heals(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "a")
    await settled(log, listener)
    filesystem.faults.append(Fault("append", ".log", errno.ENOSPC))
    error, _ = log.append([(NoOpRecord(), 0)], leader_epoch=1)
    assert filesystem.faults[0].count == 0
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    append(log, "b")
    await settled(log, listener)
    assert listener.names == ["a", "b"]
    await log.close()


async def test_a_snapshot_that_cannot_be_written_changes_nothing(
    filesystem: SimulatedFilesystem,
) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "a")
    await settled(log, listener)
    for operation in ("append", "fsync", "rename"):
        fault = Fault(operation, ".checkpoint", errno.ENOSPC)
        filesystem.faults = [fault]
        with pytest.raises(OSError, match="space"):
            await snapshot_of(log, listener)
        assert fault.count == 0
        assert [each.end_offset for each in log.files.snapshots] == [0]
        assert not any(".part" in name for name in filesystem.listdir(LOG_DIRECTORY))
    filesystem.faults = []
    await snapshot_of(log, listener)
    assert [each.end_offset for each in log.files.snapshots] == [0, 4]
    await log.close()


async def test_only_the_leaders_epoch_appends(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    for epoch in (0, 2):
        assert log.append([(NoOpRecord(), 0)], leader_epoch=epoch)[0] is ErrorCode.NOT_CONTROLLER
    assert log.log_end_offset == 3
    await log.close()
    assert log.append([(NoOpRecord(), 0)], leader_epoch=1)[0] is ErrorCode.NOT_CONTROLLER


# -- refusals ------------------------------------------------------------------------------------


async def refused(filesystem: SimulatedFilesystem, **changes: Any) -> str:
    """The one line a start fails with; nothing was overwritten but what is derived (indexes)."""
    derived = (".index", ".timeindex", ".snapshot")
    before = {path: data for path, data in filesystem.files().items() if not path.endswith(derived)}
    with pytest.raises(MetadataLogError) as caught:
        await open_log(filesystem, **changes)
    after = filesystem.files()
    assert {path: after.get(path) for path in before} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def used(filesystem: SimulatedFilesystem) -> None:
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "a")
    await settled(log, listener)
    await snapshot_of(log, listener)
    append(log, "b")
    await settled(log, listener)
    await log.close()


@pytest.mark.parametrize(
    "local",
    [ReplicaKey(2, DIRECTORY_ID), ReplicaKey(1, UUID(int=7))],
    ids=["another node", "wiped disk"],
)
async def test_who_is_no_voter_does_not_lead(
    filesystem: SimulatedFilesystem, local: ReplicaKey
) -> None:
    log = await open_log(filesystem, local=local)
    assert not log.is_leader
    assert log.leadership.leader_id == -1
    assert log.log_end_offset == 0
    assert log.append([(NoOpRecord(), 0)], leader_epoch=1)[0] is ErrorCode.NOT_CONTROLLER
    await log.close()


async def test_voters_of_the_configuration(filesystem: SimulatedFilesystem) -> None:
    static = VoterSet((VoterDescription(1, ZERO_UUID, (ENDPOINT,)),))
    unformatted = SimulatedFilesystem()
    format_directory(unformatted, VoterSet())
    log = await open_log(unformatted, static_voters=static)
    assert log.is_leader
    assert log.voters == static
    await log.close()
    batches = list(decode_batches(unformatted.read_bytes(FIRST_SEGMENT), "log"))
    assert [kind for kind, _ in batches[0].control_records] == [ControlRecordType.LEADER_CHANGE]
    log = await open_log(filesystem, static_voters=static)
    assert log.voters == VOTERS, "those of the log count"
    await log.close()


async def test_voters_of_the_configuration_that_differ_from_the_logs_are_refused(
    filesystem: SimulatedFilesystem,
) -> None:
    await used(filesystem)
    others = VoterSet(tuple(VoterDescription(each, ZERO_UUID, (ENDPOINT,)) for each in (1, 2, 3)))
    message = await refused(filesystem, static_voters=others)
    assert "controller.quorum.voters names 1, 2, 3 and the metadata log 1;" in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"leaderId":1}',
        b'{"leaderId":1,"leaderEpoch":-5,"votedId":-1,"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":"7","votedId":-1,"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":7,"votedId":-1,"data_version":9}',
        b'{"leaderId":1,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"x","data_version":1}',
    ],
)
async def test_a_corrupt_quorum_state_is_refused(
    filesystem: SimulatedFilesystem, content: bytes
) -> None:
    await used(filesystem)
    filesystem.put(f"{LOG_DIRECTORY}/quorum-state", content)
    assert "quorum-state" in await refused(filesystem)


def test_an_older_quorum_state_is_understood() -> None:
    filesystem = SimulatedFilesystem()
    filesystem.mkdirs(DIRECTORY)
    filesystem.put(
        f"{DIRECTORY}/quorum-state",
        b'{"clusterId":"x","leaderId":3,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":3}],"data_version":0}',
    )
    assert read_quorum_state(filesystem, DIRECTORY) == ElectionState(7, 3)
    write_quorum_state(filesystem, DIRECTORY, ElectionState(8, 1, ReplicaKey(2, DIRECTORY_ID)))
    assert read_quorum_state(filesystem, DIRECTORY) == ElectionState(
        8, 1, ReplicaKey(2, DIRECTORY_ID)
    )


async def test_corrupt_snapshots_are_refused(filesystem: SimulatedFilesystem) -> None:
    await used(filesystem)
    path = f"{LOG_DIRECTORY}/{4:020d}-{1:010d}.checkpoint"
    good = filesystem.read_bytes(path)
    for bad in (b"", good[:-1], good[:166], good[166:], good[:200] + b"\xff" + good[201:]):
        filesystem.put(path, bad)
        assert path in await refused(filesystem)
    filesystem.put(path, good)
    await (await open_log(filesystem)).close()


@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_a_lone_node_starts_without_a_damaged_snapshot_while_its_log_is_whole(
    filesystem: SimulatedFilesystem, has_snapshot: bool
) -> None:
    """docs/operations.md says to move it away: the log has everything, the voters too."""
    if has_snapshot:
        await used(filesystem)
        name = f"{4:020d}-{1:010d}.checkpoint"
    else:
        log = await open_log(filesystem)
        append(log, "a")
        append(log, "b")
        await log.close()
        name = f"{0:020d}-{0:010d}.checkpoint"
    path = f"{LOG_DIRECTORY}/{name}"
    filesystem.put(path, filesystem.read_bytes(path)[:-1])
    assert path in await refused(filesystem)
    filesystem.unlink(path)
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    append(log, "c")
    await settled(log, listener)
    assert listener.names == ["a", "b", "c"]
    await log.close()


async def test_a_log_that_lost_what_was_flushed_is_refused(
    filesystem: SimulatedFilesystem,
) -> None:
    await used(filesystem)
    filesystem.put(FIRST_SEGMENT, filesystem.read_bytes(FIRST_SEGMENT)[:100])
    assert "recovery point" in await refused(filesystem)


async def test_a_gap_between_snapshot_and_log_is_refused(filesystem: SimulatedFilesystem) -> None:
    await used(filesystem)
    filesystem.unlink(f"{LOG_DIRECTORY}/{4:020d}-{1:010d}.checkpoint")
    filesystem.unlink(FIRST_SEGMENT)
    assert "missing" in await refused(filesystem)


async def test_another_topics_directory_is_refused(filesystem: SimulatedFilesystem) -> None:
    await used(filesystem)
    filesystem.put(
        f"{LOG_DIRECTORY}/partition.metadata", b"version: 0\ntopic_id: DZAo9FN4Rr6HKmBUsdrU_w"
    )
    assert "not the metadata log" in await refused(filesystem)


async def test_formatting_twice(filesystem: SimulatedFilesystem) -> None:
    format_directory(filesystem)  # what an interrupted formatting left is written again
    await (await open_log(filesystem)).close()
    before = filesystem.files()
    with pytest.raises(MetadataLogError):
        format_directory(filesystem)
    with pytest.raises(MetadataLogError):
        check_unformatted(filesystem, DIRECTORY)
    assert filesystem.files() == before
